"""Problem documents (RFC 9457): how an error travels."""

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
    """One thing that is wrong, and where (a JSON pointer, RFC 6901)."""

    pointer: str = ""
    code: str = ""
    detail: str = ""
    hint: str = ""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """`code` is stable and safe to branch on; `hint` says what to do."""

    type: str = "about:blank"
    title: str = ""
    status: int
    detail: str = ""
    code: str = ""
    hint: str = ""
    request_id: str = ""
    errors: list[Fault] = []
    retryable: bool | msgspec.UnsetType = msgspec.UNSET  # of a quota: whether waiting helps


def to_error(problem: Problem) -> BellringerError:
    """What a problem document means, as the error that it was on the server."""
    kind = _KINDS.get(problem.status, BellringerError)
    if kind is InvalidInput and problem.code.startswith(_SCHEDULES):
        kind = InvalidSchedule
    elif problem.code == PayloadTooLarge.code:
        kind = PayloadTooLarge
    elif problem.code == QuotaExceeded.code:
        kind = QuotaExceeded
    hint = problem.hint
    if kind is BellringerError and problem.request_id:
        hint = hint or f"the server's log tells more under request_id {problem.request_id}"
    pointer = problem.errors[0].pointer if problem.errors else ""
    error = kind(problem.detail or problem.title, hint=hint, pointer=pointer)
    error.code = problem.code or error.code
    return error
