"""Schedules as JSON documents: what the API takes and gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Final, assert_never

from bellringer.durations import format_duration
from bellringer.errors import InvalidSchedule
from bellringer.schedule.crontab import Cron, cron
from bellringer.schedule.daysoff import Shift
from bellringer.schedule.instants import EPOCH, write_instant
from bellringer.schedule.intervals import Delay, Every, delay, every
from bellringer.schedule.oneshot import At, at
from bellringer.schedule.readings import usual
from bellringer.schedule.recurrence import Rrule, rrule, write_start
from bellringer.schedule.rows import Schedule
from bellringer.schedule.timetable import Timetable

_POINTER: Final = "/schedule"
_MAKERS: Final[Mapping[str, Callable[..., Schedule]]] = {
    "cron": cron,
    "rrule": rrule,
    "every": every,
    "delay": delay,
    "at": at,
}
_CLOCK: Final = ("gap", "fold")
_DAYS_OFF: Final = ("calendar", "shift", "calendar_digest")
_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "cron": ("tz", "seconds", *_CLOCK, "seed", *_DAYS_OFF),
    "rrule": ("tz", "start", *_CLOCK, *_DAYS_OFF),
    "every": ("anchor", "offset"),
    "delay": (),
    "at": (),
}
_KEYS: Final = (*_OPTIONS, *dict.fromkeys(key for options in _OPTIONS.values() for key in options))


def parse(document: Mapping[str, object]) -> Schedule:
    """Read a document of exactly one kind, such as {"cron": "0 9 * * MON-FRI", "tz": "Europe/Paris"}."""
    _check_mapping(document)
    try:  # with their types: 1 is True to a dictionary, and not to a reader
        return _parse_again(tuple((key, type(value), value) for key, value in document.items()))
    except TypeError:  # a list, say, which is refused with its own words
        return _parse(document)


@lru_cache(maxsize=16_384)
def _parse_again(items: tuple[tuple[str, type, object], ...]) -> Schedule:
    """Thousands of jobs have few schedules among them."""
    return _parse({key: value for key, _, value in items})


def _parse(document: Mapping[str, object]) -> Schedule:
    _check_keys(document)
    kind = _kind(document)
    options: dict[str, Any] = {key: document[key] for key in _OPTIONS[kind] if key in document}
    _check_seconds(options)
    if kind == "rrule" and "start" not in options:
        hint = 'give the local time of its first day, such as "2026-01-02T09:00"'
        raise _refusal("a rule needs a 'start'", hint=hint, key="start", code="start_invalid")
    try:
        return _MAKERS[kind](document[kind], **options)
    except InvalidSchedule as error:
        error.pointer = _POINTER + (error.pointer or f"/{kind}")
        raise


def to_document(schedule: Schedule) -> dict[str, object]:
    """Write a schedule so that `parse` gives it back; what has its default is left out."""
    match schedule:
        case Cron():
            document: dict[str, object] = {"cron": schedule.expression}
            own = {"seconds": True} if schedule.seconds else {}
            seed = {"seed": schedule.seed} if schedule.seed else {}
            return document | _zone(schedule) | own | _choices(schedule) | seed | _days_off(schedule)
        case Rrule(rule=rule, start=start):
            document = {"rrule": rule, "start": write_start(start)}
            return document | _zone(schedule) | _choices(schedule) | _days_off(schedule)
        case Every(interval=interval, anchor=anchor):
            document = {"every": format_duration(interval)}
            if anchor - EPOCH > timedelta(0):
                document["offset"] = format_duration(anchor - EPOCH)
            return document
        case Delay(interval=interval):
            return {"delay": format_duration(interval)}
        case At(instant=instant):
            return {"at": write_instant(instant)}
    assert_never(schedule)


def _zone(schedule: Timetable) -> dict[str, object]:
    return {} if schedule.timezone == "UTC" else {"tz": schedule.timezone}


def _choices(schedule: Timetable) -> dict[str, object]:
    """What was chosen for clock changes, where it is not the usual choice for such a schedule."""
    gap, fold = usual(fixed_time=schedule.fixed_time)
    document: dict[str, object] = {}
    if schedule.gap is not gap:
        document["gap"] = schedule.gap.value
    if schedule.fold is not fold:
        document["fold"] = schedule.fold.value
    return document


def _days_off(schedule: Timetable) -> dict[str, object]:
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
        message = f"a schedule is an object, not {type(document).__name__}"
        raise _refusal(message, hint='write it like {"cron": "0 9 * * *"} or {"every": "15m"}')


def _check_keys(document: Mapping[str, object]) -> None:
    for key in document:
        if key not in _KEYS:
            shown = str(key)[:40]
            near = get_close_matches(shown, _KEYS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(_KEYS)}"
            raise _refusal(f"a schedule has no {shown!r}", hint=hint, key=shown, code="unknown_field")


def _kind(document: Mapping[str, object]) -> str:
    kinds = [key for key in _OPTIONS if key in document]
    if not kinds:
        raise _refusal("the schedule says no kind", hint="give one of cron, rrule, every, delay and at")
    if len(kinds) > 1:
        message = f"the schedule says {' and '.join(kinds)} at once"
        raise _refusal(message, hint="give one; a job may have several schedules", key=kinds[1])
    for key in document:
        if key != kinds[0] and key not in _OPTIONS[kinds[0]]:
            owner = next(kind for kind, options in _OPTIONS.items() if key in options)
            message = f"{key!r} does not go with {kinds[0]!r}"
            hint = "for days off use cron" if key in _DAYS_OFF else f"it belongs to {owner!r}"
            raise _refusal(message, hint=hint, key=key, code="unknown_field")
    return kinds[0]


def _check_seconds(options: Mapping[str, object]) -> None:
    if not isinstance(options.get("seconds", False), bool):
        raise _refusal("'seconds' is neither true nor false", hint="leave it out for five fields", key="seconds")


def _refusal(message: str, *, hint: str, key: str = "", code: str = "") -> InvalidSchedule:
    escaped = key.replace("~", "~0").replace("/", "~1")
    return InvalidSchedule(message, hint=hint, code=code, pointer=f"{_POINTER}/{escaped}" if key else _POINTER)
