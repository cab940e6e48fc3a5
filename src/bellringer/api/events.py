"""Events: what people want to be told of, what it is judged by, and what new rules of the time zones have moved."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, Final

import msgspec
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api import documents
from bellringer.api.calls import BigInt, Call, find_job, no_job, reply
from bellringer.api.event_streams import Wanted, follow
from bellringer.api.operations import CURSOR, LIMIT, choice, operation, string
from bellringer.api.streams import SSE, wants
from bellringer.durations import format_duration
from bellringer.errors import InvalidInput
from bellringer.lifecycle import watch
from bellringer.schedule import Schedule, to_document
from bellringer.schedule.instants import write_instant
from bellringer.schedule.tzversion import tz_version
from bellringer.store import events, tz
from bellringer.store.events import Kind
from bellringer.wire.events import Baseline, Event, EventPage, TzMove, TzMoves

_LENGTHS: Final = frozenset({"late_after", "retry_in", "running_for", "usual", "longest", "interval"})
_INSTANTS: Final = frozenset({"due", "from", "since", "to"})
_MILLISECOND: Final = timedelta(milliseconds=1)


class EventMark(msgspec.Struct, frozen=True, array_like=True):
    """The last event of a page."""

    event_id: BigInt


@operation(
    "events",
    role=Role.VIEWER,
    answers={200: (EventPage, SSE)},
    query=(
        LIMIT,
        CURSOR,
        choice("kind", "only those of this kind", list(Kind)),
        string("job", "only those of this job, by id or name"),
    ),
    problems=(404, 410),
    streams=True,
)
async def listing(call: Call) -> Response:
    """The newest events; `kind` and `job` keep to some.

    Where `Accept` asks for `text/event-stream`, those that happen from now on, or after `Last-Event-ID`.
    """
    query = call.query()
    limit, kind, job = call.limit(), _kind(query.get("kind")), query.get("job")
    job_id = None if job is None else await find_job(call, job)
    of = f"events {kind or ''} {job_id or ''}"
    mark = call.cursor(of, EventMark)
    before = mark.event_id if mark else None
    if call.goes_on and wants(call.request.headers.get("accept", ""), SSE):
        return await follow(call, Wanted(kind=kind, job_id=job_id, shown=_event))
    found = await events.newest(call.store, call.tenant_id, before, limit + 1, kind=kind, job_id=job_id)
    following = call.cursor_to(of, EventMark(found[limit - 1].event_id)) if len(found) > limit else None
    return reply(EventPage(items=[_event(e) for e in found[:limit]], next_cursor=following))


@operation("jobs", role=Role.VIEWER, answers={200: Baseline})
async def baseline(call: Call) -> Response:
    """What is usual for a job."""
    call.query()
    job_id, tenant_id, now = await call.job_id(), call.tenant_id, await call.store.now()
    found = await watch.baseline(call.store, call.names, job_id, now, tenant_id=tenant_id)
    if found is None:
        raise no_job()
    return reply(
        Baseline(
            runs=found.runs,
            median=_length(found.median),
            longest=_length(found.longest),
            slow_after=_length(found.slow_after),
            interval=_length(found.interval),
            outgrown=found.outgrown,
        )
    )


@operation("cluster", role=Role.VIEWER, answers={200: TzMoves}, query=(LIMIT,))
async def tz_moves(call: Call) -> Response:
    """What new rules of the time zones have moved, the newest first.

    Callers of a tenant are told only of schedules that jobs of it have, as counted within the last minute.
    """
    call.query()
    if call.caller.everywhere:
        found = await tz.moves(call.service.store, call.limit())
    else:
        found = await tz.moves_of(call.store, call.tenant_id, call.limit())
    schedules = await call.names.schedules({moved.schedule_id for moved in found})
    followed = Counter(applied.rules.version for applied in (await tz.applied(call.store)).values())
    items = [_move(moved, schedules[moved.schedule_id]) for moved in found if moved.schedule_id in schedules]
    shards = await call.names.shards()
    return reply(TzMoves(version=tz_version(), applied=dict(followed), shards=shards, items=items))


def _kind(text: str | None) -> Kind | None:
    if text is None:
        return None
    try:
        return Kind(text)
    except ValueError:
        near = get_close_matches(text[:40], list(Kind), n=1)
        hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(Kind)}"
        raise InvalidInput(f"there is no kind {text[:40]!r}", hint=hint, code="kind_unknown") from None


def _event(stored: events.Event) -> Event:
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
        data={name: _shown(name, value) for name, value in stored.data.items()},
    )


def _shown(name: str, value: Any) -> Any:
    """Lengths of time and instants as everywhere else in answers; why a run waits, in words."""
    if name == "blocked":
        return documents.blocked(value)
    if name in _LENGTHS and isinstance(value, int | float):
        return _length(timedelta(seconds=value))
    if name in _INSTANTS and isinstance(value, str):
        return write_instant(datetime.fromisoformat(value))
    return value


def _length(length: timedelta | None) -> str | None:
    return None if length is None else format_duration(round(length / _MILLISECOND) * _MILLISECOND)


def _move(moved: tz.Moved, schedule: Schedule) -> TzMove:
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
