"""Who may fire a shard.

A lease is a right that ends by itself: a shard, its holder, a token that grows with every grant, and a time of
expiry. The database's clock and the expiry say who may *try* for a shard; only the token says who may *write*.
A node that was stopped, or lost the network, and wakes up after its lease was taken still believes in it; its
writes carry the old token, and the database refuses them in the transaction that would have made them.

        node A  ──────── renew ── renew ──✕ stopped ............ wakes ── tick(token 7) ──► refused
        shard 3 ── token 7 ───────────────┤ expires ├── token 8 ─────────────────────────────────────
        node B  ............................ acquire ── tick(token 8) ──► fires

Nodes find each other by their heartbeat rows and share the shards evenly, without talking to each other. Shards may
belong to regions; then the nodes of a region share its shards, and others hold them only while it has no live node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol
from uuid import UUID

from bellringer.errors import InvalidInput

LEASE: Final = timedelta(seconds=5)
_STRETCH: Final = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", re.ASCII)


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
    """What grants leases: the database by default, or an engine that a team trusts already.

    Each grant of a shard has a larger token than all before it, whoever has granted them. Where a keeper cannot be
    asked it raises `Unavailable`; until their time is over, leases hold all the same.
    """

    divides: bool = True  # nodes share the shards; if not, one of them has all

    async def acquire(self, holder: UUID, want: int, among: Collection[int] | None = None) -> Mapping[int, int]:
        """Take free or expired shards: at most so many, and of these; answers their tokens."""
        ...

    async def renew(self, holder: UUID, tokens: Mapping[int, int]) -> frozenset[int]:
        """Those that are still held; a missing one was taken by another, or is nobody's."""
        ...

    async def release(self, holder: UUID, tokens: Mapping[int, int]) -> None:
        """Let go, so that others need not wait for the leases to end."""
        ...

    async def watch(self, freed: Callable[[], None]) -> None:
        """Tell at once when shards become free, as long as this runs. Only a hint, which may come for nothing."""
        ...

    async def close(self) -> None:
        """This node asks no more."""
        ...


class Ledger(LeaseKeeper, Protocol):
    """The rows that fence every write. Whoever else grants a shard, it is the holder once it stands there."""

    async def install(self, holder: UUID, candidates: Mapping[int, int]) -> Mapping[int, int]:
        """Make a holder of whom these shards were granted elsewhere, by numbers that are candidates for the tokens;
        answers the tokens, which are larger than all before."""
        ...

    async def shards(self) -> Sequence[int]:
        """All that there are."""
        ...


class MemoryLeases(LeaseKeeper):
    """For one process: the rules of a keeper, without a server."""

    def __init__(self, shards: int, monotonic: Callable[[], float], lease: timedelta = LEASE) -> None:
        self._tokens = dict.fromkeys(range(shards), 0)
        self._held: dict[int, tuple[UUID, float]] = {}  # whose, and until when
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


@dataclass(frozen=True, slots=True)
class Peer:
    """A live node, and where it stands."""

    node_id: UUID
    region: str | None = None


@dataclass(frozen=True, slots=True)
class Want:
    """So many of these shards, which are not held yet."""

    most: int
    among: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a node lets go, and what it would like to have."""

    drop: tuple[int, ...] = ()
    wants: tuple[Want, ...] = ()


def plan(me: Peer, live: Sequence[Peer], shards: int, regions: Mapping[int, str], held: Collection[int]) -> Plan:
    """What this node should hold: its part of its region's shards, and its part of those that are nobody's.

    Shards of no region, and of regions without a live node, are shared by all. Another region's are given back as
    soon as one of its nodes lives.
    """
    peers = list(live) if any(peer.node_id == me.node_id for peer in live) else [*live, me]
    staffed = {peer.region for peer in peers if peer.region is not None}
    home = [s for s in range(shards) if s in regions and regions[s] == me.region]
    common = [s for s in range(shards) if s not in regions or regions[s] not in staffed]
    neighbours = [peer for peer in peers if peer.region == me.region]
    shares = [_even(group, nodes, me, held) for group, nodes in ((home, neighbours), (common, peers)) if group]
    foreign = set(held).difference(home, common)
    drop = foreign.union(*(dropped for dropped, _ in shares))
    return Plan(tuple(sorted(drop)), tuple(want for _, want in shares if want.most))


def _even(group: Sequence[int], nodes: Sequence[Peer], me: Peer, held: Collection[int]) -> tuple[list[int], Want]:
    """What to let go of a group of shards that these nodes share, and what to take."""
    mine = [s for s in group if s in held]
    rank = [peer.node_id for peer in nodes].index(me.node_id)
    share = fair_share(len(mine), len(group), len(nodes), rank)
    return mine[len(mine) - share.drop :], Want(share.take, tuple(s for s in group if s not in held))


# Regions, as people write them


def spread(regions: Sequence[str], shards: int) -> dict[str, list[int]]:
    """The shards divided evenly among regions, each a stretch of them."""
    edges = [shards * place // len(regions) for place in range(len(regions) + 1)]
    return {region: list(range(edges[place], edges[place + 1])) for place, region in enumerate(regions)}


def read_shards(text: str, shards: int, *, pointer: str = "") -> list[int]:
    """Shards written as "0-31,40"."""
    found: set[int] = set()
    for part in text.split(","):
        match = _STRETCH.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if not first <= last < shards:
            hint = f"write them like 0-31,40; there are 0 to {shards - 1}"
            raise InvalidInput(f"{part.strip()[:40]!r} names no shards", hint=hint, pointer=pointer, code="limit")
        found.update(range(first, last + 1))
    return sorted(found)


def write_shards(shards: Collection[int]) -> str:
    """The other way: stretches of shards, as "0-31,40"."""
    stretches: list[list[int]] = []
    for shard in sorted(shards):
        if stretches and stretches[-1][-1] == shard - 1:
            stretches[-1][1:] = [shard]
        else:
            stretches.append([shard])
    return ",".join("-".join(map(str, stretch)) for stretch in stretches)
