"""What an HTTP job calls: read and refused when it is stored, read again when it is called."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final

from bellringer.durations import format_duration, parse_duration
from bellringer.egress.addresses import Network
from bellringer.egress.call import LONGEST, Answer, Request
from bellringer.egress.headers import check_headers, shown_headers
from bellringer.egress.signing import signed_headers
from bellringer.egress.urls import Url, parse_url
from bellringer.errors import InvalidInput

MOST_BODY: Final = 64 * 1024
MOST_EXPECTED: Final = 50
MOST_WAIT: Final = timedelta(hours=1)
METHODS: Final = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
FIELDS: Final = ("url", "method", "headers", "body", "timeout", "expect", "sign", "secret")
SHORTEST: Final = timedelta(milliseconds=100)
_KEPT: Final = ("content-type", "content-length", "date", "etag", "location", "retry-after", "x-request-id")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What to call, and which answers are good; no `expect` means all of 200 to 299."""

    url: Url
    method: str = "POST"
    headers: Mapping[str, str]
    body: bytes = b""
    timeout: timedelta = LONGEST
    expect: tuple[int, ...] = ()
    sign: bool = False

    def is_expected(self, status: int) -> bool:
        return status in self.expect if self.expect else 200 <= status < 300

    def request(self, run_id: str, at: datetime, secrets: Sequence[str]) -> Request:
        """One call for a run. Its id says, to a receiver that remembers, that it has seen this before."""
        headers = {**self.headers, "idempotency-key": run_id}
        headers |= signed_headers(secrets if self.sign else (), run_id, at, self.body)
        return Request(url=self.url, method=self.method, headers=headers, body=self.body, timeout=self.timeout)


def read_target(document: object, allowed: Sequence[Network] = (), *, pointer: str = "/http") -> Target:
    """Read a target, or say what is wrong with it; whether its secret exists is for others to say."""
    if not isinstance(document, Mapping):
        raise InvalidInput("http must be an object with a url", pointer=pointer, code="type")
    for name in document:
        if name not in FIELDS:
            hint = f"its fields are {', '.join(FIELDS)}"
            place = f"{pointer}/{str(name)[:40]}"
            raise InvalidInput(f"http has no field {str(name)[:40]!r}", hint=hint, pointer=place, code="unknown_field")
    if "url" not in document:
        raise InvalidInput("http needs a url", pointer=f"{pointer}/url", code="missing_field")
    body, kind = _body(document.get("body"), f"{pointer}/body")
    headers = check_headers(document.get("headers") or {}, pointer=f"{pointer}/headers")
    if kind and "content-type" not in headers:
        headers["content-type"] = kind
    method = _method(document.get("method", "POST"), f"{pointer}/method")
    if body and method in ("GET", "HEAD"):
        raise InvalidInput(f"{method} has no body", pointer=f"{pointer}/body", code="conflicting_fields")
    return Target(
        url=parse_url(document["url"], allowed, pointer=f"{pointer}/url"),
        method=method,
        headers=headers,
        body=body,
        timeout=_timeout(document.get("timeout"), f"{pointer}/timeout"),
        expect=_expect(document.get("expect"), f"{pointer}/expect"),
        sign=_sign(document, pointer),
    )


def plain_target(document: Mapping[str, Any], target: Target, secret_id: str | None) -> dict[str, Any]:
    """A target as it is stored: in one form, with a secret's id in place of the secret."""
    stored: dict[str, Any] = {"url": str(target.url), "method": target.method, "sign": target.sign}
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


def shown_target(stored: Mapping[str, Any]) -> dict[str, Any]:
    """A stored target as it is answered: of a secret, or a credential, only that there is one."""
    shown = dict(stored)
    if isinstance(secret := stored.get("secret"), Mapping):
        shown["secret"] = {"id": secret["id"], "set": True}
    if isinstance(headers := stored.get("headers"), Mapping):
        shown["headers"] = shown_headers(headers)
    return shown


def result_of(answer: Answer) -> dict[str, Any]:
    """What is kept of an answer: text as text, anything else in base64."""
    result: dict[str, Any] = {
        "status": answer.status,
        "headers": {name: answer.headers[name][:1000] for name in _KEPT if name in answer.headers},
        "ms": round(answer.seconds * 1000, 1),
    }
    try:
        text: str | None = answer.body.decode("utf-8")
    except UnicodeDecodeError:
        text = None
    if text is not None and not _CONTROL.search(text):  # control characters grow sixfold in JSON
        result["body"] = text
    else:
        result |= {"body": base64.b64encode(answer.body).decode(), "encoding": "base64"}
    return {**result, "cut": True} if answer.cut else result


def retry_after(answer: Answer, now: datetime) -> timedelta | None:
    """How long the receiver asks to be left alone: in seconds or until a date, at most an hour."""
    written = answer.headers.get("retry-after", "").strip()
    if answer.status not in (429, 503) or not written:
        return None
    if written.isascii() and written.isdigit():
        return min(timedelta(seconds=int(written[:9])), MOST_WAIT)
    try:
        until = parsedate_to_datetime(written)
    except (TypeError, ValueError):
        return None
    if until.tzinfo is None:
        return None
    return min(max(until - now, timedelta(0)), MOST_WAIT)


def _body(body: Any, pointer: str) -> tuple[bytes, str | None]:
    if body is None:
        return b"", None
    if isinstance(body, str):
        data, kind = body.encode("utf-8", "surrogatepass"), "text/plain; charset=utf-8"
    else:
        data = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
        kind = "application/json"
    if len(data) > MOST_BODY:
        message = f"the body has {len(data)} bytes, more than {MOST_BODY}"
        hint = "send a reference to the data instead"
        raise InvalidInput(message, hint=hint, pointer=pointer, code="payload_too_large")
    return data, kind


def _method(method: object, pointer: str) -> str:
    if not isinstance(method, str) or method.upper() not in METHODS:
        raise InvalidInput("the method is not known", hint=f"use {', '.join(METHODS)}", pointer=pointer, code="choice")
    return method.upper()


def _timeout(value: Any, pointer: str) -> timedelta:
    if value is None:
        return LONGEST
    try:
        length = parse_duration(value, what="timeout")
    except InvalidInput as error:
        error.pointer = pointer
        raise
    if not SHORTEST <= length <= LONGEST:
        hint = f"from {format_duration(SHORTEST)} to {format_duration(LONGEST)}"
        raise InvalidInput("the timeout is out of range", hint=hint, pointer=pointer, code="limit")
    return length


def _expect(value: Any, pointer: str) -> tuple[int, ...]:
    if value is None:
        return ()
    whole = isinstance(value, list) and 0 < len(value) <= MOST_EXPECTED
    if not whole or not all(type(status) is int and 200 <= status <= 599 for status in value):
        hint = "a list of statuses from 200 to 599; without it all of 200 to 299 are good"
        raise InvalidInput("expect cannot be read", hint=hint, pointer=pointer, code="limit")
    if any(300 <= status <= 399 for status in value):
        hint = "redirects are never followed, and never good"
        raise InvalidInput("expect names a redirect", hint=hint, pointer=pointer, code="limit")
    return tuple(sorted(set(value)))


def _sign(document: Mapping[str, Any], pointer: str) -> bool:
    has_secret = document.get("secret") is not None
    sign = document.get("sign", has_secret)
    if not isinstance(sign, bool):
        raise InvalidInput("sign must be true or false", pointer=f"{pointer}/sign", code="type")
    if sign and not has_secret:
        hint = "give a secret, whsec_… ; it is kept sealed and never shown"
        raise InvalidInput("to sign needs a secret", hint=hint, pointer=f"{pointer}/secret", code="missing_field")
    return sign
