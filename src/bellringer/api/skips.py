"""Skips: one coming occurrence that is not to run, and what is skipped of a job's future."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.calls import Call, no_job, reply
from bellringer.api.operations import CURSOR, LIMIT, moment, operation
from bellringer.errors import InvalidInput
from bellringer.jobs import FARTHEST
from bellringer.lifecycle import skip as skipping
from bellringer.schedule.instants import read_instant
from bellringer.store import jobs, skips
from bellringer.wire import note
from bellringer.wire.jobs import Skip, SkipPage, SkipRequest
from bellringer.wire.reading import Gathering


class SkipMark(msgspec.Struct, frozen=True, array_like=True):
    """The last skip of a page."""

    at: datetime

    def __post_init__(self) -> None:
        if self.at.utcoffset() != timedelta(0):
            raise ValueError("not a mark of ours")


@operation("jobs", role=Role.OPERATOR, answers={200: Skip}, body=SkipRequest, problems=(409,))
async def skip(call: Call) -> Response:
    """Let one coming occurrence not run; to say it again changes nothing."""
    request = await call.body(SkipRequest)
    now = await call.store.now()
    g = Gathering()
    at = g.take("/at", lambda: _instant(request.at, now), now)
    reason = g.take("/reason", lambda: note(request.reason, what="reason"), None)
    g.done()
    job_id = await call.job_id()
    made = await skipping.skip(call.store, job_id, at, tenant_id=call.tenant_id, who=call.who, reason=reason)
    return reply(_skip(made))


@operation(
    "jobs",
    role=Role.OPERATOR,
    answers={204: None},
    query=(moment("at", "the occurrence that is to run after all"),),
    problems=(409,),
)
async def unskip(call: Call) -> Response:
    """Let an occurrence run after all."""
    query = call.query()
    if "at" not in query:
        raise InvalidInput("at is missing", hint="name the occurrence: ?at=2026-01-01T03:00:00Z", code="missing_field")
    at = _instant(query["at"], await call.store.now())
    await skipping.unskip(call.store, await call.job_id(), at, tenant_id=call.tenant_id)
    return Response(status_code=204)


@operation("jobs", role=Role.VIEWER, answers={200: SkipPage}, query=(LIMIT, CURSOR))
async def listing(call: Call) -> Response:
    """What is skipped of a job's future, the next first."""
    call.query()
    job_id, limit = await call.job_id(), call.limit()
    of = f"skips of {job_id}"
    mark = call.cursor(of, SkipMark)
    if await jobs.get(call.store, job_id, call.tenant_id) is None:
        raise no_job()
    found = await skips.coming(call.store, job_id, call.tenant_id, mark.at if mark else None, limit + 1)
    following = call.cursor_to(of, SkipMark(found[limit - 1].at)) if len(found) > limit else None
    return reply(SkipPage(items=[_skip(s) for s in found[:limit]], next_cursor=following))


def _instant(text: str, now: datetime) -> datetime:
    at = read_instant(text, what="at")
    if not now - FARTHEST <= at <= now + FARTHEST:
        raise InvalidInput("at must be within ten years", pointer="/at", code="limit")
    return at


def _skip(stored: skips.Skip) -> Skip:
    return Skip(job_id=str(stored.job_id), at=stored.at, by=stored.who, reason=stored.reason, made_at=stored.made_at)
