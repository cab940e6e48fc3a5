"""A bench for the worker's tests: an executor, and short ways to run things on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from bellringer.clock import SystemClock
from bellringer.payload import check_payload
from bellringer.runs import Ending, RunKey, Spec
from bellringer.tasks import Registry, task_from
from bellringer.worker.executor import Executor
from bellringer.worker.target import load_target
from bellringer.worker.work import LogLine, Work

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
numbers = count(1)


@dataclass
class Bench:
    """Runs functions, or tasks by name, as the second attempt of a run that is 90 s late."""

    registry: Registry
    now: datetime = NOW
    lines: list[LogLine] = field(default_factory=list)
    executor: Executor = field(init=False)

    def work(self, what: Callable[..., Any] | str, *args: Any, **spec: Any) -> Work:
        name = what if isinstance(what, str) else f"task{next(numbers)}"
        if callable(what):
            self.registry.add(task_from(what, name=name))
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
        """The first line that is logged, once it is."""
        await self.until(lambda: bool(self.lines))
        return self.lines[0]

    @staticmethod
    async def until(condition: Callable[[], bool]) -> None:
        for _ in range(5000):
            if condition():
                return
            await asyncio.sleep(0.002)
        raise AssertionError("it never came to pass")

    @staticmethod
    def error(ending: Ending) -> dict[str, Any]:
        assert ending.error is not None
        check_payload(ending.error)  # whatever it says, the database takes it
        return ending.error


@pytest.fixture
async def make_bench() -> AsyncIterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(registry: Registry | None = None, **options: Any) -> Bench:
        bench = Bench(registry or Registry())
        settings = {"threads": 2, "processes": 1, "result_limit": 4000, "grace": 0.05, **options}
        bench.executor = Executor(
            bench.registry,
            clock=SystemClock(),
            database_now=lambda: bench.now,
            log=bench.lines.append,
            **settings,
        )
        made.append(bench)
        return bench

    yield make
    for bench in made:
        await bench.executor.close()


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench()


@pytest.fixture(scope="session")
def isolated_app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, where the tests' own folders do not make it part of a package."""
    path = tmp_path_factory.mktemp("app") / "isolated_app.py"
    path.write_text((Path(__file__).parent / "isolated_app.py").read_text())
    return path


@pytest.fixture
def isolated(isolated_app: Path, make_bench: Callable[..., Bench]) -> Callable[..., Bench]:
    """Makes benches whose tasks are those of the isolated app."""

    def make(**options: Any) -> Bench:
        target = str(isolated_app)
        return make_bench(load_target(target).registry, **{"target": target, **options})

    return make
