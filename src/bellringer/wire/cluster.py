"""The cluster as answers tell of it: who holds what, and how far behind it is."""

from __future__ import annotations

from datetime import datetime

from bellringer.wire.answers import Answer


class Node(Answer, frozen=True):
    """One scheduler node."""

    node_id: str
    name: str
    host: str | None  # and its process: only callers of the whole installation are told
    pid: int | None
    version: str
    started_at: datetime
    seen_at: datetime
    age: float
    shards: int
    fired: int
    refused: int
    skew: float
    region: str | None
    waits_for: str | None  # what keeps it from its shards; where that is, is told as its host is


class Lease(Answer, frozen=True):
    """Who may fire a shard; no holder: nobody may just now."""

    shard: int
    holder: str | None
    node: str | None
    token: int
    region: str | None  # whose nodes are to hold it
    seconds_left: float


class Shards(Answer, frozen=True):
    """The shards, counted."""

    total: int
    held: int
    free: int


class Schema(Answer, frozen=True):
    """The database's schema version, and the one that this program wants."""

    current: int
    wanted: int


class ShardLag(Answer, frozen=True):
    """A shard of which a hand or a timer should have struck: for how many seconds the first of them is late."""

    shard: int
    node: str | None
    late: float


class PoolLag(Answer, frozen=True):
    """What a pool has to do: `ready` waits for a worker, `sent` is with a broker and nobody has taken it yet (both
    counted up to 10,000), `oldest` is for how many seconds the first of both has waited. `unread` counts the messages
    that the broker has and no worker has read: more than `sent` where some are stale; null where there is no broker.
    """

    pool: str
    ready: int
    sent: int
    running: int
    oldest: float
    unread: int | None = None


class Lag(Answer, frozen=True):
    """How far behind the cluster is: `firing` is the most that a shard is late, in seconds; `shards` are those."""

    firing: float
    shards: list[ShardLag]
    pools: list[PoolLag]


class Cluster(Answer, frozen=True):
    """Who holds what, and how far behind it all is. `skew` is how many seconds this host is ahead of the database."""

    nodes: list[Node]
    leases: list[Lease]
    shards: Shards
    lag: Lag
    skew: float
    schema: Schema
