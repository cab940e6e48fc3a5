"""Dead letters: list, group, redrive, discard and restore."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.endpoints import bulk_actions
from bellringer.api.http.operation import CURSOR_PARAMETER, LIMIT_PARAMETER, choice, operation, string
from bellringer.api.http.request import DeadLetterMark, RequestContext, reply, run_key
from bellringer.api.render import documents
from bellringer.core.runs import RunKey
from bellringer.engine import job_and_run_commands as commands
from bellringer.errors import InvalidInput, NotFound
from bellringer.store import dead_letters
from bellringer.store.dead_letters import DISCARDS_KEPT, DeadLetterFilter, DeadLetterPosition, DiscardFilter
from bellringer.store.wakeups import WORK_CHANNEL
from bellringer.wire.dead_letters import (
    Bulk,
    DiscardedLetters,
    LetterGroups,
    Letters,
    LettersRequest,
    RestoreRequest,
)
from bellringer.wire.decode import Gathering
from bellringer.wire.operations import LettersFilter, decode_operation
from bellringer.wire.routes import Routes

MAX_APPLIED_AT_ONCE: Final = 500  # larger requests become an operation
MAX_RUNS: Final = 1000
MAX_FINGERPRINT_LENGTH: Final = 64

Act = Callable[[Sequence[RunKey]], Awaitable[int]]


class GroupMark(msgspec.Struct, frozen=True, array_like=True):
    """The position of a group in a list."""

    fingerprint: str


@operation(
    Routes.dead_letters,
    role=Role.VIEWER,
    query=(
        LIMIT_PARAMETER,
        CURSOR_PARAMETER,
        string("fingerprint", "only dead letters with this error fingerprint"),
        string("job", "only dead letters of this job, by id or name"),
        string("task", "only dead letters of this task"),
        choice("group_by", "group dead letters by error fingerprint", ["fingerprint"]),
    ),
)
async def listing(call: RequestContext) -> Response:
    """Lists runs that have exhausted their attempts, the latest first; or groups of them, by error fingerprint."""
    query = call.query()
    limit, group_by = call.limit(), query.get("group_by")
    if group_by is not None:
        if group_by != "fingerprint" or query.keys() & {"fingerprint", "job", "task"}:
            raise InvalidInput("group must be fingerprint, without other filters", code="conflicting_fields")
        return await _groups(call, limit)
    wanted = await bulk_actions.dead_letter_filter(
        call, LettersFilter(**{name: query.get(name) for name in ("fingerprint", "job", "task")})
    )
    of = f"dead letters {msgspec.json.encode(wanted).decode()}"
    mark = call.cursor(of, DeadLetterMark)
    after = DeadLetterPosition(RunKey(mark.job_id, mark.scheduled_for, mark.slot), mark.died_at) if mark else None
    page = await dead_letters.find_dead_letters(call.reads, call.tenant_id, wanted, after, limit)
    found = await dead_letters.load_dead_letters(call.reads, call.tenant_id, page.keys)
    following = None
    if page.stop is not None:
        key = page.stop.key
        following = call.cursor_to(of, DeadLetterMark(page.stop.died_at, key.scheduled_for, key.job_id, key.slot))
    return reply(Letters(items=[documents.render_dead_letter(d) for d in found], next_cursor=following))


async def _groups(call: RequestContext, limit: int) -> Response:
    mark = call.cursor("dead letters by fingerprint", GroupMark)
    found = await dead_letters.list_groups(call.reads, call.tenant_id, mark.fingerprint if mark else None, limit + 1)
    more = len(found) > limit
    following = call.cursor_to("dead letters by fingerprint", GroupMark(found[limit - 1].fingerprint)) if more else None
    newest_first = sorted(found[:limit], key=lambda group: group.last_died, reverse=True)
    return reply(
        LetterGroups(items=[documents.render_dead_letter_group(g) for g in newest_first], next_cursor=following)
    )


@operation(Routes.redrive, role=Role.OPERATOR)
async def redrive(call: RequestContext) -> Response:
    """Redrives dead letters: the same runs are tried again. Large requests, and those with a rate, become an operation
    and return 202.
    """
    tenant_id = call.tenant_id
    return await _apply(
        call, "dead_letters.redrive", lambda keys: commands.redrive(call.store, keys, tenant_id=tenant_id)
    )


@operation(Routes.discard, role=Role.OPERATOR)
async def discard(call: RequestContext) -> Response:
    """Discards dead letters; the runs stay in history. Large requests become an operation: 202. For a day, discarded
    dead letters can be restored.
    """
    tenant_id = call.tenant_id
    return await _apply(
        call, "dead_letters.discard", lambda keys: commands.discard(call.store, keys, tenant_id=tenant_id)
    )


@operation(
    Routes.discarded,
    role=Role.VIEWER,
    query=(
        LIMIT_PARAMETER,
        CURSOR_PARAMETER,
        string("fingerprint", "only dead letters with this error fingerprint"),
        string("operation", "only those that this operation discarded"),
    ),
)
async def discarded(call: RequestContext) -> Response:
    """Lists dead letters that were discarded within the last day and can be restored, the latest first."""
    query, limit = call.query(), call.limit()
    operation_id = query.get("operation")
    wanted = DiscardFilter(
        fingerprint=query.get("fingerprint"),
        operation=None if operation_id is None else decode_operation(operation_id),
    )
    of = f"discarded dead letters {msgspec.json.encode(wanted).decode()}"
    mark = call.cursor(of, DeadLetterMark)
    after = DeadLetterPosition(RunKey(mark.job_id, mark.scheduled_for, mark.slot), mark.died_at) if mark else None
    since = await call.store.now() - DISCARDS_KEPT
    found = await dead_letters.list_discarded(call.reads, call.tenant_id, wanted, since, after, limit + 1)
    following = None
    if len(found) > limit:
        key, at = found[limit - 1].letter.key, found[limit - 1].discarded_at
        following = call.cursor_to(of, DeadLetterMark(at, key.scheduled_for, key.job_id, key.slot))
    return reply(DiscardedLetters(items=[documents.render_discarded(d) for d in found[:limit]], next_cursor=following))


@operation(Routes.restore_discarded, role=Role.OPERATOR)
async def restore_discarded(call: RequestContext) -> Response:
    """Restores dead letters that were discarded within the last day. Runs that were started again since are left out.

    One request restores up to 500; `more` says that further ones are left. A repeated request restores nothing twice.
    """
    request = await call.body(RestoreRequest)
    _check_one_of(request.runs, request.all, request.fingerprint, request.operation_id)
    if request.runs is not None:
        keys, more = _keys(request.runs), False
    else:
        number = None if request.operation_id is None else _operation(request.operation_id)
        wanted = DiscardFilter(fingerprint=request.fingerprint, operation=number)
        since = await call.store.now() - DISCARDS_KEPT
        keys = await dead_letters.discarded_keys(call.store, call.tenant_id, wanted, since, MAX_APPLIED_AT_ONCE + 1)
        keys, more = keys[:MAX_APPLIED_AT_ONCE], len(keys) > MAX_APPLIED_AT_ONCE
    count = await commands.restore_discarded(call.store, keys, tenant_id=call.tenant_id) if keys else 0
    return reply(Bulk(count=count, more=more))


def _operation(text: str) -> int:
    try:
        return decode_operation(text)
    except NotFound:
        message = "this is not the id of an operation"
        hint = "`bellringer ops list` shows them"
        raise InvalidInput(message, hint=hint, pointer="/operation_id", code="operation_id_invalid") from None


def _check_one_of(runs: list[str] | None, everything: bool, fingerprint: str | None, operation_id: str | None) -> None:
    if [runs is not None, everything, fingerprint is not None, operation_id is not None].count(True) != 1:
        raise InvalidInput(
            "give exactly one of runs, fingerprint, operation_id and all",
            hint='give one of "runs": […], "fingerprint": "…", "operation_id": "…" and "all": true',
            code="conflicting_fields",
        )
    _check_fingerprint(fingerprint)


def _check_fingerprint(fingerprint: str | None) -> None:
    if fingerprint is not None and not 0 < len(fingerprint) <= MAX_FINGERPRINT_LENGTH:
        raise InvalidInput("this is not a fingerprint", pointer="/fingerprint", code="limit")


async def _apply(call: RequestContext, action: str, act: Act) -> Response:
    request = await call.body(LettersRequest)
    _check(request)
    if request.runs is not None:
        keys = _keys(request.runs)
        if request.rate is not None:
            return await bulk_actions.begin_operation(call, action, ids=[key.id for key in keys], rate=request.rate)
        return await _done(call, action, await act(keys))
    wanted, now = DeadLetterFilter(fingerprint=request.fingerprint), await call.store.now()
    page = await dead_letters.find_dead_letters(call.store, call.tenant_id, wanted, _before(now), MAX_APPLIED_AT_ONCE)
    if page.stop is not None or request.rate is not None:
        return await bulk_actions.begin_operation(call, action, wanted=wanted, rate=request.rate)
    return await _done(call, action, await act(page.keys) if page.keys else 0)


def _before(now: datetime) -> DeadLetterPosition:
    """Restricts an operation to dead letters that died before it began: a run that dies again is not redriven twice."""
    return DeadLetterPosition(RunKey(UUID(int=0), now), now)


async def _done(call: RequestContext, action: str, count: int) -> Response:
    if count and action == "dead_letters.redrive":
        await call.service.wake(WORK_CHANNEL, (await call.store.now()).isoformat())
    return reply(Bulk(count=count))


def _check(request: LettersRequest) -> None:
    if [request.runs is not None, request.all, request.fingerprint is not None].count(True) != 1:
        raise InvalidInput(
            "give exactly one of runs, fingerprint and all",
            hint='give one of "runs": […], "fingerprint": "…" and "all": true',
            code="conflicting_fields",
        )
    _check_fingerprint(request.fingerprint)
    g = Gathering()
    bulk_actions.check_rate(request.rate, g)
    g.done()


def _keys(ids: list[str]) -> list[RunKey]:
    if len(ids) > MAX_RUNS:
        raise InvalidInput(f"at most {MAX_RUNS} runs can be given at once", pointer="/runs", code="limit")
    keys = []
    for place, text in enumerate(ids):
        try:
            keys.append(run_key(text))
        except NotFound:
            hint = "`GET /dead-letters` lists the ids; they look like run_…"
            raise InvalidInput(
                "this is not the id of a run", hint=hint, pointer=f"/runs/{place}", code="run_id_invalid"
            ) from None
    return keys
