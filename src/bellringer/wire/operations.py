"""Operations: one request that concerns many jobs, runs or dead letters."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from bellringer.errors import NotFound
from bellringer.wire.answers import Answer, Count
from bellringer.wire.requests import Request

_LARGEST: Final = (1 << 63) - 1


class JobsFilter(Request, frozen=True):
    """Which jobs; `q` are words of the name, `state` is enabled, paused or disabled."""

    q: str | None = None
    tag: str | None = None
    state: str | None = None
    pool: str | None = None
    task: str | None = None
    owner: str | None = None


class LettersFilter(Request, frozen=True):
    """Which dead letters."""

    fingerprint: str | None = None
    job: str | None = None
    task: str | None = None


class BulkRequest(Request, frozen=True):
    """What to do to those that are named, or to all that fit a filter; {} are all.

    `action` is jobs.pause, jobs.resume, jobs.delete, jobs.run, runs.cancel, runs.retry, dead_letters.redrive or
    dead_letters.discard; the filter takes the same words as the list of these. With `expected_count` it is refused
    where the count differs by more than one in a hundred. `rate` is how many a minute.
    """

    action: str
    filter: dict[str, Any] | None = None
    ids: list[str] | None = None
    expected_count: int | None = None
    reason: str | None = None
    rate: int | float | None = None
    dry_run: bool = False


class BulkPlan(Answer, frozen=True):
    """What an operation would be about: how many, and the first of them. Nothing was done."""

    action: str
    count: Count
    sample: list[str]


class Failure(Answer, frozen=True):
    """One item that could not be done."""

    id: str
    code: str
    detail: str


class Operation(Answer, frozen=True):
    """How far it has come; `state` is running, done or aborted.

    `total` was counted when it was asked for. `skipped` are those for which there was nothing to do. `eta` is when it
    will be done, at the pace so far or by its rate; `failures` are the first twenty.
    """

    operation_id: str
    action: str
    state: str
    filter: dict[str, Any] | None
    named: int | None
    total: Count
    done: int
    skipped: int
    failed: int
    rate: float | None
    eta: datetime | None
    who: str
    reason: str | None
    created_at: datetime
    ended_at: datetime | None
    failures: list[Failure]


class OperationPage(Answer, frozen=True):
    """Operations, the newest first."""

    items: list[Operation]
    next_cursor: str | None = None


def encode_operation(number: int) -> str:
    return f"op_{number}"


def decode_operation(text: str) -> int:
    """Its number; whatever is no such id is, as any unknown one, not found."""
    digits = text.removeprefix("op_")
    if text.startswith("op_") and digits.isascii() and digits.isdecimal() and len(digits) <= 19:
        number = int(digits)
        if str(number) == digits and number <= _LARGEST:
            return number
    raise no_operation()


def no_operation() -> NotFound:
    return NotFound("there is no such operation", hint="`bellringer ops list` shows them")
