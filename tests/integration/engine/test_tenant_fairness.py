"""One tenant's backlog, limits or endpoints do not delay other tenants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bellringer.core.policies import Limit
from bellringer.engine import claim
from bellringer.engine.claim import TenantCursor
from bellringer.engine.webhooks import deliver_events

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness


async def test_a_tenant_with_an_endless_backlog_does_not_starve_the_next(harness: EngineHarness) -> None:
    [second] = await harness.tenants(1)
    for _ in range(60):
        await harness.send()
    for _ in range(3):
        await harness.send(tenant=second)
    seat, turn, served = await harness.join_worker(), TenantCursor(), []
    for _ in range(4):
        taken, turn = await claim.claim(harness.store, seat, 10, turn)
        served += [claimed.tenant_id for claimed in taken]
    assert second in served


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


async def test_a_cap_that_the_api_takes_stops_no_claims(harness: EngineHarness) -> None:
    # PATCH /tenants takes quotas up to 1e12; `::int` in the claim would fail for every tenant of the pool.
    await harness.sql("update tenants set quotas = '{\"in_flight\": 3000000000}' where tenant_id = 1")
    await harness.send()
    assert len(await harness.claim(await harness.join_worker())) == 1


async def test_a_tenant_whose_events_cannot_be_sent_keeps_no_other_from_its_own(harness: EngineHarness) -> None:
    [poor, other] = await harness.tenants(2)
    await harness.sql("update tenants set quotas = '{\"payload_bytes\": 200}' where tenant_id = $1", poor)
    await harness.sql(ENDPOINTS, poor, "https://example.com/" + "x" * 300, 1)
    await harness.sql(ENDPOINTS, other, "https://example.com/b", 1)
    for tenant in (poor, other):
        await harness.sql(EVENTS, tenant, 1)
    try:
        await deliver_events(harness.store, harness.catalog)
    finally:
        assert await harness.value("select count(*) from deliveries where tenant_id = $1", other) == 1


async def test_a_tenant_with_many_endpoints_keeps_no_other_waiting(harness: EngineHarness) -> None:
    [noisy, other] = await harness.tenants(2)
    await harness.sql(ENDPOINTS, noisy, "https://example.com/a", 50)
    await harness.sql(ENDPOINTS, other, "https://example.com/b", 1)
    await harness.sql(EVENTS, other, 1)
    for _ in range(3):  # the noisy one always has news
        await harness.sql(EVENTS, noisy, 3)
        await deliver_events(harness.store, harness.catalog)
    assert await harness.value("select count(*) from deliveries where tenant_id = $1", other) == 1


async def test_the_lane_of_limits_is_fair_to_tenants(harness: EngineHarness) -> None:
    [noisy, small] = await harness.tenants(2)
    mine = [harness.definition(f"job {n}", limit=Limit(f"key {n:03}", 1000)) for n in range(150)]
    jobs = [r.job_id for r in await harness.for_tenant(noisy).register(*mine)]
    jobs += [
        r.job_id for r in await harness.for_tenant(small).register(harness.definition("one", limit=Limit("mine", 10)))
    ]
    await harness.sql(
        "insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, shard, pool_id, priority, "
        "cause, key_id, blocked) select j.job_id, bellringer.now(), n, bellringer.now(), j.tenant_id, j.task_id, "
        "j.shard, j.pool_id, j.priority, 'manual', j.key_id, 32 from jobs j cross join generate_series(1, 30) n "
        "where j.job_id = any ($1::uuid[]) and (j.tenant_id = $2 or n = 1)",
        jobs,
        noisy,
    )
    seat, turn, got = await harness.join_worker(), TenantCursor(), 0
    for _ in range(4):  # 40 places: half of them are its fair share
        taken, turn = await claim.claim(harness.store, seat, 10, turn)
        got += sum(c.tenant_id == small for c in taken)
    assert got == 1


async def test_what_runs_behind_waits_for_all_tenants_live_work(harness: EngineHarness) -> None:
    numbers = await harness.tenants(40)
    task_id = (await harness.catalog.task_ids(["greet"]))["greet"]
    await harness.sql(READY, numbers[:-1], task_id, -5)
    await harness.sql(READY, numbers[-1:], task_id, 5)
    seat, turn, order = await harness.join_worker(), TenantCursor(), list[bool]()
    while len(order) < 3:
        taken, turn = await claim.claim(harness.store, seat, 1, turn)
        order += [claimed.background for claimed in taken]
    assert order == [False, True, True]
