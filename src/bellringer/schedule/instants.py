"""Instants: aware datetimes in UTC, as seconds since 1970 and as RFC 3339 text."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from bellringer.errors import InvalidSchedule

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# One year before the maximum datetime, so that adding a UTC offset or searching ahead cannot overflow.
END: Final = datetime(9999, 1, 1, tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)
_RFC3339: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?"
    r"(?P<offset>[Zz]|[+-][0-9]{2}:[0-9]{2})?"
)
_FORMAT_HINT: Final = 'write it like "2026-12-01T09:00:00Z" or "2026-12-01T10:00:00+01:00"'


def floor_seconds(instant: datetime) -> int:
    """Whole seconds since 1970, rounded down."""
    return (instant - EPOCH) // _SECOND


def ceil_seconds(instant: datetime) -> int:
    """Whole seconds since 1970, rounded up."""
    return -((EPOCH - instant) // _SECOND)


def from_seconds(seconds: int) -> datetime:
    return EPOCH + timedelta(seconds=seconds)


def read_instant(value: datetime | str, *, what: str, pointer: str = "", hint: str = _FORMAT_HINT) -> datetime:
    """Convert an aware datetime, or RFC 3339 text with an offset, to an instant in UTC. Raises InvalidSchedule.

    `hint` says how to write the value, for a caller that accepts other forms as well.
    """
    try:
        return _parse(value, what, hint)
    except InvalidSchedule as error:
        error.pointer = pointer
        raise


def write_instant(instant: datetime) -> str:
    """Format as RFC 3339 in UTC. Microseconds are omitted if they are zero."""
    return instant.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def _parse(value: datetime | str, what: str, hint: str) -> datetime:
    moment = value if isinstance(value, datetime) else _parse_text(value, what, hint)
    if moment.utcoffset() is None:
        message = f"{what} {_truncate(value)} has no UTC offset"
        raise InvalidSchedule(message, code="offset_required", hint="add Z, or an offset such as +01:00")
    try:
        instant = moment.astimezone(UTC)
    except OverflowError:
        instant = None
    if instant is None or not EPOCH <= instant < END:
        raise _error(
            f"{what} {_truncate(value)} is outside the years 1970 to 9998", hint="give a date within these years"
        )
    return instant


def _parse_text(value: object, what: str, hint: str) -> datetime:
    if not isinstance(value, str):
        raise _error(f"{what} must be a string or a datetime, not {type(value).__name__}", hint=hint)
    if not _RFC3339.fullmatch(value):
        raise _error(f"{what} {_truncate(value)} is not an RFC 3339 date and time", hint=hint)
    try:
        return datetime.fromisoformat(value.upper())
    except ValueError as error:
        raise _error(
            f"{what} {_truncate(value)} does not exist: {error}", hint="check the day of the month and the time"
        ) from None


def _truncate(value: object) -> str:
    text = value if isinstance(value, str) else str(value)
    return repr(text if len(text) <= 40 else text[:40] + "…")


def _error(message: str, *, hint: str) -> InvalidSchedule:
    return InvalidSchedule(message, code="datetime_invalid", hint=hint)
