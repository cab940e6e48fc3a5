"""Loops around steps: do a bounded pass, sleep, be woken; an error is told and survived."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from bellringer.telemetry import ERRORS, log

SLOWEST_RETRY: Final = 5.0


class Wake:
    """Something that may cut a sleep short."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self, seconds: float) -> None:
        """Sleep, but not when woken, nor through a wake-up that came before."""
        if seconds > 0:
            with suppress(TimeoutError):  # not wait_for, which forgets a cancel that meets a wake-up
                async with asyncio.timeout(seconds):
                    await self._event.wait()
        self._event.clear()


async def first_of(*events: asyncio.Event) -> None:
    """Wait until one of them is set."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


async def every(
    seconds: float,
    step: Callable[[], Awaitable[object]],
    *,
    name: str,
    wake: Wake | None = None,
    survives: tuple[type[Exception], ...] = (Exception,),
) -> None:
    """Do the step for ever. A failure is logged and the next pass comes later, with jitter, up to a bound."""
    failures = 0
    wake = wake or Wake()
    while True:
        try:
            await step()
            failures = 0
        except survives as error:
            failures += 1
            ERRORS.labels(name).inc()
            if failures == 1 or failures % 20 == 0:  # one line for an outage, and a reminder now and then
                told = f"{type(error).__name__}: {error}"
                log.warning("step failed", step=name, failures=failures, error=told)
        pause = seconds if not failures else min(SLOWEST_RETRY, max(seconds, 0.1) * (1 << min(failures, 6)))
        spread = 0.8 + 0.4 * random.random()  # noqa: S311 - so that nodes do not march in step
        await wake.wait(pause * spread)
