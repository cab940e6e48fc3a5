"""Errors as problem documents (RFC 9457); what was not expected is told without any detail."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from bellringer.errors import (
    BellringerError,
    Conflict,
    InvalidInput,
    NotFound,
    QuotaExceeded,
    SchemaMismatch,
    Unavailable,
)
from bellringer.payload import scrub
from bellringer.store.pool import RETRYABLE
from bellringer.wire import Fault, Faults, Problem

MEDIA_TYPE: Final = "application/problem+json"
RETRY_AFTER: Final = "2"
_LONGEST: Final = 300  # characters of a message: it may repeat what the caller sent
_STATUS: Final[tuple[tuple[type[BellringerError], int], ...]] = (
    (InvalidInput, 422),
    (Conflict, 409),
)
_CODES: Final = {404: "not_found", 405: "method_not_allowed"}


class Refused(BellringerError):
    """A request that is refused for its form: its body, its headers or its method."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        hint: str = "",
        pointer: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, hint=hint, pointer=pointer)
        self.status = status
        self.code = code
        self.headers = headers or {}


def answer(error: Exception, request_id: str) -> Response:
    """The response that tells of an error."""
    problem, headers = _problem(error, request_id)
    return Response(
        msgspec.json.encode(problem), status_code=problem.status, headers=dict(headers), media_type=MEDIA_TYPE
    )


def is_expected(error: Exception) -> bool:
    """Whether the caller, or an outage, is the reason; anything else is a mistake of ours."""
    ours = (InvalidInput, NotFound, Conflict, QuotaExceeded, Refused, Unavailable, SchemaMismatch, HTTPException)
    return isinstance(error, (*ours, *RETRYABLE))


def _problem(error: Exception, request_id: str) -> tuple[Problem, Mapping[str, str]]:
    match error:
        case Refused():
            return _told(error, error.status, error.code, request_id), error.headers
        case HTTPException():
            code = _CODES.get(error.status_code, "http")
            return _bare(error.status_code, code, _detail(error), request_id), error.headers or {}
        case QuotaExceeded():
            return _quota(error, request_id)
        case NotFound():  # without hints, which differ: missing and foreign ids look the same
            return _bare(404, error.code, _short(error.message), request_id), {}
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return _told(error, status, _code(error), request_id), {}
    return _ours(error, request_id)


def _ours(error: Exception, request_id: str) -> tuple[Problem, Mapping[str, str]]:
    """An outage or a mistake of ours; without the error's own words, which name hosts."""
    if is_expected(error):
        detail, hint = "the database does not answer in time", "try again in a moment"
        return _bare(503, "unavailable", detail, request_id, hint), {"Retry-After": RETRY_AFTER}
    return _bare(500, "internal", "something went wrong on the server's side", request_id), {}


def _quota(error: QuotaExceeded, request_id: str) -> tuple[Problem, Mapping[str, str]]:
    """A rate lets more come after a while; of what is there, something has to go first."""
    wait = error.retry_after
    problem = _told(error, 429, error.code, request_id)
    headers = {} if wait is None else {"Retry-After": str(int(wait) + 1)}
    return msgspec.structs.replace(problem, retryable=wait is not None), headers


def _code(error: BellringerError) -> str:
    """A conflict that says no more is one with the present state."""
    return "state_conflict" if error.code == Conflict.code else error.code


def _told(error: BellringerError, status: int, code: str, request_id: str) -> Problem:
    faults = error.faults if isinstance(error, Faults) else (error,) if error.pointer else ()
    return Problem(
        type=f"urn:bellringer:error:{code}",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=_short(error.message),
        code=code,
        hint=_short(error.hint),
        request_id=request_id,
        errors=[
            Fault(pointer=_short(f.pointer), code=f.code, detail=_short(f.message), hint=_short(f.hint)) for f in faults
        ],
    )


def _bare(status: int, code: str, detail: str, request_id: str, hint: str = "") -> Problem:
    return Problem(
        type=f"urn:bellringer:error:{code}",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        code=code,
        hint=hint,
        request_id=request_id,
    )


def _detail(error: HTTPException) -> str:
    return "there is nothing at this path" if error.status_code == 404 else str(error.detail)


def _short(text: str) -> str:
    text = scrub(text)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
