"""Quotas of jobs and of their fires: counted whoever creates, exact though many create at once."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from msgspec.structs import replace

from bellringer.errors import Conflict, PayloadTooLarge, QuotaExceeded
from bellringer.jobs import Definition
from bellringer.lifecycle import control, register, send
from bellringer.lifecycle.send import Order
from bellringer.schedule import Schedule, cron, delay, every, fires_per_minute
from bellringer.store import jobs, tenants
from bellringer.store.jobs import Registered
from bellringer.store.names import Names
from bellringer.store.pool import Store


class Bench:
    """Creates and changes jobs of the tenant 1."""

    def __init__(self, store: Store, names: Names) -> None:
        self.store = store
        self.names = names

    async def allow(self, quotas: str) -> None:
        await self.store.pool.execute("update tenants set quotas = $1", quotas)

    async def create(self, *names: str, schedule: Schedule | None = None, **terms: Any) -> list[Registered]:
        wanted = [Definition(name=n, task="demo", schedules=(schedule or every("1m"),), **terms) for n in names]
        return await register.register(self.store, self.names, wanted, tenant_id=1, who="test")

    async def change(self, job: Registered, **terms: Any) -> Registered:
        wanted = Definition(**{"name": "a", "task": "demo", "schedules": (every("1m"),), **terms})
        return await register.change(self.store, self.names, job.job_id, job.revision, wanted, tenant_id=1, who="test")

    async def used(self) -> tuple[int, float]:
        used = await tenants.used(self.store, 1)
        return used.jobs, round(used.fires_per_minute, 6)


@pytest.fixture
def bench(store: Store, names: Names) -> Bench:
    return Bench(store, names)


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


async def test_what_a_tenant_has_is_counted_through_all_changes(bench: Bench) -> None:
    a, b = await bench.create("a", "b")
    await bench.create("d", schedule=delay("30s"))
    assert await bench.used() == (3, 4)
    a = await bench.change(a, schedules=(every("10s"), cron("* * * * *")))
    assert await bench.used() == (3, 10)
    a = await bench.change(a, enabled=False)
    assert await bench.used() == (3, 3)
    a = await bench.change(a)
    await jobs.pause(bench.store, b.job_id, 1, "test", None, None)
    await jobs.pause(bench.store, b.job_id, 1, "test", "again", None)
    assert await bench.used() == (3, 3)
    await register.resume(bench.store, bench.names, b.job_id, tenant_id=1, who="test")
    assert await bench.used() == (3, 4)
    for job in (a, b):
        await jobs.retire(bench.store, job.job_id, 1, "test")
    await jobs.retire(bench.store, a.job_id, 1, "test")
    assert await bench.used() == (1, 2)


async def test_many_of_several_kinds_are_counted_together(bench: Bench) -> None:
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
    await register.register(bench.store, bench.names, wanted, tenant_id=1, who="test")
    assert await bench.used() == (105, 100)
    places = await bench.store.pool.fetchval("select count(*) from job_counts")
    assert places == 1  # one transaction counts in one place


async def test_a_job_that_is_not_there_cannot_be_changed(bench: Bench) -> None:
    [made] = await bench.create("a")
    stored = await jobs.get(bench.store, made.job_id, 1)
    assert stored is not None
    gone = replace(stored, job_id=uuid4(), revision=3)
    back = Definition(name="back", task="demo", schedules=(every("1m"),))
    with pytest.raises(Conflict):
        await register.change_all(bench.store, bench.names, [(gone, back)], tenant_id=1, who="test", why="test")
    assert await bench.used() == (1, 1)


async def test_one_job_too_many_is_refused_and_leaves_nothing(bench: Bench) -> None:
    await bench.allow('{"jobs": 3}')
    await bench.create("a", "b")
    with pytest.raises(QuotaExceeded, match="may have 3 jobs") as caught:
        await bench.create("c", "d")
    assert caught.value.retry_after is None
    assert await bench.used() == (2, 2)
    [c] = await bench.create("c")
    with pytest.raises(QuotaExceeded):
        await bench.create("d")
    await jobs.retire(bench.store, c.job_id, 1, "test")
    await bench.create("d")
    assert await bench.used() == (3, 3)


async def test_fires_are_held_to_their_quota_by_whoever_adds_some(bench: Bench) -> None:
    await bench.allow('{"fires_per_minute": 6}')
    [a] = await bench.create("a", schedule=every("20s"))
    [b] = await bench.create("b", schedule=every("20s"))
    with pytest.raises(QuotaExceeded, match="6 fires a minute"):
        await bench.create("c", schedule=every("1m"))
    await jobs.pause(bench.store, b.job_id, 1, "test", None, None)
    [c] = await bench.create("c", schedule=every("1m"))
    with pytest.raises(QuotaExceeded):
        await register.resume(bench.store, bench.names, b.job_id, tenant_id=1, who="test")
    with pytest.raises(QuotaExceeded):
        await bench.change(a, schedules=(every("5s"),))
    assert await bench.used() == (3, 4)
    await jobs.retire(bench.store, c.job_id, 1, "test")
    await register.resume(bench.store, bench.names, b.job_id, tenant_id=1, who="test")
    assert await bench.used() == (2, 6)


async def test_who_has_too_much_may_still_have_less(bench: Bench) -> None:
    [a] = await bench.create("a", schedule=every("1s"))
    await bench.create("b")
    await bench.allow('{"jobs": 1, "fires_per_minute": 1}')
    a = await bench.change(a, schedules=(every("2s"),))
    assert await bench.used() == (2, 31)
    with pytest.raises(QuotaExceeded):
        await bench.change(a, schedules=(every("1s"),))


async def test_many_at_once_get_exactly_what_is_allowed(bench: Bench) -> None:
    await bench.allow('{"jobs": 10}')

    async def one(number: int) -> bool:
        try:
            await bench.create(f"job {number}")
        except QuotaExceeded:
            return False
        return True

    made = await asyncio.gather(*(one(number) for number in range(25)))
    assert sum(made) == 10
    assert (await bench.used())[0] == 10


async def test_bulk_creates_of_many_shards_do_not_wait_for_each_other_in_a_ring(bench: Bench) -> None:
    await asyncio.gather(*(bench.create(*(f"{n} {i}" for i in range(200))) for n in range(6)))
    assert await bench.used() == (1200, 1200)


async def test_another_tenants_jobs_do_not_count(bench: Bench) -> None:
    await bench.store.pool.execute("insert into tenants (name) values ('other')")
    await bench.store.pool.execute("""update tenants set quotas = '{"jobs": 1}' where name = 'other'""")
    await bench.create("a", "b")
    wanted = [Definition(name="a", task="demo", schedules=(every("1m"),))]
    await register.register(bench.store, bench.names, wanted, tenant_id=2, who="test")
    wanted = [Definition(name="b", task="demo", schedules=(every("1m"),))]
    with pytest.raises(QuotaExceeded):
        await register.register(bench.store, bench.names, wanted, tenant_id=2, who="test")
    assert await bench.used() == (2, 2)


async def test_arguments_are_held_to_the_tenants_size(bench: Bench) -> None:
    await bench.allow('{"payload_bytes": 100}')
    with pytest.raises(PayloadTooLarge, match="limit is 100"):
        await bench.create("a", kwargs={"x": "y" * 100})
    with pytest.raises(PayloadTooLarge):
        await send.send(bench.store, bench.names, Order(task="demo", args=["y" * 100]), tenant_id=1)
    [a] = await bench.create("a", kwargs={"x": "y" * 10})
    with pytest.raises(PayloadTooLarge):
        await send.trigger(bench.store, a.job_id, tenant_id=1, kwargs={"x": "y" * 100})
    sent = await send.send(bench.store, bench.names, Order(task="demo", args=["y"]), tenant_id=1)
    assert await control.cancel(bench.store, sent.key, tenant_id=1, reason="enough") == "cancelled"
