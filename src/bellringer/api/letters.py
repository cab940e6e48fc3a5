"""Dead letters: list and group them, redrive or discard them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api import bulk_actions, documents
from bellringer.api.calls import Call, LetterMark, reply, run_key
from bellringer.api.operations import CURSOR, LIMIT, choice, operation, string
from bellringer.errors import InvalidInput, NotFound
from bellringer.lifecycle import control
from bellringer.runs import RunKey
from bellringer.store import letters
from bellringer.store.letters import LetterFilter, LetterPlace
from bellringer.store.wakeups import WORK
from bellringer.wire import Bulk, Letters, LettersRequest
from bellringer.wire.letters import LetterGroups
from bellringer.wire.operations import LettersFilter, Operation
from bellringer.wire.reading import Gathering

BATCH: Final = 500  # what is done at once; more becomes an operation
MOST_NAMED: Final = 1000
LONGEST_FINGERPRINT: Final = 64

Act = Callable[[Sequence[RunKey]], Awaitable[int]]


class GroupMark(msgspec.Struct, frozen=True, array_like=True):
    """The last group of a page."""

    fingerprint: str


@operation(
    "dead letters",
    role=Role.VIEWER,
    answers={200: Letters | LetterGroups},
    query=(
        LIMIT,
        CURSOR,
        string("fingerprint", "only those of this error"),
        string("job", "only those of this job, by id or name"),
        string("task", "only those of this task"),
        choice("group_by", "groups of those that died of the same, in place of the letters", ["fingerprint"]),
    ),
)
async def listing(call: Call) -> Response:
    """Runs that gave up, the latest first; or groups of them, by their fingerprints."""
    query = call.query()
    limit, group_by = call.limit(), query.get("group_by")
    if group_by is not None:
        if group_by != "fingerprint" or query.keys() & {"fingerprint", "job", "task"}:
            raise InvalidInput("groups are by fingerprint, and of all letters", code="conflicting_fields")
        return await _groups(call, limit)
    wanted = await bulk_actions.letter_filter(
        call, LettersFilter(**{name: query.get(name) for name in ("fingerprint", "job", "task")})
    )
    of = f"dead letters {msgspec.json.encode(wanted).decode()}"
    mark = call.cursor(of, LetterMark)
    after = LetterPlace(RunKey(mark.job_id, mark.scheduled_for, mark.slot), mark.died_at) if mark else None
    page = await letters.page(call.reads, call.tenant_id, wanted, after, limit)
    found = await letters.items(call.reads, call.tenant_id, page.keys)
    following = None
    if page.stop is not None:
        key = page.stop.key
        following = call.cursor_to(of, LetterMark(page.stop.died_at, key.scheduled_for, key.job_id, key.slot))
    return reply(Letters(items=[documents.dead_letter(d) for d in found], next_cursor=following))


async def _groups(call: Call, limit: int) -> Response:
    mark = call.cursor("dead letters by fingerprint", GroupMark)
    found = await letters.groups(call.reads, call.tenant_id, mark.fingerprint if mark else None, limit + 1)
    more = len(found) > limit
    following = call.cursor_to("dead letters by fingerprint", GroupMark(found[limit - 1].fingerprint)) if more else None
    newest_first = sorted(found[:limit], key=lambda group: group.last_died, reverse=True)
    return reply(LetterGroups(items=[documents.letter_group(g) for g in newest_first], next_cursor=following))


@operation("dead letters", role=Role.OPERATOR, answers={200: Bulk, 202: Operation}, body=LettersRequest)
async def redrive(call: Call) -> Response:
    """Revive dead letters: the same runs are tried again. Many, or with a rate, become an operation: 202."""
    tenant_id = call.tenant_id
    return await _apply(
        call, "dead_letters.redrive", lambda keys: control.redrive(call.store, keys, tenant_id=tenant_id)
    )


@operation("dead letters", role=Role.OPERATOR, answers={200: Bulk, 202: Operation}, body=LettersRequest)
async def discard(call: Call) -> Response:
    """Take runs off the dead letters for good; they stay in history. Many become an operation: 202."""
    tenant_id = call.tenant_id
    return await _apply(
        call, "dead_letters.discard", lambda keys: control.discard(call.store, keys, tenant_id=tenant_id)
    )


async def _apply(call: Call, action: str, act: Act) -> Response:
    request = await call.body(LettersRequest)
    _check(request)
    if request.runs is not None:
        keys = _keys(request.runs)
        if request.rate is not None:
            return await bulk_actions.begin(call, action, ids=[key.id for key in keys], rate=request.rate)
        return await _done(call, action, await act(keys))
    wanted, now = LetterFilter(fingerprint=request.fingerprint), await call.store.now()
    page = await letters.page(call.store, call.tenant_id, wanted, _before(now), BATCH)
    if page.stop is not None or request.rate is not None:
        return await bulk_actions.begin(call, action, wanted=wanted, rate=request.rate)
    return await _done(call, action, await act(page.keys) if page.keys else 0)


def _before(now: datetime) -> LetterPlace:
    """Only what had died before: a run that dies again does not come round."""
    return LetterPlace(RunKey(UUID(int=0), now), now)


async def _done(call: Call, action: str, count: int) -> Response:
    if count and action == "dead_letters.redrive":
        await call.service.wake(WORK, (await call.store.now()).isoformat())
    return reply(Bulk(count=count))


def _check(request: LettersRequest) -> None:
    if [request.runs is not None, request.all, request.fingerprint is not None].count(True) != 1:
        raise InvalidInput(
            "which dead letters is not said, or said twice",
            hint='give one of "runs": […], "fingerprint": "…" and "all": true',
            code="conflicting_fields",
        )
    if request.fingerprint is not None and not 0 < len(request.fingerprint) <= LONGEST_FINGERPRINT:
        raise InvalidInput("that is not a fingerprint", pointer="/fingerprint", code="limit")
    g = Gathering()
    bulk_actions.check_rate(request.rate, g)
    g.done()


def _keys(ids: list[str]) -> list[RunKey]:
    if len(ids) > MOST_NAMED:
        raise InvalidInput(f"at most {MOST_NAMED} runs can be named at once", pointer="/runs", code="limit")
    keys = []
    for place, text in enumerate(ids):
        try:
            keys.append(run_key(text))
        except NotFound:
            raise InvalidInput("that is not the id of a run", pointer=f"/runs/{place}", code="run_id_invalid") from None
    return keys
