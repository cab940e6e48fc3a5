"""Who may fire a shard.

A lease is a right that ends by itself: a shard, its holder, a token that grows with every grant, and a time of
expiry. The database's clock and the expiry say who may *try* for a shard; only the token says who may *write*.
A node that was stopped, or lost the network, and wakes up after its lease was taken still believes in it; its
writes carry the old token, and the database refuses them in the transaction that would have made them.

        node A  ──────── renew ── renew ──✕ stopped ............ wakes ── tick(token 7) ──► refused
        shard 3 ── token 7 ───────────────┤ expires ├── token 8 ─────────────────────────────────────
        node B  ............................ acquire ── tick(token 8) ──► fires

Nodes find each other by their heartbeat rows and share the shards evenly, without talking to each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol
from uuid import UUID

LEASE: Final = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Holding:
    """The shards that a node holds, each with the token that proves it."""

    holder: UUID
    tokens: Mapping[int, int]

    def within(self, shards: Sequence[int]) -> tuple[list[int], list[int]]:
        """Those of the given shards that are held, in shard order, with their tokens."""
        held = sorted(s for s in set(shards) if s in self.tokens)
        return held, [self.tokens[s] for s in held]


class LeaseKeeper(Protocol):
    """What grants leases: the database by default, or an engine that a team trusts already."""

    async def acquire(self, holder: UUID, want: int) -> Mapping[int, int]: ...

    async def renew(self, holder: UUID, tokens: Mapping[int, int]) -> frozenset[int]: ...

    async def release(self, holder: UUID, tokens: Mapping[int, int]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a node should do about the number of shards that it holds."""

    take: int = 0
    drop: int = 0


def fair_share(held: int, shards: int, nodes: int, rank: int) -> Share:
    """How many shards to take or drop so that `nodes` equal nodes hold all of them evenly.

    Where the shards do not divide evenly, the first by rank hold one more; so all agree without talking.
    """
    base, extra = divmod(shards, max(nodes, 1))
    mine = base + (1 if rank < extra else 0)
    return Share(take=max(mine - held, 0), drop=max(held - mine, 0))
