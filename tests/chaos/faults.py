"""The faults of a history: a plan that depends on the seed alone, and how each fault is done to a cluster."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Final

from .cluster import Cluster

MEAN_PAUSE_SECONDS: Final = 4.0
CALM_SECONDS: Final = 2.0  # at the end no new fault begins

# Texts of the statements whose responses are lost, by who sends them.
WORKER_CALLS: Final = (
    "bellringer.claim(",
    "bellringer.settle(",
    "bellringer.begin_attempts(",
    "bellringer.give_back(",
    "update workers set seen_at",
    "insert into workers",
)
SCHEDULER_CALLS: Final = (
    "bellringer.tick(",
    "bellringer.fire_timers(",
    "bellringer.fast_forward(",
    "bellringer.settle(",
    "bellringer.decide_overlaps(",
    "update leases l set",
    "insert into nodes",
)

# The last row of a claim says where the next one begins: with fewer than two rows nothing was claimed.
LEAST_ROWS: Final = {"bellringer.claim(": 2}

# How often each kind comes, and how long it lasts, in seconds.
KINDS: Final[Mapping[str, tuple[int, float, float]]] = {
    "kill": (5, 0.5, 4.0),
    "terminate": (2, 0.5, 2.0),
    "stop": (5, 3.0, 15.0),
    "cut": (4, 0.0, 8.0),
    "half-open": (4, 5.0, 20.0),
    "stall": (2, 2.0, 12.0),
    "drop": (8, 0.0, 0.0),
    "postgres-kill": (1, 0.5, 5.0),
    "postgres-restart": (1, 0.0, 3.0),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """What is done when, to whom, and for how long."""

    at: float
    kind: str
    target: str = ""
    seconds: float = 0.0
    call: str = ""  # whose response is lost …
    count: int = 0  # … how often

    def __str__(self) -> str:
        more = f" {self.call!r} ×{self.count}" if self.call else f" {self.seconds:.1f} s"
        return f"{self.at:6.1f} s  {self.kind:<17}{self.target:<13}{more}"


def plan(seed: int, seconds: float, schedulers: list[str], workers: list[str]) -> list[Fault]:
    """Faults of a history, in order. Each has ended when the history ends."""
    chance = random.Random(seed)
    faults: list[Fault] = []
    at = 1.0
    while at < seconds - CALM_SECONDS:
        at_once = chance.choice((1, 1, 1, 2, 3))
        faults += [_fault(chance, at, seconds, schedulers, workers) for _ in range(at_once)]
        at += 0.5 + chance.expovariate(1 / MEAN_PAUSE_SECONDS)
    return faults


def _fault(chance: random.Random, at: float, end: float, schedulers: list[str], workers: list[str]) -> Fault:
    kind = chance.choices(list(KINDS), [weight for weight, _, _ in KINDS.values()])[0]
    _, shortest, longest = KINDS[kind]
    seconds = min(chance.uniform(shortest, longest), end - at)
    target = chance.choice([*schedulers, *workers, *workers])  # workers have more to lose
    if kind.startswith("postgres"):
        return Fault(at, kind, "", seconds)
    if kind == "drop":
        call = chance.choice(SCHEDULER_CALLS if target in schedulers else WORKER_CALLS)
        return Fault(at, kind, target, 0.0, call, chance.randint(1, 4))
    return Fault(at, kind, target, seconds)


async def inject(cluster: Cluster, faults: list[Fault], seconds: float) -> None:
    """Do all faults at their times; return after that many seconds, with all of them healed."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.TaskGroup() as under_way:
        for fault in faults:
            await asyncio.sleep(max(0.0, began + fault.at - loop.time()))
            under_way.create_task(DO[fault.kind](cluster, fault))
        await asyncio.sleep(max(0.0, began + seconds - loop.time()))
    await cluster.heal()


async def _kill(cluster: Cluster, fault: Fault) -> None:
    cluster.members[fault.target].end(signal.SIGKILL, fault.seconds)


async def _terminate(cluster: Cluster, fault: Fault) -> None:
    member = cluster.members[fault.target]
    member.end(signal.SIGTERM, fault.seconds)
    member.signal(signal.SIGCONT)


async def _stop(cluster: Cluster, fault: Fault) -> None:
    member = cluster.members[fault.target]
    member.signal(signal.SIGSTOP)
    await asyncio.sleep(fault.seconds)
    member.signal(signal.SIGCONT)


async def _cut(cluster: Cluster, fault: Fault) -> None:
    proxy = cluster.members[fault.target].proxy
    proxy.set("refuse")
    proxy.cut()
    await asyncio.sleep(fault.seconds)
    proxy.set("pass")


async def _half_open(cluster: Cluster, fault: Fault) -> None:
    proxy = cluster.members[fault.target].proxy
    proxy.set("silent")
    await asyncio.sleep(fault.seconds)
    proxy.set("pass")


async def _stall(cluster: Cluster, fault: Fault) -> None:
    proxy = cluster.members[fault.target].proxy
    proxy.set("stall")
    await asyncio.sleep(fault.seconds)
    proxy.set("pass")


async def _drop(cluster: Cluster, fault: Fault) -> None:
    cluster.members[fault.target].proxy.drop(fault.call, fault.count, LEAST_ROWS.get(fault.call, 0))


async def _postgres_kill(cluster: Cluster, fault: Fault) -> None:
    await cluster.database.stop("kill")
    await asyncio.sleep(fault.seconds)
    await cluster.database.start()


async def _postgres_restart(cluster: Cluster, fault: Fault) -> None:
    await cluster.database.stop("fast")
    await asyncio.sleep(fault.seconds)
    await cluster.database.start()


DO: Final[Mapping[str, Callable[[Cluster, Fault], Coroutine[None, None, None]]]] = {
    "kill": _kill,
    "terminate": _terminate,
    "stop": _stop,
    "cut": _cut,
    "half-open": _half_open,
    "stall": _stall,
    "drop": _drop,
    "postgres-kill": _postgres_kill,
    "postgres-restart": _postgres_restart,
}
