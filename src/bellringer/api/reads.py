"""Reads that many requests share: what is asked for in one turn of the event loop is asked of the database once, and
runs that have ended are kept for a moment as they were answered.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from itertools import islice
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

import msgspec
from prometheus_client import Counter as Metric

from bellringer.api import documents
from bellringer.clock import Clock
from bellringer.runs import FINAL, RunKey
from bellringer.store import jobs, status
from bellringer.store.names import Names
from bellringer.store.pool import Store
from bellringer.store.scope import ScopedStore
from bellringer.telemetry import one_of

_Place = tuple[int, int, RunKey]  # whose, since how many changes, and which
G = TypeVar("G")
K = TypeVar("K")
V = TypeVar("V")

READS: Final = Metric("bellringer_api_run_reads_total", "Reads of a run's status, by where they came from", ["source"])

FRESH: Final = 1.0  # seconds for which a task's defaults hold
KEPT: Final = 5.0  # seconds for which a run that has ended is kept: the truth behind hints that may be lost
MOST_KEPT: Final = 20_000  # answers, each no longer than LONGEST
LONGEST: Final = 16 * 1024
REVIVES: Final = frozenset({"runs", "dead letters", "operations"})  # tags of operations that may revive a run


class Together(Generic[G, K, V]):
    """Calls by key, many in one. Whoever asks before a call is sent is answered by it; who asks later, by the next:
    nobody is told what was true before they asked. While a group has enough calls under way, its others gather; groups
    take turns, so that one whose calls take long does not hold up the rest."""

    MOST: Final = 200  # keys in a call
    IN_ALL: Final = 6  # calls under way: fewer than there are connections

    def __init__(self, read: Callable[[G, Sequence[K]], Awaitable[Mapping[K, V]]], *, at_once: int = 3) -> None:
        self._read = read
        self._at_once = at_once
        self._waiting: dict[G, dict[K, asyncio.Future[V | None]]] = {}
        self._calls: dict[asyncio.Task[None], G] = {}

    async def get(self, group: G, key: K) -> V | None:
        waiting = self._waiting.setdefault(group, {})
        if key not in waiting:
            loop = asyncio.get_running_loop()
            waiting[key] = loop.create_future()
            loop.call_soon(self._start)
        return await asyncio.shield(waiting[key])

    def _start(self) -> None:
        under_way = Counter(self._calls.values())
        for group in list(self._waiting):
            if len(self._calls) >= self.IN_ALL:
                return
            if under_way[group] < self._at_once:
                waiting = self._waiting.pop(group)
                wanted = {key: waiting.pop(key) for key in list(islice(waiting, self.MOST))}
                if waiting:
                    self._waiting[group] = waiting  # behind the others
                call = asyncio.create_task(self._call(group, wanted))
                self._calls[call] = group
                call.add_done_callback(self._ended)

    def _ended(self, call: asyncio.Task[None]) -> None:
        del self._calls[call]
        self._start()

    async def _call(self, group: G, wanted: Mapping[K, asyncio.Future[V | None]]) -> None:
        try:
            found = await self._read(group, list(wanted))
        except Exception as error:  # noqa: BLE001 - each of those who wait is told
            for future in wanted.values():
                future.set_exception(error)
                future.exception()  # nobody may be waiting any more
        else:
            for key, future in wanted.items():
                future.set_result(found.get(key))
        finally:
            for future in wanted.values():
                future.cancel()  # does nothing to those that are answered


class Desk:
    """What one process answers from, for all its requests."""

    def __init__(self, store: Store, tenants: Store, names: Names, clock: Clock) -> None:
        self._store = store
        self._tenants = tenants
        self._names = names
        self._clock = clock
        self._now = Together(self._read_now)
        self._runs = Together(self._read_runs, at_once=1)
        self._jobs = Together(self._read_jobs, at_once=1)
        self._defaults: dict[str, tuple[float, Mapping[str, Any]]] = {}
        self._changes: defaultdict[int, int] = defaultdict(int)  # by tenant, how often its kept runs were forgotten
        self._kept: dict[_Place, tuple[float, bytes]] = {}  # the oldest first

    async def now(self) -> datetime:
        """Schedule time, by the database's clock, read after the question."""
        moment = await self._now.get(None, None)
        assert moment is not None
        return moment

    async def task_defaults(self, task: str) -> Mapping[str, Any]:
        """How a task's code wants its runs treated; what a worker tells counts a second later at most."""
        moment = self._clock.monotonic()
        known = self._defaults.get(task)
        if known is None or moment - known[0] > FRESH:
            if len(self._defaults) > 1000:
                self._defaults.clear()
            known = self._defaults[task] = (moment, await self._names.task_defaults(task))
        return known[1]

    async def job(self, tenant_id: int, job_id: UUID) -> tuple[int, bytes] | None:
        """A job's revision, and the job as it is answered."""
        return await self._jobs.get(tenant_id, job_id)

    async def run(self, tenant_id: int, key: RunKey) -> bytes | None:
        """A run as it is answered."""
        kept = self._kept.get((tenant_id, self._changes[tenant_id], key))
        if kept is not None and self._clock.monotonic() - kept[0] < KEPT:
            one_of(READS, "kept").inc()
            return kept[1]
        one_of(READS, "database").inc()
        return await self._runs.get((tenant_id, key.scheduled_for.astimezone(UTC).date()), key)

    def forget(self, tenant_id: int) -> None:
        """What has ended may have been revived: read it anew, also where a read is under way."""
        self._changes[tenant_id] += 1

    def heard(self, payload: str) -> None:
        """The same, by a hint of another process."""
        if payload.isdecimal():
            self.forget(int(payload))

    async def _read_now(self, _group: None, keys: Sequence[None]) -> Mapping[None, datetime]:
        return dict.fromkeys(keys, await self._store.now())

    async def _read_jobs(self, tenant_id: int, ids: Sequence[UUID]) -> Mapping[UUID, tuple[int, bytes]]:
        found = await jobs.some(ScopedStore(self._tenants, tenant_id, None), ids, tenant_id)
        return {job.job_id: (job.revision, msgspec.json.encode(documents.job(job))) for job in found}

    async def _read_runs(self, group: tuple[int, date], keys: Sequence[RunKey]) -> Mapping[RunKey, bytes]:
        tenant_id, day = group
        changes, moment = self._changes[tenant_id], self._clock.monotonic()
        answers: dict[RunKey, bytes] = {}
        found = await status.runs(ScopedStore(self._tenants, tenant_id, None), tenant_id, day, keys)
        for key, (run, tries) in found.items():
            data = answers[key] = msgspec.json.encode(documents.run(run, tries))
            if run.state in FINAL and len(data) <= LONGEST:
                self._keep((tenant_id, changes, key), moment, data)
        return answers

    def _keep(self, place: _Place, moment: float, data: bytes) -> None:
        self._kept.pop(place, None)
        self._kept[place] = (moment, data)
        while len(self._kept) > MOST_KEPT or (self._kept and moment - next(iter(self._kept.values()))[0] >= KEPT):
            del self._kept[next(iter(self._kept))]
