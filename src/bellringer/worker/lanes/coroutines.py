"""The lane for `async def` handlers: runs them as tasks on event loops separate from the worker's own loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Final

from bellringer.core.runs import Ending
from bellringer.durations import format_duration
from bellringer.telemetry import STALLED_LOOPS, log
from bellringer.worker import results
from bellringer.worker.attempt import RunningAttempt
from bellringer.worker.lanes.handler_loop import LOOP_STOP_SECONDS, HandlerLoop
from bellringer.worker.lanes.watchdog import BLOCK_LIMIT_SECONDS, WATCHDOG_INTERVAL_SECONDS, LoopBlockReport, Watchdog

STOP_GRACE_SECONDS: Final = 5.0  # a cancelled handler that runs longer is left behind
MAX_STALLED_LOOPS: Final = 8  # with this many, no coroutine is started until one of them recovers


class CoroutineLane:
    """Runs handlers on separate event loops.

    One loop is current and gets all new attempts. When the watchdog finds that it is stalled, attempts that have not
    started move to another loop, which becomes the current one. Started attempts continue when the stalled loop
    recovers. Without `own_loop`, handlers run on the caller's loop, and there is no watchdog.
    """

    def __init__(
        self,
        *,
        limit: int,
        grace: float = STOP_GRACE_SECONDS,
        left_behind: Callable[[RunningAttempt], None],
        own_loop: bool = True,
        block_limit: float = BLOCK_LIMIT_SECONDS,
        report: Callable[[LoopBlockReport], None] = lambda _: None,
    ) -> None:
        self._limit = limit
        self._grace = grace
        self._left_behind = left_behind
        self._own_loop = own_loop
        self._report = report
        self._watchdog = Watchdog(
            limit=block_limit,
            stalled=self._stalled,
            recovered=self._recovered,
            report=self._forward_report,
            give_up=self._give_up,
            abandon=self._abandon,
        )
        self._service: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._checked_at = 0.0
        self._loops: list[HandlerLoop] = []
        self._current: HandlerLoop | None = None
        self._waiting: dict[RunningAttempt, bool] = {}  # for a loop; used as an ordered set
        self._waking = False
        self._ended: deque[tuple[RunningAttempt, Ending]] = deque()  # handler threads append to it
        self._stopping: set[RunningAttempt] = set()
        self._strays: set[RunningAttempt] = set()

    @property
    def stray(self) -> int:
        return len(self._strays)

    @property
    def stalled(self) -> int:
        return self._watchdog.stalled

    def start(self, attempt: RunningAttempt) -> None:
        if self._service is None:
            self._open_loop(asyncio.get_running_loop())
        assert self._service is not None
        if self._current is None:
            self._waiting[attempt] = True
            return
        attempt.runner = self._current
        self._current.submit(attempt)
        if not self._waking:  # one wake-up for all attempts that start in this loop iteration
            self._waking = True
            self._service.call_soon(self._wake)

    def stop(self, attempt: RunningAttempt, ending: Ending) -> None:
        if attempt.forced_ending is not None:
            return
        attempt.forced_ending = ending
        loop: HandlerLoop | None = attempt.runner
        if self._waiting.pop(attempt, False) or loop is None or loop.withdraw(attempt):
            attempt.finish(ending)  # the handler was not called
            return
        loop.cancel(attempt)
        self._stopping = {other for other in self._stopping if not other.ended} | {attempt}
        if attempt.timer is not None:
            attempt.timer.cancel()
        attempt.timer = asyncio.get_running_loop().call_later(self._grace, self._leave_behind, attempt)

    async def close(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._grace + WATCHDOG_INTERVAL_SECONDS):
                while not all(attempt.ended for attempt in self._stopping):  # noqa: ASYNC110 - rare and short
                    await asyncio.sleep(0.01)
        if self._timer is not None:
            self._timer.cancel()
        STALLED_LOOPS.dec(self._watchdog.stalled)
        loops, self._loops, self._current, self._service = self._loops, [], None, None
        for loop in loops:
            loop.close()
        for _ in range(int(LOOP_STOP_SECONDS / 0.01)):
            if not any(h.thread is not None and h.thread.is_alive() and h.is_responsive for h in loops):
                return
            await asyncio.sleep(0.01)

    # Loops

    def _open_loop(self, service: asyncio.AbstractEventLoop) -> None:
        self._service = service
        self._checked_at = service.time()
        if self._own_loop:
            self._timer = service.call_later(WATCHDOG_INTERVAL_SECONDS, self._check_loops)
        self._choose_loop()

    def _choose_loop(self) -> bool:
        """Choose the loop for new attempts and submit waiting ones. Returns False if all loops are stalled."""
        usable = sorted((loop for loop in self._loops if loop.is_responsive), key=lambda loop: not loop.is_idle)
        chosen = usable[0] if usable else None
        if chosen is None and self._watchdog.stalled < MAX_STALLED_LOOPS:
            chosen = self._add_loop()
        self._current = chosen
        if chosen is None:
            return False
        waiting, self._waiting = list(self._waiting), {}
        for attempt in waiting:
            attempt.runner = chosen
            chosen.submit(attempt)
        chosen.wake()
        return True

    def _add_loop(self) -> HandlerLoop | None:
        loop = HandlerLoop(
            report=self._ended.append,
            flush=self._wake_service,
            limit=self._limit,
            number=len(self._loops) + 1,
        )
        if not self._own_loop:
            loop.start_here()
        else:
            try:
                loop.start()
            except (RuntimeError, OSError) as error:  # out of threads or file descriptors
                log.warning("cannot start an event loop for handlers", error=str(error))
                return None
            self._watchdog.add(loop)
        self._loops.append(loop)
        return loop

    def _check_loops(self) -> None:
        service = self._service
        if service is None:
            return
        self._timer = service.call_later(WATCHDOG_INTERVAL_SECONDS, self._check_loops)
        passed, self._checked_at = service.time() - self._checked_at, service.time()
        self._watchdog.check(passed)
        self._flush()  # endings of a loop that was blocked before it could wake the service loop
        if self._current is None:
            self._choose_loop()
        if self._current is not None:
            self._current.wake()

    def _stalled(self, loop: HandlerLoop) -> None:
        STALLED_LOOPS.inc()
        if loop is not self._current:
            return
        self._waiting.update(dict.fromkeys(loop.withdraw_all(), True))
        if not self._choose_loop():
            log.warning("all event loops for handlers are blocked; new coroutines wait", loops=len(self._loops))

    def _recovered(self, _loop: HandlerLoop) -> None:
        STALLED_LOOPS.dec()

    # Endings

    def _wake(self) -> None:
        self._waking = False
        if self._current is not None:
            self._current.wake()

    def _wake_service(self) -> None:
        """Schedule `_flush` on the service loop. Called by handler threads."""
        service = self._service
        if service is not None:
            try:
                service.call_soon_threadsafe(self._flush)
            except RuntimeError:  # the loop is closed, because the worker has stopped
                return

    def _flush(self) -> None:
        while self._ended:
            attempt, ending = self._ended.popleft()
            self._strays.discard(attempt)
            attempt.finish(ending)

    def _leave_behind(self, attempt: RunningAttempt) -> None:
        """End an attempt whose handler did not stop within the grace period; the handler keeps running."""
        if attempt.forced_ending is None or attempt.ended:
            return
        self._strays.add(attempt)
        attempt.finish(attempt.forced_ending)
        self._left_behind(attempt)

    def _forward_report(self, block: LoopBlockReport) -> None:
        """Report a blocked loop, with the attempts that wait because there is no other loop."""
        self._report(replace(block, neighbours=(*block.neighbours, *self._waiting)))

    def _give_up(self, block: LoopBlockReport) -> None:
        """Fail the attempt that blocks its loop; a later result of its handler is ignored."""
        self._forward_report(block)
        self._end_without_handler(block.attempt, _blocked_loop_ending(block))

    def _abandon(self, loop: HandlerLoop, seconds: float) -> None:
        """End the other attempts on a loop that stays blocked, so that they are retried elsewhere."""
        length = format_duration(timedelta(seconds=round(seconds)))
        for attempt in loop.begun():
            loop.cancel(attempt)  # takes effect if the loop recovers
            message = f"its event loop was blocked for {length}"
            self._end_without_handler(attempt, results.lost_ending("EventLoopLost", message, ran=attempt.ran))

    def _end_without_handler(self, attempt: RunningAttempt, ending: Ending) -> None:
        if attempt.ended:
            return
        self._strays.add(attempt)
        attempt.forced_ending = attempt.forced_ending or ending
        attempt.finish(attempt.forced_ending)
        self._left_behind(attempt)


def _blocked_loop_ending(block: LoopBlockReport) -> Ending:
    message = (
        f"the handler blocked its event loop for {format_duration(timedelta(seconds=round(block.seconds)))}; "
        'declare it with `def`, make blocking calls with `await asyncio.to_thread(…)`, or use isolation="process"'
    )
    return results.with_traceback(
        results.failed_ending("BlockedEventLoop", message, ran=block.attempt.ran), block.stack
    )
