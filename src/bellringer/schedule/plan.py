"""A cron expression compiled to sets of bits: bit n of a set is the value n.

With bits the next value, the last value and the number of values are each one operation on an integer.
"""

from __future__ import annotations

from calendar import isleap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from itertools import product
from typing import Final

from bellringer.schedule.items import (
    Expression,
    Item,
    LastDay,
    NearestWeekday,
    NthWeekday,
    Span,
    leads_with_star,
)

Days = Callable[[int, int], int]  # the days of a month, by year and month
LENGTHS: Final = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def highest(bits: int) -> int:
    return bits.bit_length() - 1


def below(value: int) -> int:
    """The set of all values smaller than this one."""
    return (1 << value) - 1


def shape(length: int, first: int) -> int:
    """The index of a month in `Plan.days`, by its length and the weekday (Monday is 0) of its first day."""
    return (length - 28) * 7 + first


def month_length(year: int, month: int) -> int:
    return 29 if month == 2 and isleap(year) else LENGTHS[month]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Bit n of a set is the value n. `days` holds the days of each of the 28 shapes that a month can have;
    where days do not follow from the shape alone, `chosen` says them. `within` is the first and the last civil
    moment of a plan that has bounds.
    """

    seconds: int
    minutes: int
    hours: int
    months: int
    days: tuple[int, ...]
    fixed_time: bool
    chosen: Days | None = None
    within: tuple[int, int] | None = None

    @property
    def fires(self) -> bool:
        """Whether any day ever matches: each month begins, over the years, on every day of the week."""
        lengths = {LENGTHS[month] for month in range(1, 13) if self.months >> month & 1}
        if self.months >> 2 & 1:
            lengths.add(29)
        return any(self.days[shape(length, first)] for length in lengths for first in range(7))

    def month(self, year: int, month: int) -> int:
        """The days of one month."""
        if self.chosen is not None:
            return self.chosen(year, month)
        if not self.months >> month & 1:
            return 0
        length = 29 if month == 2 and isleap(year) else LENGTHS[month]
        return self.days[shape(length, date(year, month, 1).weekday())]

    @property
    def times_a_day(self) -> int:
        return self.hours.bit_count() * self.minutes.bit_count() * self.seconds.bit_count()


def compile_plan(expression: Expression) -> Plan:
    """Compile an expression."""
    return Plan(
        seconds=_spans(expression.second),
        minutes=_spans(expression.minute),
        hours=_spans(expression.hour),
        months=_spans(expression.month),
        days=_shapes(expression.day, expression.weekday),
        fixed_time=expression.fixed_time,
    )


@lru_cache(maxsize=4096)
def _shapes(day: tuple[Item, ...], weekday: tuple[Item, ...]) -> tuple[int, ...]:
    """Kept, because many expressions share few choices of days, and these are most of the work."""
    # Classic cron: a day that either field names, unless one begins with a star; then both must agree.
    both = leads_with_star(day) or leads_with_star(weekday)
    shapes = []
    for length, first in product(range(28, 32), range(7)):
        by_date = by_weekday = 0
        for item in day:
            by_date |= _day_bits(item, length, first)
        for item in weekday:
            by_weekday |= _weekday_bits(item, length, first)
        shapes.append(by_date & by_weekday if both else by_date | by_weekday)
    return tuple(shapes)


def _day_bits(item: Item, length: int, first: int) -> int:
    match item:
        case Span():
            return _bits(item.values()) & below(length + 1)
        case LastDay(before=before):
            return 1 << length - before if before < length else 0
        case NearestWeekday(day=None):
            return 1 << _nearest_weekday(length, length, first)
        case NearestWeekday(day=int(day)) if day <= length:
            return 1 << _nearest_weekday(day, length, first)
    return 0


def _nearest_weekday(day: int, length: int, first: int) -> int:
    weekday = (first + day - 1) % 7
    if weekday == 5:
        return day - 1 if day > 1 else day + 2
    if weekday == 6:
        return day + 1 if day < length else day - 2
    return day


def _weekday_bits(item: Item, length: int, first: int) -> int:
    bits = 0
    match item:
        case Span():
            for weekday in {value % 7 for value in item.values()}:
                bits |= _every(weekday, length, first)
        case NthWeekday(weekday=weekday, nth=None):
            bits = 1 << highest(_every(weekday, length, first))
        case NthWeekday(weekday=weekday, nth=int(nth)):
            bits = _every(weekday, length, first) & below(nth * 7 + 1) & ~below(nth * 7 - 6)
    return bits


def _every(weekday: int, length: int, first: int) -> int:
    """Each such weekday of the month; cron counts from Sunday, the calendar from Monday."""
    start = (weekday - 1 - first) % 7 + 1
    return _bits(range(start, length + 1, 7))


def _spans(items: tuple[Item, ...]) -> int:
    return _bits(value for item in items if isinstance(item, Span) for value in item.values())


def _bits(values: Iterable[int]) -> int:
    bits = 0
    for value in values:
        bits |= 1 << value
    return bits
