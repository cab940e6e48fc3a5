"""Misfire: what becomes of occurrences that nobody fired within the grace of a minute."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from bellringer.core.policies import Catchup, Misfire, Missed, Overlap
from bellringer.schedule import at, cron, every

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness

MOMENT = 0.000001
HOUR = 3600


async def catchups(harness: EngineHarness, job: UUID) -> list[tuple[float, float]]:
    """What is still to be caught up, as ranges in seconds after noon."""
    rows = await harness.sql(
        "select from_at, to_at from backfills where job_id = $1 and cause = 'catchup' order by 1", job
    )
    return [(harness.seconds(row["from_at"]), harness.seconds(row["to_at"])) for row in rows]


async def spans(harness: EngineHarness, job: UUID) -> list[tuple[float, float]]:
    """The recorded gaps, as ranges in seconds after noon."""
    return [(gap["from_at"], gap["to_at"]) for gap in await harness.gaps(job)]


async def account(harness: EngineHarness, job: UUID, seconds: range) -> dict[int, list[str]]:
    """What is known of each of these instants: a run, a gap, a catch-up that will come to it."""
    fired = set(await harness.fired(job))
    gaps, owed = await spans(harness, job), await catchups(harness, job)
    return {
        second: ["run"] * (second in fired)
        + ["gap" for start, end in gaps if start <= second < end]
        + ["catchup" for start, end in owed if start <= second < end]
        for second in seconds
    }


async def assert_each_once(harness: EngineHarness, job: UUID, seconds: range) -> None:
    wrong = {second: what for second, what in (await account(harness, job, seconds)).items() if len(what) != 1}
    assert wrong == {}


async def sleep_until(harness: EngineHarness, second: float, **pace: Any) -> None:
    """Nobody fires until then; then somebody does."""
    await harness.set_clock(harness.after(second))
    await harness.tick_all(**pace)


# Within the grace


@pytest.mark.parametrize("misfire", list(Misfire))
async def test_within_the_grace_everything_simply_fires_late(harness: EngineHarness, misfire: Misfire) -> None:
    job = await harness.job("job", every("10s"), misfire=misfire)
    await sleep_until(harness, 69)
    assert await harness.fired(job) == [10, 20, 30, 40, 50, 60]
    assert await harness.gaps(job) == []
    assert await catchups(harness, job) == []


@pytest.mark.parametrize("misfire", list(Misfire))
async def test_an_occurrence_is_in_time_until_the_grace_is_over(harness: EngineHarness, misfire: Misfire) -> None:
    job = await harness.job("job", every("1h"), misfire=misfire)
    await sleep_until(harness, HOUR + 60)
    assert await harness.fired(job) == [HOUR]


# Skip


async def test_skip_records_a_single_late_occurrence_as_a_gap(harness: EngineHarness) -> None:
    job = await harness.job("job", every("1h"), misfire=Misfire.SKIP)
    await sleep_until(harness, HOUR + 61)
    assert await harness.fired(job) == await harness.queued(job) == []
    [gap] = await harness.gaps(job)
    assert (gap["from_at"], gap["count"], gap["reason"], gap["into_at"]) == (HOUR, 1, "misfire", None)
    await sleep_until(harness, 2 * HOUR)
    assert await harness.fired(job) == [2 * HOUR]


async def test_skip_records_all_late_occurrences_and_fires_what_is_still_in_time(harness: EngineHarness) -> None:
    job = await harness.job("job", every("10s"), misfire=Misfire.SKIP)
    await sleep_until(harness, 605)
    assert await harness.fired(job) == [600]
    [gap] = await harness.gaps(job)
    assert (gap["from_at"], gap["to_at"], gap["count"], gap["into_at"]) == (10, 600, 59, None)


async def test_skip_records_the_latest_one_too_when_it_is_late(harness: EngineHarness) -> None:
    job = await harness.job("job", every("1h"), misfire=Misfire.SKIP)
    await sleep_until(harness, 3.5 * HOUR)
    assert await harness.fired(job) == []
    assert await spans(harness, job) == [(HOUR, 3 * HOUR), (3 * HOUR, 3 * HOUR + MOMENT)]


async def test_a_late_one_shot_of_a_job_that_skips_is_a_gap(harness: EngineHarness) -> None:
    job = await harness.job("job", at(harness.after(10)), misfire=Misfire.SKIP)
    await harness.set_clock(harness.after(71))
    assert (await harness.ring()).fired == 0
    [gap] = await harness.gaps(job)
    assert (gap["from_at"], gap["count"], gap["reason"]) == (10, 1, "misfire")
    assert await harness.timers(job) == []


@pytest.mark.parametrize("misfire", [Misfire.FIRE_ONCE, Misfire.FIRE_ALL])
async def test_a_late_one_shot_of_any_other_job_fires_late(harness: EngineHarness, misfire: Misfire) -> None:
    job = await harness.job("job", at(harness.after(10)), misfire=misfire)
    await harness.set_clock(harness.after(HOUR))
    assert (await harness.ring()).fired == 1
    assert await harness.fired(job) == [10]


async def test_a_one_shot_within_the_grace_fires_though_its_job_skips(harness: EngineHarness) -> None:
    job = await harness.job("job", at(harness.after(10)), misfire=Misfire.SKIP)
    await harness.set_clock(harness.after(69))
    await harness.ring()
    assert await harness.fired(job) == [10]


async def test_an_edit_of_a_late_one_shot_that_skips_records_a_gap(harness: EngineHarness) -> None:
    definition = harness.definition("job", at(harness.after(10)), misfire=Misfire.SKIP)
    [registered] = await harness.register(definition)
    await harness.set_clock(harness.after(100))
    await harness.change(registered.job_id, definition)
    await harness.ring()
    assert await harness.fired(registered.job_id) == []
    assert await spans(harness, registered.job_id) == [(10, 10 + MOMENT)]


async def test_an_edit_while_the_cohort_is_behind_skips_what_is_late(harness: EngineHarness) -> None:
    job = await harness.job("job", every("1h"), misfire=Misfire.SKIP)
    await harness.set_clock(harness.after(HOUR + 100))
    await harness.change(job, harness.definition("job", every("2h"), misfire=Misfire.SKIP))
    await harness.tick_all()
    assert await harness.fired(job) == []
    assert (await account(harness, job, range(HOUR, HOUR + 1)))[HOUR] == ["gap"]


async def test_an_edit_while_the_cohort_is_behind_within_the_grace_fires(harness: EngineHarness) -> None:
    job = await harness.job("job", every("1h"), misfire=Misfire.SKIP)
    await harness.set_clock(harness.after(HOUR + 30))
    await harness.change(job, harness.definition("job", every("2h"), misfire=Misfire.SKIP))
    await harness.tick_all()
    assert await harness.fired(job) == [HOUR]
    assert (await account(harness, job, range(HOUR, HOUR + 1)))[HOUR] == ["run"]


# Fire once


async def test_fire_once_runs_the_latest_and_says_what_it_stands_for(harness: EngineHarness) -> None:
    job = await harness.job("job", every("1h"), misfire=Misfire.FIRE_ONCE)
    await sleep_until(harness, 3.5 * HOUR)
    assert await harness.fired(job) == [3 * HOUR]
    [gap] = await harness.gaps(job)
    assert (gap["from_at"], gap["to_at"], gap["count"], gap["into_at"]) == (HOUR, 3 * HOUR, 2, 3 * HOUR)


async def test_fire_once_of_a_single_late_occurrence_is_that_occurrence(harness: EngineHarness) -> None:
    job = await harness.job("job", cron("0 13 * * *"), misfire=Misfire.FIRE_ONCE)
    await sleep_until(harness, 20 * HOUR)
    assert await harness.fired(job) == [HOUR]
    assert await harness.gaps(job) == []


# Fire all


async def test_fire_all_leaves_what_was_missed_to_a_catch_up_and_fires_the_latest(harness: EngineHarness) -> None:
    job = await harness.job("job", every("10s"), misfire=Misfire.FIRE_ALL, catchup=Catchup(7, timedelta(hours=2), 30.0))
    await sleep_until(harness, 605)
    assert await harness.fired(job) == [600]
    assert await harness.gaps(job) == []
    [row] = await harness.sql("select * from backfills where job_id = $1", job)
    assert (harness.seconds(row["from_at"]), harness.seconds(row["to_at"])) == (10, 600)
    assert (row["cause"], row["state"], row["most"], row["horizon"], row["rate"]) == (
        "catchup", "running", 7, timedelta(hours=2), 30.0,
    )  # fmt: skip
    assert row["schedule_id"] == await harness.value("select schedule_ids[1] from jobs where job_id = $1", job)


async def test_fire_all_of_a_single_late_occurrence_is_that_occurrence(harness: EngineHarness) -> None:
    job = await harness.job("job", every("1h"), misfire=Misfire.FIRE_ALL)
    await sleep_until(harness, HOUR + 1800)
    assert await harness.fired(job) == [HOUR]
    assert await catchups(harness, job) == []


async def test_a_catch_up_of_a_job_that_overlaps_takes_several_at_once_and_of_another_one(
    harness: EngineHarness,
) -> None:
    wide = await harness.job("wide", every("10s"), misfire=Misfire.FIRE_ALL, overlap=Overlap.ALLOW)
    narrow = await harness.job("narrow", every("10s"), misfire=Misfire.FIRE_ALL, overlap=Overlap.QUEUE)
    await sleep_until(harness, 605)
    rows = await harness.sql("select job_id, parallelism from backfills")
    assert {row[0]: row[1] for row in rows} == {wide: 10, narrow: 1}


async def test_two_outages_are_two_catch_ups_that_do_not_meet(harness: EngineHarness) -> None:
    job = await harness.job("job", every("10s"), misfire=Misfire.FIRE_ALL)
    await sleep_until(harness, 305)
    await sleep_until(harness, 605)
    assert await catchups(harness, job) == [(10, 300), (310, 600)]
    await assert_each_once(harness, job, range(10, 605, 10))


@pytest.mark.parametrize("what", ["change", "pause"])
async def test_an_edit_or_a_pause_while_behind_leaves_all_to_a_catch_up(harness: EngineHarness, what: str) -> None:
    definition = harness.definition("job", every("10s"), misfire=Misfire.FIRE_ALL)
    [registered] = await harness.register(definition)
    job = registered.job_id
    await harness.set_clock(harness.after(605))
    await (harness.change(job, definition) if what == "change" else harness.pause(job))
    await harness.tick_all()
    assert await catchups(harness, job) == [(10, 605 + MOMENT)]
    await assert_each_once(harness, job, range(10, 605, 10))


async def test_a_deletion_while_behind_leaves_nothing_to_catch_up(harness: EngineHarness) -> None:
    job = await harness.job("job", every("10s"), misfire=Misfire.FIRE_ALL)
    await harness.set_clock(harness.after(605))
    await harness.retire(job)
    assert await catchups(harness, job) == []
    await assert_each_once(harness, job, range(10, 605, 10))


# The edges of a job's life


@pytest.mark.parametrize("misfire", list(Misfire))
async def test_a_job_that_came_during_the_outage_owes_nothing_from_before(
    harness: EngineHarness, misfire: Misfire
) -> None:
    await harness.share_shard()
    await harness.job("keeper", every("10s"))
    await harness.set_clock(harness.after(305))
    job = await harness.job("job", every("10s"), misfire=misfire)
    await sleep_until(harness, 605)
    assert (await account(harness, job, range(10, 305, 10))) == {second: [] for second in range(10, 305, 10)}
    await assert_each_once(harness, job, range(310, 605, 10))


@pytest.mark.parametrize("misfire", list(Misfire))
async def test_a_job_that_ended_during_the_outage_owes_nothing_from_after(
    harness: EngineHarness, misfire: Misfire
) -> None:
    job = await harness.job("job", every("10s"), misfire=misfire, ends_at=harness.after(300))
    await sleep_until(harness, 605)
    await assert_each_once(harness, job, range(10, 305, 10))
    after = {s: what for s, what in (await account(harness, job, range(310, 605, 10))).items() if what}
    assert after == {}


@pytest.mark.parametrize("misfire", list(Misfire))
async def test_a_job_that_started_during_the_outage_owes_nothing_from_before(
    harness: EngineHarness, misfire: Misfire
) -> None:
    job = await harness.job("job", every("10s"), misfire=misfire, starts_at=harness.after(300))
    await sleep_until(harness, 605)
    assert (await account(harness, job, range(10, 300, 10))) == {second: [] for second in range(10, 300, 10)}
    await assert_each_once(harness, job, range(300, 605, 10))


@pytest.mark.parametrize("what", ["change", "pause"])
async def test_a_job_that_ended_before_it_was_touched_catches_up_to_its_end(harness: EngineHarness, what: str) -> None:
    definition = harness.definition("job", every("10s"), misfire=Misfire.FIRE_ALL, ends_at=harness.after(300))
    [registered] = await harness.register(definition)
    job = registered.job_id
    await harness.set_clock(harness.after(605))
    await (harness.change(job, definition) if what == "change" else harness.pause(job))
    await assert_each_once(harness, job, range(10, 305, 10))
    after = {s: what for s, what in (await account(harness, job, range(310, 605, 10))).items() if "catchup" in what}
    assert after == {}


# Cut fires and chunks


async def cut_before_the_outage(harness: EngineHarness, *policies: Misfire) -> list[UUID]:
    """Jobs of one cohort, the first two of which got 10 before nobody fired any more; in the order of the fire."""
    await harness.share_shard()
    made = [
        await harness.job(f"job {n}", every("10s"), misfire=m, late_after=timedelta(seconds=5))
        for n, m in enumerate(policies)
    ]
    await harness.set_clock(harness.after(10))
    ticked = await harness.tick(most=2)
    assert ticked.fired.cut
    return sorted(made)


@pytest.mark.parametrize("most", [2, 8000])
async def test_a_fire_that_was_cut_before_the_outage_gives_no_one_an_instant_twice(
    harness: EngineHarness, most: int
) -> None:
    policies = [Misfire.SKIP, Misfire.FIRE_ALL, Misfire.FIRE_ONCE, Misfire.FIRE_ALL, Misfire.SKIP]
    jobs = await cut_before_the_outage(harness, *policies)
    await sleep_until(harness, 605, most=most)
    for job in jobs:
        await assert_each_once(harness, job, range(10, 605, 10))
    [first] = await harness.gaps(jobs[0])
    assert (first["from_at"], first["count"]) == (10 + MOMENT, 58)
    [last] = await harness.gaps(jobs[-1])
    assert (last["from_at"], last["count"]) == (10, 59)


async def test_who_missed_nothing_because_he_got_the_only_instant_has_no_empty_gap(harness: EngineHarness) -> None:
    await harness.share_shard()
    jobs = sorted(
        [
            await harness.job(f"job {n}", every("1h"), misfire=misfire, late_after=timedelta(seconds=5))
            for n, misfire in enumerate([Misfire.FIRE_ONCE, Misfire.FIRE_ALL, Misfire.SKIP, Misfire.SKIP, Misfire.SKIP])
        ]
    )
    await harness.set_clock(harness.after(HOUR))
    assert (await harness.tick(most=2)).fired.cut
    await sleep_until(harness, 2 * HOUR + 10)
    for job in jobs[:2]:
        assert await harness.fired(job) == [HOUR, 2 * HOUR]
        assert await harness.gaps(job) == []
        assert await catchups(harness, job) == []
        assert await harness.value("select count(*) from events where job_id = $1", job) == 0


async def test_jumps_in_chunks_bring_all_to_the_same_instant_whatever_their_policies(harness: EngineHarness) -> None:
    await harness.share_shard()
    policies = [list(Misfire)[n % 3] for n in range(7)]
    jobs = {await harness.job(f"job {n}", every("10s"), misfire=m): m for n, m in enumerate(policies)}
    await harness.set_clock(harness.after(605))
    await harness.tick(most=2)
    await harness.set_clock(harness.after(612))  # meanwhile, time goes on: the goal stays
    await harness.tick_all(most=2)
    for job, misfire in jobs.items():
        assert await harness.fired(job) == [600, 610]
        await assert_each_once(harness, job, range(10, 615, 10))
        owed = (await catchups(harness, job)) if misfire is Misfire.FIRE_ALL else (await spans(harness, job))
        assert owed == [(10, 600)]


@pytest.mark.parametrize("misfire", list(Misfire))
@pytest.mark.parametrize("what", ["change", "pause"])
async def test_touched_in_the_middle_of_a_jump_a_job_loses_and_doubles_nothing(
    harness: EngineHarness, misfire: Misfire, what: str
) -> None:
    await harness.share_shard()
    definitions = [harness.definition(f"job {n}", every("10s"), misfire=misfire) for n in range(6)]
    jobs = sorted(r.job_id for r in await harness.register(*definitions))
    names = {r["job_id"]: r["name"] for r in await harness.sql("select job_id, name from jobs")}
    await harness.set_clock(harness.after(605))
    await harness.tick(most=2)
    for job in (jobs[0], jobs[5]):  # the one has jumped, the other has not
        definition = next(d for d in definitions if d.name == names[job])
        await (harness.change(job, definition) if what == "change" else harness.pause(job))
    await harness.tick_all(most=2)
    for job in jobs:
        await assert_each_once(harness, job, range(10, 605, 10))


# Several schedules


@pytest.mark.parametrize("misfire", list(Misfire))
async def test_each_schedule_of_a_job_jumps_by_itself(harness: EngineHarness, misfire: Misfire) -> None:
    job = await harness.job("job", every("20s"), every("50s"), misfire=misfire)
    await sleep_until(harness, 615)
    assert await harness.fired(job) == [600]
    owed = await (catchups if misfire is Misfire.FIRE_ALL else spans)(harness, job)
    assert owed == [(20, 600), (50, 600)]


@pytest.mark.parametrize("misfire", list(Misfire))
async def test_each_schedule_of_a_job_jumps_to_its_own_latest(harness: EngineHarness, misfire: Misfire) -> None:
    job = await harness.job("job", every("20s"), every("50s"), misfire=misfire)
    await sleep_until(harness, 655)
    assert await harness.fired(job) == [640, 650]
    owed = await (catchups if misfire is Misfire.FIRE_ALL else spans)(harness, job)
    assert owed == [(20, 640), (50, 650)]


# Pauses


async def test_resume_skips_what_it_missed_unless_requested_otherwise(harness: EngineHarness) -> None:
    job = await harness.job("job", every("10s"), misfire=Misfire.FIRE_ALL)
    await harness.pause(job)
    await harness.set_clock(harness.after(605))
    await harness.resume(job)
    await harness.tick_all()
    assert await harness.fired(job) == []
    assert await catchups(harness, job) == []
    await assert_each_once(harness, job, range(10, 605, 10))


async def test_resume_with_the_latest_catches_up_that_one_and_says_what_it_stands_for(harness: EngineHarness) -> None:
    job = await harness.job("job", every("10s"))
    await harness.pause(job)
    await harness.set_clock(harness.after(605))
    await harness.resume(job, Missed.LATEST)
    assert await catchups(harness, job) == [(600, 600 + MOMENT)]
    await assert_each_once(harness, job, range(10, 605, 10))
    first, _ = await harness.gaps(job)
    assert (first["to_at"], first["into_at"], first["reason"]) == (600, 600, "paused")


async def test_resume_with_the_latest_of_several_schedules_is_one_run(harness: EngineHarness) -> None:
    job = await harness.job("job", every("20s"), every("50s"))
    await harness.pause(job)
    await harness.set_clock(harness.after(655))
    await harness.resume(job, Missed.LATEST)
    assert await catchups(harness, job) == [(650, 650 + MOMENT)]
    assert (await account(harness, job, range(640, 641)))[640] == ["gap"]


async def test_resume_with_all_catches_up_each_schedule(harness: EngineHarness) -> None:
    job = await harness.job("job", every("20s"), every("50s"))
    await harness.pause(job)
    await harness.set_clock(harness.after(655))
    await harness.resume(job, Missed.ALL)
    assert await catchups(harness, job) == [(MOMENT, 655 + MOMENT)] * 2
    assert await harness.gaps(job) == []


@pytest.mark.parametrize("missed", list(Missed))
async def test_resume_when_nothing_was_missed_owes_nothing(harness: EngineHarness, missed: Missed) -> None:
    job = await harness.job("job", every("1h"))
    await harness.pause(job)
    await harness.set_clock(harness.after(60))
    await harness.resume(job, missed)
    await sleep_until(harness, HOUR)
    assert await harness.fired(job) == [HOUR]
    assert (await account(harness, job, range(HOUR, HOUR + 1)))[HOUR] == ["run"]


@pytest.mark.parametrize("missed", [Missed.LATEST, Missed.ALL])
async def test_resume_catches_up_nothing_from_after_the_end_of_the_job(harness: EngineHarness, missed: Missed) -> None:
    job = await harness.job("job", every("10s"), ends_at=harness.after(300))
    await harness.pause(job)
    await harness.set_clock(harness.after(605))
    await harness.resume(job, missed)
    owed = [s for s, what in (await account(harness, job, range(10, 605, 10))).items() if "catchup" in what]
    assert owed == ([300] if missed is Missed.LATEST else list(range(10, 301, 10)))


@pytest.mark.parametrize("missed", [Missed.LATEST, Missed.ALL])
async def test_resume_catches_up_nothing_from_before_the_start_of_the_job(
    harness: EngineHarness, missed: Missed
) -> None:
    job = await harness.job("job", every("10s"), starts_at=harness.after(600))
    await harness.pause(job)
    await harness.set_clock(harness.after(305))
    await harness.resume(job, missed)
    assert await catchups(harness, job) == []


@pytest.mark.parametrize("missed", list(Missed))
@pytest.mark.parametrize("misfire", list(Misfire))
async def test_paused_while_behind_and_resumed_each_occurrence_has_one_account(
    harness: EngineHarness, misfire: Misfire, missed: Missed
) -> None:
    job = await harness.job("job", every("10s"), misfire=misfire)
    await harness.set_clock(harness.after(305))
    await harness.pause(job)
    await harness.set_clock(harness.after(605))
    await harness.resume(job, missed)
    await harness.tick_all()
    await assert_each_once(harness, job, range(10, 605, 10))


async def test_a_pause_at_the_very_instant_of_an_occurrence_neither_loses_nor_doubles_it(
    harness: EngineHarness,
) -> None:
    job = await harness.job("job", every("10s"), misfire=Misfire.FIRE_ALL)
    await harness.set_clock(harness.after(10))
    await harness.pause(job)
    await harness.set_clock(harness.after(20))
    await harness.resume(job, Missed.ALL)
    await sleep_until(harness, 30)
    await assert_each_once(harness, job, range(10, 35, 10))
