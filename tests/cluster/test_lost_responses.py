"""The response of each call of a run's life is lost once: every run ends all the same, and none is executed twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from uuid import UUID

from tests.cluster.conftest import until
from tests.support.response_proxy import ResponseProxy

from bellringer.clock import SystemClock
from bellringer.core.jobs import Definition
from bellringer.core.policies import Delivery, Overlap
from bellringer.core.retry_policy import Retry
from bellringer.core.runs import RunKey
from bellringer.core.tasks import Registry, make_task
from bellringer.engine import register
from bellringer.engine.send import SendSpec
from bellringer.schedule import delay, every
from bellringer.scheduler.service import Scheduler, SchedulerSettings
from bellringer.sdk.service import Service
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.leases import PostgresLeases
from bellringer.worker.context import Context
from bellringer.worker.service import Worker, WorkerSettings

WORKER = (  # statements of a run's life, each by a text that only it has
    "bellringer.claim(",
    "bellringer.begin_attempts(",
    "bellringer.settle(",
    "update workers set seen_at",
    "claimed_at <= $2",
    "insert into logs",
)
SCHEDULER = ("bellringer.tick(", "bellringer.fire_timers(", "bellringer.decide_overlaps(", "update leases")
SECONDS = 15.0  # within which every run has ended


@dataclass
class Cluster:
    """A scheduler and a worker, each behind a proxy of its own, and what the handlers were called with."""

    scheduler: ResponseProxy
    worker: ResponseProxy
    desk: Service
    store: Store
    executed: list[tuple[str, int]]

    async def send_some(self) -> list[RunKey]:
        now = await self.store.now()
        retry = Retry(3, delays=["300ms"])
        orders = [
            SendSpec(task="record"),
            SendSpec(task="record", at=now + timedelta(seconds=1)),
            SendSpec(task="record", at=now + timedelta(seconds=3)),  # by a timer
            SendSpec(task="flaky", retry=retry),
            SendSpec(task="record", delivery=Delivery.AT_MOST_ONCE),
        ]
        return [(await self.desk.send(order.message())).key for order in orders]

    async def ended(self, keys: list[RunKey]) -> None:
        """All of these succeed in time, and nothing was executed more often than its attempts say."""

        async def all_ended() -> bool:
            states = [(await self.desk.run(key)).state for key in keys]
            assert set(states) <= {"queued", "running", "retrying", "succeeded"}
            return set(states) == {"succeeded"}

        await until(all_ended, SECONDS, "every run ends")
        for key in keys:
            attempts = [attempt for run_id, attempt in self.executed if run_id == key.id]
            assert attempts == sorted(set(attempts)), f"{key.id} was executed as {attempts}"
            outcomes = await self.store.pool.fetch(
                "select outcome::text from attempts where (job_id, scheduled_for) = ($1, $2) order by attempt",
                key.job_id,
                key.scheduled_for,
            )
            assert len(attempts) == sum(row[0] in {"ok", "failed"} for row in outcomes)

    async def holds_nothing_for_long(self) -> bool:
        """Whether the worker holds no row for longer than any handler takes."""
        held = "select count(*) from queue where worker_id is not null and claimed_at < now() - interval '5 s'"
        return not await self.store.pool.fetchval(held)


@asynccontextmanager
async def running(dsn: str, store: Store) -> AsyncIterator[Cluster]:
    executed: list[tuple[str, int]] = []

    async def record(ctx: Context) -> int:
        executed.append((ctx.run_id, ctx.attempt))
        ctx.log.info("executed")
        await asyncio.sleep(0.05)
        return ctx.attempt

    async def flaky(ctx: Context) -> int:
        if await record(ctx) == 1:
            raise ValueError("the first attempt fails")
        return ctx.attempt

    registry = Registry()
    registry.add(make_task(record, name="record"))
    registry.add(make_task(flaky, name="flaky"))
    async with ResponseProxy(dsn) as before_scheduler, ResponseProxy(dsn) as before_worker:
        stores = [await Store.open(before_scheduler.dsn), await Store.open(before_worker.dsn)]
        scheduler = Scheduler(stores[0], PostgresLeases(stores[0]), SystemClock(), SchedulerSettings(name="s"))
        settings = WorkerSettings(pools={"short": 10}, name="w", grace=timedelta(seconds=1))
        worker = Worker(stores[1], registry, SystemClock(), settings)
        desk = await Service.open(dsn, tenant="default", who="test")
        stop = asyncio.Event()
        roles = [asyncio.create_task(role.run(stop)) for role in (scheduler, worker)]
        try:
            await asyncio.wait_for(worker.started.wait(), 10)
            yield Cluster(before_scheduler, before_worker, desk, store, executed)
        finally:
            stop.set()
            await asyncio.wait(roles, timeout=10)
            for role in roles:
                role.cancel()
            await asyncio.gather(*roles, return_exceptions=True)
            await desk.close()
            for each in stores:
                await each.close()


async def test_no_lost_response_strands_a_run_or_executes_it_twice(dsn: str, store: Store, catalog: Catalog) -> None:
    jobs = [
        Definition(name="chain", task="record", schedules=(delay("1s"),)),
        Definition(name="beat", task="record", schedules=(every("1s"),), overlap=Overlap.SKIP),
    ]
    async with running(dsn, store) as cluster:
        made = await register.create(store, catalog, jobs, tenant_id=1, who="test")
        for proxy, texts in ((cluster.worker, WORKER), (cluster.scheduler, SCHEDULER)):
            for text in texts:
                proxy.drop_response_of(text)
                keys = await cluster.send_some()
                await cluster.ended(keys)
                # Some steps run only every five seconds while they have nothing to do.
                await until(proxy.has_dropped, SECONDS, f"a statement has {text!r}")
        for job in made:  # the chain goes on, and the schedule is not blocked
            await until(partial(_ran_lately, store, job.job_id), SECONDS, "the job runs on")
        await until(cluster.holds_nothing_for_long, SECONDS, "nothing is stranded")
    assert await store.pool.fetchval("select count(*) from attempts where ends_as in ('cancelled', 'dead')") == 0


async def _ran_lately(store: Store, job_id: UUID) -> bool:
    newest = "select max(finished_at) > now() - interval '2.5 s' from attempts where job_id = $1 and outcome = 'ok'"
    return bool(await store.pool.fetchval(newest, job_id))


async def test_a_send_whose_response_is_lost_is_accepted_once(dsn: str, store: Store) -> None:
    async with ResponseProxy(dsn) as proxy:
        desk = await Service.open(proxy.dsn, tenant="default", who="test")
        try:
            for order in (
                SendSpec(task="record"),
                SendSpec(task="record", at=await store.now() + timedelta(minutes=5)),
            ):
                proxy.drop_response_of("bellringer.send(")
                sent = await desk.send(order.message())
                assert sent.created
                assert (await desk.run(sent.key)).task == "record"
        finally:
            await desk.close()
    assert proxy.dropped == ["bellringer.send("] * 2
    assert await store.pool.fetchval("select (select count(*) from queue) + (select count(*) from timers)") == 2
