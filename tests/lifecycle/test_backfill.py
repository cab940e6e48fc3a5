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

from bellringer.leases import Holding
from bellringer.lifecycle import backfill as step
from bellringer.lifecycle.backfill import Turn, backfill, next_instants, plan, plan_catchup, room
from bellringer.policies import Catchup, Limit, Misfire, Overlap
from bellringer.runs import Outcome, State
from bellringer.schedule import Schedule, cron, every
from bellringer.store import backfills
from bellringer.store.backfills import Asked, Filling, Open

if TYPE_CHECKING:
    from tests.lifecycle.conftest import Bench

NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
YEAR = timedelta(days=365)


def an_open(**given: Any) -> Open:
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
    return Open(**{**values, **given})


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
    assert room(an_open(**given), NOW) == free


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
def test_schedules_that_strike_together_name_one_occurrence(newest_first: bool) -> None:
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
    found = plan_catchup(schedule, start, end, NOW, most=most)
    assert found.start == everything[-most]
    assert (found.total, found.cut) == (most, len(everything) - most)


def test_a_catchup_is_not_older_than_its_horizon() -> None:
    found = plan_catchup(every("1m"), NOW - timedelta(hours=3), NOW, NOW, most=1000, horizon=timedelta(hours=1))
    assert (found.start, found.total, found.cut) == (NOW - timedelta(hours=1), 60, 120)


def test_a_catchup_that_is_wanted_whole_is_left_as_it_is() -> None:
    start = NOW - timedelta(seconds=3601)
    found = plan_catchup(every("1m"), start, NOW, NOW, most=60, horizon=timedelta(hours=2))
    assert (found.start, found.total, found.cut) == (start, 60, 0)
    found = plan_catchup(every("1m"), start, NOW, NOW + YEAR, most=60, horizon=timedelta(hours=2))
    assert (found.start, found.total, found.cut) == (NOW, 0, 60)


@pytest.mark.parametrize("schedule", [every("1s"), cron("* * * * * *", seconds=True, tz="Europe/Berlin")])
def test_a_year_of_seconds_is_planned_in_milliseconds(schedule: Schedule) -> None:
    began = time.perf_counter()
    found = plan_catchup(schedule, NOW - YEAR, NOW, NOW, most=100)
    instants, _ = next_instants(an_open(from_at=found.start), [schedule], 100)
    spent = time.perf_counter() - began
    assert (found.start, found.total, found.cut) == (NOW - 100 * SECOND, 100, 365 * 86_400 - 100)
    assert instants == [NOW - n * SECOND for n in range(100, 0, -1)]
    assert spent < 0.25


def test_one_call_takes_what_is_bounded_and_no_more() -> None:
    many = [an_open(backfill_id=n, parallelism=30) for n in range(300)]
    fillings, full = plan(many, {1: every("1m")}, NOW)
    assert full
    assert sum(f.room for f in fillings) <= step.MOST_RUNS
    assert sum(len(f.instants) for f in fillings) <= step.MOST_SEEN
    assert len(fillings) <= step.MOST_FILLED
    few, full = plan(many[:3], {1: every("1m")}, NOW)
    assert ([f.backfill.backfill_id for f in few], full) == ([0, 1, 2], False)


def test_one_call_touches_few_days() -> None:
    daily = an_open(from_at=NOW - YEAR, parallelism=1000)
    other = replace(daily, backfill_id=2)
    [filling], full = plan([daily, other], {1: every("1d")}, NOW)
    assert full
    assert (len(filling.instants), filling.ends) == (step.MOST_DAYS, False)


def test_a_schedule_that_cannot_be_read_here_is_left_to_others() -> None:
    assert plan([an_open(schedule_ids=(1, 2))], {1: every("1m")}, NOW) == ([], False)


# What is done


async def job_of(bench: Bench, *schedules: Schedule, **more: Any) -> UUID:
    """A job that strikes every ten seconds and may overlap; born at noon, so all before is its past."""
    return await bench.job("job", *(schedules or (every("10s"),)), **{"overlap": Overlap.ALLOW, **more})


async def ask(bench: Bench, job_id: UUID, start: float = -60, end: float = 0, **given: Any) -> int:
    """A backfill of so many seconds around noon."""
    values: dict[str, Any] = {"newest_first": False, "reprocess": "none", "parallelism": 100, "rate": None, "total": 6}
    job = await bench.read(job_id)
    asked = Asked(
        job_id=job_id,
        revision=job.revision,
        from_at=bench.after(start),
        to_at=bench.after(end),
        **{**values, **given},
    )
    number = await backfills.create(bench.store, asked, bench.tenant, "me")
    assert number is not None
    return number


async def miss(bench: Bench, job_id: UUID, start: float = -60, end: float = 0, **given: Any) -> int:
    """A catch-up, as a jump leaves it."""
    values: dict[str, Any] = {"parallelism": 100, "rate": None, "most": 100, "horizon": timedelta(days=7), **given}
    number: int = await bench.value(
        "insert into backfills (tenant_id, job_id, shard, cause, schedule_id, from_at, to_at, parallelism, rate, most,"
        " horizon, newest_first, who, created_at)"
        " select tenant_id, job_id, shard, 'catchup', schedule_ids[1], $2, $3, $4, $5, $6, $7, $8, 'misfire', now()"
        " from jobs where job_id = $1 returning backfill_id",
        job_id,
        bench.after(start),
        bench.after(end),
        values["parallelism"],
        values["rate"],
        values["most"],
        values["horizon"],
        given.get("newest_first", False),
    )
    return number


async def work(bench: Bench, holding: Holding | None = None) -> int:
    """One pass."""
    if holding is None:
        holding = bench.holding if bench.holding.tokens else await bench.hold()
    return await backfill(bench.store, bench.names, holding, await bench.now())


async def finish(bench: Bench, seat: Any, **ending: Any) -> list[float]:
    """End all that is ready; answers for when it was scheduled."""
    claimed = await bench.claim(seat)
    await bench.end(seat, claimed, **ending)
    return sorted(bench.seconds(c.key.scheduled_for) for c in claimed)


async def born(bench: Bench, number: int) -> list[float]:
    rows = await bench.sql(
        "select r.scheduled_for from runs r join backfills b using (job_id)"
        " where b.backfill_id = $1 and r.slot = slot_of(b) and r.cause = b.cause order by 1",
        number,
    )
    return [bench.seconds(row[0]) for row in rows]


async def told(bench: Bench, number: int) -> tuple[str, int, int]:
    """Its state, the runs that it made, and the occurrences that it passed over."""
    row = (await bench.sql("select state, made, passed from backfills where backfill_id = $1", number))[0]
    return row["state"], row["made"], row["passed"]


ALL = [-60, -50, -40, -30, -20, -10]


async def test_a_backfill_makes_a_run_of_every_occurrence_behind_live_work(bench: Bench) -> None:
    job_id = await job_of(bench, priority=7, max_concurrency=3, limit=None)
    number = await ask(bench, job_id)
    assert await work(bench) == 6
    assert await born(bench, number) == ALL
    assert await told(bench, number) == ("done", 6, 0)
    rows = await bench.sql(
        "select q.*, r.priority as lane, r.token from queue q join runs r using (job_id, slot, scheduled_for)"
    )
    assert {(row["slot"], row["cause"], row["priority"], row["lane"], row["available_at"]) for row in rows} == {
        ((1 << 40) + number, "backfill", -3, -3, bench.noon)
    }
    assert all(row["late_at"] is None and row["spec"] is None and row["token"] > 0 for row in rows)
    assert await work(bench) == 0


async def test_runs_with_a_limit_are_claimed_the_way_of_the_limited(bench: Bench) -> None:
    job_id = await job_of(bench, limit=Limit("bank", 2))
    await ask(bench, job_id)
    await work(bench)
    rows = await bench.sql(
        "select distinct q.blocked, q.key_id = j.key_id as same from queue q join jobs j using (job_id)"
    )
    assert [(row["blocked"], row["same"]) for row in rows] == [(32, True)]


async def test_no_more_than_its_parallelism_are_unfinished(bench: Bench) -> None:
    job_id = await job_of(bench)
    seat = await bench.seat()
    number = await ask(bench, job_id, parallelism=2)
    assert await work(bench) == 2
    assert await work(bench) == 0
    claimed = await bench.claim(seat)
    assert await work(bench) == 0
    await bench.fail(seat, claimed[:1])  # it waits for its next attempt: it is still unfinished
    await bench.end(seat, claimed[1:])
    assert await work(bench) == 1
    assert await born(bench, number) == ALL[:3]


async def test_the_newest_first(bench: Bench) -> None:
    job_id = await job_of(bench)
    seat = await bench.seat()
    number = await ask(bench, job_id, parallelism=2, newest_first=True)
    order = []
    for _ in range(3):
        assert await work(bench) == 2
        order += sorted(await finish(bench, seat), reverse=True)
    assert order == ALL[::-1]
    assert await told(bench, number) == ("done", 6, 0)


@pytest.mark.parametrize("overlap", [Overlap.SKIP, Overlap.QUEUE])
async def test_a_job_whose_runs_may_not_overlap_gets_one_at_a_time(bench: Bench, overlap: Overlap) -> None:
    job_id = await job_of(bench, overlap=overlap)
    seat = await bench.seat()
    first, second = await ask(bench, job_id), await ask(bench, job_id)
    assert await work(bench) == 1  # of both together
    assert await work(bench) == 0
    assert await finish(bench, seat) == [-60]
    await bench.trigger(job_id)
    assert await work(bench) == 0  # while any run of the job is unfinished
    await finish(bench, seat)
    assert await work(bench) == 1
    made = [(await told(bench, number))[1] for number in (first, second)]
    assert sum(made) == 2


async def test_a_run_that_a_tick_makes_meanwhile_comes_first(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look and the write the job's own time has come."""
    job_id = await job_of(bench, overlap=Overlap.SKIP)
    number = await ask(bench, job_id)
    await bench.pass_time(10)
    await bench.hold()
    ensure = backfills.ensure_days

    async def late(*given: Any) -> None:
        await ensure(*given)
        assert await bench.tick_all() == 1

    monkeypatch.setattr(backfills, "ensure_days", late)
    assert await work(bench) == 0
    assert await told(bench, number) == ("running", 0, 0)
    assert await bench.queued(job_id) == [10]


async def test_no_more_a_minute_than_its_rate(bench: Bench) -> None:
    job_id = await job_of(bench)
    number = await ask(bench, job_id, -3600, 0, rate=60.0, total=360)
    made = []
    for _ in range(40):
        made.append(await work(bench))
        await bench.pass_time(0.7)
    assert made[0] == 1
    assert max(made) == 1
    assert 26 <= sum(made) <= 29  # 28 seconds
    await bench.pass_time(3600)
    assert await work(bench) == 10  # an hour without passes is not made up for
    assert await told(bench, number) == ("running", sum(made) + 10, 0)


async def test_a_pause_holds_and_a_resume_goes_on(bench: Bench) -> None:
    job_id = await job_of(bench)
    seat = await bench.seat()
    number = await ask(bench, job_id, parallelism=2)
    await work(bench)
    assert await backfills.pause(bench.store, number, bench.tenant)
    assert not await backfills.pause(bench.store, number, bench.tenant)
    await finish(bench, seat)
    assert await work(bench) == 0
    assert await backfills.resume(bench.store, number, bench.tenant)
    assert await work(bench) == 2
    assert await born(bench, number) == ALL[:4]


async def test_the_job_s_pause_holds_it_too(bench: Bench) -> None:
    job_id = await job_of(bench)
    number = await ask(bench, job_id)
    await bench.pause(job_id)
    assert await work(bench) == 0
    await bench.resume(job_id)
    assert await work(bench) == 6
    assert await told(bench, number) == ("done", 6, 0)


async def test_a_pause_between_look_and_write_is_heeded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = await job_of(bench)
    number = await ask(bench, job_id)
    ensure = backfills.ensure_days

    async def late(*given: Any) -> None:
        await ensure(*given)
        await bench.pause(job_id)

    monkeypatch.setattr(backfills, "ensure_days", late)
    assert await work(bench) == 0
    assert await told(bench, number) == ("running", 0, 0)


async def test_a_change_between_look_and_write_is_heeded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = await job_of(bench)
    number = await ask(bench, job_id)
    ensure = backfills.ensure_days

    async def late(*given: Any) -> None:
        await ensure(*given)
        await bench.change(job_id, bench.definition("job", every("30s"), overlap=Overlap.ALLOW))

    with monkeypatch.context() as m:
        m.setattr(backfills, "ensure_days", late)
        assert await work(bench) == 0
    assert await work(bench) == 2
    assert await born(bench, number) == [-60, -30]


async def test_cancelled_it_makes_no_more_and_what_waits_ends(bench: Bench) -> None:
    job_id = await job_of(bench)
    seat = await bench.seat()
    number = await ask(bench, job_id, parallelism=3)
    await work(bench)
    running = (await bench.claim(seat, 1))[0]
    assert await backfills.end(bench.store, number, bench.tenant, "cancelled", "wrong day") == "running"
    assert await backfills.end(bench.store, number, bench.tenant, "cancelled", "again") == "cancelled"
    assert await work(bench) == 0
    assert await bench.queued(job_id) == [bench.seconds(running.key.scheduled_for)]
    assert not await bench.value("select cancel_requested from queue")
    waited = [bench.key(job_id, at, (1 << 40) + number) for at in ALL[:3]]
    assert sorted([await bench.state(key) for key in waited]) == ["cancelled", "cancelled", "running"]
    assert await bench.gaps(job_id) == []  # a backfill's occurrences are not owed to anybody
    assert await bench.value("select why from backfills") == "wrong day"


@pytest.mark.parametrize(
    ("reprocess", "made"),
    [("none", [-60, -50, -10]), ("failed", [-60, -50]), ("all", ALL)],
)
async def test_which_occurrences_are_run_again(bench: Bench, reprocess: str, made: list[float]) -> None:
    """-60 is dead, -50 cancelled, -40 succeeded, -30 succeeded after it was redriven, -20 runs, -10 never ran."""
    job_id = await job_of(bench)
    seat = await bench.seat()
    await ask(bench, job_id, -60, -10, total=5)
    await work(bench)
    taken = {bench.seconds(c.key.scheduled_for): c for c in await bench.claim(seat)}
    for at in (-60, -30):
        await bench.fail(seat, taken[at], lineage=["ResultNotStorable"])
    await bench.end(seat, taken[-50], outcome=Outcome.CANCELLED)
    await bench.end(seat, taken[-40])
    await bench.redrive(taken[-30].key)
    await finish(bench, seat)
    assert await bench.state(taken[-60].key) is State.DEAD
    number = await ask(bench, job_id, reprocess=reprocess)
    await work(bench)
    assert await born(bench, number) == made
    assert await told(bench, number) == ("done", len(made), 6 - len(made))


async def test_what_needs_no_run_is_passed_over_without_waiting_for_room(bench: Bench) -> None:
    job_id = await job_of(bench)
    seat = await bench.seat()
    await ask(bench, job_id, -100, -30, total=7)
    await work(bench)
    await finish(bench, seat)
    number = await ask(bench, job_id, -100, 0, parallelism=1, total=10)
    assert await work(bench) == 1
    assert await born(bench, number) == [-30]
    assert await told(bench, number) == ("running", 1, 7)


async def test_the_longer_nothing_needs_a_run_the_farther_it_looks(bench: Bench) -> None:
    """Two hours that ran already, of a job that strikes every second."""
    job_id = await job_of(bench, every("1s"))
    await bench.sql(
        "insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, shard, pool_id, priority,"
        " cause, born_as) select job_id, $1::timestamptz - n * interval '1 second', 0, now(), 0, 1, task_id, shard,"
        " pool_id, 5, 'schedule', 'queued' from jobs, generate_series(1, 7200) n",
        bench.noon,
    )
    number = await miss(bench, job_id, -7200, 0, most=10_000)
    holding, turn, now = await bench.hold(), Turn(), await bench.now()
    passes = 0
    while passes == 0 or turn.more:
        assert await backfill(bench.store, bench.names, holding, now, turn) == 0
        passes += 1
    assert await told(bench, number) == ("done", 0, 7200)
    assert passes <= 10


async def test_two_backfills_of_one_range_do_the_work_once(bench: Bench) -> None:
    job_id = await job_of(bench)
    first = await ask(bench, job_id, parallelism=3)
    await work(bench)
    second = await ask(bench, job_id)
    for _ in range(2):
        await work(bench)
    assert await born(bench, first) == ALL[:3]
    assert await born(bench, second) == ALL[3:]


async def test_the_job_s_deletion_ends_it(bench: Bench) -> None:
    job_id = await job_of(bench)
    running, paused = await ask(bench, job_id, parallelism=2), await ask(bench, job_id)
    await backfills.pause(bench.store, paused, bench.tenant)
    await work(bench)
    await bench.retire(job_id)
    assert await work(bench) == 0
    assert await told(bench, running) == ("cancelled", 2, 0)
    assert await told(bench, paused) == ("cancelled", 0, 0)


async def test_a_change_of_the_schedule_holds_for_what_is_left(bench: Bench) -> None:
    job_id = await job_of(bench)
    seat = await bench.seat()
    number = await ask(bench, job_id, parallelism=2)
    await work(bench)
    await bench.change(job_id, bench.definition("job", every("20s"), overlap=Overlap.ALLOW))
    await finish(bench, seat)
    assert await work(bench) == 2
    assert await born(bench, number) == [-60, -50, -40, -20]
    assert (await told(bench, number))[0] == "done"


# Catch-ups


async def test_a_catchup_runs_the_schedule_s_own_occurrences(bench: Bench) -> None:
    job_id = await job_of(bench)
    number = await miss(bench, job_id)
    assert await work(bench) == 6
    assert await bench.fired(job_id) == ALL
    assert {row[0] for row in await bench.sql("select distinct cause from runs")} == {"catchup"}
    assert await told(bench, number) == ("done", 6, 0)
    assert await bench.gaps(job_id) == []


@pytest.mark.parametrize("newest_first", [False, True])
async def test_what_a_catchup_cuts_off_is_one_gap(bench: Bench, newest_first: bool) -> None:
    job_id = await job_of(bench)
    number = await miss(bench, job_id, -1000, 0, most=3, newest_first=newest_first)
    assert await work(bench) == 3
    assert await bench.fired(job_id) == ALL[3:]
    [gap] = await bench.sql("select * from gaps")
    assert (bench.seconds(gap["from_at"]), bench.seconds(gap["to_at"])) == (-1000, -30)
    assert (gap["count"], gap["reason"]) == (97, "misfire")
    assert gap["schedule_id"] == await bench.value("select schedule_ids[1] from jobs")
    assert await bench.value("select total from backfills where backfill_id = $1", number) == 3
    assert await told(bench, number) == ("done", 3, 0)


async def test_a_catchup_of_which_nothing_is_left_is_done(bench: Bench) -> None:
    job_id = await job_of(bench)
    number = await miss(bench, job_id, horizon=timedelta(0))
    assert await work(bench) == 0
    assert await told(bench, number) == ("done", 0, 0)
    assert [(gap["from_at"], gap["to_at"], gap["count"]) for gap in await bench.gaps(job_id)] == [(-60, 0, 6)]


async def test_an_occurrence_that_has_its_run_is_not_caught_up_with(bench: Bench) -> None:
    job_id = await job_of(bench)
    await miss(bench, job_id, -60, -30)
    await work(bench)
    number = await miss(bench, job_id)
    assert await work(bench) == 3
    assert await told(bench, number) == ("done", 3, 3)


@pytest.mark.parametrize(("newest_first", "left"), [(False, (-40 + 1e-6, 0)), (True, (-60, -20))])
async def test_what_is_left_of_a_cancelled_catchup_is_a_gap(
    bench: Bench, newest_first: bool, left: tuple[float, float]
) -> None:
    job_id = await job_of(bench)
    count = 3 if not newest_first else 2
    number = await miss(bench, job_id, parallelism=count, newest_first=newest_first)
    await work(bench)
    await backfills.end(bench.store, number, bench.tenant, "cancelled", None)
    [gap] = await bench.gaps(job_id)
    assert (gap["from_at"], gap["to_at"]) == left
    assert (gap["count"], gap["reason"]) == (6 - count, "cancelled")
    assert {await bench.state(bench.key(job_id, at)) for at in (await bench.fired(job_id))} == {State.CANCELLED}


async def test_the_job_s_deletion_leaves_a_gap_of_its_catchup(bench: Bench) -> None:
    job_id = await job_of(bench)
    started, unseen = await miss(bench, job_id, parallelism=2), await miss(bench, job_id, -200, -100)
    await bench.sql("update backfills set state = 'paused' where backfill_id = $1", unseen)
    await work(bench)
    await bench.retire(job_id)
    await work(bench)
    found = {(gap["from_at"], gap["to_at"], gap["count"], gap["reason"]) for gap in await bench.gaps(job_id)}
    assert found == {(-50 + 1e-6, 0, 4, "deleted"), (-200, -100, None, "deleted")}
    assert (await told(bench, started))[0] == (await told(bench, unseen))[0] == "cancelled"


async def test_a_year_of_seconds_is_caught_up_with_in_milliseconds(bench: Bench) -> None:
    job_id = await job_of(bench, cron("* * * * * *", seconds=True))
    await bench.hold()
    await miss(bench, job_id, -365 * 86_400, 0, horizon=None)
    began = time.perf_counter()
    assert await work(bench) == 100
    assert time.perf_counter() - began < 1.0
    [gap] = await bench.gaps(job_id)
    assert gap["count"] == 365 * 86_400 - 100


@pytest.mark.parametrize("most", [1000, 50])
async def test_after_an_outage_every_occurrence_has_its_run_or_its_gap(bench: Bench, most: int) -> None:
    """An hour without schedulers: the latest occurrence is fired as always, those before it are caught up with."""
    job_id = await job_of(bench, misfire=Misfire.FIRE_ALL, catchup=Catchup(most=most))
    seat = await bench.seat()
    now = await bench.pass_time(3605)
    assert await bench.tick_all() == 1
    assert await bench.verify(now) != []  # they are owed, and have neither yet
    ran: list[float] = []
    for _ in range(200):
        ran += await finish(bench, seat)
        if not await work(bench):
            break
    assert sorted(ran) == list(range(3600 - min(most, 359) * 10, 3601, 10))
    assert await bench.verify(now) == []
    assert await bench.fired(job_id) == sorted(ran)


# Races


async def test_a_node_that_lost_its_shards_fills_nothing(bench: Bench) -> None:
    job_id = await job_of(bench)
    number = await ask(bench, job_id)
    caught = await miss(bench, job_id, -1000, 0, most=3)
    stale = await bench.hold()
    await bench.seize()
    assert await work(bench, stale) == 0
    assert await told(bench, number) == ("running", 0, 0)
    assert await bench.value("select total from backfills where backfill_id = $1", caught) is None
    assert await bench.gaps(job_id) == []
    assert await work(bench) == 9


async def test_two_nodes_at_once_make_each_run_once(bench: Bench) -> None:
    """The same decision is written twice, as if by two nodes that both believe in their lease."""
    job_id = await job_of(bench)
    number = await ask(bench, job_id, parallelism=3)
    holding = await bench.hold()
    [found] = await backfills.unended(bench.store, sorted(holding.tokens), 0, 10)
    instants, ends = next_instants(found, [every("10s")], 3)
    await backfills.ensure_days(bench.store, {i.date() for i in instants})
    filling = [Filling(backfill=found, room=3, instants=instants, ends=ends)]
    made = await asyncio.gather(*(backfills.fill(bench.store, holding, filling) for _ in range(4)))
    assert sorted(filled.made for filled in made) == [0, 0, 0, 3]
    assert await told(bench, number) == ("running", 3, 0)


@pytest.mark.parametrize("statement", ["unended", "measure", "ensure_days", "fill"])
@pytest.mark.parametrize("after", [False, True])
async def test_killed_between_any_two_statements_it_loses_and_doubles_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, statement: str, after: bool
) -> None:
    job_id = await job_of(bench)
    seat = await bench.seat()
    caught = await miss(bench, job_id, -1000, 0, most=6, parallelism=4)
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
                await work(bench)
            except KeyboardInterrupt:
                await bench.seize()  # another node goes on
        ran += await finish(bench, seat)
    assert sorted(ran) == ALL
    assert await told(bench, caught) == ("done", 6, 0)
    assert [gap["count"] for gap in await bench.gaps(job_id)] == [94]


async def test_many_nodes_and_workers_do_everything_once(bench: Bench) -> None:
    job_id = await job_of(bench, every("1s"))
    await bench.hold()
    number = await ask(bench, job_id, -600, 0, parallelism=7, total=600)
    seats = [await bench.seat() for _ in range(2)]
    ran: list[float] = []

    async def node() -> None:
        while (await told(bench, number))[0] == "running":
            await work(bench)

    async def worker(seat: Any) -> None:
        while len(ran) < 600:
            ran.extend(await finish(bench, seat))
            await asyncio.sleep(0.001)

    async with asyncio.timeout(60):
        await asyncio.gather(node(), node(), *(worker(seat) for seat in seats))
    assert sorted(ran) == list(range(-600, 0))
    assert await told(bench, number) == ("done", 600, 0)


async def test_each_has_its_turn(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass takes only so many; the next goes on behind the last one that was served."""
    monkeypatch.setattr(step, "MOST_FILLED", 2)
    jobs = [await bench.job(f"job {n}", every("10s"), overlap=Overlap.ALLOW) for n in range(5)]
    numbers = [await ask(bench, job_id, parallelism=1) for job_id in jobs]
    holding, turn, now = await bench.hold(), Turn(), await bench.now()
    for _ in range(3):
        await backfill(bench.store, bench.names, holding, now, turn)
    assert [(await told(bench, number))[1] for number in numbers] == [1] * 5


async def test_days_past_retention_are_made_again_for_it(bench: Bench) -> None:
    """A day of the past that was dropped, and that this process remembers to have made."""
    job_id = await job_of(bench, every("1d"))
    await bench.sql("update cluster set made_at = made_at - interval '90 days'")
    await bench.sql("alter table runs detach partition runs_past")
    await bench.sql("alter table attempts detach partition attempts_past")
    await bench.sql("alter table logs detach partition logs_past")
    days = 86_400
    number = await ask(bench, job_id, -40 * days, 0, parallelism=1000, total=40)
    made = [await work(bench) for _ in range(4)]
    assert made == [16, 16, 8, 0]
    assert await told(bench, number) == ("done", 40, 0)
    for parent in ("runs", "attempts", "logs"):
        day = (bench.noon - timedelta(days=30)).strftime("%Y%m%d")
        await bench.sql(f"drop table {parent}_{day}")
    again = await ask(bench, job_id, -31 * days, -29 * days, reprocess="all", total=2)
    assert await work(bench) == 2
    assert await told(bench, again) == ("done", 2, 0)


async def test_the_steps_of_the_cursor_leave_no_occurrence_out(bench: Bench) -> None:
    job_id = await job_of(bench, cron("*/7 * * * * *", seconds=True), every("11s"))
    seat = await bench.seat()
    expected = [at for at in range(-300, 0) if at % 60 % 7 == 0 or (bench.after(at).timestamp() % 11) == 0]
    number = await ask(bench, job_id, -300, 0, parallelism=3, total=len(expected))
    ran: list[float] = []
    for _ in range(100):
        if not await work(bench):
            break
        ran += await finish(bench, seat)
    assert ran == expected
    assert all(a < b for a, b in pairwise(ran))
    assert await told(bench, number) == ("done", len(expected), 0)
