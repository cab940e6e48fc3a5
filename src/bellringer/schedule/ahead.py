"""What to expect of a schedule: how often it fires, and what about it may surprise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from bellringer.schedule import occurrences, rules
from bellringer.schedule.crontab import Cron
from bellringer.schedule.daysoff import Shift
from bellringer.schedule.instants import END, from_seconds, seconds_until
from bellringer.schedule.intervals import Delay
from bellringer.schedule.items import Expression, Item, LastDay, NearestWeekday, Span, leads_with_star
from bellringer.schedule.plan import LENGTHS
from bellringer.schedule.readings import Fold, Gap
from bellringer.schedule.recurrence import Rrule
from bellringer.schedule.rows import Schedule
from bellringer.schedule.timetable import Timetable

DAYS: Final = 30
_FOUR_YEARS: Final = timedelta(days=1461)
_FOUR_WEEKS: Final = timedelta(weeks=4)
_MONDAY: Final = datetime(2026, 1, 5, tzinfo=UTC)
_NEXT_CHANGE: Final = timedelta(days=400)
# A day on which the clock goes back has an hour more of minutes.
_ONCE_A_MINUTE: Final = DAYS * 1440 + 60
_FOLD_SAYS: Final = {
    Fold.FIRST: "it fires the first time only",
    Fold.SECOND: "it fires the second time only",
    Fold.BOTH: "it fires both times",
}


class Remark(NamedTuple):
    """A surprise: a stable code and a sentence."""

    code: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Of a delay nobody knows how often it fires: that depends on its runs."""

    fires_per_day: float | None
    busiest_day: int | None
    clock_change: datetime | None
    warnings: tuple[Remark, ...]


def outlook(schedule: Schedule, now: datetime) -> Outlook:
    """Thirty days from today's on average and at most, the next change of the clock that touches it, and warnings."""
    if isinstance(schedule, Delay):
        return Outlook(fires_per_day=None, busiest_day=None, clock_change=None, warnings=())
    change = _next_change(schedule, now)
    counts = list(_by_day(schedule, now)) if schedule.next_after(now) is not None else [0]
    return Outlook(
        fires_per_day=sum(counts) / DAYS,
        busiest_day=max(counts),
        clock_change=None if change is None else from_seconds(change[0]),
        warnings=tuple(_warnings(schedule, now, change)),
    )


def fires_per_minute(schedule: Schedule) -> float:
    """How often it fires on average: a timetable over a year; what has bounds, over four weeks from its first fire.

    Counted from a fixed day, so that all who ask agree. Of a delay nobody knows.
    """
    if isinstance(schedule, Delay):
        return 0.0
    if isinstance(schedule, Timetable) and (plan := schedule.plan()).within is None:
        days = sum(plan.month(_MONDAY.year, month).bit_count() for month in range(1, 13))
        return days * plan.times_a_day / (365 * 1440)
    first = schedule.next_after(_MONDAY)
    if first is None:
        return 0.0
    return schedule.count_between(first, min(first + _FOUR_WEEKS, END)) / (_FOUR_WEEKS / timedelta(minutes=1))


def _by_day(schedule: Schedule, now: datetime) -> Iterator[int]:
    """Whole days, also the one that has begun: the average is that of the days among which one is the busiest."""
    zone = ZoneInfo(schedule.timezone) if isinstance(schedule, Timetable) else UTC
    today = now.astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    for n in range(DAYS):
        # Two midnights by the wall: the day between them may have 23 or 25 hours.
        start, end = ((today + timedelta(days=d)).replace(tzinfo=zone).astimezone(UTC) for d in (n, n + 1))
        yield schedule.count_between(start, end)


def _next_change(schedule: Schedule, now: datetime) -> tuple[int, str] | None:
    if not isinstance(schedule, Timetable):
        return None
    until = seconds_until(now + _NEXT_CHANGE)
    return occurrences.next_change(schedule.plan(), schedule.timezone, seconds_until(now), until)


def _warnings(schedule: Schedule, now: datetime, change: tuple[int, str] | None) -> Iterator[Remark]:
    following = schedule.next_after(now)
    if isinstance(schedule, Cron) and schedule.hashed and not schedule.seed:
        text = "H has no seed yet, so these times are not those of a job: its own name will choose others"
        yield Remark("hash_unseeded", text)
    if following is None:
        yield _silence(schedule, now)
    elif isinstance(schedule, Timetable) and _is_rare(schedule, following):
        yield Remark("rare", f"it fires less than once a year; next on {following:%Y-%m-%d}")
    if schedule.count_between(now, min(now + timedelta(days=DAYS), END)) > _ONCE_A_MINUTE:
        yield Remark("fires_often", "it fires more than once a minute")
    if isinstance(schedule, Cron):
        yield from _day_warnings(schedule.resolved())
    if isinstance(schedule, Rrule):
        yield from _rule_warnings(rules.read(schedule.rule), schedule.start)
    if isinstance(schedule, Timetable) and change is not None:
        yield from _clock_warnings(schedule, change)


def _silence(schedule: Schedule, now: datetime) -> Remark:
    if isinstance(schedule, Timetable) and schedule.days_off is not None and schedule.days_off.shift is Shift.SKIP:
        bare = replace(schedule, days_off=None)
        if bare.next_after(now) is not None:
            text = f"every day that it names is a day off in calendar {schedule.days_off.name}, so it never fires"
            return Remark("no_working_day", text)
    return Remark("never_again", "its time is over: it never fires again")


def _is_rare(schedule: Timetable, following: datetime) -> bool:
    if isinstance(schedule, Rrule):
        rule = rules.read(schedule.rule)
        if rule.count is not None or rule.until is not None:
            return False
    return schedule.count_between(following, min(following + _FOUR_YEARS, END)) < 4


def _day_warnings(expression: Expression) -> Iterator[Remark]:
    day, weekday = expression.day, expression.weekday
    if not leads_with_star(day) and not leads_with_star(weekday):
        text = "day of month and day of week are both given: it fires on days that match either, not both"
        yield Remark("dom_and_dow", text)
    months = [m for item in expression.month if isinstance(item, Span) for m in item.values()]
    shortest = min(LENGTHS[month] for month in months)
    missing = sorted({number for item in day for number in _numbers(item) if number > shortest})
    if missing:
        yield _missing(missing)


def _numbers(item: Item) -> list[int]:
    """The days that an item names one by one."""
    match item:
        case Span(first=first, last=last) if first == last:
            return [first]
        case NearestWeekday(day=int(day)):
            return [day]
        case LastDay(before=before):
            return [before + 1]
    return []


def _rule_warnings(rule: rules.Rule, start: datetime) -> Iterator[Remark]:
    named = rule.byday or rule.byyearday or rule.byweekno or rule.freq in ("DAILY", "WEEKLY")
    days = rule.bymonthday or (() if named else (start.day,))
    months = rule.bymonth or ((start.month,) if rule.freq == "YEARLY" and not rule.bymonthday else range(1, 13))
    missing = sorted({abs(day) for day in days if abs(day) > min(LENGTHS[month] for month in months)})
    if missing and not rule.bysetpos:
        yield _missing(missing)


def _missing(days: list[int]) -> Remark:
    text = f"not every month that it names has a day {' or '.join(map(str, days))}: nothing fires there"
    return Remark("day_missing_in_some_months", text)


def _clock_warnings(schedule: Timetable, change: tuple[int, str]) -> Iterator[Remark]:
    """Not for a rhythm that follows elapsed time: there a change of the clock changes nothing."""
    if not schedule.fixed_time and (schedule.gap, schedule.fold) == (Gap.SKIP, Fold.BOTH):
        return
    day = from_seconds(change[0]).astimezone(ZoneInfo(schedule.timezone)).date()
    if change[1] == "dst_gap":
        fate = "it fires at the first moment after" if schedule.gap is Gap.NEXT else "it does not fire"
        yield Remark("dst_gap", f"on {day} the clock leaves out its time: {fate}")
    else:
        yield Remark("dst_fold", f"on {day} the clock shows its time twice: {_FOLD_SAYS[schedule.fold]}")
