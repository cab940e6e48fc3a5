"""A look ahead: the next occurrences of a schedule, with what a change of the clock does to them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from zoneinfo import ZoneInfo

from bellringer.schedule.instants import END
from bellringer.schedule.rows import Schedule
from bellringer.schedule.timetable import Timetable


@dataclass(frozen=True, slots=True, kw_only=True)
class Fire:
    """One occurrence: the instant in UTC, the same in the schedule's zone, and its flags."""

    at: datetime
    local: datetime
    flags: tuple[str, ...] = ()


def preview(schedule: Schedule, after: datetime, n: int) -> list[Fire]:
    """The next `n` occurrences after an instant, or all there are; of a delay only the first can be known."""
    found = islice(schedule.between(after, END), n)
    if not isinstance(schedule, Timetable):
        return [Fire(at=instant, local=instant) for instant in found]
    zone = ZoneInfo(schedule.timezone)
    return [Fire(at=instant, local=instant.astimezone(zone), flags=schedule.flags_of(instant)) for instant in found]
