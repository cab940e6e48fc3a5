"""The exceptions of Bellringer. Each message says what happened; each hint says what to do.

BellringerError
├── InvalidInput            a value from the caller is invalid (HTTP 422)
│   ├── InvalidItems        items of a bulk are invalid; has the error of each
│   ├── InvalidSchedule     an invalid cron expression, interval, instant or time zone; has a position
│   └── PayloadTooLarge     arguments, a result or a log above the size limit
├── NotFound                the job, run or task does not exist (HTTP 404)
├── Conflict                the current state, or a name in use, prevents the change (HTTP 409)
├── QuotaExceeded           the tenant has reached a quota (HTTP 429)
├── Unauthenticated         the key or token is missing or invalid (HTTP 401)
├── Forbidden               the caller's role or scopes do not allow it (HTTP 403)
├── RunFailed               raised by `run.result()` if the run did not succeed
├── Cancelled               raised in a handler at a safe point after a cancel request
├── SchemaMismatch          the database has another schema version than this program
├── ConfigError             a setting is missing or invalid
└── Unavailable             the database or server does not respond
    └── NoFreeConnection    the database has no free connection slot
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_MAX_SHOWN_FAULTS: Final = 5  # faults of a bulk that a message repeats


class BellringerError(Exception):
    """Base class. `code` is stable, so programs can compare it; `hint` says what to do."""

    code = "error"

    def __init__(self, message: str, *, hint: str = "", pointer: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.pointer = pointer

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class InvalidInput(BellringerError, ValueError):
    """A value from the caller is invalid; nothing was stored."""

    code = "invalid_input"

    def __init__(self, message: str, *, hint: str = "", pointer: str = "", code: str = "") -> None:
        super().__init__(message, hint=hint, pointer=pointer)
        if code:
            self.code = code


class InvalidSchedule(InvalidInput):
    """A schedule is malformed or never fires; `position` is the offset of the error in the expression."""

    code = "schedule_invalid"

    def __init__(
        self, message: str, *, hint: str = "", pointer: str = "", code: str = "", position: int | None = None
    ) -> None:
        super().__init__(message, hint=hint, pointer=pointer, code=code)
        self.position = position


class InvalidItems(InvalidInput):
    """Items of a bulk are invalid; nothing was stored. `faults` has their errors, each with a pointer such as
    /3/kwargs/x, in the order of the items.
    """

    def __init__(self, errors: Mapping[int, InvalidInput]) -> None:
        self.errors = {index: errors[index] for index in sorted(errors)}
        self.faults = tuple(
            InvalidInput(fault.message, hint=fault.hint, pointer=f"/{index}{fault.pointer}", code=fault.code)
            for index, error in self.errors.items()
            for fault in getattr(error, "faults", (error,))
        )
        shown = "; ".join(f"{fault.pointer}: {fault.message}" for fault in self.faults[:_MAX_SHOWN_FAULTS])
        more = f"; and {len(self.faults) - _MAX_SHOWN_FAULTS} more" if len(self.faults) > _MAX_SHOWN_FAULTS else ""
        first = self.faults[0]
        number = "1 item is" if len(self.errors) == 1 else f"{len(self.errors):,} items are"
        super().__init__(
            f"{number} invalid, so none was stored: {shown}{more}",
            hint=first.hint if len(self.faults) == 1 else "",
            pointer=first.pointer,
            code=first.code,
        )


class PayloadTooLarge(InvalidInput):
    """The arguments exceed the size limit; pass a reference to the data instead."""

    code = "payload_too_large"


class NotFound(BellringerError, LookupError):
    """The object does not exist or belongs to another tenant. Check its id or name, and the tenant of your key."""

    code = "not_found"


class Conflict(BellringerError):
    """The current state, or a name that is already in use, prevents the change. Read the object again, then decide.
    Responses without a code of their own have `state_conflict`.
    """

    code = "conflict"

    def __init__(self, message: str, *, hint: str = "", pointer: str = "", code: str = "") -> None:
        super().__init__(message, hint=hint, pointer=pointer)
        if code:
            self.code = code


class QuotaExceeded(BellringerError):
    """The tenant has reached a quota. `retry_after` is a number of seconds, or None if waiting does not help."""

    code = "quota_exceeded"

    def __init__(self, message: str, *, hint: str = "", pointer: str = "", retry_after: float | None = None) -> None:
        super().__init__(message, hint=hint, pointer=pointer)
        self.retry_after = retry_after


class Unauthenticated(BellringerError):
    """The request has no valid credentials. Set BELLRINGER_API_KEY, or send `Authorization: Bearer …`."""

    code = "unauthenticated"


class Forbidden(BellringerError):
    """The caller's role or scopes do not permit the request. Use a key with that role, or ask an administrator."""

    code = "forbidden"


class RunFailed(BellringerError):
    """The run whose result was requested did not succeed. `state` and `error` say how it ended; `bellringer why` and
    `bellringer logs` say more.
    """

    code = "run_failed"

    def __init__(self, message: str, *, state: str, error: dict[str, object] | None = None) -> None:
        super().__init__(message)
        self.state = state
        self.error = error or {}


class Cancelled(BellringerError):
    """The run is being cancelled. Handlers must not catch this exception."""

    code = "cancelled"


class SchemaMismatch(BellringerError):
    """The database has another schema version than this program needs. Run `bellringer migrate`."""

    code = "schema_mismatch"


class ConfigError(BellringerError):
    """A setting is missing or invalid. `bellringer settings` shows the settings and where each comes from."""

    code = "config"


class Unavailable(BellringerError):
    """The database or the server does not respond. Try again; `bellringer doctor` looks for the cause."""

    code = "unavailable"


class NoFreeConnection(Unavailable):
    """The database responds but has no free connection slot."""
