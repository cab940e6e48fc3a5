"""Tenants, pools, tasks and schedules by their small numbers; read once, kept in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from bellringer.errors import NotFound
from bellringer.policies import Limit
from bellringer.schedule import Row, Schedule, from_row, to_row
from bellringer.store import calendars
from bellringer.store.pool import Store
from bellringer.store.queries import load
from bellringer.telemetry import log

_SQL = load("names")
_ROW = ("kind", "expression", "timezone", "anchor", "seconds", "dst", "calendar")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDescription:
    """What a worker says about one of its tasks; `schema` and `defaults` are JSON."""

    name: str
    schema: str
    doc: str
    defaults: str


class Names:
    """What is interned never changes, so every look-up is made at most once in a process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._shards: int | None = None
        self._tenants: dict[str, int] = {}
        self._pools: dict[str, int] = {}
        self._tasks: dict[str, int] = {}
        self._schedules: dict[int, Schedule] = {}
        self._rows: dict[Row, int] = {}

    async def shards(self) -> int:
        if self._shards is None:
            self._shards = await self._store.pool.fetchval(_SQL.shards)
        assert self._shards is not None
        return self._shards

    async def tenant_id(self, name: str) -> int:
        if name not in self._tenants:
            rows = await self._store.pool.fetch(_SQL.tenants)
            self._tenants = {row["name"]: row["tenant_id"] for row in rows}
        if name not in self._tenants:
            raise NotFound(f"there is no tenant {name!r}")
        return self._tenants[name]

    async def tenant_names(self, ids: Collection[int]) -> Mapping[int, str]:
        known = {number: name for name, number in self._tenants.items()}
        if not set(ids) <= known.keys():
            rows = await self._store.pool.fetch(_SQL.tenants)
            self._tenants = {row["name"]: row["tenant_id"] for row in rows}
            known = {number: name for name, number in self._tenants.items()}
        return known

    async def pool_ids(self, names: Iterable[str]) -> Mapping[str, int]:
        """The numbers of these pools; a pool that nobody named before begins to exist."""
        if missing := sorted(set(names) - self._pools.keys()):
            await self._store.pool.execute(_SQL.add_pools, missing)
            rows = await self._store.pool.fetch(_SQL.pools)
            self._pools = {row["name"]: row["pool_id"] for row in rows}
        return self._pools

    async def task_ids(self, names: Iterable[str]) -> Mapping[str, int]:
        """The numbers of these tasks; a task may be named before any worker knows it."""
        if missing := sorted(set(names) - self._tasks.keys()):
            await self._store.pool.execute(_SQL.add_tasks, missing)
            rows = await self._store.pool.fetch(_SQL.tasks)
            self._tasks = {row["name"]: row["task_id"] for row in rows}
        return self._tasks

    async def task_names(self, ids: Collection[int]) -> Mapping[int, str]:
        """The names of these tasks."""
        if not set(ids) <= set(self._tasks.values()):
            rows = await self._store.pool.fetch(_SQL.tasks)
            self._tasks = {row["name"]: row["task_id"] for row in rows}
        return {number: name for name, number in self._tasks.items()}

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
        rows = {to_row(schedule) for schedule in schedules}
        if missing := sorted(rows - self._rows.keys(), key=str):
            columns = _columns(missing)
            await self._store.pool.execute(_SQL.add_schedules, *columns)
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

    async def describe_tasks(self, tasks: Sequence[TaskDescription]) -> None:
        """Keep what a worker says about its tasks."""
        columns = ([getattr(t, name) for t in tasks] for name in ("name", "schema", "doc", "defaults"))
        await self._store.pool.execute(_SQL.describe_tasks, *columns)

    async def task_defaults(self, task: str) -> Mapping[str, Any]:
        """How a task's code wants its runs treated, as far as a worker has told."""
        document = await self._store.pool.fetchval(_SQL.task_defaults, task)
        return msgspec.json.decode(document) if document else {}


def _columns(rows: Sequence[Row]) -> list[list[object]]:
    return [[getattr(row, name) for row in rows] for name in _ROW]
