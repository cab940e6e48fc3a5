"""Planted bugs: a guard is removed from the test's database, and a history that needs it must fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pytest
from tests.properties.conftest import Complaints, overlapping

from bellringer.core.policies import Limit, Misfire, Overlap
from bellringer.schedule import every
from bellringer.store.sql_names import expand

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness

WAITING: Final = "select exists (select 1 from pg_locks where not granted) from pg_sleep(0.01)"


@dataclass(frozen=True)
class Bug:
    """The planted change: a replacement in the text of a function, or a statement."""

    history: Callable[[EngineHarness], Awaitable[None]]
    says: str  # in at least one complaint
    function: str = ""
    text: str = ""
    instead: str = ""
    statement: str = ""

    async def plant(self, harness: EngineHarness) -> None:
        if self.function:
            found = await harness.value("select pg_get_functiondef($1::text::regproc)", f"bellringer.{self.function}")
            assert self.text in found, "the guard has another form by now"
            await harness.sql(found.replace(self.text, self.instead))
        for statement in filter(None, self.statement.split(";")):
            await harness.sql(statement)


async def stale_holder(harness: EngineHarness) -> None:
    """A stopped node continues after its shards were taken, and ticks."""
    await harness.job("job", every("10s"))
    stale = await harness.hold()
    await harness.seize()
    await harness.pass_time(10)
    await harness.tick_all()
    await harness.pass_time(10)
    await harness.tick(stale)


async def hand_set_back(harness: EngineHarness) -> None:
    """A cohort is set back to an earlier time, as after a wrong repair."""
    await harness.job("job", every("10s"))
    await harness.pass_time(10)
    await harness.tick_all()
    await harness.sql("update cohorts set next_at = $1", harness.after(10))
    await harness.tick_all()


async def cut_fire(harness: EngineHarness) -> None:
    """A cohort has more jobs than one call fires."""
    await harness.share_shard()
    await harness.register(*(harness.definition(f"job {n}", every("10s")) for n in range(5)))
    await harness.pass_time(10)
    await harness.tick_all(most=2)


async def outage(harness: EngineHarness) -> None:
    """Nobody ticks for five minutes."""
    await harness.job("job", every("10s"))
    await harness.pass_time(300)
    await harness.tick_all()


async def cut_jump(harness: EngineHarness) -> None:
    """An overdue cohort has more jobs than one call fires."""
    await harness.share_shard()
    await harness.register(*(harness.definition(f"job {n}", every("10s")) for n in range(5)))
    await harness.pass_time(300)
    await harness.tick_all(most=2)


async def fired_while_registered(harness: EngineHarness) -> None:
    """A cohort fires while a job that joins it has read the next fire time, but has not committed."""
    await harness.sql("update cluster set shards = 1")
    await harness.job("early", every("10s"))
    await harness.hold()
    await harness.pass_time(9.5)
    async with harness.store.pool.acquire() as connection:
        apart: Any = copy(harness.store)
        apart.pool = connection
        async with connection.transaction():
            await replace(harness, store=apart).job("late", every("10s"))
            firing = asyncio.create_task(harness.tick(lead=1))
            while not firing.done() and not await harness.value(WAITING):
                pass
        await firing
    await harness.pass_time(10)
    await harness.tick_all()


async def slow_runs(harness: EngineHarness) -> None:
    """The next occurrence is due while the previous run is still running."""
    await harness.job("job", every("10s"), overlap=Overlap.QUEUE)
    seat = await harness.join_worker()
    for _ in range(3):
        await harness.pass_time(10)
        await harness.tick_all()
        await harness.claim(seat)


async def shared_limit(harness: EngineHarness) -> None:
    """More runs are ready than a limit allows at once."""
    for name in ("one", "two"):
        await harness.job(name, every("10s"), limit=Limit("key", 1))
    seat = await harness.join_worker()
    await harness.pass_time(10)
    await harness.tick_all()
    for _ in range(2):
        await harness.claim(seat)


async def catch_up(harness: EngineHarness) -> None:
    """All occurrences missed in an outage run one after the other."""
    await harness.job("job", every("10s"), misfire=Misfire.FIRE_ALL, overlap=Overlap.SKIP)
    await harness.pass_time(300)
    await harness.tick_all()


async def fired_ahead(harness: EngineHarness) -> None:
    """A worker claims while a run is in the queue before its time."""
    await harness.job("job", every("10s"))
    await harness.pass_time(9)
    await harness.tick_all(lead=1)
    seat = await harness.join_worker()
    await harness.end(seat, await harness.claim(seat))
    await harness.pass_time(1)


BUGS: Final = {
    "no fence": Bug(
        stale_holder,
        "stale lease",
        "fence",
        "return array(select unnest(p_shards) except select unnest(held))",
        "return '{}'",
    ),
    "no key on runs": Bug(
        hand_set_back,
        "double",
        statement="alter table runs drop constraint runs_pkey; alter table queue drop constraint queue_pkey;"
        "alter table attempts drop constraint attempts_pkey",
    ),
    "the cursor of a fire is not kept": Bug(cut_fire, "missing", "tick", "having count(*) = p_limit", "having false"),
    "the cursor of a jump is not kept": Bug(
        cut_jump, "missing", "fast_forward", "having count(*) = p_limit", "having false"
    ),
    "no gap is written": Bug(
        outage, "missing", "fast_forward", expand("where is_missed and misfire <> MISFIRE_FIRE_ALL"), "where false"
    ),
    "a register does not take the shard's lock": Bug(
        fired_while_registered,
        "missing late",
        "lock_shards_shared",
        expand("perform pg_advisory_xact_lock_shared(LOCK_SHARD, s)"),
        "perform 1",
    ),
    "no look for an unfinished run": Bug(
        slow_runs,
        "run at once",
        "tick",
        expand("where member.overlap <> OVERLAP_ALLOW and run.job_id"),
        "where false and run.job_id",
    ),
    "no count of what is under way": Bug(
        shared_limit, "than its limit", "limit_capacity", "- (select count(*)", "- 0 * (select count(*)"
    ),
    "a catch-up loses its cursor": Bug(
        catch_up,
        "missing",
        "create_backfill_runs",
        "then c_at[progress.nth] else backfill.cursor end",
        "then backfill.to_at else backfill.cursor end",
    ),
    "a claim does not look at the time": Bug(
        fired_ahead, "early", "lock_ready_runs", "ready.available_at <= bellringer.now()", "true"
    ),
}


async def told(harness: EngineHarness, bug: Bug, complaints: Complaints) -> list[str]:
    await bug.history(harness)
    found = await overlapping(harness)
    return found + await complaints()


@pytest.mark.parametrize("name", BUGS)
async def test_a_sound_engine_passes(harness: EngineHarness, complaints: Complaints, name: str) -> None:
    assert await told(harness, BUGS[name], complaints) == []


@pytest.mark.parametrize("name", BUGS)
async def test_a_planted_bug_is_found(harness: EngineHarness, complaints: Complaints, name: str) -> None:
    await BUGS[name].plant(harness)
    found = await told(harness, BUGS[name], complaints)
    assert any(BUGS[name].says in complaint for complaint in found), found
