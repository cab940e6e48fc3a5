"""The objective: what workers tell of their minutes, and what follows from it."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from bellringer.clock import SystemClock
from bellringer.errors import InvalidInput, NotFound
from bellringer.lifecycle import explain, objective
from bellringer.lifecycle.prune import Retention, prune
from bellringer.lifecycle.send import Order, send
from bellringer.store import usage
from bellringer.store.names import Names
from bellringer.store.pool import Store
from bellringer.store.usage import POOL, Around, Used
from bellringer.tasks import Registry, task_from
from bellringer.worker.service import Worker, WorkerSettings

if TYPE_CHECKING:
    from tests.lifecycle.conftest import Bench

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
    found = objective.used(Around(minute=at, pool="short", own_ms=own, others_ms=others, slots_ms=slots, others={}))
    assert (found.cause, found.saturation) == (cause, saturation)
    assert found.own + found.others == pytest.approx(1 if own + others else 0)


# With rows


async def tell(bench: Bench, *rows: tuple[float, int, dict[str, int]]) -> None:
    """Rows of minutes before noon, each of a tenant."""
    await usage.add(bench.store, [Used(bench.noon - back * MINUTE, SHORT, who, **more) for back, who, more in rows])


async def test_workers_add_to_the_same_rows(bench: Bench) -> None:
    row = {"started": 3, "late": 1, "busy_ms": 100, "slots_ms": 0}
    await asyncio.gather(*(tell(bench, (1, 1, row), (2, 1, row), (1, POOL, {"slots_ms": 5})) for _ in range(10)))
    rows = await bench.sql("select tenant_id, started, late, busy_ms, slots_ms from usage order by minute, tenant_id")
    assert [tuple(found) for found in rows] == [(1, 30, 10, 1000, 0), (0, 0, 0, 0, 50), (1, 30, 10, 1000, 0)]


async def test_an_objective_is_told_over_its_window_and_its_burns(bench: Bench) -> None:
    await bench.sql('update tenants set objective = \'{"target": 0.99, "within": 2.5}\'')
    await tell(
        bench,
        (30, 1, {"started": 100, "late": 2}),
        (3 * 60, 1, {"started": 100, "late": 4}),
        (20 * 60, 1, {"started": 300, "late": 0}),
        (5 * 24 * 60, 1, {"started": 500, "late": 1}),
        (40 * 24 * 60, 1, {"started": 500, "late": 500}),
    )
    found = await objective.objective(bench.store, 1)
    assert (found.tenant, found.target, found.within) == ("default", 0.99, timedelta(seconds=2.5))
    assert (found.started, found.late) == (1000, 7)
    assert found.compliance == pytest.approx(0.993)
    assert found.budget_left == pytest.approx(0.3)
    assert [(burn.started, burn.late) for burn in found.burns] == [(100, 2), (200, 6), (500, 6)]
    assert [burn.rate for burn in found.burns] == pytest.approx([2.0, 3.0, 1.2])
    day = await objective.objective(bench.store, 1, timedelta(hours=24))
    assert (day.started, day.late) == (500, 6)


async def test_the_worst_minutes_say_who_used_the_capacity(bench: Bench) -> None:
    [noisy, other] = await bench.tenants(2)
    await tell(
        bench,
        (5, 1, {"started": 10, "late": 9, "busy_ms": 6_000}),
        (5, noisy, {"started": 900, "busy_ms": 48_000}),
        (5, other, {"started": 9, "busy_ms": 5_000}),
        (5, POOL, {"slots_ms": 60_000}),
        (7, 1, {"started": 50, "late": 20}),
        (9, 1, {"started": 50, "late": 1, "busy_ms": 100}),
        (9, POOL, {"slots_ms": 60_000}),
        (11, 1, {"started": 50, "busy_ms": 100}),
    )
    found = await objective.objective(bench.store, 1)
    assert [(m.at, m.late) for m in found.worst] == [
        (bench.noon - n * MINUTE, late) for n, late in ((7, 20), (5, 9), (9, 1))
    ]
    [[away], [full], [free]] = [minute.pools for minute in found.worst]
    assert (away.cause, away.saturation) == ("no_worker", None)
    assert (full.cause, free.cause) == ("full", "free")
    assert full.saturation == pytest.approx(59 / 60)
    assert [full.own, full.others] == pytest.approx([6 / 59, 53 / 59])
    assert full.named == {}, "others are not named"
    named = await objective.objective(bench.store, 1, named=bench.store)
    assert named.worst[1].pools[0].named == {"t1": pytest.approx(48 / 59), "t2": pytest.approx(5 / 59)}


async def test_behind_the_walls_only_the_own_usage_is_told(bench: Bench) -> None:
    [noisy] = await bench.tenants(1)
    await tell(bench, (5, 1, {"late": 1, "started": 1}), (5, noisy, {"busy_ms": 500}), (5, POOL, {"slots_ms": 600}))
    async with bench.store.pool.acquire() as inside:
        await inside.execute(f"select set_config('bellringer.tenant', '{noisy}', false)")
        with pytest.raises(Exception, match="another tenant"):
            await inside.fetch("select * from usage_around(1, array[now()], false)")
        await inside.execute("select set_config('bellringer.tenant', '1', false)")
        [row] = await inside.fetch("select * from usage_around(1, $1, true)", [bench.noon - 5 * MINUTE])
        await inside.execute("reset bellringer.tenant")
    assert (row["others_ms"], row["names"]) == (500, None)


async def test_a_window_must_be_one_that_is_kept(bench: Bench) -> None:
    for window in (timedelta(days=31), timedelta(seconds=1), timedelta(0)):
        with pytest.raises(InvalidInput):
            await objective.objective(bench.store, 1, window)
    with pytest.raises(NotFound):
        await objective.objective(bench.store, 999)


async def test_usage_is_forgotten_in_time(bench: Bench) -> None:
    await tell(bench, (31 * 24 * 60, 1, {"started": 1}), (29 * 24 * 60, 1, {"started": 1}))
    await prune(bench.store, await bench.now(), Retention())
    assert await bench.value("select count(*) from usage") == 1


# With a worker


async def test_a_worker_tells_what_it_started_and_what_its_time_went_to(store: Store, names: Names) -> None:
    await store.pool.execute("insert into tenants (name, objective) values ('strict', '{\"within\": 1}')")
    strict = await store.pool.fetchval("select tenant_id from tenants where name = 'strict'")

    async def nap() -> None:
        await asyncio.sleep(0.2)

    registry = Registry()
    registry.add(task_from(nap, name="nap"))
    await names.task_ids(["nap"])
    for tenant in (1, strict):
        for _ in range(3):
            await send(store, names, Order(task="nap"), tenant_id=tenant)
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
    assert found.keys() == {POOL, 1, strict}
    assert found[strict]["started"] == found[1]["started"] == 3
    assert found[strict]["late"] == 3, "three seconds are more than one"
    assert found[1]["late"] <= 3
    assert all(found[tenant]["busy"] >= 550 for tenant in (1, strict))
    assert found[POOL]["slots"] >= found[1]["busy"] + found[strict]["busy"]
    assert found[POOL]["started"] == 0


# Why


async def test_a_run_of_a_tenant_at_its_cap_says_so(bench: Bench) -> None:
    await bench.sql("update tenants set quotas = '{\"in_flight\": 2}'")
    job = await bench.job("job")
    keys = [await bench.trigger(job) for _ in range(3)]
    seat = await bench.seat()
    first = await explain.run(bench.store, keys[0], tenant_id=1)
    assert "tenant_within_cap" in {reason.code for reason in first.reasons if reason.holds == "ok"}
    taken = await bench.claim(seat)
    assert len(taken) == 2
    [waiting] = {*keys} - {claimed.key for claimed in taken}
    reason = (await explain.run(bench.store, waiting, tenant_id=1)).reasons[0]
    assert (reason.code, reason.holds) == ("tenant_in_flight", True)
    assert "2 of the 2 runs" in reason.text
    await bench.end(seat, taken[:1])
    again = await explain.run(bench.store, waiting, tenant_id=1)
    assert "tenant_in_flight" not in {r.code for r in again.reasons}
