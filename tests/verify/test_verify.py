"""Verify: a healthy history is clean, and every way to falsify it is found."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from asyncpg import ReadOnlySQLTransactionError

from bellringer.errors import InvalidInput, NotFound
from bellringer.lifecycle.backfill import backfill
from bellringer.policies import Misfire, Missed, Overlap
from bellringer.schedule import Calendar, at, cron, delay, every
from bellringer.store import backfills
from bellringer.store.pool import connect
from bellringer.verify import Asked, verify

if TYPE_CHECKING:
    from uuid import UUID

    from tests.lifecycle.conftest import Bench
    from tests.verify.conftest import Check


async def walk(bench: Bench, seconds: int, step: float = 1, lead: float = 0) -> None:
    """Let time pass, and tick all the while."""
    for _ in range(int(seconds / step)):
        await bench.pass_time(step)
        await bench.tick_all(lead=lead)
        await bench.ring(lead=lead)


async def number(bench: Bench, expression: str) -> int:
    found: int = await bench.value("select schedule_id from schedules where expression = $1", expression)
    return found


@pytest.fixture
async def tens(bench: Bench) -> UUID:
    """A job every ten seconds, a minute of whose life is over."""
    job_id = await bench.job("tens", every("10s"))
    await walk(bench, 60, step=5)
    return job_id


# Healthy histories


async def test_a_quiet_minute_is_clean(bench: Bench, check: Check, tens: UUID) -> None:
    verified = await check()
    assert verified.told == []
    assert verified.summary.clean
    assert (verified.summary.jobs, verified.summary.expected, verified.summary.ran) == (1, 6, 6)


async def test_a_life_of_edits_pauses_and_deletion_is_clean(bench: Bench, check: Check) -> None:
    job_id = await bench.job("life", every("3s"))
    other = await bench.job("other", every("2s"))
    await walk(bench, 9, lead=1)
    await bench.change(job_id, bench.definition("life", every("5s")))  # at an instant of the old schedule
    await walk(bench, 11, lead=1)
    await bench.pause(job_id)  # at an instant of both
    await walk(bench, 7, lead=1)
    await bench.change(job_id, bench.definition("life", every("4s")))
    await bench.resume(job_id)
    await walk(bench, 10, lead=1)
    await bench.change(job_id, bench.definition("life", every("4s"), enabled=False))
    await walk(bench, 10, lead=1)
    await bench.change(job_id, bench.definition("life", cron("*/5 * * * * *", seconds=True)))
    await walk(bench, 10, lead=1)
    await bench.retire(job_id)
    await walk(bench, 10, lead=1)
    verified = await check()
    assert verified.told == []
    assert verified.summary.ran == verified.summary.expected > 40
    only = await check(job="other")
    assert (only.summary.jobs, only.summary.ran) == (1, 33)
    assert (await check(job=str(other))).summary.ran == 33


async def test_an_outage_is_clean_because_its_gaps_tell(bench: Bench, check: Check) -> None:
    await bench.job("seconds", every("1s"))
    late = await bench.job("late", every("10s"))
    await walk(bench, 10)
    await bench.pass_time(300)
    await bench.change(late, bench.definition("late", every("20s")))  # while its hand is left behind
    await walk(bench, 10)
    verified = await check()
    assert verified.told == []
    assert verified.summary.gaps > 300
    assert verified.summary.late > 0
    assert ("late", 20.0) in (await check(strict=True)).told


async def test_starts_and_ends_bound_what_is_expected(bench: Bench, check: Check) -> None:
    await bench.job("bounded", every("1s"), starts_at=bench.after(5), ends_at=bench.after(8))
    await walk(bench, 12)
    verified = await check()
    assert (verified.told, verified.summary.ran) == ([], 4)


async def test_a_one_shot_is_expected_while_it_is_armed(bench: Bench, check: Check) -> None:
    await bench.job("once", at(bench.after(5)))
    moved = await bench.job("moved", at(bench.after(6)))
    stopped = await bench.job("stopped", at(bench.after(7)))
    await walk(bench, 3)
    await bench.change(moved, bench.definition("moved", at(bench.after(9))))
    await bench.retire(stopped)
    await walk(bench, 10)
    verified = await check()
    assert (verified.told, verified.summary.expected, verified.summary.ran) == ([], 2, 2)


async def test_a_delay_names_no_instants_and_is_counted_as_such(bench: Bench, check: Check) -> None:
    await bench.job("rest", delay("2s"))
    await walk(bench, 5)
    verified = await check()
    assert (verified.told, verified.summary.delays, verified.summary.expected) == ([], 1, 0)


async def test_schedules_that_strike_together_are_one_occurrence(bench: Bench, check: Check) -> None:
    await bench.job("both", every("2s"), every("3s"))
    await walk(bench, 12)
    verified = await check()
    assert (verified.told, verified.summary.expected) == ([], 8)


async def test_a_gap_of_one_schedule_does_not_contradict_a_run_of_another(
    bench: Bench, check: Check, forge: Any
) -> None:
    job_id = await bench.job("both", every("2s"), every("3s"))
    await walk(bench, 12)
    threes = await number(bench, "3s")
    await bench.sql("delete from runs where job_id = $1 and scheduled_for = $2", job_id, bench.after(3))
    await forge.gap(bench, job_id, bench.after(3), bench.after(7), threes)  # 6 is the other's too, and ran
    verified = await check()
    assert (verified.told, verified.summary.gaps) == ([], 1)
    await forge.gap(bench, job_id, bench.after(6), bench.after(7), await number(bench, "2s"))
    assert (await check()).told == [("double", 6.0)]


async def test_a_gap_of_one_schedule_does_not_explain_what_another_missed(
    bench: Bench, check: Check, forge: Any
) -> None:
    job_id = await bench.job("both", every("2s"), every("3s"))
    await walk(bench, 12)
    await bench.sql("delete from runs where job_id = $1 and scheduled_for < $2", job_id, bench.after(7))
    await forge.gap(bench, job_id, bench.after(0), bench.after(7), await number(bench, "3s"))
    assert (await check()).told == [("missing", 2.0), ("missing", 4.0), ("missing", 6.0)]
    await forge.gap(bench, job_id, bench.after(0), bench.after(7), await number(bench, "2s"))
    assert (await check()).told == []


async def test_what_was_cancelled_ahead_of_its_time_may_outlive_an_edit(bench: Bench, check: Check) -> None:
    job_id = await bench.job("once", at(bench.after(60)))
    await bench.cancel(bench.key(job_id, 60))
    await bench.change(job_id, bench.definition("once", at(bench.after(20))))
    await walk(bench, 70, step=5)
    verified = await check()
    assert (verified.told, verified.summary.owed, verified.summary.ran) == ([], 1, 1)


async def test_a_run_that_an_edit_overtook_is_owed_and_one_long_after_it_is_not(
    bench: Bench, check: Check, forge: Any, tens: UUID
) -> None:
    await bench.pass_time(5)
    await forge.run(bench, tens, bench.after(70))  # born ahead and taken, while the edit waited for its lock
    await forge.run(bench, tens, bench.after(80))
    await bench.pause(tens)
    await bench.pass_time(30)
    verified = await check()
    assert (verified.told, verified.summary.owed) == ([("unexpected", 80.0)], 1)


async def test_a_gap_does_not_contradict_a_run_of_before_an_edit(bench: Bench, check: Check) -> None:
    job_id = await bench.job("both", every("1s"), every("2s"))
    await bench.pass_time(1)
    await bench.tick_all()
    await bench.sql("update cohorts set next_at = $1 where schedule_id = $2", bench.after(9), await number(bench, "1s"))
    await bench.tick(lead=1)  # 2 is born by one of them only …
    await bench.sql("update cohorts set next_at = $1 where schedule_id = $2", bench.after(2), await number(bench, "1s"))
    await bench.cancel(bench.key(job_id, 2))
    await bench.change(job_id, bench.definition("both", every("1s")))
    await bench.pass_time(200)
    await bench.tick_all()  # … and the other's hand passes over it
    verified = await check()
    assert (verified.told, verified.summary.ran) == ([], 3)


# Policies


async def test_skipped_runs_are_told_by_their_reason_and_did_not_run(bench: Bench, check: Check) -> None:
    await bench.job("slow", every("10s"), overlap=Overlap.SKIP)
    await bench.job("collapsing", every("10s"), overlap=Overlap.COLLAPSE)
    await bench.job("tagged", every("10s"), tags=("cold",))
    await bench.sql(
        "insert into freezes (tenant_id, name, from_at, to_at, policy, tags, made_by, made_at)"
        " values (1, 'feast', $1, $2, 'skip', '{cold}', 'me', $1)",
        bench.after(15),
        bench.after(35),
    )
    seat = await bench.seat()
    await walk(bench, 10, step=5)
    await bench.claim(seat)  # the first of each is under way from now on
    await walk(bench, 30, step=5)
    verified = await check()
    assert (verified.told, verified.summary.expected, verified.summary.ran) == ([], 12, 5)
    assert verified.summary.skipped == {"overlap": 3, "coalesced": 2, "freeze": 2}


async def test_an_open_catch_up_is_pending_and_one_that_ended_explains_nothing(bench: Bench, check: Check) -> None:
    job_id = await bench.job("all", every("10s"), misfire=Misfire.FIRE_ALL, overlap=Overlap.SKIP)
    await bench.pass_time(300)
    await bench.tick_all()
    verified = await check()
    assert (verified.told, verified.summary.pending, verified.summary.ran) == ([], 29, 1)
    seat = await bench.seat()
    for _ in range(3):
        await bench.end(seat, await bench.claim(seat))
        await backfill(bench.store, bench.names, bench.holding, await bench.now())
    verified = await check()
    assert (verified.told, verified.summary.pending, verified.summary.ran) == ([], 26, 4)
    await bench.sql("update backfills set state = 'done'")
    assert [second for _, second in (await check()).told] == [40.0 + 10 * n for n in range(26)]
    await bench.sql("update backfills set state = 'running'")
    await backfills.end(bench.store, await bench.value("select backfill_id from backfills"), 1, "cancelled", None)
    verified = await check()
    assert (verified.told, verified.summary.pending, verified.summary.gaps) == ([], 0, 26)
    assert await bench.value("select count(*) from gaps where job_id = $1", job_id) == 1


@pytest.mark.parametrize(("missed", "ran"), [(Missed.SKIP, 0), (Missed.LATEST, 1), (Missed.ALL, 6)])
async def test_what_is_run_of_a_pause_after_all_is_expected_and_only_that(
    bench: Bench, check: Check, forge: Any, missed: Missed, ran: int
) -> None:
    job_id = await bench.job("paused", every("10s"))
    await bench.pause(job_id)
    await bench.pass_time(60)
    await bench.resume(job_id, missed)
    verified = await check()
    assert (verified.told, verified.summary.pending) == ([], ran)
    await bench.hold()
    await backfill(bench.store, bench.names, bench.holding, await bench.now())
    verified = await check()
    assert (verified.told, verified.summary.pending, verified.summary.ran) == ([], 0, ran)
    await bench.sql("delete from runs where scheduled_for = $1", bench.after(60))
    assert (await check()).told == ([("missing", 60.0)] if ran else [])
    await forge.run(bench, job_id, bench.after(55))
    assert ("unexpected", 55.0) in (await check()).told


async def test_a_pause_that_changed_its_schedule_is_caught_up_by_the_new_one(bench: Bench, check: Check) -> None:
    job_id = await bench.job("paused", every("10s"))
    await bench.pause(job_id)
    await bench.pass_time(30)
    await bench.change(job_id, bench.definition("paused", every("7s")))
    await bench.pass_time(30)
    await bench.resume(job_id, Missed.ALL)
    await bench.hold()
    await backfill(bench.store, bench.names, bench.holding, await bench.now())
    verified = await check()
    assert verified.told == []
    assert verified.summary.ran == await bench.value("select count(*) from runs where cause = 'catchup'") > 6


async def test_jitter_moves_the_start_and_not_the_instant(bench: Bench, check: Check) -> None:
    await bench.job("jittered", every("10s"), jitter=timedelta(seconds=8))
    seat = await bench.seat()
    for _ in range(30):
        await walk(bench, 1, lead=1)
        await bench.end(seat, await bench.claim(seat))
    verified = await check()
    assert (verified.told, verified.summary.ran) == ([], 3)


async def test_days_off_are_read_from_the_database(bench: Bench, check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    day = bench.noon.date()
    calendar = Calendar(name="rest", dates=frozenset({day}), weekend=frozenset())
    await bench.sql(
        "insert into days_off (digest, dates, weekend) values ($1, $2, '{}')", calendar.digest, sorted(calendar.dates)
    )
    await bench.sql(
        "insert into calendars (tenant_id, name, version, digest, changed_at, changed_by)"
        " values (1, 'rest', 1, $1, now(), 'me')",
        calendar.digest,
    )
    await bench.job("workdays", cron("0 * * * *", calendar="rest"))
    await bench.set_clock(bench.noon + timedelta(hours=14))
    await bench.tick_all()
    monkeypatch.setattr("bellringer.schedule.daysoff._known", {})
    verified = await check()
    assert (verified.told, verified.summary.expected, verified.summary.unreadable) == ([], 3, 0)
    monkeypatch.setattr("bellringer.schedule.daysoff._known", {})
    await bench.sql("delete from calendars")
    await bench.sql("delete from days_off")
    assert (await check()).summary.unreadable == 1


# Falsified histories


async def test_a_run_that_is_gone_is_missing(bench: Bench, check: Check, tens: UUID) -> None:
    await bench.sql("delete from runs where job_id = $1 and scheduled_for = $2", tens, bench.after(30))
    verified = await check()
    assert verified.told == [("missing", 30.0)]
    assert not verified.summary.clean


async def test_a_job_that_was_never_fired_is_missing_all(bench: Bench, check: Check) -> None:
    await bench.job("forgotten", every("10s"))
    await bench.pass_time(60)
    assert [kind for kind, _ in (await check()).told] == ["missing"] * 6


async def test_a_gap_over_a_run_is_double(bench: Bench, check: Check, forge: Any, tens: UUID) -> None:
    await forge.gap(bench, tens, bench.after(15), bench.after(30))
    assert (await check()).told == [("double", 20.0)]


async def test_a_second_run_of_an_occurrence_is_double(bench: Bench, check: Check, forge: Any, tens: UUID) -> None:
    await forge.run(bench, tens, bench.after(20), slot=1)
    assert (await check()).told == [("double", 20.0)]


async def test_a_run_at_a_wrong_instant_is_unexpected(bench: Bench, check: Check, forge: Any, tens: UUID) -> None:
    await forge.run(bench, tens, bench.after(23))
    assert (await check()).told == [("unexpected", 23.0)]


async def test_a_run_before_creation_or_while_paused_is_unexpected(
    bench: Bench, check: Check, forge: Any, tens: UUID
) -> None:
    await bench.pause(tens)
    await bench.pass_time(60)
    await forge.run(bench, tens, bench.after(-10))
    await forge.run(bench, tens, bench.after(100))
    assert (await check()).told == [("unexpected", -10.0), ("unexpected", 100.0)]


async def test_an_attempt_before_its_time_is_early(bench: Bench, check: Check, tens: UUID) -> None:
    seat = await bench.seat()
    await bench.end(seat, await bench.claim(seat))
    assert (await check()).told == []
    await bench.sql(
        "update attempts set started_at = scheduled_for - interval '1 ms' where job_id = $1 and scheduled_for = $2",
        tens,
        bench.after(10),
    )
    assert (await check()).told == [("early", 10.0)]


async def test_a_gap_explains_only_what_lies_in_it(bench: Bench, check: Check, forge: Any, tens: UUID) -> None:
    await bench.sql("delete from runs where job_id = $1", tens)
    await forge.gap(bench, tens, bench.after(20), bench.after(40))
    assert [second for _, second in (await check()).told] == [10.0, 40.0, 50.0, 60.0]


# Windows and choices


async def test_it_cannot_write(bench: Bench, dsn: str, tens: UUID) -> None:
    connection = await connect(dsn)
    try:
        await bench.pass_time(120)
        await verify(connection, Asked(start=bench.noon, end=bench.after(60)), print)
        with pytest.raises(ReadOnlySQLTransactionError):
            await connection.execute("delete from runs")
    finally:
        await connection.close()


async def test_a_window_is_without_its_end_and_the_youngest_are_not_judged(
    bench: Bench, check: Check, tens: UUID
) -> None:
    verified = await check(start=bench.after(10), end=bench.after(30))
    assert verified.summary.expected == 2
    with pytest.raises(InvalidInput, match="nothing can be judged"):
        await check(start=bench.after(500))


async def test_another_tenants_jobs_are_not_looked_at(bench: Bench, check: Check, tens: UUID) -> None:
    await bench.tenants(1)
    assert (await check(tenant="t1")).summary.jobs == 0
    with pytest.raises(NotFound, match="no tenant 'nobody'"):
        await check(tenant="nobody")
    with pytest.raises(NotFound, match="no job 'nothing'"):
        await check(job="nothing")


async def test_many_jobs_and_rows_are_read_page_by_page(
    bench: Bench, check: Check, forge: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bellringer.verify.check.PAGE", 3)
    monkeypatch.setattr("bellringer.verify.feed.PAGE", 4)
    made = await bench.register(*(bench.definition(f"j{n}", every(f"{n + 1}s")) for n in range(8)))
    await walk(bench, 12)
    assert (await check()).told == []
    for seconds in (2, 4, 6, 8, 10):
        await bench.sql(
            "delete from runs where job_id = $1 and scheduled_for = $2", made[0].job_id, bench.after(seconds)
        )
        await forge.gap(bench, made[0].job_id, bench.after(seconds), bench.after(seconds + 1))
    await bench.sql("delete from runs where job_id = $1", made[7].job_id)
    verified = await check()
    assert (verified.told, verified.summary.gaps) == ([("missing", 8.0)], 5)
