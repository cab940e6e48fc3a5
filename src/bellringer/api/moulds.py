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


class _Mould(NamedTuple):
    task: str
    defaults: Mapping[str, Any]  # of the task: once they are others, it is of no use any more
    cast: Callable[[str, Sequence[Any], Mapping[str, Any]], Definition]


class Moulds:
    """What was read before, by what such jobs have in common."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._kept: dict[bytes, _Mould] = {}

    async def definition(self, document: Any) -> Definition:
        """A job in words, or what is wrong with its document."""
        return self.again(document) or await self._first(document)

    def again(self, document: Any) -> Definition | None:
        """The same at once, where a mould fits; None: it has to be read in full, or refused."""
        if type(document) is not dict or ("payload" in document and "kwargs" in document):
            return None
        mould = self._kept.get(_likeness(document))
        if mould is None or self._desk.defaults_at_hand(mould.task) != mould.defaults:
            return None
        name, args = document.get("name"), document.get("args", [])
        kwargs = document.get("kwargs", document.get("payload", {}))
        if type(name) is not str or type(args) is not list or type(kwargs) is not dict:
            return None
        return mould.cast(name, args, kwargs)

    async def _first(self, document: Any) -> Definition:
        if not isinstance(document, dict):
            raise InvalidInput("a job is an object", code="type")
        request = read(JobRequest, document)
        task = task_of(request)
        defaults = await self._desk.task_defaults(task)
        definition = to_definition(filled(request, defaults))
        likeness = _likeness(document)
        if task != HTTP and len(likeness) <= LARGEST:  # what a call is made of are its arguments
            if len(self._kept) >= MOST:
                self._kept.clear()
            self._kept[likeness] = _Mould(task, defaults, definition.mould())
        return definition


def _likeness(document: Mapping[str, Any]) -> bytes:
    common = dict(document)
    for name in _OWN:
        common.pop(name, None)
    return msgspec.json.encode(common)
