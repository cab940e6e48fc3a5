"""Dead letters: list them, redrive or discard them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

from starlette.responses import Response

from bellringer.access import Role
from bellringer.api import documents
from bellringer.api.calls import Call, LetterMark, cursor_to, reply, run_key
from bellringer.api.operations import CURSOR, LIMIT, operation, string
from bellringer.errors import InvalidInput, NotFound
from bellringer.lifecycle import control
from bellringer.runs import RunKey
from bellringer.store import runs
from bellringer.store.wakeups import WORK
from bellringer.wire import Bulk, Letters, LettersRequest

BATCH: Final = 500
PASSES: Final = 20
MOST_NAMED: Final = 1000
LONGEST_FINGERPRINT: Final = 64

Act = Callable[[Sequence[RunKey]], Awaitable[int]]


@operation(
    "dead letters",
    role=Role.VIEWER,
    answers={200: Letters},
    query=(LIMIT, CURSOR, string("fingerprint", "only those of this error")),
)
async def listing(call: Call) -> Response:
    query = call.query()
    limit, fingerprint = call.limit(), query.get("fingerprint")
    of = f"dead letters {fingerprint or ''}"
    mark = call.cursor(of, LetterMark)
    before = (mark.died_at, RunKey(mark.job_id, mark.scheduled_for, mark.slot)) if mark else None
    found = await runs.dead(call.store, call.tenant_id, before, fingerprint, limit + 1)
    following = None
    if len(found) > limit:
        last = found[limit - 1]
        key = last.key
        following = cursor_to(of, LetterMark(last.died_at, key.scheduled_for, key.job_id, key.slot))
    return reply(Letters(items=[documents.dead_letter(d) for d in found[:limit]], next_cursor=following))


@operation("dead letters", role=Role.OPERATOR, answers={200: Bulk}, body=LettersRequest)
async def redrive(call: Call) -> Response:
    tenant_id = call.tenant_id
    done = await _apply(call, lambda keys: control.redrive(call.store, keys, tenant_id=tenant_id))
    if done.count:
        await call.service.wake(WORK, (await call.store.now()).isoformat())
    return reply(done)


@operation("dead letters", role=Role.OPERATOR, answers={200: Bulk}, body=LettersRequest)
async def discard(call: Call) -> Response:
    tenant_id = call.tenant_id
    return reply(await _apply(call, lambda keys: control.discard(call.store, keys, tenant_id=tenant_id)))


async def _apply(call: Call, act: Act) -> Bulk:
    request = await call.body(LettersRequest)
    if [request.runs is not None, request.all, request.fingerprint is not None].count(True) != 1:
        raise InvalidInput(
            "which dead letters is not said, or said twice",
            hint='give one of "runs": […], "fingerprint": "…" and "all": true',
            code="conflicting_fields",
        )
    if request.runs is not None:
        return Bulk(count=await act(_keys(request.runs)))
    if request.fingerprint is not None and not 0 < len(request.fingerprint) <= LONGEST_FINGERPRINT:
        raise InvalidInput("that is not a fingerprint", pointer="/fingerprint", code="limit")
    return await _apply_to_many(call, act, request.fingerprint, await call.store.now())


async def _apply_to_many(call: Call, act: Act, fingerprint: str | None, now: datetime) -> Bulk:
    """Batch by batch, and only what had died before: a run that dies again does not come round."""
    tenant_id, count = call.tenant_id, 0
    before = (now, RunKey(UUID(int=0), now))  # the least of the keys: of this very moment, none
    for _ in range(PASSES):
        found = await runs.dead(call.store, tenant_id, before, fingerprint, BATCH)
        if found:
            count += await act([letter.key for letter in found])
        if len(found) < BATCH:
            return Bulk(count=count)
    return Bulk(count=count, more=True)


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
