"""Tenants, pools, tasks and schedules by their small numbers; read once, kept in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from math import inf
from time import monotonic
from typing import Any, Final

import asyncpg
import msgspec

from bellringer.errors import InvalidInput, NotFound, QuotaExceeded
from bellringer.policies import Limit
from bellringer.schedule import Row, Schedule, fires_per_minute, from_row, to_row
from bellringer.store import calendars, tenants
from bellringer.store.pool import Store
from bellringer.store.queries import load
from bellringer.telemetry import log

_SQL = load("names")
FRESH: Final = 5.0  # seconds
MOST_MADE_UP: Final = 1_000  # tasks that a tenant may name before any worker knows them
_HINTED: Final = 3  # unknown pools that are compared with the known ones: that costs, and a request may name thousands
_ROW = ("kind", "expression", "timezone", "anchor", "seconds", "dst", "calendar")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDescription:
    """What a worker says about one of its tasks; `schema` and `defaults` are JSON."""

    name: str
    schema: str
    doc: str
    defaults: str


class Names:
    """What is interned never changes, so every look-up is made at most once in a process.

    Who has the database may make up pools and tasks; callers of the API share their numbers with all other tenants,
    and may not use them up: see `for_callers`.
    """

    _is_for_callers = False

    def __init__(self, store: Store) -> None:
        self._store = store
        self._shards: int | None = None
        self._secret: bytes | None = None
        self._regions: tuple[float, Mapping[int, str]] = (-inf, {})
        self._payloads: dict[int, tuple[float, int]] = {}
        self._tenants: dict[str, int] = {}
        self._pools: dict[str, int] = {}
        self._tasks: dict[str, int] = {}
        self._task_names: dict[int, str] = {}
        self._schedules: dict[int, Schedule] = {}
        self._following: dict[int, tuple[datetime, datetime | None]] = {}
        self._rows: dict[Row, int] = {}

    @property
    def are_for_callers(self) -> bool:
        return self._is_for_callers

    def for_callers(self) -> Names:
        """The same, for who is known only by a key: no new pools, and only so many new tasks."""
        bounded = copy(self)
        bounded._is_for_callers = True  # noqa: SLF001 - it is one of these
        return bounded

    async def shards(self) -> int:
        if self._shards is None:
            self._shards = await self._store.pool.fetchval(_SQL.shards)
        assert self._shards is not None
        return self._shards

    async def installation(self) -> str:
        """What this installation is called by in engines that others use too."""
        name: str = await self._store.pool.fetchval(_SQL.installation)
        return name

    async def regions(self) -> Mapping[int, str]:
        """The shards that belong to a region. This does change, so it is kept for seconds only."""
        if monotonic() - self._regions[0] >= FRESH:
            rows = await self._store.pool.fetch(_SQL.regions)
            self._regions = (monotonic(), {row["shard"]: row["region"] for row in rows})
        return self._regions[1]

    async def homes(self, wanted: Iterable[str]) -> Mapping[str, frozenset[int]]:
        """The shards of each region; looked up anew where a wanted one was not there a moment ago."""
        if not set(wanted) <= set((await self.regions()).values()):
            self._regions = (-inf, {})
        of = await self.regions()
        return {region: frozenset(s for s in of if of[s] == region) for region in set(of.values())}

    async def secret(self) -> bytes:
        """What this installation signs with."""
        if self._secret is None:
            self._secret = await self._store.pool.fetchval(_SQL.secret)
        assert self._secret is not None
        return self._secret

    async def tenant_id(self, name: str) -> int:
        if name not in self._tenants:
            rows = await self._store.pool.fetch(_SQL.tenants)
            self._tenants = {row["name"]: row["tenant_id"] for row in rows}
        if name not in self._tenants:
            raise NotFound(f"there is no tenant {name!r}")
        return self._tenants[name]

    async def payload_limit(self, tenant_id: int) -> int:
        """How many bytes of arguments a tenant may send. This does change, so it is kept for seconds only."""
        read_at, limit = self._payloads.get(tenant_id, (-inf, 0))
        if monotonic() - read_at >= FRESH:
            limit = await tenants.payload_limit(self._store, tenant_id)
            self._payloads[tenant_id] = (monotonic(), limit)
        return limit

    async def tenant_names(self, ids: Collection[int]) -> Mapping[int, str]:
        known = {number: name for name, number in self._tenants.items()}
        if not set(ids) <= known.keys():
            rows = await self._store.pool.fetch(_SQL.tenants)
            self._tenants = {row["name"]: row["tenant_id"] for row in rows}
            known = {number: name for name, number in self._tenants.items()}
        return known

    async def pool_ids(self, names: Iterable[str]) -> Mapping[str, int]:
        """The numbers of these pools; a pool that nobody named before begins to exist, unless a caller names it."""
        if missing := await self._missing_pools(names):
            for error in (await self.unknown_pools(missing)).values():
                raise error
            await self._store.pool.execute(_SQL.add_pools, missing)
            await self._missing_pools(missing)
        return self._pools

    async def unknown_pools(self, names: Iterable[str]) -> Mapping[str, InvalidInput]:
        """Those of these pools that may not be named, each with what to tell of it."""
        missing = await self._missing_pools(names) if self._is_for_callers else ()
        if not missing:
            return {}
        known = [row["name"] for row in await self._store.pool.fetch(_SQL.common_pools)]
        return {name: _no_pool(name, known if place < _HINTED else ()) for place, name in enumerate(missing)}

    async def _missing_pools(self, names: Iterable[str]) -> Sequence[str]:
        missing = sorted({name for name in names if name not in self._pools})
        if missing:
            rows = await self._store.pool.fetch(_SQL.find_pools, missing)
            self._pools.update((row["name"], row["pool_id"]) for row in rows)
        return [name for name in missing if name not in self._pools]

    async def task_ids(self, names: Iterable[str], tenant_id: int | None = None) -> Mapping[str, int]:
        """The numbers of these tasks; a task may be named before any worker knows it."""
        if missing := await self._missing_tasks(names):
            if self._is_for_callers and tenant_id is not None:
                await self._make_up(missing, tenant_id)
            else:
                await self._store.pool.execute(_SQL.add_tasks, missing)
            if await self._missing_tasks(missing):
                raise QuotaExceeded(
                    f"the tenant may name {MOST_MADE_UP:,} tasks that no worker knows",
                    hint="start a worker that knows them, or name tasks that there are",
                )
        return self._tasks

    async def _make_up(self, tasks: Sequence[str], tenant_id: int) -> None:
        async with self._store.pool.acquire() as connection, connection.transaction():
            await connection.execute(_SQL.lock_tasks, tenant_id)
            await connection.execute(_SQL.make_up_tasks, tasks, tenant_id, MOST_MADE_UP)

    async def _missing_tasks(self, names: Iterable[str]) -> Sequence[str]:
        missing = sorted({name for name in names if name not in self._tasks})
        if missing:
            self._keep_tasks(await self._store.pool.fetch(_SQL.find_tasks, missing))
        return [name for name in missing if name not in self._tasks]

    async def task_names(self, ids: Collection[int]) -> Mapping[int, str]:
        """The names of these tasks."""
        if missing := [number for number in ids if number not in self._task_names]:
            self._keep_tasks(await self._store.pool.fetch(_SQL.read_tasks, missing))
        return self._task_names

    def _keep_tasks(self, rows: Iterable[asyncpg.Record]) -> None:
        for row in rows:
            self._tasks[row["name"]] = row["task_id"]
            self._task_names[row["task_id"]] = row["name"]

    async def key_ids(self, tenant_id: int, limits: Iterable[Limit]) -> Mapping[str, int]:
        """The numbers of these limits; how much an old one allows, only a job that is registered changes."""
        given = sorted({limit.key: limit.most for limit in limits}.items())
        if not given:
            return {}
        keys, most = zip(*given, strict=True)
        await self._store.pool.execute(_SQL.add_limits, tenant_id, keys, most)
        rows = await self._store.pool.fetch(_SQL.find_limits, tenant_id, keys)
        return {row["key"]: row["key_id"] for row in rows}

    async def schedule_ids(self, schedules: Iterable[Schedule]) -> Mapping[Row, int]:
        """The numbers of these schedules; equal schedules have one."""
        rows = {to_row(schedule): schedule for schedule in schedules}
        if missing := sorted((row for row in rows if row not in self._rows), key=str):
            columns = _columns(missing)
            rates = [fires_per_minute(rows[row]) for row in missing]
            await self._store.pool.execute(_SQL.add_schedules, *columns, rates)
            for number, *values in await self._store.pool.fetch(_SQL.find_schedules, *columns):
                self._rows[Row(**dict(zip(_ROW, values, strict=True)))] = number
        return self._rows

    async def schedules(self, ids: Collection[int]) -> Mapping[int, Schedule]:
        """These schedules by their numbers; one that this version cannot read is not among them."""
        if missing := [number for number in ids if number not in self._schedules]:
            found: dict[int, Schedule] = {}
            for number, *values in await self._store.pool.fetch(_SQL.read_schedules, missing):
                try:
                    found[number] = from_row(*values)
                except ValueError as error:
                    log.error("a schedule cannot be read here", schedule_id=number, row=values, error=str(error))
            await calendars.load(self._store, found.values())
            self._schedules |= found
        return self._schedules

    def following(self, number: int, moment: datetime) -> datetime | None:
        """What a schedule that was read names first after a moment: from one of its instants to the next always the
        same, so it is worked out once for all jobs that register meanwhile."""
        since, found = self._following.get(number, (moment, moment))
        if since <= moment and (found is None or moment < found):
            return found
        found = self._schedules[number].next_after(moment)
        self._following[number] = (moment, found)
        return found

    async def describe_tasks(self, tasks: Sequence[TaskDescription]) -> None:
        """Keep what a worker says about its tasks. A pool that their code asks for is one that jobs may name."""
        await self.pool_ids(pool for t in tasks if (pool := msgspec.json.decode(t.defaults).get("pool")))
        columns = ([getattr(t, name) for t in tasks] for name in ("name", "schema", "doc", "defaults"))
        await self._store.pool.execute(_SQL.describe_tasks, *columns)

    async def task_defaults(self, task: str) -> Mapping[str, Any]:
        """How a task's code wants its runs treated, as far as a worker has told."""
        document = await self._store.pool.fetchval(_SQL.task_defaults, task)
        return msgspec.json.decode(document) if document else {}


def _no_pool(name: str, known: Sequence[str]) -> InvalidInput:
    near = get_close_matches(name, known, n=1)
    more = "start a worker that serves it, or let an administrator make it by PUT /api/v1/pools/{name}"
    hint = f"did you mean {near[0]!r}? If not, {more}" if near else more
    return InvalidInput(f"there is no pool {name!r}", hint=hint, pointer="/pool", code="pool_unknown")


def _columns(rows: Sequence[Row]) -> list[list[object]]:
    return [[getattr(row, name) for row in rows] for name in _ROW]
