"""Operate: operations are worked off in passes, by any node, and nothing is done twice or lost."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
import pytest

from bellringer.core.retry_policy import Retry
from bellringer.core.runs import RunKey, State
from bellringer.engine import operations as step
from bellringer.engine.job_and_run_commands import replay
from bellringer.engine.operations import OperationCursor, run_operations
from bellringer.engine.prune import Retention, prune
from bellringer.errors import Conflict, InvalidInput
from bellringer.store import operations
from bellringer.store.connection_pool import RETRYABLE_ERRORS
from bellringer.store.dead_letters import DeadLetterFilter
from bellringer.store.operations import NewOperation, OperationJobFilter, OperationRow
from bellringer.store.run_lists import RunFilter

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness


async def ask(
    harness: EngineHarness,
    action: str,
    wanted: msgspec.Struct | None = None,
    ids: list[str] | None = None,
    rate: float | None = None,
) -> int:
    number = await operations.create(
        harness.store,
        NewOperation(
            tenant_id=harness.tenant,
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


async def look(harness: EngineHarness, number: int) -> OperationRow:
    found = await operations.get(harness.store, number, harness.tenant)
    assert found is not None
    return found


async def finish(harness: EngineHarness, number: int) -> OperationRow:
    turn = OperationCursor()
    for _ in range(100):
        await run_operations(harness.store, harness.catalog, turn)
        if (await look(harness, number)).state != "running":
            return await look(harness, number)
    raise AssertionError("it never ends")


async def herd(harness: EngineHarness, count: int) -> list[UUID]:
    return [await harness.job(f"job {n}") for n in range(count)]


async def test_an_operation_goes_on_where_the_last_pass_ended(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "MAX_SINGLE_ITEMS_PER_PASS", 3)
    jobs = await herd(harness, 7)
    number = await ask(harness, "jobs.pause", OperationJobFilter())
    turn = OperationCursor()
    assert [await run_operations(harness.store, harness.catalog, OperationCursor()) for _ in range(3)] == [3, 3, 1]
    assert await run_operations(harness.store, harness.catalog, turn) == 0
    assert not turn.more
    done = await look(harness, number)
    assert (done.state, done.done, done.ended_at is not None) == ("done", 7, True)
    assert all([(await harness.read(job)).paused_reason == "because" for job in jobs])


@pytest.mark.parametrize("named", [False, True])
async def test_a_slow_pass_ends_early_and_the_next_goes_on(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    monkeypatch.setattr(step, "MAX_PASS_SECONDS", -1.0)
    jobs = await herd(harness, 3)
    sent = [(await harness.send()).key for _ in range(3)]
    pauses = await ask(
        harness, "jobs.pause", *((None, [str(job) for job in jobs]) if named else (OperationJobFilter(),))
    )
    cancels = await ask(harness, "runs.cancel", *((None, [key.id for key in sent]) if named else (RunFilter(),)))
    assert [await run_operations(harness.store, harness.catalog, OperationCursor()) for _ in range(3)] == [1, 1, 1]
    assert (await finish(harness, pauses)).done == 3
    assert (await finish(harness, cancels)).done == 3
    assert {await harness.state(key) for key in sent} == {State.CANCELLED}


async def test_an_operation_that_another_node_processes_is_skipped(harness: EngineHarness) -> None:
    await herd(harness, 2)
    first = await ask(harness, "jobs.pause", OperationJobFilter())
    async with operations.claim_next(harness.store, 0, 10) as found:
        assert found is not None
        assert await run_operations(harness.store, harness.catalog, OperationCursor()) == 0
        second = await ask(harness, "jobs.run", OperationJobFilter())
        assert await run_operations(harness.store, harness.catalog, OperationCursor()) == 2
    assert (await look(harness, second)).state == "done"
    assert (await finish(harness, first)).done == 2


async def test_two_nodes_share_many_operations(harness: EngineHarness) -> None:
    jobs = await herd(harness, 5)
    numbers = [await ask(harness, "jobs.run", OperationJobFilter()) for _ in range(6)]

    async def node() -> int:
        turn, done = OperationCursor(), 0
        for _ in range(20):
            done += await run_operations(harness.store, harness.catalog, turn)
        return done

    assert sum(await asyncio.gather(node(), node(), node())) == 30
    assert [(await look(harness, number)).done for number in numbers] == [5] * 6
    assert await harness.value("select count(*) from runs") == 30
    assert await harness.value("select count(distinct job_id) from queue") == len(jobs)


async def test_a_pass_that_was_cut_off_is_repeated_and_runs_nothing_twice(harness: EngineHarness) -> None:
    jobs = await herd(harness, 4)
    number = await ask(harness, "jobs.run", OperationJobFilter())

    async def killed() -> None:
        async with operations.claim_next(harness.store, 0, 10) as found:
            assert found is not None
            for job in jobs[:3]:
                await operations.create_run(harness.store, job, harness.tenant, number)
            raise ZeroDivisionError  # before it could say how far it came

    with pytest.raises(ZeroDivisionError):
        await killed()
    assert (await look(harness, number)).done == 0
    assert (await finish(harness, number)).done == 4
    assert await harness.value("select count(*) from runs") == 4
    assert await harness.value("select count(*) from queue") == 4


async def test_a_node_that_was_stopped_loses_its_place(harness: EngineHarness) -> None:
    """The server ends a transaction that does nothing for long; whoever comes back writes no progress."""
    jobs = await herd(harness, 3)
    number = await ask(harness, "jobs.run", OperationJobFilter())

    async def stopped() -> None:
        async with operations.claim_next(harness.store, 0, 10) as found:
            assert found is not None
            found[1].done, found[1].is_finished = 99, True
            await harness.sql(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where state = 'idle in transaction' and datname = current_database()"
            )
            assert (await finish(harness, number)).done == 3
            await operations.create_run(
                harness.store, jobs[0], harness.tenant, number
            )  # it still believes that it works

    with pytest.raises(RETRYABLE_ERRORS):
        await stopped()
    assert (await look(harness, number)).done == 3
    assert await harness.value("select count(*) from runs") == 3


async def test_a_rate_is_kept_and_what_it_did_not_use_is_not_made_up_for(harness: EngineHarness) -> None:
    await herd(harness, 30)
    number = await ask(harness, "jobs.pause", OperationJobFilter(), rate=60)  # one a second

    async def after(seconds: float) -> int:
        await harness.pass_time(seconds)
        return await run_operations(harness.store, harness.catalog, OperationCursor())

    assert [await after(0), await after(0), await after(1), await after(0.5), await after(3.5)] == [1, 0, 1, 0, 4]
    assert await after(3600) == 11
    assert (await look(harness, number)).done == 17


async def test_what_comes_later_is_left_alone(harness: EngineHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "MAX_SINGLE_ITEMS_PER_PASS", 2)
    monkeypatch.setattr(step, "MAX_BATCH_ITEMS_PER_PASS", 2)
    await herd(harness, 3)
    jobs = await ask(harness, "jobs.pause", OperationJobFilter())
    seat = await harness.join_worker()
    sent = [await harness.send(retry=Retry.parse(1)) for _ in range(3)]
    await harness.fail(seat, await harness.claim(seat))
    await harness.pass_time(1)
    letters = await ask(harness, "dead_letters.redrive", DeadLetterFilter())
    await run_operations(harness.store, harness.catalog, OperationCursor())
    await harness.pass_time(1)
    await harness.job("later")
    assert (await finish(harness, jobs)).done == 3
    turn = OperationCursor()
    await run_operations(harness.store, harness.catalog, turn)
    await harness.fail(seat, await harness.claim(seat))  # they die again at once, and must not come round
    assert (await finish(harness, letters)).done == len(sent)
    assert await harness.value("select count(*) from dead_letters") <= len(sent)


async def test_runs_of_a_filter_are_cancelled_page_by_page(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "MAX_SINGLE_ITEMS_PER_PASS", 2)
    sent = [(await harness.send()).key for _ in range(5)]
    other = (await harness.send(pool="long")).key
    number = await ask(harness, "runs.cancel", RunFilter(states=("queued",), pool="short"))
    assert (await finish(harness, number)).done == 5
    assert {await harness.state(key) for key in sent} == {State.CANCELLED}
    assert await harness.state(other) is State.QUEUED


async def test_failures_are_counted_and_a_few_are_reported(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any) -> None:
        raise InvalidInput("it cannot be", code="never")

    jobs = await herd(harness, 25)
    monkeypatch.setitem(step.ACTIONS, "jobs.pause", refuse)
    failed = await finish(harness, await ask(harness, "jobs.pause", OperationJobFilter()))
    assert (failed.state, failed.done, failed.failed, len(failed.failures)) == ("done", 0, 25, 20)
    assert failed.failures[0] == {"id": str(min(jobs)), "code": "never", "detail": "it cannot be"}


async def test_what_is_gone_or_done_is_skipped(harness: EngineHarness) -> None:
    job = await harness.job("gone")
    await harness.retire(job)
    skipped = await finish(harness, await ask(harness, "jobs.run", ids=[str(job)]))
    assert (skipped.done, skipped.skipped) == (0, 1)
    sent = await harness.send()
    number = await ask(harness, "runs.retry", ids=[sent.key.id])
    assert (await finish(harness, number)).skipped == 1


async def test_a_count_gives_up_where_few_fit(harness: EngineHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    await herd(harness, 6)
    monkeypatch.setattr(operations, "MAX_JOBS_SCANNED", 2)
    now = await harness.now()
    wanted = msgspec.json.encode(OperationJobFilter(q="nothing")).decode()
    assert await step.count_items(harness.store, harness.tenant, "jobs.pause", wanted, now) == (0, True, [])
    monkeypatch.setattr(step, "MAX_COUNT_SCANS", 2)
    assert await step.count_items(harness.store, harness.tenant, "jobs.pause", wanted, now) == (0, False, [])
    assert (await step.count_items(harness.store, harness.tenant, "jobs.pause", "{}", now))[:2] == (4, False)


async def test_old_operations_are_forgotten_and_open_ones_are_not(harness: EngineHarness) -> None:
    ended, begun = (
        await ask(harness, "jobs.pause", OperationJobFilter()),
        await ask(harness, "jobs.pause", OperationJobFilter(), rate=1),
    )
    await harness.sql("update operations set state = 'done', ended_at = created_at where operation_id = $1", ended)
    await prune(harness.store, await harness.now() + timedelta(days=89), Retention())
    assert await operations.get(harness.store, ended, harness.tenant) is not None
    await prune(harness.store, await harness.now() + timedelta(days=91), Retention())
    assert await operations.get(harness.store, ended, harness.tenant) is None
    assert (await look(harness, begun)).state == "running"


# Replay


async def test_replays_at_once_get_slots_of_their_own(harness: EngineHarness) -> None:
    seat = await harness.join_worker()
    key = (await harness.send()).key
    await harness.end(seat, await harness.claim(seat))
    again = await asyncio.gather(*(replay(harness.store, key, tenant_id=harness.tenant) for _ in range(5)))
    assert sorted(run.slot for run in again) == [1, 2, 3, 4, 5]
    assert len(await harness.claim(seat)) == 5


async def test_only_what_has_ended_is_replayed(harness: EngineHarness) -> None:
    seat = await harness.join_worker()
    key = (await harness.send()).key
    with pytest.raises(Conflict):
        await replay(harness.store, key, tenant_id=harness.tenant)
    await harness.claim(seat)
    with pytest.raises(Conflict):
        await replay(harness.store, key, tenant_id=harness.tenant)
    with pytest.raises(LookupError):
        await replay(harness.store, RunKey(key.job_id, key.scheduled_for, 9), tenant_id=harness.tenant)
    with pytest.raises(LookupError):
        await replay(harness.store, key, tenant_id=99)


async def test_of_one_tenant_the_one_that_waits_longest_is_next(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "MAX_SINGLE_ITEMS_PER_PASS", 1)
    await herd(harness, 3)
    numbers = [await ask(harness, "jobs.run", OperationJobFilter()) for _ in range(3)]
    for _ in numbers:
        await harness.pass_time(1)
        await run_operations(harness.store, harness.catalog, OperationCursor())
    assert [(await look(harness, number)).done for number in numbers] == [1, 1, 1]


async def test_a_tenant_has_only_so_many_operations_running(harness: EngineHarness) -> None:
    numbers = [
        await ask(harness, "jobs.pause", OperationJobFilter()) for _ in range(operations.MAX_RUNNING_PER_TENANT - 1)
    ]
    asked = NewOperation(
        tenant_id=harness.tenant, action="jobs.pause", filter=OperationJobFilter(), ids=None, total=0,
        total_is_least=False, rate=None, who="me", reason=None,
    )  # fmt: skip
    made = await asyncio.gather(*(operations.create(harness.store, asked) for _ in range(8)))
    assert sum(number is not None for number in made) == 1
    await operations.abort(harness.store, numbers[0], harness.tenant)
    assert await operations.create(harness.store, asked) is not None
    [other] = await harness.tenants(1)
    assert await operations.create(harness.store, replace(asked, tenant_id=other)) is not None


async def test_operations_share_the_quota_of_runs(harness: EngineHarness) -> None:
    await herd(harness, 10)
    numbers = [await ask(harness, "jobs.run", OperationJobFilter(), rate=rate) for rate in (1, None)]
    await harness.sql("update tenants set quotas = '{\"fires_per_minute\": 60}' where tenant_id = $1", harness.tenant)

    async def passes(seconds: float) -> int:
        await harness.pass_time(seconds)
        return sum([await run_operations(harness.store, harness.catalog, OperationCursor()) for _ in range(4)])

    assert [await passes(0), await passes(0), await passes(1), await passes(0), await passes(3)] == [1, 0, 1, 0, 3]
    assert [(await look(harness, number)).done for number in numbers] == [1, 4]  # the slow one holds up no other
    await harness.sql("update tenants set quotas = '{\"fires_per_minute\": 0}' where tenant_id = $1", harness.tenant)
    assert await passes(3600) == 0
