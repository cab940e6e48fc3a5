"""Search and count in civil time, which knows no zone: seconds since 1970-01-01 00:00 on the wall clock.

Nothing is walked second by second; a search steps over months, a count adds up whole months.
"""

from __future__ import annotations

from datetime import date
from typing import Final

from bellringer.schedule.plan import Plan, below, highest, lowest

SECONDS_A_DAY: Final = 86_400
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_LAST_DAY: Final = date.max.toordinal()
# How many years a search goes on where days follow no shape: a rule, or days off, may leave none at all.
HORIZON: Final = 100


def first_from(plan: Plan, moment: int) -> int | None:
    """The first match at or after a moment."""
    if plan.within is None:
        return _first_from(plan, moment)
    first, last = plan.within
    found = _first_from(plan, max(moment, first)) if moment <= last else None
    return found if found is not None and found <= last else None


def last_until(plan: Plan, moment: int) -> int | None:
    """The last match at or before a moment."""
    if plan.within is None:
        return _last_until(plan, moment)
    first, last = plan.within
    found = _last_until(plan, min(moment, last)) if moment >= first else None
    return found if found is not None and found >= first else None


def count(plan: Plan, start: int, end: int) -> int:
    """How many matches there are from `start` up to, but not including, `end`."""
    if plan.within is not None:
        start, end = max(start, plan.within[0]), min(end, plan.within[1] + 1)
    if end <= start:
        return 0
    first_day, first_second = divmod(start, SECONDS_A_DAY)
    last_day, last_second = divmod(end, SECONDS_A_DAY)
    total = _count_days(plan, first_day, last_day) * plan.times_a_day
    if first_second and _has_day(plan, first_day):
        total -= _count_times_before(plan, first_second)
    if last_second and _has_day(plan, last_day):
        total += _count_times_before(plan, last_second)
    return total


def _first_from(plan: Plan, moment: int) -> int | None:
    day, second = divmod(moment, SECONDS_A_DAY)
    found = _first_day_from(plan, day)
    if found == day:
        time = _first_time_from(plan, second)
        if time is not None:
            return day * SECONDS_A_DAY + time
        found = _first_day_from(plan, day + 1)
    if found is None:
        return None
    return found * SECONDS_A_DAY + lowest(plan.hours) * 3600 + lowest(plan.minutes) * 60 + lowest(plan.seconds)


def _last_until(plan: Plan, moment: int) -> int | None:
    day, second = divmod(moment, SECONDS_A_DAY)
    found = _last_day_until(plan, day)
    if found == day:
        time = _last_time_until(plan, second)
        if time is not None:
            return day * SECONDS_A_DAY + time
        found = _last_day_until(plan, day - 1)
    if found is None:
        return None
    return found * SECONDS_A_DAY + highest(plan.hours) * 3600 + highest(plan.minutes) * 60 + highest(plan.seconds)


def _has_day(plan: Plan, day: int) -> bool:
    at = date.fromordinal(day + _EPOCH_DAY)
    return bool(plan.month(at.year, at.month) >> at.day & 1)


def _first_day_from(plan: Plan, day: int) -> int | None:
    if day + _EPOCH_DAY > _LAST_DAY:
        return None
    start = date.fromordinal(day + _EPOCH_DAY)
    year, month = start.year, start.month
    bits = plan.month(year, month) >> start.day << start.day
    while not bits:
        year, month = (year, month + 1) if month < 12 else (year + 1, 1)
        if year > date.max.year or (plan.chosen is not None and year > start.year + HORIZON):
            return None
        bits = plan.month(year, month)
    return date(year, month, lowest(bits)).toordinal() - _EPOCH_DAY


def _last_day_until(plan: Plan, day: int) -> int | None:
    if day + _EPOCH_DAY < 1:
        return None
    end = date.fromordinal(day + _EPOCH_DAY)
    year, month = end.year, end.month
    bits = plan.month(year, month) & below(end.day + 1)
    while not bits:
        year, month = (year, month - 1) if month > 1 else (year - 1, 12)
        if year < 1 or (plan.chosen is not None and year < end.year - HORIZON):
            return None
        bits = plan.month(year, month)
    return date(year, month, highest(bits)).toordinal() - _EPOCH_DAY


def _count_days(plan: Plan, start: int, end: int) -> int:
    first, last = date.fromordinal(start + _EPOCH_DAY), date.fromordinal(end + _EPOCH_DAY)
    total = -(plan.month(first.year, first.month) & below(first.day)).bit_count()
    for index in range(first.year * 12 + first.month - 1, last.year * 12 + last.month - 1):
        total += plan.month(index // 12, index % 12 + 1).bit_count()
    return total + (plan.month(last.year, last.month) & below(last.day)).bit_count()


def _first_time_from(plan: Plan, second: int) -> int | None:
    hour, rest = divmod(second, 3600)
    minute, second = divmod(rest, 60)
    if plan.hours >> hour & 1:
        if plan.minutes >> minute & 1:
            seconds = plan.seconds >> second << second
            if seconds:
                return hour * 3600 + minute * 60 + lowest(seconds)
        minutes = plan.minutes >> minute + 1 << minute + 1
        if minutes:
            return hour * 3600 + lowest(minutes) * 60 + lowest(plan.seconds)
    hours = plan.hours >> hour + 1 << hour + 1
    if not hours:
        return None
    return lowest(hours) * 3600 + lowest(plan.minutes) * 60 + lowest(plan.seconds)


def _last_time_until(plan: Plan, second: int) -> int | None:
    hour, rest = divmod(second, 3600)
    minute, second = divmod(rest, 60)
    if plan.hours >> hour & 1:
        if plan.minutes >> minute & 1:
            seconds = plan.seconds & below(second + 1)
            if seconds:
                return hour * 3600 + minute * 60 + highest(seconds)
        minutes = plan.minutes & below(minute)
        if minutes:
            return hour * 3600 + highest(minutes) * 60 + highest(plan.seconds)
    hours = plan.hours & below(hour)
    if not hours:
        return None
    return highest(hours) * 3600 + highest(plan.minutes) * 60 + highest(plan.seconds)


def _count_times_before(plan: Plan, second: int) -> int:
    hour, rest = divmod(second, 3600)
    minute, second = divmod(rest, 60)
    minutes, seconds = plan.minutes.bit_count(), plan.seconds.bit_count()
    total = (plan.hours & below(hour)).bit_count() * minutes * seconds
    if plan.hours >> hour & 1:
        total += (plan.minutes & below(minute)).bit_count() * seconds
        if plan.minutes >> minute & 1:
            total += (plan.seconds & below(second)).bit_count()
    return total
