"""Jobs past retention: deleted and done ones go with their revisions, and the audit still holds."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from bellringer.core.policies import After
from bellringer.core.retry_policy import Retry
from bellringer.engine import prune
from bellringer.engine.audit_seal import seal_entries, verify_chain
from bellringer.engine.prune import Retention
from bellringer.schedule import at, every
from bellringer.store import audit, jobs, partitions

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness

DAY = timedelta(days=1)
KEEP = Retention(runs=5 * DAY, dead_letters=20 * DAY, jobs=10 * DAY, audit=100 * DAY)


async def age(harness: EngineHarness, days: int) -> None:
    """So many days have passed since noon; then what is past retention goes."""
    await harness.set_clock(harness.noon + days * DAY)
    await prune.prune(harness.store, await harness.now(), KEEP)


async def rows(harness: EngineHarness, job: UUID) -> tuple[int, int]:
    """How many rows there are of a job, and of its revisions."""
    return (
        await harness.value("select count(*) from jobs where job_id = $1", job),
        await harness.value("select count(*) from job_revisions where job_id = $1", job),
    )


async def changed_and_deleted(harness: EngineHarness, name: str = "gone") -> UUID:
    job = await harness.job(name, every("1h"))
    await harness.change(job, harness.definition(name, every("2h")))
    await harness.pause(job)
    await harness.retire(job)
    return job


async def once(harness: EngineHarness, **more: object) -> UUID:
    """A one-shot that has run."""
    job = await harness.job("once", at(harness.after(1)), **more)
    await harness.pass_time(2)
    await harness.ring()
    return job


async def finish(harness: EngineHarness) -> None:
    seat = await harness.join_worker()
    await harness.end(seat, await harness.claim(seat))
    await jobs.finish(harness.store, None, 1000)


async def test_a_deleted_job_goes_with_its_revisions(harness: EngineHarness) -> None:
    gone, live = await changed_and_deleted(harness), await harness.job("live", every("1h"))
    await age(harness, 9)
    assert await rows(harness, gone) == (1, 3)
    await age(harness, 11)
    assert await rows(harness, gone) == (0, 0)
    assert await rows(harness, live) == (1, 0)


async def test_a_one_shot_that_is_done_goes(harness: EngineHarness) -> None:
    job = await once(harness)
    await finish(harness)
    await age(harness, 9)
    assert await rows(harness, job) == (1, 0)
    await age(harness, 11)
    assert await rows(harness, job) == (0, 0)
    await harness.job("once", every("1h"))


async def test_a_recurring_job_that_is_done_goes_with_its_revisions(harness: EngineHarness) -> None:
    job = await harness.job("ended", every("1h"), ends_at=harness.after(1))
    await harness.change(job, harness.definition("ended", every("1s"), ends_at=harness.after(1)))
    await harness.pass_time(2)
    await harness.tick_all()
    await finish(harness)
    assert (await harness.read(job)).done_at is not None
    await age(harness, 9)
    assert await rows(harness, job) == (1, 1)
    await age(harness, 11)
    assert await rows(harness, job) == (0, 0)


async def test_a_job_that_started_after_another_leaves_nothing_behind(harness: EngineHarness) -> None:
    await harness.job("upstream")
    job = await harness.job("ended", after=After("upstream"), ends_at=harness.after(1))
    await harness.pass_time(2)
    await finish(harness)
    await age(harness, 11)
    assert await rows(harness, job) == (0, 0)
    assert await harness.value("select count(*) from job_followers") == 0


async def test_a_done_job_stays_while_it_is_paused(harness: EngineHarness) -> None:
    job = await once(harness)
    await finish(harness)
    await harness.pause(job)
    await age(harness, 50)
    assert await rows(harness, job) == (1, 1)
    await harness.resume(job)
    await jobs.finish(harness.store, None, 1000)
    await age(harness, 59)
    assert (await rows(harness, job))[0] == 1, "it is done only since its resume"
    await age(harness, 61)
    assert await rows(harness, job) == (0, 0)


async def test_a_later_manual_run_keeps_a_done_job(harness: EngineHarness) -> None:
    job = await once(harness)
    await finish(harness)
    await harness.set_clock(harness.noon + 10 * DAY)
    await prune.create_partitions(harness.store, await harness.now())
    await harness.trigger(job)
    await finish(harness)
    await age(harness, 12)
    assert await rows(harness, job) == (1, 0)
    await age(harness, 17)
    assert await rows(harness, job) == (0, 0)


async def test_two_nodes_prune_the_same_jobs_once(harness: EngineHarness) -> None:
    for n in range(30):
        await harness.job(f"{n}", at(harness.after(1)))
    await harness.pass_time(2)
    await harness.ring()
    await finish(harness)
    await harness.set_clock(harness.noon + 11 * DAY)
    await partitions.drop_days(harness.store, await partitions.list_days(harness.store))
    now = await harness.now()
    passes = (partitions.delete_old_jobs(harness.store, now, 20) for _ in range(4))
    removed = sum(await asyncio.gather(*passes))  # a pass skips the jobs that another one has locked
    assert removed + await partitions.delete_old_jobs(harness.store, now, 20) == 30
    assert await harness.value("select count(*) from audit where action = 'job.deleted'") == 30


async def test_a_locked_job_is_left_to_the_next_pass(harness: EngineHarness) -> None:
    job = await once(harness)
    await finish(harness)
    await harness.set_clock(harness.noon + 11 * DAY)
    await partitions.drop_days(harness.store, await partitions.list_days(harness.store))
    async with harness.store.pool.acquire() as connection, connection.transaction():
        await connection.execute("select 1 from bellringer.jobs where job_id = $1 for share", job)
        assert await partitions.delete_old_jobs(harness.store, await harness.now(), 100) == 0
    assert await partitions.delete_old_jobs(harness.store, await harness.now(), 100) == 1


async def test_a_job_stays_while_a_run_of_it_is_kept(harness: EngineHarness) -> None:
    job = await once(harness)
    await finish(harness)
    await harness.set_clock(harness.noon + 11 * DAY)
    assert await partitions.delete_old_jobs(harness.store, await harness.now(), 100) == 0
    assert await rows(harness, job) == (1, 0)


async def test_a_job_stays_while_it_has_a_dead_letter(harness: EngineHarness) -> None:
    job = await once(harness, retry=Retry(1))
    seat = await harness.join_worker()
    await harness.fail(seat, await harness.claim_one(seat))
    await harness.retire(job)
    await age(harness, 11)
    assert (await rows(harness, job))[0] == 1
    await age(harness, 21)
    assert (await rows(harness, job))[0] == 0


async def test_a_job_that_was_changed_meanwhile_stays(harness: EngineHarness) -> None:
    job = await once(harness)
    await finish(harness)
    await harness.change(job, harness.definition("once", every("1h")))
    await age(harness, 50)
    assert (await rows(harness, job))[0] == 1


@pytest.mark.parametrize("sealed", [True, False])
async def test_the_audit_holds_though_jobs_are_forgotten(harness: EngineHarness, sealed: bool) -> None:
    await changed_and_deleted(harness)
    job = await once(harness)
    await finish(harness)
    if sealed:
        await seal_entries(harness.store)
    await age(harness, 11)
    assert await harness.value("select count(*) from jobs") == 0
    await seal_entries(harness.store)
    found = await verify_chain(harness.store)
    assert (found.broken, found.why, found.unsealed) == (None, "", 0)
    assert found.entries > 4
    look = await audit.newest_before(harness.store, 1, 2**60, audit.AuditFilter(target=str(job)), 10)
    assert [(entry.action, entry.name, entry.who) for entry in look.entries] == [
        ("job.deleted", None, "bellringer"),
        ("job.created", None, "me"),
    ]
    assert (look.entries[0].before or {})["name"] == "once"


async def test_a_forged_digest_breaks_the_seal(harness: EngineHarness) -> None:
    await changed_and_deleted(harness)
    await seal_entries(harness.store)
    await age(harness, 11)
    await harness.sql("update job_digests set digest = 'x' where revision = 2")
    assert (await verify_chain(harness.store)).broken is not None


async def test_digests_go_with_the_entries_that_need_them(harness: EngineHarness) -> None:
    await changed_and_deleted(harness)
    await seal_entries(harness.store)
    await age(harness, 11)
    assert await harness.value("select count(*) from job_digests") == 4
    await harness.job("later", every("1h"))
    await seal_entries(harness.store)
    await harness.sql("update test_clock set moment = moment + interval '1 s'")
    await age(harness, 150)
    await harness.job("latest", every("1h"))
    await seal_entries(harness.store)
    await age(harness, 151)
    found = await verify_chain(harness.store)
    assert found.broken is None
    assert await harness.value("select count(*) from job_digests") == 0
