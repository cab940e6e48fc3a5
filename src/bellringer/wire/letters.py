"""Dead letters, one by one and in groups."""

from __future__ import annotations

from datetime import datetime

from bellringer.wire.answers import Answer, Count


class LetterGroup(Answer, frozen=True):
    """Dead letters that died of the same. The error, jobs and runs are those of the latest of them."""

    fingerprint: str
    count: Count
    type: str | None
    message: str | None
    reason: str
    first_died_at: datetime
    last_died_at: datetime
    jobs: list[str]
    runs: list[str]


class LetterGroups(Answer, frozen=True):
    """Groups; those of one page by when the latest of them died."""

    items: list[LetterGroup]
    next_cursor: str | None = None
