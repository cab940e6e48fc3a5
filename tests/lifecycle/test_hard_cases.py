"""Hard cases: two at once, crashes in between, edges of time. Each was a fault once, or might have been."""

from __future__ import annotations

import asyncio
import functools
import string
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

import asyncpg
import msgspec
import pytest

from bellringer.errors import Conflict, InvalidInput, NotFound
from bellringer.leases import Holding
from bellringer.lifecycle import claim, prune
from bellringer.lifecycle.claim import Turn
from bellringer.lifecycle.settle import decide
from bellringer.policies import Retry
from bellringer.runs import Ending, Outcome, RunKey, State, decode_id
from bellringer.schedule import delay, every
from bellringer.scheduler.wheel import Wheel
from bellringer.store import cohorts, queue
from bellringer.store.cohorts import Hand, Move
from bellringer.store.leases import PostgresLeases

if TYPE_CHECKING:
    from tests.lifecycle.conftest import Bench

FINAL = {State.SUCCEEDED, State.DEAD, State.CANCELLED}
DAY = 86_400


# Firing


async def test_two_schedules_of_one_job_that_strike_together_fire_it_once_and_hold_up_nobody(
    bench: Bench,
) -> None:
    both = await bench.job("both", every("2s"), every("3s"))
    other = await bench.job("other", every("2s"))
    for _ in range(6):
        await bench.pass_time(1)
        await bench.tick_all()
    assert await bench.fired(both) == [2, 3, 4, 6]
    assert await bench.fired(other) == [2, 4, 6]


async def test_timers_that_fell_due_on_a_day_that_nobody_made_still_ring(bench: Bench) -> None:
    await prune.make_days(bench.store, bench.noon)
    sent = await bench.send(at=bench.after(4 * DAY))
    await bench.set_clock(bench.after(10 * DAY))  # ten days without a scheduler
    await prune.make_days(bench.store, await bench.now())
    assert (await bench.ring()).fired == 1
    assert await bench.state(sent.key) is State.QUEUED


async def test_a_run_that_is_due_in_a_week_can_be_cancelled(bench: Bench) -> None:
    sent = await bench.send(at=bench.after(7 * DAY))
    assert await bench.cancel(sent.key) is State.CANCELLED
    assert await bench.state(sent.key) is State.CANCELLED


async def test_a_job_can_be_paused_after_days_without_a_scheduler(bench: Bench) -> None:
    job = await bench.job("job", every("5d", anchor=bench.noon))
    await bench.set_clock(bench.after(8 * DAY))
    await bench.pause(job)
    assert (await bench.read(job)).paused_at is not None


async def test_a_schedule_that_this_node_cannot_read_holds_up_no_other(bench: Bench) -> None:
    strange = await bench.job("strange", every("1m"))
    plain = await bench.job("plain", every("2s"))
    await bench.sql(
        "update schedules s set kind = 'rrule' from jobs j where s.schedule_id = any (j.schedule_ids) "
        "and j.job_id = $1",
        strange,
    )
    bench.names = type(bench.names)(bench.store)  # another node, which has read nothing yet
    await bench.set_clock(bench.after(60))
    for _ in range(40):
        await bench.tick()
    assert len(await bench.fired(plain)) == 30


async def test_a_hand_of_a_shard_that_is_not_held_does_not_jump(bench: Bench) -> None:
    await bench.job("job", every("1s"))
    await bench.set_clock(bench.after(1000))
    [hand] = await bench.hands()
    holding = await bench.hold()
    without = Holding(holding.holder, {s: t for s, t in holding.tokens.items() if s != hand.shard})
    await cohorts.jump(bench.store, without, [Move(hand, bench.after(990), 989)])
    assert await bench.hands() == [hand]


async def test_an_occurrence_at_the_very_instant_of_an_edit_is_not_forgotten(bench: Bench) -> None:
    """The hand is behind: the old membership covers what was before, the new one what comes after."""
    job = await bench.job("job", every("5s"))
    await bench.set_clock(bench.after(10))
    await bench.change(job, bench.definition("job", every("5s"), args=["new"]))
    await bench.tick_all()
    covered = any(gap["from_at"] <= 10 < gap["to_at"] for gap in await bench.gaps(job))
    assert 10 in await bench.fired(job) or covered


async def test_an_occurrence_at_the_very_instant_of_a_pause_or_a_resume_has_one_account(bench: Bench) -> None:
    job = await bench.job("job", every("5s"))
    await bench.set_clock(bench.after(10))
    await bench.tick_all()
    await bench.pause(job)  # 5 and 10 have run
    await bench.set_clock(bench.after(20))
    await bench.resume(job)  # 15 and 20 have not, and will not
    await bench.tick_all()
    [gap] = await bench.gaps(job)
    covered = [at for at in (5, 10, 15, 20) if gap["from_at"] <= at < gap["to_at"]]
    assert (await bench.fired(job), covered) == ([5, 10], [15, 20])


async def test_a_gap_counts_only_what_a_job_that_ended_meanwhile_has_missed(bench: Bench) -> None:
    job = await bench.job("job", every("1m"), ends_at=bench.after(180))
    await bench.set_clock(bench.after(3600))
    await bench.tick_all()
    [gap] = await bench.gaps(job)
    assert gap["count"] in (3, None)


async def test_a_jump_is_bounded_as_a_tick_is(bench: Bench) -> None:
    """300,000 members take four seconds in one call, which holds the locks of all its shards and leases."""
    await bench.share_shard()
    await bench.register(*(bench.definition(f"job {n}", every("1s")) for n in range(60)))
    await bench.set_clock(bench.after(3600))
    await bench.tick(most=20)
    assert await bench.value("select count(*) from gaps") <= 20


# Register


async def test_a_delay_job_that_is_edited_while_a_far_retry_waits_keeps_one_chain(bench: Bench) -> None:
    patient = Retry(delays=["10m"])
    job = await bench.job("job", delay("1m"), retry=patient)
    await bench.set_clock(bench.after(60))
    await bench.ring()
    seat = await bench.seat()
    await bench.fail(seat, await bench.claim_one(seat))  # its next attempt is ten minutes away
    await bench.change(job, bench.definition("job", delay("2m"), retry=patient))
    assert len(await bench.timers(job)) == 1


async def test_two_nodes_that_declare_the_same_jobs_at_once_both_succeed(bench: Bench) -> None:
    wanted = [bench.definition(f"job {n}", every("1h")) for n in range(20)]
    await asyncio.gather(*(bench.declare(*wanted) for _ in range(3)))
    wanted = [replace(d, priority=7) for d in wanted]
    await asyncio.gather(*(bench.declare(*wanted) for _ in range(3)))
    assert await bench.value("select array_agg(distinct revision) from jobs") == [2]


async def test_declaring_arguments_with_a_tuple_again_changes_nothing(bench: Bench) -> None:
    wanted = bench.definition("job", every("1h"), args=[(1, 2)], kwargs={"since": timedelta(hours=1)})
    await bench.declare(wanted)
    assert await bench.declare(wanted) == []


async def test_declaring_a_name_in_another_unicode_form_again_changes_nothing(bench: Bench) -> None:
    wanted = bench.definition("cafe\N{COMBINING ACUTE ACCENT}", every("1h"))
    await bench.declare(wanted)
    assert await bench.declare(wanted) == []


async def test_declaring_a_name_twice_in_one_call_says_so(bench: Bench) -> None:
    await bench.declare(bench.definition("job"))
    with pytest.raises((InvalidInput, Conflict)):
        await bench.declare(bench.definition("job", priority=1), bench.definition("job", priority=2))


# Claim


async def test_a_tenant_with_an_endless_backlog_does_not_starve_the_next(bench: Bench) -> None:
    [second] = await bench.tenants(1)
    for _ in range(60):
        await bench.send()
    for _ in range(3):
        await bench.send(tenant=second)
    seat, turn, served = await bench.seat(), Turn(), []
    for _ in range(4):
        taken, turn = await claim.claim(bench.store, seat, 10, turn)
        served += [claimed.tenant_id for claimed in taken]
    assert second in served


async def test_a_run_that_waits_while_its_job_is_edited_keeps_task_and_arguments_together(
    bench: Bench,
) -> None:
    job = await bench.job("job", every("1s"), task="greet", args=["hello"])
    await bench.set_clock(bench.after(1))
    await bench.tick_all()
    await bench.change(job, bench.definition("job", every("1s"), task="delete_account", args=["everything"]))
    seat = await bench.seat("greet", "delete_account")
    claimed = await bench.claim_one(seat)
    tasks = await bench.names.task_ids(["greet", "delete_account"])
    assert (claimed.task_id, claimed.spec.args) in [
        (tasks["greet"], ["hello"]),
        (tasks["delete_account"], ["everything"]),
    ]


async def test_a_run_with_very_many_attempts_does_not_block_the_claims_of_others(bench: Bench) -> None:
    """A handler that snoozes every ten seconds gets there within four days."""
    tired = await bench.send()
    await bench.sql("update queue set attempt = 32767, attempt_floor = 32767")
    fresh = await bench.send()
    taken = {claimed.key for claimed in await bench.claim(await bench.seat())}
    assert taken == {tired.key, fresh.key}


# Settle, reap and control


@pytest.mark.parametrize("wait", ["10s", "10m"])
async def test_a_retry_of_a_job_that_was_deleted_while_it_ran_comes_to_an_end(bench: Bench, wait: str) -> None:
    job = await bench.job("job", every("1s"), retry=Retry(delays=[wait]))
    await bench.set_clock(bench.after(1))
    await bench.tick_all()
    seat = await bench.seat()
    claimed = await bench.claim_one(seat)
    await bench.retire(job)
    await bench.fail(seat, claimed)
    await bench.set_clock(bench.after(1000))
    await bench.ring()
    await bench.end(seat, await bench.claim(seat))
    assert await bench.state(claimed.key) in FINAL


async def test_overlapping_reports_of_a_worker_and_its_reaper_do_not_deadlock(bench: Bench) -> None:
    for _ in range(2):
        await bench.send()
    seat = await bench.seat()
    first, second = sorted(await bench.claim(seat), key=lambda c: c.key)
    bad = Ending(outcome=Outcome.FAILED, error={"lineage": []})
    reported = [decide(first, bad), decide(second, Ending(outcome=Outcome.OK))]
    lost = [decide(claimed, Ending(outcome=Outcome.LOST)) for claimed in (first, second)]
    async with bench.store.pool.acquire() as other:
        transaction = other.transaction()
        await transaction.start()
        await other.execute("select from queue where job_id = $1 for update", first.key.job_id)
        reaping = asyncio.create_task(queue.settle(bench.store, seat.worker_id, lost))
        await blocked_by(bench, other)
        reporting = asyncio.create_task(queue.settle(bench.store, seat.worker_id, reported))
        await blocked_by(bench, other, waiters=2)
        await transaction.commit()
    assert await reaping + await reporting == 2


async def test_a_cancel_that_meets_a_retry_on_its_way_back_cancels_it(bench: Bench) -> None:
    sent = await bench.send()
    seat = await bench.seat()
    claimed = await bench.claim_one(seat)
    async with bench.store.pool.acquire() as other:
        transaction = other.transaction()
        await transaction.start()
        await other.execute(  # as a settle does
            "update queue set worker_id = null, available_at = bellringer.now() + interval '9 s'"
        )
        cancelling = asyncio.create_task(bench.cancel(sent.key))
        await blocked_by(bench, other)
        await transaction.commit()
    assert await cancelling in (State.CANCELLED, State.RUNNING)
    assert claimed.attempt == 1


async def test_a_run_that_was_asked_to_stop_and_given_back_is_not_run_again(bench: Bench) -> None:
    sent = await bench.send()
    seat = await bench.seat()
    claimed = await bench.claim_one(seat)
    assert await bench.cancel(sent.key) is State.RUNNING
    await queue.give_back(bench.store, seat.worker_id, [(claimed.key, claimed.attempt)])
    assert await bench.claim(seat) == []


async def test_a_snooze_between_them_does_not_hide_a_lost_attempt(bench: Bench) -> None:
    await bench.send(retry=Retry(9))
    seat = await bench.seat()
    for outcome in ("lost", "snooze", "lost", "lost"):
        claimed = await bench.claim_one(seat)
        if outcome == "snooze":
            await bench.end(seat, claimed, snooze=timedelta(0))
            continue
        [held] = await queue.held(bench.store, seat.worker_id, 10)
        batch = [decide(msgspec.structs.replace(held, lost=held.lost + 1), Ending(outcome=Outcome.LOST))]
        await queue.settle(bench.store, seat.worker_id, batch)
    assert await bench.value("select count(*) from dead_letters") == 1


async def test_a_snooze_of_a_million_years_does_not_spoil_the_batch_that_it_is_settled_in(
    bench: Bench,
) -> None:
    for _ in range(2):
        await bench.send()
    seat = await bench.seat()
    tired, plain = await bench.claim(seat)
    endings = [Ending(outcome=Outcome.OK, snooze=timedelta(days=999_999_999)), Ending(outcome=Outcome.OK)]
    batch = [decide(claimed, ending) for claimed, ending in zip((tired, plain), endings, strict=True)]
    assert await queue.settle(bench.store, seat.worker_id, batch) == 2


@pytest.mark.parametrize("failures", [38, 1000])
def test_a_wait_after_many_failures_is_the_cap_and_no_error(failures: int) -> None:
    retry = Retry(1000, base="11m", cap="1h")
    assert timedelta(0) <= retry.wait(failures) <= timedelta(hours=1)


def test_an_id_that_no_run_can_have_is_not_found() -> None:
    """A slot beyond bigint is an error in the database; and a run with two ids has two idempotency keys."""
    job, moment = UUID(int=7), datetime(2030, 1, 1, tzinfo=UTC)
    beyond = RunKey(job, moment, 1 << 63).id
    with pytest.raises(NotFound):
        decode_id(beyond)
    second_name = long_form_of(RunKey(job, moment))
    with pytest.raises(NotFound):
        decode_id(second_name)


# Leases


async def test_renewing_leases_does_not_deadlock_with_a_tick(bench: Bench) -> None:
    """With fresh statistics the renewal takes the rows as they lie in the table, the fence in order."""
    holding = await bench.hold()
    await bench.sql(  # rows move to the end of the table when they are renewed
        "do 'begin for s in reverse 30..0 loop "
        "update leases set expires_at = expires_at where shard = s; end loop; end'"
    )
    await bench.sql("analyze leases")
    shards, tokens = holding.within(range(31))
    async with bench.store.pool.acquire() as other:
        transaction = other.transaction()
        await transaction.start()
        await other.execute("select from leases where shard = 0 for update")
        fencing = asyncio.create_task(
            bench.value("select bellringer.fence($1, $2, $3)", holding.holder, shards, tokens)
        )
        await blocked_by(bench, other)
        keeper = PostgresLeases(bench.store)
        renewing = asyncio.create_task(keeper.renew(holding.holder, dict(zip(shards, tokens, strict=True))))
        await blocked_by(bench, other, waiters=2)
        await transaction.commit()
    assert await fencing == []
    assert await renewing == frozenset(shards)


def test_a_wheel_that_forgets_a_shard_keeps_the_newest_reading_of_the_others() -> None:
    wheel = Wheel()
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    wheel.put([Hand(moment + timedelta(seconds=9), 1, 1), Hand(moment, 2, 1)])
    wheel.put([Hand(moment + timedelta(seconds=5), 1, 1)])
    wheel.keep([1])
    assert wheel.take(moment + timedelta(seconds=6), 10) == [Hand(moment + timedelta(seconds=5), 1, 1)]


def long_form_of(key: RunKey) -> str:
    """The id of a run in slot 0, written as those of the other slots are."""
    signs = string.digits + string.ascii_uppercase + string.ascii_lowercase
    value = dict(zip(signs, range(62), strict=True))
    number = functools.reduce(lambda n, sign: n * 62 + value[sign], key.id.removeprefix("run_"), 0) << 64
    digits = []
    for _ in range(44):
        number, rest = divmod(number, 62)
        digits.append(signs[rest])
    return "run_" + "".join(reversed(digits))


async def blocked_by(bench: Bench, holder: asyncpg.pool.PoolConnectionProxy[asyncpg.Record], waiters: int = 1) -> None:
    """Wait until so many wait, in a row or at once, for a lock that this connection holds."""
    pid = await holder.fetchval("select pg_backend_pid()")
    waiting = """
        with recursive w (pid) as (values ($1::int) union
          select a.pid from pg_stat_activity a join w on w.pid = any (pg_blocking_pids(a.pid)))
        select count(*) - 1 from w"""
    for _ in range(500):
        if await bench.value(waiting, pid) >= waiters:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("nobody came to wait")
