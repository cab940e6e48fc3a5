"""What a cron field is made of: the six fields, and the items that may stand in their lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One column of an expression: how errors name it and which values it takes."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()

    @property
    def last(self) -> int:
        """The end of `*`: Sunday is 0 there, and its second name 7 would count it twice."""
        return 6 if self is WEEKDAY else self.high

    @property
    def common(self) -> int:
        """The end of `H`: every month has a 28th."""
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
FIELDS: Final = (SECOND, MINUTE, HOUR, DAY, MONTH, WEEKDAY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """`*`, `5`, `1-5`, `*/15`, `1-30/5`, and `5/15`, which runs to the end of the field."""

    first: int
    last: int
    step: int = 1
    star: bool = False

    def values(self) -> range:
        return range(self.first, self.last + 1, self.step)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastDay:
    """`L`, the last day of the month, or `L-3`, three days before it."""

    before: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestWeekday:
    """`15W`, Monday to Friday nearest the 15th in the same month; `LW` (no day), the month's last."""

    day: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NthWeekday:
    """`MON#2`, the second Monday of the month; `FRIL` (no `nth`), its last Friday."""

    weekday: int
    nth: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hashed:
    """`H`, one value of the field, chosen by a hash; `H(0-29)`, one of these; `H/15`, that and each 15th after."""

    first: int
    last: int
    step: int | None = None


Item = Span | LastDay | NearestWeekday | NthWeekday | Hashed


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """A cron expression that was read: its canonical text and the items of its six fields."""

    text: str
    second: tuple[Item, ...]
    minute: tuple[Item, ...]
    hour: tuple[Item, ...]
    day: tuple[Item, ...]
    month: tuple[Item, ...]
    weekday: tuple[Item, ...]
    day_position: int

    @property
    def fields(self) -> tuple[tuple[Item, ...], ...]:
        return (self.second, self.minute, self.hour, self.day, self.month, self.weekday)

    @property
    def hashed(self) -> bool:
        """Whether a hash has a say."""
        return any(isinstance(item, Hashed) for items in self.fields for item in items)

    @property
    def fixed_time(self) -> bool:
        """Debian cron's test for a time of day, as against a rhythm: no leading star in either field."""
        return not leads_with_star(self.minute) and not leads_with_star(self.hour)


def leads_with_star(items: tuple[Item, ...]) -> bool:
    first = items[0]
    return isinstance(first, Span) and first.star
