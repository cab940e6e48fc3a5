"""The lane for plain `def` handlers: a thread pool that can leave threads behind, because threads cannot be killed."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
import traceback
from collections.abc import Callable
from queue import SimpleQueue

from bellringer.core.runs import Ending, Outcome
from bellringer.worker import fork_guard, results
from bellringer.worker.attempt import RunningAttempt

_QueuedAttempt = tuple[RunningAttempt, contextvars.Context, asyncio.AbstractEventLoop]


class ThreadLane:
    """A pool of daemon threads.

    Not concurrent.futures, which joins its threads at interpreter exit: one hung handler would keep the worker alive
    forever. A thread that still runs after its attempt has ended is a stray. A new thread replaces each stray, up to
    `size` replacements.
    """

    def __init__(self, size: int, *, limit: int, left_behind: Callable[[RunningAttempt], None]) -> None:
        self._size = size
        self._limit = limit
        self._left_behind = left_behind
        self._lock = threading.Lock()
        self._queue: SimpleQueue[_QueuedAttempt | None] = SimpleQueue()
        self._count = 0  # live threads
        self._idle = 0  # threads that wait for an attempt
        self._backlog = 0  # attempts that wait for a thread
        self._strays: set[RunningAttempt] = set()

    @property
    def stray(self) -> int:
        return len(self._strays)

    def start(self, attempt: RunningAttempt) -> None:
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                self._backlog += 1
                self._grow()
        self._queue.put((attempt, contextvars.copy_context(), asyncio.get_running_loop()))

    def stop(self, attempt: RunningAttempt, ending: Ending) -> None:
        with self._lock:
            waiting = attempt.began_at is None
            if waiting:
                attempt.forced_ending = ending  # makes `_begin` skip the attempt
        if waiting:
            attempt.finish(ending)
        elif ending.outcome is not Outcome.CANCELLED:  # a cancellation takes effect at the handler's next `ctx.check()`
            asked = attempt.control.reason
            self._leave_behind(attempt, ending if asked is None else results.cancelled_ending(asked, ran=ending.ran))

    def _leave_behind(self, attempt: RunningAttempt, ending: Ending) -> None:
        """End an attempt although its thread keeps running."""
        with self._lock:
            if attempt.ended or attempt.forced_ending is not None:
                return
            attempt.forced_ending = ending
            self._strays.add(attempt)
            self._grow()
        attempt.finish(results.with_traceback(ending, _thread_stack(attempt.runner)))
        self._left_behind(attempt)

    async def close(self) -> None:
        with self._lock:
            self._size = 0
            for _ in range(self._count):
                self._queue.put(None)

    def _grow(self) -> None:
        """Start a thread for the backlog, if the pool is not full. The caller holds the lock."""
        if self._backlog and self._count < self._size + min(len(self._strays), self._size):
            thread = threading.Thread(target=self._serve, name=f"bellringer-{self._count + 1}", daemon=True)
            self._backlog -= 1
            try:
                thread.start()
            except RuntimeError:  # the system cannot start more threads
                if not self._count:
                    raise
                self._backlog += 1  # the attempt waits for an existing thread
            else:
                self._count += 1

    def _serve(self) -> None:
        with fork_guard.handler_thread():
            while (queued := self._queue.get()) is not None:
                attempt, context, loop = queued
                if self._begin(attempt):
                    ending = context.run(self._run, attempt)
                    _settle_on_loop(loop, attempt, ending)
                del queued, context
                if not self._continues(attempt):
                    return

    def _begin(self, attempt: RunningAttempt) -> bool:
        with self._lock:
            if attempt.forced_ending is not None:
                return False
            attempt.runner = threading.get_ident()
            attempt.begin()
            return True

    def _run(self, attempt: RunningAttempt) -> Ending:
        attempt.enter_context()
        try:
            value = attempt.call()
        except BaseException as error:  # noqa: BLE001 - SystemExit also fails only this attempt
            ending = attempt.ending_of_error(error)
        else:
            ending = attempt.ending_of_value(value, self._limit)
        fork_guard.exit_if_forked()
        attempt.output.end()
        return ending

    def _continues(self, attempt: RunningAttempt) -> bool:
        """Whether this thread serves further attempts. A stray that was replaced does not."""
        with self._lock:
            self._strays.discard(attempt)
            if self._count > self._size + min(len(self._strays), self._size):
                self._count -= 1
                return False
            if self._backlog:
                self._backlog -= 1
            else:
                self._idle += 1
            return True


def _settle_on_loop(loop: asyncio.AbstractEventLoop, attempt: RunningAttempt, ending: Ending) -> None:
    try:
        loop.call_soon_threadsafe(attempt.finish, ending)
    except RuntimeError:  # the loop is closed, because the worker has stopped
        return


def _thread_stack(thread: int) -> str:
    """Return the current stack of a thread, which shows where it hangs."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - public in spite of its name
    frames = traceback.extract_stack(frame) if frame else []
    own = max((place for place, f in enumerate(frames) if results.is_worker_code(f.filename)), default=-1)
    return "".join(traceback.format_list(frames[own + 1 :]))
