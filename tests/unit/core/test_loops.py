"""Loops: a step is repeated for ever, its failures are survived, its sleeps can be cut short."""

from __future__ import annotations

import asyncio

import pytest

from bellringer.core.background_loops import MAX_BACKOFF_SECONDS, Wake, run_every


class Counting(Wake):
    """Does not sleep, remembers how long it should have, and ends the loop after so many sleeps."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.slept: list[float] = []

    async def wait(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) == self.most:
            raise asyncio.CancelledError


async def loop(seconds: float, outcomes: list[Exception | None]) -> list[float]:
    """The sleeps between steps that end so."""
    left = iter(outcomes)

    async def step() -> None:
        if error := next(left):
            raise error

    wake = Counting(len(outcomes))
    with pytest.raises(asyncio.CancelledError):
        await run_every(seconds, step, name="test", wake=wake)
    return wake.slept


async def test_steps_are_repeated_at_their_pace_with_some_jitter() -> None:
    slept = await loop(1.0, [None] * 20)
    assert all(0.8 <= seconds <= 1.2 for seconds in slept)
    assert len(set(slept)) > 1


async def test_failures_are_survived_and_slow_the_loop_down_up_to_a_bound() -> None:
    slept = await loop(0.1, [OSError()] * 12)
    assert slept[0] < 0.3 < slept[3]
    assert max(slept) <= MAX_BACKOFF_SECONDS * 1.2
    assert slept[-1] > MAX_BACKOFF_SECONDS * 0.7


async def test_a_success_brings_the_pace_back() -> None:
    slept = await loop(0.1, [OSError()] * 8 + [None])
    assert slept[-1] <= 0.12


async def test_a_cancelled_loop_ends() -> None:
    async def step() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await run_every(1.0, step, name="test")


async def test_only_what_may_be_survived_is() -> None:
    async def step() -> None:
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        await run_every(1.0, step, name="test", catches=(OSError,))


async def test_a_wake_up_cuts_a_sleep_short() -> None:
    wake = Wake()
    sleeping = asyncio.create_task(wake.wait(60))
    await asyncio.sleep(0)
    wake.set()
    done, _ = await asyncio.wait([sleeping], timeout=1)
    assert done == {sleeping}


async def test_a_wake_up_that_came_before_the_sleep_counts_once() -> None:
    wake = Wake()
    wake.set()
    await asyncio.wait_for(wake.wait(60), 1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(wake.wait(60), 0.01)


async def test_no_sleep_at_all_forgets_the_wake_up_too() -> None:
    wake = Wake()
    wake.set()
    await wake.wait(0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(wake.wait(60), 0.01)


async def test_a_cancel_that_meets_a_wake_up_is_not_lost() -> None:
    for _ in range(50):
        wake = Wake()
        waiting = asyncio.create_task(wake.wait(60))
        await asyncio.sleep(0)
        wake.set()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
