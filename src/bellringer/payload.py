"""What may travel as arguments, results and log fields: JSON that PostgreSQL's jsonb takes.

Everything is checked where it enters, so that no later step meets a value that the database refuses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from math import isfinite
from types import NoneType
from typing import Any, Final, cast
from uuid import UUID

import msgspec

from bellringer.errors import InvalidInput, PayloadTooLarge

LIMIT: Final = 256 * 1024
DEEPEST: Final = 32
_ECHO: Final = 200  # characters of a caller's own text that an error repeats
_LARGEST_INT: Final = 10**4300  # beyond it Python itself refuses to write an integer
_SCALARS: Final = frozenset({str, int, bool, NoneType})
_TEXT_ONLY: Final = frozenset({str})
_TIMES: Final = (datetime, date, time, timedelta, Decimal, UUID)

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


def check_payload(value: object, *, pointer: str = "", limit: int = LIMIT, what: str = "") -> bytes:
    """Write a value as compact JSON, or say what is wrong with it and where.

    `pointer` is where the value itself stands in what the caller sent; `what` names it in messages.
    Beyond plain JSON it takes times with an offset, dates, durations, UUIDs, decimals (as text), enums (by
    value), tuples, dataclasses, msgspec structs and pydantic models.
    """
    data = _encode_plain(value, limit)
    if data is None:
        plain = _Scribe(what, limit).plain(value, pointer, 0)
        data = _encode(plain)
    if len(data) > limit:
        raise _too_large(what, pointer, f"takes {len(data):,} bytes as JSON, and the limit is {limit:,}")
    return data


def rewrite(value: object, *, limit: int = LIMIT) -> bytes:
    """What `check_payload` writes of a value that was read from JSON, strictly: its types and depth are right, so that
    only its size and its text are left to check."""
    try:
        data = _encode(value)
    except (UnicodeError, ValueError):
        return check_payload(value, limit=limit)  # which says what is wrong
    return data if len(data) <= limit and b"\\u0000" not in data else check_payload(value, limit=limit)


def to_plain(value: object, *, pointer: str = "", limit: int = LIMIT, what: str = "") -> Any:
    """Give a copy of a value in plain JSON types, checked as `check_payload` checks."""
    return _decode(check_payload(value, pointer=pointer, limit=limit, what=what))


def decode(data: bytes | str) -> Any:
    """Read JSON, or raise InvalidInput with a stable code."""
    try:
        return _decode(data)
    except UnicodeError:
        raise InvalidInput("the JSON is not valid UTF-8", code="encoding") from None
    except RecursionError:
        raise InvalidInput(f"the JSON is nested deeper than {DEEPEST}", code="json_too_deep") from None
    except msgspec.ValidationError as error:  # only numbers can be well-formed and still unreadable
        raise InvalidInput(f"the JSON holds an unusable number: {error}", code="number_invalid") from None
    except msgspec.DecodeError as error:
        raise InvalidInput(f"the JSON cannot be read: {error}", code="json_invalid") from None


def scrub(text: str) -> str:
    """Make any text fit for jsonb: NUL characters and lone surrogates become visible escapes."""
    if "\0" in text:
        text = text.replace("\0", "\\x00")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text


def _encode_plain(value: object, limit: int) -> bytes | None:
    """The short way, for what is plain JSON already; None: go the long way, which can explain."""
    if not _is_plain(value, limit):
        return None
    try:
        data = _encode(value)
    except (UnicodeError, ValueError):  # a lone surrogate; an integer of thousands of digits
        return None
    return None if b"\\u0000" in data else data  # may be a harmless backslash: the long way knows


def _is_plain(value: object, limit: int) -> bool:
    """Whether only exact JSON types occur; level by level, so that no cycle and no shared part is a trap."""
    level = [value]
    for _ in range(DEEPEST):
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


class _Scribe:
    """The long way: turns one value into plain JSON types, or raises with the exact place."""

    def __init__(self, what: str, limit: int) -> None:
        self._what = what
        self._limit = limit
        self._left = limit  # every part takes at least a byte, so a larger count cannot fit

    def plain(self, value: object, pointer: str, depth: int) -> Any:
        self._left -= 1
        if self._left < 0:
            raise _too_large(self._what, pointer, f"has more parts than the {self._limit:,} bytes allowed")
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
            raise self._refusal(pointer, "holds a NUL character", code="nul_character")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise self._refusal(pointer, "holds a lone surrogate, which is not text", code="encoding") from None
        return text

    def _integer(self, value: int, pointer: str, _depth: int) -> int:
        if abs(value) >= _LARGEST_INT:
            raise self._refusal(pointer, "is an integer of more than 4,300 digits", code="number_invalid")
        return int(value)

    def _number(self, value: float, pointer: str, _depth: int) -> float:
        if not isfinite(value):
            raise self._refusal(pointer, f"is {value}, which JSON cannot hold", code="number_invalid")
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
                hint="say which instant is meant, as with datetime.now(UTC)",
                code="offset_required",
            )
        if isinstance(value, Decimal) and not value.is_finite():
            raise self._refusal(pointer, f"is {value}, which is no number", code="number_invalid")
        return msgspec.to_builtins(value)

    def _record(self, value: object, pointer: str, depth: int) -> Any:
        """A dataclass, a struct or a pydantic model; anything else is refused."""
        fields: object = None
        if isinstance(value, type):
            pass
        elif hasattr(type(value), "model_dump"):
            fields = cast("Any", value).model_dump(mode="json")
        elif dataclasses.is_dataclass(value) or isinstance(value, msgspec.Struct):
            try:
                # Times and decimals stay as they are, to be checked like those outside of records.
                fields = msgspec.to_builtins(value, builtin_types=_TIMES)
            except (TypeError, ValueError, RecursionError) as error:
                raise self._refusal(pointer, f"cannot be written as JSON: {error}", code="type") from None
        if fields is None:
            raise self._refusal(pointer, f"is of type {_kind(value)}", hint=_advice(value), code="type")
        return self.plain(fields, pointer, depth)

    def _descend(self, pointer: str, depth: int) -> None:
        if depth >= DEEPEST:
            raise self._refusal(pointer, f"is nested deeper than {DEEPEST}", code="json_too_deep")

    def _refusal(self, pointer: str, problem: str, *, code: str, hint: str = "") -> InvalidInput:
        return InvalidInput(
            f"{_called(self._what, pointer)} {problem}", hint=hint, pointer=scrub(pointer)[:_ECHO], code=code
        )

    # The first that fits writes: an enum may be a string too, and True is an integer.
    _WRITERS: Final[tuple[tuple[Any, Callable[..., Any]], ...]] = (
        (Enum, _member),
        (str, _text),
        ((bool, NoneType), _as_is),
        (int, _integer),
        (float, _number),
        (dict, _object),
        ((list, tuple), _list),
        (_TIMES, _time),
    )


def _too_large(what: str, pointer: str, problem: str) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"{_called(what, pointer)} {problem}",
        hint="pass a reference instead: a key, a path or a URL of the data",
        pointer=scrub(pointer)[:_ECHO],
    )


def _called(what: str, pointer: str) -> str:
    place = scrub(pointer)[:_ECHO]
    return f"{what} ({place})" if what and place else what or place or "the value"


def _join(pointer: str, key: str) -> str:
    return f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}"


def _kind(value: object) -> str:
    return type(value).__name__[:_ECHO]


def _advice(value: object) -> str:
    if isinstance(value, set | frozenset):
        return "pass a list: JSON has no sets"
    if isinstance(value, bytes | bytearray | memoryview):
        return "pass text (base64), or a reference to the data"
    return "pass JSON values, times, UUIDs, decimals, dataclasses or structs"
