"""Schedules that no job and no revision has are pruned, and a registration never uses a pruned one."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from bellringer.core.jobs import Definition
from bellringer.engine import prune, register
from bellringer.engine.prune import Retention
from bellringer.errors import QuotaExceeded
from bellringer.schedule import Schedule, cron, every, rrule
from bellringer.store import jobs, partitions
from bellringer.store.interned_names import Catalog

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness

DAY = timedelta(days=1)
KEEP = Retention(runs=5 * DAY, dead_letters=5 * DAY, jobs=10 * DAY)


async def age(harness: EngineHarness, days: int) -> None:
    """So many days have passed since noon; empty cohorts go, and then what is past retention."""
    await harness.set_clock(harness.noon + days * DAY)
    await prune.delete_empty_cohorts(harness.store, range(64))
    await prune.prune(harness.store, await harness.now(), KEEP)


async def schedules(harness: EngineHarness) -> set[str]:
    return {row[0] for row in await harness.sql("select expression from schedules")}


async def check(harness: EngineHarness) -> None:
    """Check all schedules, whether or not their time has come."""
    await harness.sql("select bellringer.check_schedules(array(select schedule_id from schedules))")
    await partitions.delete_unused_schedules(harness.store, 1000)


async def stored(harness: EngineHarness, schedule: Schedule) -> int:
    [number] = (await harness.catalog.schedule_ids([schedule])).values()
    return number


async def test_the_schedule_of_a_removed_job_goes(harness: EngineHarness) -> None:
    gone = await harness.job("gone", cron("1 * * * *"))
    await harness.job("live", cron("2 * * * *"))
    await harness.retire(gone)
    await age(harness, 9)
    assert await schedules(harness) == {"1 * * * *", "2 * * * *"}
    await age(harness, 11)
    assert await schedules(harness) == {"2 * * * *"}


async def test_a_schedule_that_another_job_has_stays(harness: EngineHarness) -> None:
    gone = await harness.job("gone", cron("1 * * * *"))
    await harness.job("live", cron("1 * * * *"), cron("2 * * * *"))
    await harness.retire(gone)
    await age(harness, 11)
    assert await schedules(harness) == {"1 * * * *", "2 * * * *"}


@pytest.mark.parametrize("state", ["paused", "disabled", "done", "deleted", "active"])
async def test_a_schedule_of_a_job_in_any_state_stays(harness: EngineHarness, state: str) -> None:
    schedule = rrule("FREQ=DAILY;COUNT=1", start="2020-01-01T00:00") if state == "done" else cron("1 * * * *")
    job = await harness.job("job", schedule, enabled=state != "disabled")
    if state == "paused":
        await harness.pause(job)
    if state == "done":
        assert (await jobs.finish(harness.store, None, 10)).jobs == 1
    if state == "deleted":
        await harness.retire(job)
    await prune.delete_empty_cohorts(harness.store, range(64))
    await check(harness)
    assert len(await schedules(harness)) == 1
    assert await harness.value("select check_at from schedules") is None


async def test_a_schedule_of_an_earlier_revision_stays_as_long_as_the_job(harness: EngineHarness) -> None:
    job = await harness.job("job", cron("1 * * * *"))
    for minute in (2, 3):
        await harness.change(job, harness.definition("job", cron(f"{minute} * * * *")))
    await harness.pause(job)
    await prune.delete_empty_cohorts(harness.store, range(64))
    await check(harness)
    assert len(await schedules(harness)) == 3
    await harness.retire(job)
    await age(harness, 11)
    assert await schedules(harness) == set()


async def test_a_schedule_whose_job_was_refused_goes_after_a_day(harness: EngineHarness) -> None:
    await harness.sql("""update tenants set quotas = '{"jobs": 0}'""")
    with pytest.raises(QuotaExceeded):
        await harness.job("refused", cron("1 * * * *"))
    assert await schedules(harness) == {"1 * * * *"}
    await partitions.delete_unused_schedules(harness.store, 100)
    assert await schedules(harness) == {"1 * * * *"}, "the request may not have ended"
    await age(harness, 2)
    assert await schedules(harness) == set()


async def test_an_empty_cohort_defers_the_deletion(harness: EngineHarness) -> None:
    job = await harness.job("job", cron("1 * * * *"))
    await harness.sql("delete from members")
    await harness.sql("delete from jobs where job_id = $1", job)
    await check(harness)
    assert await schedules(harness) == {"1 * * * *"}
    await prune.delete_empty_cohorts(harness.store, range(64))
    await partitions.delete_unused_schedules(harness.store, 100)
    assert await schedules(harness) == {"1 * * * *"}
    await harness.pass_time(3601)
    await partitions.delete_unused_schedules(harness.store, 100)
    assert await schedules(harness) == set()


async def test_nothing_is_checked_that_was_found_in_use(harness: EngineHarness) -> None:
    await harness.job("job", cron("1 * * * *"))
    await harness.pass_time(2 * 86400)
    assert await partitions.delete_unused_schedules(harness.store, 100) == 1
    assert await partitions.delete_unused_schedules(harness.store, 100) == 0


# Registrations with an id that a process has cached


async def forget(harness: EngineHarness, job: UUID) -> None:
    """Remove a job and its schedules, as retention does."""
    await harness.retire(job)
    await prune.delete_empty_cohorts(harness.store, range(64))
    assert await partitions.delete_old_jobs(harness.store, await harness.now() + DAY, 10) == 1
    await partitions.delete_unused_schedules(harness.store, 100)
    assert await schedules(harness) == set()


async def test_a_job_with_a_cached_id_of_a_pruned_schedule_is_registered(harness: EngineHarness) -> None:
    await forget(harness, await harness.job("first", cron("1 * * * *")))
    job = await harness.job("second", cron("1 * * * *"))
    [number] = (await harness.read(job)).schedule_ids
    assert await harness.value("select expression from schedules where schedule_id = $1", number) == "1 * * * *"
    assert (await harness.read(job)).next_fire == harness.noon + timedelta(minutes=1)


async def test_a_cached_id_whose_content_was_never_read_is_interned_again(harness: EngineHarness) -> None:
    """An id may be cached without the schedule: by a request that was refused after it had interned its names."""
    number = await stored(harness, cron("1 * * * *"))
    await check(harness)
    assert await schedules(harness) == set()
    job = await harness.job("job", cron("1 * * * *"))
    assert (await harness.read(job)).schedule_ids != (number,)
    assert (await harness.read(job)).next_fire is not None


async def test_a_change_with_a_cached_id_of_a_pruned_schedule_is_written(harness: EngineHarness) -> None:
    await forget(harness, await harness.job("first", cron("1 * * * *")))
    job = await harness.job("second", every("1h"))
    await harness.change(job, harness.definition("second", cron("1 * * * *")))
    [number] = (await harness.read(job)).schedule_ids
    assert await harness.value("select expression from schedules where schedule_id = $1", number) == "1 * * * *"


async def test_a_prune_skips_a_schedule_that_a_registration_holds(harness: EngineHarness) -> None:
    """The registration has not committed: its job is not visible, and its schedule is locked."""
    number = await stored(harness, cron("1 * * * *"))
    async with harness.store.pool.acquire() as other, other.transaction():
        await other.execute("select bellringer.lock_schedules(array[$1::integer])", number)
        await check(harness)
        assert await schedules(harness) == {"1 * * * *"}
    await check(harness)
    assert await schedules(harness) == set()


async def test_a_registration_that_waits_for_a_prune_interns_again(harness: EngineHarness) -> None:
    number = await stored(harness, cron("1 * * * *"))
    await harness.sql("update schedules set check_at = bellringer.now()")
    async with harness.store.pool.acquire() as pruner:
        async with pruner.transaction():
            await pruner.execute("select bellringer.forget_schedules(10)")
            creation = asyncio.create_task(harness.job("job", cron("1 * * * *")))
            await harness.blocked_by(pruner)
        job = await creation
    [new] = (await harness.read(job)).schedule_ids
    assert new != number
    assert await harness.value("select count(*) from schedules where schedule_id = $1", new) == 1


async def test_a_mark_that_meets_a_check_is_not_lost(harness: EngineHarness) -> None:
    """The check still sees the last job and clears the mark; the removal that commits later sets it again."""
    job = await harness.job("job", cron("1 * * * *"))
    await harness.retire(job)
    await prune.delete_empty_cohorts(harness.store, range(64))
    await harness.sql("update schedules set check_at = bellringer.now()")
    async with harness.store.pool.acquire() as checker:
        async with checker.transaction():
            await checker.execute("select bellringer.forget_schedules(10)")
            removal = asyncio.create_task(partitions.delete_old_jobs(harness.store, await harness.now() + DAY, 10))
            await harness.blocked_by(checker)
        assert await removal == 1
    await partitions.delete_unused_schedules(harness.store, 100)
    assert await schedules(harness) == set()


async def test_registrations_and_prunes_at_once_leave_no_job_without_its_schedule(harness: EngineHarness) -> None:
    """Processes register and delete jobs, all their schedules are pruned, and the processes register again with stale
    caches while two others prune."""
    catalogs = [Catalog(harness.store) for _ in range(3)]
    over = asyncio.Event()

    async def register_jobs(catalog: Catalog, name: str) -> None:
        for minute in range(20):
            wanted = Definition(name=f"{name} {minute}", task="greet", schedules=(cron(f"{minute} * * * *"),))
            await register.create(harness.store, catalog, [wanted], tenant_id=1, who="me")

    async def remove() -> None:
        await prune.delete_empty_cohorts(harness.store, range(64))
        await partitions.delete_old_jobs(harness.store, await harness.now() + DAY, 1000)
        await check(harness)

    async def keep_removing() -> None:
        while not over.is_set():
            await remove()

    await asyncio.gather(*(register_jobs(catalog, f"old {n}") for n, catalog in enumerate(catalogs)))
    for row in await harness.sql("select job_id from jobs"):
        await harness.retire(row[0])
    await remove()
    assert await schedules(harness) == set()
    pruners = [asyncio.create_task(keep_removing()) for _ in range(2)]
    try:
        await asyncio.gather(*(register_jobs(catalog, f"new {n}") for n, catalog in enumerate(catalogs)))
    finally:
        over.set()
        await asyncio.gather(*pruners)
    missing = await harness.sql(
        """select j.name from jobs j cross join unnest(j.schedule_ids) i (schedule_id)
           where not exists (select 1 from schedules s where s.schedule_id = i.schedule_id)"""
    )
    assert missing == []
    assert await harness.value("select count(*) from jobs") == 60
