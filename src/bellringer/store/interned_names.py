"""Maps names of tenants, pools, tasks and schedules to their ids, cached in memory."""

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

from bellringer.core.policies import Limit
from bellringer.errors import InvalidInput, NotFound, QuotaExceeded
from bellringer.schedule import Schedule, ScheduleRow, fires_per_minute, from_row, to_row
from bellringer.store import calendars, tenants
from bellringer.store.connection_pool import Store
from bellringer.store.queries import load
from bellringer.telemetry import log

_SQL = load("interned_names")
CACHE_SECONDS: Final = 5.0
MAX_UNKNOWN_TASKS: Final = 1_000  # tasks that a tenant may name before any worker knows them
_MAX_HINTS: Final = 3  # searching for similar names is slow, and a request may name thousands of pools
MAX_INTERN_TRIES: Final = 5
_SCHEDULE_COLUMNS = ("kind", "expression", "timezone", "anchor", "seconds", "dst", "calendar")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDescription:
    """A worker's description of a task; `schema` and `defaults` are JSON."""

    name: str
    schema: str
    doc: str
    defaults: str


class Catalog:
    """A cache of ids by name. Interned rows never change, so each is read at most once per process. Schedules that are
    not in use are pruned: a registration that is refused for that reason calls `forget_schedules` and interns again.

    Processes with database access may create pools and tasks. Callers of the API share the id space with all
    tenants and are limited: see `for_callers`.
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
        self._rows: dict[ScheduleRow, int] = {}
        # graphs that were sent lately: when, the graph, and its id; see `graph_versions.intern_sent_graph`
        self.sent_graphs: dict[tuple[int, bool, bytes], tuple[float, Any, int]] = {}

    @property
    def is_for_callers(self) -> bool:
        return self._is_for_callers

    def for_callers(self) -> Catalog:
        """Returns a copy for API callers: no new pools, and a limited number of new tasks."""
        bounded = copy(self)
        bounded._is_for_callers = True  # noqa: SLF001 - it is one of these
        return bounded

    async def shard_count(self) -> int:
        if self._shards is None:
            self._shards = await self._store.pool.fetchval(_SQL.shards)
        assert self._shards is not None
        return self._shards

    async def installation_name(self) -> str:
        """Returns the name of this installation, which backends shared with other installations use as a prefix."""
        name: str = await self._store.pool.fetchval(_SQL.cluster_name)
        return name

    async def regions(self) -> Mapping[int, str]:
        """Returns the region of each shard that has one. Regions change, so they are cached for seconds only."""
        if monotonic() - self._regions[0] >= CACHE_SECONDS:
            rows = await self._store.pool.fetch(_SQL.regions)
            self._regions = (monotonic(), {row["shard"]: row["region"] for row in rows})
        return self._regions[1]

    async def shards_of_regions(self, wanted: Iterable[str]) -> Mapping[str, frozenset[int]]:
        """Returns the shards of each region; reads them again if a wanted region is unknown."""
        if not set(wanted) <= set((await self.regions()).values()):
            self._regions = (-inf, {})
        of = await self.regions()
        return {region: frozenset(s for s in of if of[s] == region) for region in set(of.values())}

    async def signing_secret(self) -> bytes:
        """Returns the key that this installation signs with."""
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
        """Returns the maximum size of a tenant's arguments in bytes. Quotas change, so it is cached for seconds
        only.
        """
        read_at, limit = self._payloads.get(tenant_id, (-inf, 0))
        if monotonic() - read_at >= CACHE_SECONDS:
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
        """Returns the ids of these pools. Unknown pools are created, or refused for API callers."""
        if missing := await self._missing_pools(names):
            for error in (await self.unknown_pools(missing)).values():
                raise error
            await self._store.pool.execute(_SQL.add_pools, missing)
            await self._missing_pools(missing)
        return self._pools

    async def pool_id(self, name: str) -> int:
        """Returns the id of a pool; see `pool_ids`."""
        known = self._pools.get(name)
        return (await self.pool_ids([name]))[name] if known is None else known

    async def unknown_pools(self, names: Iterable[str]) -> Mapping[str, InvalidInput]:
        """Returns an error for each of these pools that the caller may not use."""
        missing = await self._missing_pools(names) if self._is_for_callers else ()
        if not missing:
            return {}
        known = [row["name"] for row in await self._store.pool.fetch(_SQL.common_pools)]
        return {name: _unknown_pool(name, known if place < _MAX_HINTS else ()) for place, name in enumerate(missing)}

    async def _missing_pools(self, names: Iterable[str]) -> Sequence[str]:
        missing = sorted({name for name in names if name not in self._pools})
        if missing:
            rows = await self._store.pool.fetch(_SQL.find_pools, missing)
            self._pools.update((row["name"], row["pool_id"]) for row in rows)
        return [name for name in missing if name not in self._pools]

    async def task_ids(self, names: Iterable[str], tenant_id: int | None = None) -> Mapping[str, int]:
        """Returns the ids of these tasks. A task may be named before any worker knows it."""
        if missing := await self._missing_tasks(names):
            if self._is_for_callers and tenant_id is not None:
                await self._add_unknown_tasks(missing, tenant_id)
            else:
                await self._store.pool.execute(_SQL.add_tasks, missing)
            if await self._missing_tasks(missing):
                raise QuotaExceeded(
                    f"the tenant may name {MAX_UNKNOWN_TASKS:,} tasks that no worker knows",
                    hint="start a worker that knows them, or use existing tasks",
                )
        return self._tasks

    async def task_id(self, name: str, tenant_id: int) -> int:
        """Returns the id of a task; see `task_ids`."""
        known = self._tasks.get(name)
        return (await self.task_ids([name], tenant_id))[name] if known is None else known

    async def _add_unknown_tasks(self, tasks: Sequence[str], tenant_id: int) -> None:
        async with self._store.pool.acquire() as connection, connection.transaction():
            await connection.execute(_SQL.lock_tasks, tenant_id)
            await connection.execute(_SQL.add_tasks_of_tenant, tasks, tenant_id, MAX_UNKNOWN_TASKS)

    async def _missing_tasks(self, names: Iterable[str]) -> Sequence[str]:
        missing = sorted({name for name in names if name not in self._tasks})
        if missing:
            self._cache_tasks(await self._store.pool.fetch(_SQL.find_tasks, missing))
        return [name for name in missing if name not in self._tasks]

    async def task_names(self, ids: Collection[int]) -> Mapping[int, str]:
        """Returns the names of these tasks."""
        if missing := [number for number in ids if number not in self._task_names]:
            self._cache_tasks(await self._store.pool.fetch(_SQL.read_tasks, missing))
        return self._task_names

    def _cache_tasks(self, rows: Iterable[asyncpg.Record]) -> None:
        for row in rows:
            self._tasks[row["name"]] = row["task_id"]
            self._task_names[row["task_id"]] = row["name"]

    async def key_ids(self, tenant_id: int, limits: Iterable[Limit]) -> Mapping[str, int]:
        """Returns the ids of these limits. An existing limit keeps its value until a job that uses it is registered."""
        given = sorted({limit.key: limit.most for limit in limits}.items())
        if not given:
            return {}
        keys, most = zip(*given, strict=True)
        await self._store.pool.execute(_SQL.add_limits, tenant_id, keys, most)
        rows = await self._store.pool.fetch(_SQL.find_limits, tenant_id, keys)
        return {row["key"]: row["key_id"] for row in rows}

    async def schedule_ids(self, schedules: Iterable[Schedule]) -> Mapping[ScheduleRow, int]:
        """Returns the ids of these schedules; equal schedules share one."""
        rows = {to_row(schedule): schedule for schedule in schedules}
        for _ in range(MAX_INTERN_TRIES):  # a schedule may be pruned between the two statements
            missing = sorted((row for row in rows if row not in self._rows), key=str)
            if not missing:
                break
            columns = _columns(missing)
            rates = [fires_per_minute(rows[row]) for row in missing]
            await self._store.pool.execute(_SQL.add_schedules, *columns, rates)
            for number, *values in await self._store.pool.fetch(_SQL.find_schedules, *columns):
                self._rows[ScheduleRow(**dict(zip(_SCHEDULE_COLUMNS, values, strict=True)))] = number
        return self._rows

    def forget_schedules(self) -> None:
        """Drops the cached ids of schedules, because one of them was pruned. No id is used again, so the cached content
        of each id stays true."""
        self._rows.clear()

    async def schedules(self, ids: Collection[int]) -> Mapping[int, Schedule]:
        """Returns schedules by id, without those that this version cannot read."""
        if missing := [number for number in ids if number not in self._schedules]:
            found: dict[int, Schedule] = {}
            for number, *values in await self._store.pool.fetch(_SQL.read_schedules, missing):
                try:
                    found[number] = from_row(*values)
                except ValueError as error:
                    log.error("schedule not readable by this version", schedule_id=number, row=values, error=str(error))
            await calendars.load_contents(self._store, found.values())
            self._schedules |= found
        return self._schedules

    def next_after(self, number: int, moment: datetime) -> datetime | None:
        """Returns the next instant of a loaded schedule after a moment.

        The result is the same between two instants of the schedule, so it is cached for all jobs registered
        meanwhile.
        """
        since, found = self._following.get(number, (moment, moment))
        if since <= moment and (found is None or moment < found):
            return found
        found = self._schedules[number].next_after(moment)
        self._following[number] = (moment, found)
        return found

    async def describe_tasks(self, tasks: Sequence[TaskDescription]) -> None:
        """Stores a worker's descriptions of its tasks. A pool named in the code of a task is created."""
        await self.pool_ids(pool for t in tasks if (pool := msgspec.json.decode(t.defaults).get("pool")))
        columns = ([getattr(t, name) for t in tasks] for name in ("name", "schema", "doc", "defaults"))
        await self._store.pool.execute(_SQL.describe_tasks, *columns)

    async def task_defaults(self, task: str) -> Mapping[str, Any]:
        """Returns the options in a task's code, as described by a worker."""
        document = await self._store.pool.fetchval(_SQL.task_defaults, task)
        return msgspec.json.decode(document) if document else {}


def _unknown_pool(name: str, known: Sequence[str]) -> InvalidInput:
    near = get_close_matches(name, known, n=1)
    more = "start a worker that serves it, or create it with PUT /api/v1/pools/{name} as an administrator"
    hint = f"did you mean {near[0]!r}? If not, {more}" if near else more
    return InvalidInput(f"there is no pool {name!r}", hint=hint, pointer="/pool", code="pool_unknown")


def _columns(rows: Sequence[ScheduleRow]) -> list[list[object]]:
    return [[getattr(row, name) for row in rows] for name in _SCHEDULE_COLUMNS]
