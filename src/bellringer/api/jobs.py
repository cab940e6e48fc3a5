"""Jobs: create, read, change, pause, resume, trigger and delete."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from starlette.responses import Response

from bellringer.access import Role
from bellringer.api import documents
from bellringer.api.bodies import JSON, MERGE_PATCH
from bellringer.api.calls import Call, JobMark, cursor_to, no_job, reply
from bellringer.api.forecast import dry_run, wants_dry_run
from bellringer.api.operations import CURSOR, LIMIT, flag, number, operation, string
from bellringer.api.problems import Refused
from bellringer.api.runs import run_reply
from bellringer.errors import Conflict, InvalidInput
from bellringer.jobs import FARTHEST, check_name
from bellringer.lifecycle import control, register, send
from bellringer.policies import Missed
from bellringer.schedule.instants import read_instant
from bellringer.store import jobs
from bellringer.store.wakeups import HANDS, WORK
from bellringer.wire import (
    DryRun,
    Job,
    JobPage,
    JobRequest,
    PauseRequest,
    Resumed,
    ResumeRequest,
    Run,
    TriggerRequest,
    duration,
    note,
    patched,
    to_definition,
)
from bellringer.wire.asks import PREFIX
from bellringer.wire.definitions import filled, kwargs_of, word
from bellringer.wire.reading import Gathering


@operation(
    "jobs",
    role=Role.VIEWER,
    answers={200: JobPage},
    query=(LIMIT, CURSOR, string("name", "the job of exactly this name")),
)
async def listing(call: Call) -> Response:
    """All jobs by their ids, or the one of a name."""
    query = call.query()
    limit = call.limit()
    tenant_id = call.tenant_id
    if "name" in query:
        return reply(JobPage(items=[documents.job(j) for j in await _named(call, tenant_id, query["name"])]))
    mark = call.cursor("jobs", JobMark)
    found = await jobs.listing(call.store, tenant_id, mark.job_id if mark else None, limit + 1)
    following = cursor_to("jobs", JobMark(found[limit - 1].job_id)) if len(found) > limit else None
    return reply(JobPage(items=[documents.job(j) for j in found[:limit]], next_cursor=following))


async def _named(call: Call, tenant_id: int, name: str) -> list[jobs.Job]:
    try:
        found = await jobs.find(call.store, tenant_id, check_name(name))
    except InvalidInput:
        return []
    stored = await jobs.get(call.store, found[0], tenant_id) if found else None
    return [stored] if stored else []


@operation("jobs", role=Role.EDITOR, answers={202: Job}, body=JobRequest, problems=(409,))
async def create(call: Call) -> Response:
    request = await call.body(JobRequest)
    definition = to_definition(filled(request, await call.names.task_defaults(request.task)))
    tenant_id = call.tenant_id
    [registered] = await register.register(call.store, call.names, [definition], tenant_id=tenant_id, who=call.who)
    await call.service.wake(HANDS)
    return await _job(call, registered.job_id, 202, Location=f"{PREFIX}/jobs/{registered.job_id}")


@operation("jobs", role=Role.VIEWER, answers={200: Job, 304: None})
async def get(call: Call) -> Response:
    call.query()
    response = await _job(call, await call.job_id())
    if call.request.headers.get("if-none-match") == response.headers["etag"]:
        return Response(status_code=304, headers={"ETag": response.headers["etag"]})
    return response


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
    _check_match(expected, stored.revision)
    definition = patched(stored.definition(), patch)
    if is_dry:
        return await dry_run(call, stored, definition)
    try:
        await register.change(
            call.store, call.names, job_id, stored.revision, definition, tenant_id=tenant_id, who=call.who
        )
    except Conflict:
        await _check_still(call, job_id, tenant_id, expected)
        raise
    await call.service.wake(HANDS)
    return await _job(call, job_id)


async def _check_still(call: Call, job_id: UUID, tenant_id: int, expected: str | None) -> None:
    """A change that another one overtook fails by its condition, if it had one."""
    stored = await jobs.get(call.store, job_id, tenant_id)
    if stored is not None:
        _check_match(expected, stored.revision)


def _check_match(expected: str | None, revision: int) -> None:
    """If-Match (RFC 9110): any of the listed tags, compared strongly, or a star."""
    if expected is None or {"*", f'"{revision}"'} & {tag.strip() for tag in expected.split(",")}:
        return
    raise Refused(
        412,
        "revision_mismatch",
        f"the job is at revision {revision}, which If-Match does not name",
        hint="read it again and repeat the change",
        headers={"ETag": f'"{revision}"'},
    )


@operation("jobs", role=Role.EDITOR, answers={204: None}, conditional=True)
async def delete(call: Call) -> Response:
    job_id = await call.job_id()
    tenant_id = call.tenant_id
    if (expected := call.request.headers.get("if-match")) is not None:
        await _check_still(call, job_id, tenant_id, expected)
    await control.retire(call.store, job_id, tenant_id=tenant_id, who=call.who)
    return Response(status_code=204)


@operation("jobs", role=Role.OPERATOR, answers={200: Job}, body=PauseRequest, optional=True)
async def pause(call: Call) -> Response:
    request = await call.body(PauseRequest)
    reason = note(request.reason, what="reason")
    until = None if request.until is None else _until(request.until, await call.store.now())
    job_id = await call.job_id()
    await control.pause(call.store, job_id, tenant_id=call.tenant_id, who=call.who, reason=reason, until=until)
    return await _job(call, job_id)


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


@operation("jobs", role=Role.OPERATOR, answers={202: Run}, body=TriggerRequest, optional=True)
async def trigger(call: Call) -> Response:
    request = await call.body(TriggerRequest)
    kwargs = kwargs_of(request)
    job_id = await call.job_id()
    key = await send.trigger(call.store, job_id, tenant_id=call.tenant_id, args=request.args, kwargs=kwargs)
    await call.service.wake(WORK, key.scheduled_for.isoformat())
    return await run_reply(call, key, 202, Location=f"{PREFIX}/runs/{key.id}")


async def _job(call: Call, job_id: UUID, status: int = 200, **headers: str) -> Response:
    stored = await jobs.get(call.store, job_id, call.tenant_id)
    if stored is None:
        raise no_job()
    return reply(documents.job(stored), status, ETag=f'"{stored.revision}"', **headers)
