"""Watch: what is late is told once, and so is what takes far longer than usual."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from bellringer.lifecycle import prune
from bellringer.lifecycle import watch as watching
from bellringer.lifecycle.claim import Seat
from bellringer.lifecycle.prune import Retention
from bellringer.lifecycle.watch import Baseline, Compared, Watched, interval_of, usual
from bellringer.policies import Retry
from bellringer.schedule import cron, every
from bellringer.scheduler.watchman import Watchman
from bellringer.store.pool import Store
from bellringer.telemetry import LATE as LATE_TOTAL

if TYPE_CHECKING:
    from tests.lifecycle.conftest import Bench

SECOND = timedelta(seconds=1)
NOTHING = Watched(waiting=0, unborn=0, more=False)
LATE = {"late_after": 5 * SECOND}


async def watch(bench: Bench) -> Watched:
    return await watching.watch(bench.store, await bench.now())


async def compare(bench: Bench) -> Compared:
    return await watching.compare(bench.store, bench.names, await bench.now())


async def told(bench: Bench, kind: str) -> list[dict[str, Any]]:
    rows = await bench.sql("select * from events where kind = $1 order by event_id", kind)
    return [{**dict(row), "data": json.loads(row["data"])} for row in rows]


async def struck(bench: Bench, **more: Any) -> UUID:
    """A job that was due, and fired, a minute after noon."""
    job = await bench.job("job", every("1m"), **more)
    await bench.set_clock(bench.after(60))
    assert await bench.tick_all() == 1
    return job


# Late


async def test_a_run_that_does_not_start_in_time_is_told_once(bench: Bench) -> None:
    job = await struck(bench, **LATE)
    await bench.pass_time(4)
    assert await watch(bench) == NOTHING
    await bench.pass_time(1)
    assert await watch(bench) == Watched(waiting=1, unborn=0, more=False)
    assert await watch(bench) == NOTHING
    [event] = await told(bench, "late")
    assert (event["job_id"], bench.seconds(event["scheduled_for"]), event["slot"]) == (job, 60, 0)
    assert (event["tenant_id"], bench.seconds(event["at"])) == (bench.tenant, 65)
    data = event["data"]
    assert (bench.seconds(datetime.fromisoformat(data["due"])), data["late_after"], data["blocked"]) == (60, 5, 0)


async def test_a_job_that_does_not_ask_is_never_told_of(bench: Bench) -> None:
    await struck(bench)
    await bench.pass_time(3600)
    assert await watch(bench) == NOTHING


async def test_a_run_that_started_in_time_is_not_late(bench: Bench) -> None:
    await struck(bench, **LATE)
    await bench.claim_one(await bench.seat())
    await bench.pass_time(60)
    assert (await watch(bench)).waiting == 0
    assert await bench.value("select count(*) from queue where late_at is not null") == 0


async def test_a_retry_that_waits_has_started_in_time(bench: Bench) -> None:
    await struck(bench, **LATE, retry=Retry(3, base="30s"))
    seat = await bench.seat()
    await bench.fail(seat, await bench.claim_one(seat))
    await bench.pass_time(10)
    assert (await watch(bench)).waiting == 0


async def test_it_is_told_what_a_late_run_waits_for(bench: Bench) -> None:
    await bench.pause(await struck(bench, **LATE))
    await bench.pass_time(5)
    assert (await watch(bench)).waiting == 1
    assert (await told(bench, "late"))[0]["data"]["blocked"] == 1


async def test_a_hand_that_is_behind_is_told_though_nothing_was_born(bench: Bench) -> None:
    job = await bench.job("job", every("1m"), **LATE)
    await bench.job("silent", every("1m"))
    await bench.set_clock(bench.after(64))
    assert await watch(bench) == NOTHING
    await bench.pass_time(1)
    assert await watch(bench) == Watched(waiting=0, unborn=1, more=False)
    assert await watch(bench) == NOTHING
    [event] = await told(bench, "late")
    assert (event["job_id"], bench.seconds(event["scheduled_for"]), event["data"]["unborn"]) == (job, 60, True)
    await bench.tick_all()
    assert await watch(bench) == NOTHING  # it is born, and late; but that was told
    assert len(await told(bench, "late")) == 1


async def test_who_got_its_run_from_a_hand_in_the_middle_is_not_behind(bench: Bench) -> None:
    await bench.share_shard()
    jobs = sorted([await bench.job(f"job {n}", every("1m"), **LATE) for n in range(3)])
    await bench.set_clock(bench.after(60))
    await bench.tick(most=2)
    assert await bench.value("select cursor from cohorts") == jobs[1]
    seat = await bench.seat()
    assert len(await bench.claim(seat)) == 2
    await bench.pass_time(5)
    assert await watch(bench) == Watched(waiting=0, unborn=1, more=False)
    assert [event["job_id"] for event in await told(bench, "late")] == [jobs[2]]


async def test_a_member_that_has_not_begun_is_owed_nothing(bench: Bench) -> None:
    await bench.job("job", every("1m"), **LATE, starts_at=bench.after(90))
    await bench.set_clock(bench.after(80))
    assert await watch(bench) == NOTHING


async def test_a_pass_is_bounded_and_says_that_there_is_more(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "MOST", 2)
    for n in range(3):
        await bench.job(f"job {n}", every("1m"), **LATE)
    await bench.set_clock(bench.after(60))
    await bench.tick_all()
    await bench.pass_time(5)
    assert await watch(bench) == Watched(waiting=2, unborn=0, more=True)
    assert await watch(bench) == Watched(waiting=1, unborn=0, more=False)
    await bench.set_clock(bench.after(125))
    assert await watch(bench) == Watched(waiting=0, unborn=2, more=True)
    assert await watch(bench) == Watched(waiting=0, unborn=1, more=False)


async def test_a_node_goes_on_until_all_is_told_and_counts_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "MOST", 2)
    for n in range(5):
        await bench.job(f"job {n}", every("1m"), **LATE)
    await bench.set_clock(bench.after(65))
    before = LATE_TOTAL.labels("unborn")._value.get()
    await Watchman(bench.store, bench.names).watch()
    assert LATE_TOTAL.labels("unborn")._value.get() - before == 5
    assert len(await told(bench, "late")) == 5


async def test_a_row_that_somebody_holds_is_left_for_the_next_pass(bench: Bench) -> None:
    await struck(bench, **LATE)
    await bench.pass_time(5)
    other = await Store.open(bench.store.dsn, size=1)
    async with other.pool.acquire() as claimer, claimer.transaction():
        await claimer.execute("select 1 from queue for update")
        assert await watch(bench) == NOTHING
    await other.close()
    assert (await watch(bench)).waiting == 1


async def test_old_events_are_forgotten(bench: Bench) -> None:
    await struck(bench, **LATE)
    await bench.pass_time(5)
    await watch(bench)
    await prune.prune(bench.store, bench.noon + timedelta(days=29), Retention())
    assert len(await told(bench, "late")) == 1
    await prune.prune(bench.store, bench.noon + timedelta(days=31), Retention())
    assert await told(bench, "late") == []


# What is usual


async def lived(bench: Bench, job: UUID, *took: float) -> Seat:
    """Runs of a job that took so many seconds each."""
    seat = await bench.seat()
    for ran in took:
        await bench.trigger(job)
        await bench.pass_time(ran)
        await bench.end(seat, await bench.claim_one(seat), ran=ran)
    return seat


async def test_a_run_that_takes_far_longer_than_usual_is_told_once(bench: Bench) -> None:
    job = await bench.job("job")
    seat = await lived(bench, job, 1, 2, 2, 2, 6)
    key = await bench.trigger(job)
    claimed = await bench.claim_one(seat)
    await bench.pass_time(12)
    assert await compare(bench) == Compared(slow=0, outgrown=0)
    await bench.pass_time(1)
    assert await compare(bench) == Compared(slow=1, outgrown=0)
    assert await compare(bench) == Compared(slow=0, outgrown=0)
    [event] = await told(bench, "slow")
    assert (event["job_id"], event["scheduled_for"], event["slot"]) == (key.job_id, key.scheduled_for, key.slot)
    assert (event["attempt"], event["tenant_id"]) == (1, bench.tenant)
    assert event["data"] == {"running_for": 13, "usual": 2, "longest": 6}
    await bench.end(seat, claimed)


async def test_a_run_whose_worker_is_silent_or_lost_is_not_slow(bench: Bench) -> None:
    job = await bench.job("job")
    seat = await lived(bench, job, 1, 1, 1, 1, 1)
    await bench.trigger(job)
    await bench.claim_one(seat)
    await bench.pass_time(3600)
    await bench.vanish(seat)
    assert await compare(bench) == Compared(slow=0, outgrown=0)
    await bench.sql("update workers set seen_at = clock_timestamp(), state = 'lost'")
    assert await compare(bench) == Compared(slow=0, outgrown=0)
    await bench.sql("update workers set state = 'live'")
    assert await compare(bench) == Compared(slow=1, outgrown=0)


async def test_a_job_without_a_history_has_no_slow_runs(bench: Bench) -> None:
    job = await bench.job("job")
    seat = await lived(bench, job, 1, 1, 1, 1)
    await bench.trigger(job)
    await bench.send()
    await bench.claim(seat)
    await bench.pass_time(3600)
    assert await compare(bench) == Compared(slow=0, outgrown=0)


async def test_only_what_ended_well_is_usual(bench: Bench) -> None:
    job = await bench.job("job", retry=Retry(1))
    seat = await lived(bench, job, 1, 2, 3)
    await bench.trigger(job)
    await bench.fail(seat, await bench.claim_one(seat), ran=100)
    found = await watching.baseline(bench.store, bench.names, job, await bench.now(), tenant_id=bench.tenant)
    assert found == Baseline(runs=3, median=2 * SECOND, longest=3 * SECOND)


async def test_only_the_last_twenty_are_usual(bench: Bench) -> None:
    job = await bench.job("job")
    await lived(bench, job, *([100] * 5), *([1] * 20))
    found = await watching.baseline(bench.store, bench.names, job, await bench.now(), tenant_id=bench.tenant)
    assert found == Baseline(runs=20, median=SECOND, longest=SECOND)


async def test_a_job_that_outgrows_its_interval_is_told_once_a_day(bench: Bench) -> None:
    job = await bench.job("job", every("1m"))
    seat = await lived(bench, job, *([90] * 5))
    for day in range(2):
        await bench.set_clock(bench.noon + timedelta(days=day, hours=1))
        for _ in range(2):
            await bench.trigger(job)
            claimed = await bench.claim_one(seat)
            await bench.pass_time(2)
            await compare(bench)
            await bench.end(seat, claimed, ran=90)
        events = await told(bench, "outgrown")
        assert len(events) == day + 1
        assert (events[-1]["job_id"], events[-1]["data"]) == (job, {"usual": 90, "interval": 60})


async def test_a_baseline_is_its_tenants_own(bench: Bench) -> None:
    job = await bench.job("job")
    [other] = await bench.tenants(1)
    assert await watching.baseline(bench.store, bench.names, job, await bench.now(), tenant_id=other) is None
    await bench.retire(job)
    assert await watching.baseline(bench.store, bench.names, job, await bench.now(), tenant_id=bench.tenant) is None


NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("took", "slow_after"),
    [
        ([1.0] * 4, None),
        ([1.0] * 5, 10.0),  # never below ten seconds
        ([4.0] * 4 + [9.0], 18.0),  # twice the longest
        ([8.0] * 5, 24.0),  # three times the median
        ([], None),
    ],
)
def test_slow_is_far_beyond_both_the_longest_and_the_median(took: list[float], slow_after: float | None) -> None:
    expected = None if slow_after is None else timedelta(seconds=slow_after)
    assert usual(took, [], NOON).slow_after == expected


@pytest.mark.parametrize(("seconds", "outgrown"), [(60.0, False), (60.001, True)])
def test_a_job_outgrows_its_interval_when_its_median_exceeds_it(seconds: float, outgrown: bool) -> None:
    assert usual([seconds] * 5, [every("1m")], NOON).outgrown is outgrown
    assert not usual([seconds] * 4, [every("1m")], NOON).outgrown
    assert not usual([seconds] * 5, [], NOON).outgrown


def test_the_interval_is_between_the_next_two_occurrences_of_all_schedules() -> None:
    hour = timedelta(hours=1)
    assert interval_of([every("1h")], NOON) == hour
    assert interval_of([every("1h"), cron("20 * * * *")], NOON) == hour * 2 / 3
    assert interval_of([cron("0 9 * * *"), cron("0 9 * * MON")], NOON) == 24 * hour
    assert interval_of([], NOON) is None
