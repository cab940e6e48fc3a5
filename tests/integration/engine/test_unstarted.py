"""Runs that wait long in a pool without a live worker, or with busy workers only, are an event; and so is the end."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from bellringer.core.retry_policy import Retry
from bellringer.engine import pause_task
from bellringer.engine.monitor import UNSTARTED_AFTER, StuckPass, report_stuck_jobs
from bellringer.schedule import every
from bellringer.store import workers

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness

WAIT = UNSTARTED_AFTER.total_seconds() + 1


async def stuck(harness: EngineHarness) -> StuckPass:
    return await report_stuck_jobs(harness.store, await harness.now())


async def told(harness: EngineHarness) -> list[tuple[str, int, dict[str, Any]]]:
    rows = await harness.sql("select kind, tenant_id, data from events order by event_id")
    return [(row["kind"], row["tenant_id"], json.loads(row["data"])) for row in rows]


async def test_a_pool_without_a_worker_is_reported_once_and_again_when_its_runs_start(harness: EngineHarness) -> None:
    await harness.job("hourly", every("1h"))
    for _ in range(3):
        await harness.send()
    await harness.pass_time(WAIT - 2)
    assert await stuck(harness) == StuckPass(), "it may be a deployment"
    await harness.pass_time(2)
    assert await stuck(harness) == StuckPass(unstarted=1)
    await harness.pass_time(3600)
    await harness.tick_all()
    await harness.pass_time(WAIT)
    assert await stuck(harness) == StuckPass()
    [(kind, _, data)] = await told(harness)
    assert (kind, data["reason"], data["pool"], data["task"]) == ("unstarted", "no_worker", "short", "greet")
    seat = await harness.join_worker()
    assert await stuck(harness) == StuckPass(), "a worker is there, but the runs still wait"
    assert len(await harness.claim(seat)) == 4
    assert await stuck(harness) == StuckPass(started_again=1)
    assert [(kind, data.get("after")) for kind, _, data in await told(harness)][1:] == [("recovered", "unstarted")]
    assert await stuck(harness) == StuckPass()
    assert await harness.value("select count(*) from unserved_pools") == 0


async def test_a_pool_with_busy_workers_only_is_reported(harness: EngineHarness) -> None:
    seat = await harness.join_worker()  # has 10 slots
    for _ in range(10):
        await harness.send()
    held = await harness.claim(seat)
    await harness.send()
    await harness.pass_time(WAIT)
    assert await stuck(harness) == StuckPass(unstarted=1)
    [(_, _, data)] = await told(harness)
    assert data["reason"] == "busy"
    await harness.end(seat, held)
    await harness.claim(seat)
    assert await stuck(harness) == StuckPass(started_again=1)


async def test_a_worker_with_a_free_slot_is_no_reason_for_an_event(harness: EngineHarness) -> None:
    """The run waits for something else, which `why` explains, or it is claimed in a moment."""
    await harness.join_worker()
    await harness.send()
    await harness.pass_time(WAIT)
    assert await stuck(harness) == StuckPass()


async def test_each_tenant_is_told_of_its_own_runs(harness: EngineHarness) -> None:
    other = await harness.value("insert into tenants (name) values ('other') returning tenant_id")
    idle = await harness.value("insert into tenants (name) values ('idle') returning tenant_id")
    await harness.send()
    await harness.send(tenant=other)
    await harness.send(tenant=other, priority=9)
    await harness.pass_time(WAIT)
    assert await stuck(harness) == StuckPass(unstarted=2)
    assert sorted(tenant for _, tenant, _ in await told(harness)) == sorted([harness.tenant, other])
    assert idle not in {tenant for _, tenant, _ in await told(harness)}


async def test_what_was_cancelled_is_over_but_has_not_recovered(harness: EngineHarness) -> None:
    sent = await harness.send()
    await harness.pass_time(WAIT)
    assert await stuck(harness) == StuckPass(unstarted=1)
    await harness.cancel(sent.key)
    assert await stuck(harness) == StuckPass()
    assert [kind for kind, _, _ in await told(harness)] == ["unstarted"]
    assert await harness.value("select count(*) from unserved_pools") == 0


@pytest.mark.parametrize("why", ["pool", "task", "tenant", "later"])
async def test_runs_that_wait_for_another_reason_are_left_out(harness: EngineHarness, why: str) -> None:
    if why == "later":
        await harness.send(delay=timedelta(seconds=WAIT - 10))
    else:
        await harness.send()
    if why == "pool":
        await harness.sql("update pools set paused_at = now(), paused_by = 'me' where name = 'short'")
    elif why == "task":
        await pause_task.pause(harness.store, "greet", tenant_id=harness.tenant, who="me")
    elif why == "tenant":
        await harness.sql("update tenants set suspended_at = now()")
    await harness.hold()
    await harness.pass_time(WAIT)
    await harness.ring()
    assert await stuck(harness) == StuckPass()


async def test_a_lost_worker_serves_nobody(harness: EngineHarness) -> None:
    seat = await harness.join_worker()
    await harness.send(retry=Retry(1))
    await workers.remove(harness.store, seat.worker_id)
    await harness.pass_time(WAIT)
    assert await stuck(harness) == StuckPass(unstarted=1)
