"""Attempts that must be stopped: by their timeout, for want of a heartbeat, by a cancel, with the worker."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from bellringer.core.runs import Outcome
from bellringer.errors import Cancelled

if TYPE_CHECKING:
    from tests.integration.worker.conftest import ExecutorHarness


# --- time -------------------------------------------------------------------------------------------------


async def test_a_coroutine_that_takes_too_long_is_stopped(executor_harness: ExecutorHarness) -> None:
    cleaned = executor_harness.flag()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    ending = await executor_harness.run(work, timeout=0.02)
    assert ending.outcome is Outcome.TIMED_OUT
    assert cleaned.is_set()
    assert executor_harness.error(ending)["message"] == "still running after its timeout of 20ms"
    assert "TimeoutError" in executor_harness.error(ending)["lineage"]
    assert "await asyncio.Event().wait()" in executor_harness.error(ending)["traceback"]
    assert ending.ran >= 0.015
    assert executor_harness.executor.stray == 0


async def test_a_thread_that_takes_too_long_is_left_behind_and_counted(executor_harness: ExecutorHarness) -> None:
    release = threading.Event()

    def hang() -> None:
        release.wait()

    def quick() -> int:
        return 1

    for _ in range(2):  # as many as there are threads
        ending = await executor_harness.run(hang, timeout=0.02)
        assert ending.outcome is Outcome.TIMED_OUT
        assert "release.wait()" in executor_harness.error(ending)["traceback"]
    assert executor_harness.executor.stray == 2
    assert [line.level for line in executor_harness.lines] == ["warning", "warning"]
    assert (await executor_harness.run(quick)).result == 1  # others have taken their places
    release.set()
    await executor_harness.until(lambda: executor_harness.executor.stray == 0)
    assert (await executor_harness.run(quick)).result == 1


async def test_the_time_spent_waiting_for_a_thread_does_not_count(executor_harness: ExecutorHarness) -> None:
    release, started = threading.Event(), threading.Semaphore(0)

    def hold() -> None:
        started.release()
        release.wait()

    def quick() -> int:
        return 1

    holders = [asyncio.create_task(executor_harness.run(hold)) for _ in range(2)]
    await asyncio.to_thread(lambda: [started.acquire() for _ in range(2)])
    waiting = asyncio.create_task(executor_harness.run(quick, timeout=0.02))
    await asyncio.sleep(0.06)
    assert not waiting.done()
    release.set()
    assert (await waiting).result == 1
    await asyncio.gather(*holders)


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_a_handler_without_a_sign_of_life_is_taken_for_hung(
    executor_harness: ExecutorHarness, colour: str
) -> None:
    release = threading.Event()

    async def async_work(ctx: Any) -> None:
        for _ in range(10):
            await asyncio.sleep(0.03)
            await ctx.heartbeat()
        await asyncio.Event().wait()

    def sync_work(ctx: Any) -> None:
        for done in range(10):
            release.wait(0.03)
            ctx.progress(done, 10)
        release.wait()

    ending = await executor_harness.run(async_work if colour == "async" else sync_work, heartbeat=0.25)
    release.set()
    assert ending.outcome is Outcome.TIMED_OUT
    assert executor_harness.error(ending)["message"] == "no heartbeat for 250ms"
    assert ending.ran >= 0.5


# --- cancelling -------------------------------------------------------------------------------------------


async def test_a_coroutine_is_cancelled_where_it_waits(executor_harness: ExecutorHarness) -> None:
    started = executor_harness.flag()

    async def work() -> None:
        started.set()
        await asyncio.Event().wait()

    attempt = executor_harness.work(work)
    running = executor_harness.start(attempt)
    await started.seen()
    assert executor_harness.cancel(attempt, "typo")
    ending = await running
    assert ending.outcome is Outcome.CANCELLED
    assert executor_harness.error(ending)["message"] == "typo"
    assert not executor_harness.cancel(attempt)  # it has ended


async def test_an_attempt_can_be_cancelled_before_its_first_step(executor_harness: ExecutorHarness) -> None:
    async def work() -> None:
        raise AssertionError

    attempt = executor_harness.work(work)
    running = executor_harness.start(attempt)
    await asyncio.sleep(0)
    assert executor_harness.cancel(attempt)
    assert (await running).outcome is Outcome.CANCELLED


@pytest.mark.parametrize("outcome", [Outcome.CANCELLED, Outcome.TIMED_OUT])
async def test_a_coroutine_that_refuses_to_stop_is_left_behind(
    executor_harness: ExecutorHarness, outcome: Outcome
) -> None:
    started, release = executor_harness.flag(), executor_harness.flag()

    async def stubborn() -> None:
        started.set()
        while not release.is_set():
            try:
                await release.seen()
            except asyncio.CancelledError:
                continue

    attempt = executor_harness.work(stubborn, timeout=0.02 if outcome is Outcome.TIMED_OUT else None)
    running = executor_harness.start(attempt)
    await started.seen()
    if outcome is Outcome.CANCELLED:
        assert executor_harness.cancel(attempt)
    assert (await running).outcome is outcome
    assert executor_harness.executor.stray == 1
    assert "did not stop in time" in executor_harness.lines[-1].message
    release.set()
    await executor_harness.until(lambda: executor_harness.executor.stray == 0)


async def test_a_coroutine_asked_to_stop_is_stopped_even_if_it_returns(executor_harness: ExecutorHarness) -> None:
    started = executor_harness.flag()

    async def work() -> int:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return 7
        return 8

    attempt = executor_harness.work(work)
    running = executor_harness.start(attempt)
    await started.seen()
    executor_harness.cancel(attempt)
    ending = await running
    assert (ending.outcome, ending.result) == (Outcome.CANCELLED, None)


async def test_a_thread_hears_of_the_cancel_at_its_next_safe_point(executor_harness: ExecutorHarness) -> None:
    started, asked = threading.Event(), threading.Event()

    def work(ctx: Any) -> None:
        started.set()
        asked.wait()
        assert ctx.cancelled
        ctx.check()
        raise AssertionError

    attempt = executor_harness.work(work)
    running = executor_harness.start(attempt)
    await asyncio.to_thread(started.wait)
    assert executor_harness.cancel(attempt)
    asked.set()
    ending = await running
    assert ending.outcome is Outcome.CANCELLED
    assert executor_harness.error(ending)["message"] == "not wanted"


async def test_a_thread_that_never_heard_of_the_cancel_ends_as_it_ends(executor_harness: ExecutorHarness) -> None:
    started, release = threading.Event(), threading.Event()

    def work() -> int:
        started.set()
        release.wait()
        return 7

    attempt = executor_harness.work(work)
    running = executor_harness.start(attempt)
    await asyncio.to_thread(started.wait)
    assert executor_harness.cancel(attempt)
    release.set()
    ending = await running
    assert (ending.outcome, ending.result) == (Outcome.OK, 7)


async def test_a_thread_that_ignores_the_cancel_until_its_timeout_is_cancelled(
    executor_harness: ExecutorHarness,
) -> None:
    started, release = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        release.wait()

    attempt = executor_harness.work(work, timeout=0.1)
    running = executor_harness.start(attempt)
    await asyncio.to_thread(started.wait)
    executor_harness.cancel(attempt)
    assert (await running).outcome is Outcome.CANCELLED
    release.set()


async def test_an_attempt_that_waits_for_a_thread_is_cancelled_without_being_called(
    executor_harness: ExecutorHarness,
) -> None:
    release, started = threading.Event(), threading.Semaphore(0)

    def hold() -> None:
        started.release()
        release.wait()

    def never() -> None:
        raise AssertionError

    holders = [asyncio.create_task(executor_harness.run(hold)) for _ in range(2)]
    await asyncio.to_thread(lambda: [started.acquire() for _ in range(2)])
    attempt = executor_harness.work(never)
    waiting = executor_harness.start(attempt)
    await asyncio.sleep(0)
    assert executor_harness.cancel(attempt)
    assert (await waiting).outcome is Outcome.CANCELLED
    release.set()
    assert [e.outcome for e in await asyncio.gather(*holders)] == [Outcome.OK, Outcome.OK]


async def test_raising_cancelled_unasked_is_a_failure_like_any_other(executor_harness: ExecutorHarness) -> None:
    async def work() -> None:
        raise Cancelled("I feel like it")

    assert (await executor_harness.run(work)).outcome is Outcome.FAILED


async def test_only_tearing_the_worker_down_raises(executor_harness: ExecutorHarness) -> None:
    started, stopped = executor_harness.flag(), executor_harness.flag()

    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    running = asyncio.create_task(executor_harness.run(work))
    await started.seen()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await stopped.seen()


async def test_closing_stops_what_runs(executor_harness: ExecutorHarness) -> None:
    started = executor_harness.flag()

    async def work() -> None:
        started.set()
        await asyncio.Event().wait()

    running = asyncio.create_task(executor_harness.run(work))
    await started.seen()
    await executor_harness.executor.close()
    assert (await running).outcome is Outcome.CANCELLED


# --- leaving ----------------------------------------------------------------------------------------------


def test_a_hung_thread_does_not_keep_the_worker_alive() -> None:
    script = """
import asyncio, threading
from datetime import UTC, datetime
from uuid import UUID
from bellringer.clock import SystemClock
from bellringer.core.runs import RunKey, Spec
from bellringer.core.tasks import Registry, make_task
from bellringer.worker.executor import Executor
from bellringer.worker.attempt import Work

def hang(): threading.Event().wait()

async def main():
    clock, registry = SystemClock(), Registry()
    registry.add(make_task(hang, name="hang"))
    executor = Executor(registry, clock=clock, database_now=clock.now, log=lambda line: None)
    key = RunKey(UUID(int=1), clock.now())
    work = Work(key=key, attempt=1, spent=1, task="hang", spec=Spec(timeout=0.01), claimed_at=clock.now())
    ending = await executor.execute(work)
    await executor.close()
    print(ending.outcome)

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "timed_out\n"
