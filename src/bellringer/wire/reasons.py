"""Why something is as it is, as the API tells it."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from msgspec import UNSET, UnsetType

from bellringer.wire.answers import Answer, NodeOf


class Reason(Answer, frozen=True):
    """`holds`: true: it is in the way; false: it only tells; "ok": a check that is fine. `fix` is a command."""

    code: str
    holds: bool | Literal["ok"]
    text: str
    fix: str


class Explanation(Answer, frozen=True):
    """Reasons, the decisive one first. `at` is the instant that they are about; `state` is that of its run.

    `workflow` says which node of which workflow run they are about; `state` is that of the node then.
    """

    job_id: str
    job: str | None
    task: str | None
    run_id: str | None
    state: str | None
    at: datetime | None
    next_at: datetime | None
    reasons: list[Reason]
    workflow: NodeOf | UnsetType = UNSET
