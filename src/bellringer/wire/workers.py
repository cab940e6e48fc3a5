"""Tasks, pools and workers."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Final

from bellringer.errors import InvalidInput
from bellringer.wire.models import RequestModel, ResponseModel

MOST_AT_ONCE: Final = 1_000_000
SLOWEST: Final = 1 / 3600  # starts a second
FASTEST: Final = 1_000_000
_UNITS: Final = {"s": 1, "m": 60, "h": 3600}
_NUMBER: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)


class TaskPauseRequest(RequestModel, frozen=True):
    """The reason, and the end of the pause: an instant, or a duration from now. Without an end, it lasts until the task
    is resumed.
    """

    reason: str | None = None
    until: str | int | float | None = None


class TaskResumeRequest(RequestModel, frozen=True):
    """`rate` is how fast the runs that the pause has held are released, such as 50 (a second), "300/m" or "10/h".
    Without it, all are released at once.
    """

    rate: str | int | float | None = None


class TaskPause(ResponseModel, frozen=True):
    """The pause of a task for the tenant. `resumed_at` is set while held runs are released at `rate` per second."""

    at: datetime
    by: str
    reason: str | None
    until: datetime | None
    resumed_at: datetime | None = None
    rate: float | None = None


class TaskItem(ResponseModel, frozen=True):
    """A registered task; `workers` counts the live workers that can run it.

    `defaults` are its options, which apply unless a job overrides them. Of the tenant's runs, `ready` wait for a
    worker, the first for `oldest` seconds, `retrying` wait for their next attempt, `running` are executed, `held` wait
    for the end of the pause, and `dead` became dead letters within the last hour: a node of a workflow does not, the
    workflow run does. Counts stop at 10,000 in each pool.
    """

    name: str
    doc: str
    defaults: dict[str, Any]
    workers: int
    paused: TaskPause | None
    ready: int
    retrying: int
    running: int
    held: int
    dead: int
    oldest: float | None


class Knower(ResponseModel, frozen=True):
    """A live worker that can run a task."""

    worker_id: int
    name: str


class TaskInfo(TaskItem, frozen=True):
    """A task with the JSON Schema of its arguments, and some of the workers that can run it."""

    schema: dict[str, Any]
    known_by: list[Knower]


class TaskPage(ResponseModel, frozen=True):
    """Tasks, ordered by name."""

    items: list[TaskItem]
    next_cursor: str | None = None


class PoolRequest(RequestModel, frozen=True):
    """The options of a pool. While it is paused, no runs start, and running runs continue.

    On all workers together, at most `concurrency` runs are running, and at most `rate` start per second (50, "50/s",
    "300/m"). `timeout` applies to attempts whose job has none. Omitted limits are cleared.
    """

    description: str = ""
    paused: bool = False
    reason: str | None = None
    concurrency: int | None = None
    rate: str | int | float | None = None
    timeout: str | int | float | None = None


def concurrency_of(request: PoolRequest) -> int | None:
    if request.concurrency is not None and not 1 <= request.concurrency <= MOST_AT_ONCE:
        hint = f"give 1 to {MOST_AT_ONCE:,}; to start no runs, pause the pool"
        raise InvalidInput(f"concurrency is {request.concurrency}", hint=hint, code="limit")
    return request.concurrency


def rate_of(request: PoolRequest | TaskResumeRequest) -> float | None:
    """The rate in starts per second; it may be given per second, minute or hour."""
    if request.rate is None:
        return None
    count, _, unit = str(request.rate).partition("/")
    hint = "write it like 50/s, 300/m or 10/h, or as a number of starts per second"
    if not _NUMBER.fullmatch(count) or (unit or "s") not in _UNITS:
        raise InvalidInput(f"rate {str(request.rate)[:40]!r} is not a rate", hint=hint, code="rate_invalid")
    rate = float(count) / _UNITS[unit or "s"]
    if not SLOWEST <= rate <= FASTEST:
        raise InvalidInput(f"rate is {rate:g} per second", hint=f"give 1/h to {FASTEST:,}/s", code="limit")
    return rate


class PoolPause(ResponseModel, frozen=True):
    """The pause of a pool: since when, by whom, and why."""

    at: datetime
    by: str | None
    reason: str | None


class Pool(ResponseModel, frozen=True):
    """A pool. `slots` is the capacity of its `workers`, `busy` the part in use.

    `ready` counts waiting runs, up to 10,000 (20,000 with runs that share a limit); `oldest` is how many seconds the
    first of them has waited. `concurrency`, `rate` (starts per second) and `timeout` are its limits.
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


class PoolPage(ResponseModel, frozen=True):
    """Pools, ordered by name."""

    items: list[Pool]
    next_cursor: str | None = None


class WorkerInfo(ResponseModel, frozen=True):
    """A worker; `age` is the time since its last heartbeat, in seconds."""

    worker_id: int
    name: str
    host: str | None  # name, host and pid are shown to installation keys only
    pid: int | None
    version: str
    pools: dict[str, int]
    state: str
    busy: int
    started_at: datetime
    seen_at: datetime
    age: float
    tasks: list[str]
    asked: str | None = None  # quiet or stop, if requested by an operator


class Workers(ResponseModel, frozen=True):
    items: list[WorkerInfo]
    next_cursor: str | None = None
