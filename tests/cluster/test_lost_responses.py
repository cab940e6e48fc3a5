"""The response of each call of a run's life is lost once: every run ends all the same, and none is executed twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from uuid import UUID

from tests.cluster.conftest import until
from tests.support.response_proxy import ResponseProxy

from bellringer import App
from bellringer.clock import SystemClock
from bellringer.core.jobs import Definition
from bellringer.core.policies import Delivery, Overlap
from bellringer.core.retry_policy import Retry
from bellringer.core.runs import RunKey
from bellringer.core.tasks import Registry, make_task
from bellringer.engine import register
from bellringer.engine.send import SendSpec, WorkflowSend
from bellringer.errors import BellringerError
from bellringer.schedule import delay, every
from bellringer.scheduler.service import Scheduler, SchedulerSettings
from bellringer.sdk.service import Service
from bellringer.store.connection_pool import UNREACHABLE_ERRORS, Store
from bellringer.store.interned_names import Catalog
from bellringer.store.leases import PostgresLeases
from bellringer.worker.context import Context
from bellringer.worker.service import Worker, WorkerSettings

CLAIM = "bellringer.claim("
LEAST_ROWS = {CLAIM: 2}  # one row is the position of the next claim: a response without a run strands nothing
WORKER = (  # statements of a run's life, each by a text that only it has
    CLAIM,
    "bellringer.begin_attempts(",
    "bellringer.settle(",
    "update workers set seen_at",
    "claimed_at <= $2",
    "insert into logs",
)
SCHEDULER = (
    "bellringer.tick(",
    "bellringer.fire_timers(",
    "bellringer.decide_overlaps(",
    "update leases",
    "insert into nodes",
)
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
                proxy.drop_response_of(text, least_rows=LEAST_ROWS.get(text, 0))
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


async def test_runs_whose_return_gets_no_response_are_executed_once(dsn: str, store: Store) -> None:
    """The response to a claim is lost, and then the one to the call that gives its runs back."""
    async with running(dsn, store) as cluster:
        cluster.worker.drop_response_of(CLAIM, least_rows=2)
        keys = await cluster.send_some()
        await until(cluster.worker.has_dropped, SECONDS, "a claim takes a run")
        cluster.worker.drop_response_of("bellringer.give_back(")
        await until(cluster.worker.has_dropped, SECONDS, "the worker gives back what it does not know")
        await cluster.ended(keys)
    assert cluster.worker.dropped == [CLAIM, "bellringer.give_back("]


async def test_a_worker_whose_registration_gets_no_response_joins_again(dsn: str, store: Store) -> None:
    """It was declared lost. The registration that it does not know of is lost after ten seconds."""
    async with running(dsn, store) as cluster:
        cluster.worker.drop_response_of("insert into workers")
        await store.pool.execute("update workers set state = 'lost'")
        await until(cluster.worker.has_dropped, SECONDS, "the worker registers again")
        await cluster.ended(await cluster.send_some())
    ids = await store.pool.fetch("select distinct worker_id from attempts where outcome = 'ok'")
    registered = await store.pool.fetch("select worker_id from workers order by worker_id")
    assert len(registered) == 3
    assert [row["worker_id"] for row in ids] == [registered[2]["worker_id"]]


async def test_a_workflow_whose_opening_gets_no_response_executes_each_node_once(dsn: str, store: Store) -> None:
    """The first settle opens the workflow run; each later one ends a node."""
    nodes = [{"name": "a", "task": "record"}, {"name": "b", "task": "record", "after": ["a"]}]
    async with running(dsn, store) as cluster:
        for settles in range(3):
            run = (await cluster.desk.send_workflow(WorkflowSend(workflow={"nodes": nodes}))).key
            for _ in range(settles + 1):
                cluster.worker.drop_response_of("bellringer.settle(")
                await until(cluster.worker.has_dropped, SECONDS, "an ending is written")

            async def has_ended(run: RunKey = run) -> bool:
                return (await cluster.desk.run(run)).state == "succeeded"

            await until(has_ended, SECONDS, "the workflow ends")
    assert len(cluster.executed) == len({run_id for run_id, _ in cluster.executed}) == 2 * 3
    assert {attempt for _, attempt in cluster.executed} == {1}


async def test_a_declaration_whose_response_is_lost_can_be_repeated(dsn: str, store: Store) -> None:
    async with ResponseProxy(dsn) as proxy:
        app = App(proxy.dsn, name="shop", version="1")
        app.schedule(every("1h"))(app.task(name="report")(lambda: None))
        async with app:
            proxy.drop_response_of("bellringer.declare_app(")
            with suppress(BellringerError):
                await app.adeclare()
            assert await proxy.has_dropped()
            await app.adeclare()
    rows = await store.pool.fetch("select name, revision, app_id is not null as has_app from jobs")
    assert [tuple(row) for row in rows] == [("report", 1, True)]
    assert await store.pool.fetchval("select count(*) from app_versions") == 1


async def test_a_registration_whose_response_is_lost_can_be_repeated(dsn: str, store: Store) -> None:
    async with ResponseProxy(dsn) as proxy:
        desk = await Service.open(proxy.dsn, tenant="default", who="test")
        try:
            definition = Definition(name="beat", task="record", schedules=(every("1h"),))
            proxy.drop_response_of("bellringer.register(")
            with suppress(BellringerError, *UNREACHABLE_ERRORS):
                await desk.schedule(definition)
            assert await proxy.has_dropped()
            await desk.schedule(definition)
        finally:
            await desk.close()
    assert [tuple(row) for row in await store.pool.fetch("select name, revision from jobs")] == [("beat", 1)]
    assert await store.pool.fetchval("select count(*) from members") == 1


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
