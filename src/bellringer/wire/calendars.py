"""Calendars of days off, and freezes, in which schedules are suspended."""

from __future__ import annotations

from datetime import date, datetime
from typing import Final

from msgspec import UNSET, UnsetType, field

from bellringer.errors import NotFound
from bellringer.wire.models import RequestModel, ResponseModel

_RENAMED: Final = {"from_at": "from", "to_at": "to"}
_LARGEST: Final = (1 << 31) - 1


class CalendarRequest(RequestModel, frozen=True):
    """Days off: dates, or an iCalendar file with all-day events; and the days of the weekend.

    `hours` are ranges such as "MON-FRI 09:00-17:30"; without any, every hour of a working day is working time.
    """

    dates: list[str] | None = None
    ics: str | None = None
    weekend: list[str] = field(default_factory=lambda: ["SAT", "SUN"])
    hours: list[str] = field(default_factory=list)


class CalendarItem(ResponseModel, frozen=True):
    """A calendar. `days` is the number of its dates, `coming` the next ten.

    `jobs` counts the jobs that use it, up to 10,000; `outdated` of them still use an older version.
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
    hours: list[str] = field(default_factory=list)


class Calendar(CalendarItem, frozen=True):
    """A calendar with all its dates."""

    dates: list[date] = field(default_factory=list)


class CalendarPage(ResponseModel, frozen=True):
    """Calendars, ordered by name."""

    items: list[CalendarItem]
    next_cursor: str | None = None


class FreezeRequest(RequestModel, frozen=True, rename=_RENAMED):
    """A freeze to create. The default of `from` is now; `to` is an instant, or a duration after `from`.

    `policy` is defer, skip or collapse. With tags, it covers jobs with one of them; otherwise all jobs.
    """

    name: str
    to_at: str | int | float
    from_at: str | None = None
    policy: str = "defer"
    tags: list[str] = field(default_factory=list)
    reason: str | None = None


class FreezePatch(RequestModel, frozen=True, rename=_RENAMED):
    """Omitted fields are not changed."""

    to_at: str | int | float | UnsetType = UNSET
    reason: str | UnsetType | None = UNSET


class Freeze(ResponseModel, frozen=True, rename=_RENAMED):
    """A freeze, `to` exclusive; `state` is coming, active or over.

    `jobs` counts the covered jobs when a single freeze is created or read; null if there are too many to count.
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


class FreezePage(ResponseModel, frozen=True):
    """Freezes; the one that ends last comes first."""

    items: list[Freeze]
    next_cursor: str | None = None


class Lifted(ResponseModel, frozen=True):
    """The number of released runs; the scheduler releases further runs within seconds.

    `was_over`: the freeze had already ended.
    """

    freed: int
    was_over: bool = False


def encode_freeze(number: int) -> str:
    return f"fz_{number}"


def decode_freeze(text: str) -> int | None:
    """The number of a freeze id; None if the text is not an id, but perhaps a name."""
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
