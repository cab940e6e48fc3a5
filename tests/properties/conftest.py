"""Lets an engine finish all work that is due, and checks the invariants that must hold then."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

import pytest
from tests.support.engine_harness import FAKE_CLOCK, EngineHarness

from bellringer.engine.backfill import run_backfills
from bellringer.engine.claim import ClaimSpec
from bellringer.schedule.instants import EPOCH
from bellringer.store import queue
from bellringer.store.connection_pool import Store, connect
from bellringer.store.interned_names import Catalog
from bellringer.verify import Finding, VerifyScope, verify

ROUNDS: Final = 1_000  # a backfill may create one run per round


async def prepare(store: Store) -> EngineHarness:
    """Prepare a harness with one shard, so that jobs share cohorts; several histories use it one after the other."""
    await store.pool.execute("update cluster set shards = 1")
    await store.pool.execute("delete from leases where shard > 0")
    noon = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0) + timedelta(days=1)
    await store.pool.execute(FAKE_CLOCK.format(noon.isoformat()))
    return EngineHarness(store, Catalog(store), noon)


async def chores(harness: EngineHarness) -> int:
    """Run each maintenance step of a scheduler once; returns how many rows changed."""
    done = await harness.sweep()
    done += await queue.decide_overlaps(harness.store, 1000) + await queue.release_frozen(harness.store, 1000)
    done += sum(await queue.expire_runs(harness.store, 1000))
    await queue.unblock_orphans(harness.store, (EPOCH, UUID(int=0)), 1000)
    return done + await run_backfills(harness.store, harness.catalog, harness.holding, await harness.now())


async def rest(harness: EngineHarness, seat: ClaimSpec) -> None:
    """Tick, claim and settle as succeeded until nothing is due."""
    await harness.seize()
    for _ in range(ROUNDS):
        done = await harness.tick_all() + (await harness.ring()).moved + await chores(harness)
        claimed = await harness.claim(seat)
        await harness.end(seat, claimed)
        if not done + len(claimed):
            return
    raise AssertionError(f"there is still work after {ROUNDS} rounds")


KEY: Final = "using (job_id, scheduled_for, slot)"
LAW: Final = {
    "waits for nothing": """
        select job_id, scheduled_for, blocked from queue q where blocked & 2 = 2
          and not exists (select 1 from queue o where o.job_id = q.job_id and o.blocked & 2 = 0)""",
    "was skipped without a reason": """
        select job_id, scheduled_for from attempts
        where ends_as = 'skipped' and coalesce(error ->> 'reason', '') = ''""",
    "has neither ended nor is under way": f"""
        select job_id, scheduled_for, slot, r.cause from runs r left join queue q {KEY} left join timers t {KEY}
          left join (select * from attempts where ends_as is not null) a {KEY}
        where q.shard is null and t.shard is null and a.attempt is null""",
    "has ended, and is under way": f"""
        select job_id, scheduled_for, slot from queue q join attempts a {KEY} where a.ends_as <> 'dead'""",
    "has ended twice": """
        select job_id, scheduled_for, slot, array_agg(ends_as) from attempts where ends_as <> 'dead'
        group by 1, 2, 3 having count(*) > 1""",
    "has failed so often that it should be paused": """
        select o.job_id, o.failures from job_outcomes o join jobs j using (job_id)
        where o.failures >= j.pause_after_failures and j.paused_at is null and j.deleted_at is null""",
    "has expired, and still waits": """
        select job_id, scheduled_for, slot from queue where expires_at <= now() and worker_id is null""",
    "is in the queue without a run": f"""
        select job_id, scheduled_for, slot from queue q left join runs r {KEY} where r.shard is null""",
    "runs more often at once than it may": """
        select q.job_id, count(*), j.cap from queue q join jobs j using (job_id)
        where q.worker_id is not null group by 1, 3 having count(*) > j.cap""",
    "run more often at once than its limit": """
        select q.key_id, count(*), l.most from queue q join limits l using (key_id)
        where q.worker_id is not null group by 1, 3 having count(*) > l.most""",
    "was born of a stale lease": """
        select r.job_id, r.scheduled_for, r.token from runs r where r.token > 0 and exists (
          select 1 from runs o where o.shard = r.shard and o.fired_at < r.fired_at and o.token > r.token)""",
}
AT_ONCE: Final = ("runs more often at once than it may", "run more often at once than its limit")
OVERLAPPING: Final = """
    select q.job_id, array_agg(q.scheduled_for order by 1), array_agg(q.cause) from queue q join jobs j using (job_id)
    where q.worker_id is not null and q.job_id <> all ($1) and j.overlap <> 'allow' group by 1 having count(*) > 1"""


async def overlapping(harness: EngineHarness, *excused: UUID) -> list[str]:
    """Returns jobs with two running attempts although their policy forbids it; `excused` jobs may overlap."""
    return [f"{dict(row)} run at once" for row in await harness.sql(OVERLAPPING, excused)]


async def breaches(harness: EngineHarness, *laws: str) -> list[str]:
    """Returns the rows that violate an invariant."""
    return [f"{dict(row)} {law}" for law in laws or LAW for row in await harness.sql(LAW[law])]


async def judged(harness: EngineHarness) -> list[str]:
    """Returns the findings of verify up to now."""
    now = await harness.now()
    findings: list[Finding] = []
    await harness.set_clock(now + timedelta(seconds=71))
    connection = await connect(harness.store.dsn)
    try:
        asked = VerifyScope(start=harness.after(-3600), end=now + timedelta(microseconds=1), unstarted_after=None)
        await verify(connection, asked, findings.append)
    finally:
        await connection.close()
        await harness.set_clock(now)
    return [f"{f.kind} {f.job} {harness.seconds(f.scheduled_for)}: {f.detail}" for f in findings]


Complaints = Callable[[], Awaitable[list[str]]]


@pytest.fixture
def complaints(harness: EngineHarness) -> Complaints:
    """Let the engine finish all due work, and return every violation."""

    async def complaints() -> list[str]:
        before = await breaches(harness, *AT_ONCE)
        await rest(harness, await harness.join_worker())
        return before + await judged(harness) + await breaches(harness)

    return complaints
