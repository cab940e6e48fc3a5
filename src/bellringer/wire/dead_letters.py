"""Dead letters: runs that failed for good, listed one by one or grouped by error."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from bellringer.wire.models import Count, RequestModel, ResponseModel


class DeadLetter(ResponseModel, frozen=True):
    """A run that failed for good, until it is redriven or discarded."""

    run_id: str
    job_id: str
    job: str | None
    task: str
    attempt: int
    scheduled_for: datetime
    died_at: datetime
    reason: str
    error: Any
    fingerprint: str


class Letters(ResponseModel, frozen=True):
    items: list[DeadLetter]
    next_cursor: str | None = None


class LetterGroup(ResponseModel, frozen=True):
    """Dead letters with the same error. The error, jobs and runs are those of the latest."""

    fingerprint: str
    count: Count
    type: str | None
    message: str | None
    reason: str
    first_died_at: datetime
    last_died_at: datetime
    jobs: list[str]
    runs: list[str]


class LetterGroups(ResponseModel, frozen=True):
    """Groups of dead letters; within a page, the one with the latest dead letter first."""

    items: list[LetterGroup]
    next_cursor: str | None = None


class LettersRequest(RequestModel, frozen=True):
    """A selection of dead letters: runs, a fingerprint, or all. `rate` is the maximum per minute."""

    runs: list[str] | None = None
    all: bool = False
    fingerprint: str | None = None
    rate: int | float | None = None


class RestoreRequest(RequestModel, frozen=True):
    """A selection of dead letters that were discarded within the last day: runs, a fingerprint, those that an
    operation discarded, or all.
    """

    runs: list[str] | None = None
    all: bool = False
    fingerprint: str | None = None
    operation_id: str | None = None


class DiscardedLetter(ResponseModel, frozen=True):
    """A dead letter that was discarded; it can be restored until `restorable_until`, if its run is in the history."""

    run_id: str
    job_id: str
    job: str | None
    task: str
    attempt: int
    scheduled_for: datetime
    died_at: datetime
    reason: str
    error: Any
    fingerprint: str
    discarded_at: datetime
    discarded_by: str | None
    operation_id: str | None
    restorable_until: datetime


class DiscardedLetters(ResponseModel, frozen=True):
    """Dead letters that were discarded within the last day, the latest first."""

    items: list[DiscardedLetter]
    next_cursor: str | None = None


class Bulk(ResponseModel, frozen=True):
    """The number of changed dead letters, or the id of the operation that changes them if there are many."""

    count: int = 0
    more: bool = False
    operation_id: str | msgspec.UnsetType = msgspec.UNSET
