"""Shard leases and node heartbeats in PostgreSQL, by its real clock: a test's clock never moves them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec

from bellringer.leases import LEASE, Ledger, Peer, write_shards
from bellringer.store.pool import Store
from bellringer.store.queries import load

_SQL = load("leases")
LONGEST: Final = 500  # characters of what a node waits for


class PostgresLeases(Ledger):
    """The default keeper of leases: one row a shard."""

    def __init__(self, store: Store, lease: timedelta = LEASE) -> None:
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
        """Who lets go sends a wake-up, which every node hears already."""

    async def close(self) -> None:
        """The pool is not its own."""

    async def install(self, holder: UUID, candidates: Mapping[int, int]) -> Mapping[int, int]:
        return await install(self._store.pool, holder, candidates, self._lease)

    async def shards(self) -> Sequence[int]:
        return [row["shard"] for row in await self._store.pool.fetch(_SQL.shards)]


# By a pool, or by a connection that has a lock


async def install(runs: Any, holder: UUID, candidates: Mapping[int, int], lease: timedelta) -> Mapping[int, int]:
    shards = sorted(candidates)
    rows = await runs.fetch(_SQL.install, holder, shards, [candidates[s] for s in shards], lease)
    return {row["shard"]: row["token"] for row in rows}


async def renew(runs: Any, holder: UUID, tokens: Mapping[int, int], lease: timedelta) -> frozenset[int]:
    shards = sorted(tokens)
    rows = await runs.fetch(_SQL.renew, holder, shards, [tokens[s] for s in shards], lease)
    return frozenset(row["shard"] for row in rows)


async def release(runs: Any, holder: UUID, tokens: Mapping[int, int]) -> None:
    shards = sorted(tokens)
    await runs.execute(_SQL.release, holder, shards, [tokens[s] for s in shards])


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
    region: str | None = None
    waits_for: str | None = None  # what keeps it from its shards, in words


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRow:
    """One shard's lease, as a person reads it."""

    shard: int
    holder: UUID | None
    node: str | None
    token: int
    region: str | None
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
    region: str | None
    waits_for: str | None
    age: float


async def beat(store: Store, b: Beat) -> None:
    of_node = (b.node_id, b.name, b.host, b.pid, b.version)
    await store.pool.execute(
        _SQL.beat, *of_node, b.shards, b.fired, b.refused, b.skew, b.region, b.waits_for and b.waits_for[:LONGEST]
    )


async def live(store: Store, within: timedelta) -> list[Peer]:
    """The nodes that were seen lately, in an order that all nodes agree on."""
    return [Peer(row["node_id"], row["region"]) for row in await store.pool.fetch(_SQL.live, within)]


async def regions(store: Store) -> Mapping[int, str]:
    """The shards that belong to a region."""
    return {row["shard"]: row["region"] for row in await store.pool.fetch(_SQL.regions)}


async def set_regions(store: Store, shards: Mapping[int, str]) -> None:
    """Say which shards belong to which region; the others belong to none."""
    named = sorted(set(shards.values()))
    told = {region: write_shards([s for s in shards if shards[s] == region]) for region in named}
    document = msgspec.json.encode(told).decode()
    await store.pool.execute(_SQL.set_regions, list(shards), list(shards.values()), document)


async def end_silent_leader(store: Store, space: int, lease: timedelta) -> bool:
    """End the connection of a leader that has said nothing for longer than a lease; True: there was one."""
    return bool(await store.pool.fetch(_SQL.silent_leader, space, lease))


async def leave(store: Store, node_id: UUID) -> None:
    await store.pool.execute(_SQL.leave, node_id)


async def forget(store: Store) -> None:
    """Drop the rows of nodes that were not seen for a day."""
    await store.pool.execute(_SQL.forget)


async def table(store: Store) -> list[LeaseRow]:
    rows = await store.pool.fetch(_SQL.table)
    return [LeaseRow(**dict(row)) for row in rows]


async def any_waits(store: Store) -> bool:
    """Whether a live node is kept from its shards."""
    return bool(await store.pool.fetchval(_SQL.any_waits))


async def nodes(store: Store) -> list[Node]:
    return [Node(**dict(row)) for row in await store.pool.fetch(_SQL.nodes)]
