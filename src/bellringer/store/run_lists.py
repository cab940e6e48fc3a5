"""Filtered lists of runs. Each scan is bounded: if few runs match, a page may be partial and carries a cursor."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import asyncpg
import msgspec

from bellringer.core.runs import RunKey
from bellringer.store.connection_pool import Store
from bellringer.store.queries import load
from bellringer.store.runs import RunRow, read_run

_SQL = load("run_lists")

# A page takes up to three scans of increasing size: (runs scanned, runs whose state is looked up).
# Common states are found by the first scan.
SCANS: Final = ((200, 200), (2_000, 500), (8_000, 1_000))
SMALL_QUEUE_ROWS: Final = 5_000  # a queue of this size is read completely
WAITING: Final = "waiting"  # a run that exists only as a timer
UNFINISHED: Final = frozenset({"queued", "blocked", "running", "retrying"})
UNSUCCESSFUL: Final = frozenset({"dead", "cancelled", "skipped"})
STATES: Final = (*sorted(UNFINISHED), "succeeded", *sorted(UNSUCCESSFUL), WAITING)


class RunFilter(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The filter of a list; stored with an operation as it is."""

    job: UUID | None = None
    states: tuple[str, ...] | None = None
    task: str | None = None
    pool: str | None = None
    cause: str | None = None
    worker: int | None = None
    tag: str | None = None
    q: str | None = None
    from_at: datetime | None = None
    to_at: datetime | None = None

    @property
    def skips_rows(self) -> bool:
        """Whether a scan may pass runs that do not match; a job and a time range are found by an index."""
        return self.needs_lookup or any((self.task, self.pool, self.cause))

    @property
    def needs_lookup(self) -> bool:
        """Whether matching a run needs rows of other tables."""
        return any((self.states, self.worker, self.tag, self.q))


@dataclass(frozen=True, slots=True)
class RunPosition:
    """The position after a page: a run and its shard; `ended_at` in lists ordered by end."""

    key: RunKey
    shard: int = 0
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRows:
    """Runs, how many were scanned, and where to continue; `stop` is None at the end of the list."""

    positions: Sequence[RunPosition]
    scanned: int
    stop: RunPosition | None

    @property
    def keys(self) -> list[RunKey]:
        return [place.key for place in self.positions]


Scan = Callable[[Store, int, RunFilter, RunPosition | None, int, int, int], Awaitable[RunRows]]


async def find_runs(store: Store, tenant_id: int, f: RunFilter, after: RunPosition | None, limit: int) -> RunRows:
    """Returns the next page, newest first. Unsuccessful runs are ordered by their end, all others by their schedule."""
    states = frozenset(f.states or ())
    scan_function: Scan = _scan_runs
    if states and states <= UNSUCCESSFUL and f.job is None:
        scan_function = _scan_ended
    elif states and states <= UNFINISHED and f.job is None:
        found = await _scan_queue(store, tenant_id, f, after, limit + 1)
        if found is not None:
            return _cut_to_page(found, limit)
    positions: list[RunPosition] = []
    scanned, stop = 0, after
    for scan, lookups in SCANS:
        found = await scan_function(store, tenant_id, f, stop, scan, lookups, limit + 1 - len(positions))
        positions += found.positions
        scanned, stop = scanned + found.scanned, found.stop
        if stop is None or len(positions) > limit:
            break
    return _cut_to_page(RunRows(positions=positions, scanned=scanned, stop=stop), limit)


def _cut_to_page(found: RunRows, limit: int) -> RunRows:
    if len(found.positions) <= limit:
        return found
    return RunRows(positions=found.positions[:limit], scanned=found.scanned, stop=found.positions[limit - 1])


async def _scan_runs(
    store: Store, tenant_id: int, f: RunFilter, after: RunPosition | None, scan: int, lookups: int, limit: int
) -> RunRows:
    scan = max(scan, limit) if f.skips_rows else limit
    lookups = lookups if f.needs_lookup else scan
    document = msgspec.json.encode(f).decode()
    rows = await store.pool.fetch(_SQL.runs, tenant_id, document, *_position_values(after), scan, lookups, limit)
    return RunRows(positions=_positions(rows), scanned=rows[0]["scanned"], stop=_stop(rows[0]))


async def _scan_ended(
    store: Store, tenant_id: int, f: RunFilter, after: RunPosition | None, _scan: int, lookups: int, limit: int
) -> RunRows:
    document = msgspec.json.encode(f).decode()
    key = after.key if after else None
    position_values = (after.ended_at, key.scheduled_for, key.job_id, key.slot) if after and key else (None,) * 4
    rows = await store.pool.fetch(_SQL.ended, tenant_id, document, *position_values, lookups, limit)
    return RunRows(positions=_positions(rows), scanned=rows[0]["scanned"], stop=_stop(rows[0]))


async def _scan_queue(
    store: Store, tenant_id: int, f: RunFilter, after: RunPosition | None, limit: int
) -> RunRows | None:
    """Reads the queue itself; returns None if the queue is too large."""
    document = msgspec.json.encode(f).decode()
    rows = await store.pool.fetch(_SQL.queue, tenant_id, document, *_position_values(after), SMALL_QUEUE_ROWS, limit)
    scanned = rows[0]["scanned"]
    return RunRows(positions=_positions(rows), scanned=scanned, stop=None) if scanned <= SMALL_QUEUE_ROWS else None


def _position_values(after: RunPosition | None) -> tuple[Any, ...]:
    return (after.key.scheduled_for, after.shard, after.key.job_id, after.key.slot) if after else (None,) * 4


def _positions(rows: Sequence[asyncpg.Record]) -> list[RunPosition]:
    return [
        RunPosition(
            RunKey(row["job_id"], row["scheduled_for"], row["slot"]), row.get("shard") or 0, row.get("ended_at")
        )
        for row in rows
        if row["job_id"] is not None
    ]


def _stop(row: asyncpg.Record) -> RunPosition | None:
    if row["stop_at"] is None:
        return None
    key = RunKey(row["stop_job"], row["stop_at"], row["stop_slot"])
    return RunPosition(key, row.get("stop_shard") or 0, row.get("stop_ended"))


async def load_runs(store: Store, tenant_id: int, keys: Sequence[RunKey]) -> list[RunRow]:
    """Returns these runs in the given order, without their large fields."""
    if not keys:
        return []
    instants = [key.scheduled_for for key in keys]
    rows = await store.pool.fetch(_SQL.items, tenant_id, *_columns(keys), min(instants), max(instants))
    return [read_run(row) for row in rows]


async def unfinished(store: Store, keys: Collection[RunKey]) -> set[RunKey]:
    """Returns those keys whose runs have not ended."""
    return {place.key for place in _positions(await store.pool.fetch(_SQL.unfinished, *_columns(list(keys))))}


async def created_after(store: Store, keys: Collection[RunKey], moment: datetime) -> set[RunKey]:
    """Returns those keys whose runs were created after a moment."""
    return {
        place.key for place in _positions(await store.pool.fetch(_SQL.created_after, *_columns(list(keys)), moment))
    }


def _columns(keys: Sequence[RunKey]) -> tuple[Any, ...]:
    return [k.job_id for k in keys], [k.scheduled_for for k in keys], [k.slot for k in keys]
