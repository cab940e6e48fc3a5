"""Hours of a calendar, such as Monday to Friday from 09:00 to 17:30, and how they change the matches of a schedule.

A match outside of the hours is left out, or moved: to the beginning of the next open range, or to the last minute of
the range before. All times are wall-clock times."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from typing import Final, NamedTuple, Protocol

from bellringer.errors import InvalidInput
from bellringer.schedule import wall_clock
from bellringer.schedule.wall_clock import SEARCH_YEARS, SECONDS_PER_DAY, WallClockPattern

DAY_NAMES: Final = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")
MAX_RANGES: Final = 50
_MINUTE: Final = 60
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_MAX_WALK_DAYS: Final = 400  # days without an open range; a calendar has a working day in every year
_TEXT: Final = re.compile(
    r"(?P<days>[A-Z]{3}(?:-[A-Z]{3})?(?:,[A-Z]{3}(?:-[A-Z]{3})?)*) +"
    r"(?P<from>[0-9]{1,2}:[0-9]{2}) ?[-–] ?(?P<to>[0-9]{1,2}:[0-9]{2})"
)


class HourRange(NamedTuple):
    """A range of one weekday (Monday is 0), in minutes of the day. The end is exclusive."""

    weekday: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{DAY_NAMES[self.weekday]} {_clock(self.start)}-{_clock(self.end)}"


class OpenDays(Protocol):
    """A calendar with hours."""

    def is_off_ordinal(self, ordinal: int) -> bool:
        """Whether the day with this proleptic ordinal is a day off."""

    def ranges_of(self, weekday: int) -> tuple[HourRange, ...]:
        """The ranges of a weekday, in order."""


def parse_hours(texts: Iterable[str]) -> tuple[HourRange, ...]:
    """Parse ranges such as "MON-FRI 09:00-17:30". Returns them sorted, one for each weekday. Raises InvalidInput."""
    found: list[HourRange] = []
    for place, text in enumerate(texts):
        try:
            found += _parse_range(text)
        except InvalidInput as error:
            error.pointer = f"/hours/{place}"
            raise
    if len(found) > MAX_RANGES:
        message = f"the calendar has {len(found)} ranges of hours; the maximum is {MAX_RANGES}"
        raise _error(message, hint="join ranges of the same day")
    found.sort()
    for before, after in pairwise(found):
        if before.weekday == after.weekday and after.start <= before.end:
            raise _error(f"the hours {before} and {after} overlap or touch", hint="join them to one range")
    return tuple(found)


def format_hours(ranges: Iterable[HourRange]) -> list[str]:
    """Format ranges so that `parse_hours` returns the same, with days of equal hours together."""
    by_hours: dict[tuple[tuple[int, int], ...], list[int]] = {}
    ranges = list(ranges)
    for weekday in range(7):
        hours = tuple((one.start, one.end) for one in ranges if one.weekday == weekday)
        if hours:
            by_hours.setdefault(hours, []).append(weekday)
    return [
        f"{_format_days(days)} {_clock(start)}-{_clock(end)}"
        for hours, days in by_hours.items()
        for start, end in hours
    ]


def _format_days(days: list[int]) -> str:
    if len(days) > 2 and days == list(range(days[0], days[-1] + 1)):
        return f"{DAY_NAMES[days[0]]}-{DAY_NAMES[days[-1]]}"
    return ",".join(DAY_NAMES[day] for day in days)


def _parse_range(text: str) -> list[HourRange]:
    match = _TEXT.fullmatch(text.strip().upper()) if isinstance(text, str) else None
    if match is None:
        raise _error(f"{str(text)[:60]!r} is not a range of hours", hint='write it like "MON-FRI 09:00-17:30"')
    start, end = _parse_clock(match["from"]), _parse_clock(match["to"])
    if end <= start:
        hint = f"write two ranges, to 24:00 and from 00:00 of the next day: {_clock(start)}-24:00, 00:00-{_clock(end)}"
        raise _error(f"the hours {match['from']}-{match['to']} end before they begin", hint=hint)
    days: set[int] = set()
    for part in match["days"].split(","):
        first, _, last = part.partition("-")
        low, high = _weekday(first), _weekday(last or first)
        days |= {(low + n) % 7 for n in range((high - low) % 7 + 1)}
    return [HourRange(day, start, end) for day in sorted(days)]


def _weekday(name: str) -> int:
    if name not in DAY_NAMES:
        raise _error(f"{name} is not a day of the week", hint=f"use {', '.join(DAY_NAMES)}")
    return DAY_NAMES.index(name)


def _parse_clock(text: str) -> int:
    hours, minutes = (int(part) for part in text.split(":"))
    if hours > 24 or minutes > 59 or hours * 60 + minutes > 1440:
        raise _error(f"{text} is not a time of day", hint="use 00:00 to 24:00")
    return hours * 60 + minutes


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"


def _error(message: str, *, hint: str) -> InvalidInput:
    return InvalidInput(message, code="hours_invalid", pointer="/hours", hint=hint)


class _OpenRange(NamedTuple):
    """An open range of one date, in moments. The end is exclusive."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class OpenHoursFilter:
    """The matches of `base` within the open hours, and with a shift also the moments to which the others move.

    `direction` is 1 if a match moves to the next range, -1 if it moves to the range before, and 0 if it is left out.
    """

    base: WallClockPattern
    calendar: OpenDays
    direction: int

    def first(self, moment: int) -> int | None:
        """The first moment at or after `moment`."""
        ahead = moment
        limit = moment + SEARCH_YEARS * 366 * SECONDS_PER_DAY
        while ahead < limit:
            opened = next(self._ranges_from(ahead), None)
            if opened is None:
                return None
            if (found := self._first_in(opened, moment)) is not None:
                return found
            # No match in this range, so the next one is in a later range, or in the closed time before that.
            following = wall_clock.first_match(self.base, opened.end)
            if following is None:
                return None
            ahead = self._range_reached(opened.end, following)
        return None

    def _range_reached(self, after: int, match: int) -> int:
        """Returns a moment from which the range that the match falls into or moves to is the next one, or an earlier
        one."""
        if self.direction >= 0:
            return max(after, match)
        before = next(self._ranges_until(match), None)
        return after if before is None else max(after, before.start)

    def _first_in(self, opened: _OpenRange, moment: int) -> int | None:
        if self.direction > 0 and opened.start >= moment and self._moves_to_start(opened):
            return opened.start
        found = wall_clock.first_match(self.base, max(opened.start, moment))
        found = found if found is not None and found < opened.end else None
        last = opened.end - _MINUTE
        if self.direction < 0 and last >= moment and (found is None or found > last) and self._moves_to_end(opened):
            return last
        return found

    def last(self, moment: int) -> int | None:
        """The last moment at or before `moment`."""
        behind = moment
        limit = moment - SEARCH_YEARS * 366 * SECONDS_PER_DAY
        while behind > limit:
            opened = next(self._ranges_until(behind), None)
            if opened is None:
                return None
            if (found := self._last_in(opened, moment)) is not None:
                return found
            before = wall_clock.last_match(self.base, opened.start - 1)
            if before is None:
                return None
            behind = opened.start - 1
            if self.direction <= 0:
                behind = min(behind, before)
            elif (reached := next(self._ranges_from(before), None)) is not None:
                behind = min(behind, reached.start)
        return None

    def _last_in(self, opened: _OpenRange, moment: int) -> int | None:
        found = wall_clock.last_match(self.base, min(opened.end - 1, moment))
        found = found if found is not None and found >= opened.start else None
        last = opened.end - _MINUTE
        if self.direction < 0 and last <= moment and (found is None or found < last) and self._moves_to_end(opened):
            return last
        if found is None and self.direction > 0 and opened.start <= moment and self._moves_to_start(opened):
            return opened.start
        return found

    def count(self, start: int, end: int) -> int:
        """The number of moments from `start` up to, but not including, `end`."""
        total = 0
        for opened in self._ranges_from(start):
            if opened.start >= end:
                break
            total += wall_clock.count_matches(self.base, max(start, opened.start), min(end, opened.end))
            target = opened.start if self.direction > 0 else opened.end - _MINUTE
            moves = self.direction and start <= target < end and not _is_match(self.base, target)
            if moves and (self._moves_to_start(opened) if self.direction > 0 else self._moves_to_end(opened)):
                total += 1
        return total

    def _moves_to_start(self, opened: _OpenRange) -> bool:
        """Whether a match lies in the closed time before a range."""
        before = next(self._ranges_until(opened.start - 1), None)
        found = wall_clock.last_match(self.base, opened.start - 1)
        return found is not None and (before is None or found >= before.end)

    def _moves_to_end(self, opened: _OpenRange) -> bool:
        """Whether a match lies in the closed time after a range."""
        after = next(self._ranges_from(opened.end), None)
        found = wall_clock.first_match(self.base, opened.end)
        return found is not None and (after is None or found < after.start)

    def _ranges_from(self, moment: int) -> Iterator[_OpenRange]:
        """The ranges that end after a moment, in order."""
        empty, day = 0, moment // SECONDS_PER_DAY
        while empty < _MAX_WALK_DAYS and day + _EPOCH_DAY < date.max.toordinal():
            ranges = [opened for opened in self._ranges_of_day(day) if opened.end > moment]
            empty = 0 if ranges else empty + 1
            yield from ranges
            day += 1

    def _ranges_until(self, moment: int) -> Iterator[_OpenRange]:
        """The ranges that begin at or before a moment, the latest first."""
        empty, day = 0, moment // SECONDS_PER_DAY
        while empty < _MAX_WALK_DAYS and day + _EPOCH_DAY > 1:
            ranges = [opened for opened in self._ranges_of_day(day) if opened.start <= moment]
            empty = 0 if ranges else empty + 1
            yield from reversed(ranges)
            day -= 1

    def _ranges_of_day(self, day: int) -> list[_OpenRange]:
        ordinal = day + _EPOCH_DAY
        if self.calendar.is_off_ordinal(ordinal):
            return []
        midnight = day * SECONDS_PER_DAY
        ranges = self.calendar.ranges_of((ordinal - 1) % 7)
        return [_OpenRange(midnight + one.start * _MINUTE, midnight + one.end * _MINUTE) for one in ranges]


def _is_match(pattern: WallClockPattern, moment: int) -> bool:
    return wall_clock.first_match(pattern, moment) == moment
