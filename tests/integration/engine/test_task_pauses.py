"""Pauses of tasks: nothing of a paused task starts, whatever created it, and everything starts after the resume."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import asyncpg
import pytest

from bellringer.core.retry_policy import Retry
from bellringer.core.run_blocked_flags import Blocked
from bellringer.core.runs import State
from bellringer.engine import explain, pause_task
from bellringer.engine.claim import ClaimSpec
from bellringer.errors import Conflict, NotFound
from bellringer.schedule import parse_schedule
from bellringer.store import queue, task_pauses

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness

READY = """
insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, shard, pool_id, priority, cause, spec)
select gen_random_uuid(), bellringer.now(), 0, bellringer.now(), 1, $2, 0, 1, 5, 'send', '{}'
from generate_series(1, $1)
"""
HELD = f"select count(*) from queue where blocked & {int(Blocked.TASK_PAUSED)} <> 0"


async def pause(harness: EngineHarness, task: str = "greet", **more: object) -> None:
    await pause_task.pause(harness.store, task, tenant_id=harness.tenant, who="me", **more)  # type: ignore[arg-type]


async def resume(harness: EngineHarness, task: str = "greet", rate: float | None = None) -> None:
    await pause_task.resume(harness.store, task, tenant_id=harness.tenant, who="me", rate=rate)


async def test_sends_of_a_paused_task_wait_and_others_run(harness: EngineHarness) -> None:
    seat = await harness.join_worker("greet", "other")
    before = await harness.send()
    await pause(harness)
    after = await harness.send()
    other = await harness.send(task="other")
    assert [run.key for run in await harness.claim(seat)] == [other.key]
    await pause_task.sweep(harness.store)
    assert await harness.value(HELD) == 2
    await resume(harness)
    assert {run.key for run in await harness.claim(seat)} == {before.key, after.key}


async def test_occurrences_are_created_and_wait(harness: EngineHarness) -> None:
    seat = await harness.join_worker()
    await harness.job("job", parse_schedule({"every": "1m"}))
    await pause(harness)
    for _ in range(3):
        await harness.pass_time(60)
        await harness.tick_all()
        await pause_task.sweep(harness.store)
    assert await harness.claim(seat) == []
    assert await harness.value(HELD) >= 2
    await resume(harness)
    assert len(await harness.claim(seat)) >= 2


async def test_a_retry_of_a_run_that_was_under_way_waits(harness: EngineHarness) -> None:
    seat = await harness.join_worker()
    await harness.send(retry=Retry(attempts=5))
    [running] = await harness.claim(seat)
    await pause(harness)
    await harness.fail(seat, running)
    await harness.pass_time(30)
    assert await harness.claim(seat) == []
    await resume(harness)
    [again] = await harness.claim(seat)
    assert again.attempt == 2


async def test_a_run_that_is_given_back_waits(harness: EngineHarness) -> None:
    seat = await harness.join_worker()
    await harness.send()
    taken = await harness.claim(seat)
    await pause(harness)
    await queue.give_back(harness.store, seat.worker_id, [(run.key, run.attempt) for run in taken])
    assert await harness.claim(seat) == []


async def test_runs_that_share_a_limit_wait(harness: EngineHarness) -> None:
    seat = await harness.join_worker()
    await harness.job("job", parse_schedule({"every": "1m"}), max_concurrency=3)
    await harness.pass_time(60)
    await harness.tick_all()
    await pause(harness)
    assert await harness.value(HELD) == 1
    assert await harness.claim(seat) == []
    await resume(harness)
    assert len(await harness.claim(seat)) == 1


async def test_runs_that_a_broker_has_are_withdrawn(harness: EngineHarness) -> None:
    seat = await harness.join_worker()
    await harness.send()
    nobody = ClaimSpec(worker_id=None, pool_id=seat.pool_id, task_ids=seat.task_ids)  # type: ignore[arg-type]
    [sent] = await harness.claim(nobody)
    await pause(harness)
    taken = await harness.sql(
        "select * from bellringer.take($1, $2, $3, $4, $5, $6)",
        seat.worker_id,
        seat.pool_id,
        [sent.key.job_id],
        [sent.key.scheduled_for],
        [sent.key.slot],
        [sent.attempt],
    )
    assert not taken
    assert await harness.value("select blocked from queue") == int(Blocked.TASK_PAUSED)


async def test_another_tenant_is_not_paused(harness: EngineHarness) -> None:
    seat = await harness.join_worker()
    other = await harness.value("insert into tenants (name) values ('other') returning tenant_id")
    await pause(harness)
    harness.tenant = other
    sent = await harness.send()
    assert [run.key for run in await harness.claim(seat)] == [sent.key]


async def test_a_pause_ends_by_itself(harness: EngineHarness) -> None:
    seat = await harness.join_worker()
    await harness.send()
    await pause(harness, until=await harness.now() + timedelta(minutes=30), reason="bank down")
    assert await harness.claim(seat) == []
    await harness.pass_time(1801)
    assert await pause_task.sweep(harness.store) == 1
    assert len(await harness.claim(seat)) == 1
    kinds = [row["kind"] for row in await harness.sql("select kind from events order by event_id")]
    assert kinds == ["task_paused", "task_resumed"]
    audit = [
        (row["action"], row["who"], row["target"])
        for row in await harness.sql("select action, who, target from audit where kind = 'task' order by audit_id")
    ]
    assert audit == [("task.paused", "me", "greet"), ("task.resumed", "the end of its pause", "greet")]


async def test_a_resume_with_a_rate_releases_gradually_and_lets_new_runs_start(harness: EngineHarness) -> None:
    seat = await harness.join_worker()
    task_id = (await harness.catalog.task_ids(["greet"]))["greet"]
    await harness.sql(READY, 30, task_id)
    await pause(harness)
    await resume(harness, rate=5)
    assert await harness.value(HELD) == 30
    fresh = await harness.send()
    assert [run.key for run in await harness.claim(seat)] == [fresh.key], "new runs start at once"
    await harness.pass_time(2)
    assert await pause_task.sweep(harness.store) == 10
    assert await pause_task.sweep(harness.store) == 0, "the rate is used up"
    await harness.pass_time(100)
    assert await pause_task.sweep(harness.store) == 20
    await pause_task.sweep(harness.store)
    assert await harness.value("select count(*) from task_pauses") == 0
    assert len(await harness.claim(seat)) == 30


async def test_why_names_the_pause(harness: EngineHarness) -> None:
    await harness.join_worker()
    sent = await harness.send()
    await pause(harness, reason="bank down", until=await harness.now() + timedelta(hours=1))
    told = await explain.load_run_explanation(harness.store, sent.key, tenant_id=harness.tenant)
    first = told.reasons[0]
    assert (first.code, first.holds, first.fix) == ("task_paused", True, "bellringer tasks resume greet")
    assert "by me until" in first.text
    assert "bank down" in first.text
    assert await harness.state(sent.key) is State.BLOCKED


async def test_a_pause_of_an_unknown_task_and_a_resume_of_a_running_one_are_refused(harness: EngineHarness) -> None:
    with pytest.raises(NotFound):
        await pause(harness, "nothing")
    await harness.join_worker()
    with pytest.raises(Conflict, match="not paused"):
        await resume(harness)


async def test_the_load_of_tasks_is_counted(harness: EngineHarness) -> None:
    seat = await harness.join_worker()
    task_id = (await harness.catalog.task_ids(["greet"]))["greet"]
    await harness.sql(READY, 5, task_id)
    await harness.claim(seat, 2)
    load = (await task_pauses.load_tasks(harness.store, harness.tenant))[task_id]
    assert (load.ready, load.running, load.held) == (3, 2, 0)
    await pause(harness)
    load = (await task_pauses.load_tasks(harness.store, harness.tenant))[task_id]
    assert (load.ready, load.running, load.held) == (0, 2, 3)


async def test_nothing_starts_after_a_pause_has_returned_though_claims_and_sends_race_with_it(
    harness: EngineHarness,
) -> None:
    task_id = (await harness.catalog.task_ids(["greet"]))["greet"]
    seats = [await harness.join_worker() for _ in range(4)]
    stop = asyncio.Event()

    async def insert() -> None:
        while not stop.is_set():
            await harness.sql(READY, 20, task_id)

    async def work(seat: ClaimSpec) -> None:
        while not stop.is_set():
            await harness.claim(seat, 7)

    for _ in range(15):
        stop.clear()
        racing = [asyncio.create_task(insert()), *(asyncio.create_task(work(seat)) for seat in seats)]
        await asyncio.sleep(0.05)
        await pause(harness)
        running = await harness.value("select count(*) from queue where worker_id is not null")
        await asyncio.sleep(0.05)
        assert await harness.value("select count(*) from queue where worker_id is not null") == running
        stop.set()
        await asyncio.gather(*racing)
        await harness.sql("delete from queue")
        await resume(harness)


@pytest.mark.parametrize("call", ["hold_task_runs(null, null, null, 10)", "release_task_runs(null, null, 10)"])
async def test_a_connection_of_a_tenant_holds_and_releases_no_runs_of_others(harness: EngineHarness, call: str) -> None:
    async with harness.store.pool.acquire() as connection, connection.transaction():
        await connection.execute("select set_config('bellringer.tenant', '1', true)")
        with pytest.raises(asyncpg.PostgresError, match="another tenant"):
            await connection.execute(f"select bellringer.{call}")
