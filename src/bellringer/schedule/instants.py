"""Instants: aware datetimes in UTC, as seconds since 1970, and as RFC 3339 text."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from bellringer.errors import InvalidSchedule

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# A year of slack at the end, so that no zone's offset and no search leaves what a datetime can hold.
END: Final = datetime(9999, 1, 1, tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)
_RFC3339: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?"
    r"(?P<offset>[Zz]|[+-][0-9]{2}:[0-9]{2})?"
)
_HOW: Final = 'write it like "2026-12-01T09:00:00Z" or "2026-12-01T10:00:00+01:00"'


def seconds_until(instant: datetime) -> int:
    """Whole seconds since 1970, rounded down."""
    return (instant - EPOCH) // _SECOND


def seconds_up_to(instant: datetime) -> int:
    """Whole seconds since 1970, rounded up."""
    return -((EPOCH - instant) // _SECOND)


def from_seconds(seconds: int) -> datetime:
    return EPOCH + timedelta(seconds=seconds)


def read_instant(value: datetime | str, *, what: str, pointer: str = "") -> datetime:
    """Take an aware datetime, or RFC 3339 text with its offset, as an instant in UTC."""
    try:
        return _read(value, what)
    except InvalidSchedule as error:
        error.pointer = pointer
        raise


def write_instant(instant: datetime) -> str:
    """RFC 3339 in UTC; with microseconds only where there are some."""
    return instant.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def _read(value: datetime | str, what: str) -> datetime:
    moment = value if isinstance(value, datetime) else _read_text(value, what)
    if moment.utcoffset() is None:
        message = f"{what} {_shown(value)} has no offset from UTC, so it names no instant"
        raise InvalidSchedule(message, code="offset_required", hint="add Z or an offset such as +01:00")
    try:
        instant = moment.astimezone(UTC)
    except OverflowError:
        instant = None
    if instant is None or not EPOCH <= instant < END:
        raise _refusal(f"{what} {_shown(value)} is outside the years 1970–9998", hint="give a nearer time")
    return instant


def _read_text(value: object, what: str) -> datetime:
    if not isinstance(value, str):
        raise _refusal(f"{what} cannot be read from {type(value).__name__}")
    if not _RFC3339.fullmatch(value):
        raise _refusal(f"{what} {_shown(value)} is not a date and time of RFC 3339")
    try:
        return datetime.fromisoformat(value.upper())
    except ValueError as error:
        raise _refusal(f"{what} {_shown(value)} does not exist: {error}", hint="check the calendar") from None


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else str(value)
    return repr(text if len(text) <= 40 else text[:40] + "…")


def _refusal(message: str, *, hint: str = _HOW) -> InvalidSchedule:
    return InvalidSchedule(message, code="datetime_invalid", hint=hint)
