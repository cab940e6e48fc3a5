"""Parses and formats durations: "1h30m", "500ms", "PT1H30M", or a number of seconds."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Final

from bellringer.errors import InvalidInput

_MICROSECONDS: Final = {
    "w": 604_800_000_000,
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
    "us": 1,
}
_UNITS: Final = tuple(_MICROSECONDS)
_PART: Final = re.compile(r" ?([0-9]+(?:\.[0-9]+)?)([A-Za-z]+)")
_ISO: Final = re.compile(
    r"P(?=.)(?:(?P<w>[0-9]+)W)?(?:(?P<d>[0-9]+)D)?"
    r"(?:T(?=.)(?:(?P<h>[0-9]+)H)?(?:(?P<m>[0-9]+)M)?(?:(?P<s>[0-9]+(?:\.[0-9]+)?)S)?)?"
)
_MAX_LENGTH: Final = 64
_FORMAT_HINT: Final = 'write it like "90s", "1h30m", "500ms", "2d" or "PT1H30M"'


def parse_duration(value: str | float | timedelta, *, what: str = "duration") -> timedelta:
    """Parses a duration; raises InvalidInput if it is negative or malformed. A number is a count of seconds."""
    if isinstance(value, timedelta):
        return _require_not_negative(value, what)
    if isinstance(value, str):
        return _parse_text(value, what)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _duration_error(f"{what} cannot be read from {type(value).__name__}")
    if isinstance(value, float) and not math.isfinite(value):
        raise _duration_error(f"{what} {value} is not a finite number of seconds")
    try:
        return _require_not_negative(timedelta(seconds=value), what)
    except OverflowError:
        raise _duration_error(f"{what} is too long") from None


@lru_cache(maxsize=4096)
def format_duration(value: timedelta) -> str:
    """Formats a duration so that `parse_duration` returns the same value."""
    rest = value // timedelta(microseconds=1)
    if rest < 0:
        return "-" + format_duration(-value)
    parts = []
    # Days are the largest unit written: "10d" reads better than "1w3d".
    for unit in _UNITS[1:]:
        count, rest = divmod(rest, _MICROSECONDS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


@lru_cache(maxsize=4096)
def _parse_text(text: str, what: str) -> timedelta:
    """Cached, because defaults and stored definitions repeat the same few durations."""
    return _from_microseconds(_parse_microseconds(text, what), what)


def _parse_microseconds(text: str, what: str) -> Decimal:
    if len(text) > _MAX_LENGTH:
        raise _duration_error(f"{what} has {len(text)} characters, more than {_MAX_LENGTH}")
    if not text.strip():
        raise _duration_error(f"{what} is empty")
    if text.lstrip().startswith("-"):
        raise _duration_error(f"{what} {text!r} is negative", hint="give a duration of zero or more")
    if text.startswith("P"):
        return _parse_iso(text, what)
    return _parse_parts(text, what)


def _parse_iso(text: str, what: str) -> Decimal:
    match = _ISO.fullmatch(text)
    if match is None:
        raise _duration_error(
            f"{what} {text!r} is not an ISO 8601 duration of weeks, days, hours, minutes and seconds",
            hint="years and months have no fixed length; write it like P1D or PT1H30M",
        )
    return sum(
        (Decimal(count) * _MICROSECONDS[unit] for unit, count in match.groupdict().items() if count),
        start=Decimal(0),
    )


def _parse_parts(text: str, what: str) -> Decimal:
    total, position, last = Decimal(0), 0, -1
    while position < len(text):
        match = _PART.match(text, position)
        if match is None:
            hint = f'add a unit: "{text}s" for seconds' if text.isascii() and text.isdigit() else _FORMAT_HINT
            raise _duration_error(f"{what} {text!r} cannot be read from {text[position:]!r} on", hint=hint)
        count, unit = match.groups()
        if unit not in _MICROSECONDS:
            raise _duration_error(f"{what} {text!r} has the unknown unit {unit!r}", hint=f"use {', '.join(_UNITS)}")
        if _UNITS.index(unit) <= last:
            raise _duration_error(f"{what} {text!r} has {unit!r} out of order", hint="each unit once, largest first")
        last = _UNITS.index(unit)
        total += Decimal(count) * _MICROSECONDS[unit]
        position = match.end()
    return total


def _from_microseconds(count: Decimal, what: str) -> timedelta:
    try:
        return timedelta(microseconds=round(count))
    except OverflowError:
        raise _duration_error(f"{what} is too long") from None


def _require_not_negative(value: timedelta, what: str) -> timedelta:
    if value < timedelta(0):
        shown = format_duration(value)
        raise _duration_error(f"{what} {shown} is negative", hint="give a duration of zero or more")
    return value


def _duration_error(message: str, *, hint: str = _FORMAT_HINT) -> InvalidInput:
    return InvalidInput(message, hint=hint, code="duration_invalid")
