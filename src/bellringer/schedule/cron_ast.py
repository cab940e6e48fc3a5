"""The syntax tree of a cron expression: its fields and the items that a field can list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Dialect(StrEnum):
    """The scheduler for which a cron expression is written. It decides the fields and the numbers of the weekdays."""

    UNIX = "unix"  # minute to day of week, SUN is 0 or 7; with seconds, the second comes first
    QUARTZ = "quartz"  # second to day of week and an optional year, SUN is 1
    AWS = "aws"  # minute to day of week and a year, SUN is 1


class DayMatch(StrEnum):
    """How a day has to match if the day of month and the day of week are both restricted."""

    EITHER = "either"
    BOTH = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of an expression: its name in error messages and its range of values."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()

    @property
    def last(self) -> int:
        """The last value of `*`. For weekdays it is 6: with 7, the second number of Sunday, `*` would count Sunday
        twice.
        """
        return 6 if self is WEEKDAY else self.high

    @property
    def size(self) -> int:
        """The number of values, after which a range wraps around."""
        return self.last - self.low + 1

    @property
    def common(self) -> int:
        """The last value that `H` may choose: a value that always exists. Every month has a 28th."""
        return 28 if self is DAY else self.last


SECOND: Final = Field(name="second", low=0, high=59)
MINUTE: Final = Field(name="minute", low=0, high=59)
HOUR: Final = Field(name="hour", low=0, high=23)
DAY: Final = Field(name="day of month", low=1, high=31)
MONTH: Final = Field(
    name="month",
    low=1,
    high=12,
    names=("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"),
)
WEEKDAY: Final = Field(name="day of week", low=0, high=7, names=("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"))
# Quartz and AWS count the days of the week from 1. The parser converts their numbers to those of WEEKDAY.
WEEKDAY_FROM_1: Final = Field(name="day of week", low=1, high=7, names=WEEKDAY.names)
YEAR: Final = Field(name="year", low=1970, high=2199)
FIELDS: Final = (SECOND, MINUTE, HOUR, DAY, MONTH, WEEKDAY)


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeItem:
    """`*`, `5`, `1-5`, `*/15`, `1-30/5`, or `5/15`, which extends to the end of the field.

    A range whose last value is below its first wraps around: after `low + size - 1` it continues with `low`.
    """

    first: int
    last: int
    step: int = 1
    star: bool = False
    low: int = 0
    size: int = 0

    def values(self) -> Sequence[int]:
        return wrapped_values(self.first, self.last, self.step, self.low, self.size)


def wrapped_values(first: int, last: int, step: int, low: int, size: int) -> Sequence[int]:
    """Returns the values of a range in the order in which they are named, so a wrapped range ends with low values."""
    if last >= first:
        return range(first, last + 1, step)
    return [low + (value - low) % size for value in range(first, last + size + 1, step)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeToLastDay:
    """`29-L`: from the 29th to the last day of the month; `1-L/8`: every eighth of these days."""

    first: int
    step: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LastDay:
    """`L`, the last day of the month, or `L-3`, three days before it."""

    before: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestWeekday:
    """`15W`: the weekday (Monday to Friday) nearest to the 15th in the same month. If `day` is None, the day is counted
    from the end of the month: `LW` is the last weekday, `L-3W` the one nearest to the day three days before the last.
    """

    day: int | None
    before: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NthWeekday:
    """`MON#2`: the second Monday of the month; `FRIL` (`nth` is None): the last Friday."""

    weekday: int
    nth: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hashed:
    """`H`: one value of the field, chosen by a hash; `H(0-29)`: one value of the range; `H/15`: that value and every
    15th after it.
    """

    first: int
    last: int
    step: int | None = None
    low: int = 0
    size: int = 0

    def values(self) -> Sequence[int]:
        return wrapped_values(self.first, self.last, 1, self.low, self.size)


Item = RangeItem | RangeToLastDay | LastDay | NearestWeekday | NthWeekday | Hashed


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """A parsed cron expression: its canonical text and the items of its fields. Weekdays are numbered from SUN = 0 in
    every dialect. `year` is empty if every year matches.
    """

    text: str
    dialect: Dialect = Dialect.UNIX
    second: tuple[Item, ...]
    minute: tuple[Item, ...]
    hour: tuple[Item, ...]
    day: tuple[Item, ...]
    month: tuple[Item, ...]
    weekday: tuple[Item, ...]
    year: tuple[Item, ...] = ()
    day_position: int
    zone: str | None = None

    @property
    def fields(self) -> tuple[tuple[Item, ...], ...]:
        return (self.second, self.minute, self.hour, self.day, self.month, self.weekday)

    @property
    def hashed(self) -> bool:
        """Whether any field contains an `H`."""
        return any(isinstance(item, Hashed) for items in self.fields for item in items)

    @property
    def fixed_time(self) -> bool:
        """Whether the expression names fixed times of day rather than an interval. The test is the one of Debian's
        cron: neither the minute nor the hour field begins with a star.
        """
        return not leads_with_star(self.minute) and not leads_with_star(self.hour)


def leads_with_star(items: tuple[Item, ...]) -> bool:
    first = items[0]
    return isinstance(first, RangeItem) and first.star


def match_both(day: tuple[Item, ...], weekday: tuple[Item, ...], choice: DayMatch | None) -> bool:
    """Whether a day has to match both day fields, not just either of them.

    Without a choice it follows crontab: both, if one of the fields begins with a star. If one field is `*`, the other
    decides alone, whatever the choice.
    """
    if choice is None:
        return leads_with_star(day) or leads_with_star(weekday)
    return choice is DayMatch.BOTH or covers_all(day) or covers_all(weekday)


def covers_all(items: tuple[Item, ...]) -> bool:
    """Whether the list contains a plain `*`."""
    return any(isinstance(item, RangeItem) and item.star and item.step == 1 for item in items)
