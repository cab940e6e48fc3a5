"""One history: a cluster, a load, faults, the time to heal, and the judgment."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from .app import app
from .cluster import Cluster
from .faults import Fault, inject, plan
from .ledger import connect, held, read_ledger
from .load import WEIGHTS, Load
from .oracle import Oracle, Verdict
from .sink import read_sink
from .strandings import plant_and_verify, verify

HEAL_SECONDS: Final = 60.0
UNKNOWN_SECONDS: Final = 15.0  # a row may be held for so long without being executed, once the faults are healed
SHORT_SECONDS: Final = 8.0  # a short history may be judged this long after the heal
JOIN_SECONDS: Final = 60.0
SHORT: Final = {kind: weight for kind, weight in WEIGHTS.items() if kind != "long"}, 4.0  # kinds, and how far ahead
_JOINED: Final = "select count(*) from workers where state = 'live'"


@dataclass(slots=True)
class History:
    """What a history was, and what came out."""

    name: str
    faults: list[Fault]
    load: Load
    verdict: Verdict
    took: float
    folder: Path = Path()
    dropped: Counter[str] = field(default_factory=Counter)  # calls whose responses were lost

    def report(self, most: int = 25) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(f.kind for f in self.faults).most_common())
        duplicates = ", ".join(f"{count} {why}" for why, count in self.verdict.duplicates.most_common()) or "none"
        dead = ", ".join(f"{count} × {why}" for why, count in self.verdict.dead.most_common()) or "none"
        calls = (
            f"{len(self.load.accepted)} one-shots, {len(self.load.jobs)} jobs; {len(self.load.unknown)} calls failed"
        )
        lost = ", ".join(f"{count} × {call}" for call, count in self.dropped.most_common()) or "no response"
        lines = [
            f"{self.name}: {'ok' if not self.verdict.violations else 'NOT OK'} after {self.took:.0f} s",
            f"  faults      {len(self.faults)}: {kinds}",
            f"  lost        {lost}",
            f"  accepted    {calls}",
            f"  executed    {self.verdict.executed}; executed again after: {duplicates}; dead: {dead}",
            f"  worst       {self.verdict.worst_after_heal:.1f} s after the heal {self.verdict.worst}",
            *(f"  VIOLATION   {told}" for told in self.verdict.violations[:most]),
        ]
        if len(self.verdict.violations) > most:
            lines.append(f"  … and {len(self.verdict.violations) - most} more")
        if self.verdict.violations:
            lines.append(f"  kept in     {self.folder}")
        return "\n".join(lines)


async def play(seed: int, seconds: float, *, short: bool = False) -> History:
    """Play a history. A short one has no long work, and is judged as soon as all that was accepted has ended."""
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{seed}-", dir=memory()))
    began = time.monotonic()
    load = Load(seed, *SHORT) if short else Load(seed)
    async with Cluster(folder) as cluster:
        await app.connection.move(cluster.database.dsn)
        try:
            faults = plan(seed, seconds, cluster.schedulers, cluster.workers)
            await load.declare()
            await joined(cluster)
            async with asyncio.TaskGroup() as both:
                both.create_task(load.run(seconds))
                both.create_task(inject(cluster, faults, seconds))
            verdict = await judge(cluster, load, short=short)
            verdict.violations.extend(cluster.exits())
            history = History(f"seed {seed}", faults, load, verdict, 0.0, folder, cluster.dropped())
            verdict.violations.extend(await verify(cluster))
            verdict.violations.extend(await plant_and_verify(cluster))
        finally:
            await app.aclose()
    history.took = time.monotonic() - began
    (folder / "report").write_text("\n".join([history.report(most=10_000), "", *map(str, faults), ""]))
    if not verdict.violations:
        shutil.rmtree(folder, ignore_errors=True)
    return history


async def judge(cluster: Cluster, load: Load, *, short: bool) -> Verdict:
    """Wait until the time to heal is over, watching what is held; then compare."""
    healed, healed_wall = time.monotonic(), time.time()
    connection = await connect(cluster.database.dsn)
    unknown: list[str] = []
    try:
        while (now := time.monotonic()) < healed + HEAL_SECONDS:
            if now > healed + (SHORT_SECONDS if short else UNKNOWN_SECONDS):
                executions = read_sink(cluster.sink)
                known = {(e.run, e.attempt) for e in executions if not e.outcome}
                unknown += [
                    f"{row.run} attempt {row.attempt} is held by {row.worker} since {row.age:.0f} s, and not executed"
                    for row in await held(connection)
                    if row.age > UNKNOWN_SECONDS and (row.run, row.attempt) not in known
                ]
                ledger = await read_ledger(connection)
                if short and not Oracle(load, executions, ledger, healed, healed_wall, now).judge().violations:
                    break
            await asyncio.sleep(2)
        ledger, executions = await read_ledger(connection), read_sink(cluster.sink)
        verdict = Oracle(load, executions, ledger, healed, healed_wall, time.monotonic()).judge()
        verdict.violations.extend(dict.fromkeys(unknown))
        return verdict
    finally:
        await connection.close()


async def joined(cluster: Cluster) -> None:
    """Wait until all workers have joined."""
    connection = await connect(cluster.database.dsn)
    try:
        async with asyncio.timeout(JOIN_SECONDS):
            while await connection.fetchval(_JOINED) < len(cluster.workers):  # noqa: ASYNC110 - a row sets no event
                await asyncio.sleep(0.1)
    finally:
        await connection.close()


def memory() -> Path | None:
    folder = Path("/dev/shm")
    return folder if folder.is_dir() and shutil.disk_usage(folder).free > 2 << 30 else None
