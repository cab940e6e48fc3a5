"""The count of overdue work, on which an alert depends: jobs and timers, not cohorts, and bounded."""

from __future__ import annotations

from datetime import timedelta

from bellringer.core.jobs import Definition
from bellringer.engine.register import create
from bellringer.engine.send import SendSpec, send
from bellringer.schedule import every
from bellringer.store.cohorts import count_overdue
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog

JOBS = 150
LATE = timedelta(seconds=10)


async def create_jobs(store: Store, catalog: Catalog) -> None:
    """Many jobs of one schedule: 64 cohorts at most, one in each shard."""
    definitions = [Definition(name=f"job-{n}", task="demo", schedules=(every("1m"),)) for n in range(JOBS)]
    await create(store, catalog, definitions, tenant_id=1, who="me")
    assert await store.pool.fetchval("select count(*) from cohorts") <= 64
    assert await count_overdue(store, LATE) == 0


async def test_all_jobs_of_an_overdue_schedule_count(store: Store, catalog: Catalog) -> None:
    await create_jobs(store, catalog)
    await store.pool.execute("update cohorts set next_at = bellringer.now() - interval '11 s'")
    assert await count_overdue(store, LATE) == JOBS


async def test_jobs_that_have_fired_in_a_part_of_their_cohort_do_not_count(store: Store, catalog: Catalog) -> None:
    await create_jobs(store, catalog)
    await store.pool.execute("update cohorts set next_at = bellringer.now() - interval '11 s'")
    await store.pool.execute(
        "update cohorts cohort set cursor = (select max(job_id::text)::uuid from members member"
        " where member.shard = cohort.shard and member.schedule_id = cohort.schedule_id)"
    )
    assert await count_overdue(store, LATE) == 0


async def test_overdue_timers_count(store: Store, catalog: Catalog) -> None:
    for _ in range(3):
        await send(store, catalog, SendSpec(task="demo", at=await store.now() + timedelta(hours=1)), tenant_id=1)
    assert await count_overdue(store, LATE) == 0
    await store.pool.execute("update timers set due_at = bellringer.now() - interval '11 s'")
    assert await count_overdue(store, LATE) == 3


async def test_the_count_is_bounded(store: Store, catalog: Catalog) -> None:
    await create_jobs(store, catalog)
    await store.pool.execute("update cohorts set next_at = bellringer.now() - interval '1 hour'")
    assert await count_overdue(store, LATE, most=100) == 100
