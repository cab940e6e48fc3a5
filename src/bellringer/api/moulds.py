"""Reads the documents of jobs. One that differs only in name and arguments from one that was read before is made from
what that gave: who creates many jobs mostly creates the same one under many names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from bellringer.api.reads import Desk
from bellringer.errors import InvalidInput
from bellringer.jobs import HTTP, Definition
from bellringer.wire import JobRequest, read, to_definition
from bellringer.wire.definitions import filled, task_of

MOST: Final = 1_000  # kinds that are kept
LARGEST: Final = 4096  # bytes of what jobs of a kind have in common
_OWN: Final = ("name", "args", "kwargs", "payload")  # what differs between jobs that are alike


class Mould(NamedTuple):
    """What jobs that are alike are made from."""

    task: str
    defaults: Mapping[str, Any]  # of the task: once they are others, it is of no use any more
    make: Callable[[str, Sequence[Any], Mapping[str, Any]], Definition]

    def cast(self, document: Mapping[str, Any]) -> Definition | None:
        """None: what is its own has to be read in full, or refused."""
        name, args = document.get("name"), document.get("args", [])
        kwargs = document.get("kwargs", document.get("payload", {}))
        if type(name) is not str or type(args) is not list or type(kwargs) is not dict:
            return None
        return self.make(name, args, kwargs)


class Moulds:
    """Of all requests, by what such jobs have in common; the latest of them."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._kept: dict[bytes, Mould] = {}

    async def definition(self, document: Any) -> Definition:
        """A job in words, or what is wrong with its document."""
        reading = Reading(self)
        return reading.again(document) or await reading.first(document)

    def fitting(self, likeness: bytes) -> Mould | None:
        mould = self._kept.get(likeness)
        return mould if mould and self._desk.defaults_at_hand(mould.task) == mould.defaults else None

    async def read(self, document: Any, likeness: bytes | None) -> tuple[Definition, Mould | None]:
        """A job that is read in full, and what others like it can be made from."""
        if not isinstance(document, dict):
            raise InvalidInput("a job is an object", code="type")
        request = read(JobRequest, document)
        task = task_of(request)
        defaults = await self._desk.task_defaults(task)
        definition = to_definition(filled(request, defaults))
        if likeness is None or len(likeness) > LARGEST or task == HTTP:  # what a call is made of are its arguments
            return definition, None
        mould = Mould(task, defaults, definition.mould())
        self._kept.pop(likeness, None)
        if len(self._kept) >= MOST:
            del self._kept[next(iter(self._kept))]  # whoever has many kinds shall not empty it for the others
        self._kept[likeness] = mould
        return definition, mould


class Reading:
    """The jobs of one request, however many kinds they are of: a mould that it has used fits to its end."""

    def __init__(self, moulds: Moulds) -> None:
        self._moulds = moulds
        self._used: dict[bytes, Mould] = {}

    def again(self, document: Any) -> Definition | None:
        """At once, where a mould fits; None: it has to be read in full, or refused."""
        likeness = _likeness(document)
        if likeness is None:
            return None
        mould = self._used.get(likeness)
        if mould is None:
            mould = self._moulds.fitting(likeness)
            if mould is None:
                return None
            self._used[likeness] = mould
        return mould.cast(document)

    async def first(self, document: Any) -> Definition:
        likeness = _likeness(document)
        definition, mould = await self._moulds.read(document, likeness)
        if mould is not None and likeness is not None:
            self._used[likeness] = mould
        return definition


def _likeness(document: Any) -> bytes | None:
    """What is the same for jobs that are alike; None: no mould can fit."""
    if type(document) is not dict or ("payload" in document and "kwargs" in document):
        return None
    common = document.copy()
    for name in _OWN:
        common.pop(name, None)
    return msgspec.json.encode(common)
