"""Shard leases and node heartbeats in PostgreSQL, by its real clock: a test's clock never moves them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from bellringer.leases import LEASE
from bellringer.store.pool import Store
from bellringer.store.queries import load

_SQL = load("leases")


class PostgresLeases:
    """The default keeper of leases: one row a shard."""

    def __init__(self, store: Store, lease: timedelta = LEASE) -> None:
        self._store = store
        self._lease = lease

    async def acquire(self, holder: UUID, want: int) -> Mapping[int, int]:
        rows = await self._store.pool.fetch(_SQL.acquire, holder, want, self._lease)
        return {row["shard"]: row["token"] for row in rows}

    async def renew(self, holder: UUID, tokens: Mapping[int, int]) -> frozenset[int]:
        """The shards that are still held; a missing one was taken by another."""
        shards = sorted(tokens)
        rows = await self._store.pool.fetch(_SQL.renew, holder, shards, [tokens[s] for s in shards], self._lease)
        return frozenset(row["shard"] for row in rows)

    async def release(self, holder: UUID, tokens: Mapping[int, int]) -> None:
        shards = sorted(tokens)
        await self._store.pool.execute(_SQL.release, holder, shards, [tokens[s] for s in shards])


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """What a node says of itself with every heartbeat."""

    node_id: UUID
    name: str
    host: str
    pid: int
    version: str
    shards: int = 0
    fired: int = 0
    refused: int = 0
    skew: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRow:
    """One shard's lease, as a person reads it."""

    shard: int
    holder: UUID | None
    node: str | None
    token: int
    seconds_left: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One scheduler node, as a person reads it."""

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
    age: float


async def beat(store: Store, b: Beat) -> None:
    await store.pool.execute(
        _SQL.beat, b.node_id, b.name, b.host, b.pid, b.version, b.shards, b.fired, b.refused, b.skew
    )


async def live(store: Store, within: timedelta) -> list[UUID]:
    """The nodes that were seen lately, in an order that all nodes agree on."""
    return [row["node_id"] for row in await store.pool.fetch(_SQL.live, within)]


async def leave(store: Store, node_id: UUID) -> None:
    await store.pool.execute(_SQL.leave, node_id)


async def forget(store: Store) -> None:
    """Drop the rows of nodes that were not seen for a day."""
    await store.pool.execute(_SQL.forget)


async def table(store: Store) -> list[LeaseRow]:
    rows = await store.pool.fetch(_SQL.table)
    return [LeaseRow(**dict(row)) for row in rows]


async def nodes(store: Store) -> list[Node]:
    return [Node(**dict(row)) for row in await store.pool.fetch(_SQL.nodes)]
