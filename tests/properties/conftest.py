"""The bench of the lifecycle's tests; how an engine comes to rest, and all that must hold then."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import UUID

import pytest

from bellringer.lifecycle.backfill import backfill
from bellringer.lifecycle.claim import Seat
from bellringer.schedule.instants import EPOCH
from bellringer.store import queue
from bellringer.store.names import Names
from bellringer.store.pool import Store, connect
from bellringer.verify import Asked, Finding, verify

if TYPE_CHECKING:
    from tests.lifecycle.conftest import Bench

_spec = spec_from_file_location("properties_bench", Path(__file__).parents[1] / "lifecycle" / "conftest.py")
assert _spec is not None
assert _spec.loader is not None
lifecycle = module_from_spec(_spec)
sys.modules[_spec.name] = lifecycle
_spec.loader.exec_module(lifecycle)
bench = lifecycle.bench

ROUNDS: Final = 200


async def prepare(store: Store) -> Bench:
    """A bench of one shard, so that jobs share cohorts, for histories one after the other."""
    await store.pool.execute("update cluster set shards = 1")
    await store.pool.execute("delete from leases where shard > 0")
    noon = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0) + timedelta(days=1)
    await store.pool.execute(lifecycle.FAKE_CLOCK.format(noon.isoformat()))
    made: Bench = lifecycle.Bench(store, Names(store), noon)
    return made


async def chores(bench: Bench) -> int:
    """What a scheduler does beside its ticks, once; answers how much there was to do."""
    done = await bench.sweep()
    done += await queue.decide(bench.store, 1000) + await queue.thaw(bench.store, 1000)
    await queue.free_orphans(bench.store, (EPOCH, UUID(int=0)), 1000)
    return done + await backfill(bench.store, bench.names, bench.holding, await bench.now())


async def rest(bench: Bench, seat: Seat) -> None:
    """Let everything happen that is due now, and let all that is claimed end well."""
    await bench.seize()
    for _ in range(ROUNDS):
        done = await bench.tick_all() + (await bench.ring()).moved + await chores(bench)
        claimed = await bench.claim(seat)
        await bench.end(seat, claimed)
        if not done + len(claimed):
            return
    raise AssertionError("the engine does not come to rest")


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


async def overlapping(bench: Bench, *excused: UUID) -> list[str]:
    """Jobs that have two attempts under way and may not, but for those that were allowed to, once."""
    return [f"{dict(row)} run at once" for row in await bench.sql(OVERLAPPING, excused)]


async def breaches(bench: Bench, *laws: str) -> list[str]:
    """Rows that break a law."""
    return [f"{dict(row)} {law}" for law in laws or LAW for row in await bench.sql(LAW[law])]


async def judged(bench: Bench) -> list[str]:
    """What verify finds, up to now."""
    now = await bench.now()
    findings: list[Finding] = []
    await bench.set_clock(now + timedelta(seconds=71))
    connection = await connect(bench.store.dsn)
    try:
        asked = Asked(start=bench.after(-3600), end=now + timedelta(microseconds=1))
        await verify(connection, asked, findings.append)
    finally:
        await connection.close()
        await bench.set_clock(now)
    return [f"{f.kind} {f.job} {bench.seconds(f.scheduled_for)}: {f.detail}" for f in findings]


Complaints = Callable[[], Awaitable[list[str]]]


@pytest.fixture
def complaints(bench: Bench) -> Complaints:
    """Let the engine come to rest, and tell all that is wrong then."""

    async def complaints() -> list[str]:
        before = await breaches(bench, *AT_ONCE)
        await rest(bench, await bench.seat())
        return before + await judged(bench) + await breaches(bench)

    return complaints
