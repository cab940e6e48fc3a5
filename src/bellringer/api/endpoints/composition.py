"""Workflow runs without a job, and waits for several runs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.endpoints.job_request_bodies import read_delay
from bellringer.api.endpoints.runs import MAX_WAIT_SECONDS, run_reply
from bellringer.api.http.json_body import RESPONSE_TIMEOUT_SECONDS
from bellringer.api.http.operation import operation
from bellringer.api.http.request import RequestContext, no_run, reply
from bellringer.api.http.verify_credentials import AuthenticationFailed, AuthFailureReason
from bellringer.api.render import documents
from bellringer.core.jobs import DEFAULT_POOL, DEFAULT_PRIORITY
from bellringer.core.runs import FINAL_STATES, RunKey, decode_run_id
from bellringer.engine import send
from bellringer.engine.send import WorkflowSend
from bellringer.errors import InvalidInput
from bellringer.store import run_lists, runs
from bellringer.store.runs import RunRow
from bellringer.wire.decode import Gathering, duration, instant
from bellringer.wire.definitions import LONGEST_TIMEOUT, SHORTEST_TIMEOUT
from bellringer.wire.routes import PREFIX, Routes
from bellringer.wire.runs import Waited, WaitRequest
from bellringer.wire.workflows import StartWorkflowRequest

MAX_WAITED_RUNS: Final = 1_000
FIRST_POLL_SECONDS: Final = 0.05
LONGEST_POLL_SECONDS: Final = 1.0


@operation(Routes.start_workflow, role=Role.OPERATOR, fires=True)
async def start_workflow(call: RequestContext) -> Response:
    """Runs a workflow without a job; if a workflow run with the same `key` exists, returns that run."""
    order = _read_start(await call.body(StartWorkflowRequest))
    wakeups = call.service.wakeups
    notify = wakeups is not None and wakeups.may_notify()
    sent = await send.send_workflow(call.store, call.catalog, order, tenant_id=call.tenant_id, notify=notify)
    if wakeups is not None and sent.created and not notify:
        wakeups.announce(sent.now, [sent.key.scheduled_for])
    where = f"{PREFIX}/runs/{sent.key.id}"
    if not sent.created:
        return await run_reply(call, sent.key, created=False, Location=where, Idempotency_Replayed="true")
    return await run_reply(call, sent.key, 202, created=True, Location=where)


def _read_start(request: StartWorkflowRequest) -> WorkflowSend:
    g = Gathering()
    if request.at is not None and request.delay is not None:
        g.add(InvalidInput("at and delay are both given", hint="give one", pointer="/delay", code="conflicting_fields"))
    if (request.workflow is None) == (request.name is None):
        both = request.workflow is not None
        message = "workflow and name are both given" if both else "workflow is missing"
        hint = "give the graph as workflow, or the name of a workflow job"
        g.add(
            InvalidInput(
                message, hint=hint, pointer="/workflow", code="conflicting_fields" if both else "missing_field"
            )
        )
    order = WorkflowSend(
        workflow=request.workflow if request.workflow is not None else request.name or "",
        params=request.params,
        at=g.take("/at", lambda: instant(request.at, what="at"), None),
        delay=g.take("/delay", lambda: read_delay(request.delay), None),
        pool=request.pool or DEFAULT_POOL,
        priority=DEFAULT_PRIORITY if request.priority is None else request.priority,
        timeout=g.take(
            "/timeout",
            lambda: duration(request.timeout, what="timeout", least=SHORTEST_TIMEOUT, most=LONGEST_TIMEOUT),
            None,
        ),
        key=request.key,
    )
    g.done()
    return order


@operation(Routes.wait_runs, role=Role.VIEWER, problems=(429,), streams=True)
async def wait_runs(call: RequestContext) -> Response:
    """Waits until all of up to 1,000 runs have ended, or one has: 200 when they have, 202 after the timeout."""
    request = await call.body(WaitRequest)
    keys = _read_ids(request)
    loop = asyncio.get_running_loop()
    end = loop.time() + request.timeout
    call.extend_timeout(request.timeout + RESPONSE_TIMEOUT_SECONDS)
    found = await _read_runs(call, keys)
    pending = [key for key, row in found.items() if row.state not in FINAL_STATES]
    pause = FIRST_POLL_SECONDS
    with call.service.streams.waits.taken(call.tenant_id):
        while not _is_over(pending, found, request):
            left = end - loop.time()
            if left <= 0 or call.service.streams.is_closing:
                return _waited(keys, await _read_runs(call, keys), 202)
            await call.service.clock.sleep(min(pause, left))
            pause = min(pause * 1.5, LONGEST_POLL_SECONDS)
            lasting = await run_lists.unfinished(call.store, pending)
            pending = [key for key in pending if key in lasting]
            if not await call.is_still_admitted():
                raise AuthenticationFailed(AuthFailureReason.KEY)
    return _waited(keys, await _read_runs(call, keys), 200)


def _is_over(pending: Sequence[RunKey], found: Mapping[RunKey, RunRow], request: WaitRequest) -> bool:
    return not pending or (request.any and len(pending) < len(found))


def _read_ids(request: WaitRequest) -> list[RunKey]:
    if not 0 < len(request.ids) <= MAX_WAITED_RUNS:
        raise InvalidInput(f"ids must have 1 to {MAX_WAITED_RUNS:,} runs", pointer="/ids", code="limit")
    if not 0 <= request.timeout <= MAX_WAIT_SECONDS:
        message = f"timeout must be a number of seconds from 0 to {MAX_WAIT_SECONDS}"
        raise InvalidInput(message, pointer="/timeout", code="limit_range")
    return [decode_run_id(run_id) for run_id in request.ids]


async def _read_runs(call: RequestContext, keys: Sequence[RunKey]) -> Mapping[RunKey, RunRow]:
    found = await runs.get_all(call.store, call.tenant_id, list(dict.fromkeys(keys)))
    if any(key not in found for key in keys):
        raise no_run()
    return found


def _waited(keys: Sequence[RunKey], found: Mapping[RunKey, RunRow], status: int) -> Response:
    rows = [found[key] for key in keys]
    ended = sum(row.state in FINAL_STATES for row in rows)
    headers = {"Retry_After": "1"} if status != 200 else {}
    return reply(Waited(items=[documents.render_run_item(row) for row in rows], ended=ended), status, **headers)
