"""Runs: execute a task now, read runs with their attempts and logs, cancel and retry."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from starlette.responses import Response

from bellringer.access import Role
from bellringer.api import documents
from bellringer.api.calls import Call, LineMark, RunMark, cursor_to, find_job, no_job, no_run, reply
from bellringer.api.operations import CURSOR, LIMIT, operation, string
from bellringer.errors import InvalidInput
from bellringer.jobs import DEFAULT_POOL, DEFAULT_PRIORITY, FARTHEST, check_name
from bellringer.lifecycle import control, send
from bellringer.lifecycle.send import Order
from bellringer.policies import Delivery, Retry
from bellringer.runs import RunKey
from bellringer.store import jobs, runs
from bellringer.store.wakeups import CANCELS, HANDS, WORK
from bellringer.wire import CancelRequest, Empty, ExecuteRequest, Lines, Run, RunPage, duration, instant, note
from bellringer.wire.asks import PREFIX
from bellringer.wire.definitions import delivery_of, filled, heartbeat_of, kwargs_of, retry_of, timeout_of
from bellringer.wire.reading import Gathering


@operation("runs", role=Role.OPERATOR, answers={200: Run, 202: Run}, body=ExecuteRequest)
async def execute(call: Call) -> Response:
    """Run a task without a job; the `Idempotency-Key` header is another place for `key`."""
    request = await call.body(ExecuteRequest)
    request = filled(request, await call.names.task_defaults(request.task))
    key = request.key if request.key is not None else call.request.headers.get("idempotency-key")
    now = None if request.delay is None else await call.store.now()
    order = _order(request, key, now)
    try:
        sent = await send.send(call.store, call.names, order, tenant_id=call.tenant_id)
    except InvalidInput as error:
        # An order is held to the rules of a job, and these point into a job's document.
        error.pointer = {"/schedule/at": _when(request), "/name": "/task"}.get(error.pointer, error.pointer)
        raise
    where = f"{PREFIX}/runs/{sent.key.id}"
    if not sent.created:
        return await run_reply(call, sent.key, created=False, Location=where, Idempotency_Replayed="true")
    await call.service.wake(WORK, sent.key.scheduled_for.isoformat())
    if order.at is not None:  # it may wait in a timer, and then a scheduler must look
        await call.service.wake(HANDS)
    return await run_reply(call, sent.key, 202, created=True, Location=where)


def _when(request: ExecuteRequest) -> str:
    return "/at" if request.at is not None else "/delay"


def _order(request: ExecuteRequest, key: str | None, now: datetime | None) -> Order:
    g = Gathering()
    if request.at is not None and request.delay is not None:
        g.add(InvalidInput("at and delay are both given", hint="give one", pointer="/delay", code="conflicting_fields"))
    kwargs: dict[str, Any] | None = g.take("/payload", lambda: kwargs_of(request), None)
    order = Order(
        task=g.take("/task", lambda: check_name(request.task, what="task", pointer="/task"), ""),
        args=request.args,
        kwargs=kwargs or {},
        at=g.take(_when(request), lambda: _moment(request, now), None),
        pool=request.pool or DEFAULT_POOL,
        priority=DEFAULT_PRIORITY if request.priority is None else request.priority,
        timeout=timeout_of(request, g),
        heartbeat=heartbeat_of(request, g),
        retry=g.take("/retry", lambda: retry_of(request.retry), Retry()),
        delivery=g.take("/delivery", lambda: delivery_of(request), Delivery.AT_LEAST_ONCE),
        key=key,
    )
    g.done()
    return order


def _moment(request: ExecuteRequest, now: datetime | None) -> datetime | None:
    """When to run it; `now` is read only where a delay is to be added to it."""
    length = duration(request.delay, what="delay", least=timedelta(0), most=FARTHEST)
    return instant(request.at, what="at") if length is None or now is None else now + length


@operation(
    "runs",
    role=Role.VIEWER,
    answers={200: RunPage},
    query=(LIMIT, CURSOR, string("job", "only those of this job, by id or name")),
    problems=(404,),
)
async def listing(call: Call) -> Response:
    """The newest runs; `job` keeps to those of one."""
    query = call.query()
    if "job" in query:
        return await _of_job(call, await find_job(call, query["job"]))
    limit = call.limit()
    mark = call.cursor("runs", RunMark)
    found = await runs.recent(call.store, call.tenant_id, _before(mark), limit + 1)
    return _page("runs", found, limit)


@operation("runs", role=Role.VIEWER, answers={200: RunPage}, query=(LIMIT, CURSOR))
async def of_job(call: Call) -> Response:
    call.query()
    return await _of_job(call, await call.job_id())


async def _of_job(call: Call, job_id: UUID) -> Response:
    limit, tenant_id, of = call.limit(), call.tenant_id, f"runs of {job_id}"
    mark = call.cursor(of, RunMark)
    if await jobs.get(call.store, job_id, tenant_id) is None:
        raise no_job()
    return _page(of, await runs.of_job(call.store, job_id, tenant_id, _before(mark), limit + 1), limit)


def _before(mark: RunMark | None) -> RunKey | None:
    return RunKey(mark.job_id, mark.scheduled_for, mark.slot) if mark else None


def _page(of: str, found: list[runs.Run], limit: int) -> Response:
    following = None
    if len(found) > limit:
        key = found[limit - 1].key
        following = cursor_to(of, RunMark(key.scheduled_for, key.job_id, key.slot))
    return reply(RunPage(items=[documents.run_item(r) for r in found[:limit]], next_cursor=following))


@operation("runs", role=Role.VIEWER, answers={200: Run})
async def get(call: Call) -> Response:
    call.query()
    return await run_reply(call, call.run_key())


@operation("runs", role=Role.VIEWER, answers={200: Lines}, query=(LIMIT, CURSOR))
async def logs(call: Call) -> Response:
    """What the handler logged, oldest first; a full page's cursor asks for the lines after it."""
    call.query()
    key, limit = call.run_key(), call.limit()
    of = f"logs of {key.id}"
    mark = call.cursor(of, LineMark)
    if await runs.get(call.store, key, call.tenant_id) is None:
        raise no_run()
    found = await runs.logs(call.store, key, mark.line if mark else 0, limit + 1)
    following = cursor_to(of, LineMark(found[limit - 1].line)) if len(found) > limit else None
    return reply(Lines(items=[documents.line(row) for row in found[:limit]], next_cursor=following))


@operation("runs", role=Role.OPERATOR, answers={200: Run, 202: Run}, body=CancelRequest, optional=True, problems=(409,))
async def cancel(call: Call) -> Response:
    """200: it is cancelled; 202: it runs, and is asked to stop."""
    request = await call.body(CancelRequest)
    reason = note(request.reason, what="reason") or "cancelled by request"
    key = call.run_key()
    state = await control.cancel(call.store, key, tenant_id=call.tenant_id, reason=reason)
    await call.service.wake(CANCELS)
    return await run_reply(call, key, 202 if state == "running" else 200)


@operation("runs", role=Role.OPERATOR, answers={202: Run}, body=Empty, optional=True, problems=(409,))
async def retry(call: Call) -> Response:
    await call.body(Empty)
    key = call.run_key()
    await control.retry(call.store, key, tenant_id=call.tenant_id)
    await call.service.wake(WORK, (await call.store.now()).isoformat())
    await call.service.wake(HANDS)  # a far retry waits in a timer
    return await run_reply(call, key, 202)


async def run_reply(
    call: Call, key: RunKey, status: int = 200, *, created: bool | None = None, **headers: str
) -> Response:
    """A run with its attempts."""
    stored = await runs.get(call.store, key, call.tenant_id)
    if stored is None:
        raise no_run()
    tries = [] if created else await runs.attempts(call.store, key)
    return reply(documents.run(stored, tries, created=created), status, **headers)
