"""Problem documents (RFC 9457), which carry errors from the server to the client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from bellringer.errors import (
    BellringerError,
    Conflict,
    Forbidden,
    InvalidInput,
    InvalidSchedule,
    NotFound,
    PayloadTooLarge,
    QuotaExceeded,
    Unauthenticated,
    Unavailable,
)
from bellringer.wire.decode import DecodeErrors

_SCHEDULES: Final = ("cron_", "schedule_", "timezone_", "datetime_", "run_at_", "offset_")
_KINDS: Final[Mapping[int, type[BellringerError]]] = {
    400: InvalidInput,
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    408: Unavailable,
    409: Conflict,
    410: Conflict,
    412: Conflict,
    413: PayloadTooLarge,
    415: InvalidInput,
    422: InvalidInput,
    429: Unavailable,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One error, and its position as a JSON pointer (RFC 6901)."""

    pointer: str = ""
    code: str = ""
    detail: str = ""
    hint: str = ""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """An error response. `code` is stable and safe to branch on; `hint` says what to do."""

    type: str = "about:blank"
    title: str = ""
    status: int
    detail: str = ""
    code: str = ""
    hint: str = ""
    request_id: str = ""
    errors: list[Fault] = []
    retryable: bool | msgspec.UnsetType = msgspec.UNSET  # for exceeded quotas: whether waiting helps


def to_error(problem: Problem) -> BellringerError:
    """Convert a problem document to the exception that it stands for."""
    kind = _KINDS.get(problem.status, BellringerError)
    if kind is InvalidInput and problem.code.startswith(_SCHEDULES):
        kind = InvalidSchedule
    elif problem.code == PayloadTooLarge.code:
        kind = PayloadTooLarge
    elif problem.code == QuotaExceeded.code:
        kind = QuotaExceeded
    hint = problem.hint
    if kind is BellringerError and problem.request_id:
        hint = hint or f"see the log of the server for request_id {problem.request_id}"
    if kind is InvalidInput and len(problem.errors) > 1:
        return DecodeErrors(
            [InvalidInput(f.detail, hint=f.hint, pointer=f.pointer, code=f.code) for f in problem.errors]
        )
    pointer = problem.errors[0].pointer if problem.errors else ""
    error = kind(problem.detail or problem.title, hint=hint, pointer=pointer)
    error.code = problem.code or error.code
    return error
