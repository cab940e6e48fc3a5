"""The next occurrences of a schedule, how often it fires, and warnings about surprising behaviour."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from itertools import islice
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from bellringer.schedule import dst, rrule_parser
from bellringer.schedule.cron_ast import (
    FIELDS,
    Expression,
    Item,
    LastDay,
    NearestWeekday,
    RangeItem,
    RangeToLastDay,
    covers_all,
    leads_with_star,
)
from bellringer.schedule.cron_schedule import Cron
from bellringer.schedule.dst import DstFold, DstGap
from bellringer.schedule.holiday_calendars import Shift
from bellringer.schedule.instants import END, floor_seconds, from_seconds
from bellringer.schedule.interval_and_oneshot import Delay
from bellringer.schedule.rrule_schedule import Rrule
from bellringer.schedule.serialization import Schedule
from bellringer.schedule.wall_clock import MONTH_LENGTHS
from bellringer.schedule.zoned_schedule import ZonedSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFire:
    """One occurrence: the instant in UTC, the same instant in the schedule's time zone, and its DST flags."""

    at: datetime
    local: datetime
    flags: tuple[str, ...] = ()


def next_fires(schedule: Schedule, after: datetime, n: int) -> list[PlannedFire]:
    """Returns the next `n` occurrences after an instant, or all if there are fewer. A delay has only one known
    occurrence.
    """
    found = islice(schedule.between(after, END), n)
    if not isinstance(schedule, ZonedSchedule):
        return [PlannedFire(at=instant, local=instant) for instant in found]
    zone = ZoneInfo(schedule.timezone)
    return [
        PlannedFire(at=instant, local=instant.astimezone(zone), flags=schedule.flags_of(instant)) for instant in found
    ]


PREVIEW_DAYS: Final = 30
_FOUR_YEARS: Final = timedelta(days=1461)
_FOUR_WEEKS: Final = timedelta(weeks=4)
_MONDAY: Final = datetime(2026, 1, 5, tzinfo=UTC)
_CLOCK_CHANGE_HORIZON: Final = timedelta(days=400)
# One hour more, because the clock may go back once in that time.
_ONCE_A_MINUTE: Final = PREVIEW_DAYS * 1440 + 60
_OPEN_STEP: Final = re.compile("(?:^|,)[0-9A-Z]+/")
_FOLD_TEXTS: Final = {
    DstFold.FIRST: "the schedule fires only the first time",
    DstFold.SECOND: "the schedule fires only the second time",
    DstFold.BOTH: "the schedule fires both times",
}


class ScheduleWarning(NamedTuple):
    """A warning about surprising behaviour: a stable code and a sentence."""

    code: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePreview:
    """How often a schedule fires, and warnings. The counts of a delay are None, because they depend on its runs."""

    fires_per_day: float | None
    busiest_day: int | None
    clock_change: datetime | None
    warnings: tuple[ScheduleWarning, ...]


def summarize_schedule(schedule: Schedule, now: datetime) -> SchedulePreview:
    """Returns the average and maximum number of fires per day over the next thirty days, the next DST change that
    affects the schedule, and warnings.
    """
    if isinstance(schedule, Delay):
        return SchedulePreview(fires_per_day=None, busiest_day=None, clock_change=None, warnings=())
    change = _find_clock_change(schedule, now)
    counts = list(_fires_by_day(schedule, now)) if schedule.next_after(now) is not None else [0]
    return SchedulePreview(
        fires_per_day=sum(counts) / PREVIEW_DAYS,
        busiest_day=max(counts),
        clock_change=None if change is None else from_seconds(change[0]),
        warnings=tuple(_warnings(schedule, now, change)),
    )


def fires_per_minute(schedule: Schedule) -> float:
    """Returns the average number of fires per minute: of an unbounded cron or rule over a year, of others over four
    weeks from their first fire.

    It counts from a fixed day, so that all callers get the same result. For a delay it returns 0, because the rate
    depends on its runs.
    """
    if isinstance(schedule, Delay):
        return 0.0
    if isinstance(schedule, ZonedSchedule) and not (pattern := schedule.pattern()).is_limited:
        days = sum(pattern.days_in_month(_MONDAY.year, month).bit_count() for month in range(1, 13))
        return days * pattern.times_a_day / (365 * 1440)
    first = schedule.next_after(_MONDAY)
    if first is None:
        return 0.0
    return schedule.count_between(first, min(first + _FOUR_WEEKS, END)) / (_FOUR_WEEKS / timedelta(minutes=1))


def _fires_by_day(schedule: Schedule, now: datetime) -> Iterator[int]:
    """Yields the fires of each whole day, including the day that has already begun."""
    zone = ZoneInfo(schedule.timezone) if isinstance(schedule, ZonedSchedule) else UTC
    today = now.astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    for n in range(PREVIEW_DAYS):
        # Two local midnights: the day between them may have 23 or 25 hours.
        start, end = ((today + timedelta(days=d)).replace(tzinfo=zone).astimezone(UTC) for d in (n, n + 1))
        yield schedule.count_between(start, end)


def _find_clock_change(schedule: Schedule, now: datetime) -> tuple[int, str] | None:
    if not isinstance(schedule, ZonedSchedule):
        return None
    until = floor_seconds(now + _CLOCK_CHANGE_HORIZON)
    return dst.next_clock_change(schedule.pattern(), schedule.timezone, floor_seconds(now), until)


def _warnings(schedule: Schedule, now: datetime, change: tuple[int, str] | None) -> Iterator[ScheduleWarning]:
    following = schedule.next_after(now)
    if isinstance(schedule, Cron) and schedule.hashed and not schedule.seed:
        text = "H has no seed: these times are examples, a job with this schedule gets times derived from its name"
        yield ScheduleWarning("hash_unseeded", text)
    if following is None:
        yield _never_fires_warning(schedule, now)
    elif isinstance(schedule, ZonedSchedule) and _is_rare(schedule, following):
        yield ScheduleWarning("rare", f"the schedule fires less than once a year; next on {following:%Y-%m-%d}")
    if schedule.count_between(now, min(now + timedelta(days=PREVIEW_DAYS), END)) > _ONCE_A_MINUTE:
        yield ScheduleWarning("fires_often", "the schedule fires more than once a minute")
    if isinstance(schedule, Cron):
        yield from _day_warnings(schedule)
        yield from _step_warnings(schedule.resolved())
    if isinstance(schedule, Rrule):
        yield from _rule_warnings(rrule_parser.parse_rrule(schedule.rule), schedule.start)
    if isinstance(schedule, ZonedSchedule) and change is not None:
        yield from _clock_warnings(schedule, change)


def _never_fires_warning(schedule: Schedule, now: datetime) -> ScheduleWarning:
    if isinstance(schedule, ZonedSchedule) and schedule.days_off is not None and schedule.days_off.shift is Shift.SKIP:
        bare = replace(schedule, days_off=None)
        if bare.next_after(now) is not None:
            text = f"the schedule never fires: all its days are days off in calendar {schedule.days_off.name}"
            return ScheduleWarning("no_working_day", text)
    return ScheduleWarning("never_again", "the schedule has ended: it never fires again")


def _is_rare(schedule: ZonedSchedule, following: datetime) -> bool:
    if isinstance(schedule, Cron) and (schedule.repeat is not None or schedule.resolved().year):
        return False
    if isinstance(schedule, Rrule):
        rule = rrule_parser.parse_rrule(schedule.rule)
        if rule.count is not None or rule.until is not None:
            return False
    return schedule.count_between(following, min(following + _FOUR_YEARS, END)) < 4


def _day_warnings(schedule: Cron) -> Iterator[ScheduleWarning]:
    expression = schedule.resolved()
    day, weekday = expression.day, expression.weekday
    if schedule.day_match is None and not leads_with_star(day) and not leads_with_star(weekday):
        text = (
            "day of month and day of week are both set: the schedule fires on days that match either of them;"
            ' day_match="both" requires both'
        )
        yield ScheduleWarning("dom_and_dow", text)
    elif schedule.day_match is None and not covers_all(day) and not covers_all(weekday):
        text = (
            "day of month and day of week are both set, one of them as a step of *: the schedule fires on days that"
            " match both; Kubernetes and some other schedulers fire on days that match either, as"
            ' day_match="either" does'
        )
        yield ScheduleWarning("dom_with_dow", text)
    if _OPEN_STEP.search(expression.text.split()[-1]) and any(7 in _stepped_weekdays(item) for item in weekday):
        text = "a step without an end includes 7, which is Sunday: write the last day, such as 1-5/2, to exclude Sunday"
        yield ScheduleWarning("weekday_step_sunday", text)
    months = [m for item in expression.month if isinstance(item, RangeItem) for m in item.values()]
    shortest = min(MONTH_LENGTHS[month] for month in months)
    missing = sorted({number for item in day for number in _single_days(item) if number > shortest})
    if missing:
        yield _missing_day_warning(missing)


_LONGER_UNITS: Final = {"second": "minute", "minute": "hour", "hour": "day", "day of month": "month", "month": "year"}


def _step_warnings(expression: Expression) -> Iterator[ScheduleWarning]:
    """Yields a warning for each step that is wider than its range, such as `*/90` in the minute field."""
    for field, items in zip(FIELDS, expression.fields, strict=True):
        for item in items:
            if not isinstance(item, RangeItem) or item.step == 1 or len(item.values()) > 1:
                continue
            written = f"*/{item.step}" if item.star else f"{item.first}/{item.step}"
            frame = _LONGER_UNITS.get(field.name, "week")
            text = (
                f"{field.name} {written}: the step is wider than the range, so only {field.name} {item.first} matches,"
                f" once per {frame}"
            )
            if item.star and field.name in ("second", "minute", "hour") and item.step > item.size:
                text += f'; for an interval use every("{item.step}{field.name[0]}")'
            yield ScheduleWarning("step_exceeds_range", text)


def _stepped_weekdays(item: Item) -> Sequence[int]:
    """Returns the weekdays of an item with a step."""
    return item.values() if isinstance(item, RangeItem) and item.step > 1 and not item.star else range(0)


def _single_days(item: Item) -> list[int]:
    """Returns the days of the month that an item names individually."""
    match item:
        case RangeItem(first=first, last=last) if first == last:
            return [first]
        case NearestWeekday(day=int(day)):
            return [day]
        case NearestWeekday(day=None, before=before):
            return [before + 1]
        case RangeToLastDay(first=first) if first > 28:
            return [first]
        case LastDay(before=before):
            return [before + 1]
    return []


def _rule_warnings(rule: rrule_parser.RecurrenceRule, start: datetime) -> Iterator[ScheduleWarning]:
    named = rule.byday or rule.byyearday or rule.byweekno or rule.freq in ("DAILY", "WEEKLY")
    days = rule.bymonthday or (() if named else (start.day,))
    months = rule.bymonth or ((start.month,) if rule.freq == "YEARLY" and not rule.bymonthday else range(1, 13))
    missing = sorted({abs(day) for day in days if abs(day) > min(MONTH_LENGTHS[month] for month in months)})
    if missing and not rule.bysetpos:
        yield _missing_day_warning(missing)


def _missing_day_warning(days: list[int]) -> ScheduleWarning:
    text = f"some months have no day {' or '.join(map(str, days))}: the schedule does not fire in them"
    return ScheduleWarning("day_missing_in_some_months", text)


def _clock_warnings(schedule: ZonedSchedule, change: tuple[int, str]) -> Iterator[ScheduleWarning]:
    """Yields warnings about the next DST change. An interval that follows elapsed time is affected only if the clock
    skips all its times of a day.
    """
    day = from_seconds(change[0]).astimezone(ZoneInfo(schedule.timezone)).date()
    if not schedule.fixed_time and (schedule.gap, schedule.fold) == (DstGap.SKIP, DstFold.BOTH):
        if change[1] == "dst_gap" and not _count_on_day(schedule, day):
            text = f"on {day} the clock skips all times of the schedule: it does not fire on that day"
            yield ScheduleWarning("dst_gap", text)
        return
    if change[1] == "dst_gap":
        fate = "the job runs right after the change" if schedule.gap is DstGap.NEXT else "the job does not run"
        yield ScheduleWarning("dst_gap", f"on {day} the clock skips the scheduled time: {fate}")
    else:
        yield ScheduleWarning(
            "dst_fold", f"on {day} the clock repeats the scheduled time: {_FOLD_TEXTS[schedule.fold]}"
        )


def _count_on_day(schedule: ZonedSchedule, day: date) -> int:
    zone = ZoneInfo(schedule.timezone)
    start, end = (datetime.combine(one, time(), zone) for one in (day, day + timedelta(days=1)))
    return schedule.count_between(start.astimezone(UTC), end.astimezone(UTC))
