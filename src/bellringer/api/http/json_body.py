"""Reads JSON bodies strictly: size, depth, encoding, numbers and duplicate keys are checked here."""

from __future__ import annotations

import asyncio
import json
import re
from math import isfinite
from typing import Any, Final, NoReturn

from starlette.requests import Request

from bellringer.api.http.error_responses import Refused
from bellringer.core.payload import MAX_PAYLOAD_DEPTH
from bellringer.errors import InvalidInput
from bellringer.wire.routes import BODY_LIMIT as LIMIT

BODY_TIMEOUT_SECONDS: Final = 10.0  # for a whole body to arrive
RESPONSE_TIMEOUT_SECONDS: Final = 9.0  # less than clients wait, so that they receive the reason
JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
NDJSON: Final = "application/x-ndjson"
THREAD_THRESHOLD_BYTES: Final = 256 * 1024  # larger bodies are parsed in a thread
MAX_VALUES: Final = 1_000_000
_BODY_KEY: Final = "bellringer.body"  # in the ASGI scope, once the body has arrived
_CLOSE: Final = {"Connection": "close"}  # the rest of the body is not read

# Matches from every quote on, terminated or not, so the scan is linear for any input.
_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\(?s:.)?)*+"?')
_BRACES_TO_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_ALL_BUT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_ALL_BUT_SEPARATORS: Final = bytes(set(range(256)) - set(b",["))
_SUSPICIOUS_ESCAPE: Final = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")


def extend(timeout: asyncio.Timeout, seconds: float = RESPONSE_TIMEOUT_SECONDS) -> None:
    """Restarts a request's timeout."""
    timeout.reschedule(asyncio.get_running_loop().time() + seconds)


async def read_document(
    request: Request,
    timeout: asyncio.Timeout,
    *,
    media: tuple[str, ...] = (JSON,),
    optional: bool = False,
    limit: int = LIMIT,
) -> dict[str, Any]:
    """Returns the body, which must be a JSON object. If it is optional, no body means an empty object."""
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused(415, "encoding_unsupported", "compressed bodies are not supported", hint="send plain JSON")
    data = await read_bytes(request, timeout, limit)
    if optional and not data.strip():
        return {}
    check_media(request.headers.get("content-type", ""), media)
    document = await parse_body(data)
    if not isinstance(document, dict):
        raise Refused(400, "body_not_object", "the body must be a JSON object", hint="send {} for an empty body")
    return document


async def parse_body(data: bytes) -> Any:
    """Parses JSON; a large body in a thread, so that it does not hold up other requests."""
    return parse(data) if len(data) <= THREAD_THRESHOLD_BYTES else await asyncio.to_thread(parse, data)


async def read_bytes(request: Request, timeout: asyncio.Timeout, limit: int = LIMIT) -> bytes:
    """Returns the body. It is kept, because the fingerprint of an idempotent request and its handler both need it."""
    kept: bytes | None = request.scope.get(_BODY_KEY)
    if kept is None:
        timeout.reschedule(None)
        try:
            async with asyncio.timeout(BODY_TIMEOUT_SECONDS):
                kept = request.scope[_BODY_KEY] = await _receive(request, limit)
        except TimeoutError:
            hint = "send the body without pauses; retry if the network was slow"
            raise Refused(408, "body_timeout", "the body did not arrive in time", hint=hint, headers=_CLOSE) from None
        extend(timeout)
    return kept


async def _receive(request: Request, limit: int) -> bytes:
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise _too_large(limit)
    chunks = bytearray()
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            detail, hint = "the connection closed before the body was complete", "send the request again"
            raise Refused(400, "body_incomplete", detail, hint=hint, headers=_CLOSE)
        chunks += message.get("body", b"")
        if len(chunks) > limit:
            raise _too_large(limit)
        if not message.get("more_body", False):
            return bytes(chunks)


def _too_large(limit: int) -> Refused:
    hint = "send fewer items at a time, or a reference to the data"
    return Refused(413, "body_too_large", f"the body is larger than {limit:,} bytes", hint=hint, headers=_CLOSE)


def check_media(content_type: str, media: tuple[str, ...]) -> str:
    """Returns the media type of a body; raises Refused if the operation does not accept it."""
    kind, _, parameters = content_type.partition(";")
    charset = parameters.replace(" ", "").replace('"', "").lower()
    if kind.strip().lower() not in media or charset not in ("", "charset=utf-8"):
        raise Refused(415, "media_type", "the Content-Type of the body is not supported", hint=f"send {media[0]}")
    return kind.strip().lower()


def parse(data: bytes) -> Any:
    """Parses JSON, and raises Refused or InvalidInput for values that a later step or the database cannot handle."""
    # A large body of nothing but brackets and commas would take seconds to parse. Each value takes two bytes or more.
    if len(data) > 2 * MAX_VALUES and len(data.translate(None, _ALL_BUT_SEPARATORS)) > MAX_VALUES:
        hint = "send fewer items at a time"
        raise Refused(400, "json_too_many", f"the JSON has more than {MAX_VALUES:,} values", hint=hint)
    if b"\0" in data:
        raise Refused(400, "encoding", "the body holds a NUL byte", hint="send JSON in UTF-8 without NUL bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise Refused(400, "encoding", "the body is not valid UTF-8", hint="send JSON in UTF-8") from None
    if _is_too_deep(data):
        raise _too_deep()
    try:
        value = json.loads(
            text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_float, parse_int=_int
        )
    except RecursionError:
        raise _too_deep() from None
    except json.JSONDecodeError as error:
        message, hint = (
            f"the body is not JSON: {error.msg} at character {error.pos}",
            "check the quotes, commas and brackets",
        )
        raise Refused(400, "json_invalid", message, hint=hint) from None
    if _SUSPICIOUS_ESCAPE.search(text):
        _check_text(value, "")
    return value


def _is_too_deep(data: bytes) -> bool:
    """Returns whether brackets nest deeper than allowed, before a parser recurses into them.

    Strings and everything but brackets are removed; then each pass removes the innermost pairs. Brackets that are left
    after the allowed number of passes are too deep, or unbalanced: then the parser refuses the text.
    """
    brackets = _STRING.sub(b"", data).translate(_BRACES_TO_BRACKETS, _ALL_BUT_BRACKETS)
    if b"[" * (MAX_PAYLOAD_DEPTH + 1) in brackets:
        return True
    for _ in range(MAX_PAYLOAD_DEPTH):
        if b"[]" not in brackets:
            break
        brackets = brackets.replace(b"[]", b"")
    return b"[]" in brackets or brackets.count(b"[") > MAX_PAYLOAD_DEPTH


def _too_deep() -> Refused:
    hint = "flatten the document, or send the inner part as text"
    return Refused(400, "json_too_deep", f"the JSON is nested deeper than {MAX_PAYLOAD_DEPTH}", hint=hint)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        duplicate = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        message = f"the key {duplicate[:40]!r} occurs twice in one object"
        raise Refused(400, "duplicate_key", message, hint="remove one of them")
    return value


def _constant(name: str) -> NoReturn:
    raise Refused(400, "number_invalid", f"{name} is not a JSON number", hint="send null, or the number as text")


def _float(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        message = f"the number {text[:40]} is too large"
        raise Refused(400, "number_invalid", message, hint="send the number as text")
    return value


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:  # Python parses no more than 4,300 digits
        raise Refused(400, "number_invalid", f"a number of {len(text):,} digits is too large") from None


def _check_text(value: Any, pointer: str) -> None:
    """Raises for strings that hold an escaped NUL, which jsonb refuses, or half of a surrogate pair."""
    if isinstance(value, str):
        _check_string(value, pointer)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_text(item, f"{pointer}/{index}")
    elif isinstance(value, dict):
        for key, item in value.items():
            below = f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}"
            _check_string(key, below)
            _check_text(item, below)


def _check_string(text: str, pointer: str) -> None:
    if "\0" in text:
        raise InvalidInput("the text holds a NUL character", hint="remove it", pointer=pointer, code="nul_character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Refused(400, "encoding", "the text holds a lone surrogate", pointer=pointer) from None
