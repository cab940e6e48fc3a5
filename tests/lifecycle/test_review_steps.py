"""What a review of the steps found: each of these must hold, whoever else is there."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import asyncpg
import pytest

from bellringer.errors import InvalidInput
from bellringer.jobs import HTTP
from bellringer.lifecycle import claim, control
from bellringer.lifecycle.announce import announce
from bellringer.lifecycle.claim import Turn
from bellringer.lifecycle.operate import Turn as OperationsTurn
from bellringer.lifecycle.operate import operate
from bellringer.lifecycle.prune import Retention, prune
from bellringer.lifecycle.recover import recover
from bellringer.lifecycle.replay import replay
from bellringer.policies import Limit, Retry
from bellringer.runs import State
from bellringer.schedule import every
from bellringer.store import operations, run_lists, workers
from bellringer.store.operations import Asked
from bellringer.store.pool import Store
from bellringer.store.run_lists import RunFilter
from bellringer.store.scope import ScopedStore

if TYPE_CHECKING:
    from tests.lifecycle.conftest import Bench

ACTOR = json.dumps({"who": "user:ada", "origin": "10.0.0.1", "request_id": "r1"})
EVENTS = """
insert into events (at, tenant_id, kind, job_id, scheduled_for)
select bellringer.now(), $1, 'dead', gen_random_uuid(), bellringer.now() from generate_series(1, $2)
"""
READY = """
insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, shard, pool_id, priority, cause, spec)
select gen_random_uuid(), bellringer.now(), 0, bellringer.now(), t, $2, 0, 1, $3, 'send', '{}'
from unnest($1::integer[]) t
"""
ENDPOINTS = """
insert into webhook_endpoints (tenant_id, url, secret_id, created_at, created_by, changed_at)
select $1, $2, 'sec_x', bellringer.now(), 'me', bellringer.now() from generate_series(1, $3)
"""


async def ask(bench: Bench, action: str, *, ids: list[str] | None = None, wanted: Any = None) -> int:
    number = await operations.create(
        bench.store,
        Asked(
            tenant_id=bench.tenant,
            action=action,
            filter=wanted,
            ids=ids,
            total=0,
            total_is_least=False,
            rate=None,
            who="user:ada",
            reason="because",
        ),
    )
    assert number is not None
    return number


async def test_a_cap_that_the_api_takes_stops_no_claims(bench: Bench) -> None:
    # PATCH /tenants takes quotas up to 1e12; `::int` in the claim would fail for every tenant of the pool.
    await bench.sql("update tenants set quotas = '{\"in_flight\": 3000000000}' where tenant_id = 1")
    await bench.send()
    assert len(await bench.claim(await bench.seat())) == 1


async def test_a_replay_keeps_what_a_secret_signs(bench: Bench) -> None:
    # As a run by hand (`check_others`): who may run a job, but not change it, sends nothing signed elsewhere.
    sent = await bench.send(
        task=HTTP, pool=HTTP, kwargs={"url": "https://example.com/a", "sign": True, "secret": {"id": "sec_1"}}
    )
    await bench.cancel(sent.key)
    with pytest.raises(InvalidInput):
        await replay(bench.store, sent.key, tenant_id=1, kwargs={"url": "https://elsewhere.example/steal"})


async def test_a_tenant_whose_events_cannot_be_sent_keeps_no_other_from_its_own(bench: Bench) -> None:
    [poor, other] = await bench.tenants(2)
    await bench.sql("update tenants set quotas = '{\"payload_bytes\": 200}' where tenant_id = $1", poor)
    await bench.sql(ENDPOINTS, poor, "https://example.com/" + "x" * 300, 1)
    await bench.sql(ENDPOINTS, other, "https://example.com/b", 1)
    for tenant in (poor, other):
        await bench.sql(EVENTS, tenant, 1)
    try:
        await announce(bench.store, bench.names)
    finally:
        assert await bench.value("select count(*) from deliveries where tenant_id = $1", other) == 1


async def test_a_tenant_with_many_endpoints_keeps_no_other_waiting(bench: Bench) -> None:
    [noisy, other] = await bench.tenants(2)
    await bench.sql(ENDPOINTS, noisy, "https://example.com/a", 50)
    await bench.sql(ENDPOINTS, other, "https://example.com/b", 1)
    await bench.sql(EVENTS, other, 1)
    for _ in range(3):  # the noisy one always has news
        await bench.sql(EVENTS, noisy, 3)
        await announce(bench.store, bench.names)
    assert await bench.value("select count(*) from deliveries where tenant_id = $1", other) == 1


async def test_the_lane_of_limits_is_fair_to_tenants(bench: Bench) -> None:
    [noisy, small] = await bench.tenants(2)
    mine = [bench.definition(f"job {n}", limit=Limit(f"key {n:03}", 1000)) for n in range(150)]
    jobs = [r.job_id for r in await bench.of(noisy).register(*mine)]
    jobs += [r.job_id for r in await bench.of(small).register(bench.definition("one", limit=Limit("mine", 10)))]
    await bench.sql(
        "insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, shard, pool_id, priority, "
        "cause, key_id, blocked) select j.job_id, bellringer.now(), n, bellringer.now(), j.tenant_id, j.task_id, "
        "j.shard, j.pool_id, j.priority, 'manual', j.key_id, 32 from jobs j cross join generate_series(1, 30) n "
        "where j.job_id = any ($1::uuid[]) and (j.tenant_id = $2 or n = 1)",
        jobs,
        noisy,
    )
    seat, turn, got = await bench.seat(), Turn(), 0
    for _ in range(4):  # 40 places: half of them are its fair share
        taken, turn = await claim.claim(bench.store, seat, 10, turn)
        got += sum(c.tenant_id == small for c in taken)
    assert got == 1


async def test_what_an_operation_does_to_runs_is_in_the_audit(bench: Bench) -> None:
    seat = await bench.seat()
    sent = await bench.send(retry=Retry(attempts=1))
    await bench.fail(seat, await bench.claim_one(seat))
    assert await bench.state(sent.key) is State.DEAD
    await ask(bench, "dead_letters.discard", ids=[sent.key.id])
    assert await operate(bench.store, bench.names, OperationsTurn()) == 1
    told = await bench.sql("select who, target from audit where action = 'run.discarded'")
    assert [row["who"] for row in told] == ["user:ada"]


async def test_an_operation_leaves_alone_what_was_born_later(bench: Bench) -> None:
    job = await bench.job()
    before = await bench.trigger(job)
    await ask(bench, "runs.cancel", wanted=RunFilter(job=job, states=("queued",)))
    await bench.pass_time(3600)  # all schedulers were away
    after = await bench.trigger(job)
    await operate(bench.store, bench.names, OperationsTurn())
    assert await bench.state(before) is State.CANCELLED
    assert await bench.state(after) is State.QUEUED


async def test_to_pause_again_by_an_operation_changes_nothing(bench: Bench) -> None:
    job = await bench.job("a", every("1m"))
    until = bench.after(600)
    await control.pause(bench.store, job, tenant_id=1, who="user:bob", reason="repair", until=until)
    await ask(bench, "jobs.pause", ids=[str(job)])
    await operate(bench.store, bench.names, OperationsTurn())
    read = await bench.read(job)
    assert (read.paused_by, read.paused_until, read.revision) == ("user:bob", until, 2)


async def test_what_was_looked_at_tells_nothing_of_other_tenants(bench: Bench) -> None:
    [other] = await bench.tenants(1)
    for _ in range(7):
        await bench.send()
    page = await run_lists.page(bench.store, other, RunFilter(states=("queued",)), None, 10)
    assert (page.places, page.scanned) == ([], 0)


async def test_another_tenants_job_answers_as_none_while_it_is_locked(bench: Bench) -> None:
    [other] = await bench.tenants(1)
    job = await bench.job()
    async with bench.store.pool.acquire() as connection, connection.transaction():
        await connection.execute("select 1 from jobs where job_id = $1 for update", job)
        async with asyncio.timeout(3):
            assert await bench.value("select bellringer.pause($1, $2, 'x', null, null)", uuid4(), other) is None
            assert await bench.value("select bellringer.pause($1, $2, 'x', null, null)", job, other) is None
            assert (
                await bench.value(
                    "select bellringer.redrive($2, array[$1::uuid], array[bellringer.now()], array[0::bigint])",
                    job,
                    other,
                )
                == 0
            )


async def test_retention_of_the_audit_keeps_up_with_the_seals(bench: Bench) -> None:
    # One seal every two seconds are 1,800 an hour, and prune comes once an hour.
    await bench.sql(
        "insert into audit_seals (last_tx, last_id, count, prev_hash, hash, sealed_at) "
        "select '1', 0, 0, '', '', bellringer.now() - interval '400 days' from generate_series(1, 1800)"
    )
    await prune(bench.store, await bench.now(), Retention())
    assert await bench.value("select count(*) from audit_seals") <= 1


async def test_troubles_are_read_on_though_they_are_of_no_jobs(bench: Bench) -> None:
    await bench.sql(EVENTS, 1, 600)  # of sends
    assert (await recover(bench.store)).more


async def test_a_stopped_client_with_a_key_holds_up_no_tick(bench: Bench, tenants: Store) -> None:
    # An Idempotency-Key makes a POST one transaction: a process that is stopped in it keeps the shard's lock.
    await bench.share_shard()
    await bench.job("herd", every("1s"))
    victim = await bench.job("victim")
    await bench.hold()
    await bench.pass_time(1)
    scoped, fired = ScopedStore(tenants, 1, ACTOR), 0
    with suppress(asyncpg.PostgresConnectionError, asyncpg.InterfaceError):
        async with scoped.transaction():
            await control.pause(scoped, victim, tenant_id=1, who="me")
            await asyncio.sleep(5)  # it is stopped here
            fired = (await bench.tick()).fired.fired
    assert fired == 1


async def test_skips_of_one_instant_do_not_square_the_tick(bench: Bench) -> None:
    await bench.share_shard()
    made = await bench.register(*(bench.definition(f"j{n}", every("1h")) for n in range(6000)))
    await bench.hold()
    took = []
    for skips in (0, len(made)):
        at = await bench.value("select min(next_at) from cohorts")
        await bench.sql(
            "insert into skips (job_id, at, tenant_id, who, made_at) select u, $2, 1, 'me', bellringer.now() "
            "from unnest($1::uuid[]) u",
            [r.job_id for r in made[:skips]],
            at,
        )
        await bench.set_clock(at)
        start = time.monotonic()
        assert (await bench.tick()).fired.fired == len(made)
        took.append(time.monotonic() - start)
    assert await bench.value("select count(*) from runs where born_as = 'skipped'") == len(made)
    assert took[1] < 10 * took[0] + 1  # it was 40 times


async def test_what_runs_behind_waits_for_all_tenants_live_work(bench: Bench) -> None:
    numbers = await bench.tenants(40)
    task_id = (await bench.names.task_ids(["greet"]))["greet"]
    await bench.sql(READY, numbers[:-1], task_id, -5)
    await bench.sql(READY, numbers[-1:], task_id, 5)
    seat, turn, order = await bench.seat(), Turn(), list[bool]()
    while len(order) < 3:
        taken, turn = await claim.claim(bench.store, seat, 1, turn)
        order += [claimed.behind for claimed in taken]
    assert order == [False, True, True]


async def test_what_a_worker_is_asked_is_in_the_audit(bench: Bench) -> None:
    seat = await bench.seat()
    acting = ScopedStore(bench.store, None, ACTOR)
    await workers.ask(acting, seat.worker_id, "quiet")
    told = await bench.sql("select who, target from audit where kind = 'worker'")
    assert [tuple(row) for row in told] == [("user:ada", str(seat.worker_id))]
