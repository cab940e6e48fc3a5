"""The cluster: nodes, shards and regions; tasks, pools and workers."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.http.operation import CURSOR_PARAMETER, LIMIT_PARAMETER, number, operation
from bellringer.api.http.request import BigInt, RequestContext, check_utc, reply
from bellringer.api.render import documents
from bellringer.core.jobs import HTTP_TASK, check_name
from bellringer.core.shard_balance import format_shards, parse_shards
from bellringer.durations import format_duration
from bellringer.errors import Conflict, InvalidInput, NotFound
from bellringer.store import leases, migrate, server_stats, workers
from bellringer.store import load as load_store
from bellringer.store import pools as pool_store
from bellringer.store.pools import PoolSettings
from bellringer.store.wakeups import COHORTS_CHANNEL, SHARDS_RELEASED, WORK_CHANNEL
from bellringer.wire.cluster import (
    Cluster,
    Connections,
    DatabaseHealth,
    LeaseMoves,
    Leases,
    LongTransaction,
    Nodes,
    Regions,
    RegionsRequest,
    Schema,
    ServerConnections,
    Shards,
    ShardTable,
)
from bellringer.wire.decode import Gathering, duration, note
from bellringer.wire.definitions import LONGEST_TIMEOUT, SHORTEST_TIMEOUT
from bellringer.wire.models import Empty
from bellringer.wire.overview import Version
from bellringer.wire.routes import Routes
from bellringer.wire.workers import (
    Pool,
    PoolPage,
    PoolPause,
    PoolRequest,
    Workers,
    concurrency_of,
    rate_of,
)


@operation(Routes.workers, role=Role.VIEWER)
async def list_workers(call: RequestContext) -> Response:
    """Lists workers, live ones first."""
    call.query()
    found = await workers.list_all(call.service.store)
    return reply(Workers(items=[documents.render_worker(w, call.caller) for w in found]))


@operation(Routes.cluster, role=Role.VIEWER)
async def get_cluster(call: RequestContext) -> Response:
    """Returns the cluster: nodes, leases, shards, schema, and lag."""
    call.query()
    nodes = [documents.render_node(n, call.caller) for n in await leases.list_nodes(call.service.store)]
    table = [documents.render_lease(row, call.caller) for row in await leases.list_leases(call.service.store)]
    held = sum(row.holder is not None for row in table)
    late, signals = (
        await leases.list_shards(call.service.store),
        await pool_store.autoscaling_signals(call.service.store),
    )
    unread = await call.service.queue_depths([s.pool for s in signals]) if call.service.queue_depths else {}
    async with call.service.store.pool.acquire() as connection:
        schema = await migrate.status(connection)
    skew = call.service.clock.now() - await call.store.now()
    return reply(
        Cluster(
            nodes=nodes,
            leases=table,
            shards=Shards(total=len(table), held=held, free=len(table) - held),
            lag=documents.render_lag(late, signals, unread, call.caller),
            skew=skew.total_seconds(),
            schema=Schema(current=schema.current, wanted=schema.wanted),
            silent_claims=await load_store.count_silent_claims(call.service.store),
            connections=_connections(call),
        )
    )


def _connections(call: RequestContext) -> Connections:
    pool = call.service.store.pool
    return Connections(open=pool.get_size(), idle=pool.get_idle_size(), max=pool.get_max_size())


@operation(Routes.nodes, role=Role.VIEWER)
async def nodes(call: RequestContext) -> Response:
    """Lists scheduler nodes, the oldest first."""
    call.query()
    return reply(
        Nodes(items=[documents.render_node(n, call.caller) for n in await leases.list_nodes(call.service.store)])
    )


@operation(Routes.shards, role=Role.VIEWER)
async def shards(call: RequestContext) -> Response:
    """Lists all shards: their holders, when they are due next, and their load."""
    call.query()
    found = await leases.list_shards(call.service.store)
    loads = await load_store.shard_loads(call.service.store)
    return reply(
        ShardTable(
            items=[documents.render_shard(s, loads.get(s.shard), call.caller) for s in found],
            due_skew=round(load_store.skew([load.due_per_minute for load in loads.values()]), 3),
            fired_skew=round(load_store.skew([load.fired for load in loads.values()]), 3),
        )
    )


@operation(Routes.leases, role=Role.VIEWER)
async def lease_table(call: RequestContext) -> Response:
    """Lists all leases by shard."""
    call.query()
    found = await leases.list_leases(call.service.store)
    return reply(Leases(items=[documents.render_lease(row, call.caller) for row in found]))


@operation(Routes.regions, role=Role.VIEWER)
async def regions(call: RequestContext) -> Response:
    """Returns the shards of each region."""
    call.query()
    return reply(await _regions(call))


@operation(Routes.put_regions, role=Role.ADMIN, everywhere=True)
async def put_regions(call: RequestContext) -> Response:
    """Assigns shards to regions. The nodes of a region share its shards; other nodes hold them only while the region
    has no node.
    """
    request = await call.body(RegionsRequest)
    total, found = await call.catalog.shard_count(), dict[int, str]()
    for region, written in request.regions.items():
        name = check_name(region, what="region", pointer="/regions")
        for shard in parse_shards(written, total, pointer="/regions"):
            if found.setdefault(shard, name) != name:
                hint = "assign each shard to one region"
                raise InvalidInput(f"shard {shard} is in two regions", hint=hint, pointer="/regions", code="limit")
    await leases.set_regions(call.service.store, found)
    await call.service.wake(COHORTS_CHANNEL, SHARDS_RELEASED)
    return reply(await _regions(call))


async def _regions(call: RequestContext) -> Regions:
    of = {row.shard: row.region for row in await leases.list_leases(call.service.store)}
    named = sorted({region for region in of.values() if region is not None})
    return Regions(
        regions={region: format_shards([s for s in of if of[s] == region]) for region in named},
        others=format_shards([s for s in of if of[s] is None]),
    )


MAX_MOVE_HOURS: Final = int(leases.MOVES_KEPT / timedelta(hours=1))
DEFAULT_MOVE_HOURS: Final = 6


class LeaseMoveMark(msgspec.Struct, frozen=True, array_like=True):
    """The position of a move in a list, and the start of the period that the list shows."""

    move_id: BigInt
    since: datetime

    def __post_init__(self) -> None:
        check_utc(self.since)


@operation(
    Routes.lease_moves,
    role=Role.VIEWER,
    query=(
        LIMIT_PARAMETER,
        CURSOR_PARAMETER,
        number("hours", f"how far back, {DEFAULT_MOVE_HOURS} if omitted", 1, MAX_MOVE_HOURS),
    ),
)
async def lease_moves(call: RequestContext) -> Response:
    """Lists changes of shard holders, the latest first. They are kept for two days."""
    query, limit = call.query(), call.limit()
    text = query.get("hours", str(DEFAULT_MOVE_HOURS))
    hours = int(text) if _NUMBER.fullmatch(text) else 0
    if not 1 <= hours <= MAX_MOVE_HOURS:
        raise InvalidInput(f"hours must be a number from 1 to {MAX_MOVE_HOURS}", code="limit_range")
    of = f"moves of leases {hours}"
    mark = call.cursor(of, LeaseMoveMark)
    until = await leases.read_clock(call.service.store)
    since = mark.since if mark else until - timedelta(hours=hours)
    found = await leases.list_moves(call.service.store, since, mark.move_id if mark else None, limit + 1)
    following = call.cursor_to(of, LeaseMoveMark(found[limit - 1].move_id, since)) if len(found) > limit else None
    items = [documents.render_lease_move(move, call.caller) for move in found[:limit]]
    return reply(LeaseMoves(since=since, until=until, items=items, next_cursor=following))


@operation(Routes.database_health, role=Role.VIEWER, everywhere=True)
async def database_health(call: RequestContext) -> Response:
    """Returns the state of the database server: connections, sizes, transactions, partitions."""
    call.query()
    store = call.service.store
    connections, sizes = await server_stats.count_connections(store), await server_stats.read_sizes(store)
    transactions = await server_stats.list_long_transactions(store)
    shown = documents.sees_machines(call.caller)
    return reply(
        DatabaseHealth(
            version=await server_stats.read_version(store),
            round_trip_seconds=await server_stats.measure_round_trip(store, call.service.clock),
            connections=ServerConnections(used=connections.used, max=connections.max),
            database_bytes=sizes.database,
            wal_bytes=sizes.wal,
            disk_bytes=sizes.disk,
            disk_free_bytes=sizes.disk_free,
            missing_partitions=await server_stats.count_missing_partitions(store, await store.now()),
            long_transactions=[
                LongTransaction(
                    pid=found.pid if shown else None,
                    application=found.application if shown else None,
                    state=found.state,
                    seconds=found.seconds,
                )
                for found in transactions
            ],
            hidden_sessions=await server_stats.count_hidden_sessions(store),
        )
    )


@operation(Routes.version, role=Role.VIEWER)
async def get_version(call: RequestContext) -> Response:
    """Returns the version of the server and of the API."""
    call.query()
    return reply(Version(version=call.service.version))


MAX_DESCRIPTION_LENGTH: Final = 1000  # characters
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)


class NameMark(msgspec.Struct, frozen=True, array_like=True):
    """The position of a name in a list."""

    name: str


@operation(Routes.pools, role=Role.VIEWER, query=(LIMIT_PARAMETER, CURSOR_PARAMETER))
async def pools(call: RequestContext) -> Response:
    """Lists pools by name, with their workers and waiting runs."""
    call.query()
    limit, mark = call.limit(), call.cursor("pools", NameMark)
    after, everywhere = mark.name if mark else "", call.caller.everywhere
    found = await pool_store.list_pools(call.service.store, after, limit + 1, everywhere=everywhere)
    following = call.cursor_to("pools", NameMark(found[limit - 1].name)) if len(found) > limit else None
    return reply(PoolPage(items=[_pool(p) for p in found[:limit]], next_cursor=following))


@operation(Routes.pool, role=Role.VIEWER)
async def pool(call: RequestContext) -> Response:
    """Returns a pool with its workers and waiting runs."""
    call.query()
    return reply(await _found(call, _check_text(call.part("name"))))


@operation(Routes.put_pool, role=Role.ADMIN, everywhere=True)
async def put_pool(call: RequestContext) -> Response:
    """Creates or replaces a pool. While it is paused no run of it starts; running ones finish.

    Its limits apply to all workers together. Omitted fields are cleared.
    """
    request = await call.body(PoolRequest)
    name = check_name(call.part("name"), what="pool")
    await pool_store.save_pool(call.service.store, name, _settings(request), who=call.who)
    if not request.paused:
        await call.service.wake(
            WORK_CHANNEL, (await call.service.store.now()).isoformat()
        )  # runs that the pause held back
    return reply(await _found(call, name))


def _settings(request: PoolRequest) -> PoolSettings:
    g = Gathering()
    if len(request.description) > MAX_DESCRIPTION_LENGTH:
        text = f"description has more than {MAX_DESCRIPTION_LENGTH} characters"
        g.add(InvalidInput(text, pointer="/description", code="limit"))
    bounds = {"least": SHORTEST_TIMEOUT, "most": LONGEST_TIMEOUT}
    wanted = PoolSettings(
        description=request.description,
        paused=request.paused,
        reason=g.take("/reason", lambda: note(request.reason, what="reason"), None),
        concurrency=g.take("/concurrency", lambda: concurrency_of(request), None),
        rate=g.take("/rate", lambda: rate_of(request), None),
        timeout=g.take("/timeout", lambda: duration(request.timeout, what="timeout", **bounds), None),
    )
    g.done()
    return wanted


async def _found(call: RequestContext, name: str) -> Pool:
    stored = await pool_store.get_pool(call.service.store, name, everywhere=call.caller.everywhere)
    if stored is None:
        raise NotFound("there is no such pool")
    return _pool(stored)


def _pool(stored: pool_store.PoolRow) -> Pool:
    made = {"paused", "timeout"}
    values: dict[str, Any] = {field: getattr(stored, field) for field in Pool.__struct_fields__ if field not in made}
    timeout = format_duration(stored.timeout) if stored.timeout else None
    pause = None
    if stored.paused_at is not None:
        pause = PoolPause(at=stored.paused_at, by=stored.paused_by, reason=stored.paused_reason)
    return Pool(**values, timeout=timeout, paused=pause)


@operation(Routes.worker, role=Role.VIEWER)
async def worker(call: RequestContext) -> Response:
    """Returns a worker by its number."""
    call.query()
    return await _worker(call, _number(call))


@operation(Routes.quiet_worker, role=Role.OPERATOR, everywhere=True)
async def quiet(call: RequestContext) -> Response:
    """Drains a worker: it finishes its running attempts and claims no more. It learns so within seconds."""
    return await _request_command(call, "quiet")


@operation(Routes.stop_worker, role=Role.OPERATOR, everywhere=True)
async def stop(call: RequestContext) -> Response:
    """Stops a worker: it finishes running attempts within its grace period, gives back the rest, and exits. It learns
    so within seconds.
    """
    return await _request_command(call, "stop")


async def _request_command(call: RequestContext, what: str) -> Response:
    await call.body(Empty)
    number = _number(call)
    stored = await workers.get(call.service.store, number)
    if stored is None:
        raise _no_worker()
    if what == "stop" and set(stored.pools) == {HTTP_TASK}:
        raise Conflict("this worker is part of a server", hint="stop the server, or drain the worker")
    if not await workers.request_state(call.service.store, number, what):
        raise Conflict("this worker has ended")
    return await _worker(call, number, 202)


async def _worker(call: RequestContext, number: int, status: int = 200) -> Response:
    stored = await workers.get(call.service.store, number)
    if stored is None:
        raise _no_worker()
    return reply(documents.render_worker(stored, call.caller), status)


def _number(call: RequestContext) -> int:
    text = call.part("id")
    if not _NUMBER.fullmatch(text):
        raise _no_worker()
    return int(text)


def _no_worker() -> NotFound:
    return NotFound("there is no such worker")


def _check_text(name: str) -> str:
    """Raises NotFound for text that no column can store."""
    return "" if "\0" in name else name
