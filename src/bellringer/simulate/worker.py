"""The simulated worker: a claimed run occupies a slot for its simulated duration, then it is settled."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import count
from typing import Any

from msgspec.structs import replace

from bellringer.core.runs import Ending, Outcome
from bellringer.engine.reap import WORKER_SILENCE
from bellringer.engine.settle import decide, settle
from bellringer.simulate.report import Crash
from bellringer.store import queue
from bellringer.store.queue import ClaimedRun
from bellringer.testing import records
from bellringer.testing.environment import TestEnvironment
from bellringer.worker.results import expired_ending

_OK = Ending(outcome=Outcome.OK)
_OPENED = Ending(outcome=Outcome.OK, opened=True)


class SimulatedWorker:
    """Has `slots` slots in each pool. After a crash it is silent, and schedulers notice after the usual time."""

    def __init__(
        self,
        stage: TestEnvironment,
        *,
        slots: int,
        duration: Callable[[str | None], timedelta],
        execute: bool = False,
        results: Mapping[str, Any] | None = None,
    ) -> None:
        self._stage = stage
        self._slots = slots
        self._duration = duration
        self._execute = execute
        self._results = results or {}  # of nodes whose handlers are not called
        self._running: list[tuple[datetime, int, int, ClaimedRun, Ending]] = []
        self._busy: Counter[int] = Counter()
        self._order = count()
        self._pools: dict[int, str] = {}
        self.dies_at: datetime | None = None
        self.noticed_at: datetime | None = None  # it is silent until then
        self.settled = 0

    @property
    def idle(self) -> bool:
        return not self._running and self.noticed_at is None

    def next_end(self) -> datetime | None:
        """The time at which the first of its runs ends."""
        return self._running[0][0] if self._running else None

    async def cancel_requested_runs(self, now: datetime) -> None:
        """Ends the running runs that were asked to cancel."""
        asked = set(await queue.cancel_requests(self._stage.store, self._stage.test_worker.worker_id))
        for place, (end, number, pool_id, claimed, _) in enumerate(self._running):
            if (claimed.key, claimed.attempt) in asked:
                ending = Ending(outcome=Outcome.CANCELLED, ran=(now - claimed.claimed_at).total_seconds())
                self._running[place] = (min(now, end), number, pool_id, claimed, ending)
        heapq.heapify(self._running)

    async def finish(self, now: datetime) -> int:
        """Settles the runs that ended up to now, each with its own end time. Returns their number."""
        batch = []
        while self._running and self._running[0][0] <= now:
            end, _, pool_id, claimed, ending = heapq.heappop(self._running)
            batch.append(decide(claimed, ending, (end - now).total_seconds()))
            self._busy[pool_id] -= 1
        if batch:
            settlement = await settle(self._stage.store, self._stage.test_worker.worker_id, batch, moment=0.0)
            self.settled += settlement.written
        return len(batch)

    async def take(self, now: datetime, pools: Collection[int]) -> int:
        """Claims ready runs of these pools as far as slots are free. Returns their number."""
        taken = 0
        for pool_id in sorted(pools):
            room = self._slots - self._busy[pool_id]
            if room <= 0 or self.noticed_at is not None:
                continue
            for claimed in await self._stage.test_worker.claim(pool_id, room):
                length = self._length(claimed)
                ending = replace(await self._ending(claimed, pool_id), ran=length.total_seconds())
                heapq.heappush(self._running, (now + length, next(self._order), pool_id, claimed, ending))
                self._busy[pool_id] += 1
                taken += 1
        return taken

    def _length(self, claimed: ClaimedRun) -> timedelta:
        """Returns the duration of a run. Opening a workflow run takes no time."""
        return timedelta(0) if claimed.spec.graph is not None else self._duration(claimed.spec.node or claimed.name)

    async def _ending(self, claimed: ClaimedRun, pool_id: int) -> Ending:
        """Returns the outcome of a run: success, or what its handler decides."""
        if claimed.expires_at is not None and claimed.claimed_at >= claimed.expires_at:
            return expired_ending()
        if claimed.spec.graph is not None:
            return _OPENED
        if not self._execute:
            result = self._results.get(claimed.spec.node) if claimed.spec.node else None
            return _OK if result is None else Ending(outcome=Outcome.OK, result=result)
        if pool_id not in self._pools:
            self._pools = await records.pool_ids(self._stage.store)
        return await self._stage.test_worker.execute(claimed, self._pools[pool_id])

    def schedule_crash(self, now: datetime) -> bool:
        """Schedules a crash halfway to its next end. Returns False if the worker holds no run."""
        end = self.next_end()
        if end is None or end <= now or self.dies_at is not None:
            return False
        self.dies_at = now + (end - now) / 2
        return True

    def crash(self, now: datetime) -> Crash:
        """Drops all runs and becomes silent."""
        lost = len(self._running)
        self._running.clear()
        self._busy.clear()
        self.dies_at, self.noticed_at = None, now + WORKER_SILENCE
        return Crash(now, lost)

    async def rejoin(self) -> None:
        """Called when the silence is noticed: reaps the lost runs and starts a replacement worker."""
        self.settled += await self._stage.test_worker.replace()
        self.noticed_at = None


Document = Mapping[str, Any]


def stand_in_results(workflows: Iterable[Document]) -> dict[str, Any]:
    """Returns a result by node name for handlers that are not executed: a list of one element if a map is over the
    result, else the value of the first branch.
    """
    found: dict[str, Any] = {}
    for workflow in workflows:
        for parent, value in _branch_values(workflow):
            found.setdefault(parent, value)
    for workflow in workflows:
        for ref in _mapped_refs(workflow):
            if "node" in ref:
                found[ref["node"]] = _with_list_at(found.get(ref["node"]), ref.get("path", ()))
    return found


def node_names(workflow: Document) -> Iterator[str]:
    """Yields the names of the nodes of a workflow and of its nested workflows."""
    for node in workflow["nodes"]:
        yield node["name"]
        for inner in _inner(node):
            yield from node_names(inner)


def _inner(node: Document) -> list[Document]:
    inner = node.get("workflow")
    return [inner] if isinstance(inner, Mapping) else []


def _branch_values(workflow: Document) -> Iterator[tuple[str, Any]]:
    for node in workflow["nodes"]:
        for edge in node.get("after", ()):
            if isinstance(edge, Mapping) and "is" in edge:
                yield edge["node"], edge["is"]
        for inner in _inner(node):
            yield from _branch_values(inner)


def _mapped_refs(workflow: Document) -> Iterator[Document]:
    """Yields the references that maps are over. A param of a nested workflow is replaced by the argument of the
    outer node.
    """
    for node in workflow["nodes"]:
        if "over" in node:
            yield node["over"]
        takes = node.get("takes", {})
        for inner in _inner(node):
            for ref in _mapped_refs(inner):
                outer = takes.get(ref.get("param"), ref)
                yield outer if outer is ref else {**outer, "path": [*outer.get("path", ()), *ref.get("path", ())]}


def _with_list_at(value: Any, path: Sequence[str | int]) -> Any:
    """Returns the value with a list of one element at the end of the path."""
    if not path:
        return [None]
    step, rest = path[0], path[1:]
    if isinstance(step, str):
        known = value if isinstance(value, dict) else {}
        return {**known, step: _with_list_at(known.get(step), rest)}
    return [_with_list_at(None, rest)] * (abs(step) + 1)
