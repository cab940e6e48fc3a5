"""Backfills: runs of the past that somebody asks for, or that a job has missed."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from bellringer.errors import NotFound
from bellringer.wire.answers import Answer
from bellringer.wire.requests import Request

ORDERS: Final = ("oldest", "newest")
REPROCESS: Final = ("none", "failed", "all")
MOST_PARALLEL: Final = 1_000
_LARGEST: Final = (1 << 40) - 1
_RENAMED: Final = {"from_at": "from", "to_at": "to"}


class BackfillRequest(Request, frozen=True, rename=_RENAMED):
    """From and to are RFC 3339; a time without offset, or a date alone, is one of the job's zone. `to` is not in it.

    `rate` is in runs a minute. With `dry_run` nothing is made; `plan` is what such an answer was named.
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


class BackfillPlan(Answer, frozen=True, rename=_RENAMED):
    """What a backfill would do. `exact` is false where more runs exist than are looked at: `to_run` is then a bound."""

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


class BackfillItem(Answer, frozen=True, rename=_RENAMED):
    """`cursor` is the last occurrence that was decided on; of `total`, `made` became runs and `passed` needed none."""

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
    """With what became of its runs; `running` are those that have not ended, counted up to a thousand."""

    running: int
    succeeded: int
    dead: int
    cancelled: int


class BackfillPage(Answer, frozen=True):
    items: list[BackfillItem]
    next_cursor: str | None = None


def encode_backfill(number: int) -> str:
    return f"bf_{number}"


def decode_backfill(text: str) -> int:
    """Its number; anything else is, as any unknown id, not found."""
    digits = text.removeprefix("bf_")
    if text.startswith("bf_") and digits.isascii() and digits.isdecimal() and len(digits) <= 13:
        number = int(digits)
        if str(number) == digits and number <= _LARGEST:
            return number
    raise NotFound("there is no such backfill", hint="ids look like bf_7; list them with `bellringer backfills list`")
