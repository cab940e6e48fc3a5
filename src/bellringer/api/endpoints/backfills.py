"""Backfills: plan, start, list, read, pause, resume and cancel."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from shlex import quote
from typing import Any, Final
from zoneinfo import ZoneInfo

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.http.operation import CURSOR_PARAMETER, LIMIT_PARAMETER, operation, string
from bellringer.api.http.request import BigInt, RequestContext, find_job, no_job, reply
from bellringer.core.policies import MAX_CATCHUP_RUNS_PER_MINUTE, Overlap
from bellringer.engine import backfill
from bellringer.engine.backfill import BackfillEstimate, BackfillWindow
from bellringer.errors import Conflict, InvalidInput, NotFound
from bellringer.schedule.instants import read_instant
from bellringer.store import backfills, jobs
from bellringer.store.jobs import JobRow
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
from bellringer.wire.decode import Gathering, note
from bellringer.wire.models import Empty, RequestWarning
from bellringer.wire.routes import PREFIX, Routes
from bellringer.wire.runs import CancelRequest

_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_NAIVE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9:.]+")
_BOUND_HINT: Final = (
    'write it like "2026-12-01" or "2026-12-01T09:00" in the time zone of the job, or "2026-12-01T09:00:00Z" in UTC'
)


class BackfillMark(msgspec.Struct, frozen=True, array_like=True):
    """The position of a backfill in a list."""

    backfill_id: BigInt


@operation(Routes.start_backfill, role=Role.OPERATOR, problems=(404, 409))
async def create(call: RequestContext) -> Response:
    """Starts a backfill: 202. With `dry_run`, returns its plan: 200."""
    request = await call.body(BackfillRequest)
    _check_terms(request)
    tenant_id = call.tenant_id
    job = await jobs.get(call.store, await find_job(call, request.job), tenant_id)
    if job is None:
        raise no_job()
    wish = _read_choice(request, job, await call.store.now())
    if request.dry_run:
        found = await backfill.estimate(call.store, call.catalog, wish, tenant_id=tenant_id)
        return reply(_plan(wish, found, _term_warnings(request, job)))
    number = await backfill.start(
        call.store,
        call.catalog,
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
    if r.rate is not None and not 0 < r.rate <= MAX_CATCHUP_RUNS_PER_MINUTE:
        g.add(_out_of_range("rate", f"a number of runs a minute, up to {MAX_CATCHUP_RUNS_PER_MINUTE}"))
    for name, value, known in (("order", r.order, ORDERS), ("reprocess", r.reprocess, REPROCESS)):
        if value not in known:
            message = f"unknown {name} {value[:40]!r}"
            g.add(InvalidInput(message, hint=f"use one of {', '.join(known)}", pointer=f"/{name}", code="choice"))
    g.done()


def _out_of_range(what: str, wanted: str) -> InvalidInput:
    return InvalidInput(f"{what} must be {wanted}", pointer=f"/{what}", code="limit")


def _read_choice(r: BackfillRequest, job: JobRow, now: datetime) -> BackfillWindow:
    g = Gathering()
    start = g.take("/from", lambda: read_bound(r.from_at, job.schedules, "from"), now)
    end = g.take("/to", lambda: read_bound(r.to_at, job.schedules, "to"), now)
    g.done()
    if end > now:
        hint = f"a backfill covers the past; the latest `to` is now, {now:%Y-%m-%dT%H:%M:%SZ}"
        raise InvalidInput("to is in the future", hint=hint, pointer="/to", code="in_future")
    if start >= end:
        raise InvalidInput("from must be before to", hint="`to` is exclusive", pointer="/from", code="range_empty")
    return BackfillWindow(job=job, from_at=start, to_at=end, reprocess=r.reprocess)


def read_bound(text: str, schedules: Sequence[Any], what: str) -> datetime:
    """Parses RFC 3339; a time without offset is in the job's zone, and a date means midnight there."""
    zone = next((s.timezone for s in schedules if getattr(s, "timezone", "")), "UTC")
    if _DATE.fullmatch(text):
        text += "T00:00:00"
    if not _NAIVE.fullmatch(text):
        return read_instant(text, what=what, hint=_BOUND_HINT)
    naive = read_instant(text + "Z", what=what).replace(tzinfo=None)
    return read_instant(naive.replace(tzinfo=ZoneInfo(zone)), what=what)


def _term_warnings(request: BackfillRequest, job: JobRow) -> list[RequestWarning]:
    """Returns a warning if the runs cannot execute in parallel, because runs of the job must not overlap."""
    if request.parallelism == 1 or job.overlap == Overlap.ALLOW:
        return []
    detail = f"the job's overlap is {job.overlap}, so one run executes at a time, not {request.parallelism}"
    hint = f"to run more, use `bellringer jobs update {quote(job.name)} --overlap allow`"
    return [RequestWarning("no_overlap", "/parallelism", detail, hint)]


def _plan(wish: BackfillWindow, found: BackfillEstimate, warnings: list[RequestWarning]) -> BackfillPlan:
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
        warnings=warnings or UNSET,
    )


@operation(
    Routes.backfills,
    role=Role.VIEWER,
    query=(LIMIT_PARAMETER, CURSOR_PARAMETER, string("job", "only backfills of this job, by id or name")),
    problems=(404,),
)
async def listing(call: RequestContext) -> Response:
    """Lists backfills, the newest first."""
    query = call.query()
    job_id = await find_job(call, query["job"]) if "job" in query else None
    limit, of = call.limit(), f"backfills {job_id or ''}"
    mark = call.cursor(of, BackfillMark)
    before = mark.backfill_id if mark else None
    found = await backfills.list_page(call.store, call.tenant_id, job_id, before, limit + 1)
    following = call.cursor_to(of, BackfillMark(found[limit - 1].backfill_id)) if len(found) > limit else None
    items = [BackfillItem(**_fields(b)) for b in found[:limit]]
    return reply(BackfillPage(items=items, next_cursor=following))


@operation(Routes.backfill, role=Role.VIEWER)
async def get(call: RequestContext) -> Response:
    """Returns a backfill with the states of its runs."""
    call.query()
    return await _backfill(call, _number(call))


@operation(Routes.pause_backfill, role=Role.OPERATOR, problems=(409,))
async def pause(call: RequestContext) -> Response:
    """Pauses a backfill."""
    await call.body(Empty)
    return await _set_paused(call, backfills.pause, "paused")


@operation(Routes.resume_backfill, role=Role.OPERATOR, problems=(409,))
async def resume(call: RequestContext) -> Response:
    """Resumes a paused backfill."""
    await call.body(Empty)
    return await _set_paused(call, backfills.resume, "running")


async def _set_paused(call: RequestContext, act: Callable[..., Awaitable[bool]], into: str) -> Response:
    """Pauses or resumes a backfill. Repeating the request changes nothing; an ended backfill is a conflict."""
    number, tenant_id = _number(call), call.tenant_id
    if not await act(call.store, number, tenant_id):
        stored = await backfills.get(call.store, number, tenant_id)
        if stored is not None and stored.state != into:
            raise Conflict(f"the backfill is {stored.state} already", hint="start another one for the rest")
    return await _backfill(call, number)


@operation(Routes.cancel_backfill, role=Role.OPERATOR, problems=(409,))
async def cancel(call: RequestContext) -> Response:
    """Cancels a backfill: it creates no more runs, waiting runs are cancelled, running ones finish."""
    request = await call.body(CancelRequest)
    reason = note(request.reason, what="reason") or "cancelled by request"
    number = _number(call)
    state = await backfills.end(call.store, number, call.tenant_id, "cancelled", reason)
    if state == "done":
        raise Conflict("the backfill has ended already", hint="cancel its runs one by one")
    return await _backfill(call, number)


def _number(call: RequestContext) -> int:
    return decode_backfill(call.part("id"))


async def _backfill(call: RequestContext, number: int, status: int = 200, **headers: str) -> Response:
    tenant_id = call.tenant_id
    stored = await backfills.get(call.store, number, tenant_id)
    if stored is None:
        raise NotFound("there is no such backfill")
    counts = await backfills.count_runs(call.store, stored, tenant_id)
    shown = Backfill(
        **_fields(stored),
        running=counts.running,
        succeeded=counts.succeeded,
        dead=counts.dead,
        cancelled=counts.cancelled,
    )
    return reply(shown, status, **headers)


def _fields(b: backfills.BackfillRow) -> dict[str, Any]:
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
