"""Backfills: plan and start them, read them, pause, resume and cancel them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

import msgspec
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.calls import BigInt, Call, find_job, no_job, reply
from bellringer.api.operations import CURSOR, LIMIT, operation, string
from bellringer.errors import Conflict, InvalidInput, NotFound
from bellringer.lifecycle import backfill
from bellringer.lifecycle.backfill import Estimate, Wish
from bellringer.policies import FASTEST_RATE
from bellringer.schedule.instants import read_instant
from bellringer.store import backfills, jobs
from bellringer.store.jobs import Job
from bellringer.wire import CancelRequest, Empty, note
from bellringer.wire.asks import PREFIX
from bellringer.wire.backfills import (
    MOST_PARALLEL,
    ORDERS,
    REPROCESS,
    Backfill,
    BackfillItem,
    BackfillPage,
    BackfillPlan,
    BackfillRequest,
    decode_backfill,
    encode_backfill,
)
from bellringer.wire.reading import Gathering

_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_NAIVE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9:.]+")


class BackfillMark(msgspec.Struct, frozen=True, array_like=True):
    """The last backfill of a page."""

    backfill_id: BigInt


@operation(
    "backfills",
    role=Role.OPERATOR,
    answers={200: BackfillPlan, 202: Backfill},
    body=BackfillRequest,
    problems=(404, 409),
)
async def create(call: Call) -> Response:
    """200 with the plan of a dry run, or 202 with the backfill."""
    request = await call.body(BackfillRequest)
    _check_terms(request)
    tenant_id = call.tenant_id
    job = await jobs.get(call.store, await find_job(call, request.job), tenant_id)
    if job is None:
        raise no_job()
    wish = _wish(request, job, await call.store.now())
    if request.dry_run:
        return reply(_plan(wish, await backfill.estimate(call.store, call.names, wish, tenant_id=tenant_id)))
    number = await backfill.start(
        call.store,
        call.names,
        wish,
        newest_first=request.order == "newest",
        parallelism=request.parallelism,
        rate=request.rate,
        plan=request.plan,
        tenant_id=tenant_id,
        who=call.who,
    )
    return await _backfill(call, number, 202, Location=f"{PREFIX}/backfills/{encode_backfill(number)}")


def _check_terms(r: BackfillRequest) -> None:
    g = Gathering()
    if not 1 <= r.parallelism <= MOST_PARALLEL:
        g.add(_out_of_range("parallelism", f"a whole number from 1 to {MOST_PARALLEL}"))
    if r.rate is not None and not 0 < r.rate <= FASTEST_RATE:
        g.add(_out_of_range("rate", f"a number of runs a minute, up to {FASTEST_RATE}"))
    for name, value, known in (("order", r.order, ORDERS), ("reprocess", r.reprocess, REPROCESS)):
        if value not in known:
            message = f"{name} {value[:40]!r} is not known"
            g.add(InvalidInput(message, hint=f"use one of {', '.join(known)}", pointer=f"/{name}", code="choice"))
    g.done()


def _out_of_range(what: str, wanted: str) -> InvalidInput:
    return InvalidInput(f"{what} must be {wanted}", pointer=f"/{what}", code="limit")


def _wish(r: BackfillRequest, job: Job, now: datetime) -> Wish:
    g = Gathering()
    start = g.take("/from", lambda: read_bound(r.from_at, job.schedules, "from"), now)
    end = g.take("/to", lambda: read_bound(r.to_at, job.schedules, "to"), now)
    g.done()
    if end > now:
        hint = f"a backfill runs what is past; the latest `to` is now, {now:%Y-%m-%dT%H:%M:%SZ}"
        raise InvalidInput("to is in the future", hint=hint, pointer="/to", code="in_future")
    if start >= end:
        raise InvalidInput(
            "from is not before to", hint="`to` itself is not in it", pointer="/from", code="range_empty"
        )
    return Wish(job=job, from_at=start, to_at=end, reprocess=r.reprocess)


def read_bound(text: str, schedules: Sequence[Any], what: str) -> datetime:
    """RFC 3339; a time without offset is one of the job's zone, and a date alone is its midnight there."""
    zone = next((s.timezone for s in schedules if getattr(s, "timezone", "")), "UTC")
    if _DATE.fullmatch(text):
        text += "T00:00:00"
    if not _NAIVE.fullmatch(text):
        return read_instant(text, what=what)
    naive = read_instant(text + "Z", what=what).replace(tzinfo=None)
    return read_instant(naive.replace(tzinfo=ZoneInfo(zone)), what=what)


def _plan(wish: Wish, found: Estimate) -> BackfillPlan:
    return BackfillPlan(
        job_id=str(wish.job.job_id),
        job=wish.job.name,
        from_at=wish.from_at,
        to_at=wish.to_at,
        count=found.count,
        already_ran=found.already_ran,
        to_run=found.to_run,
        exact=found.exact,
        first=found.first,
        last=found.last,
        plan=found.plan,
    )


@operation(
    "backfills",
    role=Role.VIEWER,
    answers={200: BackfillPage},
    query=(LIMIT, CURSOR, string("job", "only those of this job, by id or name")),
    problems=(404,),
)
async def listing(call: Call) -> Response:
    """The newest first; `job` keeps to those of one."""
    query = call.query()
    job_id = await find_job(call, query["job"]) if "job" in query else None
    limit, of = call.limit(), f"backfills {job_id or ''}"
    mark = call.cursor(of, BackfillMark)
    before = mark.backfill_id if mark else None
    found = await backfills.listing(call.store, call.tenant_id, job_id, before, limit + 1)
    following = call.cursor_to(of, BackfillMark(found[limit - 1].backfill_id)) if len(found) > limit else None
    items = [BackfillItem(**_fields(b)) for b in found[:limit]]
    return reply(BackfillPage(items=items, next_cursor=following))


@operation("backfills", role=Role.VIEWER, answers={200: Backfill})
async def get(call: Call) -> Response:
    """A backfill with what became of its runs."""
    call.query()
    return await _backfill(call, _number(call))


@operation("backfills", role=Role.OPERATOR, answers={200: Backfill}, body=Empty, optional=True, problems=(409,))
async def pause(call: Call) -> Response:
    """Let a backfill rest."""
    await call.body(Empty)
    return await _steer(call, backfills.pause, "paused")


@operation("backfills", role=Role.OPERATOR, answers={200: Backfill}, body=Empty, optional=True, problems=(409,))
async def resume(call: Call) -> Response:
    """Let a paused backfill go on."""
    await call.body(Empty)
    return await _steer(call, backfills.resume, "running")


async def _steer(call: Call, act: Callable[..., Awaitable[bool]], into: str) -> Response:
    """Repeating it changes nothing more; what has ended stays as it is."""
    number, tenant_id = _number(call), call.tenant_id
    if not await act(call.store, number, tenant_id):
        stored = await backfills.get(call.store, number, tenant_id)
        if stored is not None and stored.state != into:
            raise Conflict(f"the backfill is {stored.state} already", hint="start another one for what is left")
    return await _backfill(call, number)


@operation("backfills", role=Role.OPERATOR, answers={200: Backfill}, body=CancelRequest, optional=True, problems=(409,))
async def cancel(call: Call) -> Response:
    """It makes no more runs, what waits of it is cancelled, what runs finishes."""
    request = await call.body(CancelRequest)
    reason = note(request.reason, what="reason") or "cancelled by request"
    number = _number(call)
    state = await backfills.end(call.store, number, call.tenant_id, "cancelled", reason)
    if state == "done":
        raise Conflict("the backfill is done already", hint="cancel its runs one by one")
    return await _backfill(call, number)


def _number(call: Call) -> int:
    return decode_backfill(call.part("id"))


async def _backfill(call: Call, number: int, status: int = 200, **headers: str) -> Response:
    tenant_id = call.tenant_id
    stored = await backfills.get(call.store, number, tenant_id)
    if stored is None:
        raise NotFound("there is no such backfill")
    counts = await backfills.counts(call.store, stored, tenant_id)
    shown = Backfill(
        **_fields(stored),
        running=counts.running,
        succeeded=counts.succeeded,
        dead=counts.dead,
        cancelled=counts.cancelled,
    )
    return reply(shown, status, **headers)


def _fields(b: backfills.Backfill) -> dict[str, Any]:
    return {
        "backfill_id": encode_backfill(b.backfill_id),
        "job_id": str(b.job_id),
        "job": b.job,
        "cause": b.cause,
        "state": b.state,
        "from_at": b.from_at,
        "to_at": b.to_at,
        "cursor": b.cursor,
        "order": "newest" if b.newest_first else "oldest",
        "reprocess": b.reprocess,
        "parallelism": b.parallelism,
        "rate": b.rate,
        "total": b.total,
        "made": b.made,
        "passed": b.passed,
        "created_at": b.created_at,
        "ended_at": b.ended_at,
        "who": b.who,
        "why": b.why,
    }
