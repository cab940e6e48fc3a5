"""The lane of plain `def` handlers: threads that may be left behind, since a thread cannot be killed."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
import traceback
from collections.abc import Callable
from queue import SimpleQueue

from bellringer.runs import Ending, Outcome
from bellringer.worker import endings
from bellringer.worker.attempt import Attempt

_Job = tuple[Attempt, contextvars.Context, asyncio.AbstractEventLoop]


class Threads:
    """A pool of daemon threads.

    Not concurrent.futures: that joins its threads when the interpreter exits, so that one hung handler would
    keep the worker alive for ever. A thread whose attempt was settled without it is a stray; another may take
    its place, until there are as many strays as places.
    """

    def __init__(self, size: int, *, limit: int, left_behind: Callable[[Attempt], None]) -> None:
        self._size = size
        self._limit = limit
        self._left_behind = left_behind
        self._lock = threading.Lock()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._count = 0  # threads alive
        self._idle = 0  # of them, those that wait for a job
        self._backlog = 0  # jobs that wait for a thread
        self._strays: set[Attempt] = set()

    @property
    def stray(self) -> int:
        return len(self._strays)

    def start(self, attempt: Attempt) -> None:
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                self._backlog += 1
                self._grow()
        self._jobs.put((attempt, contextvars.copy_context(), asyncio.get_running_loop()))

    def stop(self, attempt: Attempt, ending: Ending) -> None:
        with self._lock:
            waiting = attempt.began_at is None
            if waiting:
                attempt.verdict = ending  # whoever takes the job from the queue finds it settled
        if waiting:
            attempt.settle(ending)
        elif ending.outcome is not Outcome.CANCELLED:  # a cancel is heard at the handler's next safe point
            asked = attempt.control.reason
            self._leave(attempt, ending if asked is None else endings.cancelled(asked, ran=ending.ran))

    def _leave(self, attempt: Attempt, ending: Ending) -> None:
        """Settle an attempt without its thread, which goes on for as long as it likes."""
        with self._lock:
            if attempt.end.done() or attempt.verdict is not None:
                return
            attempt.verdict = ending
            self._strays.add(attempt)
            self._grow()
        attempt.settle(endings.at(ending, _stack(attempt.runner)))
        self._left_behind(attempt)

    async def close(self) -> None:
        with self._lock:
            self._size = 0
            for _ in range(self._count):
                self._jobs.put(None)

    def _grow(self) -> None:
        """Start a thread for the backlog, if there is room. The lock is held."""
        if self._backlog and self._count < self._size + min(len(self._strays), self._size):
            thread = threading.Thread(target=self._serve, name=f"bellringer-{self._count + 1}", daemon=True)
            self._backlog -= 1
            try:
                thread.start()
            except RuntimeError:  # the system has none left
                if not self._count:
                    raise
                self._backlog += 1  # so it waits for one of ours
            else:
                self._count += 1

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            attempt, context, loop = job
            if self._begin(attempt):
                ending = context.run(self._run, attempt)
                _tell(loop, attempt, ending)
            del job, context
            if not self._next(attempt):
                return

    def _begin(self, attempt: Attempt) -> bool:
        with self._lock:
            if attempt.verdict is not None:
                return False
            attempt.runner = threading.get_ident()
            attempt.begin()
            return True

    def _run(self, attempt: Attempt) -> Ending:
        try:
            value = attempt.call()
        except BaseException as error:  # noqa: BLE001 - SystemExit is the attempt's failure too
            return attempt.raised(error)
        return attempt.returned(value, self._limit)

    def _next(self, attempt: Attempt) -> bool:
        """Whether this thread goes on; one that was replaced while it strayed does not."""
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


def _tell(loop: asyncio.AbstractEventLoop, attempt: Attempt, ending: Ending) -> None:
    try:
        loop.call_soon_threadsafe(attempt.settle, ending)
    except RuntimeError:  # the loop is closed: the worker has gone, and nobody waits for this
        return


def _stack(thread: int) -> str:
    """Where a thread is now, which is the best hint at why it hangs."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - documented, in spite of its name
    frames = traceback.extract_stack(frame) if frame else []
    own = max((place for place, f in enumerate(frames) if endings.is_ours(f.filename)), default=-1)
    return "".join(traceback.format_list(frames[own + 1 :]))
