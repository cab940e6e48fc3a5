"""Skips: upcoming occurrences of a job that will not run."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.http.operation import CURSOR_PARAMETER, LIMIT_PARAMETER, moment, operation
from bellringer.api.http.request import RequestContext, no_job, reply
from bellringer.core.jobs import MAX_RUN_AT_DISTANCE
from bellringer.engine import skip as skipping
from bellringer.errors import InvalidInput
from bellringer.schedule.instants import read_instant
from bellringer.store import job_history, jobs
from bellringer.wire.decode import Gathering, note
from bellringer.wire.jobs import Skip, SkipPage, SkipRequest
from bellringer.wire.routes import Routes


class SkipMark(msgspec.Struct, frozen=True, array_like=True):
    """The position of a skip in a list."""

    at: datetime

    def __post_init__(self) -> None:
        if self.at.utcoffset() != timedelta(0):
            raise ValueError("not a cursor of this list")


@operation(Routes.skip, role=Role.OPERATOR, problems=(409,))
async def skip(call: RequestContext) -> Response:
    """Skips one upcoming occurrence; repeating the request changes nothing."""
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
    Routes.unskip, role=Role.OPERATOR, query=(moment("at", "the occurrence that is to run again"),), problems=(409,)
)
async def unskip(call: RequestContext) -> Response:
    """Removes a skip, so that the occurrence runs."""
    query = call.query()
    if "at" not in query:
        raise InvalidInput("at is missing", hint="give the occurrence: ?at=2026-01-01T03:00:00Z", code="missing_field")
    at = _instant(query["at"], await call.store.now())
    await skipping.unskip(call.store, await call.job_id(), at, tenant_id=call.tenant_id)
    return Response(status_code=204)


@operation(Routes.skips, role=Role.VIEWER, query=(LIMIT_PARAMETER, CURSOR_PARAMETER))
async def listing(call: RequestContext) -> Response:
    """Lists the upcoming skips of a job, the next one first."""
    call.query()
    job_id, limit = await call.job_id(), call.limit()
    of = f"skips of {job_id}"
    mark = call.cursor(of, SkipMark)
    if await jobs.get(call.store, job_id, call.tenant_id) is None:
        raise no_job()
    found = await job_history.upcoming_skips(call.store, job_id, call.tenant_id, mark.at if mark else None, limit + 1)
    following = call.cursor_to(of, SkipMark(found[limit - 1].at)) if len(found) > limit else None
    return reply(SkipPage(items=[_skip(s) for s in found[:limit]], next_cursor=following))


def _instant(text: str, now: datetime) -> datetime:
    at = read_instant(text, what="at")
    if not now - MAX_RUN_AT_DISTANCE <= at <= now + MAX_RUN_AT_DISTANCE:
        raise InvalidInput("at must be within the next ten years", pointer="/at", code="limit")
    return at


def _skip(stored: job_history.SkipRow) -> Skip:
    return Skip(job_id=str(stored.job_id), at=stored.at, by=stored.who, reason=stored.reason, made_at=stored.made_at)
