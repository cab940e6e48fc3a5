"""Runs: execute a task now, read a run with its attempts, cancel and retry it."""

from __future__ import annotations

from datetime import datetime, timedelta

from starlette.responses import Response

from bellringer.access import Role
from bellringer.api import documents
from bellringer.api.bodies import JSON
from bellringer.api.calls import Call, no_run, reply
from bellringer.api.operations import operation
from bellringer.api.targets import prepared
from bellringer.errors import InvalidInput
from bellringer.jobs import DEFAULT_PRIORITY, FARTHEST, HTTP, pool_for
from bellringer.lifecycle import control, send
from bellringer.lifecycle.send import Order
from bellringer.policies import Delivery, Retry
from bellringer.runs import Cause, RunKey
from bellringer.store import flow_reads, runs
from bellringer.store.wakeups import CANCELS, HANDS, WORK
from bellringer.wire import CancelRequest, Empty, ExecuteRequest, Run, duration, instant, note
from bellringer.wire.asks import PREFIX
from bellringer.wire.definitions import (
    delivery_of,
    expected_of,
    filled,
    heartbeat_of,
    retry_of,
    timeout_of,
    what_of,
)
from bellringer.wire.reading import Gathering


@operation("runs", role=Role.OPERATOR, fires=True, answers={200: Run, 202: Run}, body=ExecuteRequest)
async def execute(call: Call) -> Response:
    """Run a task without a job; a `key` answers the run that an earlier order with it has made."""
    request = await call.body(ExecuteRequest)
    request = filled(request, await call.names.task_defaults(request.task or HTTP))
    now = None if request.delay is None else await call.store.now()
    order = await prepared(call, _order(request, now))
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


def _order(request: ExecuteRequest, now: datetime | None) -> Order:
    g = Gathering()
    if request.at is not None and request.delay is not None:
        g.add(InvalidInput("at and delay are both given", hint="give one", pointer="/delay", code="conflicting_fields"))
    task, kwargs = what_of(request, g)
    order = Order(
        task=task,
        args=request.args,
        kwargs=kwargs,
        at=g.take(_when(request), lambda: _moment(request, now), None),
        pool=request.pool or pool_for(task, expected_of(request, g)),
        priority=DEFAULT_PRIORITY if request.priority is None else request.priority,
        timeout=timeout_of(request, g),
        heartbeat=heartbeat_of(request, g),
        retry=g.take("/retry", lambda: retry_of(request.retry), Retry()),
        delivery=g.take("/delivery", lambda: delivery_of(request), Delivery.AT_LEAST_ONCE),
        key=request.key,
    )
    g.done()
    return order


def _moment(request: ExecuteRequest, now: datetime | None) -> datetime | None:
    """When to run it; `now` is read only where a delay is to be added to it."""
    length = duration(request.delay, what="delay", least=timedelta(0), most=FARTHEST)
    return instant(request.at, what="at") if length is None or now is None else now + length


@operation("runs", role=Role.VIEWER, answers={200: Run})
async def get(call: Call) -> Response:
    """A run with its attempts."""
    call.query()
    found = await call.service.desk.run(call.tenant_id, call.part("id"))
    if found is None:
        raise no_run()
    return Response(found, media_type=JSON)


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
    """Try a dead run again, or one that waits for its next try at once."""
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
    placed = await flow_reads.placed(call.store, call.tenant_id, [key]) if stored.cause == Cause.WORKFLOW else {}
    return reply(documents.run(stored, tries, created=created, placed=placed.get(key)), status, **headers)
