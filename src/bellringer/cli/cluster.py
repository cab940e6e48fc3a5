"""`bellringer workers` and `bellringer cluster`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from bellringer.cli.cluster_regions import regions
from bellringer.cli.cluster_up import up
from bellringer.cli.connect import with_client
from bellringer.cli.groups import Group
from bellringer.cli.output import LIST, as_json, output_option, print_facts, print_list, print_table
from bellringer.cli.times import clock_time, from_now, span

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.wire import Cluster, Lag, Lease, Node

SILENT = 10.0  # seconds after which a node that says nothing has lost its leases


@click.group(cls=Group, examples="bellringer workers list")
def workers() -> None:
    """Workers: the processes that run tasks."""


@workers.command("list", examples="bellringer workers list -o json")
@output_option(*LIST)
@with_client
def list_workers(client: Client, *, output: str) -> None:
    """List workers."""
    from bellringer.clock import SystemClock

    now = SystemClock().now()
    print_list(
        output,
        client.workers().items,
        head=("ID", "STATE", "NAME", "BUSY", "POOLS", "TASKS", "STARTED", "SEEN", "VERSION"),
        row=lambda worker: (
            str(worker.worker_id),
            worker.state,
            worker.name,
            f"{worker.busy}/{sum(worker.pools.values())}",
            " ".join(f"{pool}×{slots}" for pool, slots in worker.pools.items()),
            str(len(worker.tasks)),
            from_now(worker.started_at, now),
            f"{span(worker.age)} ago",
            worker.version,
        ),
        name=lambda worker: worker.name,
        nothing="no workers; start one with `bellringer worker APP`",
    )


@workers.command("quiet", examples="bellringer workers quiet 7")
@click.argument("worker_id", type=int)
@with_client
def quiet(client: Client, *, worker_id: int) -> None:
    """Let a worker finish what it runs, and claim no more."""
    asked = client.quiet_worker(worker_id)
    click.echo(f"{asked.name} finishes {_running(asked.busy)} and claims no more")


@workers.command("stop", examples="bellringer workers stop 7")
@click.argument("worker_id", type=int)
@with_client
def stop(client: Client, *, worker_id: int) -> None:
    """Let a worker finish what it runs within its grace, and end."""
    asked = client.stop_worker(worker_id)
    click.echo(f"{asked.name} finishes {_running(asked.busy)} within its grace, and ends")


def _running(busy: int) -> str:
    return "its one run" if busy == 1 else f"its {busy} runs"


@click.group(cls=Group, examples="bellringer cluster status")
def cluster() -> None:
    """The installation: its nodes, shards and leases."""


cluster.add_command(up)
cluster.add_command(regions)


@cluster.command(
    "status",
    examples="""
    bellringer cluster status
    bellringer cluster status -o json
    """,
)
@output_option("table", "json")
@with_client
def status(client: Client, *, output: str) -> None:
    """Show who holds what, and how far behind it is."""
    found = client.cluster()
    if output == "json":
        click.echo(as_json(found))
        return
    left = [lease.seconds_left for lease in found.leases if lease.holder is not None]
    shards = found.shards
    print_facts(
        {
            "shards": f"{shards.held} of {shards.total} held, {shards.free} free",
            "leases": f"the next one ends in {span(max(min(left), 0.0))} unless renewed" if left else "none",
            "firing": _firing(found.lag),
            "schema": f"{found.schema.current}, wanted {found.schema.wanted}",
            "clock": f"this server is {abs(found.skew) * 1000:.0f} ms "
            f"{'ahead of' if found.skew >= 0 else 'behind'} the database",
        }
    )
    if found.nodes:
        click.echo()
        _print_nodes(found)
    else:
        click.echo("no nodes; start one with `bellringer server`", err=True)
    for node in found.nodes:
        if node.waits_for and node.age < SILENT:
            click.echo(f"{node.name} waits: {node.waits_for}", err=True)
    if found.lag.pools:
        click.echo()
        _print_pools(found.lag)


def _firing(lag: Lag) -> str:
    if not lag.shards:
        return "in time"
    return f"{span(lag.firing)} behind, in {len(lag.shards)} shard{'s' if len(lag.shards) > 1 else ''}"


def _print_nodes(found: Cluster) -> None:
    from bellringer.clock import SystemClock

    now = SystemClock().now()
    late = {shard.shard: shard.late for shard in found.lag.shards}
    held: defaultdict[str | None, list[Lease]] = defaultdict(list)
    for lease in found.leases:
        held[lease.holder].append(lease)
    print_table(
        ("STATE", "NODE", "REGION", "SHARDS", "TOKENS", "BEHIND", "FIRED", "REFUSED", "STARTED", "SEEN", "VERSION"),
        [
            (
                _state(node),
                node.name,
                node.region or "–",
                str(len(held[node.node_id])),
                _tokens(held[node.node_id]),
                _behind([late.get(lease.shard, 0.0) for lease in held[node.node_id]]),
                str(node.fired),
                str(node.refused),
                from_now(node.started_at, now),
                f"{span(node.age)} ago",
                node.version,
            )
            for node in found.nodes
        ],
    )


def _state(node: Node) -> str:
    if node.age >= SILENT:
        return "gone"
    return "waits" if node.waits_for else "live"


def _tokens(leases: Sequence[Lease]) -> str:
    """The tokens of a node's shards: each grew with every new holder."""
    tokens = [lease.token for lease in leases]
    if not tokens:
        return "–"
    return str(tokens[0]) if min(tokens) == max(tokens) else f"{min(tokens)}–{max(tokens)}"


def _behind(late: Sequence[float]) -> str:
    return span(max(late)) if any(late) else "–"


def _print_pools(lag: Lag) -> None:
    print_table(
        ("POOL", "READY", "OLDEST", "SENT", "UNREAD", "RUNNING"),
        [
            (
                pool.pool,
                str(pool.ready),
                span(pool.oldest) if pool.ready or pool.sent else "–",
                str(pool.sent),
                "–" if pool.unread is None else str(pool.unread),
                str(pool.running),
            )
            for pool in lag.pools
        ],
    )


@cluster.command("shards", examples="bellringer cluster shards")
@output_option(*LIST)
@with_client
def shards(client: Client, *, output: str) -> None:
    """List shards: who may fire them, and when they have something to do."""
    print_list(
        output,
        client.shards().items,
        head=("SHARD", "REGION", "NODE", "TOKEN", "NEXT", "TIMER", "BEHIND"),
        row=lambda shard: (
            str(shard.shard),
            shard.region or "–",
            shard.node or "–",
            str(shard.token),
            clock_time(shard.next_at),
            clock_time(shard.timer_at),
            _behind([shard.late]),
        ),
        name=lambda shard: str(shard.shard),
        nothing="there are no shards",
    )


@cluster.command("leases", examples="bellringer cluster leases -o json")
@output_option(*LIST)
@with_client
def leases(client: Client, *, output: str) -> None:
    """List leases: who holds which shard, and for how long."""
    print_list(
        output,
        client.leases().items,
        head=("SHARD", "REGION", "NODE", "HOLDER", "TOKEN", "ENDS IN"),
        row=lambda lease: (
            str(lease.shard),
            lease.region or "–",
            lease.node or "–",
            lease.holder or "–",
            str(lease.token),
            span(lease.seconds_left) if lease.holder else "–",
        ),
        name=lambda lease: str(lease.shard),
        nothing="there are no leases",
    )


@cluster.command(
    "tz",
    examples="""
    bellringer cluster tz
    bellringer cluster tz -o json
    """,
)
@click.option("--limit", type=click.IntRange(1, 200), default=50, show_default=True, help="The most moves to show.")
@output_option("table", "json")
@with_client
def tz(client: Client, *, limit: int, output: str) -> None:
    """Show by which rules of the time zones schedules are computed, and what new rules have moved."""
    found = client.tz_moves(limit=limit)
    if output == "json":
        click.echo(as_json(found))
        return
    applied = [f"{version} in {count} of {found.shards} shards" for version, count in sorted(found.applied.items())]
    print_facts({"rules": f"{found.version} on this server", "applied": ", ".join(applied) or "nowhere yet"})
    if not found.items:
        click.echo("new rules have moved nothing", err=True)
        return
    click.echo()
    print_table(
        ("RULES", "SCHEDULE", "JOBS", "FROM", "TO"),
        [
            (move.version, move.description, str(move.jobs), clock_time(move.old_next), clock_time(move.new_next))
            for move in found.items
        ],
    )
