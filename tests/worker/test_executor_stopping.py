"""Attempts that must be stopped: by their timeout, for want of a heartbeat, by a cancel, with the worker."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from bellringer.errors import Cancelled
from bellringer.runs import Outcome

if TYPE_CHECKING:
    from tests.worker.conftest import Bench


# --- time -------------------------------------------------------------------------------------------------


async def test_a_coroutine_that_takes_too_long_is_stopped(bench: Bench) -> None:
    cleaned = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    ending = await bench.run(work, timeout=0.02)
    assert ending.outcome is Outcome.TIMED_OUT
    assert cleaned.is_set()
    assert bench.error(ending)["message"] == "still running after 20ms, its timeout"
    assert "TimeoutError" in bench.error(ending)["lineage"]
    assert "await asyncio.Event().wait()" in bench.error(ending)["traceback"]
    assert ending.ran >= 0.015
    assert bench.executor.stray == 0


async def test_a_thread_that_takes_too_long_is_left_behind_and_counted(bench: Bench) -> None:
    release = threading.Event()

    def hang() -> None:
        release.wait()

    def quick() -> int:
        return 1

    for _ in range(2):  # as many as there are threads
        ending = await bench.run(hang, timeout=0.02)
        assert ending.outcome is Outcome.TIMED_OUT
        assert "release.wait()" in bench.error(ending)["traceback"]
    assert bench.executor.stray == 2
    assert [line.level for line in bench.lines] == ["warning", "warning"]
    assert (await bench.run(quick)).result == 1  # others have taken their places
    release.set()
    await bench.until(lambda: bench.executor.stray == 0)
    assert (await bench.run(quick)).result == 1


async def test_the_time_spent_waiting_for_a_thread_does_not_count(bench: Bench) -> None:
    release, started = threading.Event(), threading.Semaphore(0)

    def hold() -> None:
        started.release()
        release.wait()

    def quick() -> int:
        return 1

    holders = [asyncio.create_task(bench.run(hold)) for _ in range(2)]
    await asyncio.to_thread(lambda: [started.acquire() for _ in range(2)])
    waiting = asyncio.create_task(bench.run(quick, timeout=0.02))
    await asyncio.sleep(0.06)
    assert not waiting.done()
    release.set()
    assert (await waiting).result == 1
    await asyncio.gather(*holders)


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_a_handler_without_a_sign_of_life_is_taken_for_hung(bench: Bench, colour: str) -> None:
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

    ending = await bench.run(async_work if colour == "async" else sync_work, heartbeat=0.25)
    release.set()
    assert ending.outcome is Outcome.TIMED_OUT
    assert bench.error(ending)["message"] == "no heartbeat for 250ms"
    assert ending.ran >= 0.5


# --- cancelling -------------------------------------------------------------------------------------------


async def test_a_coroutine_is_cancelled_where_it_waits(bench: Bench) -> None:
    started = asyncio.Event()

    async def work() -> None:
        started.set()
        await asyncio.Event().wait()

    attempt = bench.work(work)
    running = bench.start(attempt)
    await started.wait()
    assert bench.cancel(attempt, "typo")
    ending = await running
    assert ending.outcome is Outcome.CANCELLED
    assert bench.error(ending)["message"] == "typo"
    assert not bench.cancel(attempt)  # it has ended


async def test_an_attempt_can_be_cancelled_before_its_first_step(bench: Bench) -> None:
    async def work() -> None:
        raise AssertionError

    attempt = bench.work(work)
    running = bench.start(attempt)
    await asyncio.sleep(0)
    assert bench.cancel(attempt)
    assert (await running).outcome is Outcome.CANCELLED


@pytest.mark.parametrize("outcome", [Outcome.CANCELLED, Outcome.TIMED_OUT])
async def test_a_coroutine_that_refuses_to_stop_is_left_behind(bench: Bench, outcome: Outcome) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    async def stubborn() -> None:
        started.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    attempt = bench.work(stubborn, timeout=0.02 if outcome is Outcome.TIMED_OUT else None)
    running = bench.start(attempt)
    await started.wait()
    if outcome is Outcome.CANCELLED:
        assert bench.cancel(attempt)
    assert (await running).outcome is outcome
    assert bench.executor.stray == 1
    assert "left behind" in bench.lines[-1].message
    release.set()
    await bench.until(lambda: bench.executor.stray == 0)


async def test_a_coroutine_told_to_stop_is_stopped_even_if_it_returns(bench: Bench) -> None:
    started = asyncio.Event()

    async def work() -> int:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return 7
        return 8

    attempt = bench.work(work)
    running = bench.start(attempt)
    await started.wait()
    bench.cancel(attempt)
    ending = await running
    assert (ending.outcome, ending.result) == (Outcome.CANCELLED, None)


async def test_a_thread_hears_of_the_cancel_at_its_next_safe_point(bench: Bench) -> None:
    started, asked = threading.Event(), threading.Event()

    def work(ctx: Any) -> None:
        started.set()
        asked.wait()
        assert ctx.cancelled
        ctx.check()
        raise AssertionError

    attempt = bench.work(work)
    running = bench.start(attempt)
    await asyncio.to_thread(started.wait)
    assert bench.cancel(attempt)
    asked.set()
    ending = await running
    assert ending.outcome is Outcome.CANCELLED
    assert bench.error(ending)["message"] == "not wanted"


async def test_a_thread_that_never_heard_of_the_cancel_ends_as_it_ends(bench: Bench) -> None:
    started, release = threading.Event(), threading.Event()

    def work() -> int:
        started.set()
        release.wait()
        return 7

    attempt = bench.work(work)
    running = bench.start(attempt)
    await asyncio.to_thread(started.wait)
    assert bench.cancel(attempt)
    release.set()
    ending = await running
    assert (ending.outcome, ending.result) == (Outcome.OK, 7)


async def test_a_thread_that_ignores_the_cancel_until_its_timeout_is_cancelled(bench: Bench) -> None:
    started, release = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        release.wait()

    attempt = bench.work(work, timeout=0.1)
    running = bench.start(attempt)
    await asyncio.to_thread(started.wait)
    bench.cancel(attempt)
    assert (await running).outcome is Outcome.CANCELLED
    release.set()


async def test_an_attempt_that_waits_for_a_thread_is_cancelled_without_being_called(bench: Bench) -> None:
    release, started = threading.Event(), threading.Semaphore(0)

    def hold() -> None:
        started.release()
        release.wait()

    def never() -> None:
        raise AssertionError

    holders = [asyncio.create_task(bench.run(hold)) for _ in range(2)]
    await asyncio.to_thread(lambda: [started.acquire() for _ in range(2)])
    attempt = bench.work(never)
    waiting = bench.start(attempt)
    await asyncio.sleep(0)
    assert bench.cancel(attempt)
    assert (await waiting).outcome is Outcome.CANCELLED
    release.set()
    assert [e.outcome for e in await asyncio.gather(*holders)] == [Outcome.OK, Outcome.OK]


async def test_raising_cancelled_unasked_is_a_failure_like_any_other(bench: Bench) -> None:
    async def work() -> None:
        raise Cancelled("I feel like it")

    assert (await bench.run(work)).outcome is Outcome.FAILED


async def test_only_tearing_the_worker_down_raises(bench: Bench) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    running = asyncio.create_task(bench.run(work))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await stopped.wait()


async def test_closing_stops_what_runs(bench: Bench) -> None:
    started = asyncio.Event()

    async def work() -> None:
        started.set()
        await asyncio.Event().wait()

    running = asyncio.create_task(bench.run(work))
    await started.wait()
    await bench.executor.close()
    assert (await running).outcome is Outcome.CANCELLED


# --- leaving ----------------------------------------------------------------------------------------------


def test_a_hung_thread_does_not_keep_the_worker_alive() -> None:
    script = """
import asyncio, threading
from datetime import UTC, datetime
from uuid import UUID
from bellringer.clock import SystemClock
from bellringer.runs import RunKey, Spec
from bellringer.tasks import Registry, task_from
from bellringer.worker.executor import Executor
from bellringer.worker.work import Work

def hang(): threading.Event().wait()

async def main():
    clock, registry = SystemClock(), Registry()
    registry.add(task_from(hang, name="hang"))
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
