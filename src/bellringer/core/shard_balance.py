"""Shard balance: which shards a scheduler node should hold, drop and take, and lists of shards in text form."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from bellringer.errors import InvalidInput

_SHARD_RANGE: Final = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardShare:
    """How many shards a node should take or drop."""

    take: int = 0
    drop: int = 0


def fair_share(held: int, shards: int, nodes: int, rank: int) -> ShardShare:
    """Return how many shards to take or drop so that `nodes` nodes hold equal shares.

    If the division has a remainder, the nodes with the lowest ranks hold one more. All nodes compute the same result.
    """
    base, extra = divmod(shards, max(nodes, 1))
    mine = base + (1 if rank < extra else 0)
    return ShardShare(take=max(mine - held, 0), drop=max(held - mine, 0))


@dataclass(frozen=True, slots=True)
class Peer:
    """A live node and its region."""

    node_id: UUID
    region: str | None = None


@dataclass(frozen=True, slots=True)
class Want:
    """A request for up to `count` of the shards in `among`."""

    count: int
    among: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rebalance:
    """The shards that a node should drop, and the shards that it should try to take."""

    drop: tuple[int, ...] = ()
    wants: tuple[Want, ...] = ()


def plan_rebalance(
    me: Peer, live: Sequence[Peer], shards: int, regions: Mapping[int, str], held: Collection[int]
) -> Rebalance:
    """Compute which shards this node should drop and take.

    A node holds its share of its own region's shards. Shards without a region, and shards of regions without a live
    node, are divided among all nodes. Shards of another region are dropped as soon as that region has a live node.
    """
    peers = list(live) if any(peer.node_id == me.node_id for peer in live) else [*live, me]
    live_regions = {peer.region for peer in peers if peer.region is not None}
    own = [s for s in range(shards) if s in regions and regions[s] == me.region]
    common = [s for s in range(shards) if s not in regions or regions[s] not in live_regions]
    neighbours = [peer for peer in peers if peer.region == me.region]
    shares = [_share_group(group, nodes, me, held) for group, nodes in ((own, neighbours), (common, peers)) if group]
    foreign = set(held).difference(own, common)
    drop = foreign.union(*(dropped for dropped, _ in shares))
    return Rebalance(tuple(sorted(drop)), tuple(want for _, want in shares if want.count))


def _share_group(
    group: Sequence[int], nodes: Sequence[Peer], me: Peer, held: Collection[int]
) -> tuple[list[int], Want]:
    """Return which shards of a group this node should drop and take, if `nodes` divide the group among them."""
    mine = [s for s in group if s in held]
    rank = [peer.node_id for peer in nodes].index(me.node_id)
    share = fair_share(len(mine), len(group), len(nodes), rank)
    return mine[len(mine) - share.drop :], Want(share.take, tuple(s for s in group if s not in held))


def divide_shards(regions: Sequence[str], shards: int) -> dict[str, list[int]]:
    """Divide all shards evenly among regions. Each region gets a contiguous range."""
    edges = [shards * index // len(regions) for index in range(len(regions) + 1)]
    return {region: list(range(edges[index], edges[index + 1])) for index, region in enumerate(regions)}


def parse_shards(text: str, shards: int, *, pointer: str = "") -> list[int]:
    """Parse a list of shards such as "0-31,40"."""
    found: set[int] = set()
    for part in text.split(","):
        match = _SHARD_RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if not first <= last < shards:
            hint = f"write shards like 0-31,40; valid numbers are 0 to {shards - 1}"
            message = f"{part.strip()[:40]!r} is not a valid shard or range of shards"
            raise InvalidInput(message, hint=hint, pointer=pointer, code="limit")
        found.update(range(first, last + 1))
    return sorted(found)


def format_shards(shards: Collection[int]) -> str:
    """Format a list of shards as ranges, such as "0-31,40"."""
    ranges: list[list[int]] = []
    for shard in sorted(shards):
        if ranges and ranges[-1][-1] == shard - 1:
            ranges[-1][1:] = [shard]
        else:
            ranges.append([shard])
    return ",".join("-".join(map(str, bounds)) for bounds in ranges)
