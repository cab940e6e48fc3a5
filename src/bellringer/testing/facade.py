"""The test engine for plain tests: every call is the async engine's own, made through a portal."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from bellringer.sdk.app import App
from bellringer.sdk.portal import Portal
from bellringer.store.runs import AttemptRow, DeadLetter, Run
from bellringer.testing.engine import START, AnyTask, Engine, Length, Named
from bellringer.testing.records import Enqueued, Fire, Performed
from bellringer.testing.workshop import Crash
from bellringer.verify import Summary

T = TypeVar("T")

_INSTEAD: Final = "`async with Engine(app, dsn) as t` in async tests"


class TestEngine:
    """One app on one test database; `advance` and `drain` can be chained."""

    __test__ = False  # not a test case, whatever its name

    def __init__(self, app: App, dsn: str, *, at: datetime | str = START) -> None:
        self._portal = Portal("bellringer test")
        self._engine = Engine(app, dsn, at=at)
        try:
            self._do(self._engine.open)
        except BaseException:
            self._portal.close()
            raise

    @property
    def clock(self) -> PlainClock:
        """The clock alone: to move it is an outage, in which nobody ticks."""
        return PlainClock(self._engine, self._portal)

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
        """Live through this much time; see `Engine.advance`."""
        self._do(lambda: self._engine.advance(by, drain=drain))
        return self

    def drain(self, *, with_retries: bool = False) -> Self:
        """Execute what is ready; see `Engine.drain`."""
        self._do(lambda: self._engine.drain(with_retries=with_retries))
        return self

    def outage(self, by: Length) -> Self:
        """Let this much time pass with nobody there to tick; see `Engine.outage`."""
        self._do(lambda: self._engine.outage(by))
        return self

    def perform(self, task: AnyTask, /, *args: Any, attempt: int = 1, **kwargs: Any) -> Performed:
        """Make one attempt without the queue."""
        return self._do(lambda: self._engine.perform(task, *args, attempt=attempt, **kwargs))

    def fail_next(self, task: AnyTask, error: BaseException) -> Self:
        """Let the next attempt of a task fail with this error."""
        self._engine.fail_next(task, error)
        return self

    def crash_worker(self, when: Crash = "before") -> Self:
        """Let the worker be killed when it next holds work."""
        self._engine.crash_worker(when)
        return self

    def runs(self, of: Named) -> list[Run]:
        """The runs of a job, a task or a workflow, in the order of their times."""
        return self._do(lambda: self._engine.runs(of))

    def attempts(self, run: Run) -> list[AttemptRow]:
        return self._do(lambda: self._engine.attempts(run))

    def fires(self, job: Named) -> list[Fire]:
        """The occurrences of a job, fired and missed."""
        return self._do(lambda: self._engine.fires(job))

    def verify(self) -> Summary:
        """Nothing was missed, doubled or early since the test began."""
        return self._do(self._engine.verify)

    def dead(self) -> list[DeadLetter]:
        """The dead letters, the newest first."""
        return self._do(self._engine.dead)

    def enqueued(self, task: AnyTask | str | None = None) -> list[Enqueued]:
        """What waits to be run, now or later."""
        return self._do(lambda: self._engine.enqueued(task))

    def assert_enqueued(self, task: AnyTask | str, /, *, within: Length | None = None, **kwargs: Any) -> Enqueued:
        """Some run of the task waits with these arguments, due within that long."""
        return self._do(lambda: self._engine.assert_enqueued(task, within=within, **kwargs))

    def refute_enqueued(self, task: AnyTask | str, /, *, within: Length | None = None, **kwargs: Any) -> None:
        """No such run waits."""
        self._do(lambda: self._engine.refute_enqueued(task, within=within, **kwargs))

    def _do(self, act: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return self._portal.run(act, instead=_INSTEAD)


class PlainClock:
    """The test's clock, for plain tests."""

    def __init__(self, engine: Engine, portal: Portal) -> None:
        self._engine = engine
        self._portal = portal

    def now(self) -> datetime:
        return self._engine.clock.now()

    def set(self, at: datetime | str) -> None:
        self._portal.run(lambda: self._engine.clock.set(at), instead=_INSTEAD)

    def advance(self, by: Length) -> None:
        self._portal.run(lambda: self._engine.clock.advance(by), instead=_INSTEAD)
