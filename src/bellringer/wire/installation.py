"""What all tenants share: tasks, pools, and the parts of the cluster."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from bellringer.wire.answers import Answer, Lease, Node
from bellringer.wire.requests import Request


class TaskItem(Answer, frozen=True):
    """A task that workers have told of; `workers` counts the live ones that know it.

    `defaults` are how its code wants its runs treated where a job does not say otherwise.
    """

    name: str
    doc: str
    defaults: dict[str, Any]
    workers: int


class Knower(Answer, frozen=True):
    """A live worker that knows a task."""

    worker_id: int
    name: str


class Task(TaskItem, frozen=True):
    """With the JSON Schema of its arguments, as one object, and some of the workers that know it."""

    schema: dict[str, Any]
    known_by: list[Knower]


class TaskPage(Answer, frozen=True):
    """Tasks by their names."""

    items: list[TaskItem]
    next_cursor: str | None = None


class PoolRequest(Request, frozen=True):
    """What a pool is for, and whether it rests: while it is paused nothing of it starts, and what runs goes on."""

    description: str = ""
    paused: bool = False
    reason: str | None = None


class PoolPause(Answer, frozen=True):
    """Since when nothing of a pool is started, by whom, and why."""

    at: datetime
    by: str | None
    reason: str | None


class Pool(Answer, frozen=True):
    """A pool: `slots` are the places of its `workers`, `busy` those that are taken.

    `ready` counts what could start, up to 10,000 (twice that with runs that share a limit); `oldest` is for how many
    seconds the first of it has waited.
    """

    name: str
    description: str
    paused: PoolPause | None
    workers: int
    slots: int
    busy: int
    ready: int
    oldest: float | None
    created_at: datetime


class PoolPage(Answer, frozen=True):
    """Pools by their names."""

    items: list[Pool]
    next_cursor: str | None = None


class Shard(Answer, frozen=True):
    """A fixed share of the jobs: who may fire it, and when a hand or a timer of it strikes next."""

    shard: int
    holder: str | None
    node: str | None
    token: int
    next_at: datetime | None
    timer_at: datetime | None


class Nodes(Answer, frozen=True):
    """Scheduler nodes, the oldest first."""

    items: list[Node]
    next_cursor: str | None = None


class ShardTable(Answer, frozen=True):
    """All shards."""

    items: list[Shard]
    next_cursor: str | None = None


class Leases(Answer, frozen=True):
    """All leases, by their shards."""

    items: list[Lease]
    next_cursor: str | None = None
