"""Operate: operations are worked off in passes, by any node, and nothing is done twice or lost."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
import pytest

from bellringer.errors import Conflict, InvalidInput
from bellringer.lifecycle import operate as step
from bellringer.lifecycle.operate import Turn, operate
from bellringer.lifecycle.prune import Retention, prune
from bellringer.lifecycle.replay import replay
from bellringer.policies import Retry
from bellringer.runs import RunKey, State
from bellringer.store import operations
from bellringer.store.letters import LetterFilter
from bellringer.store.operations import Asked, JobFilter, Operation
from bellringer.store.pool import RETRYABLE
from bellringer.store.run_lists import RunFilter

if TYPE_CHECKING:
    from tests.lifecycle.conftest import Bench


async def ask(
    bench: Bench,
    action: str,
    wanted: msgspec.Struct | None = None,
    ids: list[str] | None = None,
    rate: float | None = None,
) -> int:
    number = await operations.create(
        bench.store,
        Asked(
            tenant_id=bench.tenant,
            action=action,
            filter=wanted,
            ids=ids,
            total=0,
            total_is_least=False,
            rate=rate,
            who="me",
            reason="because",
        ),
    )
    assert number is not None
    return number


async def look(bench: Bench, number: int) -> Operation:
    found = await operations.get(bench.store, number, bench.tenant)
    assert found is not None
    return found


async def finish(bench: Bench, number: int) -> Operation:
    turn = Turn()
    for _ in range(100):
        await operate(bench.store, bench.names, turn)
        if (await look(bench, number)).state != "running":
            return await look(bench, number)
    raise AssertionError("it never ends")


async def herd(bench: Bench, count: int) -> list[UUID]:
    return [await bench.job(f"job {n}") for n in range(count)]


async def test_an_operation_goes_on_where_the_last_pass_ended(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "FEW", 3)
    jobs = await herd(bench, 7)
    number = await ask(bench, "jobs.pause", JobFilter())
    turn = Turn()
    assert [await operate(bench.store, bench.names, Turn()) for _ in range(3)] == [3, 3, 1]
    assert await operate(bench.store, bench.names, turn) == 0
    assert not turn.more
    done = await look(bench, number)
    assert (done.state, done.done, done.ended_at is not None) == ("done", 7, True)
    assert all([(await bench.read(job)).paused_reason == "because" for job in jobs])


@pytest.mark.parametrize("named", [False, True])
async def test_a_slow_pass_ends_early_and_the_next_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    monkeypatch.setattr(step, "LONGEST", -1.0)
    jobs = await herd(bench, 3)
    sent = [(await bench.send()).key for _ in range(3)]
    pauses = await ask(bench, "jobs.pause", *((None, [str(job) for job in jobs]) if named else (JobFilter(),)))
    cancels = await ask(bench, "runs.cancel", *((None, [key.id for key in sent]) if named else (RunFilter(),)))
    assert [await operate(bench.store, bench.names, Turn()) for _ in range(3)] == [1, 1, 1]
    assert (await finish(bench, pauses)).done == 3
    assert (await finish(bench, cancels)).done == 3
    assert {await bench.state(key) for key in sent} == {State.CANCELLED}


async def test_what_another_node_has_in_hand_is_passed_by(bench: Bench) -> None:
    await herd(bench, 2)
    first = await ask(bench, "jobs.pause", JobFilter())
    async with operations.taken(bench.store, 0, 10) as found:
        assert found is not None
        assert await operate(bench.store, bench.names, Turn()) == 0
        second = await ask(bench, "jobs.run", JobFilter())
        assert await operate(bench.store, bench.names, Turn()) == 2
    assert (await look(bench, second)).state == "done"
    assert (await finish(bench, first)).done == 2


async def test_two_nodes_share_many_operations(bench: Bench) -> None:
    jobs = await herd(bench, 5)
    numbers = [await ask(bench, "jobs.run", JobFilter()) for _ in range(6)]

    async def node() -> int:
        turn, done = Turn(), 0
        for _ in range(20):
            done += await operate(bench.store, bench.names, turn)
        return done

    assert sum(await asyncio.gather(node(), node(), node())) == 30
    assert [(await look(bench, number)).done for number in numbers] == [5] * 6
    assert await bench.value("select count(*) from runs") == 30
    assert await bench.value("select count(distinct job_id) from queue") == len(jobs)


async def test_a_pass_that_was_cut_off_is_repeated_and_runs_nothing_twice(bench: Bench) -> None:
    jobs = await herd(bench, 4)
    number = await ask(bench, "jobs.run", JobFilter())

    async def killed() -> None:
        async with operations.taken(bench.store, 0, 10) as found:
            assert found is not None
            for job in jobs[:3]:
                await operations.run_for(bench.store, job, bench.tenant, number)
            raise ZeroDivisionError  # before it could say how far it came

    with pytest.raises(ZeroDivisionError):
        await killed()
    assert (await look(bench, number)).done == 0
    assert (await finish(bench, number)).done == 4
    assert await bench.value("select count(*) from runs") == 4
    assert await bench.value("select count(*) from queue") == 4


async def test_a_node_that_was_stopped_loses_its_place(bench: Bench) -> None:
    """The server ends a transaction that does nothing for long; whoever comes back writes no progress."""
    jobs = await herd(bench, 3)
    number = await ask(bench, "jobs.run", JobFilter())

    async def stopped() -> None:
        async with operations.taken(bench.store, 0, 10) as found:
            assert found is not None
            found[1].done, found[1].ends = 99, True
            await bench.sql(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where state = 'idle in transaction' and datname = current_database()"
            )
            assert (await finish(bench, number)).done == 3
            await operations.run_for(bench.store, jobs[0], bench.tenant, number)  # it still believes that it works

    with pytest.raises(RETRYABLE):
        await stopped()
    assert (await look(bench, number)).done == 3
    assert await bench.value("select count(*) from runs") == 3


async def test_a_rate_is_kept_and_what_it_did_not_use_is_not_made_up_for(bench: Bench) -> None:
    await herd(bench, 30)
    number = await ask(bench, "jobs.pause", JobFilter(), rate=60)  # one a second

    async def after(seconds: float) -> int:
        await bench.pass_time(seconds)
        return await operate(bench.store, bench.names, Turn())

    assert [await after(0), await after(0), await after(1), await after(0.5), await after(3.5)] == [1, 0, 1, 0, 4]
    assert await after(3600) == 11
    assert (await look(bench, number)).done == 17


async def test_what_comes_later_is_left_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "FEW", 2)
    monkeypatch.setattr(step, "MANY", 2)
    await herd(bench, 3)
    jobs = await ask(bench, "jobs.pause", JobFilter())
    seat = await bench.seat()
    sent = [await bench.send(retry=Retry.parse(1)) for _ in range(3)]
    await bench.fail(seat, await bench.claim(seat))
    await bench.pass_time(1)
    letters = await ask(bench, "dead_letters.redrive", LetterFilter())
    await operate(bench.store, bench.names, Turn())
    await bench.pass_time(1)
    await bench.job("later")
    assert (await finish(bench, jobs)).done == 3
    turn = Turn()
    await operate(bench.store, bench.names, turn)
    await bench.fail(seat, await bench.claim(seat))  # they die again at once, and must not come round
    assert (await finish(bench, letters)).done == len(sent)
    assert await bench.value("select count(*) from dead_letters") <= len(sent)


async def test_runs_of_a_filter_are_cancelled_page_by_page(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "FEW", 2)
    sent = [(await bench.send()).key for _ in range(5)]
    other = (await bench.send(pool="long")).key
    number = await ask(bench, "runs.cancel", RunFilter(states=("queued",), pool="short"))
    assert (await finish(bench, number)).done == 5
    assert {await bench.state(key) for key in sent} == {State.CANCELLED}
    assert await bench.state(other) is State.QUEUED


async def test_failures_are_counted_and_a_few_are_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: Any) -> None:
        raise InvalidInput("it cannot be", code="never")

    jobs = await herd(bench, 25)
    monkeypatch.setitem(step.ACTIONS, "jobs.pause", refuse)
    failed = await finish(bench, await ask(bench, "jobs.pause", JobFilter()))
    assert (failed.state, failed.done, failed.failed, len(failed.failures)) == ("done", 0, 25, 20)
    assert failed.failures[0] == {"id": str(min(jobs)), "code": "never", "detail": "it cannot be"}


async def test_what_is_gone_or_done_is_skipped(bench: Bench) -> None:
    job = await bench.job("gone")
    await bench.retire(job)
    skipped = await finish(bench, await ask(bench, "jobs.run", ids=[str(job)]))
    assert (skipped.done, skipped.skipped) == (0, 1)
    sent = await bench.send()
    number = await ask(bench, "runs.retry", ids=[sent.key.id])
    assert (await finish(bench, number)).skipped == 1


async def test_a_count_gives_up_where_few_fit(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await herd(bench, 6)
    monkeypatch.setattr(operations, "SCAN", 2)
    now = await bench.now()
    wanted = msgspec.json.encode(JobFilter(q="nothing")).decode()
    assert await step.count(bench.store, bench.tenant, "jobs.pause", wanted, now) == (0, True, [])
    monkeypatch.setattr(step, "LOOKS", 2)
    assert await step.count(bench.store, bench.tenant, "jobs.pause", wanted, now) == (0, False, [])
    assert (await step.count(bench.store, bench.tenant, "jobs.pause", "{}", now))[:2] == (4, False)


async def test_old_operations_are_forgotten_and_open_ones_are_not(bench: Bench) -> None:
    ended, begun = await ask(bench, "jobs.pause", JobFilter()), await ask(bench, "jobs.pause", JobFilter(), rate=1)
    await bench.sql("update operations set state = 'done', ended_at = created_at where operation_id = $1", ended)
    await prune(bench.store, await bench.now() + timedelta(days=89), Retention())
    assert await operations.get(bench.store, ended, bench.tenant) is not None
    await prune(bench.store, await bench.now() + timedelta(days=91), Retention())
    assert await operations.get(bench.store, ended, bench.tenant) is None
    assert (await look(bench, begun)).state == "running"


# Replay


async def test_replays_at_once_get_slots_of_their_own(bench: Bench) -> None:
    seat = await bench.seat()
    key = (await bench.send()).key
    await bench.end(seat, await bench.claim(seat))
    again = await asyncio.gather(*(replay(bench.store, key, tenant_id=bench.tenant) for _ in range(5)))
    assert sorted(run.slot for run in again) == [1, 2, 3, 4, 5]
    assert len(await bench.claim(seat)) == 5


async def test_only_what_has_ended_is_replayed(bench: Bench) -> None:
    seat = await bench.seat()
    key = (await bench.send()).key
    with pytest.raises(Conflict):
        await replay(bench.store, key, tenant_id=bench.tenant)
    await bench.claim(seat)
    with pytest.raises(Conflict):
        await replay(bench.store, key, tenant_id=bench.tenant)
    with pytest.raises(LookupError):
        await replay(bench.store, RunKey(key.job_id, key.scheduled_for, 9), tenant_id=bench.tenant)
    with pytest.raises(LookupError):
        await replay(bench.store, key, tenant_id=99)


async def test_of_one_tenant_the_one_that_waits_longest_is_next(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "FEW", 1)
    await herd(bench, 3)
    numbers = [await ask(bench, "jobs.run", JobFilter()) for _ in range(3)]
    for _ in numbers:
        await bench.pass_time(1)
        await operate(bench.store, bench.names, Turn())
    assert [(await look(bench, number)).done for number in numbers] == [1, 1, 1]


async def test_a_tenant_has_only_so_many_operations_running(bench: Bench) -> None:
    numbers = [await ask(bench, "jobs.pause", JobFilter()) for _ in range(operations.MOST_RUNNING - 1)]
    asked = Asked(
        tenant_id=bench.tenant, action="jobs.pause", filter=JobFilter(), ids=None, total=0, total_is_least=False,
        rate=None, who="me", reason=None,
    )  # fmt: skip
    made = await asyncio.gather(*(operations.create(bench.store, asked) for _ in range(8)))
    assert sum(number is not None for number in made) == 1
    await operations.abort(bench.store, numbers[0], bench.tenant)
    assert await operations.create(bench.store, asked) is not None
    [other] = await bench.tenants(1)
    assert await operations.create(bench.store, replace(asked, tenant_id=other)) is not None


async def test_operations_share_the_quota_of_runs(bench: Bench) -> None:
    await herd(bench, 10)
    numbers = [await ask(bench, "jobs.run", JobFilter(), rate=rate) for rate in (1, None)]
    await bench.sql("update tenants set quotas = '{\"fires_per_minute\": 60}' where tenant_id = $1", bench.tenant)

    async def passes(seconds: float) -> int:
        await bench.pass_time(seconds)
        return sum([await operate(bench.store, bench.names, Turn()) for _ in range(4)])

    assert [await passes(0), await passes(0), await passes(1), await passes(0), await passes(3)] == [1, 0, 1, 0, 3]
    assert [(await look(bench, number)).done for number in numbers] == [1, 4]  # the slow one holds up no other
    await bench.sql("update tenants set quotas = '{\"fires_per_minute\": 0}' where tenant_id = $1", bench.tenant)
    assert await passes(3600) == 0
