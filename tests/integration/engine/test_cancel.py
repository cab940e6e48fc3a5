"""Cancelling runs that wait in a timer, retry or start at that moment."""

from __future__ import annotations

import asyncio
import functools
import string
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import UUID

import asyncpg
import pytest

from bellringer.core.runs import RunKey, State, decode_run_id
from bellringer.errors import NotFound

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness


DAY = 86_400


async def test_a_run_that_is_due_in_a_week_can_be_cancelled(harness: EngineHarness) -> None:
    sent = await harness.send(at=harness.after(7 * DAY))
    assert await harness.cancel(sent.key) is State.CANCELLED
    assert await harness.state(sent.key) is State.CANCELLED


async def test_a_cancel_that_meets_a_retry_on_its_way_back_cancels_it(harness: EngineHarness) -> None:
    sent = await harness.send()
    seat = await harness.join_worker()
    claimed = await harness.claim_one(seat)
    async with harness.store.pool.acquire() as other:
        transaction = other.transaction()
        await transaction.start()
        await other.execute(  # as a settle does
            "update queue set worker_id = null, available_at = bellringer.now() + interval '9 s'"
        )
        cancelling = asyncio.create_task(harness.cancel(sent.key))
        await blocked_by(harness, other)
        await transaction.commit()
    assert await cancelling in (State.CANCELLED, State.RUNNING)
    assert claimed.attempt == 1


def test_an_id_that_no_run_can_have_is_not_found() -> None:
    """A slot beyond bigint is an error in the database; and a run with two ids has two idempotency keys."""
    job, moment = UUID(int=7), datetime(2030, 1, 1, tzinfo=UTC)
    beyond = RunKey(job, moment, 1 << 63).id
    with pytest.raises(NotFound):
        decode_run_id(beyond)
    second_name = long_form_of(RunKey(job, moment))
    with pytest.raises(NotFound):
        decode_run_id(second_name)


def long_form_of(key: RunKey) -> str:
    """The id of a run in slot 0, written as those of the other slots are."""
    signs = string.digits + string.ascii_uppercase + string.ascii_lowercase
    value = dict(zip(signs, range(62), strict=True))
    number = functools.reduce(lambda n, sign: n * 62 + value[sign], key.id.removeprefix("run_"), 0) << 64
    digits = []
    for _ in range(44):
        number, rest = divmod(number, 62)
        digits.append(signs[rest])
    return "run_" + "".join(reversed(digits))


async def blocked_by(
    harness: EngineHarness, holder: asyncpg.pool.PoolConnectionProxy[asyncpg.Record], waiters: int = 1
) -> None:
    """Wait until so many wait, in a row or at once, for a lock that this connection holds."""
    pid = await holder.fetchval("select pg_backend_pid()")
    waiting = """
        with recursive w (pid) as (values ($1::int) union
          select a.pid from pg_stat_activity a join w on w.pid = any (pg_blocking_pids(a.pid)))
        select count(*) - 1 from w"""
    for _ in range(500):
        if await harness.value(waiting, pid) >= waiters:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("nobody came to wait")


async def test_a_cancel_that_meets_a_timer_as_it_fires_cancels_the_run(harness: EngineHarness) -> None:
    sent = await harness.send(at=harness.after(60))
    await harness.set_clock(harness.after(60))
    holding = await harness.hold()
    shards, tokens = holding.tokens_for(range(64))
    async with harness.store.pool.acquire() as other, other.transaction():
        await other.fetch(
            "select * from bellringer.fire_timers($1, $2, $3, interval '0', 10, false)", holding.holder, shards, tokens
        )
        cancelling = asyncio.create_task(harness.cancel(sent.key))
        await asyncio.sleep(0.1)
        assert not cancelling.done()
    assert await cancelling is State.CANCELLED
