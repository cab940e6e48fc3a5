"""Every error that Bellringer raises on purpose; each says what happened and what to do.

BellringerError
├── InvalidInput            something that the caller gave cannot be accepted (HTTP 422)
│   ├── InvalidSchedule     a cron, interval, instant or zone; knows the position
│   └── PayloadTooLarge     arguments, result or log beyond the limit
├── NotFound                no such job, run or task (HTTP 404)
├── Conflict                the state or name does not allow it (HTTP 409)
├── QuotaExceeded           the tenant has all that it may have (HTTP 429)
├── Unauthenticated         no key, or not a good one (HTTP 401)
├── Forbidden               the caller's role or scopes do not allow it (HTTP 403)
├── RunFailed               `run.result()` of a run that ended otherwise than succeeded
├── Cancelled               raised inside a handler at a safe point, after a cancel was asked for
├── SchemaMismatch          the database is not at this program's schema version
├── ConfigError             a setting that cannot be used
└── Unavailable             the database or server does not answer
"""

from __future__ import annotations


class BellringerError(Exception):
    """The root: `code` is stable and safe to branch on, `hint` says what to do."""

    code = "error"

    def __init__(self, message: str, *, hint: str = "", pointer: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.pointer = pointer

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class InvalidInput(BellringerError, ValueError):
    """Something that the caller gave cannot be accepted; nothing was stored."""

    code = "invalid_input"

    def __init__(self, message: str, *, hint: str = "", pointer: str = "", code: str = "") -> None:
        super().__init__(message, hint=hint, pointer=pointer)
        if code:
            self.code = code


class InvalidSchedule(InvalidInput):
    """A schedule that cannot be read or never fires; `position` is where in the expression."""

    code = "schedule_invalid"

    def __init__(
        self, message: str, *, hint: str = "", pointer: str = "", code: str = "", position: int | None = None
    ) -> None:
        super().__init__(message, hint=hint, pointer=pointer, code=code)
        self.position = position


class PayloadTooLarge(InvalidInput):
    """Arguments beyond the size limit; pass a reference to the data instead."""

    code = "payload_too_large"


class NotFound(BellringerError, LookupError):
    """There is no such thing, or it belongs to another tenant."""

    code = "not_found"


class Conflict(BellringerError):
    """The present state, or a name already taken, does not allow it."""

    code = "conflict"

    def __init__(self, message: str, *, hint: str = "", pointer: str = "", code: str = "") -> None:
        super().__init__(message, hint=hint, pointer=pointer)
        if code:
            self.code = code


class QuotaExceeded(BellringerError):
    """The tenant has all that it may have; `retry_after`: in so many seconds more may come, where waiting helps."""

    code = "quota_exceeded"

    def __init__(self, message: str, *, hint: str = "", pointer: str = "", retry_after: float | None = None) -> None:
        super().__init__(message, hint=hint, pointer=pointer)
        self.retry_after = retry_after


class Unauthenticated(BellringerError):
    """The server does not know who asks."""

    code = "unauthenticated"


class Forbidden(BellringerError):
    """The server knows who asks, and they may not."""

    code = "forbidden"


class RunFailed(BellringerError):
    """A run whose result was asked for ended as something other than succeeded."""

    code = "run_failed"

    def __init__(self, message: str, *, state: str, error: dict[str, object] | None = None) -> None:
        super().__init__(message)
        self.state = state
        self.error = error or {}


class Cancelled(BellringerError):
    """The run was asked to cancel; let it pass through the handler."""

    code = "cancelled"


class SchemaMismatch(BellringerError):
    """The database's schema is not the one that this program was written for."""

    code = "schema_mismatch"


class ConfigError(BellringerError):
    """A setting that cannot be used."""

    code = "config"


class Unavailable(BellringerError):
    """The database or the server does not answer."""

    code = "unavailable"
