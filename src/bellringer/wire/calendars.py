"""Calendars and freezes: days off by name, and times in which schedules rest."""

from __future__ import annotations

from datetime import date, datetime
from typing import Final

from msgspec import UNSET, UnsetType, field

from bellringer.errors import NotFound
from bellringer.wire.answers import Answer
from bellringer.wire.requests import Request

_RENAMED: Final = {"from_at": "from", "to_at": "to"}
_LARGEST: Final = (1 << 31) - 1


class CalendarRequest(Request, frozen=True):
    """Single dates, or an iCalendar file whose all-day events give them; and the days of every weekend."""

    dates: list[str] | None = None
    ics: str | None = None
    weekend: list[str] = field(default_factory=lambda: ["SAT", "SUN"])


class CalendarItem(Answer, frozen=True):
    """`days` counts its dates, `jobs` those that use it; of these, `outdated` still follow an older version.

    Jobs are counted up to 10,000. `coming` are the next ten of its dates.
    """

    name: str
    version: int
    weekend: list[str]
    days: int
    coming: list[date]
    jobs: int
    outdated: int
    changed_at: datetime
    changed_by: str


class Calendar(CalendarItem, frozen=True):
    """With all of its dates."""

    dates: list[date]


class CalendarPage(Answer, frozen=True):
    """Calendars by their names."""

    items: list[CalendarItem]
    next_cursor: str | None = None


class FreezeRequest(Request, frozen=True, rename=_RENAMED):
    """`from` is now where it is not given; `to` is an instant, or a length of time after `from`.

    `policy` is defer, skip or collapse. With tags it covers the jobs that have one of them, without all jobs.
    """

    name: str
    to_at: str | int | float
    from_at: str | None = None
    policy: str = "defer"
    tags: list[str] = field(default_factory=list)
    reason: str | None = None


class FreezePatch(Request, frozen=True, rename=_RENAMED):
    """What is left out stays as it is."""

    to_at: str | int | float | UnsetType = UNSET
    reason: str | UnsetType | None = UNSET


class Freeze(Answer, frozen=True, rename=_RENAMED):
    """`state` is coming, active or over; `to` is not in it.

    `jobs` counts those that it covers now, where one freeze is made or read; none, where there are too many to count.
    """

    freeze_id: str
    name: str
    state: str
    from_at: datetime
    to_at: datetime
    policy: str
    tags: list[str]
    reason: str | None
    made_by: str
    made_at: datetime
    jobs: int | None = None


class FreezePage(Answer, frozen=True):
    """Freezes, those that end last first."""

    items: list[Freeze]
    next_cursor: str | None = None


class Lifted(Answer, frozen=True):
    """How many runs were let go at once; where there are more, the scheduler lets them go within seconds.

    `was_over`: it had ended before.
    """

    freed: int
    was_over: bool = False


def encode_freeze(number: int) -> str:
    return f"fz_{number}"


def decode_freeze(text: str) -> int | None:
    """Its number; none where the text is no such id, but perhaps a name."""
    digits = text.removeprefix("fz_")
    if text.startswith("fz_") and digits.isascii() and digits.isdecimal() and len(digits) <= 10:
        number = int(digits)
        if str(number) == digits and number <= _LARGEST:
            return number
    return None


def no_freeze() -> NotFound:
    return NotFound("there is no such freeze", hint="`bellringer freezes list` shows them")


def no_calendar() -> NotFound:
    return NotFound("there is no such calendar", hint="`bellringer calendars list` shows them")
