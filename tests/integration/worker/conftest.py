"""Drives an executor directly, without a database."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from bellringer.clock import SystemClock
from bellringer.core.payload import check_payload
from bellringer.core.runs import Ending, RunKey, Spec
from bellringer.core.tasks import Registry, make_task
from bellringer.worker.app_loader import load_target
from bellringer.worker.attempt import LogLine, Work
from bellringer.worker.executor import Executor

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
numbers = count(1)


class Flag(threading.Event):
    """An event that handlers and tests may set and await from different event loops."""

    async def seen(self) -> None:
        while not self.is_set():  # noqa: ASYNC110 - it may be set on another loop
            await asyncio.sleep(0.002)


@dataclass
class ExecutorHarness:
    """Executes functions, or tasks by name, as the second attempt of a run that is 90 s late."""

    registry: Registry
    now: datetime = NOW
    lines: list[LogLine] = field(default_factory=list)
    executor: Executor = field(init=False)

    def work(self, what: Callable[..., Any] | str, *args: Any, **spec: Any) -> Work:
        name = what if isinstance(what, str) else f"task{next(numbers)}"
        if callable(what):
            self.registry.add(make_task(what, name=name))
        return Work(
            key=RunKey(UUID(int=next(numbers)), NOW - timedelta(seconds=90)),
            attempt=2,
            spent=1,
            task=name,
            spec=Spec(args=list(args), **spec),
            claimed_at=NOW,
            tenant="acme",
            pool="io",
            job="dunning",
        )

    async def run(self, what: Callable[..., Any] | str, *args: Any, **spec: Any) -> Ending:
        return await self.executor.execute(self.work(what, *args, **spec))

    def start(self, work: Work) -> asyncio.Task[Ending]:
        return asyncio.create_task(self.executor.execute(work))

    def cancel(self, work: Work, reason: str = "not wanted") -> bool:
        return self.executor.cancel(work.key, work.attempt, reason)

    async def line(self) -> LogLine:
        """Waits for the first logged line."""
        await self.until(lambda: bool(self.lines))
        return self.lines[0]

    @staticmethod
    def flag() -> Flag:
        return Flag()

    @staticmethod
    async def until(condition: Callable[[], bool]) -> None:
        for _ in range(5000):
            if condition():
                return
            await asyncio.sleep(0.002)
        raise AssertionError("the condition did not become true within 10 s")

    @staticmethod
    def error(ending: Ending) -> dict[str, Any]:
        assert ending.error is not None
        check_payload(ending.error)  # the database must accept every error
        return ending.error


@pytest.fixture
async def make_executor_harness() -> AsyncIterator[Callable[..., ExecutorHarness]]:
    made: list[ExecutorHarness] = []

    def make(registry: Registry | None = None, **options: Any) -> ExecutorHarness:
        executor_harness = ExecutorHarness(registry or Registry())
        settings = {"threads": 2, "processes": 1, "result_limit": 4000, "grace": 0.05, **options}
        executor_harness.executor = Executor(
            executor_harness.registry,
            clock=SystemClock(),
            database_now=lambda: executor_harness.now,
            log=executor_harness.lines.append,
            **settings,
        )
        made.append(executor_harness)
        return executor_harness

    yield make
    for executor_harness in made:
        await executor_harness.executor.close()


@pytest.fixture
def executor_harness(make_executor_harness: Callable[..., ExecutorHarness]) -> ExecutorHarness:
    return make_executor_harness()


@pytest.fixture(scope="session")
def isolated_app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy outside of the test folders, so that the app is not part of a package."""
    path = tmp_path_factory.mktemp("app") / "isolated_app.py"
    path.write_text((Path(__file__).parent / "isolated_app.py").read_text())
    return path


@pytest.fixture
def isolated(
    isolated_app: Path, make_executor_harness: Callable[..., ExecutorHarness]
) -> Callable[..., ExecutorHarness]:
    """Makes harnesses with the tasks of the isolated app."""

    def make(**options: Any) -> ExecutorHarness:
        target = str(isolated_app)
        return make_executor_harness(load_target(target).registry, **{"target": target, **options})

    return make
