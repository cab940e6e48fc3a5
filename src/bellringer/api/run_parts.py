"""One run beyond its reading: wait for its end, its result, its tries; and the same once more."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.responses import Response

from bellringer.access import Role
from bellringer.api import documents
from bellringer.api.calls import Call, no_run, reply
from bellringer.api.deadlines import PATIENCE
from bellringer.api.logins import unauthenticated
from bellringer.api.operations import number, operation
from bellringer.api.runs import run_reply
from bellringer.api.streams import HEARTBEAT
from bellringer.errors import Conflict, InvalidInput, NotFound
from bellringer.lifecycle.replay import replay as repeat
from bellringer.runs import FINAL
from bellringer.store import runs
from bellringer.store.wakeups import WORK
from bellringer.wire import Attempt, Run, note
from bellringer.wire.asks import PREFIX
from bellringer.wire.definitions import kwargs_of
from bellringer.wire.runs import Attempts, ReplayRequest, Result

LONGEST_WAIT: Final = 60
USUAL_WAIT: Final = 30


@operation(
    "runs",
    role=Role.VIEWER,
    answers={200: Run, 202: Run},
    query=(number("timeout", "seconds to wait at most, 30 where not given", 0, LONGEST_WAIT),),
    problems=(429,),
    streams=True,
)
async def wait(call: Call) -> Response:
    """Wait for the end of a run: 200 when it has ended, 202 when it has not within that time."""
    seconds = _seconds(call.query().get("timeout"))
    key, service = call.run_key(), call.service
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    call.deadline.extend(seconds + PATIENCE)
    with service.streams.waits.taken(call.tenant_id):
        while True:
            stored = await runs.get(call.store, key, call.tenant_id)
            if stored is None:
                raise no_run()
            left = end - loop.time()
            if stored.state in FINAL:
                return await run_reply(call, key)
            if left <= 0 or service.streams.is_closing:
                return await run_reply(call, key, 202, Retry_After="1")
            await service.streams.endings.wait(service.store, service.clock, key, min(left, HEARTBEAT))
            if not await call.still():
                raise unauthenticated()


def _seconds(text: str | None) -> int:
    if text is None:
        return USUAL_WAIT
    if not (text.isascii() and text.isdecimal() and len(text) < 4 and int(text) <= LONGEST_WAIT):
        raise InvalidInput(f"timeout must be a number of seconds from 0 to {LONGEST_WAIT}", code="limit_range")
    return int(text)


@operation("runs", role=Role.VIEWER, answers={200: Result}, problems=(409,))
async def result(call: Call) -> Response:
    """What an ended run gave back, or the error that ended it."""
    call.query()
    key = call.run_key()
    stored = await runs.get(call.store, key, call.tenant_id)
    if stored is None:
        raise no_run()
    if stored.state not in FINAL:
        raise Conflict(
            f"the run is {stored.state}", hint=f"wait for its end at {PREFIX}/runs/{key.id}/wait", code="run_unfinished"
        )
    return reply(
        Result(
            run_id=key.id,
            state=stored.state.value,
            finished_at=stored.finished_at,
            result=stored.result,
            error=stored.error,
        )
    )


@operation("runs", role=Role.VIEWER, answers={200: Attempts})
async def attempts(call: Call) -> Response:
    """All tries at a run, oldest first."""
    call.query()
    return reply(Attempts(items=[documents.attempt(row) for row in await _attempts(call)]))


@operation("runs", role=Role.VIEWER, answers={200: Attempt})
async def attempt(call: Call) -> Response:
    """One try at a run, by its number; 0 is an end without a try."""
    call.query()
    wanted = call.part("number")
    for row in await _attempts(call):
        if str(row.attempt) == wanted:
            return reply(documents.attempt(row))
    raise NotFound("there is no such attempt")


async def _attempts(call: Call) -> list[runs.AttemptRow]:
    key = call.run_key()
    if await runs.get(call.store, key, call.tenant_id) is None:
        raise no_run()
    return await runs.attempts(call.store, key)


@operation(
    "runs", role=Role.OPERATOR, fires=True, answers={202: Run}, body=ReplayRequest, optional=True, problems=(409,)
)
async def replay(call: Call) -> Response:
    """Run an ended occurrence once more, as a new run; arguments that are given change those that it had."""
    request = await call.body(ReplayRequest)
    kwargs, reason = kwargs_of(request), note(request.reason, what="reason")
    key = await repeat(
        call.store, call.run_key(), tenant_id=call.tenant_id, args=request.args, kwargs=kwargs, reason=reason
    )
    await call.service.wake(WORK, (await call.store.now()).isoformat())
    return await run_reply(call, key, 202, Location=f"{PREFIX}/runs/{key.id}")
