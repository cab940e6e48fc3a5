"""`bellringer workers` and `bellringer cluster`: processes, shards, leases and regions."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from bellringer.cli.command_groups import CommandGroup, fail
from bellringer.cli.connect import with_client
from bellringer.cli.options import fetch_pages, limit_option
from bellringer.cli.output import (
    LIST,
    format_age,
    format_bytes,
    format_local,
    format_relative,
    format_seconds,
    output_option,
    print_fields,
    print_list,
    print_table,
    to_json,
)

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.wire.cluster import Cluster, Lag, Lease, SchedulerNode


NODE_SILENT_SECONDS = 10.0  # a node without heartbeats for this long has lost its leases


@click.group(cls=CommandGroup, examples="bellringer workers list")
def workers() -> None:
    """Manage workers: the processes that run tasks."""


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
            format_relative(worker.started_at, now),
            format_age(worker.age),
            worker.version,
        ),
        name=lambda worker: worker.name,
        empty="no workers; start one with `bellringer worker APP`",
    )


@workers.command("quiet", examples="bellringer workers quiet 7")
@click.argument("worker_id", type=int)
@with_client
def quiet(client: Client, *, worker_id: int) -> None:
    """Tell a worker to claim no more runs. Its current runs finish."""
    asked = client.quiet_worker(worker_id)
    click.echo(f"{asked.name} finishes {_running(asked.busy)} and claims no more")


@workers.command("stop", examples="bellringer workers stop 7")
@click.argument("worker_id", type=int)
@with_client
def stop(client: Client, *, worker_id: int) -> None:
    """Tell a worker to finish its runs within its grace period, and exit."""
    asked = client.stop_worker(worker_id)
    click.echo(f"{asked.name} finishes {_running(asked.busy)} within its grace period, and exits")


def _running(busy: int) -> str:
    return "its 1 run" if busy == 1 else f"its {busy} runs"


@click.group(cls=CommandGroup, examples="bellringer cluster status")
def cluster() -> None:
    """Inspect the cluster: nodes, shards, leases and regions; or start one on this machine."""


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
    """Show nodes, their shards, and how far behind they are."""
    found = client.cluster()
    if output == "json":
        click.echo(to_json(found))
        return
    left = [lease.seconds_left for lease in found.leases if lease.holder is not None]
    shards = found.shards
    print_fields(
        {
            "shards": f"{shards.held} of {shards.total} held, {shards.free} free",
            "leases": f"the next expires in {format_seconds(max(min(left), 0.0))} unless renewed" if left else "none",
            "firing": _firing(found.lag),
            "claims": f"{found.silent_claims:,} without a heartbeat of their worker" if found.silent_claims else "",
            "database": f"{found.connections.open} of {found.connections.max} connections of this server open, "
            f"{found.connections.idle} idle",
            "schema": f"{found.schema.current}, needed {found.schema.wanted}",
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
        if node.waits_for and node.age < NODE_SILENT_SECONDS:
            click.echo(f"{node.name} is waiting: {node.waits_for}", err=True)
    if found.lag.pools:
        click.echo()
        _print_pools(found.lag)


def _firing(lag: Lag) -> str:
    if not lag.shards:
        return "on time"
    return f"{format_seconds(lag.firing)} behind, in {len(lag.shards)} shard{'s' if len(lag.shards) > 1 else ''}"


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
                format_relative(node.started_at, now),
                format_age(node.age),
                node.version,
            )
            for node in found.nodes
        ],
    )


def _state(node: SchedulerNode) -> str:
    if node.age >= NODE_SILENT_SECONDS:
        return "gone"
    return "waits" if node.waits_for else "live"


def _tokens(leases: Sequence[Lease]) -> str:
    """The range of fencing tokens of a node's shards; a token increases with every new holder."""
    tokens = [lease.token for lease in leases]
    if not tokens:
        return "–"
    return str(tokens[0]) if min(tokens) == max(tokens) else f"{min(tokens)}–{max(tokens)}"


def _behind(late: Sequence[float]) -> str:
    return format_seconds(max(late)) if any(late) else "–"


def _print_pools(lag: Lag) -> None:
    print_table(
        ("POOL", "READY", "OLDEST", "SENT", "UNREAD", "RUNNING"),
        [
            (
                pool.pool,
                str(pool.ready),
                format_seconds(pool.oldest) if pool.ready or pool.sent else "–",
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
    """List shards with their holders, next due times and load: occurrences per minute, and runs of five minutes."""
    found = client.shards()
    print_list(
        output,
        found.items,
        head=("SHARD", "REGION", "NODE", "TOKEN", "NEXT", "TIMER", "BEHIND", "DUE/MIN", "FIRED"),
        row=lambda shard: (
            str(shard.shard),
            shard.region or "–",
            shard.node or "–",
            str(shard.token),
            format_local(shard.next_at),
            format_local(shard.timer_at),
            _behind([shard.late]),
            f"{shard.due_per_minute:,.1f}",
            f"{shard.fired:,}",
        ),
        name=lambda shard: str(shard.shard),
        empty="no shards",
    )
    if output == "table" and found.fired_skew:
        click.echo(f"the busiest shard has {found.fired_skew:.1f} times the mean of recent runs", err=True)


@cluster.command("leases", examples="bellringer cluster leases -o json")
@output_option(*LIST)
@with_client
def leases(client: Client, *, output: str) -> None:
    """List leases: the holder of each shard, and the time until expiry."""
    print_list(
        output,
        client.leases().items,
        head=("SHARD", "REGION", "NODE", "HOLDER", "TOKEN", "EXPIRES IN"),
        row=lambda lease: (
            str(lease.shard),
            lease.region or "–",
            lease.node or "–",
            lease.holder or "–",
            str(lease.token),
            format_seconds(lease.seconds_left) if lease.holder else "–",
        ),
        name=lambda lease: str(lease.shard),
        empty="no leases",
    )


@cluster.command(
    "moves",
    examples="""
    bellringer cluster moves
    bellringer cluster moves --hours 24 -o json
    """,
)
@click.option("--hours", type=click.IntRange(1, 48), default=6, show_default=True, help="How far back.")
@limit_option
@output_option(*LIST)
@with_client
def moves(client: Client, *, hours: int, limit: int, output: str) -> None:
    """List changes of shard holders, the latest first."""
    from bellringer.clock import SystemClock

    now = SystemClock().now()
    print_list(
        output,
        fetch_pages(client.lease_moves, limit, output=output, hours=hours),
        head=("SHARD", "WHEN", "CAUSE", "FROM", "TO", "TOKEN"),
        row=lambda move: (
            str(move.shard),
            format_relative(move.at, now),
            move.cause,
            move.previous_node or move.previous or "–",
            move.node or move.holder or "–",
            str(move.token),
        ),
        name=lambda move: str(move.shard),
        empty=f"no shard has moved in the last {'hour' if hours == 1 else f'{hours} hours'}",
    )


@cluster.command("database", examples="bellringer cluster database")
@output_option("table", "json")
@with_client
def database(client: Client, *, output: str) -> None:
    """Show the health of the database server: connections, sizes, round trip, old transactions."""
    found = client.database_health()
    if output == "json":
        click.echo(to_json(found))
        return
    oldest = found.long_transactions[0] if found.long_transactions else None
    free, size = found.disk_free_bytes, found.disk_bytes
    print_fields(
        {
            "server": f"PostgreSQL {found.version}",
            "round trip": format_seconds(found.round_trip_seconds),
            "connections": f"{found.connections.used} of {found.connections.max} used",
            "database": format_bytes(found.database_bytes),
            "wal": "unknown" if found.wal_bytes is None else format_bytes(found.wal_bytes),
            "disk": "" if free is None or size is None else f"{format_bytes(free)} of {format_bytes(size)} free",
            "partitions": f"{found.missing_partitions} missing" if found.missing_partitions else "complete",
            "long transactions": (
                f"{len(found.long_transactions)}, the oldest for {format_seconds(oldest.seconds)}"
                f" ({oldest.application or 'another client'}, {oldest.state or 'state hidden'})"
                if oldest
                else "none"
            ),
        }
    )


@cluster.command(
    "tz",
    examples="""
    bellringer cluster tz
    bellringer cluster tz -o json
    """,
)
@click.option(
    "--limit", type=click.IntRange(1, 200), default=50, show_default=True, help="Maximum number of shard moves to show."
)
@output_option("table", "json")
@with_client
def tz(client: Client, *, limit: int, output: str) -> None:
    """Show time zone rules and the occurrences moved by updates."""
    found = client.tz_moves(limit=limit)
    if output == "json":
        click.echo(to_json(found))
        return
    applied = [f"{version} in {count} of {found.shards} shards" for version, count in sorted(found.applied.items())]
    print_fields({"rules": f"{found.version} on this server", "applied": ", ".join(applied) or "none"})
    if not found.items:
        click.echo("no occurrence has moved", err=True)
        return
    click.echo()
    print_table(
        ("RULES", "SCHEDULE", "JOBS", "FROM", "TO"),
        [
            (move.version, move.description, str(move.jobs), format_local(move.old_next), format_local(move.new_next))
            for move in found.items
        ],
    )


@cluster.command(
    "regions",
    examples="""
    bellringer cluster regions
    bellringer cluster regions eu us
    bellringer cluster regions eu=0-31 us=32-63
    bellringer cluster regions --none
    """,
)
@click.argument("given", nargs=-1, metavar="[NAME[=SHARDS]]...")
@click.option("--none", "clear", is_flag=True, help="Remove all regions.")
@output_option("table", "json")
@with_client
def regions(client: Client, *, given: tuple[str, ...], clear: bool, output: str) -> None:
    """Show the shards of each region, or assign shards to regions.

    The nodes of a region (BELLRINGER_REGION) share its shards; other nodes take them over only if the region has no
    live node. Names without shards divide all shards evenly. Shards that are not listed belong to no region.
    """
    if clear and given:
        fail("--none and regions are both given", "give one of them")
    found = client.put_regions(read_regions(client, given)) if given or clear else client.regions()
    if output == "json":
        click.echo(to_json(found))
        return
    nobody = [("–", found.others)] if found.others else []
    print_table(("REGION", "SHARDS"), [*sorted(found.regions.items()), *nobody])


def read_regions(client: Client, given: tuple[str, ...]) -> dict[str, str]:
    from bellringer.core.shard_balance import divide_shards, format_shards

    pairs = [text.partition("=") for text in given]
    if len({name for name, _, _ in pairs}) < len(pairs):
        fail("a region is given twice", "list all of its shards together, such as eu=0-31,40")
    if any(sign for _, sign, _ in pairs):
        if not all(sign for _, sign, _ in pairs):
            fail("some regions are given without shards", "give shards for all regions, or for none")
        return {name: shards for name, _, shards in pairs}
    total = client.cluster().shards.total
    return {name: format_shards(shards) for name, shards in divide_shards(given, total).items()}


DEMO: Final = "demo"
ENGINES: Final = ("kafka", "etcd", "redis")


def _engines(_ctx: click.Context, _parameter: click.Parameter, given: str) -> tuple[str, ...]:
    named = {name.strip() for name in given.split(",") if name.strip()}
    if unknown := sorted(named - set(ENGINES)):
        fail(
            f"there is no engine {unknown[0]!r}", f"the engines are {', '.join(ENGINES)}; PostgreSQL is always included"
        )
    return tuple(name for name in ENGINES if name in named)


@cluster.command(
    "up",
    examples="""
    bellringer cluster up
    bellringer cluster up --nodes 3 --workers 4 --engines kafka,etcd,redis
    bellringer cluster up --app shop.jobs:app --no-restart --keep
    """,
)
@click.option(
    "--nodes", type=click.IntRange(1, 16), default=3, show_default=True, help="Number of nodes (API and scheduler)."
)
@click.option("--workers", type=click.IntRange(1, 32), default=4, show_default=True, help="Number of workers.")
@click.option(
    "--engines",
    default="",
    callback=_engines,
    metavar="NAMES",
    help="Comma-separated backends to use: kafka, etcd, redis.  [default: PostgreSQL only]",
)
@click.option("--app", default=DEMO, show_default=True, metavar="APP", help="App to run: app.py, module:app, or demo.")
@click.option("--demo", "app", flag_value=DEMO, help="Same as --app demo: the jobs of a small shop.")
@click.option(
    "--port", type=int, help="Port of the first node; others use the next ports (0 = random).  [default: 8700]"
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".cluster"),
    show_default=True,
    help="Folder for data and logs.",
)
@click.option("--keep", is_flag=True, help="Keep the data for the next start.")
@click.option("--restart/--no-restart", default=True, help="Restart processes that die.  [default: restart]")
def up(
    *,
    nodes: int,
    workers: int,
    engines: tuple[str, ...],
    app: str,
    port: int | None,
    folder: Path,
    keep: bool,
    restart: bool,
) -> None:
    """Run a whole cluster on this machine, to try it out.

    It consists of nodes, workers, and the backends of --engines. The servers of these backends are those of
    BELLRINGER_DISPATCH (kafka), BELLRINGER_COORDINATION (etcd) and BELLRINGER_CACHE (redis), or those that
    `make services` started. Set BELLRINGER_DSN to use your own database. Kill processes as you like: the first lines
    of the output show their ids. Ctrl-C stops the cluster.
    """
    from importlib.metadata import version

    from bellringer.cli.listening_socket import listen, url_of
    from bellringer.config import load_config
    from bellringer.dev.live_output import Painter
    from bellringer.dev.local_cluster import ClusterPlan, LocalCluster, lock_folder
    from bellringer.dev.local_servers import find_server

    config = load_config({"port": port}, environ=os.environ)
    configured = {"kafka": config.dispatch, "etcd": config.coordination, "redis": config.cache}
    servers = {name: find_server(name, configured[name]) for name in engines}
    folder, paint = folder.absolute(), Painter(sys.stdout)
    with ExitStack() as undo:
        fresh = undo.enter_context(lock_folder(folder, paint))
        ports = [config.port + number if config.port else 0 for number in range(nodes)]
        listening = [undo.enter_context(listen(config.host, each)) for each in ports]
        plan = ClusterPlan(
            folder=folder,
            listening=listening,
            urls=[url_of(config.host, each) for each in listening],
            workers=workers,
            target="bellringer.demo:app" if app == DEMO else app,
            version=version("bellringer"),
            servers=servers,
            dsn=config.dsn,
            own_keys=bool(config.secret_keys),
            own_networks=bool(config.egress_allow),
            auth=config.auth or "none",
            restarts=restart,
            fresh=fresh,
            keep=keep,
        )
        code = LocalCluster(plan, paint, os.environ).run()
    click.get_current_context().exit(code)
