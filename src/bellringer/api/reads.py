"""Reads that many requests share: what is asked for while a call is under way is asked of the database once, and what
does not change by itself is kept for a moment as it was answered: runs that have ended, and, where the API
processes share a cache, jobs at rest.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from datetime import date, datetime, timedelta
from itertools import chain, islice
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

import msgspec

from bellringer.api import documents
from bellringer.cache import KEPT, Cache, ProcessCache
from bellringer.clock import Clock
from bellringer.errors import NotFound
from bellringer.runs import FINAL, Cause, RunKey, decode_id
from bellringer.store import flow_reads, jobs, lookups, status
from bellringer.store.names import Names
from bellringer.store.pool import Store
from bellringer.telemetry import CACHE_READS, one_of

G = TypeVar("G", bound=tuple[Any, ...])
K = TypeVar("K")
V = TypeVar("V")

FRESH: Final = 1.0  # seconds for which a task's defaults hold
AT_REST: Final = timedelta(seconds=KEPT + 5)  # a hand may move up to 5 s ahead of its instant, never more
LINES: Final = lookups.AT_ONCE // 2  # runs and jobs share them
REVIVES: Final = frozenset({"runs", "dead letters", "operations"})  # tags of operations that may revive a run


class Together(Generic[G, K, V]):
    """Calls by key, many in one. Whoever asks before a call is sent is answered by it; who asks later, by the next:
    nobody is told what was true before they asked. A group begins with whose it is. While a call of one is under way,
    its others gather: two at a time cost more than the two in one. A call that takes long holds up another no longer;
    groups take turns, and none has more than its share of the calls, so that slow ones leave room for the rest."""

    MOST: Final = 200  # keys in a call
    AT_ONCE: Final = 2  # calls of one under way
    LONG: Final = 0.005  # seconds after which a call lets the next of the same begin

    def __init__(self, read: Callable[[G, Sequence[K]], Awaitable[Mapping[K, V]]], *, in_all: int = 6) -> None:
        self._read = read
        self._in_all = in_all  # calls under way: no more than there are connections for them
        self._waiting: dict[G, dict[K, list[asyncio.Future[V | None]]]] = {}
        self._under_way: Counter[Hashable] = Counter()
        self._young: dict[Hashable, asyncio.TimerHandle] = {}  # whose last call does not take long yet
        self._calls: set[asyncio.Task[None]] = set()
        self._is_starting = False

    async def get(self, group: G, key: K) -> V | None:
        future: asyncio.Future[V | None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(group, {})
        if key in waiting:
            waiting[key].append(future)
        else:
            waiting[key] = [future]
            self._start()
        return await future

    def _start(self) -> None:
        """A call, where there is something for it. It begins in the next turn of the event loop and takes what has
        gathered by then; with each turn more, as many other requests would go first."""
        if not self._is_starting and self._turn():
            self._is_starting = True
            call = asyncio.create_task(self._next())
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    def _turn(self) -> Sequence[G]:
        """The group whose turn it is, if one may call."""
        if self._under_way.total() < self._in_all:
            for group in self._waiting:
                if group[0] not in self._young and self._under_way[group[0]] < self.AT_ONCE:
                    return (group,)
        return ()

    def _grown(self, whose: Hashable) -> None:
        del self._young[whose]
        self._start()

    async def _next(self) -> None:
        self._is_starting = False
        for group in self._turn():
            waiting = self._waiting.pop(group)
            wanted = {key: waiting.pop(key) for key in list(islice(waiting, self.MOST))}
            if waiting:
                self._waiting[group] = waiting  # behind the others
            whose: Hashable = group[0]
            self._under_way[whose] += 1
            growing = self._young[whose] = asyncio.get_running_loop().call_later(self.LONG, self._grown, whose)
            self._start()
            try:
                await self._call(group, wanted)
            finally:
                if self._young.get(whose) is growing:
                    self._young.pop(whose).cancel()
                self._under_way[whose] -= 1
                if not self._under_way[whose]:
                    del self._under_way[whose]
            self._start()

    async def _call(self, group: G, wanted: Mapping[K, Sequence[asyncio.Future[V | None]]]) -> None:
        try:
            found = await self._read(group, list(wanted))
        except Exception as error:  # noqa: BLE001 - each of those who wait is told
            for future in chain.from_iterable(wanted.values()):
                if not future.done():
                    future.set_exception(error)
        else:
            for key, futures in wanted.items():
                answer = found.get(key)
                for future in futures:
                    if not future.done():  # else who asked has gone
                        future.set_result(answer)
        finally:
            for future in chain.from_iterable(wanted.values()):
                future.cancel()  # does nothing to those that are answered


class Desk:
    """What one process answers from, for all its requests."""

    def __init__(
        self, store: Store, of: Callable[[int], Store], names: Names, clock: Clock, cache: Cache | None = None
    ) -> None:
        self._store = store
        self._cache = cache or ProcessCache(clock)
        self._of = of  # what reads by key, for a tenant
        self._names = names
        self._clock = clock
        self._now = Together(self._read_now)
        self._runs = Together(self._read_runs, in_all=LINES)
        self._jobs = Together(self._read_jobs, in_all=LINES)
        self._defaults: dict[str, tuple[float, Mapping[str, Any]]] = {}

    async def now(self) -> datetime:
        """Schedule time, by the database's clock, read after the question."""
        moment = await self._now.get((None,), None)
        assert moment is not None
        return moment

    async def task_defaults(self, task: str) -> Mapping[str, Any]:
        """How a task's code wants its runs treated; what a worker tells counts a second later at most."""
        known = self.defaults_at_hand(task)
        if known is None:
            if len(self._defaults) > 1000:
                self._defaults.clear()
            moment = self._clock.monotonic()
            known = await self._names.task_defaults(task)
            self._defaults[task] = (moment, known)
        return known

    def defaults_at_hand(self, task: str) -> Mapping[str, Any] | None:
        """The same, where it need not be asked for."""
        known = self._defaults.get(task)
        return known[1] if known is not None and self._clock.monotonic() - known[0] <= FRESH else None

    async def job(self, tenant_id: int, job_id: UUID) -> tuple[int, bytes] | None:
        """A job's revision, and the job as it is answered."""
        kept = await self._cache.get(tenant_id, _job_place(job_id)) if self.keeps_jobs else None
        one_of(CACHE_READS, "job", self._cache.source if kept is not None else "database").inc()
        if kept is not None:
            revision, _, data = kept.partition(b" ")
            return int(revision), data
        return await self._jobs.get((tenant_id,), job_id)

    async def run(self, tenant_id: int, run_id: str) -> bytes | None:
        """A run as it is answered."""
        kept = await self._cache.get(tenant_id, _run_place(run_id))
        one_of(CACHE_READS, "run", self._cache.source if kept is not None else "database").inc()
        if kept is not None:
            return kept
        try:
            key = decode_id(run_id)
        except NotFound:
            return None
        return await self._runs.get((tenant_id, key.scheduled_for.date()), key)

    @property
    def keeps_jobs(self) -> bool:
        """Whether jobs are kept too: only where all API processes hear of a change before it is confirmed."""
        return self._cache.is_shared

    async def forget(self, tenant_id: int | None) -> bool:
        """Something of a tenant, or of all, has changed: read it anew, also where a read is under way. False: others
        must be told."""
        return await self._cache.forget(tenant_id)

    def heard(self, payload: str) -> None:
        """The same, by a hint of another process; it names the tenant, or means all."""
        if not payload or payload.isdecimal():
            self._cache.heard(int(payload) if payload else None)

    async def _read_now(self, _group: tuple[None], keys: Sequence[None]) -> Mapping[None, datetime]:
        return dict.fromkeys(keys, await self._store.now())

    async def _read_jobs(self, group: tuple[int], ids: Sequence[UUID]) -> Mapping[UUID, tuple[int, bytes]]:
        (tenant_id,) = group
        store = self._of(tenant_id)
        mark, moment = self._cache.mark(tenant_id) if self.keeps_jobs else None, self._clock.monotonic()
        # First: what rests now changes only by a writer's doing for so long, also while it is read.
        resting = await status.resting(store, ids, tenant_id, AT_REST) if mark is not None else ()
        found = await jobs.some(store, ids, tenant_id)
        answers = {job.job_id: (job.revision, msgspec.json.encode(documents.job(job))) for job in found}
        if mark is not None and resting:
            kept = {_job_place(i): b"%d %b" % answers[i] for i in resting if i in answers}
            await self._cache.put(tenant_id, mark, kept, moment)
        return answers

    async def _read_runs(self, group: tuple[int, date], keys: Sequence[RunKey]) -> Mapping[RunKey, bytes]:
        tenant_id, day = group
        mark, moment = self._cache.mark(tenant_id), self._clock.monotonic()
        answers: dict[RunKey, bytes] = {}
        ended: dict[str, bytes] = {}
        store = self._of(tenant_id)
        found = await status.runs(store, tenant_id, day, keys)
        nodes = [key for key, (run, _) in found.items() if run.cause == Cause.WORKFLOW]
        placed = await flow_reads.placed(store, tenant_id, nodes)
        for key, (run, tries) in found.items():
            data = answers[key] = msgspec.json.encode(documents.run(run, tries, placed=placed.get(key)))
            if run.state in FINAL:
                ended[_run_place(key.id)] = data
        if mark is not None and ended:
            await self._cache.put(tenant_id, mark, ended, moment)
        return answers


def _run_place(run_id: str) -> str:
    return f"run:{run_id}"


def _job_place(job_id: UUID) -> str:
    return f"job:{job_id.hex}"
