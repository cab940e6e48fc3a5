"""Shard leases and scheduler heartbeats in PostgreSQL, by the server's real clock; the test clock never moves them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec

from bellringer.core.leases import LEASE_DURATION, LeaseTable
from bellringer.core.shard_balance import Peer, format_shards
from bellringer.store.connection_pool import Store
from bellringer.store.queries import load

_SQL = load("leases")
MAX_WAITS_FOR_CHARACTERS: Final = 500
MOVES_KEPT: Final = timedelta(days=2)
MAX_MOVES_KEPT: Final = 20_000


class PostgresLeases(LeaseTable):
    """The default lease keeper: one row per shard."""

    def __init__(self, store: Store, lease: timedelta = LEASE_DURATION) -> None:
        self._store = store
        self._lease = lease

    async def acquire(self, holder: UUID, want: int, among: Collection[int] | None = None) -> Mapping[int, int]:
        those = None if among is None else sorted(among)
        rows = await self._store.pool.fetch(_SQL.acquire, holder, want, self._lease, those)
        return {row["shard"]: row["token"] for row in rows}

    async def renew(self, holder: UUID, tokens: Mapping[int, int]) -> frozenset[int]:
        return await renew(self._store.pool, holder, tokens, self._lease) if tokens else frozenset()

    async def release(self, holder: UUID, tokens: Mapping[int, int]) -> None:
        await release(self._store.pool, holder, tokens)

    async def watch(self, freed: Callable[[], None]) -> None:
        """Does nothing: releasing a shard sends a wake-up that every scheduler hears."""

    async def close(self) -> None:
        """Does nothing: the pool belongs to the caller."""

    async def install(self, holder: UUID, candidates: Mapping[int, int]) -> Mapping[int, int]:
        return await install(self._store.pool, holder, candidates, self._lease)

    async def shards(self) -> Sequence[int]:
        return [row["shard"] for row in await self._store.pool.fetch(_SQL.shards)]


# Statements for a pool, or for the connection that holds a lock


async def install(connection: Any, holder: UUID, candidates: Mapping[int, int], lease: timedelta) -> Mapping[int, int]:
    shards = sorted(candidates)
    rows = await connection.fetch(_SQL.install, holder, shards, [candidates[s] for s in shards], lease)
    return {row["shard"]: row["token"] for row in rows}


async def renew(connection: Any, holder: UUID, tokens: Mapping[int, int], lease: timedelta) -> frozenset[int]:
    shards = sorted(tokens)
    rows = await connection.fetch(_SQL.renew, holder, shards, [tokens[s] for s in shards], lease)
    return frozenset(row["shard"] for row in rows)


async def release(connection: Any, holder: UUID, tokens: Mapping[int, int]) -> None:
    shards = sorted(tokens)
    await connection.execute(_SQL.release, holder, shards, [tokens[s] for s in shards])


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHeartbeat:
    """The contents of a scheduler's heartbeat."""

    node_id: UUID
    name: str
    host: str
    pid: int
    version: str
    shards: int = 0
    fired: int = 0
    refused: int = 0
    skew: float = 0.0
    region: str | None = None
    waits_for: str | None = None  # why it has no shards


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRow:
    """The lease of one shard, as the API shows it."""

    shard: int
    holder: UUID | None
    node: str | None
    token: int
    region: str | None
    seconds_left: float
    held_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerNodeRow:
    """A scheduler, as the API shows it."""

    node_id: UUID
    name: str
    host: str
    pid: int
    version: str
    started_at: datetime
    seen_at: datetime
    shards: int
    fired: int
    refused: int
    skew: float
    region: str | None
    waits_for: str | None
    age: float


async def record_heartbeat(store: Store, b: NodeHeartbeat) -> None:
    of_node = (b.node_id, b.name, b.host, b.pid, b.version)
    await store.pool.execute(
        _SQL.heartbeat,
        *of_node,
        b.shards,
        b.fired,
        b.refused,
        b.skew,
        b.region,
        b.waits_for and b.waits_for[:MAX_WAITS_FOR_CHARACTERS],
    )


async def live_nodes(store: Store, within: timedelta) -> list[Peer]:
    """Returns the schedulers with a recent heartbeat, in an order that all of them agree on."""
    return [Peer(row["node_id"], row["region"]) for row in await store.pool.fetch(_SQL.live, within)]


async def regions(store: Store) -> Mapping[int, str]:
    """Returns the region of each shard that has one."""
    return {row["shard"]: row["region"] for row in await store.pool.fetch(_SQL.regions)}


async def set_regions(store: Store, shards: Mapping[int, str]) -> None:
    """Assigns shards to regions; shards that are not given belong to none."""
    named = sorted(set(shards.values()))
    by_region = {region: format_shards([s for s in shards if shards[s] == region]) for region in named}
    document = msgspec.json.encode(by_region).decode()
    await store.pool.execute(_SQL.set_regions, list(shards), list(shards.values()), document)


async def end_silent_leader(store: Store, space: int, lease: timedelta) -> bool:
    """Ends the connection of a leader that was silent for longer than a lease; returns whether there was one."""
    return bool(await store.pool.fetch(_SQL.end_silent_leader, space, lease))


async def remove_node(store: Store, node_id: UUID) -> None:
    await store.pool.execute(_SQL.leave, node_id)


async def prune_nodes(store: Store) -> None:
    """Deletes schedulers without a heartbeat for a day."""
    await store.pool.execute(_SQL.forget)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseMoveRow:
    """A change of a shard's holder, with the names that the nodes had then."""

    move_id: int
    at: datetime
    shard: int
    cause: str
    holder: UUID | None
    node: str | None
    previous: UUID | None
    previous_node: str | None
    token: int


async def read_clock(store: Store) -> datetime:
    """Returns the real time of the database, by which leases are granted and expire."""
    now: datetime = await store.pool.fetchval(_SQL.clock)
    return now


async def list_moves(store: Store, since: datetime, before: int | None, limit: int) -> list[LeaseMoveRow]:
    """Returns moves after an instant, the latest first; with `before`, those before that move."""
    return [LeaseMoveRow(**dict(row)) for row in await store.pool.fetch(_SQL.moves, since, before, limit)]


async def prune_moves(store: Store) -> None:
    """Deletes moves that are older than MOVES_KEPT, and all but the latest MAX_MOVES_KEPT."""
    await store.pool.execute(_SQL.forget_moves, await read_clock(store) - MOVES_KEPT, MAX_MOVES_KEPT)


async def list_leases(store: Store) -> list[LeaseRow]:
    rows = await store.pool.fetch(_SQL.table)
    return [LeaseRow(**dict(row)) for row in rows]


async def any_node_waits(store: Store) -> bool:
    """Whether a live scheduler is kept from its shards."""
    return bool(await store.pool.fetchval(_SQL.any_waits))


async def list_nodes(store: Store) -> list[SchedulerNodeRow]:
    return [SchedulerNodeRow(**dict(row)) for row in await store.pool.fetch(_SQL.nodes)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRow:
    """A shard, its lease holder and its next due instant; `late` is how many seconds that instant has passed."""

    shard: int
    holder: UUID | None
    node: str | None
    token: int
    region: str | None
    next_at: datetime | None
    timer_at: datetime | None
    late: float


async def list_shards(store: Store) -> list[ShardRow]:
    return [ShardRow(**dict(row)) for row in await store.pool.fetch(_SQL.shard_status)]
