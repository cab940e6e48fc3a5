"""The HTTP target of a job: parsed and validated when the job is stored, parsed again when it is called."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import quote

from bellringer.durations import format_duration, parse_duration
from bellringer.egress.addresses import Network
from bellringer.egress.http_call import MAX_CALL_TIMEOUT, HttpRequest, HttpResponse
from bellringer.egress.target_secrets import hide_body_secrets, hide_credentials, mask_url
from bellringer.egress.urls import Url, parse_url
from bellringer.egress.webhook_signatures import signed_headers
from bellringer.errors import InvalidInput

MAX_REQUEST_BODY_BYTES: Final = 64 * 1024
MAX_EXPECTED_STATUSES: Final = 50
MAX_RETRY_AFTER: Final = timedelta(hours=1)
METHODS: Final = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
TARGET_FIELDS: Final = ("url", "method", "headers", "body", "timeout", "expect", "sign", "secret")
MIN_TARGET_TIMEOUT: Final = timedelta(milliseconds=100)
_RESPONSE_HEADERS_KEPT: Final = (
    "content-type",
    "content-length",
    "date",
    "etag",
    "location",
    "retry-after",
    "x-request-id",
)
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff]")
MAX_HEADERS: Final = 50
MAX_HEADER_VALUE_LENGTH: Final = 4096
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_HEADER_VALUE: Final = re.compile(r"(?:[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?)?")
RUN_HEADERS: Final = ("bellringer-scheduled-for", "bellringer-job", "bellringer-attempt")
_RESERVED_HEADERS: Final = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade", "expect"}
    | {"proxy-authorization", "proxy-connection", "accept-encoding", "idempotency-key", "forwarded", *RUN_HEADERS}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallingRun:
    """The run on whose behalf a request is sent."""

    run_id: str
    scheduled_for: datetime
    attempt: int
    job: str | None = None  # the job's name; None for a sent run
    trace_headers: Mapping[str, str] = field(default_factory=dict)  # those of the target have priority

    def headers(self) -> dict[str, str]:
        """Returns headers that tell the receiver which occurrence this is. Job names are percent-encoded as UTF-8."""
        written = {
            "bellringer-scheduled-for": self.scheduled_for.astimezone(UTC).isoformat().replace("+00:00", "Z"),
            "bellringer-attempt": str(self.attempt),
        }
        return written if self.job is None else {**written, "bellringer-job": quote(self.job)}


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpTarget:
    """The request of an HTTP job, and the expected statuses. An empty `expect` means 200 to 299."""

    url: Url
    method: str = "POST"
    headers: Mapping[str, str]
    body: bytes = b""
    timeout: timedelta = MAX_CALL_TIMEOUT
    expect: tuple[int, ...] = ()
    sign: bool = False

    def is_expected(self, status: int) -> bool:
        return status in self.expect if self.expect else 200 <= status < 300

    def request(self, caller: CallingRun, at: datetime, secrets: Sequence[str]) -> HttpRequest:
        """Returns the request for a run. The run id is the idempotency key, so a receiver can detect repeated calls."""
        run_id = caller.run_id
        headers = {**caller.trace_headers, **self.headers, "idempotency-key": run_id, **caller.headers()}
        headers |= signed_headers(secrets if self.sign else (), run_id, at, self.body)
        return HttpRequest(url=self.url, method=self.method, headers=headers, body=self.body, timeout=self.timeout)


def parse_target(document: object, allowed: Sequence[Network] = (), *, pointer: str = "/http") -> HttpTarget:
    """Parses and validates a target. Whether its secret exists is checked elsewhere. Raises InvalidInput."""
    if not isinstance(document, Mapping):
        raise InvalidInput("http must be an object with a url", pointer=pointer, code="type")
    for name in document:
        if name not in TARGET_FIELDS:
            hint = f"use {', '.join(TARGET_FIELDS)}"
            place = f"{pointer}/{str(name)[:40]}"
            raise InvalidInput(
                f"unknown field {str(name)[:40]!r} in http", hint=hint, pointer=place, code="unknown_field"
            )
    if "url" not in document:
        raise InvalidInput("http needs a url", pointer=f"{pointer}/url", code="missing_field")
    body, kind = _encode_body(document.get("body"), f"{pointer}/body")
    headers = check_headers(document.get("headers") or {}, pointer=f"{pointer}/headers")
    if kind and "content-type" not in headers:
        headers["content-type"] = kind
    method = _parse_method(document.get("method", "POST"), f"{pointer}/method")
    if body and method in ("GET", "HEAD"):
        raise InvalidInput(
            f"a {method} request cannot have a body", pointer=f"{pointer}/body", code="conflicting_fields"
        )
    return HttpTarget(
        url=parse_url(document["url"], allowed, pointer=f"{pointer}/url"),
        method=method,
        headers=headers,
        body=body,
        timeout=_parse_timeout(document.get("timeout"), f"{pointer}/timeout"),
        expect=_parse_expect(document.get("expect"), f"{pointer}/expect"),
        sign=_parse_sign(document, pointer),
    )


def encode_target(document: Mapping[str, Any], target: HttpTarget, secret_id: str | None) -> dict[str, Any]:
    """Returns the stored form of a target: an encrypted document, with the id of the secret in place of the secret."""
    stored: dict[str, Any] = {"url": document["url"], "method": target.method, "sign": target.sign}
    if "sealed_url" in document:
        stored["sealed_url"] = document["sealed_url"]
    if given := document.get("headers"):
        stored["headers"] = {name.lower(): value for name, value in given.items()}
    if document.get("body") is not None:
        stored["body"] = document["body"]
    if document.get("timeout") is not None:
        stored["timeout"] = format_duration(target.timeout)
    if target.expect:
        stored["expect"] = list(target.expect)
    if secret_id is not None:
        stored["secret"] = {"id": secret_id}
    return stored


def hide_target_secrets(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a stored target for a response: of a secret or credential it only shows that there is one."""
    shown = {name: value for name, value in stored.items() if name != "sealed_url"}
    if isinstance(url := stored.get("url"), str):
        shown["url"] = mask_url(url, "", whole=False)
    if isinstance(stored.get("body"), Mapping | list):
        shown["body"] = hide_body_secrets(stored["body"])
    if isinstance(secret := stored.get("secret"), Mapping):
        shown["secret"] = {"id": secret["id"], "set": True}
    if isinstance(headers := stored.get("headers"), Mapping):
        shown["headers"] = hide_credentials(headers)
    return shown


def response_result(answer: HttpResponse) -> dict[str, Any]:
    """Returns the part of a response that is stored as the result: text as text, anything else as base64."""
    result: dict[str, Any] = {
        "status": answer.status,
        "headers": {name: answer.headers[name][:1000] for name in _RESPONSE_HEADERS_KEPT if name in answer.headers},
        "ms": round(answer.seconds * 1000, 1),
    }
    try:
        text: str | None = answer.body.decode("utf-8")
    except UnicodeDecodeError:
        text = None
    if text is not None and not _CONTROL.search(text):  # a control character takes six bytes in JSON
        result["body"] = text
    else:
        result |= {"body": base64.b64encode(answer.body).decode(), "encoding": "base64"}
    return {**result, "cut": True} if answer.cut else result


def parse_retry_after(answer: HttpResponse, now: datetime) -> timedelta | None:
    """Returns the delay that the receiver asks for with Retry-After (seconds or a date), at most an hour."""
    written = answer.headers.get("retry-after", "").strip()
    if answer.status not in (429, 503) or not written:
        return None
    if written.isascii() and written.isdigit():
        return min(timedelta(seconds=int(written[:9])), MAX_RETRY_AFTER)
    try:
        until = parsedate_to_datetime(written)
    except (TypeError, ValueError):
        return None
    if until.tzinfo is None:
        return None
    return min(max(until - now, timedelta(0)), MAX_RETRY_AFTER)


def _encode_body(body: Any, pointer: str) -> tuple[bytes, str | None]:
    if body is None:
        return b"", None
    if isinstance(body, str):
        data, kind = body.encode("utf-8", "surrogatepass"), "text/plain; charset=utf-8"
    else:
        data = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
        kind = "application/json"
    if len(data) > MAX_REQUEST_BODY_BYTES:
        message = f"the body has {len(data)} bytes; the maximum is {MAX_REQUEST_BODY_BYTES}"
        hint = "send a reference to the data instead"
        raise InvalidInput(message, hint=hint, pointer=pointer, code="payload_too_large")
    return data, kind


def _parse_method(method: object, pointer: str) -> str:
    if not isinstance(method, str) or method.upper() not in METHODS:
        raise InvalidInput("unknown method", hint=f"use {', '.join(METHODS)}", pointer=pointer, code="choice")
    return method.upper()


def _parse_timeout(value: Any, pointer: str) -> timedelta:
    if value is None:
        return MAX_CALL_TIMEOUT
    try:
        length = parse_duration(value, what="timeout")
    except InvalidInput as error:
        error.pointer = pointer
        raise
    if not MIN_TARGET_TIMEOUT <= length <= MAX_CALL_TIMEOUT:
        hint = f"use {format_duration(MIN_TARGET_TIMEOUT)} to {format_duration(MAX_CALL_TIMEOUT)}"
        raise InvalidInput("the timeout is out of range", hint=hint, pointer=pointer, code="limit")
    return length


def _parse_expect(value: Any, pointer: str) -> tuple[int, ...]:
    if value is None:
        return ()
    whole = isinstance(value, list) and 0 < len(value) <= MAX_EXPECTED_STATUSES
    if not whole or not all(type(status) is int and 200 <= status <= 599 for status in value):
        hint = "use a list of statuses from 200 to 599; without it, 200 to 299 count as success"
        raise InvalidInput("expect must be a list of HTTP statuses", hint=hint, pointer=pointer, code="limit")
    if any(300 <= status <= 399 for status in value):
        hint = "redirects are not followed and count as failures"
        raise InvalidInput("expect contains a redirect status", hint=hint, pointer=pointer, code="limit")
    return tuple(sorted(set(value)))


def _parse_sign(document: Mapping[str, Any], pointer: str) -> bool:
    has_secret = document.get("secret") is not None
    sign = document.get("sign", has_secret)
    if not isinstance(sign, bool):
        raise InvalidInput("sign must be true or false", pointer=f"{pointer}/sign", code="type")
    if sign and not has_secret:
        hint = "add a secret (whsec_…); it is stored encrypted and never shown"
        raise InvalidInput("sign requires a secret", hint=hint, pointer=f"{pointer}/secret", code="missing_field")
    return sign


def check_headers(headers: object, *, pointer: str = "/headers") -> dict[str, str]:
    """Validates the headers and returns them with lower-case names. Raises InvalidInput."""
    if not isinstance(headers, Mapping):
        raise InvalidInput("headers must be an object of names and values", pointer=pointer, code="type")
    if len(headers) > MAX_HEADERS:
        raise _header_error(f"the request has {len(headers)} headers; the maximum is {MAX_HEADERS}", pointer)
    checked: dict[str, str] = {}
    for name, value in headers.items():
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise _header_error(f"{name!r:.60} is not a valid header name", pointer)
        low, place = name.lower(), f"{pointer}/{name}"
        if low in _RESERVED_HEADERS or low.startswith(("webhook-", "x-forwarded-")):
            raise InvalidInput(
                f"the header {name} is set by Bellringer",
                hint="remove it",
                pointer=place,
                code="header_forbidden",
            )
        if low in checked:
            raise _header_error(f"the header {name} occurs twice", place)
        if not isinstance(value, str) or len(value) > MAX_HEADER_VALUE_LENGTH or not _HEADER_VALUE.fullmatch(value):
            raise _header_error(f"the header {name} has an invalid value", place)
        checked[low] = value
    return checked


def _header_error(problem: str, pointer: str) -> InvalidInput:
    hint = f"use visible ASCII in one line, at most {MAX_HEADER_VALUE_LENGTH} characters per value"
    return InvalidInput(problem, hint=hint, pointer=pointer, code="header_invalid")
