"""Explains why a schedule does not fire at an instant that its rule names: a calendar, an exception, or its count."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from bellringer.schedule.cron_schedule import Cron
from bellringer.schedule.instants import write_instant
from bellringer.schedule.interval_and_oneshot import Every
from bellringer.schedule.rrule_schedule import Rrule
from bellringer.schedule.serialization import Schedule
from bellringer.schedule.zoned_schedule import ZonedSchedule, explain_day_off

MAX_OCCURRENCES_SEARCHED: Final = 2_000


class Exclusion(NamedTuple):
    """The reason why an instant is not an occurrence: a stable code and a sentence."""

    code: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludedFire:
    """An instant that the rule of a schedule names, but at which it does not fire."""

    at: datetime
    local: datetime
    reason: Exclusion


def explain_exclusion(schedule: Schedule, at: datetime) -> Exclusion | None:
    """Explains why an instant that the rule of the schedule names is not an occurrence; None if there is no such
    reason.
    """
    if isinstance(schedule, Cron | Every) and schedule.repeat is not None and schedule.repeat.start is not None:
        unlimited = replace(schedule, repeat=None)
        if _fires_at(unlimited, at) and not _fires_at(schedule, at):
            repeat = schedule.repeat
            if repeat.start is not None and at < repeat.start:
                return Exclusion("before_start", f"the schedule starts at {write_instant(repeat.start)}")
            return Exclusion("count_reached", f"the schedule ends after {repeat.times:,} occurrences")
        schedule = unlimited
    if isinstance(schedule, Rrule) and schedule.exceptions is not None:
        whole = replace(schedule, exceptions=None)
        if _fires_at(whole, at) and not _fires_at(schedule, at):
            shown = at.astimezone(ZoneInfo(schedule.timezone))
            return Exclusion("exdate", f"{shown:%Y-%m-%d %H:%M} is excluded by an EXDATE of the schedule")
        schedule = whole
    text = explain_day_off(schedule, at)
    return None if text is None else Exclusion("calendar", text)


def excluded_fires(schedule: Schedule, after: datetime, until: datetime, most: int) -> list[ExcludedFire]:
    """Returns the first instants after `after`, up to and including `until`, at which a calendar or an exception stops
    the schedule. It searches a limited number of occurrences.
    """
    if not isinstance(schedule, ZonedSchedule):
        return []
    bare: ZonedSchedule = replace(schedule, days_off=None)
    if isinstance(bare, Rrule):
        bare = replace(bare, exceptions=None)
    if bare == schedule:
        return []
    return list(islice(_find_excluded(schedule, bare, after, until), most))


def _find_excluded(
    schedule: ZonedSchedule, bare: ZonedSchedule, after: datetime, until: datetime
) -> Iterator[ExcludedFire]:
    assert isinstance(schedule, Cron | Rrule), "these are the schedules with a time zone"
    zone = ZoneInfo(schedule.timezone)
    for at in islice(bare.between(after, until), MAX_OCCURRENCES_SEARCHED):
        if not _fires_at(schedule, at) and (reason := explain_exclusion(schedule, at)):
            yield ExcludedFire(at=at, local=at.astimezone(zone), reason=reason)


def _fires_at(schedule: Schedule, at: datetime) -> bool:
    return schedule.last_at_or_before(at, not_before=at) == at
