"""Random histories of jobs that start after each other: each matching end has one follow-up, no other has."""

from __future__ import annotations

import asyncio
import json
import random
from collections import defaultdict
from typing import TYPE_CHECKING
from uuid import UUID

import asyncpg
import pytest

from bellringer.core.policies import After, Overlap, UpstreamOutcome
from bellringer.core.retry_policy import Retry
from bellringer.core.runs import RunKey
from bellringer.engine.claim import ClaimSpec
from bellringer.engine.reap import reap
from bellringer.store import queue
from bellringer.store.queue import ClaimedRun

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness

JOBS = 6
STEPS = 60
WANTED = {"success": {"succeeded"}, "failure": {"dead"}, "any": {"succeeded", "dead"}}


class History:
    """Plays random steps on a forest of jobs, and remembers in which states each run has ended."""

    def __init__(self, harness: EngineHarness, seed: int) -> None:
        self.harness = harness
        self.random = random.Random(seed)
        self.jobs: list[UUID] = []
        self.upstream: dict[UUID, tuple[UUID, str]] = {}
        self.held: list[tuple[ClaimSpec, ClaimedRun]] = []
        self.settled: list[tuple[ClaimSpec, ClaimedRun, bool]] = []

    async def create(self) -> None:
        for number in range(JOBS):
            before = self.random.choice([None, *range(number)]) if number else None
            on = self.random.choice(list(UpstreamOutcome))
            after = None if before is None else After(f"job{before}", on)
            overlap = self.random.choice([Overlap.ALLOW, Overlap.QUEUE, Overlap.SKIP, Overlap.COLLAPSE])
            job = await self.harness.job(f"job{number}", after=after, overlap=overlap, retry=Retry(1))
            if before is not None:
                self.upstream[job] = (self.jobs[before], on.value)
            self.jobs.append(job)

    async def play(self) -> None:
        seat = await self.harness.join_worker()
        for _ in range(STEPS):
            await self.harness.pass_time(0.01)
            step = self.random.choice(["trigger", "claim", "settle", "settle", "repeat", "redrive", "lose", "decide"])
            if step == "trigger":
                await self.harness.trigger(self.random.choice(self.jobs))
            elif step == "claim":
                taken = await self.harness.claim(seat, self.random.randint(1, 5))
                self.held += [(seat, claimed) for claimed in taken]
            elif step == "settle":
                await self.settle_some()
            elif step == "repeat" and self.settled:
                await self.end(*self.random.choice(self.settled))
            elif step == "redrive":
                await self.redrive()
            elif step == "decide":
                await queue.decide_overlaps(self.harness.store, 100)
            elif step == "lose" and self.random.random() < 0.2:
                await self.harness.silence_worker(seat)
                await reap(self.harness.store, self.harness.catalog)
                seat = await self.harness.join_worker()

    async def settle_some(self) -> None:
        """Settles some held runs at the same time, each on a connection of its own."""
        self.random.shuffle(self.held)
        count = self.random.randint(1, 4)
        chosen, self.held = self.held[:count], self.held[count:]
        endings = [(seat, claimed, self.random.random() < 0.6) for seat, claimed in chosen]
        await asyncio.gather(*(self.end(*ending) for ending in endings))
        self.settled += endings

    async def end(self, seat: ClaimSpec, claimed: ClaimedRun, is_ok: bool) -> None:
        await (self.harness.end(seat, claimed) if is_ok else self.harness.fail(seat, claimed))

    async def redrive(self) -> None:
        rows = await self.harness.sql("select job_id, scheduled_for, slot from dead_letters")
        if rows:
            await self.harness.redrive(RunKey(*self.random.choice(rows)))

    async def check(self) -> None:
        ended: dict[UUID, dict[RunKey, set[str]]] = defaultdict(lambda: defaultdict(set))
        for row in await self.harness.sql(
            "select job_id, scheduled_for, slot, ends_as from attempts where ends_as is not null"
        ):
            ended[row["job_id"]][RunKey(*row[:3])].add(row["ends_as"])
        for job in self.jobs:
            follow_ups = await self.harness.sql("select * from runs where job_id = $1 and cause = 'after'", job)
            upstream, on = self.upstream.get(job, (None, ""))
            wanted = (
                sorted(key.id for key, states in ended[upstream].items() if states & WANTED[on])
                if upstream is not None
                else []
            )
            assert sorted(_upstream_of(row).id for row in follow_ups) == wanted


def _upstream_of(row: asyncpg.Record) -> RunKey:
    found = json.loads(row["spec"])["upstream"]
    return RunKey(UUID(found["job_id"]), row["scheduled_for"], found["slot"])


@pytest.mark.parametrize("seed", range(6))
async def test_each_matching_end_has_one_follow_up(harness: EngineHarness, seed: int) -> None:
    history = History(harness, seed)
    await history.create()
    await history.play()
    await history.check()
