"""Events: list and stream; and the stream of change counters that consoles listen to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, Final
from uuid import UUID

import msgspec
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.http import change_feed
from bellringer.api.http.error_responses import Refused
from bellringer.api.http.event_feed import EventReader
from bellringer.api.http.operation import CURSOR_PARAMETER, LIMIT_PARAMETER, choice, operation, string
from bellringer.api.http.request import BigInt, RequestContext, find_job, reply
from bellringer.api.http.sse import (
    HEARTBEAT_COMMENT,
    HEARTBEAT_SECONDS,
    MAX_STREAM_SECONDS,
    SSE,
    accepts,
    encode_event,
    stream,
)
from bellringer.api.render import documents
from bellringer.durations import format_duration
from bellringer.engine.prune import Retention
from bellringer.errors import InvalidInput
from bellringer.schedule import Schedule, to_document
from bellringer.schedule.instants import write_instant
from bellringer.schedule.time_zones import tz_version
from bellringer.store import events, tzdata
from bellringer.store.change_counters import ChangeCounters, load_counters
from bellringer.store.events import CommitPosition, EventKind, EventRow, events_after
from bellringer.wire.cluster import TzMove, TzMoves
from bellringer.wire.events import Event, EventPage
from bellringer.wire.overview import Pulse
from bellringer.wire.routes import Routes

_ID: Final = re.compile(r"([0-9]{1,19})-([0-9]{1,19})-([0-9]{1,11})", re.ASCII)
_MAX_INT64: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFilter:
    """Which events a stream sends, and how they are rendered."""

    kind: str | None
    job_id: UUID | None
    shown: Callable[[EventRow], Any]

    def takes(self, happened: EventRow) -> bool:
        of_kind = self.kind is None or happened.kind == self.kind
        return of_kind and (self.job_id is None or happened.key.job_id == self.job_id)


async def stream_events(call: RequestContext, wanted: StreamFilter) -> Response:
    """Streams events from now on, or after `Last-Event-ID`."""
    after = await _last_seen(call)
    call.service.streams.streams.check(call.tenant_id)
    return stream(_event_chunks(call, wanted, after))


async def _last_seen(call: RequestContext) -> CommitPosition | None:
    text = call.request.headers.get("last-event-id", "")
    if not text:
        return None
    match = _ID.fullmatch(text)
    if match is None or max(int(match[1]), int(match[2])) > _MAX_INT64:
        raise Refused(400, "cursor_invalid", "Last-Event-ID is not an id of this stream", hint="start again without it")
    oldest = await call.store.now() - Retention().events
    if int(match[3]) < oldest.timestamp():
        raise Refused(
            410,
            "cursor_expired",
            "events of that time are no longer stored",
            hint="start again without Last-Event-ID; the events in between cannot be streamed",
        )
    return CommitPosition(int(match[1]), int(match[2]))


def _id(place: CommitPosition, at: datetime) -> str:
    return f"{place.tx}-{place.event_id}-{int(at.timestamp())}"


async def _event_chunks(
    call: RequestContext, wanted: StreamFilter, after: CommitPosition | None
) -> AsyncIterator[bytes]:
    service, tenant_id = call.service, call.tenant_id
    feed, clock = service.streams.feed, service.clock
    end = clock.monotonic() + MAX_STREAM_SECONDS
    with service.streams.streams.taken(tenant_id):
        async with feed.read(service.store, clock, tenant_id) as reader:
            yield _heartbeat(after or reader.start, await call.store.now())
            if after is not None:
                async for part in _earlier_events(call, wanted, after, reader):
                    yield part
            while clock.monotonic() < end and not service.streams.is_closing:
                found = await reader.next(HEARTBEAT_SECONDS)
                if not await call.is_still_admitted():
                    return
                if found is not None and wanted.takes(found[1]):
                    yield _sse_event(found, wanted)
                elif found is None and reader.is_cut:
                    return
                elif found is None and reader.is_even:
                    yield _heartbeat(feed.position(tenant_id) or reader.start, clock.now())


async def _earlier_events(
    call: RequestContext, wanted: StreamFilter, after: CommitPosition, reader: EventReader
) -> AsyncIterator[bytes]:
    """Yields the events between the last id and the start of the reader, which receives the rest."""
    while after < reader.start and await call.is_still_admitted():
        found = (await events_after(call.store, {call.tenant_id: after}))[call.tenant_id]
        for place, happened in found.events:
            if place <= reader.start and wanted.takes(happened):
                yield _sse_event((place, happened), wanted)
        if found.is_all:
            return
        after = found.position


def _sse_event(found: tuple[CommitPosition, EventRow], wanted: StreamFilter) -> bytes:
    place, happened = found
    return encode_event(wanted.shown(happened), name=happened.kind, number=_id(place, happened.at))


def _heartbeat(place: CommitPosition, at: datetime) -> bytes:
    """Encodes a heartbeat comment; its id is the position that the stream has reached, even without events."""
    return f": still here\nid: {_id(place, at)}\n\n".encode()


_DURATION_FIELDS: Final = frozenset(
    {"blocked_for", "late_after", "retry_in", "running_for", "waiting_for", "usual", "longest", "interval"}
)
_INSTANT_FIELDS: Final = frozenset({"due", "from", "since", "to", "orphaned_at", "changed_at"})
_MILLISECOND: Final = timedelta(milliseconds=1)


class EventMark(msgspec.Struct, frozen=True, array_like=True):
    """The position of an event in a list."""

    event_id: BigInt


@operation(
    Routes.events,
    role=Role.VIEWER,
    query=(
        LIMIT_PARAMETER,
        CURSOR_PARAMETER,
        choice("kind", "only events of this kind", list(EventKind)),
        string("job", "only events of this job, by id or name"),
    ),
    problems=(404, 410),
    streams=True,
)
async def listing(call: RequestContext) -> Response:
    """Lists events, the newest first.

    With `Accept: text/event-stream`, streams events from now on, or after `Last-Event-ID`.
    """
    query = call.query()
    limit, kind, job = call.limit(), _kind(query.get("kind")), query.get("job")
    job_id = None if job is None else await find_job(call, job)
    of = f"events {kind or ''} {job_id or ''}"
    mark = call.cursor(of, EventMark)
    before = mark.event_id if mark else None
    if call.may_stream and accepts(call.request.headers.get("accept", ""), SSE):
        return await stream_events(call, StreamFilter(kind=kind, job_id=job_id, shown=_render_event))
    found = await events.newest(call.store, call.tenant_id, before, limit + 1, kind=kind, job_id=job_id)
    following = call.cursor_to(of, EventMark(found[limit - 1].event_id)) if len(found) > limit else None
    return reply(EventPage(items=[_render_event(e) for e in found[:limit]], next_cursor=following))


@operation(Routes.tz_moves, role=Role.VIEWER, query=(LIMIT_PARAMETER,))
async def tz_moves(call: RequestContext) -> Response:
    """Lists fires that new time zone rules have moved, the newest first.

    Callers of a tenant see only schedules that its jobs have, as counted within the last minute.
    """
    call.query()
    if call.caller.everywhere:
        found = await tzdata.recent_moves(call.service.store, call.limit())
    else:
        found = await tzdata.recent_moves_of_tenant(call.store, call.tenant_id, call.limit())
    schedules = await call.catalog.schedules({moved.schedule_id for moved in found})
    followed = Counter(applied.rules.version for applied in (await tzdata.applied_rules(call.store)).values())
    items = [_move(moved, schedules[moved.schedule_id]) for moved in found if moved.schedule_id in schedules]
    shards = await call.catalog.shard_count()
    return reply(TzMoves(version=tz_version(), applied=dict(followed), shards=shards, items=items))


def _kind(text: str | None) -> EventKind | None:
    if text is None:
        return None
    try:
        return EventKind(text)
    except ValueError:
        near = get_close_matches(text[:40], list(EventKind), n=1)
        hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(EventKind)}"
        raise InvalidInput(f"unknown kind {text[:40]!r}", hint=hint, code="kind_unknown") from None


def _render_event(stored: events.EventRow) -> Event:
    key = stored.key
    return Event(
        event_id=stored.event_id,
        at=stored.at,
        kind=stored.kind,
        job_id=str(key.job_id),
        job=stored.job,
        run_id=stored.run.id if stored.run else None,
        scheduled_for=key.scheduled_for,
        attempt=stored.attempt,
        data={name: _render_data(name, value) for name, value in stored.data.items()},
    )


def _render_data(name: str, value: Any) -> Any:
    """Renders durations and instants as in other responses, and the reasons why a run waits as text."""
    if name == "blocked":
        return documents.blocked(value)
    if name in _DURATION_FIELDS and isinstance(value, int | float):
        return _length(timedelta(seconds=value))
    if name in _INSTANT_FIELDS and isinstance(value, str):
        return write_instant(datetime.fromisoformat(value))
    return value


def _length(length: timedelta | None) -> str | None:
    return None if length is None else format_duration(round(length / _MILLISECOND) * _MILLISECOND)


def _move(moved: tzdata.MovedCohorts, schedule: Schedule) -> TzMove:
    return TzMove(
        version=moved.version,
        schedule=to_document(schedule),
        description=schedule.describe(),
        jobs=moved.jobs,
        shards=len(moved.shards),
        old_next=moved.old_next,
        new_next=moved.new_next,
        moved_at=moved.moved_at,
    )


@operation(Routes.pulse, role=Role.VIEWER, streams=True)
async def get_changes(call: RequestContext) -> Response:
    """Returns counters that differ when something has changed: runs, jobs, dead letters, events, workers and
    schedulers.

    With `Accept: text/event-stream`, streams them at once and after each change, at most once a second.
    """
    call.query()
    if call.may_stream and accepts(call.request.headers.get("accept", ""), SSE):
        call.service.streams.streams.check(call.tenant_id)
        return stream(_change_chunks(call))
    return reply(_encode_changes((await load_counters(call.service.store, [call.tenant_id]))[call.tenant_id]))


async def _change_chunks(call: RequestContext) -> AsyncIterator[bytes]:
    service, tenant_id = call.service, call.tenant_id
    streams, clock = service.streams, service.clock
    end = clock.monotonic() + MAX_STREAM_SECONDS
    with streams.streams.taken(tenant_id):
        async with streams.beats.listen(service.store, clock, tenant_id) as beat:
            known = beat.seen
            yield encode_event(_encode_changes(known))
            while clock.monotonic() < end and not streams.is_closing:
                await clock.sleep(change_feed.CHANGE_POLL_SECONDS)
                differs = await beat.differs(known, HEARTBEAT_SECONDS)
                if not await call.is_still_admitted():
                    return
                known = beat.seen
                yield encode_event(_encode_changes(known)) if differs else HEARTBEAT_COMMENT


def _encode_changes(seen: ChangeCounters) -> Pulse:
    return Pulse(**seen._asdict())
