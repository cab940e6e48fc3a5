"""Planted bugs: a guard is taken out of the test's database, and a history that needs it must not pass any more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pytest
from tests.properties.conftest import Complaints, overlapping

from bellringer.policies import Limit, Misfire, Overlap
from bellringer.schedule import every

if TYPE_CHECKING:
    from tests.lifecycle.conftest import Bench

WAITING: Final = "select exists (select 1 from pg_locks where not granted) from pg_sleep(0.01)"


@dataclass(frozen=True)
class Bug:
    """What is taken out: in a function, this text becomes that; or a statement."""

    history: Callable[[Bench], Awaitable[None]]
    says: str  # in at least one complaint
    function: str = ""
    text: str = ""
    instead: str = ""
    statement: str = ""

    async def plant(self, bench: Bench) -> None:
        if self.function:
            found = await bench.value("select pg_get_functiondef($1::text::regproc)", f"bellringer.{self.function}")
            assert self.text in found, "the guard has another form by now"
            await bench.sql(found.replace(self.text, self.instead))
        for statement in filter(None, self.statement.split(";")):
            await bench.sql(statement)


async def stale_holder(bench: Bench) -> None:
    """A node that was stopped wakes up after its shards were taken, and ticks."""
    await bench.job("job", every("10s"))
    stale = await bench.hold()
    await bench.seize()
    await bench.pass_time(10)
    await bench.tick_all()
    await bench.pass_time(10)
    await bench.tick(stale)


async def hand_set_back(bench: Bench) -> None:
    """A hand stands again where it has been, as after a careless repair."""
    await bench.job("job", every("10s"))
    await bench.pass_time(10)
    await bench.tick_all()
    await bench.sql("update cohorts set next_at = $1", bench.after(10))
    await bench.tick_all()


async def cut_fire(bench: Bench) -> None:
    """A cohort is larger than a call takes."""
    await bench.share_shard()
    await bench.register(*(bench.definition(f"job {n}", every("10s")) for n in range(5)))
    await bench.pass_time(10)
    await bench.tick_all(most=2)


async def outage(bench: Bench) -> None:
    """Nobody ticks for five minutes."""
    await bench.job("job", every("10s"))
    await bench.pass_time(300)
    await bench.tick_all()


async def cut_jump(bench: Bench) -> None:
    """A cohort that was left behind is larger than a call takes."""
    await bench.share_shard()
    await bench.register(*(bench.definition(f"job {n}", every("10s")) for n in range(5)))
    await bench.pass_time(300)
    await bench.tick_all(most=2)


async def fired_while_registered(bench: Bench) -> None:
    """A cohort is fired ahead while a job that joins it has read the hand, and has not committed."""
    await bench.sql("update cluster set shards = 1")
    await bench.job("early", every("10s"))
    await bench.hold()
    await bench.pass_time(9.5)
    async with bench.store.pool.acquire() as connection:
        apart: Any = copy(bench.store)
        apart.pool = connection
        async with connection.transaction():
            await replace(bench, store=apart).job("late", every("10s"))
            firing = asyncio.create_task(bench.tick(lead=1))
            while not firing.done() and not await bench.value(WAITING):
                pass
        await firing
    await bench.pass_time(10)
    await bench.tick_all()


async def slow_runs(bench: Bench) -> None:
    """The next occurrence comes while the one before is under way."""
    await bench.job("job", every("10s"), overlap=Overlap.QUEUE)
    seat = await bench.seat()
    for _ in range(3):
        await bench.pass_time(10)
        await bench.tick_all()
        await bench.claim(seat)


async def shared_limit(bench: Bench) -> None:
    """More is ready than a limit lets run at once."""
    for name in ("one", "two"):
        await bench.job(name, every("10s"), limit=Limit("key", 1))
    seat = await bench.seat()
    await bench.pass_time(10)
    await bench.tick_all()
    for _ in range(2):
        await bench.claim(seat)


async def catch_up(bench: Bench) -> None:
    """All that an outage has missed is run, one after the other."""
    await bench.job("job", every("10s"), misfire=Misfire.FIRE_ALL, overlap=Overlap.SKIP)
    await bench.pass_time(300)
    await bench.tick_all()


async def fired_ahead(bench: Bench) -> None:
    """A run lies in the queue before its time, and a worker asks."""
    await bench.job("job", every("10s"))
    await bench.pass_time(9)
    await bench.tick_all(lead=1)
    seat = await bench.seat()
    await bench.end(seat, await bench.claim(seat))
    await bench.pass_time(1)


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
    "the cursor of a jump is not kept": Bug(cut_jump, "missing", "jump", "having count(*) = p_limit", "having false"),
    "no gap is written": Bug(outage, "missing", "jump", "where missed and misfire <> 2", "where false"),
    "a register does not take the shard's lock": Bug(
        fired_while_registered,
        "missing late",
        "lock_shards_shared",
        "perform pg_advisory_xact_lock_shared(77, s)",
        "perform 1",
    ),
    "no look for an unfinished run": Bug(
        slow_runs, "run at once", "tick", "where m.overlap <> 0 and q.job_id", "where false and q.job_id"
    ),
    "no count of what is under way": Bug(
        shared_limit, "than its limit", "claim_limited", "select k.most - count(*)", "select k.most - 0 * count(*)"
    ),
    "a catch-up loses its cursor": Bug(
        catch_up, "missing", "fill", "then c_at[c.nth] else b.cursor end", "then b.to_at else b.cursor end"
    ),
    "a claim does not look at the time": Bug(
        fired_ahead, "early", "claim", "q.available_at <= bellringer.now()", "true"
    ),
}


async def told(bench: Bench, bug: Bug, complaints: Complaints) -> list[str]:
    await bug.history(bench)
    found = await overlapping(bench)
    return found + await complaints()


@pytest.mark.parametrize("name", BUGS)
async def test_a_sound_engine_passes(bench: Bench, complaints: Complaints, name: str) -> None:
    assert await told(bench, BUGS[name], complaints) == []


@pytest.mark.parametrize("name", BUGS)
async def test_a_planted_bug_is_found(bench: Bench, complaints: Complaints, name: str) -> None:
    await BUGS[name].plant(bench)
    found = await told(bench, BUGS[name], complaints)
    assert any(BUGS[name].says in complaint for complaint in found), found
