"""Verify: a healthy history is clean, and every way to falsify it is found."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from asyncpg import ReadOnlySQLTransactionError

from bellringer.core.policies import AfterCompletion, Misfire, Missed, Overlap
from bellringer.engine.backfill import run_backfills
from bellringer.errors import InvalidInput, NotFound
from bellringer.schedule import HolidayCalendar, at, cron, delay, every
from bellringer.store import backfills, jobs
from bellringer.store.connection_pool import connect
from bellringer.verify import VerifyScope, checker, verify

if TYPE_CHECKING:
    from uuid import UUID

    from tests.integration.verify.conftest import Check
    from tests.support.engine_harness import EngineHarness


async def walk(harness: EngineHarness, seconds: int, step: float = 1, lead: float = 0) -> None:
    """Let time pass, and tick all the while."""
    for _ in range(int(seconds / step)):
        await harness.pass_time(step)
        await harness.tick_all(lead=lead)
        await harness.ring(lead=lead)


async def number(harness: EngineHarness, expression: str) -> int:
    found: int = await harness.value("select schedule_id from schedules where expression = $1", expression)
    return found


@pytest.fixture
async def tens(harness: EngineHarness) -> UUID:
    """A job every ten seconds, a minute of whose life is over."""
    job_id = await harness.job("tens", every("10s"))
    await walk(harness, 60, step=5)
    return job_id


# Healthy histories


async def test_a_quiet_minute_is_clean(harness: EngineHarness, check: Check, tens: UUID) -> None:
    verified = await check()
    assert verified.told == []
    assert verified.summary.clean
    assert (verified.summary.jobs, verified.summary.expected, verified.summary.created) == (1, 6, 6)


async def test_jobs_that_are_done_and_deleted_are_clean(harness: EngineHarness, check: Check) -> None:
    await harness.job("kept", at(harness.after(3)))
    await harness.job("gone", at(harness.after(3)), after_completion=AfterCompletion.DELETE)
    await harness.job("ended", every("2s"), ends_at=harness.after(5), after_completion=AfterCompletion.DELETE)
    await walk(harness, 7, lead=1)
    seat = await harness.join_worker()
    await harness.end(seat, await harness.claim(seat))
    assert (await jobs.finish(harness.store, None, 10)).jobs == 3
    assert (await jobs.delete_done(harness.store, None, 10)).jobs == 2
    await walk(harness, 5)
    verified = await check()
    assert (verified.told, verified.summary.expected, verified.summary.created) == ([], 4, 4)


async def test_a_life_of_edits_pauses_and_deletion_is_clean(harness: EngineHarness, check: Check) -> None:
    job_id = await harness.job("life", every("3s"))
    other = await harness.job("other", every("2s"))
    await walk(harness, 9, lead=1)
    await harness.change(job_id, harness.definition("life", every("5s")))  # at an instant of the old schedule
    await walk(harness, 11, lead=1)
    await harness.pause(job_id)  # at an instant of both
    await walk(harness, 7, lead=1)
    await harness.change(job_id, harness.definition("life", every("4s")))
    await harness.resume(job_id)
    await walk(harness, 10, lead=1)
    await harness.change(job_id, harness.definition("life", every("4s"), enabled=False))
    await walk(harness, 10, lead=1)
    await harness.change(job_id, harness.definition("life", cron("*/5 * * * * *", seconds=True)))
    await walk(harness, 10, lead=1)
    await harness.retire(job_id)
    await walk(harness, 10, lead=1)
    verified = await check()
    assert verified.told == []
    assert verified.summary.created == verified.summary.expected > 40
    only = await check(job="other")
    assert (only.summary.jobs, only.summary.created) == (1, 33)
    assert (await check(job=str(other))).summary.created == 33


async def test_an_outage_is_clean_because_its_gaps_show(harness: EngineHarness, check: Check) -> None:
    await harness.job("seconds", every("1s"))
    late = await harness.job("late", every("10s"))
    await walk(harness, 10)
    await harness.pass_time(300)
    await harness.change(late, harness.definition("late", every("20s")))  # while its hand is left behind
    await walk(harness, 10)
    verified = await check()
    assert verified.told == []
    assert verified.summary.gaps > 300
    assert verified.summary.late > 0
    assert ("late", 20.0) in (await check(strict=True)).told


async def test_starts_and_ends_bound_what_is_expected(harness: EngineHarness, check: Check) -> None:
    await harness.job("bounded", every("1s"), starts_at=harness.after(5), ends_at=harness.after(8))
    await walk(harness, 12)
    verified = await check()
    assert (verified.told, verified.summary.created) == ([], 4)


async def test_a_one_shot_is_expected_while_it_is_armed(harness: EngineHarness, check: Check) -> None:
    await harness.job("once", at(harness.after(5)))
    moved = await harness.job("moved", at(harness.after(6)))
    stopped = await harness.job("stopped", at(harness.after(7)))
    await walk(harness, 3)
    await harness.change(moved, harness.definition("moved", at(harness.after(9))))
    await harness.retire(stopped)
    await walk(harness, 10)
    verified = await check()
    assert (verified.told, verified.summary.expected, verified.summary.created) == ([], 2, 2)


async def test_a_delay_names_no_instants_and_is_counted_as_such(harness: EngineHarness, check: Check) -> None:
    await harness.job("rest", delay("2s"))
    await walk(harness, 5)
    verified = await check()
    assert (verified.told, verified.summary.delays, verified.summary.expected) == ([], 1, 0)


async def test_schedules_that_fire_together_are_one_occurrence(harness: EngineHarness, check: Check) -> None:
    await harness.job("both", every("2s"), every("3s"))
    await walk(harness, 12)
    verified = await check()
    assert (verified.told, verified.summary.expected) == ([], 8)


async def test_a_gap_of_one_schedule_does_not_contradict_a_run_of_another(
    harness: EngineHarness, check: Check, forge: Any
) -> None:
    job_id = await harness.job("both", every("2s"), every("3s"))
    await walk(harness, 12)
    threes = await number(harness, "3s")
    await harness.sql("delete from runs where job_id = $1 and scheduled_for = $2", job_id, harness.after(3))
    await forge.gap(harness, job_id, harness.after(3), harness.after(7), threes)  # 6 is the other's too, and ran
    verified = await check()
    assert (verified.told, verified.summary.gaps) == ([], 1)
    await forge.gap(harness, job_id, harness.after(6), harness.after(7), await number(harness, "2s"))
    assert (await check()).told == [("double", 6.0)]


async def test_a_gap_of_one_schedule_does_not_explain_what_another_missed(
    harness: EngineHarness, check: Check, forge: Any
) -> None:
    job_id = await harness.job("both", every("2s"), every("3s"))
    await walk(harness, 12)
    await harness.sql("delete from runs where job_id = $1 and scheduled_for < $2", job_id, harness.after(7))
    await forge.gap(harness, job_id, harness.after(0), harness.after(7), await number(harness, "3s"))
    assert (await check()).told == [("missing", 2.0), ("missing", 4.0), ("missing", 6.0)]
    await forge.gap(harness, job_id, harness.after(0), harness.after(7), await number(harness, "2s"))
    assert (await check()).told == []


async def test_what_was_cancelled_ahead_of_its_time_may_outlive_an_edit(harness: EngineHarness, check: Check) -> None:
    job_id = await harness.job("once", at(harness.after(60)))
    await harness.cancel(harness.key(job_id, 60))
    await harness.change(job_id, harness.definition("once", at(harness.after(20))))
    await walk(harness, 70, step=5)
    verified = await check()
    assert (verified.told, verified.summary.owed, verified.summary.created) == ([], 1, 1)


async def test_a_run_that_an_edit_overtook_is_owed_and_one_long_after_it_is_not(
    harness: EngineHarness, check: Check, forge: Any, tens: UUID
) -> None:
    await harness.pass_time(5)
    await forge.run(harness, tens, harness.after(70))  # born ahead and taken, while the edit waited for its lock
    await forge.run(harness, tens, harness.after(80))
    await harness.pause(tens)
    await harness.pass_time(30)
    verified = await check()
    assert (verified.told, verified.summary.owed) == ([("unexpected", 80.0)], 1)


async def test_a_gap_does_not_contradict_a_run_of_before_an_edit(harness: EngineHarness, check: Check) -> None:
    job_id = await harness.job("both", every("1s"), every("2s"))
    await harness.pass_time(1)
    await harness.tick_all()
    await harness.sql(
        "update cohorts set next_at = $1 where schedule_id = $2", harness.after(9), await number(harness, "1s")
    )
    await harness.tick(lead=1)  # 2 is born by one of them only …
    await harness.sql(
        "update cohorts set next_at = $1 where schedule_id = $2", harness.after(2), await number(harness, "1s")
    )
    await harness.cancel(harness.key(job_id, 2))
    await harness.change(job_id, harness.definition("both", every("1s")))
    await harness.pass_time(200)
    await harness.tick_all()  # … and the other's hand passes over it
    verified = await check()
    assert (verified.told, verified.summary.created) == ([], 3)


# Policies


async def test_skipped_runs_are_reported_by_their_reason_and_did_not_run(harness: EngineHarness, check: Check) -> None:
    await harness.job("slow", every("10s"), overlap=Overlap.SKIP)
    await harness.job("collapsing", every("10s"), overlap=Overlap.COLLAPSE)
    await harness.job("tagged", every("10s"), tags=("cold",))
    await harness.sql(
        "insert into freezes (tenant_id, name, from_at, to_at, policy, tags, made_by, made_at)"
        " values (1, 'feast', $1, $2, 'skip', '{cold}', 'me', $1)",
        harness.after(15),
        harness.after(35),
    )
    seat = await harness.join_worker()
    await walk(harness, 10, step=5)
    await harness.claim(seat)  # the first of each is under way from now on
    await walk(harness, 30, step=5)
    verified = await check()
    assert (verified.told, verified.summary.expected, verified.summary.created) == ([], 12, 5)
    assert verified.summary.skipped == {"overlap": 3, "coalesced": 2, "freeze": 2}


async def test_an_open_catch_up_is_pending_and_one_that_ended_explains_nothing(
    harness: EngineHarness, check: Check
) -> None:
    job_id = await harness.job("all", every("10s"), misfire=Misfire.FIRE_ALL, overlap=Overlap.SKIP)
    await harness.pass_time(300)
    await harness.tick_all()
    verified = await check()
    assert (verified.told, verified.summary.pending, verified.summary.created) == ([], 29, 1)
    seat = await harness.join_worker()
    for _ in range(3):
        await harness.end(seat, await harness.claim(seat))
        await run_backfills(harness.store, harness.catalog, harness.holding, await harness.now())
    verified = await check()
    assert (verified.told, verified.summary.pending, verified.summary.created) == ([], 26, 4)
    await harness.sql("update backfills set state = 'done'")
    assert [second for _, second in (await check()).told] == [40.0 + 10 * n for n in range(26)]
    await harness.sql("update backfills set state = 'running'")
    await backfills.end(harness.store, await harness.value("select backfill_id from backfills"), 1, "cancelled", None)
    verified = await check()
    assert (verified.told, verified.summary.pending, verified.summary.gaps) == ([], 0, 26)
    assert await harness.value("select count(*) from gaps where job_id = $1", job_id) == 1


@pytest.mark.parametrize(("missed", "ran"), [(Missed.SKIP, 0), (Missed.LATEST, 1), (Missed.ALL, 6)])
async def test_what_is_run_of_a_pause_after_all_is_expected_and_only_that(
    harness: EngineHarness, check: Check, forge: Any, missed: Missed, ran: int
) -> None:
    job_id = await harness.job("paused", every("10s"))
    await harness.pause(job_id)
    await harness.pass_time(60)
    await harness.resume(job_id, missed)
    verified = await check()
    assert (verified.told, verified.summary.pending) == ([], ran)
    await harness.hold()
    await run_backfills(harness.store, harness.catalog, harness.holding, await harness.now())
    verified = await check()
    assert (verified.told, verified.summary.pending, verified.summary.created) == ([], 0, ran)
    await harness.sql("delete from runs where scheduled_for = $1", harness.after(60))
    assert (await check()).told == ([("missing", 60.0)] if ran else [])
    await forge.run(harness, job_id, harness.after(55))
    assert ("unexpected", 55.0) in (await check()).told


async def test_a_pause_that_changed_its_schedule_is_caught_up_by_the_new_one(
    harness: EngineHarness, check: Check
) -> None:
    job_id = await harness.job("paused", every("10s"))
    await harness.pause(job_id)
    await harness.pass_time(30)
    await harness.change(job_id, harness.definition("paused", every("7s")))
    await harness.pass_time(30)
    await harness.resume(job_id, Missed.ALL)
    await harness.hold()
    await run_backfills(harness.store, harness.catalog, harness.holding, await harness.now())
    verified = await check()
    assert verified.told == []
    assert verified.summary.created == await harness.value("select count(*) from runs where cause = 'catchup'") > 6


async def test_jitter_moves_the_start_and_not_the_instant(harness: EngineHarness, check: Check) -> None:
    await harness.job("jittered", every("10s"), jitter=timedelta(seconds=8))
    seat = await harness.join_worker()
    for _ in range(30):
        await walk(harness, 1, lead=1)
        await harness.end(seat, await harness.claim(seat))
    verified = await check()
    assert (verified.told, verified.summary.created) == ([], 3)


async def test_days_off_are_read_from_the_database(
    harness: EngineHarness, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = harness.noon.date()
    calendar = HolidayCalendar(name="rest", dates=frozenset({day}), weekend=frozenset())
    await harness.sql(
        "insert into days_off (digest, dates, weekend) values ($1, $2, '{}')", calendar.digest, sorted(calendar.dates)
    )
    await harness.sql(
        "insert into calendars (tenant_id, name, version, digest, changed_at, changed_by)"
        " values (1, 'rest', 1, $1, now(), 'me')",
        calendar.digest,
    )
    await harness.job("workdays", cron("0 * * * *", calendar="rest"))
    await harness.set_clock(harness.noon + timedelta(hours=14))
    await harness.tick_all()
    monkeypatch.setattr("bellringer.schedule.holiday_calendars._calendars_by_digest", {})
    verified = await check()
    assert (verified.told, verified.summary.expected, verified.summary.unreadable) == ([], 3, 0)
    monkeypatch.setattr("bellringer.schedule.holiday_calendars._calendars_by_digest", {})
    await harness.sql("delete from calendars")
    await harness.sql("delete from days_off")
    assert (await check()).summary.unreadable == 1


# Falsified histories


async def test_a_run_that_is_gone_is_missing(harness: EngineHarness, check: Check, tens: UUID) -> None:
    await harness.sql("delete from runs where job_id = $1 and scheduled_for = $2", tens, harness.after(30))
    verified = await check()
    assert verified.told == [("missing", 30.0)]
    assert not verified.summary.clean


async def test_a_job_that_was_never_fired_is_missing_all(harness: EngineHarness, check: Check) -> None:
    await harness.job("forgotten", every("10s"))
    await harness.pass_time(60)
    assert [kind for kind, _ in (await check()).told] == ["missing"] * 6


async def test_a_gap_over_a_run_is_double(harness: EngineHarness, check: Check, forge: Any, tens: UUID) -> None:
    await forge.gap(harness, tens, harness.after(15), harness.after(30))
    assert (await check()).told == [("double", 20.0)]


async def test_a_second_run_of_an_occurrence_is_double(
    harness: EngineHarness, check: Check, forge: Any, tens: UUID
) -> None:
    await forge.run(harness, tens, harness.after(20), slot=1)
    assert (await check()).told == [("double", 20.0)]


async def test_a_run_at_a_wrong_instant_is_unexpected(
    harness: EngineHarness, check: Check, forge: Any, tens: UUID
) -> None:
    await forge.run(harness, tens, harness.after(23))
    assert (await check()).told == [("unexpected", 23.0)]


async def test_a_run_before_creation_or_while_paused_is_unexpected(
    harness: EngineHarness, check: Check, forge: Any, tens: UUID
) -> None:
    await harness.pause(tens)
    await harness.pass_time(60)
    await forge.run(harness, tens, harness.after(-10))
    await forge.run(harness, tens, harness.after(100))
    assert (await check()).told == [("unexpected", -10.0), ("unexpected", 100.0)]


async def test_an_attempt_before_its_time_is_early(harness: EngineHarness, check: Check, tens: UUID) -> None:
    seat = await harness.join_worker()
    await harness.end(seat, await harness.claim(seat))
    assert (await check()).told == []
    await harness.sql(
        "update attempts set started_at = scheduled_for - interval '1 ms' where job_id = $1 and scheduled_for = $2",
        tens,
        harness.after(10),
    )
    assert (await check()).told == [("early", 10.0)]


async def test_a_gap_explains_only_what_lies_in_it(
    harness: EngineHarness, check: Check, forge: Any, tens: UUID
) -> None:
    await harness.sql("delete from runs where job_id = $1", tens)
    await forge.gap(harness, tens, harness.after(20), harness.after(40))
    assert [second for _, second in (await check()).told] == [10.0, 40.0, 50.0, 60.0]


# Windows and choices


async def test_it_cannot_write_and_leaves_no_setting_behind(
    harness: EngineHarness, dsn: str, tens: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pooler hands the session to the next client."""
    connection = await connect(dsn)
    scope = VerifyScope(start=harness.noon, end=harness.after(60))
    try:
        await harness.pass_time(120)
        await verify(connection, scope, print)
        left = "select name from pg_settings where source = 'session' and name ~ '^enable_|read_only'"
        assert await connection.fetch(left) == []

        async def write(*_: object) -> None:
            await connection.execute("delete from runs")

        monkeypatch.setattr(checker, "find_stranded", write)
        with pytest.raises(ReadOnlySQLTransactionError):
            await verify(connection, scope, print)
    finally:
        await connection.close()


async def test_a_window_is_without_its_end_and_the_youngest_are_not_judged(
    harness: EngineHarness, check: Check, tens: UUID
) -> None:
    verified = await check(start=harness.after(10), end=harness.after(30))
    assert verified.summary.expected == 2
    with pytest.raises(InvalidInput, match="nothing can be judged"):
        await check(start=harness.after(500))


async def test_another_tenants_jobs_are_not_looked_at(harness: EngineHarness, check: Check, tens: UUID) -> None:
    await harness.tenants(1)
    assert (await check(tenant="t1")).summary.jobs == 0
    with pytest.raises(NotFound, match="no tenant 'nobody'"):
        await check(tenant="nobody")
    with pytest.raises(NotFound, match="no job 'nothing'"):
        await check(job="nothing")


async def test_many_jobs_and_rows_are_read_page_by_page(
    harness: EngineHarness, check: Check, forge: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bellringer.verify.checker.JOBS_PER_PAGE", 3)
    monkeypatch.setattr("bellringer.verify.checker.ROWS_PER_PAGE", 4)
    made = await harness.register(*(harness.definition(f"j{n}", every(f"{n + 1}s")) for n in range(8)))
    await walk(harness, 12)
    assert (await check()).told == []
    for seconds in (2, 4, 6, 8, 10):
        await harness.sql(
            "delete from runs where job_id = $1 and scheduled_for = $2", made[0].job_id, harness.after(seconds)
        )
        await forge.gap(harness, made[0].job_id, harness.after(seconds), harness.after(seconds + 1))
    await harness.sql("delete from runs where job_id = $1", made[7].job_id)
    verified = await check()
    assert (verified.told, verified.summary.gaps) == ([("missing", 8.0)], 5)
