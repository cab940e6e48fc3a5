"""What API processes keep: one contract, for what a process has for itself and for a Redis that all share."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from secrets import token_bytes
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from tools.servers import Redis

from bellringer.access.quotas import RateLimiter
from bellringer.api.app import create_app
from bellringer.api.http import event_feed
from bellringer.api.http.event_feed import NOTIFICATION_PREFIX, EventFeed
from bellringer.backend_factory import create_cache
from bellringer.backends.redis import pipeline
from bellringer.backends.redis.cache import RedisCache
from bellringer.clock import SystemClock
from bellringer.config import Config
from bellringer.core.cache import CACHE_TTL_SECONDS, MAX_CACHED_RESPONSE_BYTES, Cache, Generation, ProcessCache
from bellringer.core.runs import RunKey
from bellringer.errors import ConfigError
from bellringer.store import events
from bellringer.store.connection_pool import Store
from bellringer.store.events import CommitPosition, EventKind, NewEvent
from bellringer.store.interned_names import Catalog

API = "/api/v1"
CLOCK = SystemClock()
Open = Callable[[], Awaitable[Cache]]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tested here is not how long a busy machine takes."""
    monkeypatch.setattr(pipeline, "REDIS_TIMEOUT_SECONDS", 10.0)
    monkeypatch.setattr(pipeline, "CONNECT_TIMEOUT_SECONDS", 10.0)


@pytest.fixture(params=["process", "redis"])
async def cache(request: pytest.FixtureRequest) -> AsyncIterator[Cache]:
    made: Cache = ProcessCache(CLOCK)
    if request.param == "redis":
        made = RedisCache(request.getfixturevalue("redis_server").address, token_bytes(16), CLOCK)
    await made.open()
    yield made
    await made.close()


@pytest.fixture
async def another(redis_server: Redis) -> AsyncIterator[Open]:
    """More and more processes of one installation, on one Redis."""
    secret, opened = token_bytes(16), list[Cache]()

    async def open_one() -> Cache:
        opened.append(RedisCache(redis_server.address, secret, CLOCK))
        await opened[-1].open()
        return opened[-1]

    yield open_one
    for one in opened:
        await one.close()


async def marked(cache: Cache, tenant_id: int) -> Generation:
    """The mark that a tenant has, after the question that comes before every read."""
    assert await cache.get(tenant_id, "nothing") is None
    mark = cache.generation(tenant_id)
    assert mark is not None
    return mark


async def keep(cache: Cache, tenant_id: int, **answers: bytes) -> None:
    await cache.put(tenant_id, await marked(cache, tenant_id), answers, CLOCK.monotonic())


async def eventually(look: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await look():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


# Answers


async def test_an_answer_is_kept_for_its_tenant_and_its_key_alone(cache: Cache) -> None:
    await keep(cache, 1, a=b"one", b=b"")
    assert await cache.get(1, "a") == b"one"
    assert await cache.get(1, "b") == b""
    assert await cache.get(1, "c") is None
    assert await cache.get(2, "a") is None
    await keep(cache, 1, a=b"two")
    assert await cache.get(1, "a") == b"two"


async def test_what_is_forgotten_is_gone_and_what_others_have_stays(cache: Cache) -> None:
    await keep(cache, 1, a=b"one")
    await keep(cache, 2, a=b"two")
    assert await cache.invalidate(1) is cache.is_shared
    assert await cache.get(1, "a") is None
    assert await cache.get(2, "a") == b"two"
    await cache.invalidate(None)
    assert await cache.get(2, "a") is None


async def test_what_was_read_before_a_change_is_not_given_out_after_it(cache: Cache) -> None:
    mark, moment = await marked(cache, 1), CLOCK.monotonic()
    await cache.invalidate(1)  # while the database is read
    await cache.put(1, mark, {"a": b"old"}, moment)
    assert await cache.get(1, "a") is None
    await keep(cache, 1, a=b"new")
    assert await cache.get(1, "a") == b"new"


async def test_a_mark_that_was_once_taken_away_never_comes_again(cache: Cache) -> None:
    marks = set()
    for tenant_id in (1, None, 1, 1, None):
        marks.add(await marked(cache, 1))
        await cache.invalidate(tenant_id)
    assert len(marks) == 5


async def test_a_hint_of_another_process_forgets_too(cache: Cache) -> None:
    for hint in (1, None):
        await eventually(lambda: _keeps(cache, 1))
        cache.invalidate_local(hint)
        assert await cache.get(1, "a") is None


async def _keeps(cache: Cache, tenant_id: int) -> bool:
    """Not right after a hint: it stands for what follows in the next moment as well."""
    await cache.get(tenant_id, "a")
    if (mark := cache.generation(tenant_id)) is not None:
        await cache.put(tenant_id, mark, {"a": b"one"}, CLOCK.monotonic())
    return await cache.get(tenant_id, "a") == b"one"


async def test_an_answer_lives_no_longer_than_kept_from_when_it_was_read(cache: Cache) -> None:
    mark = await marked(cache, 1)
    await cache.put(1, mark, {"a": b"one"}, CLOCK.monotonic() - CACHE_TTL_SECONDS)
    assert await cache.get(1, "a") is None
    await cache.put(1, mark, {"a": b"one"}, CLOCK.monotonic() - CACHE_TTL_SECONDS + 0.2)
    await asyncio.sleep(0.3)
    assert await cache.get(1, "a") is None


async def test_long_answers_are_not_kept(cache: Cache) -> None:
    await keep(cache, 1, a=bytes(MAX_CACHED_RESPONSE_BYTES), b=bytes(MAX_CACHED_RESPONSE_BYTES + 1))
    assert await cache.get(1, "a") == bytes(MAX_CACHED_RESPONSE_BYTES)
    assert await cache.get(1, "b") is None


# Rates


@pytest.mark.parametrize("per_minute", [600, 5, 1, 0.5, 7.3])
async def test_a_rate_is_reported_as_the_rates_arithmetic_has_it(cache: Cache, per_minute: float) -> None:
    rate, start = RateLimiter(per_minute), CLOCK.monotonic()
    for _ in range(20):
        told, told_by = await cache.spend(1, "api", per_minute), rate.spend(CLOCK.monotonic())
        slack = CLOCK.monotonic() - start + 0.05
        assert abs(told.left - told_by.left) <= slack * per_minute / 60 + 1
        assert told.allowed == told_by.allowed or slack > 60 / per_minute
        if told.allowed == told_by.allowed:
            assert told.reset == pytest.approx(told_by.reset, abs=slack + 0.01)


async def test_as_many_as_the_rate_says_are_let_in_at_once(cache: Cache) -> None:
    verdicts = [await cache.spend(1, "api", 30) for _ in range(40)]
    let_in = [verdict.allowed for verdict in verdicts].count(True)
    assert 30 <= let_in <= 31  # a slow machine may have earned one meanwhile
    assert [verdict.left for verdict in verdicts[:3]] == [29, 28, 27]
    assert all(not v.allowed and 0 < v.reset <= 2.01 and v.left == 0 for v in verdicts[31:])


async def test_a_rate_counts_by_tenant_and_kind_and_takes_many_or_none(cache: Cache) -> None:
    assert (await cache.spend(1, "api", 5, 5)).allowed
    assert not (await cache.spend(1, "api", 5)).allowed
    assert (await cache.spend(2, "api", 5)).allowed
    assert not (await cache.spend(1, "fires", 5, 6)).allowed
    assert (await cache.spend(1, "fires", 5, 5)).allowed
    assert not (await cache.spend(3, "api", 0)).allowed
    assert (await cache.spend(3, "api", 0)).reset == 60.0


# What a shared cache promises beyond


async def test_all_processes_forget_at_once(another: Open) -> None:
    one, two = await another(), await another()
    await keep(one, 1, a=b"one")
    assert await two.get(1, "a") == b"one"
    assert await two.invalidate(1)
    assert await one.get(1, "a") is None


async def test_one_who_connects_believes_nothing_that_was_there_before(another: Open) -> None:
    one = await another()
    await keep(one, 1, a=b"one")
    two = await another()
    assert await two.get(1, "a") is None
    assert await one.get(1, "a") is None
    await keep(two, 1, a=b"two")
    assert await one.get(1, "a") == b"two"


async def test_another_installation_on_the_same_redis_shares_nothing(redis_server: Redis, another: Open) -> None:
    stranger = RedisCache(redis_server.address, token_bytes(16), CLOCK)
    one = await another()
    await keep(one, 1, a=b"one")
    await stranger.open()
    assert await stranger.get(1, "a") is None
    assert await stranger.invalidate(None)
    assert await one.get(1, "a") == b"one"
    await stranger.close()


async def test_one_rate_for_all_processes(another: Open) -> None:
    caches = [await another(), await another()]
    verdicts = await asyncio.gather(*(caches[n % 2].spend(1, "api", 20) for n in range(60)))
    assert 20 <= sum(verdict.allowed for verdict in verdicts) <= 21


async def test_hints_reach_all_who_listen(another: Open) -> None:
    one, two = await another(), await another()
    heard: list[str] = []
    ear = asyncio.create_task(two.subscribe(heard.append))

    async def told() -> bool:
        await one.publish("events 7")
        return "events 7" in heard

    await eventually(told)
    ear.cancel()
    await asyncio.gather(ear, return_exceptions=True)


# In the API


@asynccontextmanager
async def served(store: Store, catalog: Catalog, tenants: Store, cache: Cache) -> AsyncIterator[httpx2.AsyncClient]:
    app = create_app(store, catalog, tenants, version="1", clock=CLOCK, cache=cache)
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test", timeout=20) as client:
        yield client


async def test_two_servers_have_one_limit(store: Store, catalog: Catalog, tenants: Store, another: Open) -> None:
    await store.pool.execute("""update tenants set quotas = '{"api_per_minute": 12}' where tenant_id = 1""")
    first, second = await another(), await another()
    async with served(store, catalog, tenants, first) as one, served(store, catalog, tenants, second) as two:
        answers = [await (one, two)[n % 2].get(f"{API}/jobs") for n in range(20)]
    statuses = [answer.status_code for answer in answers]
    assert statuses[:12] == [200] * 12
    assert 12 <= statuses.count(200) <= 14
    assert statuses.count(429) >= 6
    assert answers[11].headers["ratelimit"].startswith('"api";r=0;')


async def test_a_change_by_one_server_is_reported_by_the_other_at_once(
    store: Store, catalog: Catalog, tenants: Store, another: Open
) -> None:
    first, second = await another(), await another()
    async with served(store, catalog, tenants, first) as one, served(store, catalog, tenants, second) as two:
        body: dict[str, Any] = {"task": "demo", "schedule": {"cron": "0 3 * * *"}}
        job_id = (await one.put(f"{API}/jobs/nightly", json=body)).json()["job_id"]
        for n in range(10):
            await two.get(f"{API}/jobs/{job_id}")
            assert (await two.get(f"{API}/jobs/{job_id}")).json()["kwargs"] == ({"n": n - 1} if n else {})
            assert await second.get(1, f"job:{job_id.replace('-', '')}") is not None
            await one.put(f"{API}/jobs/nightly", json={**body, "kwargs": {"n": n}})
        paused = (await one.post(f"{API}/jobs/{job_id}/pause")).json()
        assert (await two.get(f"{API}/jobs/{job_id}")).json() == paused
        assert (await one.delete(f"{API}/jobs/{job_id}")).status_code == 204
        assert (await two.get(f"{API}/jobs/{job_id}")).status_code == 404


async def test_a_job_that_may_move_by_itself_is_not_kept(
    store: Store, catalog: Catalog, tenants: Store, another: Open
) -> None:
    cache = await another()
    async with served(store, catalog, tenants, cache) as api:
        kinds: dict[str, dict[str, Any]] = {
            "often": {"schedule": {"every": "7s"}},
            "at work": {"schedule": {"cron": "0 3 * * *"}},
            "lapsing": {"schedule": {"cron": "0 3 * * *"}},
            "at rest": {"schedule": {"cron": "0 3 * * *"}},
        }
        ids = {
            name: (await api.put(f"{API}/jobs/{name}", json={"task": "demo", **kind})).json()["job_id"]
            for name, kind in kinds.items()
        }
        await api.post(f"{API}/jobs/{ids['at work']}/run")
        await api.post(f"{API}/jobs/{ids['lapsing']}/pause", json={"until": "8s"})
        kept = {}
        for name, job_id in ids.items():
            await api.get(f"{API}/jobs/{job_id}")
            kept[name] = await cache.get(1, f"job:{job_id.replace('-', '')}") is not None
    assert kept == {"often": False, "at work": False, "lapsing": False, "at rest": True}


async def test_what_one_process_has_seen_the_other_looks_for_at_once(
    store: Store, another: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "EVENT_POLL_SECONDS", 3600.0)
    caches = [await another(), await another()]
    here, there = (EventFeed(cache) for cache in caches)
    ear = asyncio.create_task(caches[1].subscribe(there.heard))
    async with here.read(store, CLOCK, 1) as first, there.read(store, CLOCK, 1) as second:
        async with asyncio.timeout(30):
            for minute in range(1000):  # the first hints come before there is an ear
                key = RunKey(uuid4(), CLOCK.now() + timedelta(minutes=minute))
                await events.record(
                    store, await store.now(), [NewEvent(tenant_id=1, kind=EventKind.LATE, key=key, data={})]
                )
                here._hinted.set()  # it looks, by itself
                seen = await first.next(20)
                assert seen is not None
                if await second.next(0.5) is not None:
                    break
        assert minute < 999
    ear.cancel()
    await asyncio.gather(ear, return_exceptions=True)


def test_only_news_wake_a_feed() -> None:
    feed = EventFeed()
    feed._tenants[1] = type("T", (), {"position": CommitPosition(10, 0)})()
    for text in ("", "events", "events x", f"{NOTIFICATION_PREFIX}9", "other 99"):
        feed.heard(text)
    assert not feed._is_hinted
    feed.heard(f"{NOTIFICATION_PREFIX}10")
    assert feed._is_hinted


# The setting


def test_a_plain_import_loads_no_driver() -> None:
    modules = "import bellringer, bellringer.process_assembly, sys"
    code = f"{modules}; sys.exit(any(m.split('.')[0] == 'redis' for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


async def test_an_address_that_cannot_be_read_is_reported(store: Store) -> None:
    with pytest.raises(ConfigError, match="redis://host"):
        await create_cache(Config(cache="http://x"), store, CLOCK)


async def test_a_redis_that_is_not_there_keeps_nothing_from_starting(store: Store) -> None:
    cache = await create_cache(Config(cache="redis://127.0.0.1:1/0"), store, CLOCK)
    assert await cache.get(1, "a") is None
    assert cache.generation(1) is None
    assert not await cache.invalidate(1)
    assert [(await cache.spend(1, "api", 3)).allowed for _ in range(4)] == [True, True, True, False]
    await cache.publish("x")
    await cache.close()
