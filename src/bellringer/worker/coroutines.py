"""The lane of `async def` handlers: each in a task of its own on the worker's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from bellringer.runs import Ending
from bellringer.worker.attempt import Attempt

GRACE: Final = 5.0  # seconds that a handler has to give way


class Coroutines:
    """Handlers on the loop. A task of its own for each is what lets a stubborn handler be left behind."""

    def __init__(self, *, limit: int, grace: float, left_behind: Callable[[Attempt], None]) -> None:
        self._limit = limit
        self._grace = grace
        self._left_behind = left_behind
        # The loop itself holds tasks only weakly.
        self._stopping: set[asyncio.Task[None]] = set()
        self._strays: set[asyncio.Task[None]] = set()

    @property
    def stray(self) -> int:
        return len(self._strays)

    def start(self, attempt: Attempt) -> None:
        attempt.runner = asyncio.get_running_loop().create_task(self._run(attempt))

    def stop(self, attempt: Attempt, ending: Ending) -> None:
        if attempt.verdict is not None:
            return
        attempt.verdict = ending
        attempt.runner.cancel()
        if attempt.began_at is None:  # cancelled before its first step, so `_run` never sees it
            attempt.settle(ending)
            return
        _keep(attempt.runner, self._stopping)
        if attempt.timer is not None:
            attempt.timer.cancel()
        attempt.timer = asyncio.get_running_loop().call_later(self._grace, self._leave, attempt)

    async def close(self) -> None:
        for task in self._stopping:
            task.cancel()
        if self._stopping:
            await asyncio.wait(self._stopping, timeout=self._grace)

    async def _run(self, attempt: Attempt) -> None:
        attempt.begin()
        try:
            value = await attempt.call()
        except BaseException as error:  # noqa: BLE001 - SystemExit is the attempt's failure too
            attempt.settle(attempt.raised(error))
        else:
            attempt.settle(attempt.returned(value, self._limit))

    def _leave(self, attempt: Attempt) -> None:
        """The grace is over: settle without the handler, which goes on for as long as it likes."""
        if attempt.verdict is None or attempt.end.done():
            return
        _keep(attempt.runner, self._strays)
        attempt.settle(attempt.verdict)
        self._left_behind(attempt)


def _keep(task: asyncio.Task[None], tasks: set[asyncio.Task[None]]) -> None:
    tasks.add(task)
    task.add_done_callback(tasks.discard)
