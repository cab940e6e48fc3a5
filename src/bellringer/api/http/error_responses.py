"""Renders errors as problem documents (RFC 9457); unexpected errors are reported without details."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from bellringer.core.payload import scrub
from bellringer.errors import (
    BellringerError,
    Conflict,
    InvalidInput,
    NotFound,
    QuotaExceeded,
    SchemaMismatch,
    Unavailable,
)
from bellringer.store.connection_pool import RETRYABLE_ERRORS
from bellringer.wire.decode import DecodeErrors
from bellringer.wire.problems import Fault, Problem

MEDIA_TYPE: Final = "application/problem+json"
RETRY_AFTER: Final = "2"
_MAX_MESSAGE_LENGTH: Final = 300  # a message may repeat text of the caller
_STATUS: Final[tuple[tuple[type[BellringerError], int], ...]] = (
    (InvalidInput, 422),
    (Conflict, 409),
)
_CODES: Final = {404: "not_found", 405: "method_not_allowed"}


class Refused(BellringerError):
    """A request that is refused because of its form: its body, headers or method."""

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


def render_error(error: Exception, request_id: str) -> Response:
    """Renders an error as a response."""
    problem, headers = _problem(error, request_id)
    return Response(
        msgspec.json.encode(problem), status_code=problem.status, headers=dict(headers), media_type=MEDIA_TYPE
    )


def is_expected(error: Exception) -> bool:
    """Returns whether the caller or an outage caused the error; everything else is a bug."""
    ours = (InvalidInput, NotFound, Conflict, QuotaExceeded, Refused, Unavailable, SchemaMismatch, HTTPException)
    return isinstance(error, (*ours, *RETRYABLE_ERRORS))


def _problem(error: Exception, request_id: str) -> tuple[Problem, Mapping[str, str]]:
    match error:
        case Refused():
            return _problem_of(error, error.status, error.code, request_id), error.headers
        case HTTPException():
            code = _CODES.get(error.status_code, "http")
            return _problem_without_detail(error.status_code, code, _detail(error), request_id), error.headers or {}
        case QuotaExceeded():
            return _render_quota(error, request_id)
        case NotFound():  # without hints: missing ids and ids of other tenants must look the same
            return _problem_without_detail(404, error.code, _shorten(error.message), request_id), {}
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return _problem_of(error, status, _conflict_code(error), request_id), {}
    return _render_server_error(error, request_id)


def _render_server_error(error: Exception, request_id: str) -> tuple[Problem, Mapping[str, str]]:
    """Renders an outage or a bug, without the text of the error, which may name hosts."""
    if is_expected(error):
        detail, hint = "the database did not respond in time", "try again in a moment"
        return _problem_without_detail(503, "unavailable", detail, request_id, hint), {"Retry-After": RETRY_AFTER}
    detail, hint = "an internal error occurred", "the server's log has the cause under this request_id"
    return _problem_without_detail(500, "internal", detail, request_id, hint), {}


def _render_quota(error: QuotaExceeded, request_id: str) -> tuple[Problem, Mapping[str, str]]:
    """Renders an exceeded quota: 429 for a rate, which recovers by itself; 403 for a number of objects."""
    wait = error.retry_after
    problem = _problem_of(error, 429, error.code, request_id)
    headers = {} if wait is None else {"Retry-After": str(int(wait) + 1)}
    return msgspec.structs.replace(problem, retryable=wait is not None), headers


def _conflict_code(error: BellringerError) -> str:
    """Returns the error code; a conflict without a code of its own is `conflict`."""
    return "state_conflict" if error.code == Conflict.code else error.code


def _problem_of(error: BellringerError, status: int, code: str, request_id: str) -> Problem:
    faults = error.faults if isinstance(error, DecodeErrors) else (error,) if error.pointer else ()
    return Problem(
        type=f"urn:bellringer:error:{code}",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=_shorten(error.message),
        code=code,
        hint=_shorten(error.hint),
        request_id=request_id,
        errors=[
            Fault(pointer=_shorten(f.pointer), code=f.code, detail=_shorten(f.message), hint=_shorten(f.hint))
            for f in faults
        ],
    )


def _problem_without_detail(status: int, code: str, detail: str, request_id: str, hint: str = "") -> Problem:
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
    return "this path does not exist" if error.status_code == 404 else str(error.detail)


def _shorten(text: str) -> str:
    text = scrub(text)
    return text if len(text) <= _MAX_MESSAGE_LENGTH else text[:_MAX_MESSAGE_LENGTH] + "…"
