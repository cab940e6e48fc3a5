"""The cluster: scheduler nodes, leases, shards, regions, lag, and updates of time zone rules."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from bellringer.wire.models import RequestModel, ResponseModel


class SchedulerNode(ResponseModel, frozen=True):
    """A scheduler node."""

    node_id: str
    name: str
    host: str | None  # host and pid are shown to installation keys only
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
    waits_for: str | None  # why it holds no shards; addresses are shown to installation keys only


class Lease(ResponseModel, frozen=True):
    """The lease of a shard: its holder, which may fire it; null if it is free."""

    shard: int
    holder: str | None
    node: str | None
    token: int
    region: str | None  # the region whose nodes should hold it
    seconds_left: float
    held_seconds: float | None  # since the holder got it; null if it is free, or was granted before an upgrade


class Shards(ResponseModel, frozen=True):
    """Counts of shards."""

    total: int
    held: int
    free: int


class Schema(ResponseModel, frozen=True):
    """The schema version of the database, and the one that this program needs."""

    current: int
    wanted: int


class ShardLag(ResponseModel, frozen=True):
    """A shard with overdue occurrences or timers; `late` is the lateness of the first, in seconds."""

    shard: int
    node: str | None
    late: float


class PoolLag(ResponseModel, frozen=True):
    """The backlog of a pool: `ready` runs wait for a worker, `sent` runs are with a broker and not yet claimed (both
    counted up to 10,000). `oldest` is how many seconds the first of them has waited. `unread` counts the messages of
    the broker that no worker has read, including stale ones; null if there is no broker.
    """

    pool: str
    ready: int
    sent: int
    running: int
    oldest: float
    unread: int | None = None


class Connections(ResponseModel, frozen=True):
    """Database connections of this server: open, idle, and their maximum."""

    open: int
    idle: int
    max: int


class Lag(ResponseModel, frozen=True):
    """The lag of the cluster: `firing` is the maximum lateness of a shard in seconds; `shards` lists late shards."""

    firing: float
    shards: list[ShardLag]
    pools: list[PoolLag]


class Cluster(ResponseModel, frozen=True):
    """The state of the cluster. `skew` is how many seconds the clock of this host is ahead of the database.

    `silent_claims` counts claimed runs whose worker has sent no heartbeat for ten seconds.
    """

    nodes: list[SchedulerNode]
    leases: list[Lease]
    shards: Shards
    lag: Lag
    skew: float
    schema: Schema
    silent_claims: int
    connections: Connections


class Shard(ResponseModel, frozen=True):
    """A shard, a fixed part of the jobs: its holder, and when its next occurrence (`next_at`) or timer is due.

    `late` is the lateness of the first overdue one, in seconds. `due_per_minute` follows from the schedules of its
    jobs; `fired` counts its runs of the last five minutes, up to 10,000 of each tenant.
    """

    shard: int
    holder: str | None
    node: str | None
    token: int
    region: str | None
    next_at: datetime | None
    timer_at: datetime | None
    late: float
    due_per_minute: float
    fired: int


class ShardTable(ResponseModel, frozen=True):
    """All shards. `due_skew` and `fired_skew` are the load of the busiest shard as a multiple of the mean."""

    items: list[Shard]
    due_skew: float
    fired_skew: float
    next_cursor: str | None = None


class Nodes(ResponseModel, frozen=True):
    """Scheduler nodes, oldest first."""

    items: list[SchedulerNode]
    next_cursor: str | None = None


class Leases(ResponseModel, frozen=True):
    """All leases, ordered by shard."""

    items: list[Lease]
    next_cursor: str | None = None


class LeaseMove(ResponseModel, frozen=True):
    """A change of a shard's holder. The cause is `acquired` (it was free), `expired` (the previous holder did not renew
    it in time), `replaced` (an external lease service granted it to another node) or `released` (no holder follows).
    """

    shard: int
    at: datetime
    cause: str
    holder: str | None
    node: str | None
    previous: str | None
    previous_node: str | None
    token: int


class LeaseMoves(ResponseModel, frozen=True):
    """Moves of leases between two instants, the latest first."""

    since: datetime
    until: datetime
    items: list[LeaseMove]
    next_cursor: str | None = None


class LongTransaction(ResponseModel, frozen=True):
    """A session whose transaction has lasted for more than a minute: vacuum cannot clean up after it."""

    pid: int | None  # pid and application are shown to installation keys only
    application: str | None
    state: str  # active, idle in transaction, …; empty if the role of the server may not see it
    seconds: float


class ServerConnections(ResponseModel, frozen=True):
    """Connections of all clients to the database server, and its maximum without reserved ones."""

    used: int
    max: int


class DatabaseHealth(ResponseModel, frozen=True):
    """The state of the database server. Sizes are in bytes, and null if this server may not read them; the disk is
    known only where this server runs beside the database.

    `round_trip_seconds` is the shortest of three round trips. `missing_partitions` counts partitions of today and
    tomorrow that do not exist. `hidden_sessions` counts sessions of other roles whose transactions cannot be seen.
    """

    version: str
    round_trip_seconds: float
    connections: ServerConnections
    database_bytes: int
    wal_bytes: int | None
    disk_bytes: int | None
    disk_free_bytes: int | None
    missing_partitions: int
    long_transactions: list[LongTransaction]
    hidden_sessions: int


class RegionsRequest(RequestModel, frozen=True):
    """The shards of each region, such as "0-31,40". Shards that are not listed belong to no region."""

    regions: dict[str, str]


class Regions(ResponseModel, frozen=True):
    """The shards of each region, such as "0-31,40", and those without a region."""

    regions: dict[str, str]
    others: str


class TzMove(ResponseModel, frozen=True):
    """A schedule whose next occurrence moved with new time zone rules; jobs are counted up to a thousand per shard."""

    version: str
    schedule: dict[str, Any]
    description: str
    jobs: int
    shards: int
    old_next: datetime
    new_next: datetime
    moved_at: datetime


class TzMoves(ResponseModel, frozen=True):
    """Updates of the time zone rules. `version` is that of this server; `applied` counts shards by version."""

    version: str
    applied: dict[str, int]
    shards: int
    items: list[TzMove]
