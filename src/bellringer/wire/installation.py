"""What all tenants share: tasks, pools, and the parts of the cluster."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Final

from bellringer.errors import InvalidInput
from bellringer.wire.answers import Answer
from bellringer.wire.cluster import Lease, Node
from bellringer.wire.requests import Request

MOST_AT_ONCE: Final = 1_000_000
SLOWEST: Final = 1 / 3600  # starts a second
FASTEST: Final = 1_000_000
_UNITS: Final = {"s": 1, "m": 60, "h": 3600}
_NUMBER: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)


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
    """What a pool is for, its bounds, and whether it rests: while it is paused nothing starts, and what runs goes on.

    On all workers together, at most `concurrency` of its runs are under way, and at most `rate` start a second (50,
    "50/s", "300/m"). `timeout` is that of attempts whose job says none. What is left out is not bounded.
    """

    description: str = ""
    paused: bool = False
    reason: str | None = None
    concurrency: int | None = None
    rate: str | int | float | None = None
    timeout: str | int | float | None = None


def concurrency_of(request: PoolRequest) -> int | None:
    if request.concurrency is not None and not 1 <= request.concurrency <= MOST_AT_ONCE:
        hint = f"give 1 to {MOST_AT_ONCE:,}; to let nothing start, pause the pool"
        raise InvalidInput(f"concurrency is {request.concurrency}", hint=hint, code="limit")
    return request.concurrency


def rate_of(request: PoolRequest) -> float | None:
    """Starts a second; it may be written by the second, the minute or the hour."""
    if request.rate is None:
        return None
    count, _, unit = str(request.rate).partition("/")
    hint = "write it like 50/s, 300/m or 10/h, or as a number of starts a second"
    if not _NUMBER.fullmatch(count) or (unit or "s") not in _UNITS:
        raise InvalidInput(f"rate {str(request.rate)[:40]!r} cannot be read", hint=hint, code="rate_invalid")
    rate = float(count) / _UNITS[unit or "s"]
    if not SLOWEST <= rate <= FASTEST:
        raise InvalidInput(f"rate is {rate:g} a second", hint=f"give 1/h to {FASTEST:,}/s", code="limit")
    return rate


class PoolPause(Answer, frozen=True):
    """Since when nothing of a pool is started, by whom, and why."""

    at: datetime
    by: str | None
    reason: str | None


class Pool(Answer, frozen=True):
    """A pool: `slots` are the places of its `workers`, `busy` those that are taken.

    `ready` counts what could start, up to 10,000 (twice that with runs that share a limit); `oldest` is for how many
    seconds the first of it has waited. `concurrency`, `rate` (starts a second) and `timeout` are its bounds.
    """

    name: str
    description: str
    paused: PoolPause | None
    concurrency: int | None
    rate: float | None
    timeout: str | None
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
    """A fixed share of the jobs: who may fire it, and when a hand or a timer of it strikes next.

    `late` is for how many seconds the first of them should have struck.
    """

    shard: int
    holder: str | None
    node: str | None
    token: int
    region: str | None
    next_at: datetime | None
    timer_at: datetime | None
    late: float


class RegionsRequest(Request, frozen=True):
    """Which shards belong to which region, written like "0-31,40"; those that are not named belong to none."""

    regions: dict[str, str]


class Regions(Answer, frozen=True):
    """The shards of each region, as "0-31,40", and those that belong to none."""

    regions: dict[str, str]
    others: str


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
