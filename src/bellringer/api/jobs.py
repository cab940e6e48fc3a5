"""Jobs: create, read, change, pause, resume, trigger and delete."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from starlette.responses import Response

from bellringer.access import Role
from bellringer.api import documents
from bellringer.api.bodies import JSON, MERGE_PATCH
from bellringer.api.calls import Call, no_job, reply
from bellringer.api.conditions import check_match, names
from bellringer.api.forecast import dry_run, wants_dry_run
from bellringer.api.job_changes import job_reply
from bellringer.api.operations import choice, flag, number, operation
from bellringer.api.runs import run_reply
from bellringer.api.targets import prepared, renewed
from bellringer.errors import Conflict, InvalidInput
from bellringer.jobs import FARTHEST, HTTP
from bellringer.lifecycle import control, register, send
from bellringer.policies import Missed
from bellringer.schedule.instants import read_instant
from bellringer.store import jobs
from bellringer.store.wakeups import CANCELS, HANDS, WORK
from bellringer.wire import (
    DryRun,
    Job,
    JobRequest,
    PauseRequest,
    Resumed,
    ResumeRequest,
    Run,
    TriggerRequest,
    duration,
    note,
    patched,
)
from bellringer.wire.asks import PREFIX
from bellringer.wire.definitions import kwargs_of, word
from bellringer.wire.reading import Gathering


@operation("jobs", role=Role.EDITOR, answers={202: Job}, body=JobRequest, problems=(409,))
async def create(call: Call) -> Response:
    """Make a job."""
    definition = await prepared(call, await call.service.moulds.definition(await call.document()))
    if call.store.gate.is_pinned:  # a transaction of its own, with its answer
        made = await register.create(call.store, call.names, definition, tenant_id=call.tenant_id, who=call.who)
    else:
        made = await call.service.creating.job(call.caller, definition, call.request_id)
    await call.service.wake(HANDS)
    location = f"{PREFIX}/jobs/{made.job_id}"
    return reply(documents.job(made), 202, ETag=f'"{made.revision}"', Location=location)


@operation("jobs", role=Role.VIEWER, answers={200: Job, 304: None})
async def get(call: Call) -> Response:
    """A job by its id or name; its ETag is its revision."""
    call.query()
    found = await call.service.desk.job(call.tenant_id, await call.job_id())
    if found is None:
        raise no_job()
    revision, data = found
    headers = {"ETag": f'"{revision}"'}
    if names(call.request.headers.get("if-none-match"), revision):
        return Response(status_code=304, headers=headers)
    return Response(data, headers=headers, media_type=JSON)


@operation(
    "jobs",
    role=Role.EDITOR,
    answers={200: Job | DryRun},
    body=JobRequest,
    media=(MERGE_PATCH, JSON),
    query=(
        flag("dry_run", "tell what it would do, and do nothing"),
        number("days", "how far a dry run looks ahead", 1, 366),
    ),
    conditional=True,
    problems=(409,),
)
async def change(call: Call) -> Response:
    """Apply a merge patch; with `dry_run=true` only tell what it would do."""
    is_dry = wants_dry_run(call.query())
    patch = await call.document()
    tenant_id, job_id = call.tenant_id, await call.job_id()
    stored = await jobs.get(call.store, job_id, tenant_id)
    if stored is None:
        raise no_job()
    expected = call.request.headers.get("if-match")
    check_match(expected, stored.revision)
    wanted = patched(stored.definition(), patch)
    if is_dry:
        return await dry_run(call, stored, wanted)
    before = stored.spec.kwargs if stored.task == HTTP else None
    definition = await prepared(call, wanted, before)
    [definition] = await register.as_stored(call.store, call.names, [definition], tenant_id=tenant_id)
    try:
        if not register.is_same(stored, definition):  # what changes nothing leaves no revision
            await register.change(
                call.store, call.names, job_id, stored.revision, definition, tenant_id=tenant_id, who=call.who
            )
    except Conflict:
        await _check_still(call, job_id, tenant_id, expected)
        raise
    await renewed(call, wanted, before)
    await call.service.wake(HANDS)
    return await job_reply(call, job_id)


async def _check_still(call: Call, job_id: UUID, tenant_id: int, expected: str | None) -> None:
    """A change that another one overtook fails by its condition, if it had one."""
    stored = await jobs.get(call.store, job_id, tenant_id)
    if stored is not None:
        check_match(expected, stored.revision)


@operation(
    "jobs",
    role=Role.EDITOR,
    answers={204: None},
    query=(choice("runs", "whether what runs may finish (keep), or is asked to stop (cancel)", ["keep", "cancel"]),),
    conditional=True,
)
async def delete(call: Call) -> Response:
    """End a job's future; what runs finishes, or is asked to stop."""
    wish = call.query().get("runs", "keep")
    if wish not in ("keep", "cancel"):
        raise InvalidInput("runs is keep or cancel", code="choice")
    job_id = await call.job_id()
    tenant_id = call.tenant_id
    if (expected := call.request.headers.get("if-match")) is not None:
        await _check_still(call, job_id, tenant_id, expected)
    await control.retire(call.store, job_id, tenant_id=tenant_id, who=call.who)
    if wish == "cancel":
        await jobs.stop_runs(call.store, job_id, tenant_id)
        await call.service.wake(CANCELS)
    return Response(status_code=204)


@operation("jobs", role=Role.OPERATOR, answers={200: Job}, body=PauseRequest, optional=True)
async def pause(call: Call) -> Response:
    """Let a job rest, until it is resumed or a time has come."""
    request = await call.body(PauseRequest)
    reason = note(request.reason, what="reason")
    until = None if request.until is None else _until(request.until, await call.store.now())
    job_id = await call.job_id()
    await control.pause(call.store, job_id, tenant_id=call.tenant_id, who=call.who, reason=reason, until=until)
    return await job_reply(call, job_id)


def _until(value: str | float, now: datetime) -> datetime:
    """An instant, or a length of time from now: what begins like a date is one."""
    if isinstance(value, str) and value[:4].isdecimal() and value[4:5] == "-":
        moment = read_instant(value, what="until", pointer="/until")
    else:
        try:
            length = duration(value, what="until", least=timedelta(seconds=1), most=FARTHEST)
        except InvalidInput as error:
            error.pointer = "/until"
            raise
        assert length is not None
        moment = now + length
    if not now < moment <= now + FARTHEST:
        raise InvalidInput("until must be in the next ten years", pointer="/until", code="limit")
    return moment


@operation("jobs", role=Role.OPERATOR, answers={200: Resumed}, body=ResumeRequest, optional=True)
async def resume(call: Call) -> Response:
    """Let a paused job go on, and say what becomes of what it missed."""
    request = await call.body(ResumeRequest)
    g = Gathering()
    missed = g.take("/missed", lambda: word(Missed, request.missed, "missed"), Missed.SKIP)
    g.done()
    job_id, tenant_id = await call.job_id(), call.tenant_id
    done = await register.resume(call.store, call.names, job_id, tenant_id=tenant_id, who=call.who, missed=missed)
    await call.service.wake(HANDS)
    await call.service.wake(WORK, (await call.store.now()).isoformat())  # what the pause held
    stored = await jobs.get(call.store, job_id, tenant_id)
    if stored is None:
        raise no_job()
    answer = Resumed(job=documents.job(stored), missed=done.missed, since=done.since, what=missed.value)
    return reply(answer, ETag=f'"{stored.revision}"')


@operation("jobs", role=Role.OPERATOR, fires=True, answers={202: Run}, body=TriggerRequest, optional=True)
async def trigger(call: Call) -> Response:
    """Run a job now, whatever its schedule says."""
    request = await call.body(TriggerRequest)
    kwargs = kwargs_of(request)
    job_id = await call.job_id()
    key = await send.trigger(call.store, job_id, tenant_id=call.tenant_id, args=request.args, kwargs=kwargs)
    await call.service.wake(WORK, key.scheduled_for.isoformat())
    return await run_reply(call, key, 202, Location=f"{PREFIX}/runs/{key.id}")
