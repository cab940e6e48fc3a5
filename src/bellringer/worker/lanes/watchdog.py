"""Detects handlers that block their event loop, reports them, and gives up on them after a limit."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from bellringer.store import events
from bellringer.store.connection_pool import Store
from bellringer.store.events import EventKind, NewEvent
from bellringer.telemetry import BLOCKED_LOOP, log, with_labels
from bellringer.worker.attempt import RunningAttempt
from bellringer.worker.lanes.handler_loop import HandlerLoop
from bellringer.worker.output.attempt_output import log_fields
from bellringer.worker.results import clip

WATCHDOG_INTERVAL_SECONDS: Final = 0.2
STALLED_AFTER_SECONDS: Final = 0.5  # without a response to a ping; attempts that have not started move to another loop
REPORT_BLOCK_AFTER_SECONDS: Final = 1.0  # spent in one step of one task; shorter blocks are not reported
BLOCK_LIMIT_SECONDS: Final = 10.0
ABANDON_FACTOR: Final = 6  # after this many times the limit, all attempts on a blocked loop are ended


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopBlockReport:
    """A handler that blocks or has blocked its event loop."""

    attempt: RunningAttempt
    seconds: float
    stack: str
    is_new: bool = False  # the first report of this block
    is_over: bool = False  # the loop runs again
    neighbours: tuple[RunningAttempt, ...] = ()


@dataclass(slots=True, eq=False)
class WatchedLoop:
    """What the watchdog knows about a loop. Seconds count only while the watchdog itself was running."""

    loop: HandlerLoop
    silent: float = 0.0  # seconds without a response
    is_stalled: bool = False
    suspect: asyncio.Task[Any] | None = None  # the task that was running at every check since the last response
    blocked: float = 0.0  # seconds that the suspect has been running
    culprit: RunningAttempt | None = None  # the suspect's attempt, once it was reported
    stack: str = ""
    gave_up: bool = False
    is_abandoned: bool = False


class Watchdog:
    """Checks each loop periodically, from the service loop.

    A loop that does not respond to a ping may just be busy. A task blocks the loop only if it is the running task at
    every check: the loop would have responded between two steps of the task.
    """

    def __init__(
        self,
        *,
        limit: float,
        stalled: Callable[[HandlerLoop], None],
        recovered: Callable[[HandlerLoop], None],
        report: Callable[[LoopBlockReport], None],
        give_up: Callable[[LoopBlockReport], None],
        abandon: Callable[[HandlerLoop, float], None],
    ) -> None:
        self._limit = limit
        self._stalled = stalled
        self._recovered = recovered
        self._report = report
        self._give_up = give_up
        self._abandon = abandon
        self._watched: dict[HandlerLoop, WatchedLoop] = {}

    @property
    def stalled(self) -> int:
        return sum(watched.is_stalled for watched in self._watched.values())

    def add(self, loop: HandlerLoop) -> None:
        self._watched[loop] = WatchedLoop(loop)

    def check(self, passed: float) -> None:
        """Check all loops. `passed` is the number of seconds since the last check; it is capped in case this process
        was suspended."""
        passed = min(passed, 2 * WATCHDOG_INTERVAL_SECONDS)
        for watched in list(self._watched.values()):
            if watched.loop.is_responsive:
                self._answered(watched)
            else:
                self._unanswered(watched, passed)

    def _answered(self, watched: WatchedLoop) -> None:
        self._clear(watched)
        watched.silent, watched.is_abandoned = 0.0, False
        if watched.is_stalled:
            watched.is_stalled = False
            self._recovered(watched.loop)
        if not watched.loop.is_idle:
            watched.loop.ping()

    def _unanswered(self, watched: WatchedLoop, passed: float) -> None:
        watched.silent += passed
        task = watched.loop.running_now()
        if task is None or task is not watched.suspect:
            self._clear(watched)
            watched.suspect = task
        else:
            watched.blocked += passed
            self._accuse(watched, task)
        if watched.silent >= STALLED_AFTER_SECONDS and not watched.is_stalled:
            watched.is_stalled = True
            self._stalled(watched.loop)
        if watched.silent >= self._limit * ABANDON_FACTOR and not watched.is_abandoned:
            watched.is_abandoned = True
            self._abandon(watched.loop, watched.silent)

    def _accuse(self, watched: WatchedLoop, task: asyncio.Task[Any]) -> None:
        attempt = watched.loop.owner(task)
        if attempt is None:
            return
        if watched.culprit is None and watched.blocked >= REPORT_BLOCK_AFTER_SECONDS:
            watched.culprit, watched.stack = attempt, watched.loop.stack()
            self._report(self._block(watched, attempt, is_new=True))
        if watched.blocked >= self._limit and not watched.gave_up:
            watched.gave_up, watched.stack = True, watched.loop.stack()
            self._give_up(self._block(watched, attempt))
            watched.loop.interrupt(task, f"it blocked its event loop for {watched.blocked:.0f} s")

    def _clear(self, watched: WatchedLoop) -> None:
        """Forget the suspect, because it no longer runs."""
        if watched.culprit is not None:
            self._report(self._block(watched, watched.culprit, is_over=True))
        watched.suspect = watched.culprit = None
        watched.blocked, watched.stack, watched.gave_up = 0.0, "", False

    def _block(
        self, watched: WatchedLoop, attempt: RunningAttempt, *, is_new: bool = False, is_over: bool = False
    ) -> LoopBlockReport:
        return LoopBlockReport(
            attempt=attempt,
            seconds=watched.blocked,
            stack=watched.stack,
            is_new=is_new,
            is_over=is_over,
            neighbours=() if is_over else tuple(a for a in watched.loop.begun() if a is not attempt),
        )


MAX_STACK_BYTES: Final = 2_000  # stored with the event
MAX_NAMED_RUNS: Final = 100  # other runs of the tenant on the blocked loop that an event lists


class BlockReports:
    """Logs and counts blocked loops, and collects events about them until the worker writes them to the database.

    A later event about the same attempt replaces the earlier one.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._waiting: deque[NewEvent] = deque()
        self._named: dict[tuple[object, int], list[str]] = {}  # (run, attempt) -> ids of delayed runs

    def add(self, block: LoopBlockReport) -> None:
        work = block.attempt.work
        named = (work.key, work.attempt)
        last = block.stack.strip().splitlines()[-2:]
        facts = {**log_fields(work), "seconds": round(block.seconds, 1)}
        if block.is_over:
            beside = self._named.pop(named, [])
            log.warning("handler no longer blocks its event loop", **facts)
        else:
            others = {other.work.key.id for other in block.neighbours if other.work.tenant_id == work.tenant_id}
            beside = self._named[named] = sorted({*self._named.get(named, ()), *others})[:MAX_NAMED_RUNS]
            if block.is_new:
                with_labels(BLOCKED_LOOP, work.task).inc()
            at = " ".join(line.strip() for line in last)
            log.warning("handler blocks its event loop", **facts, neighbours=len(block.neighbours), at=at)
        data = {
            "task": work.task,
            "blocked_for": round(block.seconds, 1),
            "since": (self._now() - timedelta(seconds=block.seconds)).isoformat(),
            "over": block.is_over,
            "stack": clip(block.stack, MAX_STACK_BYTES),
            "beside": beside,
        }
        news = NewEvent(
            tenant_id=work.tenant_id, kind=EventKind.BLOCKED_LOOP, key=work.key, attempt=work.attempt, data=data
        )
        self._waiting.append(news)

    async def write(self, store: Store) -> None:
        """Write collected events to the database. Events that could not be written are kept."""
        while self._waiting:
            news = self._waiting[0]
            await events.record_loop_block(store, self._now(), news)
            self._waiting.popleft()
