"""Workers that vanish, and workers that leave."""

from __future__ import annotations

import signal

import pytest

from bellringer.engine.send import SendSpec, send
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog

from .conftest import Processes, until


@pytest.mark.cluster
async def test_all_attempts_of_a_killed_worker_are_lost_and_their_runs_end(
    store: Store, catalog: Catalog, processes: Processes
) -> None:
    processes.start("scheduler", "node")
    victim = processes.start("worker", "victim")
    for _ in range(50):
        await send(store, catalog, SendSpec(task="hold"), tenant_id=1)

    async def all_run() -> bool:
        return bool(await store.pool.fetchval("select count(*) from queue where worker_id is not null") == 50)

    await until(all_run, 20, "the worker holds 50 attempts")
    victim.kill()
    processes.start("worker", "heir")

    async def all_ended() -> bool:
        return bool(await store.pool.fetchval("select count(*) from attempts where ends_as = 'succeeded'") == 50)

    await until(all_ended, 40, "the other worker ends all 50")
    history = await store.pool.fetch(
        "select array_agg(outcome::text order by attempt) as outcomes, count(*) from attempts group by job_id"
    )
    assert [list(row["outcomes"]) for row in history] == [["lost", "ok"]] * 50
    assert await store.pool.fetchval("select count(*) from queue") == 0


@pytest.mark.cluster
async def test_a_worker_that_is_stopped_past_its_heartbeat_cannot_settle_what_others_ended(
    store: Store, catalog: Catalog, processes: Processes
) -> None:
    processes.start("scheduler", "node")
    sleeper = processes.start("worker", "sleeper", fault="execute.done:stop:1")
    sent = await send(store, catalog, SendSpec(task="quick"), tenant_id=1)

    async def holds_it() -> bool:
        return bool(await store.pool.fetchval("select count(*) from queue where worker_id is not null") == 1)

    await until(holds_it, 20, "the worker has executed it and is stopped before it can settle")
    processes.start("worker", "heir")

    async def ended() -> bool:
        return bool(await store.pool.fetchval("select count(*) from attempts where ends_as = 'succeeded'") == 1)

    await until(ended, 40, "another worker ends it")
    before = await store.pool.fetch("select * from attempts order by attempt")
    sleeper.send_signal(signal.SIGCONT)

    async def starts_over() -> bool:
        return bool(await store.pool.fetchval("select count(*) from workers where name = 'sleeper'") == 2)

    await until(starts_over, 20, "the sleeper learns that it was declared lost, and joins anew")
    assert await store.pool.fetch("select * from attempts order by attempt") == before
    assert [row["outcome"] for row in before] == ["lost", "ok"]
    assert before[0]["job_id"] == sent.key.job_id


@pytest.mark.cluster
async def test_a_worker_that_is_asked_to_stop_gives_back_what_it_could_not_finish(
    store: Store, catalog: Catalog, processes: Processes
) -> None:
    leaver = processes.start("worker", "leaver")
    for _ in range(60):
        await send(store, catalog, SendSpec(task="hold"), tenant_id=1)

    async def full() -> bool:
        return bool(await store.pool.fetchval("select count(*) from queue where worker_id is not null") >= 50)

    await until(full, 20, "all seats are taken")
    leaver.send_signal(signal.SIGTERM)
    assert leaver.wait(15) == 0
    rows = await store.pool.fetch("select worker_id, attempt, attempt_floor from queue")
    assert len(rows) == 60
    assert all(row["worker_id"] is None and row["attempt"] == row["attempt_floor"] for row in rows), (
        "no budget was used"
    )
    assert await store.pool.fetchval("select state from workers") == "stopped"
