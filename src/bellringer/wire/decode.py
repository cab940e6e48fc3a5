"""Decodes JSON documents into request models, and reports all their errors at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from difflib import get_close_matches
from functools import cache
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec

from bellringer.durations import format_duration, parse_duration
from bellringer.errors import InvalidInput
from bellringer.schedule.instants import read_instant

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")

MOST_FAULTS: Final = 20
MAX_NOTE_LENGTH: Final = 1000
_MAX_ECHO_LENGTH: Final = 40  # characters of an unknown name that an error repeats
_STEP: Final = re.compile(r"\.(\w+)|\[(\d+)\]")
_WHERE: Final = re.compile(r" - at `\$(?P<path>.*)`$")


class DecodeErrors(InvalidInput):
    """Several errors in one document. The code is that of the first; `faults` holds all."""

    def __init__(self, faults: Sequence[InvalidInput]) -> None:
        first = faults[0]
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        super().__init__(first.message + more, hint=first.hint, pointer=first.pointer, code=first.code)
        self.faults = tuple(faults[:MOST_FAULTS])


class Gathering:
    """Collects errors, so that the caller gets all of them at once."""

    def __init__(self) -> None:
        self._faults: list[InvalidInput] = []

    def add(self, fault: InvalidInput) -> None:
        self._faults.append(fault)

    def take(self, pointer: str, make: Callable[[], T], otherwise: T) -> T:
        """Return what `make` returns. If it raises InvalidInput, record the error and return `otherwise`."""
        try:
            return make()
        except InvalidInput as fault:
            fault.pointer = fault.pointer or pointer
            self._faults.append(fault)
            return otherwise

    def done(self) -> None:
        if self._faults:
            raise DecodeErrors(self._faults)


def read(shape: type[S], document: Mapping[str, Any]) -> S:
    """Decode a document into a request model. Raises DecodeErrors."""
    gathering = Gathering()
    refuse_unknown(shape, document, gathering)
    values: dict[str, Any] = {}
    for field in fields_of(shape):
        name = field.encode_name
        if name in document:
            try:
                values[field.name] = _converted(document[name], field.type)
            except msgspec.ValidationError as error:
                gathering.add(_mistyped(name, str(error)))
        elif field.required:
            gathering.add(InvalidInput(f"{name} is missing", pointer=f"/{name}", code="missing_field"))
    gathering.done()
    return shape(**values)


@cache
def fields_of(shape: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """The fields of a model, cached: computing them costs more than decoding a request."""
    return msgspec.structs.fields(shape)


@cache
def _names_of(shape: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(field.encode_name for field in fields_of(shape))


def _converted(value: Any, kind: Any) -> Any:
    """Convert a value. 7.0 is an integer in JSON Schema but not in msgspec, so whole floats are retried as integers."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        if isinstance(value, float) and value.is_integer():
            return msgspec.convert(int(value), kind)
        raise


def refuse_unknown(shape: type[msgspec.Struct], document: Mapping[str, Any], gathering: Gathering) -> None:
    """Reject unknown fields: a misspelled name would otherwise be ignored silently."""
    known = _names_of(shape)
    unknown = (name for name in document if name not in known)
    for name in islice(unknown, MOST_FAULTS + 1):  # no more are reported, and finding similar names is slow
        shown = name[:_MAX_ECHO_LENGTH]
        near = get_close_matches(shown, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known fields: {', '.join(known) or 'none'}"
        pointer = "/" + shown.replace("~", "~0").replace("/", "~1")
        gathering.add(InvalidInput(f"there is no field {shown!r}", hint=hint, pointer=pointer, code="unknown_field"))


def _mistyped(name: str, text: str) -> InvalidInput:
    where = _WHERE.search(text)
    steps = _STEP.findall(where["path"]) if where else []
    pointer = "/".join([f"/{name}", *(word or number for word, number in steps)])
    problem = _WHERE.sub("", text)
    return InvalidInput(f"{name}: {problem[0].lower()}{problem[1:]}", pointer=pointer, code="type")


def duration(value: str | float | None, *, what: str, least: timedelta, most: timedelta) -> timedelta | None:
    """Parse a duration and check its bounds; None stays None."""
    if value is None:
        return None
    length = parse_duration(value, what=what)
    if not least <= length <= most:
        raise InvalidInput(
            f"{what} is {format_duration(length)}",
            hint=f"give {format_duration(least)} to {format_duration(most)}",
            code="limit",
        )
    return length


def instant(value: str | None, *, what: str) -> datetime | None:
    return None if value is None else read_instant(value, what=what)


def note(text: str | None, *, what: str) -> str | None:
    """Check the length of a free text, such as a reason."""
    if text is not None and len(text) > MAX_NOTE_LENGTH:
        raise InvalidInput(f"{what} has more than {MAX_NOTE_LENGTH} characters", pointer=f"/{what}", code="limit")
    return text
