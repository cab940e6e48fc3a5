"""Shared reads of an API process: batches concurrent reads by key, and caches rendered runs that have ended and, if all
API processes share a cache, jobs that nothing but a request can change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec

from bellringer.api.http.batcher import Batcher
from bellringer.api.render import documents
from bellringer.clock import Clock
from bellringer.core.cache import CACHE_TTL_SECONDS, Cache, ProcessCache
from bellringer.core.runs import FINAL_STATES, Cause, RunKey, decode_run_id
from bellringer.engine.drift import load_drifts
from bellringer.errors import NotFound
from bellringer.store import jobs, keyed_read_connections, runs, workflows
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.telemetry import CACHE_READS, with_labels

TASK_DEFAULTS_TTL_SECONDS: Final = 1.0
REST_PERIOD: Final = timedelta(seconds=CACHE_TTL_SECONDS + 5)  # a cohort may fire up to 5 s ahead of its time
CONNECTIONS_PER_KIND: Final = keyed_read_connections.MAX_CONNECTIONS // 2  # runs and jobs share the connections
REVIVING_TAGS: Final = frozenset(
    {"runs", "dead letters", "operations"}
)  # tags of operations that may redrive an ended run


class ReadCache:
    """The read-through cache of one process."""

    def __init__(
        self, store: Store, of: Callable[[int], Store], catalog: Catalog, clock: Clock, cache: Cache | None = None
    ) -> None:
        self._store = store
        self._cache = cache or ProcessCache(clock)
        self._of = of  # returns the store for reads by key of a tenant
        self._catalog = catalog
        self._clock = clock
        self._now = Batcher(self._read_now)
        self._runs = Batcher(self._read_runs, max_batches=CONNECTIONS_PER_KIND)
        self._jobs = Batcher(self._read_jobs, max_batches=CONNECTIONS_PER_KIND)
        self._defaults: dict[str, tuple[float, Mapping[str, Any]]] = {}

    async def now(self) -> datetime:
        """Returns the database's schedule time, read after this call."""
        moment = await self._now.get((None,), None)
        assert moment is not None
        return moment

    async def task_defaults(self, task: str) -> Mapping[str, Any]:
        """Returns the run options that a task's code declares; a change takes effect within a second."""
        known = self.cached_defaults(task)
        if known is None:
            if len(self._defaults) > 1000:
                self._defaults.clear()
            moment = self._clock.monotonic()
            known = await self._catalog.task_defaults(task)
            self._defaults[task] = (moment, known)
        return known

    def cached_defaults(self, task: str) -> Mapping[str, Any] | None:
        """Returns the cached defaults of a task, or None if they must be read."""
        known = self._defaults.get(task)
        return (
            known[1] if known is not None and self._clock.monotonic() - known[0] <= TASK_DEFAULTS_TTL_SECONDS else None
        )

    async def job(self, tenant_id: int, job_id: UUID) -> tuple[int, bytes] | None:
        """Returns a job's revision and its rendered document."""
        kept = await self._cache.get(tenant_id, _job_cache_key(job_id)) if self.keeps_jobs else None
        with_labels(CACHE_READS, "job", self._cache.source if kept is not None else "database").inc()
        if kept is not None:
            revision, _, data = kept.partition(b" ")
            return int(revision), data
        return await self._jobs.get((tenant_id,), job_id)

    async def run(self, tenant_id: int, run_id: str) -> bytes | None:
        """Returns the rendered document of a run."""
        kept = await self._cache.get(tenant_id, _run_cache_key(run_id))
        with_labels(CACHE_READS, "run", self._cache.source if kept is not None else "database").inc()
        if kept is not None:
            return kept
        try:
            key = decode_run_id(run_id)
        except NotFound:
            return None
        return await self._runs.get((tenant_id, key.scheduled_for.date()), key)

    @property
    def keeps_jobs(self) -> bool:
        """Whether jobs are cached: only if all API processes learn of a change before it is confirmed."""
        return self._cache.is_shared

    async def invalidate(self, tenant_id: int | None) -> bool:
        """Invalidates the entries of a tenant, or of all, including reads in flight. Returns False if the other
        processes must be notified.
        """
        return await self._cache.invalidate(tenant_id)

    def handle_notification(self, payload: str) -> None:
        """Handles the notification of another process; the payload is a tenant id, or empty for all tenants."""
        if not payload or payload.isdecimal():
            self._cache.invalidate_local(int(payload) if payload else None)

    async def _read_now(self, _group: tuple[None], keys: Sequence[None]) -> Mapping[None, datetime]:
        return dict.fromkeys(keys, await self._store.now())

    async def _read_jobs(self, group: tuple[int], ids: Sequence[UUID]) -> Mapping[UUID, tuple[int, bytes]]:
        (tenant_id,) = group
        store = self._of(tenant_id)
        mark, moment = self._cache.generation(tenant_id) if self.keeps_jobs else None, self._clock.monotonic()
        # This query comes first: jobs that are at rest now are changed only by requests for that time, also while they
        # are read.
        resting = await jobs.find_idle(store, ids, tenant_id, REST_PERIOD) if mark is not None else ()
        found = await jobs.get_many(store, ids, tenant_id)
        drifts = await load_drifts(store, found, tenant_id)
        answers = {
            job.job_id: (job.revision, msgspec.json.encode(documents.render_job(job, drifts.get(job.job_id))))
            for job in found
        }
        if mark is not None and resting:
            kept = {_job_cache_key(i): b"%d %b" % answers[i] for i in resting if i in answers}
            await self._cache.put(tenant_id, mark, kept, moment)
        return answers

    async def _read_runs(self, group: tuple[int, date], keys: Sequence[RunKey]) -> Mapping[RunKey, bytes]:
        tenant_id, day = group
        mark, moment = self._cache.generation(tenant_id), self._clock.monotonic()
        answers: dict[RunKey, bytes] = {}
        ended: dict[str, bytes] = {}
        store = self._of(tenant_id)
        found = await runs.get_many(store, tenant_id, day, keys)
        nodes = [key for key, (run, _) in found.items() if run.cause == Cause.WORKFLOW]
        placed = await workflows.find_node_placements(store, tenant_id, nodes)
        for key, (run, tries) in found.items():
            data = answers[key] = msgspec.json.encode(documents.render_run(run, tries, placed=placed.get(key)))
            if run.state in FINAL_STATES:
                ended[_run_cache_key(key.id)] = data
        if mark is not None and ended:
            await self._cache.put(tenant_id, mark, ended, moment)
        return answers


def _run_cache_key(run_id: str) -> str:
    return f"run:{run_id}"


def _job_cache_key(job_id: UUID) -> str:
    return f"job:{job_id.hex}"
