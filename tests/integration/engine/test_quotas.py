"""Quotas of jobs and of their fires: counted whoever creates, exact though many create at once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from bellringer.core.jobs import Definition
from bellringer.engine import job_and_run_commands as commands
from bellringer.engine import register, send
from bellringer.engine.register import RegisteredJob
from bellringer.engine.send import SendSpec
from bellringer.errors import Conflict, PayloadTooLarge, QuotaExceeded
from bellringer.schedule import Schedule, cron, delay, every, fires_per_minute
from bellringer.store import jobs, tenants
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog


class TenantJobs:
    """Creates and changes jobs of the tenant 1."""

    def __init__(self, store: Store, catalog: Catalog) -> None:
        self.store = store
        self.catalog = catalog

    async def allow(self, quotas: str) -> None:
        await self.store.pool.execute("update tenants set quotas = $1", quotas)

    async def create(self, *names: str, schedule: Schedule | None = None, **terms: Any) -> list[RegisteredJob]:
        wanted = [Definition(name=n, task="demo", schedules=(schedule or every("1m"),), **terms) for n in names]
        return await register.create(self.store, self.catalog, wanted, tenant_id=1, who="test")

    async def change(self, job: RegisteredJob, **terms: Any) -> RegisteredJob:
        wanted = Definition(**{"name": "a", "task": "demo", "schedules": (every("1m"),), **terms})
        return await register.change(
            self.store, self.catalog, job.job_id, job.revision, wanted, tenant_id=1, who="test"
        )

    async def used(self) -> tuple[int, float]:
        used = await tenants.load_usage(self.store, 1)
        return used.jobs, round(used.fires_per_minute, 6)


@pytest.fixture
def tenant_jobs(store: Store, catalog: Catalog) -> TenantJobs:
    return TenantJobs(store, catalog)


@pytest.mark.parametrize(
    ("schedule", "rate"),
    [
        (every("1s"), 60),
        (every("4m"), 0.25),
        (cron("* * * * *"), 1),
        (cron("*/5 * * * *"), 0.2),
        (cron("0 3 * * *", tz="Europe/Paris"), 1 / 1440),
        (delay("1m"), 0),
    ],
)
def test_how_often_a_schedule_fires_on_average(schedule: Schedule, rate: float) -> None:
    assert fires_per_minute(schedule) == pytest.approx(rate)


async def test_what_a_tenant_has_is_counted_through_all_changes(tenant_jobs: TenantJobs) -> None:
    a, b = await tenant_jobs.create("a", "b")
    await tenant_jobs.create("d", schedule=delay("30s"))
    assert await tenant_jobs.used() == (3, 4)
    a = await tenant_jobs.change(a, schedules=(every("10s"), cron("* * * * *")))
    assert await tenant_jobs.used() == (3, 10)
    a = await tenant_jobs.change(a, enabled=False)
    assert await tenant_jobs.used() == (3, 3)
    a = await tenant_jobs.change(a)
    await jobs.pause(tenant_jobs.store, b.job_id, 1, "test", None, None)
    await jobs.pause(tenant_jobs.store, b.job_id, 1, "test", "again", None)
    assert await tenant_jobs.used() == (3, 3)
    await register.resume(tenant_jobs.store, tenant_jobs.catalog, b.job_id, tenant_id=1, who="test")
    assert await tenant_jobs.used() == (3, 4)
    for job in (a, b):
        await jobs.delete(tenant_jobs.store, job.job_id, 1, "test")
    await jobs.delete(tenant_jobs.store, a.job_id, 1, "test")
    assert await tenant_jobs.used() == (1, 2)


async def test_many_of_several_kinds_are_counted_together(tenant_jobs: TenantJobs) -> None:
    kinds: list[tuple[Schedule, bool, int]] = [
        (every("1m"), True, 40),  # 40 fires a minute
        (every("2m"), True, 30),  # 15
        (every("1m"), False, 10),
        (delay("30s"), True, 20),  # 40
        (delay("1m"), True, 5),  # 5
    ]
    wanted = [
        Definition(name=f"{place} {n}", task="demo", schedules=(schedule,), enabled=enabled)
        for place, (schedule, enabled, count) in enumerate(kinds)
        for n in range(count)
    ]
    await register.create(tenant_jobs.store, tenant_jobs.catalog, wanted, tenant_id=1, who="test")
    assert await tenant_jobs.used() == (105, 100)
    places = await tenant_jobs.store.pool.fetchval("select count(*) from job_counts")
    assert places == 1  # one transaction counts in one place


async def test_a_job_that_is_not_there_cannot_be_changed(tenant_jobs: TenantJobs) -> None:
    [made] = await tenant_jobs.create("a")
    stored = await jobs.get(tenant_jobs.store, made.job_id, 1)
    assert stored is not None
    gone = replace(stored, job_id=uuid4(), revision=3)
    back = Definition(name="back", task="demo", schedules=(every("1m"),))
    with pytest.raises(Conflict):
        await register.change_all(
            tenant_jobs.store, tenant_jobs.catalog, [(gone, back)], tenant_id=1, who="test", why="test"
        )
    assert await tenant_jobs.used() == (1, 1)


async def test_one_job_too_many_is_refused_and_leaves_nothing(tenant_jobs: TenantJobs) -> None:
    await tenant_jobs.allow('{"jobs": 3}')
    await tenant_jobs.create("a", "b")
    with pytest.raises(QuotaExceeded, match="may have 3 jobs") as caught:
        await tenant_jobs.create("c", "d")
    assert caught.value.retry_after is None
    assert await tenant_jobs.used() == (2, 2)
    [c] = await tenant_jobs.create("c")
    with pytest.raises(QuotaExceeded):
        await tenant_jobs.create("d")
    await jobs.delete(tenant_jobs.store, c.job_id, 1, "test")
    await tenant_jobs.create("d")
    assert await tenant_jobs.used() == (3, 3)


async def test_fires_are_held_to_their_quota_by_whoever_adds_some(tenant_jobs: TenantJobs) -> None:
    await tenant_jobs.allow('{"fires_per_minute": 6}')
    [a] = await tenant_jobs.create("a", schedule=every("20s"))
    [b] = await tenant_jobs.create("b", schedule=every("20s"))
    with pytest.raises(QuotaExceeded, match="6 fires a minute"):
        await tenant_jobs.create("c", schedule=every("1m"))
    await jobs.pause(tenant_jobs.store, b.job_id, 1, "test", None, None)
    [c] = await tenant_jobs.create("c", schedule=every("1m"))
    with pytest.raises(QuotaExceeded):
        await register.resume(tenant_jobs.store, tenant_jobs.catalog, b.job_id, tenant_id=1, who="test")
    with pytest.raises(QuotaExceeded):
        await tenant_jobs.change(a, schedules=(every("5s"),))
    assert await tenant_jobs.used() == (3, 4)
    await jobs.delete(tenant_jobs.store, c.job_id, 1, "test")
    await register.resume(tenant_jobs.store, tenant_jobs.catalog, b.job_id, tenant_id=1, who="test")
    assert await tenant_jobs.used() == (2, 6)


async def test_who_has_too_much_may_still_have_less(tenant_jobs: TenantJobs) -> None:
    [a] = await tenant_jobs.create("a", schedule=every("1s"))
    await tenant_jobs.create("b")
    await tenant_jobs.allow('{"jobs": 1, "fires_per_minute": 1}')
    a = await tenant_jobs.change(a, schedules=(every("2s"),))
    assert await tenant_jobs.used() == (2, 31)
    with pytest.raises(QuotaExceeded):
        await tenant_jobs.change(a, schedules=(every("1s"),))


async def test_many_at_once_get_exactly_what_is_allowed(tenant_jobs: TenantJobs) -> None:
    await tenant_jobs.allow('{"jobs": 10}')

    async def one(number: int) -> bool:
        try:
            await tenant_jobs.create(f"job {number}")
        except QuotaExceeded:
            return False
        return True

    made = await asyncio.gather(*(one(number) for number in range(25)))
    assert sum(made) == 10
    assert (await tenant_jobs.used())[0] == 10


async def test_bulk_creates_of_many_shards_do_not_wait_for_each_other_in_a_cycle(tenant_jobs: TenantJobs) -> None:
    await asyncio.gather(*(tenant_jobs.create(*(f"{n} {i}" for i in range(200))) for n in range(6)))
    assert await tenant_jobs.used() == (1200, 1200)


async def test_another_tenants_jobs_do_not_count(tenant_jobs: TenantJobs) -> None:
    await tenant_jobs.store.pool.execute("insert into tenants (name) values ('other')")
    await tenant_jobs.store.pool.execute("""update tenants set quotas = '{"jobs": 1}' where name = 'other'""")
    await tenant_jobs.create("a", "b")
    wanted = [Definition(name="a", task="demo", schedules=(every("1m"),))]
    await register.create(tenant_jobs.store, tenant_jobs.catalog, wanted, tenant_id=2, who="test")
    wanted = [Definition(name="b", task="demo", schedules=(every("1m"),))]
    with pytest.raises(QuotaExceeded):
        await register.create(tenant_jobs.store, tenant_jobs.catalog, wanted, tenant_id=2, who="test")
    assert await tenant_jobs.used() == (2, 2)


async def test_arguments_are_held_to_the_tenants_size(tenant_jobs: TenantJobs) -> None:
    await tenant_jobs.allow('{"payload_bytes": 100}')
    with pytest.raises(PayloadTooLarge, match="limit is 100"):
        await tenant_jobs.create("a", kwargs={"x": "y" * 100})
    with pytest.raises(PayloadTooLarge):
        await send.send(tenant_jobs.store, tenant_jobs.catalog, SendSpec(task="demo", args=["y" * 100]), tenant_id=1)
    [a] = await tenant_jobs.create("a", kwargs={"x": "y" * 10})
    with pytest.raises(PayloadTooLarge):
        await send.trigger(tenant_jobs.store, a.job_id, tenant_id=1, kwargs={"x": "y" * 100})
    sent = await send.send(tenant_jobs.store, tenant_jobs.catalog, SendSpec(task="demo", args=["y"]), tenant_id=1)
    assert await commands.cancel(tenant_jobs.store, sent.key, tenant_id=1, reason="enough") == "cancelled"
