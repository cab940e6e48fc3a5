"""Bulk actions: one request that concerns many becomes an operation, with progress and abort."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.calls import BigInt, Call, find_job, reply
from bellringer.api.door import check_scope
from bellringer.api.operations import CURSOR, LIMIT, operation
from bellringer.api.problems import Refused
from bellringer.api.run_filters import LONGEST, run_filter
from bellringer.errors import Conflict, InvalidInput, NotFound
from bellringer.lifecycle import operate
from bellringer.policies import FASTEST_RATE
from bellringer.runs import decode_id
from bellringer.store import operations
from bellringer.store.letters import LetterFilter
from bellringer.store.operations import Asked, JobFilter
from bellringer.wire import Empty, note, read
from bellringer.wire.answers import Count
from bellringer.wire.asks import PREFIX
from bellringer.wire.operations import (
    BulkPlan,
    BulkRequest,
    Failure,
    JobsFilter,
    LettersFilter,
    Operation,
    OperationPage,
    decode_operation,
    encode_operation,
    no_operation,
)
from bellringer.wire.reading import Gathering
from bellringer.wire.runs import RunsFilter

MOST_NAMED: Final = 10_000
TOLERANCE: Final = 0.01  # by how much an expected count may be wrong
MINUTE: Final = timedelta(minutes=1)
_TAGS: Final = {"jobs": "jobs", "runs": "runs", "dead_letters": "dead letters"}  # of what actions are done to
_STATES: Final = ("enabled", "paused", "disabled")


class OperationMark(msgspec.Struct, frozen=True, array_like=True):
    """The last operation of a page."""

    operation_id: BigInt


@operation("operations", role=Role.OPERATOR, answers={200: BulkPlan, 202: Operation}, body=BulkRequest, problems=(409,))
async def bulk(call: Call) -> Response:
    """Do something to many: 202 with the operation that works it off, or 200 with the plan of a dry run."""
    request = await call.body(BulkRequest)
    _check(request)
    check_scope(call.caller.scopes, _TAGS[operate.kind_of(request.action)])
    if request.action == "jobs.delete" and call.caller.role < Role.EDITOR:
        raise Refused(403, "forbidden", "deleting jobs needs the role editor", pointer="/action")
    reason = note(request.reason, what="reason")
    wanted = None if request.filter is None else await _filter(call, request.action, request.filter)
    ids = None if request.ids is None else await _ids(call, request.action, request.ids)
    return await begin(
        call,
        request.action,
        wanted=wanted,
        ids=ids,
        rate=request.rate,
        reason=reason,
        expected=request.expected_count,
        dry_run=request.dry_run,
    )


async def begin(
    call: Call,
    action: str,
    *,
    wanted: msgspec.Struct | None = None,
    ids: list[str] | None = None,
    rate: float | None = None,
    reason: str | None = None,
    expected: int | None = None,
    dry_run: bool = False,
) -> Response:
    """Count what it is about, and make the operation."""
    count, sample = await _count(call, action, wanted, ids)
    if dry_run:
        return reply(BulkPlan(action=action, count=count, sample=sample))
    _check_count(count, expected)
    number = await operations.create(
        call.store,
        Asked(
            tenant_id=call.tenant_id,
            action=action,
            filter=wanted,
            ids=ids,
            total=count.value,
            total_is_least=count.relation == "gte",
            rate=rate,
            who=call.who,
            reason=reason,
        ),
    )
    if number is None:
        text = f"{operations.MOST_RUNNING} operations are running already"
        raise Conflict(text, hint="wait for one to end, or abort it", code="too_many_operations")
    return await _reply(call, number, 202, Location=f"{PREFIX}/operations/{encode_operation(number)}")


async def _count(
    call: Call, action: str, wanted: msgspec.Struct | None, ids: list[str] | None
) -> tuple[Count, list[str]]:
    if ids is not None:
        return Count(value=len(ids), relation="eq"), ids[:10]
    document, now = msgspec.json.encode(wanted).decode(), await call.store.now()
    total, is_all, first = await operate.count(call.store, call.tenant_id, action, document, now)
    return Count(value=total, relation="eq" if is_all else "gte"), [operate.shown(item) for item in first]


def _check_count(count: Count, expected: int | None) -> None:
    """What was meant for a few shall not be done to many."""
    if expected is None:
        return
    most = expected if count.relation == "gte" else max(count.value, expected)
    off = count.value - expected if count.relation == "gte" else abs(count.value - expected)
    if off > most * TOLERANCE:
        more = " or more" if count.relation == "gte" else ""
        raise Conflict(
            f"{count.value}{more} fit, and {expected} were expected",
            hint="look at them again with dry_run",
            pointer="/expected_count",
            code="count_differs",
        )


# What was asked for


def _check(r: BulkRequest) -> None:
    g = Gathering()
    if r.action not in operate.EVERY:
        hint = f"use one of {', '.join(operate.EVERY)}"
        g.add(InvalidInput(f"there is no action {r.action[:40]!r}", hint=hint, pointer="/action", code="choice"))
    if (r.filter is None) == (r.ids is None):
        g.add(
            InvalidInput("give filter or ids", hint='"filter": {} means all', pointer="/ids", code="conflicting_fields")
        )
    if r.ids is not None and not 0 < len(r.ids) <= MOST_NAMED:
        g.add(InvalidInput(f"1 to {MOST_NAMED} can be named", hint="use a filter", pointer="/ids", code="limit"))
    if r.expected_count is not None and r.expected_count < 0:
        g.add(InvalidInput("expected_count must not be negative", pointer="/expected_count", code="limit"))
    check_rate(r.rate, g)
    g.done()


def check_rate(rate: float | None, g: Gathering) -> None:
    if rate is not None and not 0 < rate <= FASTEST_RATE:
        g.add(InvalidInput(f"rate must be a number a minute, up to {FASTEST_RATE}", pointer="/rate", code="limit"))


async def _filter(call: Call, action: str, document: Mapping[str, Any]) -> msgspec.Struct:
    """The filter of the list that the action is about, as the store takes it."""
    try:
        match operate.kind_of(action):
            case "jobs":
                return _job_filter(read(JobsFilter, document))
            case "runs":
                return await run_filter(call, read(RunsFilter, document), "")
            case _:
                return await letter_filter(call, read(LettersFilter, document))
    except InvalidInput as error:
        for fault in getattr(error, "faults", (error,)):
            fault.pointer = f"/filter{fault.pointer}"
        raise


def _job_filter(f: JobsFilter) -> JobFilter:
    g = Gathering()
    for name in ("q", "tag", "pool", "task", "owner"):
        _check_word(getattr(f, name), name, g)
    if f.state is not None and f.state not in _STATES:
        g.add(
            InvalidInput(
                "there is no such state", hint=f"use one of {', '.join(_STATES)}", pointer="/state", code="choice"
            )
        )
    g.done()
    return JobFilter(q=f.q, tag=f.tag, state=f.state, pool=f.pool, task=f.task, owner=f.owner)


async def letter_filter(call: Call, f: LettersFilter) -> LetterFilter:
    g = Gathering()
    _check_word(f.fingerprint, "fingerprint", g)
    _check_word(f.task, "task", g)
    g.done()
    job = None if f.job is None else await find_job(call, f.job)
    return LetterFilter(fingerprint=f.fingerprint, job=job, task=f.task)


def _check_word(text: str | None, name: str, g: Gathering) -> None:
    if text is not None and (not 0 < len(text) <= LONGEST or "\0" in text):
        g.add(
            InvalidInput(
                f"{name} must have 1 to {LONGEST} characters, none of them NUL", pointer=f"/{name}", code="limit"
            )
        )


async def _ids(call: Call, action: str, given: list[str]) -> list[str]:
    """Ids as they are kept; each once. Jobs may be named by their names, and must exist."""
    found = []
    for place, text in enumerate(dict.fromkeys(given)):
        try:
            found.append(str(await find_job(call, text)) if operate.kind_of(action) == "jobs" else decode_id(text).id)
        except NotFound as error:
            raise InvalidInput(error.message, pointer=f"/ids/{place}", code="id_invalid") from None
    return list(dict.fromkeys(found))


# Operations


@operation("operations", role=Role.VIEWER, answers={200: OperationPage}, query=(LIMIT, CURSOR))
async def listing(call: Call) -> Response:
    """The newest operations."""
    call.query()
    limit = call.limit()
    mark = call.cursor("operations", OperationMark)
    before = mark.operation_id if mark else None
    found = await operations.listing(call.store, call.tenant_id, before, limit + 1)
    now = await call.store.now()
    more = len(found) > limit
    following = call.cursor_to("operations", OperationMark(found[limit - 1].operation_id)) if more else None
    return reply(OperationPage(items=[_shown(o, now) for o in found[:limit]], next_cursor=following))


@operation("operations", role=Role.VIEWER, answers={200: Operation})
async def get(call: Call) -> Response:
    """How far an operation has come."""
    call.query()
    return await _reply(call, decode_operation(call.part("id")))


@operation("operations", role=Role.OPERATOR, answers={200: Operation}, body=Empty, optional=True, problems=(409,))
async def abort(call: Call) -> Response:
    """Let an operation do no more; what was done stays done."""
    await call.body(Empty)
    number = decode_operation(call.part("id"))
    state = await operations.abort(call.store, number, call.tenant_id)
    if state == "done":
        raise Conflict("the operation is done")
    return await _reply(call, number)


async def _reply(call: Call, number: int, status: int = 200, **headers: str) -> Response:
    return reply(await stored(call, number), status, **headers)


async def stored(call: Call, number: int) -> Operation:
    found = await operations.get(call.store, number, call.tenant_id)
    if found is None:
        raise no_operation()
    return _shown(found, await call.store.now())


def _shown(o: operations.Operation, now: datetime) -> Operation:
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
    )


def _eta(o: operations.Operation, now: datetime) -> datetime | None:
    looked = o.done + o.skipped + o.failed
    left = o.total - looked
    if o.state != "running" or left <= 0 or o.total_is_least:
        return None
    if o.rate is not None:
        return now + left * (MINUTE / o.rate)
    return now + left * ((now - o.created_at) / looked) if looked else None
