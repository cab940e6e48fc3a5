"""A time index in Redis: it spares the database looks, and whatever becomes of it, nothing is missed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from itertools import pairwise
from secrets import token_bytes
from uuid import UUID

import pytest
from prometheus_client import REGISTRY
from redis.asyncio import Redis as Client
from redis.exceptions import ResponseError
from tools.servers import Redis

from bellringer.backend_factory import create_time_index
from bellringer.backends.redis import pipeline
from bellringer.backends.redis.time_index import RedisIndex
from bellringer.clock import DatabaseClock, SystemClock
from bellringer.config import Config
from bellringer.core.jobs import Definition
from bellringer.engine import register, send
from bellringer.engine.send import SendSpec
from bellringer.errors import ConfigError
from bellringer.schedule import cron, every
from bellringer.scheduler.due_cohorts import CohortPoller, DueHeap
from bellringer.scheduler.service import Scheduler, SchedulerSettings
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.leases import PostgresLeases

CLOCK = SystemClock()
LEAD = timedelta(seconds=1)
LEASE = timedelta(seconds=5)


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "REDIS_TIMEOUT_SECONDS", 10.0)


@pytest.fixture
async def index(redis_server: Redis) -> AsyncIterator[RedisIndex]:
    made = RedisIndex(redis_server.address, token_bytes(16), CLOCK)
    await made.open()
    yield made
    await made.close()


@pytest.fixture
async def client(redis_server: Redis) -> AsyncIterator[Client]:
    opened = Client.from_url(redis_server.address)
    yield opened
    await opened.aclose()


def looks(source: str) -> float:
    return REGISTRY.get_sample_value("bellringer_looks_total", {"source": source}) or 0.0


@pytest.mark.usefixtures("patience")
async def test_only_shards_in_which_something_is_due_are_near(index: RedisIndex) -> None:
    now = CLOCK.now()
    tokens = {0: 5, 1: 6, 2: 7}
    horizon = now + timedelta(seconds=2)
    since = now - timedelta(seconds=5)
    assert await index.near(tokens, since, horizon) == {0, 1, 2}  # nothing is known
    await index.fill(tokens, now, [(1, "c:9", now + timedelta(seconds=1)), (2, "t", now + timedelta(seconds=3))])
    assert await index.near(tokens, since, horizon) == {1}
    assert await index.near(tokens, since, now + timedelta(seconds=4)) == {1, 2}
    assert await index.near({0: 5, 1: 6, 2: 8}, since, horizon) == {1, 2}  # another holder has filled it
    assert await index.near(tokens, now + timedelta(seconds=1), horizon) == {0, 1, 2}  # it is too old
    await index.fill({1: 6}, now, [])
    assert await index.near(tokens, since, horizon) == frozenset()


@pytest.mark.usefixtures("patience")
async def test_what_is_not_ours_counts_as_not_known(index: RedisIndex, client: Client) -> None:
    now = CLOCK.now()
    since, horizon = now - timedelta(seconds=5), now + timedelta(seconds=2)
    for kind in range(4):
        await index.fill({0: 5}, now, [])
        assert await index.near({0: 5}, since, horizon) == frozenset()
        due, filled = (f"{index._prefix}{name}:0" for name in ("due", "filled"))
        await client.delete(*((due,) if kind == 3 else (due, filled)))
        if kind == 0:
            await client.set(filled, "5:x")
        elif kind == 1:
            await client.rpush(filled, "5:1")
        elif kind == 3:
            await client.set(due, "not a set")
        assert await index.near({0: 5}, since, horizon) == {0}


async def test_a_redis_that_is_not_there_leaves_all_to_the_database() -> None:
    index = RedisIndex("redis://127.0.0.1:1/0", b"s", CLOCK)
    await index.open()
    await index.fill({0: 1}, CLOCK.now(), [])
    assert await index.near({0: 1, 3: 1}, CLOCK.now(), CLOCK.now()) == {0, 3}
    await index.close()


async def test_an_index_needs_an_address(store: Store) -> None:
    with pytest.raises(ConfigError, match="cache"):
        await create_time_index(Config(time_index="redis"), store, CLOCK)
    assert await create_time_index(Config(), store, CLOCK) is None


@pytest.mark.usefixtures("patience")
async def test_the_database_is_asked_again_when_something_comes_near(
    store: Store, catalog: Catalog, index: RedisIndex
) -> None:
    wheel, time = DueHeap(), DatabaseClock(CLOCK)
    lookout = CohortPoller(store, catalog, wheel, time, CLOCK, index)
    tokens = dict.fromkeys(range(await catalog.shard_count()), 1)
    assert await lookout.poll(tokens, LEAD) == ([], False)
    before = looks("database")
    for _ in range(3):
        assert await lookout.poll(tokens, LEAD) == ([], False)
    assert looks("database") == before
    at = await store.now() + timedelta(seconds=1)
    await send.send(store, catalog, SendSpec(task="demo", at=at + timedelta(days=1)), tenant_id=1)
    await store.pool.execute("update timers set due_at = $1", at)  # behind everybody's back
    lookout.request_full_poll()  # a hint
    seen = await lookout.poll(tokens, LEAD)
    [shard] = seen.timer_shards
    assert looks("database") == before + 1
    assert (await lookout.poll(tokens, LEAD)).timer_shards == [shard]  # the index says that it is near
    await store.pool.execute("delete from timers")
    lookout.mark_changed([shard])
    assert (await lookout.poll(tokens, LEAD)).timer_shards == []
    assert looks("database") == before + 3
    assert (await lookout.poll(tokens, LEAD)).timer_shards == []
    assert looks("database") == before + 3


@asynccontextmanager
async def scheduling(store: Store, index: RedisIndex | None) -> AsyncIterator[Scheduler]:
    scheduler = Scheduler(store, PostgresLeases(store, LEASE), CLOCK, SchedulerSettings(lease=LEASE), None, index)
    stop = asyncio.Event()
    running = asyncio.create_task(scheduler.run(stop))
    try:
        yield scheduler
    finally:
        stop.set()
        await running


@pytest.mark.parametrize("fault", ["none", "flushed", "emptied", "garbage", "stopped"])
async def test_nothing_is_missed_whatever_becomes_of_the_index(
    store: Store, catalog: Catalog, redis_server: Redis, client: Client, fault: str
) -> None:
    """Schedules that strike every second or two, one-shots, and jobs that come while it runs."""
    index, chance = RedisIndex(redis_server.address, token_bytes(16), CLOCK), random.Random(fault)
    await index.open()

    async def make(name: str, n: int) -> UUID:
        [made] = await register.create(
            store,
            catalog,
            [Definition(name=name, task="demo", schedules=(every(f"{n}s"),))],
            tenant_id=1,
            who="test",
        )
        return made.job_id

    for n in (1, 2, 3):
        await make(f"every {n} s", n)
    start = await store.now()
    for n in range(10):
        order = SendSpec(task="demo", at=start + timedelta(seconds=1 + n * 0.7))
        await send.send(store, catalog, order, tenant_id=1)
    try:
        async with scheduling(store, index):
            for n in range(40):
                await asyncio.sleep(0.25)
                if n == 12:
                    await make("late", 1)  # nobody sends a hint
                await _break(fault, index, client, redis_server, chance)
            redis_server.resume()
            await _all_fired(store)
    finally:
        redis_server.resume()
    assert await store.pool.fetchval("select count(*) from runs where cause <> 'schedule'") == 10
    assert await store.pool.fetchval("select count(*) from gaps") == 0
    watched = {"every 1 s": (1, 10), "every 2 s": (2, 10), "every 3 s": (3, 10), "late": (1, 6)}
    for name, (seconds, lasted) in watched.items():
        rows = await store.pool.fetch(
            "select scheduled_for from runs join jobs using (job_id) where name = $1 order by 1", name
        )
        steps = {after[0] - one[0] for one, after in pairwise(rows)}
        assert len(rows) >= lasted // seconds - 2, name
        assert steps == {timedelta(seconds=seconds)}, name


async def _break(fault: str, index: RedisIndex, client: Client, redis: Redis, chance: random.Random) -> None:
    keys = [] if fault in ("none", "stopped") else await client.keys(f"{index._prefix}*")
    if fault == "flushed":
        await client.flushall()
    elif fault == "emptied":  # marked as filled, with nothing in it: the worst that it can say
        for key in keys:
            if b":due:" in key:
                await client.delete(key)
    elif fault == "garbage":
        for key in keys:
            await client.delete(key)
            with suppress(ResponseError):  # it was filled meanwhile
                await (client.rpush(key, "x") if chance.random() < 0.5 else client.set(key, chance.randbytes(20)))
    elif fault == "stopped":
        (redis.pause if chance.random() < 0.5 else redis.resume)()


async def _all_fired(store: Store) -> None:
    """All that was due when this was asked for has become runs."""
    until = await store.now()
    async with asyncio.timeout(30):
        while await store.pool.fetchval(  # noqa: ASYNC110
            "select exists (select 1 from cohorts c join members m using (shard, schedule_id) where c.next_at <= $1)"
            " or exists (select 1 from timers where due_at <= $1)",
            until,
        ):
            await asyncio.sleep(0.1)


@pytest.mark.usefixtures("patience")
async def test_jobs_far_away_cost_the_database_a_look_every_five_seconds(
    store: Store, catalog: Catalog, redis_server: Redis
) -> None:
    index = RedisIndex(redis_server.address, token_bytes(16), CLOCK)
    await index.open()
    definition = Definition(name="nightly", task="demo", schedules=(cron("0 3 1 1 *"),))
    await register.create(store, catalog, [definition], tenant_id=1, who="test")
    async with scheduling(store, index):
        await asyncio.sleep(2.0)
        before = looks("database"), looks("index")
        await asyncio.sleep(4.0)
        asked, spared = looks("database") - before[0], looks("index") - before[1]
    assert asked <= 3
    assert spared >= asked
