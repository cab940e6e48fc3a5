"""Search and count the matches of a schedule in wall-clock time, independent of any time zone.

A moment is the number of seconds since 1970-01-01 00:00 on the wall clock. Sets of hours, minutes and days are bit
sets (bit n is the value n), so the next value, the last value and the number of values are each one integer
operation. A search steps over months and a count adds up whole months; nothing loops over seconds."""

from __future__ import annotations

from calendar import isleap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date
from typing import Final, Protocol

DaysOfMonth = Callable[[int, int], int]  # (year, month) to the bit set of its days
MONTH_LENGTHS: Final = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def highest(bits: int) -> int:
    return bits.bit_length() - 1


def below(value: int) -> int:
    """The bit set of all values smaller than `value`."""
    return (1 << value) - 1


def month_shape(length: int, first: int) -> int:
    """The index of a month in `WallClockPattern.days`, by its length and the weekday of its first day (Monday is 0)."""
    return (length - 28) * 7 + first


def month_length(year: int, month: int) -> int:
    return 29 if month == 2 and isleap(year) else MONTH_LENGTHS[month]


class MomentFilter(Protocol):
    """Replaces the matches of a pattern by other moments."""

    def first(self, moment: int) -> int | None:
        """The first moment at or after `moment`."""

    def last(self, moment: int) -> int | None:
        """The last moment at or before `moment`."""

    def count(self, start: int, end: int) -> int:
        """The number of moments from `start` up to, but not including, `end`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WallClockPattern:
    """The wall-clock days and times that a schedule matches, as bit sets.

    `days` holds the days for each of the 28 shapes that a month can have (length and first weekday). If the days depend
    on more than the shape, `days_of_month` computes them. `bounds` is the first and the last moment of a bounded
    schedule. `first_instant` and `last_instant` (seconds since 1970, UTC) limit a schedule that begins or ends at an
    instant: in a fold, one wall-clock moment means two instants. `years` is the bit set of the matching years, counted
    from 1970, or None for all. `filter` replaces the matches by other moments: it adds or removes some of them, or
    moves them into the hours of a calendar.
    """

    seconds: int
    minutes: int
    hours: int
    months: int
    days: tuple[int, ...]
    fixed_time: bool
    days_of_month: DaysOfMonth | None = None
    bounds: tuple[int, int] | None = None
    first_instant: int | None = None
    last_instant: int | None = None
    years: int | None = None
    filter: MomentFilter | None = None

    @property
    def is_limited(self) -> bool:
        """Whether the pattern begins or ends, or is filtered: its days and times do not repeat unchanged."""
        return self.bounds is not None or self.first_instant is not None or self.filter is not None

    @property
    def fires(self) -> bool:
        """Whether any date matches. Over the years, each month begins on every day of the week."""
        if self.years is not None:
            years = (year for year in range(1970, 2200) if self.years >> year - 1970 & 1)
            return any(self.days_in_month(year, month) for year in years for month in range(1, 13))
        lengths = {MONTH_LENGTHS[month] for month in range(1, 13) if self.months >> month & 1}
        if self.months >> 2 & 1:
            lengths.add(29)
        return any(self.days[month_shape(length, first)] for length in lengths for first in range(7))

    def days_in_month(self, year: int, month: int) -> int:
        """The bit set of the matching days of one month."""
        if self.days_of_month is not None:
            return self.days_of_month(year, month)
        if not self.months >> month & 1:
            return 0
        if self.years is not None and (year < 1970 or not self.years >> year - 1970 & 1):
            return 0
        length = 29 if month == 2 and isleap(year) else MONTH_LENGTHS[month]
        return self.days[month_shape(length, date(year, month, 1).weekday())]

    @property
    def times_a_day(self) -> int:
        return self.hours.bit_count() * self.minutes.bit_count() * self.seconds.bit_count()


def bit_set(values: Iterable[int]) -> int:
    bits = 0
    for value in values:
        bits |= 1 << value
    return bits


SECONDS_PER_DAY: Final = 86_400
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_LAST_DAY: Final = date.max.toordinal()
# Limits a search where the days do not follow from the month shape: a rule or days off may leave no day at all.
SEARCH_YEARS: Final = 100


def year_bounds(years: int) -> tuple[int, int]:
    """Returns the first and the last moment of a bit set of years that are counted from 1970."""
    first, last = date(1970 + lowest(years), 1, 1), date(1970 + highest(years), 12, 31)
    return (
        (first.toordinal() - _EPOCH_DAY) * SECONDS_PER_DAY,
        (last.toordinal() + 1 - _EPOCH_DAY) * SECONDS_PER_DAY - 1,
    )


def first_match(pattern: WallClockPattern, moment: int) -> int | None:
    """The first match at or after `moment`."""
    if pattern.filter is not None:
        return pattern.filter.first(moment)
    if pattern.bounds is None:
        return _first_match(pattern, moment)
    first, last = pattern.bounds
    found = _first_match(pattern, max(moment, first)) if moment <= last else None
    return found if found is not None and found <= last else None


def last_match(pattern: WallClockPattern, moment: int) -> int | None:
    """The last match at or before `moment`."""
    if pattern.filter is not None:
        return pattern.filter.last(moment)
    if pattern.bounds is None:
        return _last_match(pattern, moment)
    first, last = pattern.bounds
    found = _last_match(pattern, min(moment, last)) if moment >= first else None
    return found if found is not None and found >= first else None


def count_matches(pattern: WallClockPattern, start: int, end: int) -> int:
    """The number of matches from `start` up to, but not including, `end`."""
    if pattern.filter is not None:
        return pattern.filter.count(start, end) if start < end else 0
    if pattern.bounds is not None:
        start, end = max(start, pattern.bounds[0]), min(end, pattern.bounds[1] + 1)
    if end <= start:
        return 0
    first_day, first_second = divmod(start, SECONDS_PER_DAY)
    last_day, last_second = divmod(end, SECONDS_PER_DAY)
    total = _count_days(pattern, first_day, last_day) * pattern.times_a_day
    if first_second and _has_day(pattern, first_day):
        total -= _count_times_before(pattern, first_second)
    if last_second and _has_day(pattern, last_day):
        total += _count_times_before(pattern, last_second)
    return total


def _first_match(pattern: WallClockPattern, moment: int) -> int | None:
    day, second = divmod(moment, SECONDS_PER_DAY)
    found = _first_day_from(pattern, day)
    if found == day:
        time = _first_time_from(pattern, second)
        if time is not None:
            return day * SECONDS_PER_DAY + time
        found = _first_day_from(pattern, day + 1)
    if found is None:
        return None
    return (
        found * SECONDS_PER_DAY + lowest(pattern.hours) * 3600 + lowest(pattern.minutes) * 60 + lowest(pattern.seconds)
    )


def _last_match(pattern: WallClockPattern, moment: int) -> int | None:
    day, second = divmod(moment, SECONDS_PER_DAY)
    found = _last_day_until(pattern, day)
    if found == day:
        time = _last_time_until(pattern, second)
        if time is not None:
            return day * SECONDS_PER_DAY + time
        found = _last_day_until(pattern, day - 1)
    if found is None:
        return None
    return (
        found * SECONDS_PER_DAY
        + highest(pattern.hours) * 3600
        + highest(pattern.minutes) * 60
        + highest(pattern.seconds)
    )


def _has_day(pattern: WallClockPattern, day: int) -> bool:
    at = date.fromordinal(day + _EPOCH_DAY)
    return bool(pattern.days_in_month(at.year, at.month) >> at.day & 1)


def _first_day_from(pattern: WallClockPattern, day: int) -> int | None:
    if day + _EPOCH_DAY > _LAST_DAY:
        return None
    start = date.fromordinal(day + _EPOCH_DAY)
    year, month = start.year, start.month
    bits = pattern.days_in_month(year, month) >> start.day << start.day
    if bits:
        return date(year, month, lowest(bits)).toordinal() - _EPOCH_DAY
    last_year = _last_year_searched(pattern, start.year)
    while not bits:
        year, month = (year, month + 1) if month < 12 else (year + 1, 1)
        if year > last_year:
            return None
        bits = pattern.days_in_month(year, month)
    return date(year, month, lowest(bits)).toordinal() - _EPOCH_DAY


def _last_year_searched(pattern: WallClockPattern, start: int) -> int:
    last = date.max.year if pattern.days_of_month is None else min(start + SEARCH_YEARS, date.max.year)
    if pattern.bounds is not None:
        last = min(last, date.fromordinal(pattern.bounds[1] // SECONDS_PER_DAY + _EPOCH_DAY).year)
    return last


def _last_day_until(pattern: WallClockPattern, day: int) -> int | None:
    if day + _EPOCH_DAY < 1:
        return None
    end = date.fromordinal(day + _EPOCH_DAY)
    year, month = end.year, end.month
    bits = pattern.days_in_month(year, month) & below(end.day + 1)
    while not bits:
        year, month = (year, month - 1) if month > 1 else (year - 1, 12)
        if year < 1 or (pattern.days_of_month is not None and year < end.year - SEARCH_YEARS):
            return None
        if pattern.years is not None and year < 1970:
            return None
        bits = pattern.days_in_month(year, month)
    return date(year, month, highest(bits)).toordinal() - _EPOCH_DAY


def _count_days(pattern: WallClockPattern, start: int, end: int) -> int:
    first, last = date.fromordinal(start + _EPOCH_DAY), date.fromordinal(end + _EPOCH_DAY)
    total = -(pattern.days_in_month(first.year, first.month) & below(first.day)).bit_count()
    for index in range(first.year * 12 + first.month - 1, last.year * 12 + last.month - 1):
        total += pattern.days_in_month(index // 12, index % 12 + 1).bit_count()
    return total + (pattern.days_in_month(last.year, last.month) & below(last.day)).bit_count()


def _first_time_from(pattern: WallClockPattern, second: int) -> int | None:
    hour, rest = divmod(second, 3600)
    minute, second = divmod(rest, 60)
    if pattern.hours >> hour & 1:
        if pattern.minutes >> minute & 1:
            seconds = pattern.seconds >> second << second
            if seconds:
                return hour * 3600 + minute * 60 + lowest(seconds)
        minutes = pattern.minutes >> minute + 1 << minute + 1
        if minutes:
            return hour * 3600 + lowest(minutes) * 60 + lowest(pattern.seconds)
    hours = pattern.hours >> hour + 1 << hour + 1
    if not hours:
        return None
    return lowest(hours) * 3600 + lowest(pattern.minutes) * 60 + lowest(pattern.seconds)


def _last_time_until(pattern: WallClockPattern, second: int) -> int | None:
    hour, rest = divmod(second, 3600)
    minute, second = divmod(rest, 60)
    if pattern.hours >> hour & 1:
        if pattern.minutes >> minute & 1:
            seconds = pattern.seconds & below(second + 1)
            if seconds:
                return hour * 3600 + minute * 60 + highest(seconds)
        minutes = pattern.minutes & below(minute)
        if minutes:
            return hour * 3600 + highest(minutes) * 60 + highest(pattern.seconds)
    hours = pattern.hours & below(hour)
    if not hours:
        return None
    return highest(hours) * 3600 + highest(pattern.minutes) * 60 + highest(pattern.seconds)


def _count_times_before(pattern: WallClockPattern, second: int) -> int:
    hour, rest = divmod(second, 3600)
    minute, second = divmod(rest, 60)
    minutes, seconds = pattern.minutes.bit_count(), pattern.seconds.bit_count()
    total = (pattern.hours & below(hour)).bit_count() * minutes * seconds
    if pattern.hours >> hour & 1:
        total += (pattern.minutes & below(minute)).bit_count() * seconds
        if pattern.minutes >> minute & 1:
            total += (pattern.seconds & below(second)).bit_count()
    return total
