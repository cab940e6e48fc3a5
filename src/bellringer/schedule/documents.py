"""Schedules as JSON documents: what the API takes and gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, Final, assert_never

from bellringer.durations import format_duration
from bellringer.errors import InvalidSchedule
from bellringer.schedule.crontab import Cron, Dst, cron
from bellringer.schedule.instants import EPOCH, write_instant
from bellringer.schedule.intervals import Delay, Every, delay, every
from bellringer.schedule.oneshot import At, at
from bellringer.schedule.rows import Schedule

_POINTER: Final = "/schedule"
_MAKERS: Final[Mapping[str, Callable[..., Schedule]]] = {
    "cron": cron,
    "every": every,
    "delay": delay,
    "at": at,
}
_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "cron": ("tz", "seconds", "dst"),
    "every": ("anchor", "offset"),
    "delay": (),
    "at": (),
}
_KEYS: Final = (*_OPTIONS, *(key for options in _OPTIONS.values() for key in options))


def parse(document: Mapping[str, object]) -> Schedule:
    """Read a document of exactly one kind, such as {"cron": "0 9 * * MON-FRI", "tz": "Europe/Paris"}."""
    _check_mapping(document)
    _check_keys(document)
    kind = _kind(document)
    options: dict[str, Any] = {key: document[key] for key in _OPTIONS[kind] if key in document}
    _check_seconds(options)
    try:
        return _MAKERS[kind](document[kind], **options)
    except InvalidSchedule as error:
        error.pointer = _POINTER + (error.pointer or f"/{kind}")
        raise


def to_document(schedule: Schedule) -> dict[str, object]:
    """Write a schedule so that `parse` gives it back; what has its default is left out."""
    match schedule:
        case Cron():
            return _cron_document(schedule)
        case Every(interval=interval, anchor=anchor):
            document: dict[str, object] = {"every": format_duration(interval)}
            if anchor - EPOCH > timedelta(0):
                document["offset"] = format_duration(anchor - EPOCH)
            return document
        case Delay(interval=interval):
            return {"delay": format_duration(interval)}
        case At(instant=instant):
            return {"at": write_instant(instant)}
    assert_never(schedule)


def _cron_document(schedule: Cron) -> dict[str, object]:
    document: dict[str, object] = {"cron": schedule.expression}
    if schedule.timezone != "UTC":
        document["tz"] = schedule.timezone
    if schedule.seconds:
        document["seconds"] = True
    if schedule.dst is not Dst.DEFAULT:
        document["dst"] = schedule.dst.value
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
        raise _refusal("the schedule says no kind", hint="give one of cron, every, delay and at")
    if len(kinds) > 1:
        message = f"the schedule says {' and '.join(kinds)} at once"
        raise _refusal(message, hint="give one; a job may have several schedules", key=kinds[1])
    for key in document:
        if key != kinds[0] and key not in _OPTIONS[kinds[0]]:
            owner = next(kind for kind, options in _OPTIONS.items() if key in options)
            message = f"{key!r} does not go with {kinds[0]!r}"
            raise _refusal(message, hint=f"it belongs to {owner!r}", key=key, code="unknown_field")
    return kinds[0]


def _check_seconds(options: Mapping[str, object]) -> None:
    if not isinstance(options.get("seconds", False), bool):
        raise _refusal("'seconds' is neither true nor false", hint="leave it out for five fields", key="seconds")


def _refusal(message: str, *, hint: str, key: str = "", code: str = "") -> InvalidSchedule:
    escaped = key.replace("~", "~0").replace("/", "~1")
    return InvalidSchedule(message, hint=hint, code=code, pointer=f"{_POINTER}/{escaped}" if key else _POINTER)
