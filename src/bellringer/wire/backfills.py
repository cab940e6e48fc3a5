"""Backfills and catch-ups: runs of past occurrences."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from msgspec import UNSET, UnsetType

from bellringer.errors import NotFound
from bellringer.wire.models import RequestModel, RequestWarning, ResponseModel

ORDERS: Final = ("oldest", "newest")
REPROCESS: Final = ("none", "failed", "all")
MOST_PARALLEL: Final = 1_000
_LARGEST: Final = (1 << 40) - 1
_RENAMED: Final = {"from_at": "from", "to_at": "to"}


class BackfillRequest(RequestModel, frozen=True, rename=_RENAMED):
    """A range of past occurrences, `to` exclusive. Times are RFC 3339, or local times or dates in the job's time zone.

    `rate` is in runs per minute. With `dry_run`, only the plan is returned; pass its `plan` to run exactly that plan.
    """

    job: str
    from_at: str
    to_at: str
    parallelism: int = 1
    order: str = "oldest"
    reprocess: str = "none"
    rate: int | float | None = None
    dry_run: bool = False
    plan: str | None = None


class BackfillPlan(ResponseModel, frozen=True, rename=_RENAMED):
    """The plan of a backfill. If `exact` is false, too many runs exist to read, and `to_run` is an upper bound."""

    job_id: str
    job: str
    from_at: datetime
    to_at: datetime
    count: int
    already_ran: int
    to_run: int
    exact: bool
    first: datetime | None
    last: datetime | None
    plan: str
    warnings: list[RequestWarning] | UnsetType = UNSET  # of the terms of the request


class BackfillItem(ResponseModel, frozen=True, rename=_RENAMED):
    """A backfill. `cursor` is its last occurrence; of `total` occurrences, `made` became runs, `passed` needed none."""

    backfill_id: str
    job_id: str
    job: str
    cause: str
    state: str
    from_at: datetime
    to_at: datetime
    cursor: datetime | None
    order: str
    reprocess: str
    parallelism: int
    rate: float | None
    total: int | None
    made: int
    passed: int
    created_at: datetime
    ended_at: datetime | None
    who: str
    why: str | None


class Backfill(BackfillItem, frozen=True, rename=_RENAMED):
    """A backfill and its runs by state; `running` counts unfinished runs, up to a thousand."""

    running: int
    succeeded: int
    dead: int
    cancelled: int


class BackfillPage(ResponseModel, frozen=True):
    items: list[BackfillItem]
    next_cursor: str | None = None


def encode_backfill(number: int) -> str:
    return f"bf_{number}"


def decode_backfill(text: str) -> int:
    """The number of a backfill id. Raises NotFound if the text is not such an id."""
    digits = text.removeprefix("bf_")
    if text.startswith("bf_") and digits.isascii() and digits.isdecimal() and len(digits) <= 13:
        number = int(digits)
        if str(number) == digits and number <= _LARGEST:
            return number
    raise NotFound("there is no such backfill", hint="ids look like bf_7; list them with `bellringer backfills list`")
