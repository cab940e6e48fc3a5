"""Schedules as JSON documents (for the API) and as database rows.

Equal schedules give equal rows, so a table stores each schedule once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from datetime import date, datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Final, NamedTuple, assert_never

from bellringer.durations import format_duration
from bellringer.errors import InvalidSchedule
from bellringer.schedule.cron_ast import Dialect
from bellringer.schedule.cron_schedule import Cron, cron, crontab_text, day_match_matters, quartz_text
from bellringer.schedule.dst import default_dst_policy
from bellringer.schedule.holiday_calendars import DaysOff, Shift
from bellringer.schedule.instants import EPOCH, write_instant
from bellringer.schedule.interval_and_oneshot import At, Delay, Every, at, delay, every
from bellringer.schedule.repeat_count import RepeatCount, check_reachable
from bellringer.schedule.rrule_exceptions import RuleExceptions, format_exceptions
from bellringer.schedule.rrule_schedule import Rrule, format_start, rrule
from bellringer.schedule.zoned_schedule import ZonedSchedule

Schedule = Cron | Rrule | Every | Delay | At


class ScheduleRow(NamedTuple):
    """A schedule as a database row. It contains everything that affects the occurrences and nothing else: not the seed
    of an `H` (its value is stored) and not the name of a calendar (its digest is stored). A column that does not
    apply to the kind is empty or false, never null.
    """

    kind: str
    expression: str
    timezone: str = ""
    anchor: str = ""
    seconds: bool = False
    dst: str = ""
    calendar: str = ""


def to_row(schedule: Schedule) -> ScheduleRow:
    """Convert a schedule to a row."""
    match schedule:
        case Cron():
            return _cron_row(schedule)
        case Rrule(rule=rule, timezone=zone, start=begin):
            days_off = _days_off_column(schedule.days_off)
            dst = f"{schedule.gap} {schedule.fold}{_exception_terms(schedule.exceptions)}"
            anchor = format_start(begin)
            return ScheduleRow(kind="rrule", expression=rule, timezone=zone, anchor=anchor, dst=dst, calendar=days_off)
        case Every(interval=interval, anchor=since):
            start = "" if since == EPOCH and schedule.repeat is None else write_instant(since)
            anchor = f"{start}{_repeat_terms(schedule)}"
            return ScheduleRow(kind="every", expression=format_duration(interval), anchor=anchor)
        case Delay(interval=interval):
            return ScheduleRow(kind="delay", expression=format_duration(interval))
        case At(instant=instant):
            return ScheduleRow(kind="at", expression=write_instant(instant))
    assert_never(schedule)


# Options that the columns have no place for follow the DST policy (of an interval: the anchor) as terms such as
# `times=10`. A program that does not know them refuses the row, instead of reading a schedule with another meaning.


def _cron_row(schedule: Cron) -> ScheduleRow:
    terms = f"{schedule.gap} {schedule.fold}"
    if schedule.resolved().year:
        text, seconds = quartz_text(schedule), False
        terms += " dialect=quartz"
    else:
        text, seconds = crontab_text(schedule)
    if schedule.day_match is not None and day_match_matters(schedule):
        terms += f" day_match={schedule.day_match}"
    return ScheduleRow(
        kind="cron",
        expression=text,
        timezone=schedule.timezone,
        seconds=seconds,
        dst=terms + _repeat_terms(schedule),
        calendar=_days_off_column(schedule.days_off),
    )


def _repeat_terms(schedule: Cron | Every) -> str:
    """Returns the terms of a repeat count. The start is that of the first occurrence, so that jobs which are registered
    at different moments share a row.
    """
    repeat = schedule.repeat
    if repeat is None:
        return ""
    if repeat.start is None:
        message, hint = "the repeat count has no start", "bind the schedule to a start first"
        raise InvalidSchedule(message, code="times_invalid", pointer="/start", hint=hint)
    first = schedule.next_after(repeat.start - timedelta(microseconds=1))
    return f" times={repeat.times} start={write_instant(first or repeat.start)}"


def _exception_terms(exceptions: RuleExceptions | None) -> str:
    if exceptions is None:
        return ""
    lists = (("exdate", exceptions.excluded), ("rdate", exceptions.added))
    return "".join(f" {key}={','.join(map(_compact, values))}" for key, values in lists if values)


def _compact(value: date) -> str:
    return f"{value:%Y%m%dT%H%M%S}" if isinstance(value, datetime) else f"{value:%Y%m%d}"


def _read_terms(terms: Iterable[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for term in terms:
        key, equals, value = term.partition("=")
        if not equals or key not in _ROW_TERMS:
            raise InvalidSchedule(f"unknown term {term[:40]!r} in a stored schedule", hint="upgrade this program")
        options[key] = _ROW_TERMS[key](value)
    return options


_ROW_TERMS: Final[Mapping[str, Callable[[str], object]]] = {
    "dialect": str,
    "day_match": str,
    "times": int,
    "start": str,
    "exdate": str,
    "rdate": str,
}


@lru_cache(maxsize=65_536)
def from_row(
    kind: str, expression: str, timezone: str, anchor: str, seconds: bool, dst: str, calendar: str
) -> Schedule:
    """Convert a row to a schedule. Cached, because every tick reads the same few rows."""
    match kind:
        case "cron":
            return cron(expression, tz=timezone, seconds=seconds, **_options_of_row(dst, calendar))
        case "rrule":
            return rrule(expression, tz=timezone, start=anchor, **_options_of_row(dst, calendar))
        case "every":
            since, *terms = anchor.split(" ")
            return every(expression, anchor=since or None, **_read_terms(terms))
        case "delay":
            return delay(expression)
        case "at":
            return at(expression)
    raise InvalidSchedule(f"unknown schedule kind {kind!r}", hint="use cron, rrule, every, delay or at")


def apply_seed(schedule: Schedule, seed: str) -> Schedule:
    """Set the seed of a cron schedule whose `H` has none. Other schedules are returned unchanged."""
    if not isinstance(schedule, Cron) or schedule.seed or not schedule.hashed:
        return schedule
    # The seed decides the values of `H`, and with them whether the expression begins with a star.
    made = cron(
        schedule.expression,
        tz=schedule.timezone,
        seconds=schedule.seconds,
        day_match=schedule.day_match,
        gap=schedule.gap,
        fold=schedule.fold,
        seed=seed,
    )
    return replace(made, days_off=schedule.days_off, repeat=schedule.repeat)


def bind_repeat(schedule: Schedule, after: datetime, known: Collection[Schedule] = ()) -> Schedule:
    """Set the start of a repeat count that has none: that of the same schedule among the `known` ones, or its first
    occurrence after an instant.
    """
    if not isinstance(schedule, Cron | Every) or schedule.repeat is None or schedule.repeat.start is not None:
        return schedule
    if kept := keep_repeat(schedule, known):
        return kept
    first = schedule.next_after(after) or after
    bound = replace(schedule, repeat=replace(schedule.repeat, start=first))
    if isinstance(bound, Cron):
        check_reachable(replace(bound, days_off=None).pattern(), bound.repeat)
    return bound


def keep_repeat(schedule: Schedule, known: Collection[Schedule]) -> Schedule | None:
    """Returns the schedule among the `known` ones that has the same repeat count and differs only in its start."""
    if not isinstance(schedule, Cron | Every) or schedule.repeat is None:
        return None
    for other in known:
        if not isinstance(other, Cron | Every) or other.repeat is None:
            continue
        if replace(other, repeat=replace(other.repeat, start=schedule.repeat.start)) == schedule:
            return other
    return None


def _days_off_column(days_off: DaysOff | None) -> str:
    """Returns the digest and the shift. The name is omitted, because it does not affect the occurrences."""
    if days_off is None:
        return ""
    if not days_off.digest:
        message, hint = f"calendar {days_off.name!r} was not looked up", "bind the schedule to its calendar first"
        raise InvalidSchedule(message, code="calendar_unknown", pointer="/calendar", hint=hint)
    return f"{days_off.digest} {days_off.shift}"


def _options_of_row(dst: str, calendar: str) -> dict[str, Any]:
    gap, _, rest = dst.partition(" ")
    fold, *terms = rest.split(" ")
    choices: dict[str, Any] = {"gap": gap, "fold": fold, **_read_terms(terms)}
    if calendar:
        digest, _, shift = calendar.partition(" ")
        choices |= {"calendar": digest, "calendar_digest": digest, "shift": shift}
    return choices


_POINTER: Final = "/schedule"
_BUILDERS: Final[Mapping[str, Callable[..., Schedule]]] = {
    "cron": cron,
    "rrule": rrule,
    "every": every,
    "delay": delay,
    "at": at,
}
_CLOCK: Final = ("gap", "fold")
_DAYS_OFF: Final = ("calendar", "shift", "calendar_digest")
_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "cron": ("tz", "seconds", "dialect", "day_match", "times", "start", *_CLOCK, "seed", *_DAYS_OFF),
    "rrule": ("tz", "start", "exdate", "rdate", *_CLOCK, *_DAYS_OFF),
    "every": ("anchor", "offset", "times", "start"),
    "delay": (),
    "at": (),
}
_OFTEN_MEANT: Final = {"timezone": "tz", "time_zone": "tz", "zone": "tz", "repeat": "times"}
_KEYS: Final = (*_OPTIONS, *dict.fromkeys(key for options in _OPTIONS.values() for key in options))


def parse_schedule(document: Mapping[str, object]) -> Schedule:
    """Parse a document of exactly one kind, such as {"cron": "0 9 * * MON-FRI", "tz": "Europe/Paris"}.

    Raises InvalidSchedule.
    """
    _check_mapping(document)
    try:  # the types are part of the key, because 1 == True
        return _parse_cached(tuple((key, type(value), value) for key, value in document.items()))
    except TypeError:  # an unhashable value, such as a list; parsing raises a better error
        return _parse(document)


@lru_cache(maxsize=16_384)
def _parse_cached(items: tuple[tuple[str, type, object], ...]) -> Schedule:
    """Cached, because thousands of jobs share a few schedules."""
    return _parse({key: value for key, _, value in items})


def _parse(document: Mapping[str, object]) -> Schedule:
    _check_keys(document)
    kind = _find_kind(document)
    options: dict[str, Any] = {key: document[key] for key in _OPTIONS[kind] if key in document}
    _check_seconds(options)
    try:
        return _BUILDERS[kind](document[kind], **options)
    except InvalidSchedule as error:
        error.pointer = _POINTER + (error.pointer or f"/{kind}")
        raise


def to_document(schedule: Schedule) -> dict[str, object]:
    """Convert a schedule to a document that `parse_schedule` accepts. Defaults are omitted."""
    match schedule:
        case Cron():
            return _cron_document(schedule)
        case Rrule(rule=rule, start=start):
            document: dict[str, object] = {"rrule": rule, "start": format_start(start)}
            document |= _exception_document(schedule.exceptions)
            return document | _zone_document(schedule) | _dst_document(schedule) | _days_off_document(schedule)
        case Every(interval=interval, anchor=anchor):
            document = {"every": format_duration(interval)}
            if anchor - EPOCH > timedelta(0):
                document["offset"] = format_duration(anchor - EPOCH)
            return document | _repeat_document(schedule.repeat)
        case Delay(interval=interval):
            return {"delay": format_duration(interval)}
        case At(instant=instant):
            return {"at": write_instant(instant)}
    assert_never(schedule)


def _cron_document(schedule: Cron) -> dict[str, object]:
    document: dict[str, object] = {"cron": schedule.expression} | _zone_document(schedule)
    if schedule.seconds:
        document["seconds"] = True
    if schedule.dialect is not Dialect.UNIX:
        document["dialect"] = schedule.dialect.value
    if schedule.day_match is not None:
        document["day_match"] = schedule.day_match.value
    document |= _repeat_document(schedule.repeat) | _dst_document(schedule)
    if schedule.seed:
        document["seed"] = schedule.seed
    return document | _days_off_document(schedule)


def _exception_document(exceptions: RuleExceptions | None) -> dict[str, object]:
    if exceptions is None:
        return {}
    lists = {"exdate": exceptions.excluded, "rdate": exceptions.added}
    return {key: format_exceptions(values) for key, values in lists.items() if values}


def _repeat_document(repeat: RepeatCount | None) -> dict[str, object]:
    if repeat is None:
        return {}
    start = {} if repeat.start is None else {"start": write_instant(repeat.start)}
    return {"times": repeat.times, **start}


def _zone_document(schedule: ZonedSchedule) -> dict[str, object]:
    return {} if schedule.timezone == "UTC" else {"tz": schedule.timezone}


def _dst_document(schedule: ZonedSchedule) -> dict[str, object]:
    """Returns the DST policy as far as it differs from the default."""
    gap, fold = default_dst_policy(fixed_time=schedule.fixed_time)
    document: dict[str, object] = {}
    if schedule.gap is not gap:
        document["gap"] = schedule.gap.value
    if schedule.fold is not fold:
        document["fold"] = schedule.fold.value
    return document


def _days_off_document(schedule: ZonedSchedule) -> dict[str, object]:
    days_off = schedule.days_off
    if days_off is None:
        return {}
    document: dict[str, object] = {"calendar": days_off.name}
    if days_off.shift is not Shift.SKIP:
        document["shift"] = days_off.shift.value
    if days_off.digest:
        document["calendar_digest"] = days_off.digest
    return document


def _check_mapping(document: object) -> None:
    if not isinstance(document, Mapping):
        message = f"a schedule must be an object, not {type(document).__name__}"
        raise _error(message, hint='examples: {"cron": "0 9 * * *"}, {"every": "15m"}')


def _check_keys(document: Mapping[str, object]) -> None:
    for key in document:
        if key not in _KEYS:
            shown = str(key)[:40]
            near = [_OFTEN_MEANT[shown]] if shown in _OFTEN_MEANT else get_close_matches(shown, _KEYS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"use {', '.join(_KEYS)}"
            raise _error(f"unknown field {shown!r} in the schedule", hint=hint, key=shown, code="unknown_field")


def _find_kind(document: Mapping[str, object]) -> str:
    kinds = [key for key in _OPTIONS if key in document]
    if not kinds:
        raise _error("the schedule has no kind", hint="add one of cron, rrule, every, delay and at")
    if len(kinds) > 1:
        message = f"the schedule has several kinds: {' and '.join(kinds)}"
        raise _error(message, hint="use one kind per schedule; a job may have several schedules", key=kinds[1])
    for key in document:
        if key != kinds[0] and key not in _OPTIONS[kinds[0]]:
            owner = " and ".join(repr(kind) for kind, options in _OPTIONS.items() if key in options)
            message = f"{key!r} is not allowed with {kinds[0]!r}"
            hint = "calendars work with cron and rrule" if key in _DAYS_OFF else f"it is an option of {owner}"
            if key == "times" and kinds[0] == "rrule":
                hint = "write COUNT= in the rule"
            raise _error(message, hint=hint, key=key, code="unknown_field")
    return kinds[0]


def _check_seconds(options: Mapping[str, object]) -> None:
    if not isinstance(options.get("seconds", False), bool):
        raise _error("'seconds' must be true or false", hint="omit it for five fields", key="seconds")


def _error(message: str, *, hint: str, key: str = "", code: str = "") -> InvalidSchedule:
    escaped = key.replace("~", "~0").replace("/", "~1")
    return InvalidSchedule(message, hint=hint, code=code, pointer=f"{_POINTER}/{escaped}" if key else _POINTER)
