"""Hands that are late within the grace: all that they owe is fired in few calls, as if it had been fired in time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID
from zoneinfo import available_timezones

import pytest

from bellringer.bench.herd import register as register_herd
from bellringer.clock import SystemClock
from bellringer.core.jobs import Definition
from bellringer.core.leases import Holding
from bellringer.core.policies import Overlap
from bellringer.engine import freeze as freezing
from bellringer.engine import tick as ticking
from bellringer.engine.freeze import FreezePolicy, FreezeSpec
from bellringer.engine.register import create
from bellringer.engine.skip import skip
from bellringer.engine.tick import MAX_LATE_RUNS_PER_TICK, TickLimits
from bellringer.schedule import cron, every
from bellringer.scheduler.service import Scheduler, SchedulerSettings
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.leases import PostgresLeases

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness

BEHIND = 40  # seconds
CALLS = 15  # for 20,500 runs; one call for each occurrence would be 41, and each waits for those before it


async def _one_schedule(store: Store, _: Catalog) -> None:
    await register_herd(store, 500, 1, await store.now() + timedelta(days=1))
    await store.pool.execute("update schedules set kind = 'every', expression = '1s', anchor = ''")


async def _many_schedules(store: Store, catalog: Catalog) -> None:
    zones = sorted(zone for zone in available_timezones() if "/" in zone)[:300]
    schedules = ((cron("* * * * * *", tz=zone, seconds=True),) for zone in zones)
    wanted = [
        Definition(name=f"job {number}", task="quick", schedules=found, overlap=Overlap.ALLOW)
        for number, found in enumerate(schedules)
    ]
    await create(store, catalog, wanted, tenant_id=1, who="me")


@pytest.mark.parametrize("make", [_one_schedule, _many_schedules])
async def test_40_seconds_of_backlog_are_fired_by_few_calls(
    store: Store, catalog: Catalog, make: Callable[[Store, Catalog], Awaitable[None]]
) -> None:
    await make(store, catalog)
    late = "update cohorts set next_at = date_trunc('second', now()) - make_interval(secs => $1)"
    await store.pool.execute(late, BEHIND)
    await store.pool.execute("update members set active_since = now() - interval '1 hour'")
    began: datetime = await store.pool.fetchval("select min(next_at) from cohorts")
    jobs: int = await store.pool.fetchval("select count(distinct job_id) from members")
    node = Scheduler(store, PostgresLeases(store), SystemClock(), SchedulerSettings(name="late"))
    stop = asyncio.Event()
    running = asyncio.create_task(node.run(stop))
    try:
        await _until(store, "select not exists (select 1 from cohorts where next_at <= now())")
    finally:
        stop.set()
        await running
    seconds = await store.pool.fetch("select scheduled_for, count(*) as runs from runs group by 1 order by 1")
    whole = [row["scheduled_for"] for row in seconds if row["runs"] == jobs]
    assert whole[: BEHIND + 1] == [began + timedelta(seconds=n) for n in range(BEHIND + 1)]
    assert await store.pool.fetchval("select count(*) from gaps") == 0
    calls = "select count(distinct fired_at) from runs where scheduled_for <= $1"  # the time of a transaction
    assert await store.pool.fetchval(calls, began + timedelta(seconds=BEHIND)) <= CALLS


async def _until(store: Store, holds: str) -> None:
    async with asyncio.timeout(60):
        while not await store.pool.fetchval(holds):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_one_call_fires_all_that_a_late_cohort_owes(harness: EngineHarness) -> None:
    job = await harness.job("job", every("10s"))
    await harness.set_clock(harness.after(65))
    ticked = await harness.tick()
    assert (ticked.fired.fired, ticked.fired.cut, ticked.stale) == (6, False, False)
    assert [hand.next_at for hand in ticked.cohorts] == [harness.after(70)]
    assert await harness.fired(job) == [10, 20, 30, 40, 50, 60]
    assert {hand.next_at for hand in await harness.due_cohorts(harness.after(100))} == {harness.after(70)}


@pytest.mark.parametrize("most", [1, 3, 4, 5, 7, 11, 100])
async def test_a_backlog_that_does_not_fit_is_fired_once_each_by_several_calls(
    harness: EngineHarness, most: int
) -> None:
    await harness.share_shard()
    definitions = [harness.definition(f"job {n}", every("10s")) for n in range(4)]
    definitions += [harness.definition(f"other {n}", every("15s")) for n in range(3)]
    jobs = [taken.job_id for taken in await harness.register(*definitions)]
    await harness.set_clock(harness.after(62))
    assert await harness.tick_all(most=most) == 4 * 6 + 3 * 4
    assert [await harness.fired(job) for job in jobs] == [[10, 20, 30, 40, 50, 60]] * 4 + [[15, 30, 45, 60]] * 3


async def test_a_call_whose_answer_was_lost_changes_nothing_when_it_is_repeated(harness: EngineHarness) -> None:
    job = await harness.job("job", every("10s"))
    await harness.set_clock(harness.after(45))
    hands, holding, pace = await harness.due_cohorts(), await harness.hold(), TickLimits(lead=timedelta(0))
    for fired in (4, 0):
        ticked = await ticking.tick(harness.store, harness.catalog, holding, hands, await harness.now(), pace)
        assert (ticked.fired.fired, ticked.stale) == (fired, not fired)
    assert await harness.fired(job) == [10, 20, 30, 40]


async def test_a_cohort_that_another_node_has_moved_a_part_of_the_way_is_left_alone(harness: EngineHarness) -> None:
    job = await harness.job("job", every("10s"))
    await harness.set_clock(harness.after(25))
    old = await harness.due_cohorts()
    await harness.tick()
    await harness.set_clock(harness.after(45))
    holding = await harness.seize()
    ticked = await ticking.tick(
        harness.store, harness.catalog, holding, old, await harness.now(), TickLimits(lead=timedelta(0))
    )
    assert (ticked.fired.fired, ticked.stale) == (0, True)
    assert await harness.tick_all() == 2
    assert await harness.fired(job) == [10, 20, 30, 40]


async def test_an_occurrence_that_exists_in_the_middle_is_passed_over(harness: EngineHarness) -> None:
    job, other = await harness.job("job", every("10s")), await harness.job("other", every("10s"))
    await harness.set_clock(harness.after(45))
    columns = "tenant_id, task_id, revision, shard, pool_id, priority"
    await harness.sql(
        f"insert into runs (job_id, scheduled_for, slot, fired_at, token, cause, initial_state, {columns})"
        f" select job_id, $2, 0, bellringer.now(), 1, 'schedule', 'queued', {columns} from members where job_id = $1",
        job,
        harness.after(30),
    )
    assert await harness.tick_all() == 7
    assert await harness.fired(job) == await harness.fired(other) == [10, 20, 30, 40]


async def test_calls_that_catch_up_are_bounded(harness: EngineHarness) -> None:
    await harness.share_shard()
    await harness.register(*(harness.definition(f"job {n}", every("1s")) for n in range(60)))
    await harness.set_clock(harness.after(59))
    assert 0 < (await harness.tick()).fired.fired <= MAX_LATE_RUNS_PER_TICK


# A series of instants in one call does what a call for each of them does


async def _frozen(harness: EngineHarness, policy: FreezePolicy) -> None:
    wish = FreezeSpec(name="rest", from_at=harness.after(15), to_at=harness.after(45), policy=policy)
    await freezing.freeze(harness.store, wish, await harness.now(), tenant_id=harness.tenant, who="me")


async def _nothing(_: EngineHarness, __: UUID) -> None: ...


async def _busy(harness: EngineHarness, _: UUID) -> None:
    """The first occurrence is unfinished."""
    await harness.set_clock(harness.after(12))
    await harness.tick_all()


async def _defers(harness: EngineHarness, _: UUID) -> None:
    await _frozen(harness, FreezePolicy.DEFER)


async def _skips(harness: EngineHarness, _: UUID) -> None:
    await _frozen(harness, FreezePolicy.SKIP)


async def _collapses(harness: EngineHarness, _: UUID) -> None:
    await _frozen(harness, FreezePolicy.COLLAPSE)


async def _first_skipped(harness: EngineHarness, job: UUID) -> None:
    await skip(harness.store, job, harness.after(10), tenant_id=harness.tenant, who="ada", reason=None)


async def _suspended(harness: EngineHarness, _: UUID) -> None:
    await harness.sql("update tenants set suspended_at = bellringer.now()")


@pytest.mark.parametrize("overlap", list(Overlap))
@pytest.mark.parametrize(
    "prepare", [_nothing, _busy, _defers, _skips, _collapses, _first_skipped, _suspended], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("schedules", [("10s",), ("10s", "15s")], ids=["one", "two"])
async def test_a_series_ends_as_single_instants_do(
    harness: EngineHarness,
    monkeypatch: pytest.MonkeyPatch,
    overlap: Overlap,
    prepare: Callable[[EngineHarness, UUID], Awaitable[None]],
    schedules: tuple[str, ...],
) -> None:
    found = []
    for shard, together in enumerate((True, False)):
        await harness.share_shard(shard)
        job = await harness.job(f"job {shard}", *map(every, schedules), overlap=overlap)
        if prepare is _first_skipped:
            await prepare(harness, job)
        found.append((shard, together, job))
    if prepare is not _first_skipped:
        await prepare(harness, job)  # which concerns both
    await harness.set_clock(harness.after(65))
    holding = await harness.hold() if not harness.holding.tokens else harness.holding
    for shard, together, _ in found:
        with monkeypatch.context() as patch:
            if not together:
                patch.setattr(ticking, "MAX_MOVES_PER_TICK", 0)
            await _fire(harness, Holding(holding.holder, {shard: holding.tokens[shard]}), shard)
    one, other = [await _story(harness, job) for _, _, job in found]
    assert one == other
    assert len(one) >= 6


async def _fire(harness: EngineHarness, holding: Holding, shard: int) -> None:
    pace = TickLimits(lead=timedelta(0))
    while hands := [hand for hand in await harness.due_cohorts() if hand.shard == shard]:
        if not ticking.MAX_MOVES_PER_TICK:  # one instant after the other
            hands = [hand for hand in hands if hand.next_at == hands[0].next_at]
        ticked = await ticking.tick(harness.store, harness.catalog, holding, hands, await harness.now(), pace)
        assert ticked.fired.moved


async def _story(harness: EngineHarness, job: UUID) -> list[Any]:
    """What became of each occurrence."""
    rows = await harness.sql(
        "select extract(epoch from r.scheduled_for - $2) as at, r.initial_state::text, split_part(r.reason, ' ', 1),"
        " q.blocked, a.ends_as::text, a.attempt from runs r left join queue q using (job_id, scheduled_for, slot)"
        " left join attempts a using (job_id, scheduled_for, slot)"
        " where r.job_id = $1 order by r.scheduled_for, r.slot, a.attempt",
        job,
        harness.noon,
    )
    return [tuple(row) for row in rows]
