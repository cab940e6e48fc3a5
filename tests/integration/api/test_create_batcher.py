"""Concurrent creates of a tenant share a statement, and each request has the outcome that it would have alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from bellringer.access import Caller, Role
from bellringer.api.http.create_batcher import CreateBatcher, NewJob
from bellringer.core.advisory_locks import AdvisoryLock
from bellringer.core.jobs import Definition
from bellringer.engine import register
from bellringer.engine.register import RegisteredJob
from bellringer.errors import Conflict, InvalidInput, QuotaExceeded
from bellringer.schedule import parse_schedule
from bellringer.store.connection_pool import CONNECTION_ERRORS, Store
from bellringer.store.interned_names import Catalog
from bellringer.store.tenant_scope import ScopedStore

JOBS = "/api/v1/jobs"


@pytest.fixture
def batcher(tenants: Store, catalog: Catalog) -> CreateBatcher:
    return CreateBatcher(tenants, catalog.for_callers())


def definition(name: str, **more: Any) -> Definition:
    return Definition(name=name, task="demo", schedules=(parse_schedule({"every": "1h"}),), **more)


def actor(name: str) -> str:
    caller = Caller(tenant_id=1, tenant="default", role=Role.EDITOR, who=f"key:{name}", origin=f"origin of {name}")
    return caller.actor(f"request of {name}")


def new(name: str, **more: Any) -> NewJob:
    return NewJob(definition(name, **more), actor(name))


async def create_all(batcher: CreateBatcher, jobs: list[NewJob]) -> list[RegisteredJob | BaseException]:
    """Creates jobs in one batch: it begins in the next iteration of the event loop, when all of them have joined."""
    return await asyncio.gather(*(batcher.create(1, job) for job in jobs), return_exceptions=True)


async def names(store: Store) -> list[str]:
    return [row["name"] for row in await store.pool.fetch("select name from jobs order by name")]


async def wait_for_blocked_statement(store: Store, column: str) -> None:
    """Waits until a statement of this database waits for a lock, and evaluates `column` for it."""
    query = f"select {column} from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    async with asyncio.timeout(20):
        while not await store.pool.fetchval(query):  # noqa: ASYNC110 - the condition is in the database
            await asyncio.sleep(0.01)


@asynccontextmanager
async def all_shards_locked(store: Store) -> AsyncIterator[None]:
    async with store.pool.acquire() as connection, connection.transaction():
        await connection.execute(
            "select pg_advisory_xact_lock($1, shard) from generate_series(0, 63) shard", int(AdvisoryLock.SHARD)
        )
        yield


async def test_concurrent_creates_are_one_statement_and_each_gets_its_own_job(
    batcher: CreateBatcher, store: Store
) -> None:
    outcomes = await create_all(batcher, [new(f"job {n}", priority=n) for n in range(9)])
    rows = await store.pool.fetch("select job_id, name, priority, xmin::text as transaction from jobs")
    assert len({row["transaction"] for row in rows}) == 1
    stored = {row["job_id"]: (row["name"], row["priority"]) for row in rows}
    for n, outcome in enumerate(outcomes):
        assert isinstance(outcome, RegisteredJob)
        assert stored[outcome.job_id] == (f"job {n}", n)


async def test_the_audit_entry_of_each_job_names_its_own_caller_and_request(
    batcher: CreateBatcher, store: Store, tenants: Store, catalog: Catalog
) -> None:
    await create_all(batcher, [new("a"), new("b"), new("c")])
    async with tenants.pool.acquire() as connection:  # the connection of the batch
        assert not await connection.fetchval("select current_setting('bellringer.actors', true)")
    alone = ScopedStore(tenants, 1, actor("d"))
    await register.create(alone, catalog, [definition("d")], tenant_id=1, who="key:d")
    rows = await store.pool.fetch(
        "select job.name, job.who, entry.who as audited_who, origin, request_id"
        " from audit entry join jobs job on job.job_id::text = entry.target order by job.name"
    )
    expected = [(name, f"key:{name}", f"key:{name}", f"origin of {name}", f"request of {name}") for name in "abcd"]
    assert [tuple(row) for row in rows] == expected


async def test_a_refused_job_does_not_affect_its_neighbours(
    batcher: CreateBatcher, store: Store, tenants: Store, catalog: Catalog
) -> None:
    scoped = ScopedStore(tenants, 1, actor("before"))
    await register.create(scoped, catalog, [definition("taken")], tenant_id=1, who="key:before")
    with pytest.raises(Conflict) as alone:
        await register.create(scoped, catalog, [definition("taken")], tenant_id=1, who="key:before")
    jobs = [new("a"), new("Taken"), new("b", pool="no such pool"), new("twice"), new("TWICE"), new("c")]
    first, taken, unknown_pool, twice, again, last = await create_all(batcher, jobs)
    assert all(isinstance(outcome, RegisteredJob) for outcome in (first, twice, last))
    assert isinstance(unknown_pool, InvalidInput)
    assert unknown_pool.code == "pool_unknown"
    for refused in (taken, again):
        assert isinstance(refused, Conflict)
        assert (refused.code, str(refused)) == (alone.value.code, str(alone.value))
    assert await names(store) == ["a", "c", "taken", "twice"]


async def test_a_quota_is_filled_exactly_and_only_the_excess_is_refused(batcher: CreateBatcher, store: Store) -> None:
    await store.pool.execute("""update tenants set quotas = '{"jobs": 3}' where tenant_id = 1""")
    outcomes = await create_all(batcher, [new(f"job {n}") for n in range(5)])
    created = [outcome.definition.name for outcome in outcomes if isinstance(outcome, RegisteredJob)]
    assert sum(isinstance(outcome, QuotaExceeded) for outcome in outcomes) == 2
    assert sorted(created) == await names(store)
    assert len(created) == 3
    assert await store.pool.fetchval("select count(*) from audit where action = 'job.created'") == 3


async def test_a_lost_connection_fails_every_request_of_the_batch_and_is_not_retried(
    batcher: CreateBatcher, store: Store
) -> None:
    """The server may have committed before the connection was lost, so a second try could find the names taken."""
    async with all_shards_locked(store):
        creating = asyncio.create_task(create_all(batcher, [new("a"), new("b"), new("c")]))
        await wait_for_blocked_statement(store, "pg_terminate_backend(pid)")
        outcomes = await creating
    assert all(isinstance(outcome, CONNECTION_ERRORS) for outcome in outcomes)
    assert await names(store) == []
    assert isinstance((await create_all(batcher, [new("a")]))[0], RegisteredJob)


async def test_a_caller_that_leaves_does_not_affect_its_neighbours(batcher: CreateBatcher, store: Store) -> None:
    async with all_shards_locked(store):
        stays, leaves = (asyncio.create_task(batcher.create(1, new(name))) for name in ("stays", "leaves"))
        await wait_for_blocked_statement(store, "pid")
        leaves.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaves
    assert (await stays).definition.name == "stays"


async def test_tenants_do_not_share_a_statement(batcher: CreateBatcher, store: Store) -> None:
    other = await store.pool.fetchval("insert into tenants (name) values ('other') returning tenant_id")
    await asyncio.gather(*(batcher.create(tenant, new("same name")) for tenant in (1, other)))
    rows = await store.pool.fetch("select tenant_id, xmin::text as transaction from jobs order by tenant_id")
    assert [row["tenant_id"] for row in rows] == [1, other]
    assert len({row["transaction"] for row in rows}) == 2


async def test_a_create_with_an_idempotency_key_stays_one_transaction_with_its_stored_response(
    api: httpx2.AsyncClient, store: Store
) -> None:
    def post(name: str, **headers: str) -> Awaitable[httpx2.Response]:
        return api.post(JOBS, json={"name": name, "task": "demo"}, headers=headers)

    keyed = {"Idempotency-Key": "k"}
    await store.pool.execute("alter table idempotency_keys add constraint refused check (false)")
    first, *others = await asyncio.gather(post("keyed", **keyed), *(post(f"job {n}") for n in range(4)))
    assert (first.status_code, {other.status_code for other in others}) == (500, {202})
    assert "keyed" not in await names(store)
    await store.pool.execute("alter table idempotency_keys drop constraint refused")
    first, *others = await asyncio.gather(post("keyed", **keyed), *(post(f"next {n}") for n in range(4)))
    assert {first.status_code, *(other.status_code for other in others)} == {202}
    again = await post("keyed", **keyed)
    assert (again.json(), again.headers["idempotency-replayed"]) == (first.json(), "true")
    assert len(await names(store)) == 9


async def test_concurrent_requests_over_http_report_their_own_job_or_error(
    api: httpx2.AsyncClient, store: Store
) -> None:
    bodies: list[dict[str, Any]] = [{"name": f"job {n}", "task": "demo", "priority": n % 9} for n in range(20)]
    bodies[3]["pool"], bodies[7]["name"], bodies[11]["name"] = "nowhere", "job 8", "job 12"
    answers = await asyncio.gather(
        *(api.post(JOBS, json=body, headers={"X-Request-Id": f"request-{n}"}) for n, body in enumerate(bodies))
    )
    for n, (body, answer) in enumerate(zip(bodies, answers, strict=True)):
        if answer.status_code == 202:
            assert (answer.json()["name"], answer.json()["priority"]) == (body["name"], body["priority"])
            found = await store.pool.fetch("select request_id from audit where target = $1", answer.json()["job_id"])
            assert [row["request_id"] for row in found] == [f"request-{n}"]
    statuses = [answer.status_code for answer in answers]
    assert statuses[3] == 422
    assert sorted((statuses[7], statuses[8])) == sorted((statuses[11], statuses[12])) == [202, 409]
    assert statuses.count(202) == 17
