"""One attempt under way, and what the lanes that execute attempts have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from bellringer.runs import Ending
from bellringer.tasks import Task
from bellringer.worker import endings
from bellringer.worker.control import Control
from bellringer.worker.work import Work


class Attempt:
    """What a handler is called with, what may stop it, and the future that its end resolves."""

    __slots__ = (
        "_monotonic",
        "args",
        "began_at",
        "control",
        "end",
        "kwargs",
        "lane",
        "runner",
        "task",
        "timer",
        "verdict",
        "work",
    )

    def __init__(
        self,
        work: Work,
        task: Task,
        lane: Lane,
        *,
        end: asyncio.Future[Ending],
        monotonic: Callable[[], float],
        changed: Callable[[Control], None],
    ) -> None:
        self.work = work
        self.task = task
        self.lane = lane
        self.end = end
        self.control = Control(work, monotonic, changed)
        self.args: list[Any] = []
        self.kwargs: dict[str, Any] = {}
        self.began_at: float | None = None  # None while it waits for a thread or a process
        self.verdict: Ending | None = None  # how it ends, once its lane was told to stop it
        self.timer: asyncio.TimerHandle | None = None
        self.runner: Any = None  # what its lane runs it in
        self._monotonic = monotonic

    def begin(self) -> None:
        self.began_at = self.control.signed_at = self._monotonic()

    @property
    def ran(self) -> float:
        return 0.0 if self.began_at is None else self._monotonic() - self.began_at

    def call(self) -> Any:
        return self.task.function(*self.args, **self.kwargs)

    def returned(self, value: Any, limit: int) -> Ending:
        """The ending of a handler that returned, unless it had been told to stop."""
        if self.verdict is not None:
            return self.verdict
        if self.control.heard:
            return endings.cancelled(self.control.reason or "", ran=self.ran)
        return endings.returned(value, limit=limit, ran=self.ran)

    def raised(self, error: BaseException) -> Ending:
        """The ending of a handler that raised, or was told to stop: then with the place it was at."""
        if self.verdict is not None:
            return endings.at(self.verdict, endings.where(error))
        if self.control.heard:
            ending = endings.cancelled(self.control.reason or "", ran=self.ran)
            return endings.at(ending, endings.where(error))
        return endings.raised(error, ran=self.ran)

    def settle(self, ending: Ending) -> None:
        """Resolve the end; only the first ending counts."""
        if not self.end.done():
            self.end.set_result(ending)


class Lane(Protocol):
    """One way to execute attempts: on the loop, in threads, or in processes of their own."""

    @property
    def stray(self) -> int:
        """How many handlers run on after their attempt was settled."""

    def start(self, attempt: Attempt) -> None:
        """Begin, or wait for a place; the attempt's end is resolved later, on the loop."""

    def stop(self, attempt: Attempt, ending: Ending) -> None:
        """Stop an attempt as far as this lane can; it ends as `ending` unless it ends by itself before."""

    async def close(self) -> None:
        """Stop everything."""
