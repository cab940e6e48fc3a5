"""Exceptions of a recurrence rule: EXDATE leaves out local times or whole days, RDATE adds local times."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import Any, Final, NamedTuple

from bellringer.errors import InvalidSchedule
from bellringer.schedule import dst, wall_clock
from bellringer.schedule.dst import DstFold, DstGap
from bellringer.schedule.rrule_parser import MAX_RULE_LENGTH, rrule_error
from bellringer.schedule.time_zones import MIN_INSTANT
from bellringer.schedule.wall_clock import SECONDS_PER_DAY, WallClockPattern

MAX_EXCEPTIONS: Final = 100  # of both kinds together; they are part of an index of the database
_CIVIL_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - a wall-clock time has no zone
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_SECOND: Final = timedelta(seconds=1)
_DATE: Final = re.compile(r"(?P<y>[0-9]{4})-?(?P<m>[0-9]{2})-?(?P<d>[0-9]{2})")
_TIME: Final = re.compile(
    r"(?P<y>[0-9]{4})-?(?P<m>[0-9]{2})-?(?P<d>[0-9]{2})[T ](?P<H>[0-9]{2}):?(?P<M>[0-9]{2})(?::?(?P<S>[0-9]{2}))?"
)
_PROPERTY_LINE: Final = re.compile(r"^\s*(?:DTSTART|EXDATE|RDATE)[;:]|\n\s*RRULE:", re.IGNORECASE | re.MULTILINE)
_PROPERTY: Final = re.compile(r"(?P<name>DTSTART|RRULE|EXDATE|RDATE)(?P<parameters>(?:;[^:\n]*)?):", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleExceptions:
    """Local times and days that a rule leaves out, and local times that it has in addition; sorted."""

    excluded: tuple[datetime | date, ...] = ()
    added: tuple[datetime, ...] = ()


class RuleText(NamedTuple):
    """The properties of a text such as "DTSTART;TZID=Europe/Berlin:20260102T090000\\nRRULE:FREQ=DAILY"."""

    rule: str
    start: datetime | None = None
    zone: str | None = None
    exdate: tuple[str, ...] = ()
    rdate: tuple[str, ...] = ()


def read_properties(text: str) -> RuleText:
    """Split a text of several properties. A text without property names is a rule. Raises InvalidSchedule."""
    if not isinstance(text, str) or not _PROPERTY_LINE.search(text):
        return RuleText(text)
    if len(text) > MAX_RULE_LENGTH + MAX_EXCEPTIONS * 40:
        raise rrule_error("the text is too long", code="rrule_too_long", hint="split it into several schedules")
    found: dict[str, list[str]] = {}
    zones: set[str] = set()
    start: datetime | None = None
    rule, at = "", 0
    for line in re.sub(r"\r?\n[ \t]", "", text.strip()).splitlines():
        content = re.sub(r"^(?=FREQ=)", "RRULE:", line.strip(), flags=re.IGNORECASE)
        match = _PROPERTY.match(content)
        if match is None:
            message = f"{line.strip()[:40]!r} is not DTSTART, RRULE, EXDATE or RDATE"
            raise rrule_error(message, at, code="rrule_unsupported", hint="remove the line")
        name, value = match["name"].upper(), content[match.end() :]
        zones |= {part[5:] for part in match["parameters"].split(";") if part.upper().startswith("TZID=")}
        if name == "DTSTART":
            start = _parse_start_property(value, zones, at)
        elif name == "RRULE" and rule:
            raise rrule_error("the text has several RRULEs", at, hint="use one schedule for each rule")
        elif name == "RRULE":
            rule = value
        else:
            found.setdefault(name, []).extend(value.split(","))
        at += len(line) + 1
    if not rule:
        raise rrule_error("the text has no RRULE", len(text), hint="add a line such as RRULE:FREQ=DAILY")
    if len(zones) > 1:
        raise rrule_error(f"the text names several time zones: {', '.join(sorted(zones))}", hint="use one of them")
    zone = next(iter(zones), None)
    return RuleText(rule, start, zone, tuple(found.get("EXDATE", ())), tuple(found.get("RDATE", ())))


def _parse_start_property(value: str, zones: set[str], at: int) -> datetime:
    if value.upper().endswith("Z"):
        zones.add("UTC")
        value = value[:-1]
    try:
        start = _parse_time(value) or _parse_date(value)
    except ValueError:
        start = None
    if start is None:
        raise rrule_error(f"DTSTART {value[:40]!r} is not a time", at, hint="write it like 20260102T090000")
    return start if isinstance(start, datetime) else datetime(start.year, start.month, start.day)  # noqa: DTZ001


def parse_exceptions(
    exdate: object, rdate: object, more_excluded: Iterable[str] = (), more_added: Iterable[str] = ()
) -> RuleExceptions | None:
    """Returns the exceptions of a rule, or None without any. Raises InvalidSchedule."""
    excluded = {_parse_exception("exdate", one) for one in (*_as_list("exdate", exdate), *more_excluded)}
    added = {_parse_exception("rdate", one) for one in (*_as_list("rdate", rdate), *more_added)}
    if len(excluded) + len(added) > MAX_EXCEPTIONS:
        message = f"the rule has {len(excluded) + len(added)} exceptions; the maximum is {MAX_EXCEPTIONS}"
        hint = "use a calendar for days off"
        raise InvalidSchedule(message, code="exception_invalid", pointer="/exdate", hint=hint)
    if whole := next((one for one in added if not isinstance(one, datetime)), None):
        message = f"rdate {whole} has no time of day"
        hint = f'add the local time, for example "{whole}T09:00"'
        raise InvalidSchedule(message, code="exception_invalid", pointer="/rdate", hint=hint)
    if not excluded and not added:
        return None
    times = tuple(sorted(one for one in added if isinstance(one, datetime)))
    return RuleExceptions(excluded=tuple(sorted(excluded, key=str)), added=times)


def _as_list(key: str, value: object) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, str):
        return value.split(",")
    if isinstance(value, Iterable):
        return list(value)
    message = f"{key} must be a list of local times"
    raise InvalidSchedule(message, code="exception_invalid", pointer=f"/{key}", hint='example: ["2026-12-24T09:00"]')


def _parse_exception(key: str, value: object) -> datetime | date:
    try:
        found: datetime | date | None = None
        if isinstance(value, datetime):
            found = value.replace(microsecond=0, fold=0) if value.tzinfo is None else None
        elif isinstance(value, date):
            found = value
        elif isinstance(value, str):
            found = _parse_time(value.strip()) or _parse_date(value.strip())
        if found is not None and 1900 <= found.year <= 9000:
            return found
    except ValueError:
        pass
    hint = 'write a local time without an offset, such as "2026-12-24T09:00"'
    if key == "exdate":
        hint += ', or a day, such as "2026-12-24"'
    message = f"{key} {str(value)[:40]!r} is not a local time"
    raise InvalidSchedule(message, code="exception_invalid", pointer=f"/{key}", hint=hint)


def _parse_time(text: str) -> datetime | None:
    match = _TIME.fullmatch(text.upper())
    if match is None:
        return None
    return datetime(*(int(match[part] or 0) for part in "ymdHMS"))  # type: ignore[arg-type] # noqa: DTZ001


def _parse_date(text: str) -> date | None:
    match = _DATE.fullmatch(text)
    return date(int(match["y"]), int(match["m"]), int(match["d"])) if match else None


def format_exceptions(values: Iterable[datetime | date]) -> list[str]:
    """Format local times and days for a document. Seconds are omitted if they are zero."""
    return [
        one.isoformat(timespec="seconds" if one.second else "minutes") if isinstance(one, datetime) else one.isoformat()
        for one in values
    ]


def apply_exceptions(
    pattern: WallClockPattern, exceptions: RuleExceptions, zone: str, gap: DstGap, fold: DstFold
) -> WallClockPattern:
    """Applies exceptions to the pattern of a rule, after its days off: they name the times at which it would fire."""
    added = tuple(_moment(one) for one in exceptions.added)
    if added and pattern.last_instant is not None:
        pattern = _end_by_wall_clock(pattern, zone, gap, fold)
    days = frozenset(one for one in exceptions.excluded if not isinstance(one, datetime))
    times = frozenset(_moment(one) for one in exceptions.excluded if isinstance(one, datetime))
    assert pattern.bounds is not None, "a rule has a start"
    first, last = pattern.bounds
    starts = {(day.toordinal() - _EPOCH_DAY) * SECONDS_PER_DAY for day in days}
    added = tuple(m for m in added if m not in times and m // SECONDS_PER_DAY * SECONDS_PER_DAY not in starts)
    return replace(
        pattern,
        bounds=(min(first, *added), max(last, *added)) if added else pattern.bounds,
        filter=ExceptionFilter(
            base=pattern,
            days=tuple(sorted(starts)),
            excluded=frozenset(moment for moment in times if _is_match(pattern, moment)),
            added=tuple(moment for moment in added if not _is_match(pattern, moment)),
        ),
    )


def _is_match(pattern: WallClockPattern, moment: int) -> bool:
    return wall_clock.first_match(pattern, moment) == moment


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ExceptionFilter:
    """The matches of `base` without those on the `days` (by their first moment) and the `excluded` ones, and with the
    `added` moments (sorted). An exclusion has precedence over an addition, as in RFC 5545.
    """

    base: WallClockPattern
    days: tuple[int, ...]
    excluded: frozenset[int]
    added: tuple[int, ...]

    def first(self, moment: int) -> int | None:
        """The first moment at or after `moment`."""
        found = wall_clock.first_match(self.base, moment)
        while found is not None and (after := self._end_of_exclusion(found)) is not None:
            found = wall_clock.first_match(self.base, after)
        place = bisect_left(self.added, moment)
        added = self.added[place] if place < len(self.added) else None
        return min((m for m in (found, added) if m is not None), default=None)

    def last(self, moment: int) -> int | None:
        """The last moment at or before `moment`."""
        found = wall_clock.last_match(self.base, moment)
        while found is not None and self._end_of_exclusion(found) is not None:
            day = found // SECONDS_PER_DAY * SECONDS_PER_DAY
            found = wall_clock.last_match(self.base, (day if day in self.days else found) - 1)
        place = bisect_right(self.added, moment)
        added = self.added[place - 1] if place else None
        return max((m for m in (found, added) if m is not None), default=None)

    def count(self, start: int, end: int) -> int:
        """The number of moments from `start` up to, but not including, `end`."""
        total = wall_clock.count_matches(self.base, start, end)
        for day in self.days:
            total -= wall_clock.count_matches(self.base, max(start, day), min(end, day + SECONDS_PER_DAY))
        on_days = set(self.days)
        total -= sum(start <= m < end and m // SECONDS_PER_DAY * SECONDS_PER_DAY not in on_days for m in self.excluded)
        return total + bisect_left(self.added, end) - bisect_left(self.added, start)

    def _end_of_exclusion(self, moment: int) -> int | None:
        """Returns the moment after an excluded day or time, or None if the moment is not excluded."""
        day = moment // SECONDS_PER_DAY * SECONDS_PER_DAY
        if day in self.days:
            return day + SECONDS_PER_DAY
        return moment + 1 if moment in self.excluded else None


def _end_by_wall_clock(pattern: WallClockPattern, zone: str, gap: DstGap, fold: DstFold) -> WallClockPattern:
    """Replaces the last instant by the last wall-clock moment, because an added time may lie after it."""
    assert pattern.bounds is not None, "a rule has a start"
    assert pattern.last_instant is not None, "the pattern ends at an instant"
    ends = dst.last_occurrence(pattern, zone, pattern.last_instant, gap, fold, not_before=MIN_INSTANT)
    shown = None if ends is None else dst.wall_clock_time(pattern, zone, ends, gap)
    first = pattern.bounds[0]
    return replace(pattern, bounds=(first, first - 1 if shown is None else shown), last_instant=None)


def _moment(at: datetime) -> int:
    return (at - _CIVIL_EPOCH) // _SECOND
