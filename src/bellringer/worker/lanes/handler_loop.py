"""An event loop in its own thread that runs `async def` handlers, separate from the worker's service loop."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from types import FrameType
from typing import Any, Final
from weakref import WeakKeyDictionary

from bellringer.core.runs import Ending
from bellringer.telemetry import log
from bellringer.worker import fork_guard, results
from bellringer.worker.attempt import RunningAttempt

LOOP_STOP_SECONDS: Final = 1.0  # for the remaining tasks of a loop that is closed

ReportEnding = Callable[[tuple[RunningAttempt, Ending]], None]


class BlockedEventLoop(BaseException):
    """Raised inside a coroutine that blocked its event loop beyond the limit."""


class HandlerLoop:
    """Runs attempts on an event loop.

    `submit`, `withdraw` and `cancel` are called from the service loop. An attempt is in `pending` until its handler is
    about to be called. The side that removes it from `pending` owns the attempt, so an attempt that moves to another
    loop is never started twice. `report` receives endings on this loop's thread; `flush` is called once per batch.
    """

    def __init__(self, *, report: ReportEnding, flush: Callable[[], None], limit: int, number: int = 0) -> None:
        self._report = report
        self._flush = flush
        self._limit = limit
        self._number = number
        self._inbox: deque[RunningAttempt] = deque()
        self._is_woken = False  # `_drain` is scheduled
        self._is_flushing = False
        self._is_closing = False
        self._context = contextvars.Context()
        self._owners: WeakKeyDictionary[asyncio.Task[Any], RunningAttempt] = WeakKeyDictionary()
        self._pings = 0
        self._answered = 0
        self.pending: dict[RunningAttempt, bool] = {}
        self.tasks: dict[asyncio.Task[None], RunningAttempt] = {}  # the loop itself holds tasks only weakly
        self.thread: threading.Thread | None = None
        self.loop: asyncio.AbstractEventLoop

    def start(self) -> None:
        """Start the thread. Uses the asyncio loop: forked processes must be able to stop it, unlike uvloop."""
        self.loop = asyncio.SelectorEventLoop()
        self.loop.set_task_factory(self._make_task)
        name = f"bellringer-loop-{self._number}"
        self.thread = threading.Thread(target=self._serve, name=name, daemon=True)
        try:
            self.thread.start()
        except RuntimeError:
            self.loop.close()
            raise

    def start_here(self) -> None:
        """Use the running loop instead of a thread, for handlers that are known not to block."""
        self.loop = asyncio.get_running_loop()

    # Called from the service loop

    def submit(self, attempt: RunningAttempt) -> None:
        """Add an attempt. The caller must call `wake` afterwards."""
        self.pending[attempt] = True
        self._inbox.append(attempt)

    def wake(self) -> None:
        if self._inbox and not self._is_woken:
            self._is_woken = True
            self.loop.call_soon_threadsafe(self._drain)

    def withdraw(self, attempt: RunningAttempt) -> bool:
        """Take back an attempt. Returns False if it has started."""
        return self.pending.pop(attempt, False)

    def withdraw_all(self) -> list[RunningAttempt]:
        """Take back all attempts that have not started."""
        return [attempt for attempt in list(self.pending) if self.withdraw(attempt)]

    def cancel(self, attempt: RunningAttempt) -> None:
        self.loop.call_soon_threadsafe(self._cancel, attempt)

    def begun(self) -> list[RunningAttempt]:
        """Return the attempts whose handlers are running."""
        return [attempt for attempt in list(self.tasks.values()) if attempt.step is not None]

    @property
    def is_idle(self) -> bool:
        return not (self.tasks or self.pending)

    @property
    def is_responsive(self) -> bool:
        """Whether the loop has responded to the last ping."""
        return self._answered == self._pings

    def ping(self) -> None:
        self._pings += 1
        self.loop.call_soon_threadsafe(self._answer, self._pings)

    def running_now(self) -> asyncio.Task[Any] | None:
        """Return the task that the loop is executing at this moment."""
        return asyncio.current_task(self.loop)

    def owner(self, task: asyncio.Task[Any]) -> RunningAttempt | None:
        """Return the attempt of a task, including tasks started by a handler."""
        return self.tasks.get(task) or self._owners.get(task)

    def stack(self) -> str:
        """Return the thread's current stack, without frames of the worker."""
        ident = self.thread.ident if self.thread else None
        frame = sys._current_frames().get(ident or 0)  # noqa: SLF001 - public in spite of its name
        return "".join(traceback.format_list(_handler_frames(frame)))

    def interrupt(self, task: asyncio.Task[Any], message: str) -> None:
        """Raise BlockedEventLoop in the thread if it still executes this task. Cannot interrupt C calls."""
        ident = self.thread.ident if self.thread else None
        if ident is not None and self.running_now() is task:
            kind = type("BlockedEventLoop", (BlockedEventLoop,), {"__str__": lambda _: message})
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(kind))

    def close(self) -> None:
        """Ask the thread to end. A blocked thread is left behind."""
        self._is_closing = True
        if self.thread is not None:
            with suppress(RuntimeError):  # the loop is already closed
                self.loop.call_soon_threadsafe(self.loop.stop)

    # Called on the loop's own thread

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        with fork_guard.handler_thread(self.loop):
            while not self._is_closing:
                try:
                    self.loop.run_forever()
                except BaseException as error:  # noqa: BLE001 - such as SystemExit in a task started by a handler
                    fork_guard.exit_if_forked()
                    log.warning(
                        "an error of a handler stopped its event loop; the loop continues",
                        error=f"{type(error).__name__}: {error}",
                    )
            self._shut()

    def _shut(self) -> None:
        with suppress(BaseException):
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            if left:
                self.loop.run_until_complete(asyncio.wait(left, timeout=LOOP_STOP_SECONDS))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        with suppress(BaseException):
            self.loop.close()

    def _drain(self) -> None:
        self._is_woken = False
        while self._inbox:
            attempt = self._inbox.popleft()
            if attempt in self.pending:
                task = asyncio.Task(self._run(attempt), loop=self.loop)
                self.tasks[task] = attempt

    async def _run(self, attempt: RunningAttempt) -> None:
        task = asyncio.current_task()
        assert task is not None
        if not self.pending.pop(attempt, False):
            self.tasks.pop(task, None)
            return  # withdrawn or moved to another loop
        attempt.step = task
        attempt.begin()
        attempt.enter_context()
        try:
            value = await attempt.call()
        except BaseException as error:  # noqa: BLE001 - SystemExit also fails only this attempt
            ending = attempt.ending_of_error(error)
        else:
            ending = attempt.ending_of_value(value, self._limit)
        fork_guard.exit_if_forked()
        attempt.output.end()
        attempt.step = None
        self.tasks.pop(task, None)
        self._report((attempt, ending))
        if not self._is_flushing:
            self._is_flushing = True
            self.loop.call_soon(self._flush_once, context=self._context)  # not in the context of the attempt

    def _flush_once(self) -> None:
        """Wake the service loop once for all endings of this loop iteration."""
        self._is_flushing = False
        self._flush()

    def _cancel(self, attempt: RunningAttempt) -> None:
        if attempt.step is not None:
            attempt.step.cancel()

    def _answer(self, number: int) -> None:
        self._answered = number

    def _make_task(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        /,
        **options: Any,
    ) -> asyncio.Future[Any]:
        """Task factory that records which attempt started a task, for the watchdog's reports."""
        task = asyncio.Task(coroutine, loop=loop, **options)
        maker = asyncio.current_task(loop)
        if maker is not None and (attempt := self.owner(maker)) is not None:
            self._owners[task] = attempt
        return task


def _handler_frames(frame: FrameType | None) -> traceback.StackSummary | list[traceback.FrameSummary]:
    frames = traceback.extract_stack(frame) if frame else []
    own = max((place for place, f in enumerate(frames) if results.is_worker_code(f.filename)), default=-1)
    return frames[own + 1 :]
