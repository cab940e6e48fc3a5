"""The work of a history, and the list of what was accepted: kept here, apart from the database."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from bellringer import at, delay, every
from bellringer.errors import BellringerError
from bellringer.sdk.task_handle import TaskHandle

from .app import app, diamond, flaky, isolated, long, once, plain, quick, slow

CALL_SECONDS: Final = 15.0  # after which the client gives up a call; whether it was accepted is unknown then
CALLS_PER_SECOND: Final = 6.0

# Recurring jobs: name, task, overlap, further arguments. All are due every second.
RECURRING: Final[tuple[tuple[str, TaskHandle[..., Any], str, dict[str, Any]], ...]] = (
    ("skip-quick", quick, "skip", {}),
    ("skip-slow", slow, "skip", {"seconds": 2.0}),
    ("queue-quick", quick, "queue", {}),
    ("queue-plain", plain, "queue", {}),
    ("allow-quick", quick, "allow", {}),
    ("allow-slow", slow, "allow", {"seconds": 2.0}),
)
CHAINS: Final[tuple[tuple[str, TaskHandle[..., Any], dict[str, Any]], ...]] = (
    ("chain-quick", quick, {}),
    ("chain-plain", plain, {}),
    ("chain-slow", slow, {"seconds": 1.5}),
    ("chain-flaky", flaky, {}),
    ("chain-isolated", isolated, {}),
)
# Kinds of one-shots, and how often each comes.
WEIGHTS: Final = {
    "quick": 6, "plain": 4, "flaky": 3, "slow": 3, "long": 1, "once": 4, "isolated": 2, "later": 6, "job": 4,
    "workflow": 2, "bulk": 2,
}  # fmt: skip
BULK_ITEMS: Final = 20


@dataclass(frozen=True, slots=True)
class Accepted:
    """A one-shot whose acceptance was confirmed."""

    kind: str
    tag: str
    due: float  # seconds since 1970; not before it was sent
    run_id: str | None = None  # unknown for jobs


@dataclass(slots=True)
class Load:
    """Sends work for as long as a history lasts."""

    seed: int
    kinds: dict[str, int] = field(default_factory=lambda: dict(WEIGHTS))
    ahead_seconds: float = 20.0  # how far ahead work is asked for, at most
    accepted: list[Accepted] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)  # tags of calls that failed, and why
    jobs: dict[str, float] = field(default_factory=dict)  # recurring jobs and chains, and since when

    async def declare(self) -> None:
        """Register the recurring jobs, the chains and the workflow, before anything goes wrong."""
        await app.adeclare()
        for name, task, overlap, more in RECURRING:
            self.jobs[name] = time.time()
            await task.options(overlap=overlap).aschedule(every("1s"), id=name, tag=name, **more)
        for name, chained, more in CHAINS:
            self.jobs[name] = time.time()
            await chained.aschedule(delay("1s"), id=name, tag=name, **more)

    async def run(self, seconds: float) -> None:
        """Send for so long; then wait for the calls that are under way."""
        chance = random.Random(self.seed)
        loop = asyncio.get_running_loop()
        ends = loop.time() + seconds
        number = 0
        async with asyncio.TaskGroup() as calls:
            while loop.time() < ends:
                number += 1
                kind = chance.choices(list(self.kinds), list(self.kinds.values()))[0]
                calls.create_task(
                    self._call(kind, f"{kind}-{number}", chance.uniform(1, self.ahead_seconds), chance.uniform(1, 5))
                )
                await asyncio.sleep(chance.expovariate(CALLS_PER_SECOND))

    async def _call(self, kind: str, tag: str, later: float, length: float) -> None:
        due = time.time()
        try:
            async with asyncio.timeout(CALL_SECONDS):
                if kind == "later":
                    due += later
                    run = await quick.options(at=_instant(due)).asend(tag)
                elif kind == "job":
                    due += later
                    await plain.aschedule(at(_instant(due)), tag, id=tag)
                    self.accepted.append(Accepted(kind, tag, due))
                    return
                elif kind == "bulk":
                    due += later
                    items = bulk_items(tag)
                    runs = await quick.asend_many([quick.options(at=_instant(due)).message(item) for item in items])
                    self.accepted += [Accepted(kind, item, due, run.id) for item, run in zip(items, runs, strict=True)]
                    return
                else:
                    run = await self._send(kind, tag, length)
        except (BellringerError, OSError, TimeoutError) as error:
            self.unknown[tag] = f"{type(error).__name__}: {error}"
        else:
            self.accepted.append(Accepted(kind, tag, due, run.id))

    async def _send(self, kind: str, tag: str, length: float) -> Any:
        sends: dict[str, Callable[[], Awaitable[Any]]] = {
            "quick": lambda: quick.asend(tag),
            "plain": lambda: plain.asend(tag),
            "flaky": lambda: flaky.asend(tag),
            "slow": lambda: slow.asend(tag, length),
            "long": lambda: long.asend(tag),
            "once": lambda: once.asend(tag),
            "isolated": lambda: isolated.asend(tag),
            "workflow": lambda: diamond.atrigger(tag=tag),
        }
        return await sends[kind]()


def bulk_items(tag: str) -> list[str]:
    """The tags of the one-shots of a bulk."""
    return [f"{tag}/{number}" for number in range(BULK_ITEMS)]


def _instant(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
