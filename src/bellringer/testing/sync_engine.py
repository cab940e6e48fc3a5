"""The test engine for synchronous tests: every call runs the async engine through a portal."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from bellringer.sdk.app import App
from bellringer.sdk.sync_bridge import BlockingPortal
from bellringer.store.runs import AttemptRow, DeadLetterRow, RunRow
from bellringer.testing.engine import DEFAULT_START, AnyTask, Engine, Length, TaskOrName
from bellringer.testing.records import Enqueued, FireRecord, Performed
from bellringer.testing.test_worker import CrashMoment
from bellringer.verify import VerifySummary

T = TypeVar("T")

_ASYNC_ALTERNATIVE: Final = "`async with Engine(app, dsn) as t` in async tests"


class TestEngine:
    """One app on one test database. Calls of `advance` and `drain` can be chained."""

    __test__ = False  # not a test case, whatever its name

    def __init__(self, app: App, dsn: str, *, at: datetime | str = DEFAULT_START) -> None:
        self._portal = BlockingPortal("bellringer test")
        self._engine = Engine(app, dsn, at=at)
        try:
            self._do(self._engine.open)
        except BaseException:
            self._portal.close()
            raise

    @property
    def clock(self) -> SyncClock:
        """The clock alone. Moving it simulates an outage: no scheduler runs in between."""
        return SyncClock(self._engine, self._portal)

    def close(self) -> None:
        try:
            self._do(self._engine.close)
        finally:
            self._portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def advance(self, by: Length, *, drain: bool = False) -> Self:
        """Advances the clock; see `Engine.advance`."""
        self._do(lambda: self._engine.advance(by, drain=drain))
        return self

    def drain(self, *, with_retries: bool = False) -> Self:
        """Executes all ready runs; see `Engine.drain`."""
        self._do(lambda: self._engine.drain(with_retries=with_retries))
        return self

    def outage(self, by: Length) -> Self:
        """Advances the clock while no scheduler runs; see `Engine.outage`."""
        self._do(lambda: self._engine.outage(by))
        return self

    def perform(self, task: AnyTask, /, *args: Any, attempt: int = 1, **kwargs: Any) -> Performed:
        """Makes one attempt without the queue; see `Engine.perform`."""
        return self._do(lambda: self._engine.perform(task, *args, attempt=attempt, **kwargs))

    def fail_next(self, task: AnyTask, error: BaseException) -> Self:
        """Makes the next attempt of a task fail with this error."""
        self._engine.fail_next(task, error)
        return self

    def crash_worker(self, when: CrashMoment = "before") -> Self:
        """Kills the worker when it next holds work."""
        self._engine.crash_worker(when)
        return self

    def runs(self, of: TaskOrName) -> list[RunRow]:
        """Returns the runs of a job, a task or a workflow, in time order."""
        return self._do(lambda: self._engine.runs(of))

    def attempts(self, run: RunRow) -> list[AttemptRow]:
        return self._do(lambda: self._engine.attempts(run))

    def fires(self, job: TaskOrName) -> list[FireRecord]:
        """Returns the occurrences of a job, fired and missed."""
        return self._do(lambda: self._engine.fires(job))

    def verify(self) -> VerifySummary:
        """Asserts that nothing was missed, doubled or early since the test began."""
        return self._do(self._engine.verify)

    def dead(self) -> list[DeadLetterRow]:
        """Returns the dead letters, newest first."""
        return self._do(self._engine.dead)

    def enqueued(self, task: AnyTask | str | None = None) -> list[Enqueued]:
        """Returns the waiting runs, ready or due later."""
        return self._do(lambda: self._engine.enqueued(task))

    def assert_enqueued(self, task: AnyTask | str, /, *, within: Length | None = None, **kwargs: Any) -> Enqueued:
        """Asserts that a run of the task waits with these arguments, due within the given time."""
        return self._do(lambda: self._engine.assert_enqueued(task, within=within, **kwargs))

    def refute_enqueued(self, task: AnyTask | str, /, *, within: Length | None = None, **kwargs: Any) -> None:
        """Asserts that no such run waits."""
        self._do(lambda: self._engine.refute_enqueued(task, within=within, **kwargs))

    def _do(self, act: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return self._portal.run(act, instead=_ASYNC_ALTERNATIVE)


class SyncClock:
    """The test's clock, for synchronous tests."""

    def __init__(self, engine: Engine, portal: BlockingPortal) -> None:
        self._engine = engine
        self._portal = portal

    def now(self) -> datetime:
        return self._engine.clock.now()

    def set(self, at: datetime | str) -> None:
        self._portal.run(lambda: self._engine.clock.set(at), instead=_ASYNC_ALTERNATIVE)

    def advance(self, by: Length) -> None:
        self._portal.run(lambda: self._engine.clock.advance(by), instead=_ASYNC_ALTERNATIVE)
