"""Changes of jobs by whole definitions: put one by its name, and roll one back to an old revision."""

from __future__ import annotations

from dataclasses import replace
from typing import Final
from uuid import UUID

from starlette.responses import Response

from bellringer.access import Role
from bellringer.api import documents
from bellringer.api.calls import Call, no_job, reply
from bellringer.api.conditions import check_match
from bellringer.api.operations import operation
from bellringer.api.problems import Refused
from bellringer.api.revisions import no_revision
from bellringer.api.targets import prepared, renewed
from bellringer.errors import Conflict, InvalidInput, Unavailable
from bellringer.jobs import HTTP, Definition, check_name
from bellringer.lifecycle import register
from bellringer.store import jobs, revisions
from bellringer.store.wakeups import HANDS
from bellringer.wire import Job, JobRequest, read, to_definition
from bellringer.wire.asks import PREFIX
from bellringer.wire.definitions import filled, task_of
from bellringer.wire.jobs import RollbackRequest

TRIES: Final = 5


@operation(
    "jobs",
    role=Role.EDITOR,
    answers={200: Job, 201: Job},
    body=JobRequest,
    conditional=True,
    problems=(409,),
)
async def put(call: Call) -> Response:
    """Make the job of a name what the body says: 201 where it is new, 200 where it was changed or is so already."""
    call.query()
    definition = await _wanted(call)
    expected = call.request.headers.get("if-match")
    is_new = call.request.headers.get("if-none-match", "").strip() == "*"
    for _ in range(TRIES):
        found = await jobs.find(call.store, call.tenant_id, definition.name)
        stored = await jobs.get(call.store, found[0], call.tenant_id) if found else None
        if stored is None:
            if expected is not None:
                raise Refused(412, "job_missing", "If-Match is given, and there is no job of that name")
            try:
                return await _created(call, definition)
            except Conflict:
                continue  # somebody was faster
        if is_new:
            raise Refused(
                412,
                "job_exists",
                "a job of that name exists, and If-None-Match wants a new one",
                headers={"ETag": f'"{stored.revision}"'},
            )
        check_match(expected, stored.revision)
        try:
            return await _changed(call, stored, definition)
        except Conflict as error:
            if error.code != "revision_conflict":
                raise
    raise Unavailable("the job is changed too often", hint="try again in a moment")


async def _wanted(call: Call) -> Definition:
    """What the body says; its name is that of the path."""
    name, document = call.part("id"), await call.document()
    request = read(JobRequest, {"name": name, **document})
    if check_name(request.name) != check_name(name):
        raise InvalidInput(
            "the body has another name than the path", hint="leave it out", pointer="/name", code="name_differs"
        )
    return to_definition(filled(request, await call.service.desk.task_defaults(task_of(request))))


async def _created(call: Call, definition: Definition) -> Response:
    definition = await prepared(call, definition)
    now = await call.service.desk.now()
    made = await register.create(call.store, call.names, definition, tenant_id=call.tenant_id, who=call.who, now=now)
    await call.service.wake(HANDS)
    location = f"{PREFIX}/jobs/{made.job_id}"
    return reply(documents.job(made), 201, ETag=f'"{made.revision}"', Location=location)


async def _changed(call: Call, stored: jobs.Job, wanted: Definition) -> Response:
    before = stored.spec.kwargs if stored.task == HTTP else None
    definition = replace(await prepared(call, wanted, before), owner=stored.owner)
    [definition] = await register.as_stored(call.store, call.names, [definition], tenant_id=call.tenant_id)
    if not register.is_same(stored, definition):
        await register.change(
            call.store,
            call.names,
            stored.job_id,
            stored.revision,
            definition,
            tenant_id=call.tenant_id,
            who=call.who,
        )
        await call.service.wake(HANDS)
    await renewed(call, wanted, before)
    return await job_reply(call, stored.job_id)


@operation("jobs", role=Role.EDITOR, answers={200: Job}, body=RollbackRequest, conditional=True, problems=(409,))
async def rollback(call: Call) -> Response:
    """Let the definition of an old revision hold again, as a new revision; whether the job is paused stays as it is."""
    request = await call.body(RollbackRequest)
    job_id, tenant_id = await call.job_id(), call.tenant_id
    stored = await jobs.get(call.store, job_id, tenant_id)
    if stored is None:
        raise no_job()
    check_match(call.request.headers.get("if-match"), stored.revision)
    definition = await _old(call, job_id, request.revision)
    why = f"rolled back to revision {request.revision}"
    await register.change(
        call.store, call.names, job_id, stored.revision, definition, tenant_id=tenant_id, who=call.who, why=why
    )
    await call.service.wake(HANDS)
    return await job_reply(call, job_id)


async def _old(call: Call, job_id: UUID, number: int) -> Definition:
    if not 1 <= number < 1 << 31:
        raise no_revision()
    try:
        found = await revisions.one(call.store, job_id, call.tenant_id, number)
        if found is None:
            raise no_revision()
        return found[1].definition()
    except (InvalidInput, ValueError) as error:  # of another version, or with a word that is none any more
        raise InvalidInput(
            f"revision {number} can no longer be read: {error}",
            hint="change the job by hand",
            pointer="/revision",
            code="revision_unreadable",
        ) from None


async def job_reply(call: Call, job_id: UUID, status: int = 200, **headers: str) -> Response:
    """The job as it is now."""
    stored = await jobs.get(call.store, job_id, call.tenant_id)
    if stored is None:
        raise no_job()
    return reply(documents.job(stored), status, ETag=f'"{stored.revision}"', **headers)
