"""Reads the parts of a document, each with its place in it: objects, lists, names, numbers, lengths of time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, Final, NoReturn, TypeVar

from bellringer.durations import parse_duration
from bellringer.errors import InvalidInput
from bellringer.jobs import check_name
from bellringer.workflows.graph import at

T = TypeVar("T")
D = TypeVar("D")
W = TypeVar("W", bound=StrEnum)
Reader = Callable[[Any, str], T]  # of a value and its pointer

_ECHO: Final = 40  # characters of a caller's own text that an error repeats


class Fields:
    """One object of the document. A field that is null is as one that is left out."""

    def __init__(self, document: object, pointer: str, known: Collection[str]) -> None:
        self.fields = mapping(document, pointer)
        self.pointer = pointer
        for name in self.fields:
            if name not in known:
                shown = name[:_ECHO]
                hint = nearest(shown, known) or f"known are {', '.join(known)}"
                message = f"there is no field {shown!r} to set"
                raise InvalidInput(message, hint=hint, pointer=at(pointer, shown), code="unknown_field")

    def get(self, name: str, read: Reader[T], otherwise: D) -> T | D:
        value = self.fields.get(name)
        return otherwise if value is None else read(value, at(self.pointer, name))

    def need(self, name: str, read: Reader[T]) -> T:
        if self.fields.get(name) is None:
            raise InvalidInput(f"{name} is missing", pointer=at(self.pointer, name), code="missing_field")
        return read(self.fields[name], at(self.pointer, name))


def named(read: Reader[T], what: str) -> Reader[dict[str, T]]:
    """An object whose fields have names of the author's own."""

    def read_all(value: object, pointer: str) -> dict[str, T]:
        fields = mapping(value, pointer)
        return {
            check_name(name, what=what, pointer=pointer): read(inner, at(pointer, name))
            for name, inner in fields.items()
        }

    return read_all


def listed(read: Reader[T]) -> Reader[tuple[T, ...]]:
    def read_all(value: object, pointer: str) -> tuple[T, ...]:
        if not isinstance(value, list | tuple):
            mistyped("a list", pointer)
        return tuple(read(inner, f"{pointer}/{place}") for place, inner in enumerate(value))

    return read_all


def a_name(what: str) -> Reader[str]:
    return lambda value, pointer: check_name(value, what=what, pointer=pointer)


def a_word(words: type[W], what: str) -> Reader[W]:
    def read(value: object, pointer: str) -> W:
        found = next((word for word in words if word == value), None)
        if found is None:
            message, hint = f"{what} {str(value)[:_ECHO]!r} is not known", f"use {', '.join(words)}"
            raise InvalidInput(message, hint=hint, pointer=pointer, code="unknown_word")
        return found

    return read


def a_whole(value: object, pointer: str) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # to JSON Schema 7.0 is an integer
    if isinstance(value, bool) or not isinstance(value, int):
        mistyped("a whole number", pointer)
    return value


def a_length(what: str) -> Reader[timedelta]:
    def read(value: Any, pointer: str) -> timedelta:
        try:
            return parse_duration(value, what=what)
        except InvalidInput as fault:
            fault.pointer = pointer
            raise

    return read


def mapping(value: object, pointer: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        mistyped("an object", pointer)
    return value


def mistyped(expected: str, pointer: str) -> NoReturn:
    raise InvalidInput(f"{pointer} must be {expected}", pointer=pointer, code="type")


def nearest(name: str, known: Collection[str]) -> str:
    """A hint at what someone who wrote `name` may have meant, or none."""
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else ""
