"""Background loops: repeat a step, sleep in between, wake up early on a hint, log errors and continue."""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from typing import Final

from bellringer.core.loop_progress import STALL_SECONDS, track_loop
from bellringer.telemetry import ERRORS, log

MAX_BACKOFF_SECONDS: Final = 5.0
MAX_WAKEUP_TIMES: Final = 10_000
STALL_PAUSES: Final = 5  # a loop may pause this many times as long as its interval: idle processes slow down


class Wake:
    """Wakes a sleeping loop early."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self, seconds: float) -> None:
        """Sleep until `set` is called or the time is over. Returns at once if `set` was called since the last wait."""
        if seconds > 0:
            with suppress(TimeoutError):  # not wait_for: it can swallow a cancellation that races with the event
                async with asyncio.timeout(seconds):
                    await self._event.wait()
        self._event.clear()


class WakeupTimes:
    """A heap of times at which runs become claimable. Entries are hints: losing one delays a run by a poll interval."""

    def __init__(self) -> None:
        self._heap: list[datetime] = []

    def add(self, *instants: datetime) -> None:
        for instant in instants[: MAX_WAKEUP_TIMES - len(self._heap)]:
            heapq.heappush(self._heap, instant)

    def discard_until(self, now: datetime) -> None:
        """Remove the times that have come. To be called before a claim, which does not find runs of later times."""
        while self._heap and self._heap[0] <= now:
            heapq.heappop(self._heap)

    def seconds_until_next(self, now: datetime, most: float) -> float:
        """Return the seconds until the next wake-up time, at most `most`, and 0 if it has come."""
        if not self._heap:
            return most
        return min(most, max((self._heap[0] - now).total_seconds(), 0.0))


async def wait_for_any(*events: asyncio.Event) -> None:
    """Wait until one of the events is set."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


async def run_every(
    seconds: float,
    step: Callable[[], Awaitable[object]],
    *,
    name: str,
    wake: Wake | None = None,
    slowdown: Callable[[], float] = lambda: 1.0,
    catches: tuple[type[Exception], ...] = (Exception,),
    step_seconds: float = STALL_SECONDS,
) -> None:
    """Repeat a step forever. Errors are logged, and the delay grows with each error in a row, up to a maximum.

    `slowdown` returns by which factor the pause after a pass is longer than `seconds`. A step that takes longer than
    `step_seconds` counts as stalled.
    """
    failures = 0
    wake = wake or Wake()
    with track_loop(name, step_seconds + STALL_PAUSES * seconds) as state:
        while True:
            try:
                await step()
                failures = 0
            except catches as error:
                failures += 1
                ERRORS.labels(name).inc()
                if failures == 1 or failures % 20 == 0:  # a long outage must not flood the log
                    text = f"{type(error).__name__}: {error}"
                    log.warning("step failed", step=name, failures=failures, error=text)
            state.note_end(succeeded=not failures)
            pause = (
                seconds * slowdown()
                if not failures
                else min(MAX_BACKOFF_SECONDS, max(seconds, 0.1) * (1 << min(failures, 6)))
            )
            jitter = 0.8 + 0.4 * random.random()  # noqa: S311 - keeps the loops of several nodes out of step
            await wake.wait(pause * jitter)
