"""Bulk actions on jobs and runs: a request becomes an operation with progress, which can be aborted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.endpoints.job_request_bodies import KEPT_BY_APPS
from bellringer.api.endpoints.run_lists import MAX_FILTER_LENGTH, run_filter
from bellringer.api.http.auth import check_scope
from bellringer.api.http.error_responses import Refused
from bellringer.api.http.operation import CURSOR_PARAMETER, LIMIT_PARAMETER, operation
from bellringer.api.http.request import BigInt, RequestContext, find_job, reply
from bellringer.core.policies import MAX_CATCHUP_RUNS_PER_MINUTE
from bellringer.core.runs import decode_run_id
from bellringer.engine import job_updates
from bellringer.engine import operations as operate
from bellringer.errors import Conflict, InvalidInput, NotFound
from bellringer.store import jobs, operations
from bellringer.store.dead_letters import DeadLetterFilter
from bellringer.store.operations import NewOperation, OperationJobFilter
from bellringer.wire.decode import Gathering, note, read
from bellringer.wire.job_changes import JobChanges, read_changes
from bellringer.wire.models import Count, Empty
from bellringer.wire.operations import (
    BulkPlan,
    Failure,
    JobsFilter,
    LettersFilter,
    Operation,
    OperationItem,
    OperationPage,
    OperationRequest,
    PlannedField,
    PlannedValue,
    decode_operation,
    encode_operation,
    no_operation,
)
from bellringer.wire.routes import PREFIX, Routes
from bellringer.wire.runs import RunsFilter

MAX_IDS: Final = 10_000
MAX_PREVIEWED_JOBS: Final = 500  # whose changes a dry run computes
EDITOR_ACTIONS: Final = ("jobs.delete", "jobs.update")
EXPECTED_COUNT_TOLERANCE: Final = 0.01  # the tolerance of expected_count
ONE_MINUTE: Final = timedelta(minutes=1)
_TAGS: Final = {"jobs": "jobs", "runs": "runs", "dead_letters": "dead letters"}  # the states that actions may filter by
_STATES: Final = ("enabled", "paused", "disabled", "done")


class OperationMark(msgspec.Struct, frozen=True, array_like=True):
    """The position of an operation in a list."""

    operation_id: BigInt


@operation(Routes.bulk, role=Role.OPERATOR, problems=(409,))
async def bulk(call: RequestContext) -> Response:
    """Starts an action on many jobs or runs: 202 with the operation. With `dry_run`, returns its plan: 200."""
    request = await call.body(OperationRequest)
    _check(request)
    check_scope(call.caller.scopes, _TAGS[operate.target_kind(request.action)])
    if request.action in EDITOR_ACTIONS and call.caller.role < Role.EDITOR:
        raise Refused(403, "forbidden", f"{request.action} requires the role editor", pointer="/action")
    changes = await _changes(call, request)
    reason = note(request.reason, what="reason")
    wanted = None if request.filter is None else await _filter(call, request.action, request.filter)
    ids = None if request.ids is None else await _ids(call, request.action, request.ids)
    return await begin_operation(
        call,
        request.action,
        wanted=wanted,
        ids=ids,
        rate=request.rate,
        reason=reason,
        expected=request.expected_count,
        dry_run=request.dry_run,
        changes=changes,
    )


async def begin_operation(
    call: RequestContext,
    action: str,
    *,
    wanted: msgspec.Struct | None = None,
    ids: list[str] | None = None,
    rate: float | None = None,
    reason: str | None = None,
    expected: int | None = None,
    dry_run: bool = False,
    changes: JobChanges | None = None,
) -> Response:
    """Counts the objects that the action applies to, and creates the operation."""
    count, sample = await _count(call, action, wanted, ids)
    if dry_run:
        plan = BulkPlan(action=action, count=count, sample=sample)
        return reply(plan if changes is None else await _preview(call, plan, wanted, ids, changes))
    _check_count(count, expected)
    number = await operations.create(
        call.store,
        NewOperation(
            tenant_id=call.tenant_id,
            action=action,
            filter=wanted,
            ids=ids,
            total=count.value,
            total_is_least=count.relation == "gte",
            rate=rate,
            who=call.who,
            reason=reason,
            change=changes,
        ),
    )
    return await _started(call, number)


async def _started(call: RequestContext, number: int | None) -> Response:
    if number is None:
        text = f"{operations.MAX_RUNNING_PER_TENANT} operations are running already"
        raise Conflict(text, hint="wait for one to end, or abort one", code="too_many_operations")
    return await _reply(call, number, 202, Location=f"{PREFIX}/operations/{encode_operation(number)}")


async def _preview(
    call: RequestContext, plan: BulkPlan, wanted: msgspec.Struct | None, ids: list[str] | None, changes: JobChanges
) -> BulkPlan:
    """Adds the fields that the first MAX_PREVIEWED_JOBS jobs would get."""
    if ids is None:
        document, now = msgspec.json.encode(wanted).decode(), await call.store.now()
        batch = await operate.find_items(
            call.store, call.tenant_id, plan.action, document, None, MAX_PREVIEWED_JOBS, now
        )
        job_ids = list(batch.items)
    else:
        job_ids = [UUID(text) for text in ids[:MAX_PREVIEWED_JOBS]]
    found = await jobs.get_many(call.store, job_ids, call.tenant_id)
    fields = [
        PlannedField(
            field=name,
            jobs=preview.jobs,
            sample=[PlannedValue(job=job, before=before, after=after) for job, before, after in preview.sample],
        )
        for name, preview in job_updates.preview_changes(found, changes).items()
    ]
    is_overridden = any(field.field not in KEPT_BY_APPS for field in fields)
    apps = Counter(job.app for job in found if job.app is not None and job.orphaned_at is None)
    declared_by = dict(sorted(apps.items())) if is_overridden and apps else None
    return msgspec.structs.replace(plan, changes=fields, examined=len(found), declared_by=declared_by)


async def _count(
    call: RequestContext, action: str, wanted: msgspec.Struct | None, ids: list[str] | None
) -> tuple[Count, list[str]]:
    if ids is not None:
        return Count(value=len(ids), relation="eq"), ids[:10]
    document, now = msgspec.json.encode(wanted).decode(), await call.store.now()
    total, is_all, first = await operate.count_items(call.store, call.tenant_id, action, document, now)
    return Count(value=total, relation="eq" if is_all else "gte"), [operate.item_id(item) for item in first]


def _check_count(count: Count, expected: int | None) -> None:
    """Raises Refused if many more objects match than the caller expects."""
    if expected is None:
        return
    most = expected if count.relation == "gte" else max(count.value, expected)
    off = count.value - expected if count.relation == "gte" else abs(count.value - expected)
    if off > most * EXPECTED_COUNT_TOLERANCE:
        more = " or more" if count.relation == "gte" else ""
        raise Conflict(
            f"{count.value}{more} match, but {expected} were expected",
            hint="check the selection with dry_run",
            pointer="/expected_count",
            code="count_differs",
        )


# Reading the request


def _check(r: OperationRequest) -> None:
    g = Gathering()
    if r.action not in operate.ALL_ACTIONS:
        hint = f"use one of {', '.join(operate.ALL_ACTIONS)}"
        g.add(InvalidInput(f"unknown action {r.action[:40]!r}", hint=hint, pointer="/action", code="choice"))
    if (r.filter is None) == (r.ids is None):
        g.add(
            InvalidInput(
                "give either filter or ids", hint='"filter": {} selects all', pointer="/ids", code="conflicting_fields"
            )
        )
    if r.ids is not None and not 0 < len(r.ids) <= MAX_IDS:
        g.add(InvalidInput(f"ids must have 1 to {MAX_IDS} entries", hint="use a filter", pointer="/ids", code="limit"))
    if r.expected_count is not None and r.expected_count < 0:
        g.add(InvalidInput("expected_count must not be negative", pointer="/expected_count", code="limit"))
    check_rate(r.rate, g)
    g.done()


def check_rate(rate: float | None, g: Gathering) -> None:
    if rate is not None and not 0 < rate <= MAX_CATCHUP_RUNS_PER_MINUTE:
        g.add(
            InvalidInput(
                f"rate must be a number a minute, up to {MAX_CATCHUP_RUNS_PER_MINUTE}", pointer="/rate", code="limit"
            )
        )


async def _changes(call: RequestContext, request: OperationRequest) -> JobChanges | None:
    """Reads the fields that jobs.update sets. Its pool must exist."""
    if (request.changes is None) == (request.action == "jobs.update"):
        text = "jobs.update needs changes" if request.changes is None else f"{request.action} takes no changes"
        raise InvalidInput(text, hint='such as {"retry": {"attempts": 1}}', pointer="/changes", code="required")
    if request.changes is None:
        return None
    try:
        changes = read_changes(request.changes)
        if isinstance(changes.pool, str):
            for error in (await call.catalog.unknown_pools([changes.pool])).values():
                raise error
    except InvalidInput as error:
        for fault in getattr(error, "faults", (error,)):
            fault.pointer = f"/changes{fault.pointer}".rstrip("/")
        raise
    return changes


async def _filter(call: RequestContext, action: str, document: Mapping[str, Any]) -> msgspec.Struct:
    """Reads the filter of the action's list, in the form that the store takes."""
    try:
        match operate.target_kind(action):
            case "jobs":
                return _job_filter(read(JobsFilter, document))
            case "runs":
                return await run_filter(call, read(RunsFilter, document), "")
            case _:
                return await dead_letter_filter(call, read(LettersFilter, document))
    except InvalidInput as error:
        for fault in getattr(error, "faults", (error,)):
            fault.pointer = f"/filter{fault.pointer}"
        raise


def _job_filter(f: JobsFilter) -> OperationJobFilter:
    g = Gathering()
    for name in ("q", "tag", "pool", "task", "owner"):
        _check_word(getattr(f, name), name, g)
    if f.state is not None and f.state not in _STATES:
        g.add(InvalidInput("unknown state", hint=f"use one of {', '.join(_STATES)}", pointer="/state", code="choice"))
    g.done()
    return OperationJobFilter(q=f.q, tag=f.tag, state=f.state, pool=f.pool, task=f.task, owner=f.owner)


async def dead_letter_filter(call: RequestContext, f: LettersFilter) -> DeadLetterFilter:
    g = Gathering()
    _check_word(f.fingerprint, "fingerprint", g)
    _check_word(f.task, "task", g)
    g.done()
    job = None if f.job is None else await find_job(call, f.job)
    return DeadLetterFilter(fingerprint=f.fingerprint, job=job, task=f.task)


def _check_word(text: str | None, name: str, g: Gathering) -> None:
    if text is not None and (not 0 < len(text) <= MAX_FILTER_LENGTH or "\0" in text):
        g.add(
            InvalidInput(
                f"{name} must have 1 to {MAX_FILTER_LENGTH} characters, none of them NUL",
                pointer=f"/{name}",
                code="limit",
            )
        )


async def _ids(call: RequestContext, action: str, given: list[str]) -> list[str]:
    """Reads ids, without duplicates. Jobs may be given by name, and must exist."""
    found = []
    for place, text in enumerate(dict.fromkeys(given)):
        try:
            found.append(
                str(await find_job(call, text)) if operate.target_kind(action) == "jobs" else decode_run_id(text).id
            )
        except NotFound as error:
            raise InvalidInput(error.message, pointer=f"/ids/{place}", code="id_invalid") from None
    return list(dict.fromkeys(found))


# Operations


@operation(Routes.operations, role=Role.VIEWER, query=(LIMIT_PARAMETER, CURSOR_PARAMETER))
async def listing(call: RequestContext) -> Response:
    """Lists operations, the newest first."""
    call.query()
    limit = call.limit()
    mark = call.cursor("operations", OperationMark)
    before = mark.operation_id if mark else None
    found = await operations.list_page(call.store, call.tenant_id, before, limit + 1)
    now = await call.store.now()
    more = len(found) > limit
    following = call.cursor_to("operations", OperationMark(found[limit - 1].operation_id)) if more else None
    names = await _job_names(call, found[:limit])
    return reply(OperationPage(items=[_render_operation(o, now, names) for o in found[:limit]], next_cursor=following))


@operation(Routes.operation, role=Role.VIEWER)
async def get(call: RequestContext) -> Response:
    """Returns the progress of an operation."""
    call.query()
    return await _reply(call, decode_operation(call.part("id")))


@operation(Routes.abort_operation, role=Role.OPERATOR, problems=(409,))
async def abort(call: RequestContext) -> Response:
    """Aborts an operation; changes that were made stay."""
    await call.body(Empty)
    number = decode_operation(call.part("id"))
    state = await operations.abort(call.store, number, call.tenant_id)
    if state == "done":
        raise Conflict("the operation has ended already")
    return await _reply(call, number)


@operation(Routes.revert_operation, role=Role.EDITOR, problems=(409,))
async def revert(call: RequestContext) -> Response:
    """Starts an operation that takes back what jobs.update has changed, except where jobs were changed again."""
    await call.body(Empty)
    number = decode_operation(call.part("id"))
    found = await operations.get(call.store, number, call.tenant_id)
    if found is None:
        raise no_operation()
    check_scope(call.caller.scopes, _TAGS["jobs"])
    if found.change is None:
        raise Conflict(f"{found.action} cannot be reverted", hint="only jobs.update can", code="not_revertible")
    if found.state == "running":
        raise Conflict("the operation is still running", hint=f"bellringer ops abort {call.part('id')}")
    wanted = NewOperation(
        tenant_id=call.tenant_id,
        action=operate.REVERT,
        filter=OperationJobFilter(),
        ids=None,
        total=found.done,
        total_is_least=False,
        rate=None,
        who=call.who,
        reason=f"reverts {encode_operation(number)}",
        reverts=number,
    )
    return await _started(call, await operations.create(call.store, wanted))


async def _reply(call: RequestContext, number: int, status: int = 200, **headers: str) -> Response:
    return reply(await stored(call, number), status, **headers)


async def stored(call: RequestContext, number: int) -> Operation:
    found = await operations.get(call.store, number, call.tenant_id)
    if found is None:
        raise no_operation()
    return _render_operation(found, await call.store.now(), await _job_names(call, [found]))


async def _job_names(call: RequestContext, found: Sequence[operations.OperationRow]) -> dict[UUID, str]:
    """Returns the names of the jobs of the items that operations were given."""
    ids = {_job_of(o.action, text) for o in found for text in o.first_ids or ()}
    return {job.job_id: job.name for job in await jobs.get_many(call.reads, list(ids), call.tenant_id)} if ids else {}


def _job_of(action: str, item: str) -> UUID:
    return UUID(item) if operate.target_kind(action) == "jobs" else decode_run_id(item).job_id


def _render_operation(o: operations.OperationRow, now: datetime, names: Mapping[UUID, str]) -> Operation:
    return Operation(
        operation_id=encode_operation(o.operation_id),
        action=o.action,
        state=o.state,
        filter=o.filter,
        named=o.named,
        total=Count(value=o.total, relation="gte" if o.total_is_least else "eq"),
        done=o.done,
        skipped=o.skipped,
        failed=o.failed,
        rate=o.rate,
        eta=_eta(o, now),
        who=o.who,
        reason=o.reason,
        created_at=o.created_at,
        ended_at=o.ended_at,
        failures=[Failure(**failure) for failure in o.failures],
        changes=o.change,
        reverts=None if o.reverts is None else encode_operation(o.reverts),
        items=None
        if o.first_ids is None
        else [OperationItem(id=text, name=names.get(_job_of(o.action, text))) for text in o.first_ids],
    )


def _eta(o: operations.OperationRow, now: datetime) -> datetime | None:
    looked = o.done + o.skipped + o.failed
    left = o.total - looked
    if o.state != "running" or left <= 0 or o.total_is_least:
        return None
    if o.rate is not None:
        return now + left * (ONE_MINUTE / o.rate)
    return now + left * ((now - o.created_at) / looked) if looked else None
