"""Hides parts of payloads: values at given paths in documents, and their text in messages, tracebacks and logs.

A path names a field from the top of a document: `password`, `card.number`, `items[].token`; `*` stands for any field.
Paths apply to the named arguments, to the result, and to the details of progress. Positional arguments are hidden by
their number: `args[0]`, or `args[0].token`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote

from bellringer.errors import InvalidInput

MASK: Final = "***"
PROGRESS_PATHS_FIELD: Final = (
    "redact"  # of a stored report of progress: lists of runs have no other access to the paths
)
MIN_TEXT_LENGTH: Final = 4  # shorter values are not replaced in text: they would hide ordinary words and numbers
MIN_LINE_LENGTH: Final = 8  # of a line of a secret with several lines
MAX_PATHS: Final = 50
MAX_PATH_LENGTH: Final = 200
MAX_VALUES: Final = 1_000  # of one run, that are replaced in text
_STEP: Final = re.compile(r"([^.\[\]]+)|\[(\d*)\]")
_OMISSION: Final = re.compile(r"\n… \d+ bytes left out …\n")  # where `clip` has shortened a text
_SPLIT_LINE_LENGTH: Final = 2_000  # a longer line may have been cut in two

Step = str | int | None  # a field ("*": any), the index of an element, or None for all elements


def check_paths(paths: object, *, pointer: str = "/redact") -> tuple[str, ...]:
    """Returns the paths without duplicates; raises InvalidInput if one is no path."""
    if isinstance(paths, str) or not isinstance(paths, Sequence):
        raise InvalidInput("redact must be a list of paths, such as card.number", pointer=pointer, code="type")
    if len(paths) > MAX_PATHS:
        raise InvalidInput(f"redact can have at most {MAX_PATHS} paths", pointer=pointer, code="limit")
    for place, path in enumerate(paths):
        if not isinstance(path, str) or len(path) > MAX_PATH_LENGTH or not _is_path(path):
            raise InvalidInput(
                f"redact: {str(path)[:40]!r} is not a path",
                hint="a path consists of fields and elements, such as password, card.number or items[].token",
                pointer=f"{pointer}/{place}",
                code="path_invalid",
            )
    return tuple(dict.fromkeys(paths))


def redact_document(document: Any, paths: Sequence[str]) -> Any:
    """Returns a copy of a JSON document with the values at the paths replaced by the mask."""
    for path in paths:
        document = _masked(document, _parse(path))
    return document


def redact_arguments(
    args: Sequence[Any], kwargs: Mapping[str, Any], paths: Sequence[str]
) -> tuple[list[Any], dict[str, Any]]:
    """Returns the arguments with the values at the paths replaced by the mask."""
    if not paths:
        return list(args), dict(kwargs)
    own = [path for path in paths if path.startswith("args[")]
    masked = redact_document({"args": list(args)}, own)["args"] if own else list(args)
    return masked, redact_document(dict(kwargs), paths)


def find_texts(args: Sequence[Any], kwargs: Mapping[str, Any], paths: Sequence[str]) -> Iterator[str]:
    """Returns the texts and numbers at the paths of arguments."""
    document = {"args": list(args), **kwargs}
    for path in paths:
        for value in _values(document, _parse(path)):
            yield from _texts(value)


class TextRedactor:
    """Replaces values in text by the mask, also where they are escaped or encoded for a URL, and where a long text or
    line was cut inside of one. Values with several lines are also replaced line by line, as logs contain them.
    """

    def __init__(self, values: Iterable[str]) -> None:
        found: dict[str, None] = {}
        for value in values:
            if len(value) < MIN_TEXT_LENGTH or len(found) >= MAX_VALUES:
                continue
            lines = [line.strip() for line in value.splitlines()] if "\n" in value else []
            for text in (value, value.strip(), *(line for line in lines if len(line) >= MIN_LINE_LENGTH)):
                found |= dict.fromkeys(form for form in _forms(text) if len(form) >= MIN_TEXT_LENGTH)
        self._forms = sorted(found, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, self._forms))) if self._forms else None

    def __bool__(self) -> bool:
        return self._pattern is not None

    def text(self, text: str) -> str:
        """Returns the text with the mask in place of all values."""
        if self._pattern is None:
            return text
        text = self._pattern.sub(MASK, text)
        if len(text) >= _SPLIT_LINE_LENGTH:
            pieces = _OMISSION.split(text)
            if len(pieces) > 1:
                marks = _OMISSION.findall(text)
                joined = [self._without_cut_value(piece) for piece in pieces]
                return "".join(part for pair in zip(joined, [*marks, ""], strict=True) for part in pair)
            return self._without_cut_value(text)
        return text

    def document(self, value: Any) -> Any:
        """Returns a JSON value with the mask in place of all values, also in the names of fields."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(name)): self.document(inner) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.document(inner) for inner in value]
        if isinstance(value, int | float) and not isinstance(value, bool) and str(value) in self._forms:
            return MASK
        return value

    def _without_cut_value(self, text: str) -> str:
        """Returns the text without the beginning of a value at its end, and without the end of one at its start."""
        for form in self._forms:
            for size in range(len(form) - 1, MIN_TEXT_LENGTH - 1, -1):
                if text.endswith(form[:size]):
                    text = text[:-size] + MASK
                    break
            for size in range(len(form) - 1, MIN_TEXT_LENGTH - 1, -1):
                if text.startswith(form[-size:]):
                    text = MASK + text[size:]
                    break
        return text


def _forms(text: str) -> Iterator[str]:
    yield text
    yield json.dumps(text)[1:-1]
    yield json.dumps(text, ensure_ascii=False)[1:-1]
    yield repr(text)[1:-1]
    yield quote(text)
    yield quote(text, safe="")


def _is_path(path: str) -> bool:
    return bool(path) and path[0] not in ".[" and not path.endswith(".") and ".." not in path and bool(_PATH(path))


_PATH: Final = re.compile(r"[^.\[\]]+(?:\.[^.\[\]]+|\[\d{0,6}\])*").fullmatch


@lru_cache(maxsize=1024)
def _parse(path: str) -> tuple[Step, ...]:
    return tuple(
        found[1] if found[1] is not None else int(found[2]) if found[2] else None for found in _STEP.finditer(path)
    )


def _masked(value: Any, steps: tuple[Step, ...]) -> Any:
    if not steps:
        return MASK if value is not None else None
    step, *rest = steps
    following = tuple(rest)
    if isinstance(step, str) and isinstance(value, Mapping):
        return {name: _masked(inner, following) if step in (name, "*") else inner for name, inner in value.items()}
    if not isinstance(step, str) and isinstance(value, list):
        return [_masked(inner, following) if step in (None, place) else inner for place, inner in enumerate(value)]
    return value


def _values(value: Any, steps: tuple[Step, ...]) -> Iterator[Any]:
    if not steps:
        yield value
        return
    step, *rest = steps
    following = tuple(rest)
    if isinstance(step, str) and isinstance(value, Mapping):
        for name, inner in value.items():
            if step in (name, "*"):
                yield from _values(inner, following)
    elif not isinstance(step, str) and isinstance(value, list):
        for place, inner in enumerate(value):
            if step in (None, place):
                yield from _values(inner, following)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)


def restore_masked(document: Any, stored: Any, paths: Sequence[str]) -> Any:
    """Returns a document in which each mask at a path is replaced by the stored value.

    A client that reads a document, changes another field and sends it back keeps the values that it did not see.
    """
    for path in paths:
        document = _restored(document, stored, _parse(path))
    return document


def _restored(value: Any, stored: Any, steps: tuple[Step, ...]) -> Any:
    if not steps:
        return stored if value == MASK and stored is not None else value
    step, *rest = steps
    following = tuple(rest)
    if isinstance(step, str) and isinstance(value, Mapping):
        before = stored if isinstance(stored, Mapping) else {}
        return {
            name: _restored(inner, before.get(name), following) if step in (name, "*") else inner
            for name, inner in value.items()
        }
    if not isinstance(step, str) and isinstance(value, list):
        items = stored if isinstance(stored, list) and len(stored) == len(value) else [None] * len(value)
        return [
            _restored(inner, items[place], following) if step in (None, place) else inner
            for place, inner in enumerate(value)
        ]
    return value
