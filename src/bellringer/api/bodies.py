"""Reads a request's JSON, and refuses what no later step should meet."""

from __future__ import annotations

import asyncio
import json
import re
from math import isfinite
from typing import Any, Final, NoReturn

import msgspec
from starlette.requests import Request

from bellringer.api.deadlines import Deadline
from bellringer.api.problems import Refused
from bellringer.errors import InvalidInput
from bellringer.payload import DEEPEST
from bellringer.wire.asks import BODY_LIMIT as LIMIT

PATIENCE: Final = 10.0  # seconds for a whole body to arrive
JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
NDJSON: Final = "application/x-ndjson"
_BODY: Final = "bellringer.body"  # in the scope of a request, once it has come
_CLOSE: Final = {"Connection": "close"}  # the rest of the body is not worth reading

# Both always match from a quote on, terminated or not, so the scan is linear whatever comes.
_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\(?s:.)?)*+"?')
_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_OTHERS: Final = bytes(set(range(256)) - set(b"[]{}"))
_NO_VALUES: Final = bytes(set(range(256)) - set(b",["))
_NO_MARKS: Final = bytes(set(range(256)) - set(b'[]{}"'))
_APART: Final = (b" :", b"\t:", b"\n:", b"\r:")  # a colon that may be of a key before it
LARGE: Final = 256 * 1024  # from here on a body is read in a thread
MOST_VALUES: Final = 1_000_000
_SUSPECT: Final = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")


async def read_document(
    request: Request,
    deadline: Deadline,
    *,
    media: tuple[str, ...] = (JSON,),
    optional: bool = False,
    limit: int = LIMIT,
) -> dict[str, Any]:
    """The body as an object; where it is optional, none means an empty one."""
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused(415, "encoding_unsupported", "compressed bodies are not read", hint="send plain JSON")
    data = await read_bytes(request, deadline, limit)
    if optional and not data.strip():
        return {}
    check_media(request.headers.get("content-type", ""), media)
    document = await parse_aside(data)
    if not isinstance(document, dict):
        raise Refused(400, "body_not_object", "the body must be a JSON object")
    return document


async def parse_aside(data: bytes) -> Any:
    """The same as `parse`; a large body is read in a thread, so that others have their turn meanwhile."""
    return parse(data) if len(data) <= LARGE else await asyncio.to_thread(parse, data)


async def read_bytes(request: Request, deadline: Deadline, limit: int = LIMIT) -> bytes:
    """The body. It comes once, and is kept: the fingerprint of a request and its handler both want it."""
    kept: bytes | None = request.scope.get(_BODY)
    if kept is None:
        kept = request.scope[_BODY] = await _receive(request, deadline, limit)
    return kept


async def _receive(request: Request, deadline: Deadline, limit: int) -> bytes:
    """The body, counted while it comes: a Content-Length may lie, and a stream may never end."""
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise _too_large(limit)
    deadline.extend(PATIENCE, means=Refused(408, "body_timeout", "the body did not arrive in time", headers=_CLOSE))
    chunks = bytearray()
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise Refused(400, "body_incomplete", "the body broke off", headers=_CLOSE)
        chunks += message.get("body", b"")
        if len(chunks) > limit:
            raise _too_large(limit)
        if not message.get("more_body", False):
            deadline.extend()  # all that the caller had to send is here: from now on the server's time counts
            return bytes(chunks)


def _too_large(limit: int) -> Refused:
    return Refused(413, "body_too_large", f"the body is larger than {limit:,} bytes", headers=_CLOSE)


def check_media(content_type: str, media: tuple[str, ...]) -> str:
    """The media type of a body, if it is one that is read here."""
    kind, _, parameters = content_type.partition(";")
    charset = parameters.replace(" ", "").replace('"', "").lower()
    if kind.strip().lower() not in media or charset not in ("", "charset=utf-8"):
        raise Refused(
            415, "media_type", "the body's Content-Type is not one that is read here", hint=f"send {media[0]}"
        )
    return kind.strip().lower()


def check_count(data: bytes) -> None:
    """A large body of nothing but brackets and commas would take seconds to read. Two bytes hold one value at most."""
    if len(data) > 2 * MOST_VALUES and len(data.translate(None, _NO_VALUES)) > MOST_VALUES:
        raise Refused(400, "json_too_many", f"the JSON has more than {MOST_VALUES:,} values")


def parse(data: bytes) -> Any:
    """JSON, strictly: no depth, number, key or text that a later step could stumble over.

    Of text without escapes a faster parser gives the same, if no key is twice in an object: then what was read has as
    many keys as the text. Where in doubt, the slower one decides, which can say what is wrong.
    """
    check_count(data)
    if b"\\" in data or b"\0" in data or _is_too_deep(_brackets(data)):
        return _explained(data)
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _explained(data)
    return value if _has_as_many_keys(data, msgspec.json.encode(value)) else _explained(data)


def _explained(data: bytes) -> Any:
    """The value, or what is wrong with its text."""
    if b"\0" in data:
        raise Refused(400, "encoding", "the body holds a NUL byte")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise Refused(400, "encoding", "the body is not valid UTF-8") from None
    if _is_too_deep(data):
        raise _too_deep()
    try:
        value = json.loads(
            text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_float, parse_int=_int
        )
    except RecursionError:
        raise _too_deep() from None
    except json.JSONDecodeError as error:
        raise Refused(400, "json_invalid", f"the body is not JSON: {error.msg} at character {error.pos}") from None
    if _SUSPECT.search(text):
        _check_text(value, "")
    return value


def _is_too_deep(data: bytes) -> bool:
    """Whether brackets nest deeper than allowed, found before any parser descends into them.

    With strings and all but brackets gone, each pass removes the innermost pairs. What is left after the
    allowed number of passes is too deep; or it does not close, and if shallow the parser refuses it.
    """
    brackets = _STRING.sub(b"", data).translate(_BRACKETS, _OTHERS)
    if b"[" * (DEEPEST + 1) in brackets:
        return True
    for _ in range(DEEPEST):
        if b"[]" not in brackets:
            break
        brackets = brackets.replace(b"[]", b"")
    return b"[]" in brackets or brackets.count(b"[") > DEEPEST


def _brackets(data: bytes) -> bytes:
    """JSON without its strings, of which none holds a quote. With all but quotes and brackets gone, a string is two
    quotes; if such pairs are not all the quotes, there is a string with a bracket."""
    marks = data.translate(None, _NO_MARKS).replace(b'""', b"")
    return _bare(data) if b'"' in marks else marks


def _has_as_many_keys(data: bytes, read: bytes) -> bool:
    """Whether none was lost on the way. Mostly a colon comes right behind its key, or begins a text; and of those texts
    there are no more after than before, so they do not make up for a lost key."""
    keys = data.count(b'":')
    if keys < data.count(b":") and any(apart in data for apart in _APART):
        return _bare(data).count(b":") == _bare(read).count(b":")
    return keys == read.count(b'":')


def _bare(data: bytes) -> bytes:
    return b"".join(data.split(b'"')[::2])


def _too_deep() -> Refused:
    return Refused(400, "json_too_deep", f"the JSON is nested deeper than {DEEPEST}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise Refused(400, "duplicate_key", f"the key {twice[:40]!r} occurs twice in one object")
    return made


def _constant(name: str) -> NoReturn:
    raise Refused(400, "number_invalid", f"{name} is not a JSON number")


def _float(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise Refused(400, "number_invalid", f"the number {text[:40]} is too large")
    return value


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:  # Python reads no more than 4,300 digits
        raise Refused(400, "number_invalid", f"a number of {len(text):,} digits is too large") from None


def _check_text(value: Any, pointer: str) -> None:
    """Find what escapes hid: a NUL, which jsonb refuses, or half of a surrogate pair, which is no text."""
    if isinstance(value, str):
        _check_string(value, pointer)
    elif isinstance(value, list):
        for place, item in enumerate(value):
            _check_text(item, f"{pointer}/{place}")
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
