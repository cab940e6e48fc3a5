"""Jobs: list, create, read, put, patch, roll back, pause, resume, trigger and delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.endpoints.forecast import dry_run, wants_dry_run
from bellringer.api.endpoints.job_history import no_revision
from bellringer.api.endpoints.job_request_bodies import (
    find_warnings,
    keep_masked,
    prepare_target,
    protect_overrides,
    read_definition,
    read_until,
    replace_secret,
    warn_of_override,
    with_warnings,
)
from bellringer.api.endpoints.runs import run_reply
from bellringer.api.http.create_batcher import NewJob
from bellringer.api.http.error_responses import Refused
from bellringer.api.http.json_body import JSON
from bellringer.api.http.operation import CURSOR_PARAMETER, LIMIT_PARAMETER, choice, flag, number, operation, string
from bellringer.api.http.request import RequestContext, check_match, no_job, reply
from bellringer.api.http.request import matches_revision as names
from bellringer.api.render import documents
from bellringer.core.jobs import HTTP_TASK, Definition, check_name
from bellringer.core.policies import Missed
from bellringer.engine import job_and_run_commands as commands
from bellringer.engine import register, send
from bellringer.errors import Conflict, InvalidInput, Unavailable
from bellringer.store import jobs, revisions
from bellringer.store.jobs import JobFilter
from bellringer.store.wakeups import CANCELS_CHANNEL, COHORTS_CHANNEL, WORK_CHANNEL
from bellringer.wire.decode import Gathering, note
from bellringer.wire.definitions import kwargs_of, patched, word
from bellringer.wire.jobs import (
    Job,
    JobPage,
    PauseRequest,
    Resumed,
    ResumeRequest,
    RollbackRequest,
    TriggerRequest,
)
from bellringer.wire.models import Count, RequestWarning
from bellringer.wire.routes import PREFIX, Routes

MAX_COUNTED: Final = 10_000
MAX_LISTED_ARGUMENT_BYTES: Final = 2048  # larger arguments are left out of lists
_CHOICE_FILTERS: Final = {
    "state": ("enabled", "paused", "disabled", "done", "late", "failing"),
    "sort": ("id", "name"),
    "count": ("bounded",),
}
_TEXT_FILTERS: Final = ("q", "prefix", "tag", "pool", "task", "owner", "app")


class JobMark(msgspec.Struct, frozen=True, array_like=True):
    """The position of a job in a list: its id, and its name in sort order."""

    job_id: UUID
    name: str


@operation(
    Routes.jobs,
    role=Role.VIEWER,
    query=(
        LIMIT_PARAMETER,
        CURSOR_PARAMETER,
        string("name", "the job with exactly this name"),
        string("q", "jobs with this text in their name"),
        string("prefix", "jobs whose name begins with this text"),
        string("tag", "jobs with this tag"),
        choice("state", "jobs in this state; late and failing jobs need attention", _CHOICE_FILTERS["state"]),
        string("pool", "jobs of this pool"),
        string("task", "jobs of this task"),
        string("owner", "jobs of this owner"),
        string("app", "jobs that the code of this app declares, or declared last"),
        flag("orphaned", "true: only jobs that the code of their app no longer declares; false: only others"),
        choice("sort", "the order: by id, which is the order of creation, or by name", _CHOICE_FILTERS["sort"]),
        choice("count", "also count the jobs, up to a limit", _CHOICE_FILTERS["count"]),
    ),
)
async def listing(call: RequestContext) -> Response:
    """Lists jobs. A page examines at most 20,000 jobs of the state, so a short page may still have a next one."""
    query = call.query()
    limit = call.limit()
    for name, words in _CHOICE_FILTERS.items():
        if query.get(name, words[0]) not in words:
            raise InvalidInput(f"unknown {name}", hint=f"use {', '.join(words)}", code="choice")
    if "name" in query:
        return reply(JobPage(items=[documents.render_job(job) for job in await _named(call, query["name"])]))
    return await _page(call, query, limit)


async def _page(call: RequestContext, query: Mapping[str, str], limit: int) -> Response:
    texts = {name: query.get(name) for name in _TEXT_FILTERS}
    wanted = JobFilter(state=query.get("state"), orphaned=_read_orphaned(query), **texts)
    by_name = query.get("sort") == "name"
    of = f"jobs {by_name} {wanted.arguments()}"
    mark = call.cursor(of, JobMark)
    after = (mark.job_id, mark.name) if mark else None
    found, reached = await jobs.page(call.reads, call.tenant_id, wanted, by_name=by_name, after=after, most=limit + 1)
    if len(found) > limit:
        last = found[limit - 1]
        reached = (last.job_id, last.name.lower())
    count: Count | UnsetType = UNSET
    if "count" in query:
        value, is_all = await jobs.count(call.reads, call.tenant_id, wanted, MAX_COUNTED)
        count = Count(value=value, relation="eq" if is_all else "gte")
    following = call.cursor_to(of, JobMark(*reached)) if reached else None
    return reply(
        JobPage(items=[_without_large_arguments(job) for job in found[:limit]], next_cursor=following, count=count)
    )


def _read_orphaned(query: Mapping[str, str]) -> bool | None:
    if "orphaned" not in query:
        return None
    if query["orphaned"] not in ("true", "false"):
        raise InvalidInput("orphaned must be true or false", code="choice")
    return query["orphaned"] == "true"


def _without_large_arguments(job: jobs.JobRow) -> Job:
    """Removes large arguments from a list item; `GET /jobs/{id}` returns them."""
    shown = documents.render_job(job)
    if len(msgspec.json.encode((job.spec.args, job.spec.kwargs))) <= MAX_LISTED_ARGUMENT_BYTES:
        return shown
    return msgspec.structs.replace(shown, args=[], kwargs={}, arguments_left_out=True)


async def _named(call: RequestContext, name: str) -> list[jobs.JobRow]:
    try:
        found = await jobs.find(call.store, call.tenant_id, check_name(name))
    except InvalidInput:
        return []
    stored = await jobs.get(call.store, found[0], call.tenant_id) if found else None
    return [stored] if stored else []


@operation(Routes.create_job, role=Role.EDITOR, problems=(409,))
async def create(call: RequestContext) -> Response:
    """Creates a job."""
    definition = await prepare_target(call, await read_definition(call, await call.document()))
    return await create_job(call, definition, 202)


@operation(Routes.job, role=Role.VIEWER)
async def get(call: RequestContext) -> Response:
    """Returns a job by id or name; its ETag is its revision."""
    call.query()
    found = await call.service.read_cache.job(call.tenant_id, await call.job_id())
    if found is None:
        raise no_job()
    revision, data = found
    headers = {"ETag": f'"{revision}"'}
    if names(call.request.headers.get("if-none-match"), revision):
        return Response(status_code=304, headers=headers)
    return Response(data, headers=headers, media_type=JSON)


@operation(
    Routes.patch_job,
    role=Role.EDITOR,
    query=(
        flag("dry_run", "return what the change would do, without changing anything"),
        number("days", "the number of days that a dry run looks ahead", 1, 366),
    ),
    conditional=True,
    problems=(409,),
)
async def change(call: RequestContext) -> Response:
    """Applies a merge patch to a job; with `dry_run=true`, returns what it would do."""
    is_dry = wants_dry_run(call.query())
    patch = await call.document()
    tenant_id, job_id = call.tenant_id, await call.job_id()
    stored = await jobs.get(call.store, job_id, tenant_id)
    if stored is None:
        raise no_job()
    expected = call.request.headers.get("if-match")
    check_match(expected, stored.revision)
    wanted = keep_masked(stored, patched(stored.definition(), patch))
    if is_dry:
        return await dry_run(call, stored, wanted)
    before = stored.spec.kwargs if stored.task == HTTP_TASK else None
    warnings = await find_warnings(call, wanted)
    definition = await prepare_target(call, wanted, before)
    [definition] = await register.as_stored(call.store, call.catalog, [definition], tenant_id=tenant_id)
    warnings += warn_of_override(stored, definition)
    try:
        if not register.is_same(stored, definition):  # a patch without effect creates no revision
            await register.change(
                call.store, call.catalog, job_id, stored.revision, definition, tenant_id=tenant_id, who=call.who
            )
    except Conflict:
        await _recheck_match(call, job_id, tenant_id, expected)
        raise
    await replace_secret(call, wanted, before)
    await call.service.wake(COHORTS_CHANNEL)
    return await job_reply(call, job_id, warnings=warnings)


async def _recheck_match(call: RequestContext, job_id: UUID, tenant_id: int, expected: str | None) -> None:
    """Raises 412 in place of a conflict if the request had an If-Match that no longer holds."""
    stored = await jobs.get(call.store, job_id, tenant_id)
    if stored is not None:
        check_match(expected, stored.revision)


@operation(
    Routes.delete_job,
    role=Role.EDITOR,
    query=(choice("runs", "whether running attempts may finish (keep) or are cancelled (cancel)", ["keep", "cancel"]),),
    conditional=True,
)
async def delete(call: RequestContext) -> Response:
    """Deletes a job. Running attempts finish, or are cancelled with `runs=cancel`."""
    wish = call.query().get("runs", "keep")
    if wish not in ("keep", "cancel"):
        raise InvalidInput("runs must be keep or cancel", code="choice")
    job_id = await call.job_id()
    tenant_id = call.tenant_id
    if (expected := call.request.headers.get("if-match")) is not None:
        await _recheck_match(call, job_id, tenant_id, expected)
    await commands.delete_job(call.store, job_id, tenant_id=tenant_id, who=call.who)
    if wish == "cancel":
        await jobs.request_cancel(call.store, job_id, tenant_id)
        await call.service.wake(CANCELS_CHANNEL)
    return Response(status_code=204)


@operation(Routes.pause, role=Role.OPERATOR)
async def pause(call: RequestContext) -> Response:
    """Pauses a job until it is resumed, or until the given time."""
    request = await call.body(PauseRequest)
    reason = note(request.reason, what="reason")
    until = None if request.until is None else read_until(request.until, await call.store.now())
    job_id = await call.job_id()
    await commands.pause(call.store, job_id, tenant_id=call.tenant_id, who=call.who, reason=reason, until=until)
    return await job_reply(call, job_id)


@operation(Routes.resume, role=Role.OPERATOR)
async def resume(call: RequestContext) -> Response:
    """Resumes a paused job; `missed` decides which missed occurrences still run."""
    request = await call.body(ResumeRequest)
    g = Gathering()
    missed = g.take("/missed", lambda: word(Missed, request.missed, "missed"), Missed.SKIP)
    g.done()
    job_id, tenant_id = await call.job_id(), call.tenant_id
    done = await register.resume(call.store, call.catalog, job_id, tenant_id=tenant_id, who=call.who, missed=missed)
    await call.service.wake(COHORTS_CHANNEL)
    await call.service.wake(WORK_CHANNEL, (await call.store.now()).isoformat())  # runs that the pause held back
    stored = await jobs.get(call.store, job_id, tenant_id)
    if stored is None:
        raise no_job()
    answer = Resumed(job=documents.render_job(stored), missed=done.missed, since=done.since, what=missed.value)
    return reply(answer, ETag=f'"{stored.revision}"')


@operation(Routes.trigger, role=Role.OPERATOR, fires=True)
async def trigger(call: RequestContext) -> Response:
    """Runs a job now, independently of its schedule."""
    request = await call.body(TriggerRequest)
    kwargs = kwargs_of(request)
    job_id = await call.job_id()
    args = request.args
    if call.service.payload_codec is not None and (args or kwargs):
        job = await jobs.get(call.store, job_id, call.tenant_id)
        args, kwargs = protect_overrides(call, None if job is None else job.task, args, kwargs)
    key = await send.trigger(call.store, job_id, tenant_id=call.tenant_id, args=args, kwargs=kwargs)
    await call.service.wake(WORK_CHANNEL, key.scheduled_for.isoformat())
    return await run_reply(call, key, 202, Location=f"{PREFIX}/runs/{key.id}")


MAX_TRIES: Final = 5


@operation(Routes.put_job, role=Role.EDITOR, conditional=True, problems=(409,))
async def put(call: RequestContext) -> Response:
    """Creates or replaces the job of this name: 201 if it is new, 200 if it was changed or is the same already."""
    call.query()
    definition = await _read_put(call)
    expected = call.request.headers.get("if-match")
    is_new = call.request.headers.get("if-none-match", "").strip() == "*"
    for _ in range(MAX_TRIES):
        found = await jobs.find(call.store, call.tenant_id, definition.name)
        stored = await jobs.get(call.store, found[0], call.tenant_id) if found else None
        if stored is None:
            if expected is not None:
                message = "If-Match is given, but there is no job of that name"
                raise Refused(412, "job_missing", message, hint="send the request without If-Match to create the job")
            try:
                return await create_job(call, await prepare_target(call, definition), 201)
            except Conflict:
                continue  # another request has just created it
        if is_new:
            raise Refused(
                412,
                "job_exists",
                "a job of that name exists, and If-None-Match is *",
                hint="send the request without If-None-Match to change the job",
                headers={"ETag": f'"{stored.revision}"'},
            )
        check_match(expected, stored.revision)
        try:
            return await _change_job(call, stored, definition)
        except Conflict as error:
            if error.code != "revision_conflict":
                raise
    raise Unavailable("the job is changed too often", hint="try again in a moment")


async def _read_put(call: RequestContext) -> Definition:
    """Reads the definition in the body; its name is that of the path."""
    name = call.part("id")
    definition = await read_definition(call, {"name": name, **await call.document()})
    if check_name(definition.name) != check_name(name):
        raise InvalidInput(
            "the body has another name than the path", hint="leave it out", pointer="/name", code="name_differs"
        )
    return definition


async def create_job(call: RequestContext, definition: Definition, status: int) -> Response:
    warnings = await find_warnings(call, definition)
    if call.store.is_in_transaction:  # with an Idempotency-Key, the job and the stored response are one transaction
        [created] = await register.create(
            call.store,
            call.catalog,
            [definition],
            tenant_id=call.tenant_id,
            who=call.who,
            now=await call.service.read_cache.now(),
            from_json=True,
        )
    else:
        job = NewJob(definition, call.caller.actor(call.request_id))
        created = await call.service.create_batcher.create(call.tenant_id, job)
    await call.service.wake(COHORTS_CHANNEL)
    document = with_warnings(documents.render_job(created.new_job_row()), warnings)
    return reply(document, status, ETag=f'"{created.revision}"', Location=f"{PREFIX}/jobs/{created.job_id}")


async def _change_job(call: RequestContext, stored: jobs.JobRow, wanted: Definition) -> Response:
    wanted = keep_masked(stored, wanted)
    before = stored.spec.kwargs if stored.task == HTTP_TASK else None
    warnings = await find_warnings(call, wanted)
    definition = replace(await prepare_target(call, wanted, before), owner=stored.owner)
    [definition] = await register.as_stored(call.store, call.catalog, [definition], tenant_id=call.tenant_id)
    warnings += warn_of_override(stored, definition)
    if not register.is_same(stored, definition):
        await register.change(
            call.store,
            call.catalog,
            stored.job_id,
            stored.revision,
            definition,
            tenant_id=call.tenant_id,
            who=call.who,
        )
        await call.service.wake(COHORTS_CHANNEL)
    await replace_secret(call, wanted, before)
    return await job_reply(call, stored.job_id, warnings=warnings)


@operation(Routes.rollback, role=Role.EDITOR, conditional=True, problems=(409,))
async def rollback(call: RequestContext) -> Response:
    """Restores the definition of an old revision, as a new revision; the job stays paused or active."""
    request = await call.body(RollbackRequest)
    job_id, tenant_id = await call.job_id(), call.tenant_id
    stored = await jobs.get(call.store, job_id, tenant_id)
    if stored is None:
        raise no_job()
    check_match(call.request.headers.get("if-match"), stored.revision)
    definition = await _read_revision(call, job_id, request.revision)
    why = f"rolled back to revision {request.revision}"
    await register.change(
        call.store, call.catalog, job_id, stored.revision, definition, tenant_id=tenant_id, who=call.who, why=why
    )
    await call.service.wake(COHORTS_CHANNEL)
    return await job_reply(call, job_id)


async def _read_revision(call: RequestContext, job_id: UUID, number: int) -> Definition:
    if not 1 <= number < 1 << 31:
        raise no_revision()
    try:
        found = await revisions.one(call.store, job_id, call.tenant_id, number)
        if found is None:
            raise no_revision()
        return found[1].definition()
    except (InvalidInput, ValueError) as error:  # written by another version, or with a policy that no longer exists
        raise InvalidInput(
            f"revision {number} can no longer be read: {error}",
            hint="change the job by hand",
            pointer="/revision",
            code="revision_unreadable",
        ) from None


async def job_reply(
    call: RequestContext, job_id: UUID, status: int = 200, *, warnings: Sequence[RequestWarning] = (), **headers: str
) -> Response:
    """Replies with the current state of a job."""
    stored = await jobs.get(call.store, job_id, call.tenant_id)
    if stored is None:
        raise no_job()
    return reply(with_warnings(documents.render_job(stored), warnings), status, ETag=f'"{stored.revision}"', **headers)
