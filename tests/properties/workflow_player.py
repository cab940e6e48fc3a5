"""Two workers that execute a workflow run by a script, and record what they saw."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from tests.properties.workflow_reference import DISCARDED, EARLY, FAILED, FINAL, LOST, NEVER, OK, Path, Script
from tests.support.engine_harness import EngineHarness

from bellringer.core.jobs import SIGNAL_TASK, WAIT_TASK, WORKFLOW_TASK
from bellringer.core.runs import Ending, Outcome, RunKey
from bellringer.engine import settle, workflow_commands
from bellringer.engine.claim import ClaimSpec
from bellringer.engine.reap import reap
from bellringer.errors import Conflict
from bellringer.store.queue import ClaimedRun, EndedRun
from bellringer.store.workflows import load_node_arguments

ROUNDS: Final = 2_000
NODES: Final = """
    select f.flow_id, f.job_id, f.scheduled_for, f.slot, f.parent, n.node, g.name, n.place, n.state::text as state,
           n.reason, g.kind, g.waits ->> 'signal' as signal, g.waits ->> 'seconds' is null as endless
    from flows f join flow_nodes n using (flow_id) join graph_nodes g on g.graph_id = f.graph_id and g.node = n.of
    where f.top_job = $1 order by f.flow_id, n.node"""
BREACHES: Final = """
    select 'more than max_parallel: ' || f.flow_id || ' ' || count(*) || ' > ' || p.max_parallel
    from flows f join graphs p using (graph_id) join flow_nodes n on n.flow_id = f.flow_id and n.state = 'queued'
    join graph_nodes g on g.graph_id = f.graph_id and g.node = n.of and g.kind in ('task', 'workflow')
    where n.place is not null or g.over is null group by f.flow_id, p.max_parallel having count(*) > p.max_parallel
    union all
    select 'more of a map than max_parallel: ' || g.name || ' ' || count(*) from flows f
    join flow_nodes n on n.flow_id = f.flow_id and n.state = 'queued' and n.place is not null
    join graph_nodes g on g.graph_id = f.graph_id and g.node = n.of
    group by n.flow_id, g.name, g.max_concurrent having count(*) > g.max_concurrent
    union all
    select 'busy is wrong: ' || f.flow_id || ' ' || f.busy from flows f where f.busy <> (
      select count(*) from flow_nodes n join graph_nodes g on g.graph_id = f.graph_id and g.node = n.of
      where n.flow_id = f.flow_id and n.state = 'queued' and g.kind in ('task', 'workflow')
        and (n.place is not null or g.over is null))
    union all
    select 'it has room, and does not begin: ' || n.flow_id || ' ' || n.node from flow_nodes n
    join flows f using (flow_id) join graphs p using (graph_id)
    where n.ready and f.busy < coalesce(p.max_parallel, 2147483647)"""
NEXT: Final = """
    select min(at) from (select available_at as at from queue where worker_id is null and blocked = 0
                         union all select due_at from timers) w"""


@dataclass(frozen=True)
class Held:
    """An attempt that a worker holds."""

    path: Path
    claimed: ClaimedRun
    how: str
    ending: Ending


@dataclass
class Play:
    """One workflow run from its trigger to its end."""

    harness: EngineHarness
    script: Script
    dice: random.Random
    job_id: UUID
    seats: list[ClaimSpec] = field(default_factory=list)
    held: dict[int, list[Held]] = field(default_factory=dict)
    late: list[tuple[ClaimSpec, EndedRun]] = field(default_factory=list)
    starts: dict[Path, int] = field(default_factory=dict)  # when it was first claimed …
    ends: dict[Path, int] = field(
        default_factory=dict
    )  # … and when its last attempt was to be settled, or its signal sent
    attempts: dict[Path, list[str]] = field(default_factory=dict)
    given: dict[Path, dict[str, Any]] = field(default_factory=dict)
    sent: set[Path] = field(default_factory=set)
    breaches: list[str] = field(default_factory=list)
    now: int = 0

    async def run(self) -> None:
        """Execute until the workflow run has ended."""
        await self.harness.trigger(self.job_id)
        self.seats = [await self._seat(), await self._seat()]
        for _ in range(ROUNDS):
            claimed = await asyncio.gather(*(self._claim(seat) for seat in self.seats))
            sent = await self._send()
            settled = await asyncio.gather(*(self._settle(seat) for seat in self.seats))
            self.breaches += [row[0] for row in await self.harness.sql(BREACHES)]
            if self.breaches:
                return
            if sum(claimed) + sent + sum(settled) or (any(self.held.values()) and await self._bury()):
                continue
            if not await self._pass_time():
                return
        raise AssertionError("it never came to rest")

    async def _seat(self) -> ClaimSpec:
        seat = await self.harness.join_worker("greet", WORKFLOW_TASK, WAIT_TASK, SIGNAL_TASK)
        self.held[seat.worker_id] = []
        return seat

    async def _claim(self, seat: ClaimSpec) -> int:
        taken = await load_node_arguments(
            self.harness.store, await self.harness.claim(seat, self.dice.choice([1, 2, 5, 100]))
        )
        if not taken:
            return 0
        names = await self.harness.catalog.task_names({c.task_id for c in taken})
        paths = await self.paths()
        for claimed in taken:
            path = () if claimed.key.job_id == self.job_id else paths[claimed.key.job_id, claimed.key.slot]
            how, ending = self._how(path, claimed, names[claimed.task_id])
            self.starts.setdefault(path, self._tick())
            self.attempts.setdefault(path, []).append(how)
            self.given[path] = claimed.spec.kwargs
            self.held[seat.worker_id].append(Held(path, claimed, how, ending))
        return len(taken)

    def _how(self, path: Path, claimed: ClaimedRun, task: str) -> tuple[str, Ending]:
        if task == WAIT_TASK:
            return OK, Ending(outcome=Outcome.OK)
        if task == SIGNAL_TASK:
            if "default" in claimed.spec.kwargs:
                return OK, Ending(outcome=Outcome.OK, result=claimed.spec.kwargs["default"])
            return FINAL, _failed(FINAL)
        how = self.script.ending(path, claimed.attempt, opens=task == WORKFLOW_TASK)
        if how in (FAILED, FINAL):
            return how, _failed(how)
        if how == DISCARDED:
            return how, Ending(outcome=Outcome.OK, discard="not wanted")
        opened = task == WORKFLOW_TASK
        return how, Ending(outcome=Outcome.OK, opened=opened, result=None if opened else self.script.result(path))

    async def _settle(self, seat: ClaimSpec) -> int:
        """Settle some held attempts in random order, and sometimes repeat an earlier settlement."""
        mine = [held for held in self.held[seat.worker_id] if held.how != LOST]
        self.dice.shuffle(mine)
        mine = mine[: self.dice.choice([1, 2, 3, 100])]
        batch = []
        for held in mine:
            self.ends[held.path] = self._tick()
            self.held[seat.worker_id].remove(held)
            batch.append(settle.decide(held.claimed, held.ending))
        again = [told for at, told in self.late if at is seat and self.dice.random() < 0.3]
        if batch or again:
            written = (await settle.settle(self.harness.store, seat.worker_id, [*batch, *again])).written
            if written != len(batch):
                self.breaches.append(f"{written} were settled, not {len(batch)}: {batch} {again}")
        self.late = [(at, told) for at, told in self.late if told not in again]
        self.late += [(seat, told) for told in batch if self.dice.random() < 0.3]
        return len(batch)

    async def _bury(self) -> bool:
        """Replace workers whose held attempts are all to be lost."""
        gone = [
            seat
            for seat in self.seats
            if self.held[seat.worker_id] and all(h.how == LOST for h in self.held[seat.worker_id])
        ]
        for seat in gone:
            await self.harness.silence_worker(seat)
            self.seats[self.seats.index(seat)] = await self._seat()
        if gone:
            for held in (held for seat in gone for held in self.held.pop(seat.worker_id)):
                self.ends[held.path] = self._tick()
            await reap(self.harness.store, self.harness.catalog, timedelta(minutes=5))
        return bool(gone)

    async def _send(self) -> int:
        """Send signals that are due; early ones as soon as the workflow run exists."""
        sent = 0
        paths = await self.paths()
        for row in await self.harness.sql(NODES, self.job_id):
            path = paths[row["flow_id"], row["node"]]
            if row["kind"] != "signal" or row["state"] not in ("blocked", "queued") or path in self.sent:
                continue
            plan = self.script.signal(path, endless=row["endless"])
            if plan == NEVER or (plan != EARLY and row["state"] != "queued"):
                continue
            self.ends[path] = self._tick()
            self.sent.add(path)
            key = RunKey(row["job_id"], row["scheduled_for"], row["slot"])
            with suppress(Conflict):  # it was skipped this very moment
                await workflow_commands.send_signal(
                    self.harness.store, key, row["signal"], self.script.payload(path), tenant_id=1
                )
            sent += 1
        return sent

    async def _pass_time(self) -> bool:
        """Move the clock to the next due instant; returns False if there is none."""
        due = await self.harness.value(NEXT)
        if due is None:
            return False
        if due > await self.harness.now():
            await self.harness.set_clock(due)
        await self.harness.seize()
        await self.harness.ring()
        return True

    async def paths(self) -> dict[tuple[UUID, int], Path]:
        """Returns the path of each node by its workflow run and number."""
        rows = await self.harness.sql(NODES, self.job_id)
        step = {(row["flow_id"], row["node"]): _step(row["name"], row["place"]) for row in rows}
        above = {row["flow_id"]: (row["parent"], row["slot"]) for row in rows}

        def path(flow_id: UUID) -> Path:
            parent, slot = above[flow_id]
            return () if parent is None else path(parent) + step[parent, slot]

        return {(flow_id, node): path(flow_id) + last for (flow_id, node), last in step.items()}

    def _tick(self) -> int:
        self.now += 1
        return self.now


def _step(name: str, place: int | None) -> Path:
    return (name,) if place is None else (name, place)


def _failed(how: str) -> Ending:
    error = {"type": "ValueError", "message": "no", "lineage": ["ValueError"]}
    return Ending(outcome=Outcome.FAILED, error=error, final="for good" if how == FINAL else None)


def span(events: dict[Path, int], path: Path) -> Sequence[int]:
    """Returns the start and end of everything at or below a path."""
    return [moment for where, moment in events.items() if where[: len(path)] == path]
