"""Events as they happen, as server-sent events. Who was cut off goes on after the last id that he has seen."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from starlette.responses import Response

from bellringer.api.calls import Call
from bellringer.api.feeds import Reader
from bellringer.api.problems import Refused
from bellringer.api.streams import HEARTBEAT, LONGEST, event, stream
from bellringer.lifecycle.prune import Retention
from bellringer.store.events import Event
from bellringer.store.feed import Position, following

_ID: Final = re.compile(r"([0-9]{1,19})-([0-9]{1,19})-([0-9]{1,11})", re.ASCII)
_LARGEST: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which events, and how they are shown."""

    kind: str | None
    job_id: UUID | None
    shown: Callable[[Event], Any]

    def takes(self, happened: Event) -> bool:
        of_kind = self.kind is None or happened.kind == self.kind
        return of_kind and (self.job_id is None or happened.key.job_id == self.job_id)


async def follow(call: Call, wanted: Wanted) -> Response:
    """A stream of what happens from now on, or after `Last-Event-ID`."""
    after = await _last_seen(call)
    call.service.streams.streams.check(call.tenant_id)
    return stream(_flow(call, wanted, after))


async def _last_seen(call: Call) -> Position | None:
    text = call.request.headers.get("last-event-id", "")
    if not text:
        return None
    match = _ID.fullmatch(text)
    if match is None or max(int(match[1]), int(match[2])) > _LARGEST:
        raise Refused(400, "cursor_invalid", "Last-Event-ID is not one of this stream", hint="start again without it")
    oldest = await call.store.now() - Retention().events
    if int(match[3]) < oldest.timestamp():
        raise Refused(
            410,
            "cursor_expired",
            "events of that time are no longer kept",
            hint="start again without Last-Event-ID; what was passed over is lost to this stream",
        )
    return Position(int(match[1]), int(match[2]))


def _id(place: Position, at: datetime) -> str:
    return f"{place.tx}-{place.event_id}-{int(at.timestamp())}"


async def _flow(call: Call, wanted: Wanted, after: Position | None) -> AsyncIterator[bytes]:
    service, tenant_id = call.service, call.tenant_id
    feed, clock = service.streams.feed, service.clock
    end = clock.monotonic() + LONGEST
    with service.streams.streams.taken(tenant_id):
        async with feed.read(service.store, clock, tenant_id) as reader:
            yield _heart(after or reader.start, await call.store.now())
            if after is not None:
                async for part in _missed(call, wanted, after, reader):
                    yield part
            while clock.monotonic() < end and not service.streams.is_closing:
                found = await reader.next(HEARTBEAT)
                if not await call.still():
                    return
                if found is not None and wanted.takes(found[1]):
                    yield _event(found, wanted)
                elif found is None and reader.is_cut:
                    return
                elif found is None and reader.is_even:
                    yield _heart(feed.position(tenant_id) or reader.start, clock.now())


async def _missed(call: Call, wanted: Wanted, after: Position, reader: Reader) -> AsyncIterator[bytes]:
    """What happened between the last id and the start of the reader, which is given the rest."""
    while after < reader.start and await call.still():
        found = (await following(call.store, {call.tenant_id: after}))[call.tenant_id]
        for place, happened in found.events:
            if place <= reader.start and wanted.takes(happened):
                yield _event((place, happened), wanted)
        if found.is_all:
            return
        after = found.position


def _event(found: tuple[Position, Event], wanted: Wanted) -> bytes:
    place, happened = found
    return event(wanted.shown(happened), name=happened.kind, number=_id(place, happened.at))


def _heart(place: Position, at: datetime) -> bytes:
    """A sign of life; its id says how far the reader has come, also where nothing was for him."""
    return f": still here\nid: {_id(place, at)}\n\n".encode()
