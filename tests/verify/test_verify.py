"""Verify: a healthy history is clean, and every way to falsify it is found."""

from __future__ import annotations

import tracemalloc
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from asyncpg import ReadOnlySQLTransactionError

from bellringer.errors import InvalidInput, NotFound
from bellringer.schedule import at, cron, delay, every
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
    await forge.gap(bench, job_id, bench.after(3), bench.after(5))
    verified = await check()
    assert (verified.told, verified.summary.shared) == ([], 2)


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


async def test_two_hundred_thousand_runs_stream_through_little_memory(bench: Bench, check: Check) -> None:
    job_ids = [await bench.job(f"j{n}", every("1s"), overlap="allow") for n in range(5)]
    await bench.sql(
        "insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, revision, shard, pool_id,"
        " priority, cause, born_as) select job_id, $2::timestamptz + n * interval '1 s', 0, $2 + n * interval '1 s',"
        " 0, tenant_id, task_id, revision, shard, pool_id, priority, 'schedule', 'queued' from jobs,"
        " generate_series(1, 40000) n where job_id = any ($1)",
        job_ids,
        bench.noon,
    )
    await bench.sql("analyze runs")
    await bench.set_clock(bench.noon + timedelta(seconds=40_000))
    tracemalloc.start()
    try:
        verified = await check()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (verified.told, verified.summary.ran) == ([], 200_000)
    assert peak < 50_000_000
