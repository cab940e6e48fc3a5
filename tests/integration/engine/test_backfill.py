"""Backfill: the past is worked off behind live work; nothing is lost, nothing is doubled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from bellringer.core.leases import Holding
from bellringer.core.policies import Catchup, Limit, Misfire, Overlap
from bellringer.core.runs import Outcome, State
from bellringer.engine import backfill as step
from bellringer.engine.backfill import (
    BackfillCursor,
    next_instants,
    plan_batches,
    plan_catchup,
    run_backfills,
    runs_allowed,
)
from bellringer.schedule import Schedule, cron, every
from bellringer.store import backfills
from bellringer.store.backfills import BackfillBatch, NewBackfill, OpenBackfill

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness

NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
YEAR = timedelta(days=365)


def an_open(**given: Any) -> OpenBackfill:
    """A backfill of the hour before NOW that nothing holds back."""
    values: dict[str, Any] = {
        "backfill_id": 1,
        "shard": 0,
        "tenant_id": 1,
        "job_id": UUID(int=1),
        "cause": "backfill",
        "state": "running",
        "schedule_ids": (1,),
        "from_at": NOW - timedelta(hours=1),
        "to_at": NOW,
        "cursor": None,
        "newest_first": False,
        "reprocess": "none",
        "parallelism": 10,
        "rate": None,
        "most": None,
        "horizon": None,
        "total": 60,
        "made_at": None,
        "revision": 1,
        "starts_at": None,
        "ends_at": None,
        "overlap": "allow",
        "job_paused": False,
        "job_deleted": False,
        "unfinished": 0,
        "busy": False,
    }
    return OpenBackfill(**{**values, **given})


# What is decided


@pytest.mark.parametrize(
    ("given", "free"),
    [
        ({}, 10),
        ({"unfinished": 7}, 3),
        ({"unfinished": 12}, 0),  # some were redriven
        ({"overlap": "skip"}, 1),
        ({"overlap": "queue", "busy": True}, 0),
        ({"rate": 60.0}, 1),  # the first
        ({"rate": 60.0, "made_at": NOW - 3.4 * SECOND}, 3),
        ({"rate": 60.0, "made_at": NOW - 0.9 * SECOND}, 0),
        ({"rate": 0.5, "made_at": NOW - timedelta(days=1)}, 1),  # what was not used is not made up for
        ({"rate": 6000.0, "made_at": NOW - timedelta(days=1)}, 10),
    ],
)
def test_there_is_room_for_as_many_as_parallelism_overlap_and_rate_allow(given: dict[str, Any], free: int) -> None:
    assert runs_allowed(an_open(**given), NOW) == free


def minutes(instants: Sequence[datetime]) -> list[float]:
    return [(instant - NOW).total_seconds() / 60 for instant in instants]


def test_the_oldest_come_first() -> None:
    b = an_open()
    assert next_instants(b, [every("10m")], 3) == ([NOW - m * timedelta(minutes=10) for m in (6, 5, 4)], False)
    b = replace(b, cursor=NOW - timedelta(minutes=20))
    assert minutes(next_instants(b, [every("10m")], 3)[0]) == [-10]
    assert next_instants(b, [every("10m")], 1)[1]


def test_the_newest_come_first_if_that_is_wanted() -> None:
    b = an_open(newest_first=True)
    found, ends = next_instants(b, [every("10m")], 3)
    assert (minutes(found), ends) == ([-10, -20, -30], False)
    found, ends = next_instants(replace(b, cursor=found[-1]), [every("10m")], 3)
    assert (minutes(found), ends) == ([-40, -50, -60], True)


@pytest.mark.parametrize("newest_first", [False, True])
def test_schedules_that_fire_together_name_one_occurrence(newest_first: bool) -> None:
    b = an_open(newest_first=newest_first)
    schedules: list[Schedule] = [every("20m"), every("30m"), cron("*/20 * * * *")]
    found, ends = next_instants(b, schedules, 100)
    assert sorted(minutes(found)) == [-60, -40, -30, -20]
    assert ends
    assert found == sorted(found, reverse=newest_first)


def test_a_job_has_no_occurrences_before_it_starts_or_after_it_ends() -> None:
    bounds = {"starts_at": NOW - timedelta(minutes=40), "ends_at": NOW - timedelta(minutes=20)}
    for newest_first in (False, True):
        found, _ = next_instants(an_open(newest_first=newest_first, **bounds), [every("10m")], 100)
        assert sorted(minutes(found)) == [-40, -30, -20]


@pytest.mark.parametrize(
    "schedule",
    [
        every("7m"),
        cron("*/10 * * * *"),
        cron("30 2 * * *", tz="Europe/Berlin"),
        cron("0 9 * * MON-FRI", tz="America/New_York"),
    ],
)
@pytest.mark.parametrize("most", [1, 2, 17])
def test_a_catchup_starts_where_the_latest_most_are_left(schedule: Schedule, most: int) -> None:
    start, end = NOW - timedelta(days=120), NOW - timedelta(hours=3)
    everything = list(schedule.between(start - timedelta(microseconds=1), end - timedelta(microseconds=1)))
    found = plan_catchup(schedule, start, end, NOW, limit=most)
    assert found.start == everything[-most]
    assert (found.total, found.cut) == (most, len(everything) - most)


def test_a_catchup_is_not_older_than_its_horizon() -> None:
    found = plan_catchup(every("1m"), NOW - timedelta(hours=3), NOW, NOW, limit=1000, horizon=timedelta(hours=1))
    assert (found.start, found.total, found.cut) == (NOW - timedelta(hours=1), 60, 120)


def test_a_catchup_that_is_wanted_whole_is_left_as_it_is() -> None:
    start = NOW - timedelta(seconds=3601)
    found = plan_catchup(every("1m"), start, NOW, NOW, limit=60, horizon=timedelta(hours=2))
    assert (found.start, found.total, found.cut) == (start, 60, 0)
    found = plan_catchup(every("1m"), start, NOW, NOW + YEAR, limit=60, horizon=timedelta(hours=2))
    assert (found.start, found.total, found.cut) == (NOW, 0, 60)


@pytest.mark.parametrize("schedule", [every("1s"), cron("* * * * * *", seconds=True, tz="Europe/Berlin")])
def test_a_year_of_seconds_is_planned_in_milliseconds(schedule: Schedule) -> None:
    began = time.perf_counter()
    found = plan_catchup(schedule, NOW - YEAR, NOW, NOW, limit=100)
    instants, _ = next_instants(an_open(from_at=found.start), [schedule], 100)
    spent = time.perf_counter() - began
    assert (found.start, found.total, found.cut) == (NOW - 100 * SECOND, 100, 365 * 86_400 - 100)
    assert instants == [NOW - n * SECOND for n in range(100, 0, -1)]
    assert spent < 0.25


def test_one_call_takes_what_is_bounded_and_no_more() -> None:
    many = [an_open(backfill_id=n, parallelism=30) for n in range(300)]
    fillings, full = plan_batches(many, {1: every("1m")}, NOW)
    assert full
    assert sum(f.max_runs for f in fillings) <= step.MAX_RUNS_PER_PASS
    assert sum(len(f.instants) for f in fillings) <= step.MAX_INSTANTS_PER_PASS
    assert len(fillings) <= step.MAX_BACKFILLS_PER_PASS
    few, full = plan_batches(many[:3], {1: every("1m")}, NOW)
    assert ([f.backfill.backfill_id for f in few], full) == ([0, 1, 2], False)


def test_one_call_touches_few_days() -> None:
    daily = an_open(from_at=NOW - YEAR, parallelism=1000)
    other = replace(daily, backfill_id=2)
    [filling], full = plan_batches([daily, other], {1: every("1d")}, NOW)
    assert full
    assert (len(filling.instants), filling.is_last) == (step.MAX_DAYS_PER_PASS, False)


def test_a_schedule_that_cannot_be_read_here_is_left_to_others() -> None:
    assert plan_batches([an_open(schedule_ids=(1, 2))], {1: every("1m")}, NOW) == ([], False)


# What is done


async def job_of(harness: EngineHarness, *schedules: Schedule, **more: Any) -> UUID:
    """A job that strikes every ten seconds and may overlap; born at noon, so all before is its past."""
    return await harness.job("job", *(schedules or (every("10s"),)), **{"overlap": Overlap.ALLOW, **more})


async def ask(harness: EngineHarness, job_id: UUID, start: float = -60, end: float = 0, **given: Any) -> int:
    """A backfill of so many seconds around noon."""
    values: dict[str, Any] = {"newest_first": False, "reprocess": "none", "parallelism": 100, "rate": None, "total": 6}
    job = await harness.read(job_id)
    asked = NewBackfill(
        job_id=job_id,
        revision=job.revision,
        from_at=harness.after(start),
        to_at=harness.after(end),
        **{**values, **given},
    )
    number = await backfills.create(harness.store, asked, harness.tenant, "me")
    assert number is not None
    return number


async def miss(harness: EngineHarness, job_id: UUID, start: float = -60, end: float = 0, **given: Any) -> int:
    """A catch-up, as a jump leaves it."""
    values: dict[str, Any] = {"parallelism": 100, "rate": None, "most": 100, "horizon": timedelta(days=7), **given}
    number: int = await harness.value(
        "insert into backfills (tenant_id, job_id, shard, cause, schedule_id, from_at, to_at, parallelism, rate, most,"
        " horizon, newest_first, who, created_at)"
        " select tenant_id, job_id, shard, 'catchup', schedule_ids[1], $2, $3, $4, $5, $6, $7, $8, 'misfire', now()"
        " from jobs where job_id = $1 returning backfill_id",
        job_id,
        harness.after(start),
        harness.after(end),
        values["parallelism"],
        values["rate"],
        values["most"],
        values["horizon"],
        given.get("newest_first", False),
    )
    return number


async def work(harness: EngineHarness, holding: Holding | None = None) -> int:
    """One pass."""
    if holding is None:
        holding = harness.holding if harness.holding.tokens else await harness.hold()
    return await run_backfills(harness.store, harness.catalog, holding, await harness.now())


async def finish(harness: EngineHarness, seat: Any, **ending: Any) -> list[float]:
    """End all that is ready; answers for when it was scheduled."""
    claimed = await harness.claim(seat)
    await harness.end(seat, claimed, **ending)
    return sorted(harness.seconds(c.key.scheduled_for) for c in claimed)


async def born(harness: EngineHarness, number: int) -> list[float]:
    rows = await harness.sql(
        "select r.scheduled_for from runs r join backfills b using (job_id)"
        " where b.backfill_id = $1 and r.slot = slot_of(b) and r.cause = b.cause order by 1",
        number,
    )
    return [harness.seconds(row[0]) for row in rows]


async def told(harness: EngineHarness, number: int) -> tuple[str, int, int]:
    """Its state, the runs that it made, and the occurrences that it passed over."""
    row = (await harness.sql("select state, made, passed from backfills where backfill_id = $1", number))[0]
    return row["state"], row["made"], row["passed"]


ALL = [-60, -50, -40, -30, -20, -10]


async def test_a_backfill_makes_a_run_of_every_occurrence_behind_live_work(harness: EngineHarness) -> None:
    job_id = await job_of(harness, priority=7, max_concurrency=3, limit=None)
    number = await ask(harness, job_id)
    assert await work(harness) == 6
    assert await born(harness, number) == ALL
    assert await told(harness, number) == ("done", 6, 0)
    rows = await harness.sql(
        "select q.*, r.priority as lane, r.token from queue q join runs r using (job_id, slot, scheduled_for)"
    )
    assert {(row["slot"], row["cause"], row["priority"], row["lane"], row["available_at"]) for row in rows} == {
        ((1 << 40) + number, "backfill", -3, -3, harness.noon)
    }
    assert all(row["late_at"] is None and row["spec"] is None and row["token"] > 0 for row in rows)
    assert await work(harness) == 0


async def test_runs_with_a_limit_are_claimed_the_way_of_the_limited(harness: EngineHarness) -> None:
    job_id = await job_of(harness, limit=Limit("bank", 2))
    await ask(harness, job_id)
    await work(harness)
    rows = await harness.sql(
        "select distinct q.blocked, q.key_id = j.key_id as same from queue q join jobs j using (job_id)"
    )
    assert [(row["blocked"], row["same"]) for row in rows] == [(32, True)]


async def test_no_more_than_its_parallelism_are_unfinished(harness: EngineHarness) -> None:
    job_id = await job_of(harness)
    seat = await harness.join_worker()
    number = await ask(harness, job_id, parallelism=2)
    assert await work(harness) == 2
    assert await work(harness) == 0
    claimed = await harness.claim(seat)
    assert await work(harness) == 0
    await harness.fail(seat, claimed[:1])  # it waits for its next attempt: it is still unfinished
    await harness.end(seat, claimed[1:])
    assert await work(harness) == 1
    assert await born(harness, number) == ALL[:3]


async def test_the_newest_first(harness: EngineHarness) -> None:
    job_id = await job_of(harness)
    seat = await harness.join_worker()
    number = await ask(harness, job_id, parallelism=2, newest_first=True)
    order = []
    for _ in range(3):
        assert await work(harness) == 2
        order += sorted(await finish(harness, seat), reverse=True)
    assert order == ALL[::-1]
    assert await told(harness, number) == ("done", 6, 0)


@pytest.mark.parametrize("overlap", [Overlap.SKIP, Overlap.QUEUE])
async def test_a_job_whose_runs_may_not_overlap_gets_one_at_a_time(harness: EngineHarness, overlap: Overlap) -> None:
    job_id = await job_of(harness, overlap=overlap)
    seat = await harness.join_worker()
    first, second = await ask(harness, job_id), await ask(harness, job_id)
    assert await work(harness) == 1  # of both together
    assert await work(harness) == 0
    assert await finish(harness, seat) == [-60]
    await harness.trigger(job_id)
    assert await work(harness) == 0  # while any run of the job is unfinished
    await finish(harness, seat)
    assert await work(harness) == 1
    made = [(await told(harness, number))[1] for number in (first, second)]
    assert sum(made) == 2


async def test_a_run_that_a_tick_makes_meanwhile_comes_first(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look and the write the job's own time has come."""
    job_id = await job_of(harness, overlap=Overlap.SKIP)
    number = await ask(harness, job_id)
    await harness.pass_time(10)
    await harness.hold()
    ensure = backfills.ensure_days_uncached

    async def late(*given: Any) -> None:
        await ensure(*given)
        assert await harness.tick_all() == 1

    monkeypatch.setattr(backfills, "ensure_days_uncached", late)
    assert await work(harness) == 0
    assert await told(harness, number) == ("running", 0, 0)
    assert await harness.queued(job_id) == [10]


async def test_no_more_a_minute_than_its_rate(harness: EngineHarness) -> None:
    job_id = await job_of(harness)
    number = await ask(harness, job_id, -3600, 0, rate=60.0, total=360)
    made = []
    for _ in range(40):
        made.append(await work(harness))
        await harness.pass_time(0.7)
    assert made[0] == 1
    assert max(made) == 1
    assert 26 <= sum(made) <= 29  # 28 seconds
    await harness.pass_time(3600)
    assert await work(harness) == 10  # an hour without passes is not made up for
    assert await told(harness, number) == ("running", sum(made) + 10, 0)


async def test_a_pause_holds_and_a_resume_goes_on(harness: EngineHarness) -> None:
    job_id = await job_of(harness)
    seat = await harness.join_worker()
    number = await ask(harness, job_id, parallelism=2)
    await work(harness)
    assert await backfills.pause(harness.store, number, harness.tenant)
    assert not await backfills.pause(harness.store, number, harness.tenant)
    await finish(harness, seat)
    assert await work(harness) == 0
    assert await backfills.resume(harness.store, number, harness.tenant)
    assert await work(harness) == 2
    assert await born(harness, number) == ALL[:4]


async def test_the_job_s_pause_holds_it_too(harness: EngineHarness) -> None:
    job_id = await job_of(harness)
    number = await ask(harness, job_id)
    await harness.pause(job_id)
    assert await work(harness) == 0
    await harness.resume(job_id)
    assert await work(harness) == 6
    assert await told(harness, number) == ("done", 6, 0)


async def test_a_pause_between_look_and_write_is_heeded(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await job_of(harness)
    number = await ask(harness, job_id)
    ensure = backfills.ensure_days_uncached

    async def late(*given: Any) -> None:
        await ensure(*given)
        await harness.pause(job_id)

    monkeypatch.setattr(backfills, "ensure_days_uncached", late)
    assert await work(harness) == 0
    assert await told(harness, number) == ("running", 0, 0)


async def test_a_change_between_look_and_write_is_heeded(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await job_of(harness)
    number = await ask(harness, job_id)
    ensure = backfills.ensure_days_uncached

    async def late(*given: Any) -> None:
        await ensure(*given)
        await harness.change(job_id, harness.definition("job", every("30s"), overlap=Overlap.ALLOW))

    with monkeypatch.context() as m:
        m.setattr(backfills, "ensure_days_uncached", late)
        assert await work(harness) == 0
    assert await work(harness) == 2
    assert await born(harness, number) == [-60, -30]


async def test_cancelled_it_makes_no_more_and_what_waits_ends(harness: EngineHarness) -> None:
    job_id = await job_of(harness)
    seat = await harness.join_worker()
    number = await ask(harness, job_id, parallelism=3)
    await work(harness)
    running = (await harness.claim(seat, 1))[0]
    assert await backfills.end(harness.store, number, harness.tenant, "cancelled", "wrong day") == "running"
    assert await backfills.end(harness.store, number, harness.tenant, "cancelled", "again") == "cancelled"
    assert await work(harness) == 0
    assert await harness.queued(job_id) == [harness.seconds(running.key.scheduled_for)]
    assert not await harness.value("select cancel_requested from queue")
    waited = [harness.key(job_id, at, (1 << 40) + number) for at in ALL[:3]]
    assert sorted([await harness.state(key) for key in waited]) == ["cancelled", "cancelled", "running"]
    assert await harness.gaps(job_id) == []  # a backfill's occurrences are not owed to anybody
    assert await harness.value("select why from backfills") == "wrong day"


@pytest.mark.parametrize(
    ("reprocess", "made"),
    [("none", [-60, -50, -10]), ("failed", [-60, -50]), ("all", ALL)],
)
async def test_which_occurrences_are_run_again(harness: EngineHarness, reprocess: str, made: list[float]) -> None:
    """-60 is dead, -50 cancelled, -40 succeeded, -30 succeeded after it was redriven, -20 runs, -10 never ran."""
    job_id = await job_of(harness)
    seat = await harness.join_worker()
    await ask(harness, job_id, -60, -10, total=5)
    await work(harness)
    taken = {harness.seconds(c.key.scheduled_for): c for c in await harness.claim(seat)}
    for at in (-60, -30):
        await harness.fail(seat, taken[at], lineage=["ResultNotStorable"])
    await harness.end(seat, taken[-50], outcome=Outcome.CANCELLED)
    await harness.end(seat, taken[-40])
    await harness.redrive(taken[-30].key)
    await finish(harness, seat)
    assert await harness.state(taken[-60].key) is State.DEAD
    number = await ask(harness, job_id, reprocess=reprocess)
    await work(harness)
    assert await born(harness, number) == made
    assert await told(harness, number) == ("done", len(made), 6 - len(made))


async def test_what_needs_no_run_is_passed_over_without_waiting_for_room(harness: EngineHarness) -> None:
    job_id = await job_of(harness)
    seat = await harness.join_worker()
    await ask(harness, job_id, -100, -30, total=7)
    await work(harness)
    await finish(harness, seat)
    number = await ask(harness, job_id, -100, 0, parallelism=1, total=10)
    assert await work(harness) == 1
    assert await born(harness, number) == [-30]
    assert await told(harness, number) == ("running", 1, 7)


async def test_the_longer_nothing_needs_a_run_the_farther_it_looks(harness: EngineHarness) -> None:
    """Two hours that ran already, of a job that strikes every second."""
    job_id = await job_of(harness, every("1s"))
    await harness.sql(
        "insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, shard, pool_id, priority,"
        " cause, initial_state) select job_id, $1::timestamptz - n * interval '1 second', 0, now(), 0, 1,"
        " task_id, shard,"
        " pool_id, 5, 'schedule', 'queued' from jobs, generate_series(1, 7200) n",
        harness.noon,
    )
    number = await miss(harness, job_id, -7200, 0, most=10_000)
    holding, turn, now = await harness.hold(), BackfillCursor(), await harness.now()
    passes = 0
    while passes == 0 or turn.more:
        assert await run_backfills(harness.store, harness.catalog, holding, now, turn) == 0
        passes += 1
    assert await told(harness, number) == ("done", 0, 7200)
    assert passes <= 10


async def test_two_backfills_of_one_range_do_the_work_once(harness: EngineHarness) -> None:
    job_id = await job_of(harness)
    first = await ask(harness, job_id, parallelism=3)
    await work(harness)
    second = await ask(harness, job_id)
    for _ in range(2):
        await work(harness)
    assert await born(harness, first) == ALL[:3]
    assert await born(harness, second) == ALL[3:]


async def test_the_job_s_deletion_ends_it(harness: EngineHarness) -> None:
    job_id = await job_of(harness)
    running, paused = await ask(harness, job_id, parallelism=2), await ask(harness, job_id)
    await backfills.pause(harness.store, paused, harness.tenant)
    await work(harness)
    await harness.retire(job_id)
    assert await work(harness) == 0
    assert await told(harness, running) == ("cancelled", 2, 0)
    assert await told(harness, paused) == ("cancelled", 0, 0)


async def test_a_change_of_the_schedule_holds_for_what_is_left(harness: EngineHarness) -> None:
    job_id = await job_of(harness)
    seat = await harness.join_worker()
    number = await ask(harness, job_id, parallelism=2)
    await work(harness)
    await harness.change(job_id, harness.definition("job", every("20s"), overlap=Overlap.ALLOW))
    await finish(harness, seat)
    assert await work(harness) == 2
    assert await born(harness, number) == [-60, -50, -40, -20]
    assert (await told(harness, number))[0] == "done"


# Catch-ups


async def test_a_catchup_runs_the_schedule_s_own_occurrences(harness: EngineHarness) -> None:
    job_id = await job_of(harness)
    number = await miss(harness, job_id)
    assert await work(harness) == 6
    assert await harness.fired(job_id) == ALL
    assert {row[0] for row in await harness.sql("select distinct cause from runs")} == {"catchup"}
    assert await told(harness, number) == ("done", 6, 0)
    assert await harness.gaps(job_id) == []


@pytest.mark.parametrize("newest_first", [False, True])
async def test_what_a_catchup_cuts_off_is_one_gap(harness: EngineHarness, newest_first: bool) -> None:
    job_id = await job_of(harness)
    number = await miss(harness, job_id, -1000, 0, most=3, newest_first=newest_first)
    assert await work(harness) == 3
    assert await harness.fired(job_id) == ALL[3:]
    [gap] = await harness.sql("select * from gaps")
    assert (harness.seconds(gap["from_at"]), harness.seconds(gap["to_at"])) == (-1000, -30)
    assert (gap["count"], gap["reason"]) == (97, "misfire")
    assert gap["schedule_id"] == await harness.value("select schedule_ids[1] from jobs")
    assert await harness.value("select total from backfills where backfill_id = $1", number) == 3
    assert await told(harness, number) == ("done", 3, 0)


async def test_a_catchup_of_which_nothing_is_left_is_done(harness: EngineHarness) -> None:
    job_id = await job_of(harness)
    number = await miss(harness, job_id, horizon=timedelta(0))
    assert await work(harness) == 0
    assert await told(harness, number) == ("done", 0, 0)
    assert [(gap["from_at"], gap["to_at"], gap["count"]) for gap in await harness.gaps(job_id)] == [(-60, 0, 6)]


async def test_an_occurrence_that_has_its_run_is_not_caught_up_with(harness: EngineHarness) -> None:
    job_id = await job_of(harness)
    await miss(harness, job_id, -60, -30)
    await work(harness)
    number = await miss(harness, job_id)
    assert await work(harness) == 3
    assert await told(harness, number) == ("done", 3, 3)


@pytest.mark.parametrize(("newest_first", "left"), [(False, (-40 + 1e-6, 0)), (True, (-60, -20))])
async def test_what_is_left_of_a_cancelled_catchup_is_a_gap(
    harness: EngineHarness, newest_first: bool, left: tuple[float, float]
) -> None:
    job_id = await job_of(harness)
    count = 3 if not newest_first else 2
    number = await miss(harness, job_id, parallelism=count, newest_first=newest_first)
    await work(harness)
    await backfills.end(harness.store, number, harness.tenant, "cancelled", None)
    [gap] = await harness.gaps(job_id)
    assert (gap["from_at"], gap["to_at"]) == left
    assert (gap["count"], gap["reason"]) == (6 - count, "cancelled")
    assert {await harness.state(harness.key(job_id, at)) for at in (await harness.fired(job_id))} == {State.CANCELLED}


async def test_the_job_s_deletion_leaves_a_gap_of_its_catchup(harness: EngineHarness) -> None:
    job_id = await job_of(harness)
    started, unseen = await miss(harness, job_id, parallelism=2), await miss(harness, job_id, -200, -100)
    await harness.sql("update backfills set state = 'paused' where backfill_id = $1", unseen)
    await work(harness)
    await harness.retire(job_id)
    await work(harness)
    found = {(gap["from_at"], gap["to_at"], gap["count"], gap["reason"]) for gap in await harness.gaps(job_id)}
    assert found == {(-50 + 1e-6, 0, 4, "deleted"), (-200, -100, None, "deleted")}
    assert (await told(harness, started))[0] == (await told(harness, unseen))[0] == "cancelled"


async def test_a_year_of_seconds_is_caught_up_with_in_milliseconds(harness: EngineHarness) -> None:
    job_id = await job_of(harness, cron("* * * * * *", seconds=True))
    await harness.hold()
    await miss(harness, job_id, -365 * 86_400, 0, horizon=None)
    began = time.perf_counter()
    assert await work(harness) == 100
    assert time.perf_counter() - began < 1.0
    [gap] = await harness.gaps(job_id)
    assert gap["count"] == 365 * 86_400 - 100


@pytest.mark.parametrize("most", [1000, 50])
async def test_after_an_outage_every_occurrence_has_its_run_or_its_gap(harness: EngineHarness, most: int) -> None:
    """An hour without schedulers: the latest occurrence is fired as always, those before it are caught up with."""
    job_id = await job_of(harness, misfire=Misfire.FIRE_ALL, catchup=Catchup(most=most))
    seat = await harness.join_worker()
    now = await harness.pass_time(3605)
    assert await harness.tick_all() == 1
    assert await harness.verify(now) != []  # they are owed, and have neither yet
    ran: list[float] = []
    for _ in range(200):
        ran += await finish(harness, seat)
        if not await work(harness):
            break
    assert sorted(ran) == list(range(3600 - min(most, 359) * 10, 3601, 10))
    assert await harness.verify(now) == []
    assert await harness.fired(job_id) == sorted(ran)


# Races


async def test_a_node_that_lost_its_shards_fills_nothing(harness: EngineHarness) -> None:
    job_id = await job_of(harness)
    number = await ask(harness, job_id)
    caught = await miss(harness, job_id, -1000, 0, most=3)
    stale = await harness.hold()
    await harness.seize()
    assert await work(harness, stale) == 0
    assert await told(harness, number) == ("running", 0, 0)
    assert await harness.value("select total from backfills where backfill_id = $1", caught) is None
    assert await harness.gaps(job_id) == []
    assert await work(harness) == 9


async def test_two_nodes_at_once_make_each_run_once(harness: EngineHarness) -> None:
    """The same decision is written twice, as if by two nodes that both believe in their lease."""
    job_id = await job_of(harness)
    number = await ask(harness, job_id, parallelism=3)
    holding = await harness.hold()
    [found] = await backfills.list_open(harness.store, sorted(holding.tokens), 0, 10)
    instants, ends = next_instants(found, [every("10s")], 3)
    await backfills.ensure_days_uncached(harness.store, {i.date() for i in instants})
    filling = [BackfillBatch(backfill=found, max_runs=3, instants=instants, is_last=ends)]
    made = await asyncio.gather(*(backfills.create_runs(harness.store, holding, filling) for _ in range(4)))
    assert sorted(filled.created for filled in made) == [0, 0, 0, 3]
    assert await told(harness, number) == ("running", 3, 0)


@pytest.mark.parametrize("statement", ["list_open", "save_catchup_ranges", "ensure_days_uncached", "create_runs"])
@pytest.mark.parametrize("after", [False, True])
async def test_killed_between_any_two_statements_it_loses_and_doubles_nothing(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch, statement: str, after: bool
) -> None:
    job_id = await job_of(harness)
    seat = await harness.join_worker()
    caught = await miss(harness, job_id, -1000, 0, most=6, parallelism=4)
    real = getattr(backfills, statement)

    async def deadly(*given: Any) -> Any:
        if after:
            await real(*given)
        raise KeyboardInterrupt

    ran: list[float] = []
    for kills in (True, False, True, False, False):
        with monkeypatch.context() as m:
            if kills:
                m.setattr(backfills, statement, deadly)
            try:
                await work(harness)
            except KeyboardInterrupt:
                await harness.seize()  # another node goes on
        ran += await finish(harness, seat)
    assert sorted(ran) == ALL
    assert await told(harness, caught) == ("done", 6, 0)
    assert [gap["count"] for gap in await harness.gaps(job_id)] == [94]


async def test_many_nodes_and_workers_do_everything_once(harness: EngineHarness) -> None:
    job_id = await job_of(harness, every("1s"))
    await harness.hold()
    number = await ask(harness, job_id, -600, 0, parallelism=7, total=600)
    seats = [await harness.join_worker() for _ in range(2)]
    ran: list[float] = []

    async def node() -> None:
        while (await told(harness, number))[0] == "running":
            await work(harness)

    async def worker(seat: Any) -> None:
        while len(ran) < 600:
            ran.extend(await finish(harness, seat))
            await asyncio.sleep(0.001)

    async with asyncio.timeout(60):
        await asyncio.gather(node(), node(), *(worker(seat) for seat in seats))
    assert sorted(ran) == list(range(-600, 0))
    assert await told(harness, number) == ("done", 600, 0)


async def test_each_has_its_turn(harness: EngineHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass takes only so many; the next goes on behind the last one that was served."""
    monkeypatch.setattr(step, "MAX_BACKFILLS_PER_PASS", 2)
    jobs = [await harness.job(f"job {n}", every("10s"), overlap=Overlap.ALLOW) for n in range(5)]
    numbers = [await ask(harness, job_id, parallelism=1) for job_id in jobs]
    holding, turn, now = await harness.hold(), BackfillCursor(), await harness.now()
    for _ in range(3):
        await run_backfills(harness.store, harness.catalog, holding, now, turn)
    assert [(await told(harness, number))[1] for number in numbers] == [1] * 5


async def test_days_past_retention_are_made_again_for_it(harness: EngineHarness) -> None:
    """A day of the past that was dropped, and that this process remembers to have made."""
    job_id = await job_of(harness, every("1d"))
    await harness.sql("update cluster set made_at = made_at - interval '90 days'")
    await harness.sql("alter table runs detach partition runs_past")
    await harness.sql("alter table attempts detach partition attempts_past")
    await harness.sql("alter table logs detach partition logs_past")
    days = 86_400
    number = await ask(harness, job_id, -40 * days, 0, parallelism=1000, total=40)
    made = [await work(harness) for _ in range(4)]
    assert made == [16, 16, 8, 0]
    assert await told(harness, number) == ("done", 40, 0)
    for parent in ("runs", "attempts", "logs"):
        day = (harness.noon - timedelta(days=30)).strftime("%Y%m%d")
        await harness.sql(f"drop table {parent}_{day}")
    again = await ask(harness, job_id, -31 * days, -29 * days, reprocess="all", total=2)
    assert await work(harness) == 2
    assert await told(harness, again) == ("done", 2, 0)


async def test_the_steps_of_the_cursor_leave_no_occurrence_out(harness: EngineHarness) -> None:
    job_id = await job_of(harness, cron("*/7 * * * * *", seconds=True), every("11s"))
    seat = await harness.join_worker()
    expected = [at for at in range(-300, 0) if at % 60 % 7 == 0 or (harness.after(at).timestamp() % 11) == 0]
    number = await ask(harness, job_id, -300, 0, parallelism=3, total=len(expected))
    ran: list[float] = []
    for _ in range(100):
        if not await work(harness):
            break
        ran += await finish(harness, seat)
    assert ran == expected
    assert all(a < b for a, b in pairwise(ran))
    assert await told(harness, number) == ("done", len(expected), 0)
