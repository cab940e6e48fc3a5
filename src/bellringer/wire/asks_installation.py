"""Calls about what all tenants share: tasks, pools, workers, and the parts of the cluster."""

from __future__ import annotations

from collections.abc import Mapping

from bellringer.wire import answers
from bellringer.wire import installation as shared
from bellringer.wire.asks import PREFIX, Ask, _at, _get, _post


def tasks(*, limit: int | None = None, cursor: str | None = None) -> Ask[shared.TaskPage]:
    """Tasks that workers have told of, by their names."""
    return _get(shared.TaskPage, "/tasks", limit=limit, cursor=cursor)


def task(name: str) -> Ask[shared.Task]:
    """A task with the JSON Schema of its arguments, and who knows it."""
    return _get(shared.Task, _at("tasks", name))


def pools(*, limit: int | None = None, cursor: str | None = None) -> Ask[shared.PoolPage]:
    """Pools by their names: who works for them, and what waits in them."""
    return _get(shared.PoolPage, "/pools", limit=limit, cursor=cursor)


def pool(name: str) -> Ask[shared.Pool]:
    return _get(shared.Pool, _at("pools", name))


def put_pool(
    name: str,
    *,
    description: str = "",
    paused: bool = False,
    reason: str | None = None,
    concurrency: int | None = None,
    rate: str | float | None = None,
    timeout: str | float | None = None,
) -> Ask[shared.Pool]:
    """Make a pool what is given; while it is paused nothing of it starts.

    `rate` is in starts a second, or such as "300/m"; what is left out is not bounded.
    """
    given = {"reason": reason, "concurrency": concurrency, "rate": rate, "timeout": timeout}
    chosen = {field: value for field, value in given.items() if value is not None}
    body = {"description": description, "paused": paused, **chosen}
    return Ask(method="PUT", path=PREFIX + _at("pools", name), shape=shared.Pool, body=body)


def worker(worker_id: int) -> Ask[answers.Worker]:
    return _get(answers.Worker, _at("workers", str(worker_id)))


def quiet_worker(worker_id: int) -> Ask[answers.Worker]:
    """Let a worker finish what it runs, and claim no more."""
    return _post(answers.Worker, _at("workers", str(worker_id), "quiet"), {})


def stop_worker(worker_id: int) -> Ask[answers.Worker]:
    """Let a worker finish what it runs within its grace, and end."""
    return _post(answers.Worker, _at("workers", str(worker_id), "stop"), {})


def nodes() -> Ask[shared.Nodes]:
    return _get(shared.Nodes, "/cluster/nodes")


def shards() -> Ask[shared.ShardTable]:
    """All shards, who may fire them, and when they have something to do."""
    return _get(shared.ShardTable, "/cluster/shards")


def leases() -> Ask[shared.Leases]:
    return _get(shared.Leases, "/cluster/leases")


def regions() -> Ask[shared.Regions]:
    """Which shards belong to which region."""
    return _get(shared.Regions, "/cluster/regions")


def put_regions(regions: Mapping[str, str]) -> Ask[shared.Regions]:
    """Give shards, written like "0-31,40", to regions; the others belong to none."""
    body = {"regions": dict(regions)}
    return Ask(method="PUT", path=f"{PREFIX}/cluster/regions", shape=shared.Regions, body=body)
