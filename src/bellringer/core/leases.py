"""Leases on shards: which scheduler node may fire the jobs of a shard.

A lease names a shard, its holder, a fencing token that grows with every grant, and an expiry time. Expiry by the
database's clock decides which node may *try* to take a shard; only the token decides which node may *write*.
A node that was suspended or cut off from the network still believes that it holds its lease when it resumes. Its
writes carry the old token, and the database rejects them inside the same transaction.

        node A  ──────── renew ── renew ──✕ stopped ............ wakes ── tick(token 7) ──► refused
        shard 3 ── token 7 ───────────────┤ expires ├── token 8 ─────────────────────────────────────
        node B  ............................ acquire ── tick(token 8) ──► fires

Nodes discover each other through their heartbeat rows and divide the shards evenly, without direct communication.
Shards can be assigned to regions. The nodes of a region divide its shards; nodes elsewhere hold them only while the
region has no live node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol
from uuid import UUID

LEASE_DURATION: Final = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Holding:
    """The shards that a node holds, each with its fencing token."""

    holder: UUID
    tokens: Mapping[int, int]

    def tokens_for(self, shards: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the held shards among the given ones, sorted, and their tokens in the same order."""
        held = sorted(s for s in set(shards) if s in self.tokens)
        return held, [self.tokens[s] for s in held]


class LeaseKeeper(Protocol):
    """Grants leases. The default implementation is the database; etcd is an alternative.

    Every grant of a shard has a larger token than all earlier grants, even across implementations. Methods raise
    `Unavailable` when the service cannot be reached; leases already granted stay valid until they expire.
    """

    shares_shards: bool = True  # False: a single leader node holds all shards

    async def acquire(self, holder: UUID, want: int, among: Collection[int] | None = None) -> Mapping[int, int]:
        """Take up to `want` free or expired shards, only from `among` if given. Returns the token of each shard."""
        ...

    async def renew(self, holder: UUID, tokens: Mapping[int, int]) -> frozenset[int]:
        """Extend leases. Returns the shards still held; the others were lost."""
        ...

    async def release(self, holder: UUID, tokens: Mapping[int, int]) -> None:
        """Release leases, so that other nodes can take the shards before they expire."""
        ...

    async def watch(self, freed: Callable[[], None]) -> None:
        """Call `freed` as soon as shards become free. Calls are hints: some may be missing or unnecessary."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


class LeaseTable(LeaseKeeper, Protocol):
    """The database rows that fence every write. A grant from elsewhere takes effect once it is written here."""

    async def install(self, holder: UUID, candidates: Mapping[int, int]) -> Mapping[int, int]:
        """Write grants that another service made. Returns the final tokens: the proposed `candidates`, or larger
        numbers where needed to exceed all earlier tokens."""
        ...

    async def shards(self) -> Sequence[int]:
        """Return the numbers of all shards."""
        ...


class MemoryLeases(LeaseKeeper):
    """In-memory implementation for a single process and for tests."""

    def __init__(self, shards: int, monotonic: Callable[[], float], lease: timedelta = LEASE_DURATION) -> None:
        self._tokens = dict.fromkeys(range(shards), 0)
        self._held: dict[int, tuple[UUID, float]] = {}  # shard -> holder, expiry
        self._monotonic = monotonic
        self._lease = lease.total_seconds()
        self._watchers: list[Callable[[], None]] = []

    async def acquire(self, holder: UUID, want: int, among: Collection[int] | None = None) -> Mapping[int, int]:
        moment = self._monotonic()
        wanted = sorted(self._tokens if among is None else self._tokens.keys() & set(among))
        free = [s for s in wanted if s not in self._held or self._held[s][1] < moment][:want]
        for shard in free:
            self._tokens[shard] += 1
            self._held[shard] = (holder, moment + self._lease)
        return {shard: self._tokens[shard] for shard in free}

    async def renew(self, holder: UUID, tokens: Mapping[int, int]) -> frozenset[int]:
        mine = self._mine(holder, tokens)
        self._held.update((shard, (holder, self._monotonic() + self._lease)) for shard in mine)
        return mine

    async def release(self, holder: UUID, tokens: Mapping[int, int]) -> None:
        for shard in self._mine(holder, tokens):
            del self._held[shard]
        for freed in self._watchers:
            freed()

    async def watch(self, freed: Callable[[], None]) -> None:
        self._watchers.append(freed)

    async def close(self) -> None:
        self._watchers.clear()

    def _mine(self, holder: UUID, tokens: Mapping[int, int]) -> frozenset[int]:
        held = ((shard, self._held.get(shard)) for shard, token in tokens.items() if self._tokens.get(shard) == token)
        return frozenset(shard for shard, who in held if who is not None and who[0] == holder)
