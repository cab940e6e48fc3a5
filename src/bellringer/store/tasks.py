"""Tasks that workers have described, and which of them live workers know. All tenants share them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from bellringer.store.connection_pool import Store
from bellringer.store.queries import load

_SQL = load("tasks")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """A task that a worker has described; `workers` counts the live workers that know it."""

    task_id: int
    name: str
    doc: str
    defaults: Mapping[str, Any]
    workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDetail(TaskRow):
    """A task with the JSON Schema of its arguments, and some of the workers that know it."""

    schema: Mapping[str, Any]
    who: Sequence[tuple[int, str]]


async def list_tasks(store: Store, after: str, limit: int, *, tenant_id: int) -> list[TaskRow]:
    """Returns the tasks that workers have described, and those that the tenant has paused."""
    rows = await store.pool.fetch(_SQL.tasks, after, limit, tenant_id)
    return [TaskRow(**{**dict(row), "defaults": msgspec.json.decode(row["defaults"])}) for row in rows]


async def get_task(store: Store, name: str, task_id: int | None = None) -> TaskDetail | None:
    """Returns a task that a worker has described; with its id, any task."""
    row = await store.pool.fetchrow(_SQL.task, name, task_id)
    if row is None:
        return None
    read = {field: msgspec.json.decode(row[field]) for field in ("defaults", "schema")}
    return TaskDetail(**{**dict(row), **read, "who": [(number, called) for number, called in row["who"]]})


async def live_tasks(store: Store) -> dict[str, set[str]]:
    """Returns the tasks that live workers know, each with the pools of these workers."""
    found: dict[str, set[str]] = {}
    for row in await store.pool.fetch(_SQL.live):
        found.setdefault(row["task"], set()).add(row["pool"])
    return found


async def is_described(store: Store, task: str) -> bool:
    """Whether a worker has ever described this task."""
    is_described: bool = await store.pool.fetchval(_SQL.described, task)
    return is_described
