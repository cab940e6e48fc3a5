"""The objective: what workers tell of their minutes, and what follows from it."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from bellringer.clock import SystemClock
from bellringer.core.tasks import Registry, make_task
from bellringer.engine import explain, objective
from bellringer.engine.prune import Retention, prune
from bellringer.engine.send import SendSpec, send
from bellringer.errors import InvalidInput, NotFound
from bellringer.store import usage
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.usage import WHOLE_POOL_TENANT_ID, PoolMinute, UsageDelta
from bellringer.worker.service import Worker, WorkerSettings

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness

MINUTE = timedelta(minutes=1)
SHORT = 1  # the pool


# Pure


def test_the_budget_is_used_up_by_what_is_late() -> None:
    assert objective.compliance(1000, 1) == 0.999
    assert objective.burn_rate(1000, 1, 0.999) == pytest.approx(1)
    assert objective.budget_left(1000, 1, 0.999) == pytest.approx(0)
    assert objective.budget_left(10_000, 1, 0.999) == pytest.approx(0.9)
    assert objective.budget_left(100, 1, 0.999) == pytest.approx(-9)


def test_where_nothing_was_due_nothing_was_missed() -> None:
    assert objective.compliance(0, 0) is None
    assert (objective.burn_rate(0, 0, 0.999), objective.budget_left(0, 0, 0.999)) == (0, 1)


def test_a_target_of_all_is_missed_by_one() -> None:
    assert objective.budget_left(1000, 0, 1.0) == 1
    assert objective.budget_left(1000, 1, 1.0) < -100


@pytest.mark.parametrize(
    ("own", "others", "slots", "cause", "saturation"),
    [
        (0, 0, 0, "no_worker", None),
        (10, 950, 1000, "full", 0.96),
        (100, 100, 1000, "free", 0.2),
        (5, 0, 4, "full", 1.0),
    ],
)
def test_what_was_in_the_way(own: int, others: int, slots: int, cause: str, saturation: float | None) -> None:
    at = datetime.fromisoformat("2030-01-01T00:00:00Z")
    found = objective.pool_usage(
        PoolMinute(minute=at, pool="short", own_ms=own, others_ms=others, slots_ms=slots, others={})
    )
    assert (found.cause, found.saturation) == (cause, saturation)
    assert found.own + found.others == pytest.approx(1 if own + others else 0)


# With rows


async def tell(harness: EngineHarness, *rows: tuple[float, int, dict[str, int]]) -> None:
    """Rows of minutes before noon, each of a tenant."""
    await usage.add(
        harness.store, [UsageDelta(harness.noon - back * MINUTE, SHORT, who, **more) for back, who, more in rows]
    )


async def test_workers_add_to_the_same_rows(harness: EngineHarness) -> None:
    row = {"started": 3, "late": 1, "busy_ms": 100, "slots_ms": 0}
    await asyncio.gather(
        *(tell(harness, (1, 1, row), (2, 1, row), (1, WHOLE_POOL_TENANT_ID, {"slots_ms": 5})) for _ in range(10))
    )
    rows = await harness.sql("select tenant_id, started, late, busy_ms, slots_ms from usage order by minute, tenant_id")
    assert [tuple(found) for found in rows] == [(1, 30, 10, 1000, 0), (0, 0, 0, 0, 50), (1, 30, 10, 1000, 0)]


async def test_an_objective_is_reported_over_its_window_and_its_burns(harness: EngineHarness) -> None:
    await harness.sql('update tenants set objective = \'{"target": 0.99, "within": 2.5}\'')
    await tell(
        harness,
        (30, 1, {"started": 100, "late": 2}),
        (3 * 60, 1, {"started": 100, "late": 4}),
        (20 * 60, 1, {"started": 300, "late": 0}),
        (5 * 24 * 60, 1, {"started": 500, "late": 1}),
        (40 * 24 * 60, 1, {"started": 500, "late": 500}),
    )
    found = await objective.load_objective(harness.store, 1)
    assert (found.tenant, found.target, found.within) == ("default", 0.99, timedelta(seconds=2.5))
    assert (found.started, found.late) == (1000, 7)
    assert found.compliance == pytest.approx(0.993)
    assert found.budget_left == pytest.approx(0.3)
    assert [(burn.started, burn.late) for burn in found.burns] == [(100, 2), (200, 6), (500, 6)]
    assert [burn.rate for burn in found.burns] == pytest.approx([2.0, 3.0, 1.2])
    day = await objective.load_objective(harness.store, 1, timedelta(hours=24))
    assert (day.started, day.late) == (500, 6)


async def test_the_worst_minutes_say_who_used_the_capacity(harness: EngineHarness) -> None:
    [noisy, other] = await harness.tenants(2)
    await tell(
        harness,
        (5, 1, {"started": 10, "late": 9, "busy_ms": 6_000}),
        (5, noisy, {"started": 900, "busy_ms": 48_000}),
        (5, other, {"started": 9, "busy_ms": 5_000}),
        (5, WHOLE_POOL_TENANT_ID, {"slots_ms": 60_000}),
        (7, 1, {"started": 50, "late": 20}),
        (9, 1, {"started": 50, "late": 1, "busy_ms": 100}),
        (9, WHOLE_POOL_TENANT_ID, {"slots_ms": 60_000}),
        (11, 1, {"started": 50, "busy_ms": 100}),
    )
    found = await objective.load_objective(harness.store, 1)
    assert [(m.at, m.late) for m in found.worst] == [
        (harness.noon - n * MINUTE, late) for n, late in ((7, 20), (5, 9), (9, 1))
    ]
    [[away], [full], [free]] = [minute.pools for minute in found.worst]
    assert (away.cause, away.saturation) == ("no_worker", None)
    assert (full.cause, free.cause) == ("full", "free")
    assert full.saturation == pytest.approx(59 / 60)
    assert [full.own, full.others] == pytest.approx([6 / 59, 53 / 59])
    assert full.named == {}, "others are not named"
    named = await objective.load_objective(harness.store, 1, named=harness.store)
    assert named.worst[1].pools[0].named == {"t1": pytest.approx(48 / 59), "t2": pytest.approx(5 / 59)}


async def test_a_tenants_connection_sees_only_its_own_usage(harness: EngineHarness) -> None:
    [noisy] = await harness.tenants(1)
    await tell(
        harness,
        (5, 1, {"late": 1, "started": 1}),
        (5, noisy, {"busy_ms": 500}),
        (5, WHOLE_POOL_TENANT_ID, {"slots_ms": 600}),
    )
    async with harness.store.pool.acquire() as inside:
        await inside.execute(f"select set_config('bellringer.tenant', '{noisy}', false)")
        with pytest.raises(Exception, match="another tenant"):
            await inside.fetch("select * from usage_around(1, array[now()], false)")
        await inside.execute("select set_config('bellringer.tenant', '1', false)")
        [row] = await inside.fetch("select * from usage_around(1, $1, true)", [harness.noon - 5 * MINUTE])
        await inside.execute("reset bellringer.tenant")
    assert (row["others_ms"], row["names"]) == (500, None)


async def test_a_window_must_be_one_that_is_kept(harness: EngineHarness) -> None:
    for window in (timedelta(days=31), timedelta(seconds=1), timedelta(0)):
        with pytest.raises(InvalidInput):
            await objective.load_objective(harness.store, 1, window)
    with pytest.raises(NotFound):
        await objective.load_objective(harness.store, 999)


async def test_usage_is_forgotten_in_time(harness: EngineHarness) -> None:
    await tell(harness, (31 * 24 * 60, 1, {"started": 1}), (29 * 24 * 60, 1, {"started": 1}))
    await prune(harness.store, await harness.now(), Retention())
    assert await harness.value("select count(*) from usage") == 1


# With a worker


async def test_a_worker_shows_what_it_started_and_what_its_time_went_to(store: Store, catalog: Catalog) -> None:
    await store.pool.execute("insert into tenants (name, objective) values ('strict', '{\"within\": 1}')")
    strict = await store.pool.fetchval("select tenant_id from tenants where name = 'strict'")

    async def nap() -> None:
        await asyncio.sleep(0.2)

    registry = Registry()
    registry.add(make_task(nap, name="nap"))
    await catalog.task_ids(["nap"])
    for tenant in (1, strict):
        for _ in range(3):
            await send(store, catalog, SendSpec(task="nap"), tenant_id=tenant)
    await store.pool.execute("update queue set available_at = now() - interval '3 s'")
    worker = Worker(store, registry, SystemClock(), WorkerSettings(pools={"short": 2}))
    stop = asyncio.Event()
    running = asyncio.create_task(worker.run(stop))
    for _ in range(1200):
        await asyncio.sleep(0.05)
        if not await store.pool.fetchval("select exists (select 1 from queue)"):
            break
    stop.set()
    await running
    rows = await store.pool.fetch(
        "select tenant_id, sum(started)::int as started, sum(late)::int as late, sum(busy_ms)::int as busy,"
        " sum(slots_ms)::int as slots from usage group by 1 order by 1"
    )
    found = {row["tenant_id"]: row for row in rows}
    assert found.keys() == {WHOLE_POOL_TENANT_ID, 1, strict}
    assert found[strict]["started"] == found[1]["started"] == 3
    assert found[strict]["late"] == 3, "three seconds are more than one"
    assert found[1]["late"] <= 3
    assert all(found[tenant]["busy"] >= 550 for tenant in (1, strict))
    assert found[WHOLE_POOL_TENANT_ID]["slots"] >= found[1]["busy"] + found[strict]["busy"]
    assert found[WHOLE_POOL_TENANT_ID]["started"] == 0


# Why


async def test_a_run_of_a_tenant_at_its_cap_says_so(harness: EngineHarness) -> None:
    await harness.sql("update tenants set quotas = '{\"in_flight\": 2}'")
    job = await harness.job("job")
    keys = [await harness.trigger(job) for _ in range(3)]
    seat = await harness.join_worker()
    first = await explain.load_run_explanation(harness.store, keys[0], tenant_id=1)
    assert "tenant_within_cap" in {reason.code for reason in first.reasons if reason.holds == "ok"}
    taken = await harness.claim(seat)
    assert len(taken) == 2
    [waiting] = {*keys} - {claimed.key for claimed in taken}
    reason = (await explain.load_run_explanation(harness.store, waiting, tenant_id=1)).reasons[0]
    assert (reason.code, reason.holds) == ("tenant_in_flight", True)
    assert "2 of at most 2 runs" in reason.text
    await harness.end(seat, taken[:1])
    again = await explain.load_run_explanation(harness.store, waiting, tenant_id=1)
    assert "tenant_in_flight" not in {r.code for r in again.reasons}
