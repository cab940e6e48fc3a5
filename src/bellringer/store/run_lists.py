"""Lists of runs by typed filters. Each look is bounded: where few runs fit, it answers part of a page, and a cursor."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import asyncpg
import msgspec

from bellringer.runs import RunKey
from bellringer.store.pool import Store
from bellringer.store.queries import load
from bellringer.store.runs import Run, read_run

_SQL = load("run_lists")

# One page takes up to three looks, each farther: what is common is found by the first. Each passes by so many runs, and
# works out the state of so many of them.
LOOKS: Final = ((200, 200), (2_000, 500), (8_000, 1_000))
SMALL: Final = 5_000  # rows of a queue that is read whole
WAITING: Final = "waiting"  # a timer: a run whose time has not come
UNFINISHED: Final = frozenset({"queued", "blocked", "running", "retrying"})
UNWELL: Final = frozenset({"dead", "cancelled", "skipped"})
STATES: Final = (*sorted(UNFINISHED), "succeeded", *sorted(UNWELL), WAITING)


class RunFilter(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a list keeps to; kept with an operation as it is."""

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
    def passes_over(self) -> bool:
        """Whether there may be runs between those that fit; a job and a range of time are found by an index."""
        return self.weighs or any((self.task, self.pool, self.cause))

    @property
    def weighs(self) -> bool:
        """Whether a run must be looked up elsewhere to know if it fits."""
        return any((self.states, self.worker, self.tag, self.q))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a page ended: a run, and its shard; `ended_at` in a list that goes by the ends of runs."""

    key: RunKey
    shard: int = 0
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Runs, how many were looked at for them, and where to go on; `stop` is None at the end of the list."""

    places: Sequence[Place]
    scanned: int
    stop: Place | None

    @property
    def keys(self) -> list[RunKey]:
        return [place.key for place in self.places]


Look = Callable[[Store, int, RunFilter, Place | None, int, int, int], Awaitable[Page]]


async def page(store: Store, tenant_id: int, f: RunFilter, after: Place | None, most: int) -> Page:
    """The next of a list, the newest first. What ended otherwise than well comes by its end, all else by its time."""
    states = frozenset(f.states or ())
    look: Look = _runs
    if states and states <= UNWELL and f.job is None:
        look = _ended
    elif states and states <= UNFINISHED and f.job is None:
        found = await _queue(store, tenant_id, f, after, most + 1)
        if found is not None:
            return _cut(found, most)
    places: list[Place] = []
    scanned, stop = 0, after
    for scan, weigh in LOOKS:
        found = await look(store, tenant_id, f, stop, scan, weigh, most + 1 - len(places))
        places += found.places
        scanned, stop = scanned + found.scanned, found.stop
        if stop is None or len(places) > most:
            break
    return _cut(Page(places=places, scanned=scanned, stop=stop), most)


def _cut(found: Page, most: int) -> Page:
    if len(found.places) <= most:
        return found
    return Page(places=found.places[:most], scanned=found.scanned, stop=found.places[most - 1])


async def _runs(
    store: Store, tenant_id: int, f: RunFilter, after: Place | None, scan: int, weigh: int, most: int
) -> Page:
    scan = max(scan, most) if f.passes_over else most
    weigh = weigh if f.weighs else scan
    document = msgspec.json.encode(f).decode()
    rows = await store.pool.fetch(_SQL.runs, tenant_id, document, *_mark(after), scan, weigh, most)
    return Page(places=_places(rows), scanned=rows[0]["scanned"], stop=_stop(rows[0]))


async def _ended(
    store: Store, tenant_id: int, f: RunFilter, after: Place | None, _scan: int, weigh: int, most: int
) -> Page:
    document = msgspec.json.encode(f).decode()
    key = after.key if after else None
    mark = (after.ended_at, key.scheduled_for, key.job_id, key.slot) if after and key else (None,) * 4
    rows = await store.pool.fetch(_SQL.ended, tenant_id, document, *mark, weigh, most)
    return Page(places=_places(rows), scanned=rows[0]["scanned"], stop=_stop(rows[0]))


async def _queue(store: Store, tenant_id: int, f: RunFilter, after: Place | None, most: int) -> Page | None:
    """From the queue itself; None where it is too large for that."""
    document = msgspec.json.encode(f).decode()
    rows = await store.pool.fetch(_SQL.queue, tenant_id, document, *_mark(after), SMALL, most)
    scanned = rows[0]["scanned"]
    return Page(places=_places(rows), scanned=scanned, stop=None) if scanned <= SMALL else None


def _mark(after: Place | None) -> tuple[Any, ...]:
    return (after.key.scheduled_for, after.shard, after.key.job_id, after.key.slot) if after else (None,) * 4


def _places(rows: Sequence[asyncpg.Record]) -> list[Place]:
    return [
        Place(RunKey(row["job_id"], row["scheduled_for"], row["slot"]), row.get("shard") or 0, row.get("ended_at"))
        for row in rows
        if row["job_id"] is not None
    ]


def _stop(row: asyncpg.Record) -> Place | None:
    if row["stop_at"] is None:
        return None
    key = RunKey(row["stop_job"], row["stop_at"], row["stop_slot"])
    return Place(key, row.get("stop_shard") or 0, row.get("stop_ended"))


async def items(store: Store, tenant_id: int, keys: Sequence[RunKey]) -> list[Run]:
    """These runs in their order, as lists show them."""
    if not keys:
        return []
    instants = [key.scheduled_for for key in keys]
    rows = await store.pool.fetch(_SQL.items, tenant_id, *_columns(keys), min(instants), max(instants))
    return [read_run(row) for row in rows]


async def unfinished(store: Store, keys: Collection[RunKey]) -> set[RunKey]:
    """Those of these that have not ended."""
    return {place.key for place in _places(await store.pool.fetch(_SQL.unfinished, *_columns(list(keys))))}


async def born_after(store: Store, keys: Collection[RunKey], moment: datetime) -> set[RunKey]:
    """Those of these that were born after a moment."""
    return {place.key for place in _places(await store.pool.fetch(_SQL.born_after, *_columns(list(keys)), moment))}


def _columns(keys: Sequence[RunKey]) -> tuple[Any, ...]:
    return [k.job_id for k in keys], [k.scheduled_for for k in keys], [k.slot for k in keys]
