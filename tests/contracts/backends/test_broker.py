"""What holds however work gets to the workers: the same tests with the database alone, and with a real Kafka."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from bellringer.access.quotas import Quotas
from bellringer.clock import SystemClock
from bellringer.core.broker import BrokerBackend
from bellringer.core.jobs import WORKFLOW_TASK, Definition
from bellringer.core.policies import Limit, Overlap
from bellringer.core.retry_policy import Retry
from bellringer.core.runs import RunKey, State
from bellringer.core.tasks import Registry, make_task
from bellringer.engine import broker_dispatch, register
from bellringer.engine import job_and_run_commands as commands
from bellringer.engine.claim import ClaimSpec
from bellringer.engine.send import SendSpec, send, trigger
from bellringer.schedule import every
from bellringer.scheduler.service import Scheduler, SchedulerSettings
from bellringer.store import jobs, runs, tenants
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.leases import PostgresLeases
from bellringer.store.queue import ClaimedRun
from bellringer.worker.context import Context
from bellringer.worker.service import Worker, WorkerSettings
from bellringer.worker.work_source import BrokerSource, DatabaseSource, WorkSource

SOON = 40.0  # seconds in which whatever is to happen has happened, on a busy machine too
AGAIN = timedelta(seconds=2)
ONCE = Retry(1)


class Valve:
    """A source that brings nothing while it is shut: so what was sent, and not taken, can be looked at."""

    def __init__(self, source: WorkSource, plant: Plant) -> None:
        self._source = source
        self._plant = plant
        self.name = source.name

    async def open(self, pools: Mapping[str, int]) -> None:
        await self._source.open(pools)

    async def take(self, seat: ClaimSpec, most: int, *, behind: int) -> tuple[list[ClaimedRun], bool]:
        if self._plant.is_shut:
            await asyncio.sleep(0.05)
            return [], True
        self._plant.taking += 1
        try:
            return await self._source.take(seat, most, behind=behind)
        finally:
            self._plant.taking -= 1

    async def pause(self, pool_id: int, *, for_good: bool) -> None:
        await self._source.pause(pool_id, for_good=for_good)

    async def close(self) -> None:
        await self._source.close()


class Plant:
    """A real scheduler and real workers of one process, and what their handlers did."""

    def __init__(self, store: Store, catalog: Catalog, post: BrokerBackend | None) -> None:
        self.store, self.catalog, self.post = store, catalog, post
        self.done: list[Any] = []  # what each execution was given, in order
        self.now = self.most = 0  # under way, and the most that ever was
        self.gate = threading.Event()  # handlers that wait go on; they run on a loop of their own
        self.is_shut = False  # workers get nothing
        self.taking = 0
        self._running: list[tuple[asyncio.Event, asyncio.Task[None]]] = []

    # Processes

    def scheduler(self) -> asyncio.Event:
        clock, settings = SystemClock(), SchedulerSettings(name="node")
        node = Scheduler(self.store, PostgresLeases(self.store), clock, settings, self.post)
        return self._start(node.run)

    async def worker(self, *tasks: str, slots: int = 20, **pools: int) -> asyncio.Event:
        """A worker of these tasks, or of all; set what is answered to stop it."""
        source: WorkSource = BrokerSource(self.store, self.post) if self.post else DatabaseSource(self.store)
        settings = WorkerSettings(pools=pools or {"short": slots}, name=uuid4().hex[:6], grace=timedelta(seconds=5))
        registry = Registry()
        for name in tasks or ("note", "wait", "nap", "flaky", "doomed"):
            registry.add(make_task(getattr(self, name), name=name))
        worker = Worker(self.store, registry, SystemClock(), settings, Valve(source, self))
        stop = self._start(worker.run)
        await worker.started.wait()
        return stop

    def _start(self, run: Callable[[asyncio.Event], Awaitable[None]]) -> asyncio.Event:
        stop = asyncio.Event()
        self._running.append((stop, asyncio.ensure_future(run(stop))))
        return stop

    async def shut(self) -> None:
        self.is_shut = True
        await self.until(lambda: _is(self.taking == 0), "nobody takes any more")

    async def end(self) -> None:
        self.gate.set()
        for stop, _ in self._running:
            stop.set()
        await asyncio.gather(*(task for _, task in self._running))

    # Handlers

    async def note(self, n: int) -> int:
        self.done.append(n)
        return n * 2

    async def nap(self, n: int) -> None:
        self.done.append(n)
        await asyncio.sleep(0.02)

    async def wait(self, n: int) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        while not self.gate.is_set():  # noqa: ASYNC110 - set on another loop
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
        self.now -= 1
        self.done.append(n)

    async def flaky(self, ctx: Context) -> int:
        self.done.append(ctx.attempt)
        if ctx.attempt == 1:
            raise ValueError("not yet")
        return ctx.attempt

    async def doomed(self, ctx: Context) -> None:
        self.done.append(ctx.attempt)
        raise ValueError("never")

    # Asking and looking

    async def send(self, task: str, *args: Any, tenant: int = 1, **more: Any) -> RunKey:
        order = SendSpec(task=task, args=args, **more)
        return (await send(self.store, self.catalog, order, tenant_id=tenant)).key

    async def job(self, task: str, *args: Any, **more: Any) -> UUID:
        definition = Definition(name=uuid4().hex, task=task, args=args, **{"overlap": Overlap.ALLOW, **more})
        [made] = await register.create(self.store, self.catalog, [definition], tenant_id=1, who="me")
        return made.job_id

    async def change(self, job_id: UUID, task: str, *args: Any, **more: Any) -> None:
        job = await jobs.get(self.store, job_id, 1)
        assert job is not None
        definition = Definition(name=job.name, task=task, args=args, **{"overlap": Overlap.ALLOW, **more})
        await register.change(self.store, self.catalog, job_id, job.revision, definition, tenant_id=1, who="me")

    async def trigger(self, job_id: UUID) -> RunKey:
        return await trigger(self.store, job_id, tenant_id=1)

    async def state(self, key: RunKey) -> State:
        run = await runs.get(self.store, key, 1)
        assert run is not None
        return run.state

    async def sql(self, query: str, *arguments: Any) -> Any:
        return await self.store.pool.fetchval(query, *arguments)

    async def until(self, holds: Callable[[], Awaitable[bool]], what: str, seconds: float = SOON) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not await holds():
            assert loop.time() < deadline, f"{what}: not within {seconds} s; done {len(self.done)}"
            await asyncio.sleep(0.02)

    async def until_done(self, count: int) -> None:
        """Wait until so many executions have ended, and nothing is left to do."""

        async def idle() -> bool:
            return len(self.done) >= count and not await self.sql("select exists (select 1 from queue)")

        await self.until(idle, f"{count} executions")

    async def until_out(self, count: int) -> None:
        """Wait until so many runs are with the broker; without one, they only wait in the database."""
        if self.post is not None:
            query = "select count(*) = $1 from queue where worker_id is null and sent_at is not null"
            await self.until(lambda: self.sql(query, count), f"{count} runs are with the broker")

    async def rests(self) -> None:
        """Give what should not happen the time to happen: that a message is sent again, and brought (`soon_again`)."""
        before = len(self.done)
        await asyncio.sleep(AGAIN.total_seconds() + 2 if self.post else 1)
        assert len(self.done) == before

    async def lost(self) -> int:
        return int(await self.sql("select count(*) from attempts where outcome = 'lost'"))


@pytest.fixture(params=["postgresql", "kafka"])
async def plant(request: pytest.FixtureRequest, store: Store, catalog: Catalog) -> AsyncIterator[Plant]:
    post: BrokerBackend | None = None
    if request.param == "kafka":
        from bellringer.backends.kafka.backend import KafkaBackend

        address = request.getfixturevalue("kafka_server").address
        post = KafkaBackend(f"{address}/contract?partitions=6", uuid4().hex)
    made = Plant(store, catalog, post)
    yield made
    await made.end()


@pytest.fixture
def soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages are sent again after two seconds, not five, so that resting takes less."""
    monkeypatch.setattr(broker_dispatch, "RESEND_AFTER", AGAIN)


async def test_each_run_executes_once_and_its_result_arrives(plant: Plant) -> None:
    plant.scheduler()
    await plant.worker()
    await plant.worker()
    keys = [await plant.send("note", n) for n in range(300)]
    await plant.until_done(300)
    assert Counter(plant.done) == Counter(range(300))
    run = await runs.get(plant.store, keys[7], 1)
    assert run is not None
    assert (run.state, run.result, run.attempt) == (State.SUCCEEDED, 14, 1)
    assert await plant.sql("select count(*) from attempts") == 300


async def test_what_a_schedule_fires_executes_in_its_time(plant: Plant) -> None:
    plant.scheduler()
    await plant.worker()
    job = await plant.job("note", 1, schedules=(every("1s"),))

    async def three() -> bool:
        return len(plant.done) >= 3

    await plant.until(three, "three occurrences")
    await commands.pause(plant.store, job, tenant_id=1, who="me")
    await plant.until_done(3)
    assert await plant.sql("select count(*) from attempts") == len(plant.done)
    late = await plant.sql("select min(extract(epoch from started_at - scheduled_for)) from attempts")
    assert late < 2


async def test_high_priorities_go_first(plant: Plant) -> None:
    plant.scheduler()
    await plant.worker(slots=2)
    await plant.send("wait", -1)
    await plant.send("wait", -2)

    async def full() -> bool:
        return plant.now == 2

    await plant.until(full, "all seats are taken")
    for n in range(40):
        await plant.send("nap", n, priority=1)
    for n in range(40, 80):
        await plant.send("nap", n, priority=9)
    plant.gate.set()
    await plant.until_done(82)
    place = {n: at for at, n in enumerate(n for n in plant.done if n >= 0)}
    high, low = sum(place[n] for n in range(40, 80)) / 40, sum(place[n] for n in range(40)) / 40
    assert high + 20 < low, (high, low)


async def test_a_tenant_with_little_is_not_kept_waiting_by_one_with_much(plant: Plant) -> None:
    await plant.sql("insert into tenants (name) values ('little') returning tenant_id")
    plant.scheduler()
    await plant.worker(slots=4)
    await plant.shut()
    for n in range(300):
        await plant.send("nap", n)
    for n in range(1000, 1010):
        await plant.send("nap", n, tenant=2)
    plant.is_shut = False
    await plant.until_done(310)
    assert max(plant.done.index(n) for n in range(1000, 1010)) < 150
    assert Counter(plant.done) == Counter([*range(300), *range(1000, 1010)])


async def test_no_tenant_has_more_under_way_than_its_quota(plant: Plant) -> None:
    await tenants.change(plant.store, 1, quotas=Quotas(in_flight=2))
    plant.scheduler()
    await plant.worker()
    await plant.worker()
    for n in range(12):
        await plant.send("wait", n)

    async def two() -> bool:
        return plant.now == 2

    await plant.until(two, "two are under way")
    await asyncio.sleep(1)
    plant.gate.set()
    await plant.until_done(12)
    assert plant.most == 2


async def test_no_key_has_more_under_way_than_its_limit(plant: Plant) -> None:
    plant.scheduler()
    await plant.worker()
    await plant.worker()
    for job in [await plant.job("wait", n, limit=Limit("database", 3)) for n in range(2)]:
        for _ in range(6):
            await plant.trigger(job)

    async def three() -> bool:
        return plant.now == 3

    await plant.until(three, "three are under way")
    await asyncio.sleep(1)
    plant.gate.set()
    await plant.until_done(12)
    assert plant.most == 3
    assert Counter(plant.done) == {0: 6, 1: 6}


@pytest.mark.usefixtures("soon_again")
async def test_a_pause_concerns_what_no_one_has_taken(plant: Plant) -> None:
    plant.scheduler()
    await plant.worker()
    await plant.shut()
    job = await plant.job("note", 1)
    key = await plant.trigger(job)
    await plant.until_out(1)
    await commands.pause(plant.store, job, tenant_id=1, who="me")
    plant.is_shut = False
    await plant.rests()
    assert plant.done == []
    await register.resume(plant.store, plant.catalog, job, tenant_id=1, who="me")
    await plant.until_done(1)
    await plant.rests()
    assert plant.done == [1]
    assert await plant.state(key) == State.SUCCEEDED


@pytest.mark.usefixtures("soon_again")
async def test_a_cancelled_run_never_executes_though_it_was_sent(plant: Plant) -> None:
    plant.scheduler()
    await plant.worker()
    await plant.shut()
    key, other = await plant.send("note", 1), await plant.send("note", 2)
    await plant.until_out(2)
    await commands.cancel(plant.store, key, tenant_id=1, reason="not wanted")
    plant.is_shut = False
    await plant.until_done(1)
    await plant.rests()
    assert plant.done == [2]
    assert [await plant.state(key), await plant.state(other)] == [State.CANCELLED, State.SUCCEEDED]


async def test_a_run_is_executed_as_its_job_is_when_it_is_taken(plant: Plant) -> None:
    plant.scheduler()
    await plant.worker()
    await plant.shut()
    job = await plant.job("note", 1)
    await plant.trigger(job)
    await plant.until_out(1)
    await plant.change(job, "note", 2)
    plant.is_shut = False
    await plant.until_done(1)
    assert plant.done == [2]


@pytest.mark.usefixtures("soon_again")
async def test_runs_of_a_suspended_tenant_rest(plant: Plant) -> None:
    plant.scheduler()
    await plant.worker()
    await plant.shut()
    for n in range(3):
        await plant.send("note", n)
    await plant.until_out(3)
    await tenants.change(plant.store, 1, suspended=True)
    plant.is_shut = False
    await plant.rests()
    assert plant.done == []
    await tenants.change(plant.store, 1, suspended=False)
    await plant.until_done(3)
    assert sorted(plant.done) == [0, 1, 2]


@pytest.mark.usefixtures("soon_again")
async def test_runs_of_a_paused_pool_rest(plant: Plant) -> None:
    plant.scheduler()
    await plant.worker(short=5, long=5)
    await plant.shut()
    for n in range(3):
        await plant.send("note", n)
    await plant.send("note", 9, pool="long")
    await plant.until_out(4)
    await plant.sql("update pools set paused_at = now() where name = 'short' returning 1")
    plant.is_shut = False
    await plant.until(lambda: _is(plant.done == [9]), "the other pool goes on")
    await plant.rests()
    assert plant.done == [9]
    await plant.sql("update pools set paused_at = null where name = 'short' returning 1")
    await plant.until_done(4)
    assert sorted(plant.done) == [0, 1, 2, 9]


async def test_failures_are_tried_again_and_dead_letters_are_redriven(plant: Plant) -> None:
    plant.scheduler()
    await plant.worker()
    again = await plant.send("flaky", retry=Retry(delays=["100ms"]))
    await plant.until_done(2)
    assert plant.done == [1, 2]
    assert await plant.state(again) == State.SUCCEEDED
    dead = await plant.send("doomed", retry=ONCE)
    await plant.until_done(3)
    assert await plant.state(dead) == State.DEAD
    assert await commands.redrive(plant.store, [dead], tenant_id=1) == 1
    await plant.until_done(4)
    assert plant.done == [1, 2, 1, 2]
    assert await plant.state(dead) == State.DEAD


async def test_who_does_not_know_a_task_leaves_it_to_another(plant: Plant) -> None:
    plant.scheduler()
    await plant.worker("note")
    await plant.worker("nap")
    for n in range(10):
        await plant.send("note", n)
        await plant.send("nap", 100 + n)
    await plant.until_done(20)
    assert Counter(plant.done) == Counter([*range(10), *range(100, 110)])


async def test_the_nodes_of_a_workflow_go_the_same_way_as_any_run(plant: Plant) -> None:
    plant.scheduler()
    await plant.worker("note")
    await plant.worker("note")
    nodes = [
        {"name": "first", "task": "note", "kwargs": {"n": 1}},
        {
            "name": "each",
            "task": "note",
            "over": {"value": [10, 11, 12]},
            "takes": {"n": {"item": True}},
            "after": ["first"],
        },
        {"name": "last", "task": "note", "takes": {"n": {"node": "each", "path": [2]}}},
    ]
    key = await plant.trigger(await plant.job(WORKFLOW_TASK, workflow={"nodes": nodes, "output": "last"}))
    await plant.until_done(5)
    assert (plant.done[0], sorted(plant.done[1:4]), plant.done[4]) == (1, [10, 11, 12], 24)
    run = await runs.get(plant.store, key, 1)
    assert run is not None
    assert (run.state, run.result) == (State.SUCCEEDED, 48)


async def test_workers_come_and_go_and_nothing_is_lost_or_doubled(plant: Plant) -> None:
    plant.scheduler()
    for n in range(800):
        await plant.send("nap", n)
    stops = [await plant.worker(slots=5)]
    for _ in range(4):
        stops.append(await plant.worker(slots=5))
        await asyncio.sleep(1)
        stops.pop(0).set()
    await plant.until_done(800)
    assert Counter(plant.done) == Counter(range(800))
    assert await plant.lost() == 0


async def _is(value: bool) -> bool:
    return value
