"""Coroutines that block their event loop: they are named and given up, and nobody else has to wait for them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from bellringer.core.runs import Outcome
from bellringer.worker.lanes import coroutines
from bellringer.worker.lanes.watchdog import LoopBlockReport

if TYPE_CHECKING:
    from tests.integration.worker.conftest import ExecutorHarness


async def quick() -> str:
    await asyncio.sleep(0.01)
    return threading.current_thread().name


async def test_handlers_do_not_run_on_the_service_loop(executor_harness: ExecutorHarness) -> None:
    assert (await executor_harness.run(quick)).result != threading.current_thread().name


async def test_a_blocked_loop_delays_no_one_who_has_not_begun(
    make_executor_harness: Callable[..., ExecutorHarness],
) -> None:
    blocks: list[LoopBlockReport] = []
    executor_harness = make_executor_harness(blocked=blocks.append)
    began = executor_harness.flag()

    async def block() -> str:
        began.set()
        time.sleep(3)  # noqa: ASYNC251 - that is what is tested
        return "late"

    async def beside(ctx: Any) -> int:
        await asyncio.sleep(0.01)
        return int(ctx.attempt)

    first = executor_harness.start(executor_harness.work(beside))
    await asyncio.sleep(0)
    work = executor_harness.work(block)
    culprit = executor_harness.start(work)
    await began.seen()
    started = time.monotonic()
    others = [executor_harness.run(quick) for _ in range(50)]
    assert {ending.outcome for ending in await asyncio.gather(*others)} == {Outcome.OK}
    assert time.monotonic() - started < 1.5
    ending = await culprit
    assert (ending.outcome, ending.result) == (Outcome.OK, "late")
    assert (await first).result == 2
    await executor_harness.until(lambda: bool(blocks) and blocks[-1].is_over)
    assert [(b.attempt.work.key, b.is_new, b.is_over) for b in blocks] == [
        (work.key, True, False),
        (work.key, False, True),
    ]
    assert "time.sleep(3)" in blocks[0].stack
    assert 0.9 < blocks[0].seconds < 2
    assert 1 < blocks[1].seconds < 4
    assert (await executor_harness.run(quick)).outcome is Outcome.OK


async def test_attempts_begin_once_though_their_loop_stalls_as_they_are_started(
    executor_harness: ExecutorHarness,
) -> None:
    begun: list[int] = []

    async def count(number: int) -> None:
        begun.append(number)
        if number % 20 == 0:
            time.sleep(0.7)  # noqa: ASYNC251
        await asyncio.sleep(0)

    endings = await asyncio.gather(*(executor_harness.run(count, number) for number in range(80)))
    assert {ending.outcome for ending in endings} == {Outcome.OK}
    assert sorted(begun) == list(range(80))


async def test_who_blocks_past_the_limit_fails_alone(make_executor_harness: Callable[..., ExecutorHarness]) -> None:
    executor_harness = make_executor_harness(block_limit=1.2)
    release, began = threading.Event(), executor_harness.flag()

    async def block() -> str:
        began.set()
        release.wait(20)
        return "late"

    async def beside() -> str:
        await asyncio.sleep(0.01)
        return "fine"

    neighbour = executor_harness.start(executor_harness.work(beside))
    culprit = executor_harness.start(executor_harness.work(block))
    await began.seen()
    ending = await culprit
    error = executor_harness.error(ending)
    assert (ending.outcome, error["type"]) == (Outcome.FAILED, "BlockedEventLoop")
    assert "asyncio.to_thread" in error["message"]
    assert "release.wait(20)" in error["traceback"]
    assert executor_harness.executor.stray == 1
    assert (await executor_harness.run(quick)).outcome is Outcome.OK
    release.set()
    assert (await neighbour).result == "fine"
    await executor_harness.until(lambda: executor_harness.executor.stray == 0)


async def test_a_loop_that_does_not_come_back_is_given_up_with_its_neighbours(
    make_executor_harness: Callable[..., ExecutorHarness],
) -> None:
    executor_harness = make_executor_harness(block_limit=0.4)
    release, began = threading.Event(), executor_harness.flag()
    went_on: list[str] = []

    async def block() -> None:
        began.set()
        release.wait(30)

    async def beside() -> None:
        await asyncio.sleep(0.1)
        went_on.append("after it was lost")

    neighbour = executor_harness.start(executor_harness.work(beside))
    culprit = executor_harness.start(executor_harness.work(block))
    await began.seen()
    assert executor_harness.error(await culprit)["type"] == "BlockedEventLoop"
    ending = await neighbour
    assert (ending.outcome, executor_harness.error(ending)["type"]) == (Outcome.LOST, "EventLoopLost")
    release.set()
    await executor_harness.until(lambda: executor_harness.executor.stray == 0)
    assert went_on == []


async def test_python_code_that_spins_is_broken_off(make_executor_harness: Callable[..., ExecutorHarness]) -> None:
    executor_harness = make_executor_harness(block_limit=1.2)
    stopped = executor_harness.flag()

    async def spin() -> None:
        try:
            while True:
                pass
        except Exception:  # noqa: BLE001 - it catches all that a careless handler would
            raise AssertionError from None
        finally:
            stopped.set()

    assert executor_harness.error(await executor_harness.run(spin))["type"] == "BlockedEventLoop"
    await stopped.seen()
    await executor_harness.until(lambda: executor_harness.executor.stray == 0)
    assert (await executor_harness.run(quick)).outcome is Outcome.OK


async def test_a_task_that_a_handler_starts_is_charged_to_it(
    make_executor_harness: Callable[..., ExecutorHarness],
) -> None:
    executor_harness = make_executor_harness(block_limit=1.0)
    release = threading.Event()

    async def inner() -> None:
        release.wait(20)

    async def outer() -> None:
        await asyncio.create_task(inner())

    error = executor_harness.error(await executor_harness.run(outer))
    release.set()
    assert error["type"] == "BlockedEventLoop"
    assert "release.wait(20)" in error["traceback"]


@pytest.mark.parametrize("outcome", [Outcome.CANCELLED, Outcome.TIMED_OUT])
async def test_a_stalled_loop_holds_up_no_cancel_and_no_timeout(
    executor_harness: ExecutorHarness, outcome: Outcome
) -> None:
    release, began = threading.Event(), executor_harness.flag()

    async def wait() -> None:
        await asyncio.sleep(60)

    async def block() -> None:
        began.set()
        release.wait(20)

    work = executor_harness.work(wait, timeout=0.7 if outcome is Outcome.TIMED_OUT else None)
    waiting = executor_harness.start(work)
    await asyncio.sleep(0.1)
    culprit = executor_harness.start(executor_harness.work(block))
    await began.seen()
    if outcome is Outcome.CANCELLED:
        executor_harness.cancel(work)
    assert (await asyncio.wait_for(waiting, 5)).outcome is outcome
    release.set()
    assert (await culprit).outcome is Outcome.OK


async def test_with_every_loop_blocked_coroutines_wait_unstarted(
    executor_harness: ExecutorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coroutines, "MAX_STALLED_LOOPS", 2)
    release = threading.Event()

    async def block() -> None:
        release.wait(20)

    def thread() -> str:
        return "others go on"

    culprits = []
    for _ in range(2):
        culprits.append(executor_harness.start(executor_harness.work(block)))
        await asyncio.sleep(0.9)
    waiting, unwanted = executor_harness.work(quick), executor_harness.work(quick)
    late, cancelled = executor_harness.start(waiting), executor_harness.start(unwanted)
    assert (await executor_harness.run(thread)).result == "others go on"
    assert executor_harness.cancel(unwanted)
    assert (await cancelled).outcome is Outcome.CANCELLED
    await asyncio.sleep(0.3)
    assert not late.done()
    release.set()
    assert (await late).outcome is Outcome.OK
    assert {ending.outcome for ending in await asyncio.gather(*culprits)} == {Outcome.OK}


async def test_a_system_exit_in_a_task_of_a_handler_does_not_end_the_loop(executor_harness: ExecutorHarness) -> None:
    async def inner() -> None:
        raise SystemExit(3)

    async def outer() -> None:
        await asyncio.gather(asyncio.create_task(inner()), return_exceptions=False)

    ending = await executor_harness.run(outer, timeout=2)
    assert ending.outcome in (Outcome.FAILED, Outcome.TIMED_OUT)
    assert (await executor_harness.run(quick)).outcome is Outcome.OK


async def test_a_process_that_was_stopped_accuses_no_one(make_executor_harness: Callable[..., ExecutorHarness]) -> None:
    """As after SIGSTOP and SIGCONT: time has passed, but for the watchdog too."""
    blocks: list[LoopBlockReport] = []
    executor_harness = make_executor_harness(blocked=blocks.append, block_limit=1.0)
    running = executor_harness.start(executor_harness.work(quick))
    time.sleep(1.5)  # noqa: ASYNC251 - the service loop stands still
    assert (await running).outcome is Outcome.OK
    assert blocks == []
