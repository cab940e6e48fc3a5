"""Checks and encodes arguments, results and log fields: JSON values that PostgreSQL can store as jsonb.

Values are checked on input, so no later step fails because the database rejects a value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from math import isfinite
from types import NoneType
from typing import Any, Final, cast
from uuid import UUID

import msgspec

from bellringer.errors import InvalidInput, PayloadTooLarge

MAX_PAYLOAD_BYTES: Final = 256 * 1024
MAX_PAYLOAD_DEPTH: Final = 32
_MAX_ECHO_LENGTH: Final = 200  # characters of the input that an error message repeats
_LARGEST_INT: Final = 10**4300  # Python does not convert larger integers to text
_SCALARS: Final = frozenset({str, int, bool, NoneType})
_TEXT_ONLY: Final = frozenset({str})
_EXTENDED_TYPES: Final = (datetime, date, time, timedelta, Decimal, UUID)

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


def check_payload(value: object, *, pointer: str = "", limit: int = MAX_PAYLOAD_BYTES, what: str = "") -> bytes:
    """Encode a value as compact JSON. Raises InvalidInput with the position of the first problem.

    `pointer` is the JSON pointer of the value in the request; `what` names the value in messages.
    Accepts JSON types, datetimes with an offset, dates, durations, UUIDs, decimals (as text), enums (by
    value), tuples, dataclasses, msgspec structs and pydantic models.
    """
    data = _encode_plain(value, limit)
    if data is None:
        plain = _PlainConverter(what, limit).plain(value, pointer, 0)
        data = _encode(plain)
    check_size(data, limit, pointer=pointer, what=what)
    return data


def check_size(data: bytes, limit: int, *, pointer: str = "", what: str = "") -> None:
    """Raises PayloadTooLarge if encoded JSON is larger than the limit."""
    if len(data) > limit:
        raise _too_large(what, pointer, f"takes {len(data):,} bytes as JSON, and the limit is {limit:,}")


def encode_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """Encode the arguments of a run as {"args":[…],"kwargs":{…}}, with the checks of `check_payload`.

    Arguments without nested values need no walk, which saves half of the time (S3 of `make bench`).
    """
    arguments = {"args": list(args), "kwargs": dict(kwargs)}
    kinds = {*map(type, args), *map(type, kwargs.values())}
    if _SCALARS.issuperset(kinds) and _TEXT_ONLY.issuperset(map(type, kwargs)):
        try:
            data = _encode(arguments)
        except (UnicodeError, ValueError):
            return check_payload(arguments)  # raises with a precise message
        if len(data) <= MAX_PAYLOAD_BYTES and b"\\u0000" not in data:
            return data
    return check_payload(arguments)


def encode_parsed(value: object, *, limit: int = MAX_PAYLOAD_BYTES) -> bytes:
    """Encode a value that was parsed from JSON. Its types and depth are valid, so only size and text are checked."""
    try:
        data = _encode(value)
    except (UnicodeError, ValueError):
        return check_payload(value, limit=limit)  # raises with a precise message
    return data if len(data) <= limit and b"\\u0000" not in data else check_payload(value, limit=limit)


def to_plain(value: object, *, pointer: str = "", limit: int = MAX_PAYLOAD_BYTES, what: str = "") -> Any:
    """Return a copy of a value in plain JSON types, with the checks of `check_payload`."""
    return _decode(check_payload(value, pointer=pointer, limit=limit, what=what))


def decode(data: bytes | str) -> Any:
    """Parse JSON. Raises InvalidInput with a stable code."""
    try:
        return _decode(data)
    except UnicodeError:
        raise InvalidInput("the JSON is not valid UTF-8", code="encoding") from None
    except RecursionError:
        message, hint = f"the JSON is nested deeper than {MAX_PAYLOAD_DEPTH}", "flatten the value"
        raise InvalidInput(message, hint=hint, code="json_too_deep") from None
    except msgspec.ValidationError as error:  # raised only for numbers here
        raise InvalidInput(f"the JSON contains an invalid number: {error}", code="number_invalid") from None
    except msgspec.DecodeError as error:
        hint = "check the quotes, commas and brackets at that place"
        raise InvalidInput(f"the JSON cannot be parsed: {error}", hint=hint, code="json_invalid") from None


def scrub(text: str) -> str:
    """Replace characters that jsonb cannot store (NUL, lone surrogates) with visible escapes."""
    if "\0" in text:
        text = text.replace("\0", "\\x00")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text


def _encode_plain(value: object, limit: int) -> bytes | None:
    """Fast path for values of plain JSON types. Returns None if the value needs `_PlainConverter`."""
    if not _is_plain(value, limit):
        return None
    try:
        data = _encode(value)
    except (UnicodeError, ValueError):  # a lone surrogate; an integer of thousands of digits
        return None
    return None if b"\\u0000" in data else data  # possibly a NUL; the converter checks precisely


def _is_plain(value: object, limit: int) -> bool:
    """Whether a value contains only exact JSON types. Goes level by level, so that cycles end at the depth limit."""
    level = [value]
    for _ in range(MAX_PAYLOAD_DEPTH):
        deeper: list[object] = []
        for item in level:
            kind = type(item)
            if kind in _SCALARS:
                continue
            if kind is float and isinstance(item, float):
                if not isfinite(item):
                    return False
            elif kind is list and isinstance(item, list):
                deeper += item
            elif kind is dict and isinstance(item, dict) and _TEXT_ONLY.issuperset(map(type, item)):
                deeper += item.values()
            else:
                return False
            if len(deeper) > limit:
                return False
        if not deeper:
            return True
        level = deeper
    return _SCALARS.issuperset(map(type, level))


class _PlainConverter:
    """Converts a value to plain JSON types. Raises InvalidInput with the exact position of a problem."""

    def __init__(self, what: str, limit: int) -> None:
        self._what = what
        self._limit = limit
        self._left = limit  # every part takes at least one byte

    def plain(self, value: object, pointer: str, depth: int) -> Any:
        self._left -= 1
        if self._left < 0:
            raise _too_large(self._what, pointer, f"is larger than the limit of {self._limit:,} bytes")
        for kinds, write in self._WRITERS:
            if isinstance(value, kinds):
                return write(self, value, pointer, depth)
        return self._record(value, pointer, depth)

    def _member(self, value: Enum, pointer: str, depth: int) -> Any:
        return self.plain(value.value, pointer, depth)

    def _as_is(self, value: object, _pointer: str, _depth: int) -> object:
        return value

    def _text(self, value: str, pointer: str, _depth: int) -> str:
        text = str.__str__(value)
        if "\0" in text:
            raise self._refusal(pointer, "contains a NUL character", hint="remove it", code="nul_character")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise self._refusal(
                pointer,
                "contains a lone surrogate, which is not valid text",
                hint="replace it, for example with text.encode(errors='replace').decode()",
                code="encoding",
            ) from None
        return text

    def _integer(self, value: int, pointer: str, _depth: int) -> int:
        if abs(value) >= _LARGEST_INT:
            hint = "pass the number as text"
            raise self._refusal(pointer, "is an integer with more than 4,300 digits", hint=hint, code="number_invalid")
        return int(value)

    def _number(self, value: float, pointer: str, _depth: int) -> float:
        if not isfinite(value):
            hint = "pass None, or the value as text"
            raise self._refusal(pointer, f"is {value}, which JSON cannot represent", hint=hint, code="number_invalid")
        return float(value)

    def _list(self, value: list[object] | tuple[object, ...], pointer: str, depth: int) -> list[Any]:
        self._descend(pointer, depth)
        return [self.plain(item, f"{pointer}/{place}", depth + 1) for place, item in enumerate(value)]

    def _object(self, value: dict[object, object], pointer: str, depth: int) -> dict[str, Any]:
        self._descend(pointer, depth)
        written: dict[str, Any] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise self._refusal(
                    pointer,
                    f"has a key of type {type(key).__name__}",
                    hint="keys must be strings",
                    code="type",
                )
            name = self._text(key, _join(pointer, key), depth)
            written[name] = self.plain(item, _join(pointer, name), depth + 1)
        return written

    def _time(self, value: object, pointer: str, _depth: int) -> Any:
        if isinstance(value, datetime) and value.utcoffset() is None:
            raise self._refusal(
                pointer,
                "is a datetime without a time zone",
                hint="use a datetime with a time zone, such as datetime.now(UTC)",
                code="offset_required",
            )
        if isinstance(value, Decimal) and not value.is_finite():
            raise self._refusal(pointer, f"is {value}, which is not a number", code="number_invalid")
        return msgspec.to_builtins(value)

    def _record(self, value: object, pointer: str, depth: int) -> Any:
        """Convert a dataclass, a struct or a pydantic model; reject any other type."""
        fields: object = None
        if isinstance(value, type):
            pass
        elif hasattr(type(value), "model_dump"):
            fields = cast("Any", value).model_dump(mode="json")
        elif dataclasses.is_dataclass(value) or isinstance(value, msgspec.Struct):
            try:
                # Times and decimals stay unconverted; `plain` below checks them.
                fields = msgspec.to_builtins(value, builtin_types=_EXTENDED_TYPES)
            except (TypeError, ValueError, RecursionError) as error:
                raise self._refusal(pointer, f"cannot be written as JSON: {error}", code="type") from None
        if fields is None:
            raise self._refusal(pointer, f"is of type {_type_name(value)}", hint=_type_hint(value), code="type")
        return self.plain(fields, pointer, depth)

    def _descend(self, pointer: str, depth: int) -> None:
        if depth >= MAX_PAYLOAD_DEPTH:
            hint = "flatten the value, or pass the inner part as text"
            raise self._refusal(pointer, f"is nested deeper than {MAX_PAYLOAD_DEPTH}", hint=hint, code="json_too_deep")

    def _refusal(self, pointer: str, problem: str, *, code: str, hint: str = "") -> InvalidInput:
        return InvalidInput(
            f"{_describe(self._what, pointer)} {problem}",
            hint=hint,
            pointer=scrub(pointer)[:_MAX_ECHO_LENGTH],
            code=code,
        )

    # The first match is used: an enum can also be a string, and a bool is also an int.
    _WRITERS: Final[tuple[tuple[Any, Callable[..., Any]], ...]] = (
        (Enum, _member),
        (str, _text),
        ((bool, NoneType), _as_is),
        (int, _integer),
        (float, _number),
        (dict, _object),
        ((list, tuple), _list),
        (_EXTENDED_TYPES, _time),
    )


def _too_large(what: str, pointer: str, problem: str) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"{_describe(what, pointer)} {problem}",
        hint="pass a reference to the data instead: a key, a path or a URL",
        pointer=scrub(pointer)[:_MAX_ECHO_LENGTH],
    )


def _describe(what: str, pointer: str) -> str:
    place = scrub(pointer)[:_MAX_ECHO_LENGTH]
    return f"{what} ({place})" if what and place else what or place or "the value"


def _join(pointer: str, key: str) -> str:
    return f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}"


def _type_name(value: object) -> str:
    return type(value).__name__[:_MAX_ECHO_LENGTH]


def _type_hint(value: object) -> str:
    if isinstance(value, set | frozenset):
        return "pass a list: JSON has no sets"
    if isinstance(value, bytes | bytearray | memoryview):
        return "pass text (base64), or a reference to the data"
    return "pass JSON values, times, UUIDs, decimals, dataclasses or structs"
