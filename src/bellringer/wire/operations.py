"""Bulk operations on many jobs, runs or dead letters."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from bellringer.errors import NotFound
from bellringer.wire.models import Count, RequestModel, ResponseModel

_LARGEST: Final = (1 << 63) - 1


class JobsFilter(RequestModel, frozen=True):
    """A filter of jobs. `q` are words of the name; `state` is enabled, paused, disabled or done."""

    q: str | None = None
    tag: str | None = None
    state: str | None = None
    pool: str | None = None
    task: str | None = None
    owner: str | None = None


class LettersFilter(RequestModel, frozen=True):
    """A filter of dead letters."""

    fingerprint: str | None = None
    job: str | None = None
    task: str | None = None


class OperationRequest(RequestModel, frozen=True):
    """An action on the items `ids`, or on all items that match `filter`; the filter {} matches all.

    `action` is jobs.pause, jobs.resume, jobs.delete, jobs.run, jobs.update, runs.cancel, runs.retry,
    dead_letters.redrive or dead_letters.discard. The filter has the same fields as the list of these items. With
    `expected_count`, the request fails if the actual count differs by more than one percent. `rate` is the maximum per
    minute. For jobs.update, `changes` has the fields to set: retry, timeout, pool, priority, max_concurrency, enabled,
    tags, add_tags and remove_tags.
    """

    action: str
    filter: dict[str, Any] | None = None
    ids: list[str] | None = None
    expected_count: int | None = None
    reason: str | None = None
    rate: int | float | None = None
    dry_run: bool = False
    changes: dict[str, Any] | None = None


class PlannedValue(ResponseModel, frozen=True):
    """The value of a field of one job, before and after a change."""

    job: str
    before: Any
    after: Any


class PlannedField(ResponseModel, frozen=True):
    """A field that jobs.update would set: the number of examined jobs in which it changes, and the first of them."""

    field: str
    jobs: int
    sample: list[PlannedValue]


class BulkPlan(ResponseModel, frozen=True):
    """The items that an operation would change: their number, and the first of them.

    Of jobs.update, `changes` has the fields that change in the first `examined` jobs, and `declared_by` the apps whose
    code declares some of these jobs, with their number: the next start of such an app overrides the changes.
    """

    action: str
    count: Count
    sample: list[str]
    changes: list[PlannedField] | None = None
    examined: int | None = None
    declared_by: dict[str, int] | None = None


class Failure(ResponseModel, frozen=True):
    """An item that could not be changed."""

    id: str
    code: str
    detail: str


class OperationItem(ResponseModel, frozen=True):
    """A job, a run or a dead letter that an operation was given. `name` is the name of its job; null: it has none."""

    id: str
    name: str | None


class Operation(ResponseModel, frozen=True):
    """A bulk operation and its progress; `state` is running, done or aborted.

    `total` was counted at the start. `skipped` items needed no change. `eta` is the expected end, by the pace so far or
    the rate; `failures` lists the first twenty. `changes` are the fields that jobs.update sets; `reverts` is the
    operation whose changes this one takes back. `items` are the first twenty of the items that were given by id.
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
    changes: dict[str, Any] | None = None
    reverts: str | None = None
    items: list[OperationItem] | None = None


class OperationPage(ResponseModel, frozen=True):
    """Operations, newest first."""

    items: list[Operation]
    next_cursor: str | None = None


def encode_operation(number: int) -> str:
    return f"op_{number}"


def decode_operation(text: str) -> int:
    """The number of an operation id. Raises NotFound if the text is not such an id."""
    digits = text.removeprefix("op_")
    if text.startswith("op_") and digits.isascii() and digits.isdecimal() and len(digits) <= 19:
        number = int(digits)
        if str(number) == digits and number <= _LARGEST:
            return number
    raise no_operation()


def no_operation() -> NotFound:
    return NotFound("there is no such operation", hint="`bellringer ops list` shows them")
