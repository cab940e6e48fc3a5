"""`bellringer bench`: measures Bellringer on this machine."""

from __future__ import annotations

import os

import click

from bellringer.bench.report import measure_in_new_database, print_figures


@click.group()
def bench() -> None:
    """Measure the engine on this machine.

    \b
    Each measurement creates its own database, on a temporary embedded PostgreSQL or on the server that
    BELLRINGER_DSN names, and drops it at the end.
    Example: bellringer bench herd --jobs 100000 --schedules 500 --json
    """


@bench.command()
@click.option("--jobs", default=100_000, show_default=True, help="Number of jobs that are due at one instant.")
@click.option("--schedules", default=1, show_default=True, help="Number of different schedules.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def herd(jobs: int, schedules: int, *, as_json: bool) -> None:
    """Fire many jobs that are due at one instant.

    \b
    Example: bellringer bench herd --jobs 100000 --schedules 1 --json
    """
    from bellringer.bench.herd import herd as measure

    print_figures(measure_in_new_database(lambda dsn: measure(dsn, jobs, schedules)), as_json=as_json)


@bench.command()
@click.option("--runs", default=100_000, show_default=True, help="Number of ready runs.")
@click.option("--slots", default=200, show_default=True, help="Worker slots.")
@click.option(
    "--dispatch", type=click.Choice(["postgresql", "kafka"]), help="kafka: compare both, with 1, 2 and 4 workers."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def drain(runs: int, slots: int, dispatch: str | None, *, as_json: bool) -> None:
    """Execute many ready runs with one worker; with --dispatch kafka, compare both ways with 1, 2 and 4 workers.

    \b
    Kafka is the broker that BELLRINGER_DISPATCH names, or the one that `make services` started.
    Example: bellringer bench drain --runs 100000 --json
    Example: bellringer bench drain --dispatch kafka --runs 20000 --json
    """
    if dispatch == "kafka":
        from bellringer.bench.dispatch import dispatches, find_broker

        address = find_broker()
        print_figures(measure_in_new_database(lambda dsn: dispatches(dsn, runs, slots, address)), as_json=as_json)
        return
    from bellringer.bench.drain import drain as measure

    print_figures(measure_in_new_database(lambda dsn: measure(dsn, runs, slots)), as_json=as_json)


@bench.command()
@click.option("--registered", default=1_000_000, show_default=True, help="Number of jobs that are not due.")
@click.option("--due", default=10, show_default=True, help="Number of due jobs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def tick(registered: int, due: int, *, as_json: bool) -> None:
    """Compare a tick among a thousand registered jobs with a tick among many.

    \b
    Example: bellringer bench tick --registered 1000000 --due 10 --json
    """
    from bellringer.bench.herd import tick_beside

    few = measure_in_new_database(lambda dsn: tick_beside(dsn, 1_000, due))
    many = measure_in_new_database(lambda dsn: tick_beside(dsn, registered, due))
    ratio = round(many["median_ms"] / few["median_ms"], 3)
    print_figures({"few": few, "many": many, "ratio": ratio}, as_json=as_json)


@bench.command()
@click.option("--jobs", default=3_000, show_default=True, help="Jobs to create one by one.")
@click.option("--seconds", default=2.0, show_default=True, help="Duration of each read measurement in seconds.")
@click.option("--connections", default=32, show_default=True, help="Number of concurrent connections.")
@click.option("--bulks", default=3, show_default=True, help="Bulk requests, of 10,000 jobs each.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def api(jobs: int, seconds: float, connections: int, bulks: int, *, as_json: bool) -> None:
    """Call one API process over real connections: create jobs one by one and in bulk, read runs and jobs.

    \b
    Example: bellringer bench api --json
    """
    from bellringer.bench.api import api as measure

    print_figures(measure_in_new_database(lambda dsn: measure(dsn, jobs, seconds, connections, bulks)), as_json=as_json)


@bench.command("simulate-day")
@click.option("--runs", default=100_000, show_default=True, help="Runs of the whole day.")
@click.option("--seconds", default=40, show_default=True, help="Length of the day in seconds.")
@click.option("--workers", default=1, show_default=True, help="Worker processes.")
@click.option("--slots", default=200, show_default=True, help="Slots of each worker.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def simulate_day(runs: int, seconds: int, workers: int, slots: int, *, as_json: bool) -> None:
    """Replay a scaled-down day with a fifth of its runs at one instant; print what larger loads need.

    \b
    Example: bellringer bench simulate-day --runs 100000 --seconds 40 --json
    """
    from bellringer.bench.simulated_day import day as measure

    dispatch = os.environ.get("BELLRINGER_DISPATCH", "postgresql")
    print_figures(
        measure_in_new_database(lambda dsn: measure(dsn, runs, seconds, workers, slots, dispatch)), as_json=as_json
    )


@bench.command()
@click.option("--nodes", type=click.IntRange(1, 100_000), default=10_000, show_default=True, help="Elements of a map.")
@click.option("--chain", type=click.IntRange(2, 2_000), default=1_000, show_default=True, help="Nodes in the chain.")
@click.option("--slots", default=200, show_default=True, help="Worker slots.")
@click.option("--no-peer", is_flag=True, hidden=True, expose_value=False)  # the peer is `python -m bench peer` now
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def workflow(nodes: int, chain: int, slots: int, *, as_json: bool) -> None:
    """Compare a map and its fan-in with as many plain runs, and measure the hops of a chain.

    \b
    Example: bellringer bench workflow --json
    Example: bellringer bench workflow --nodes 1000 --chain 100 --json
    """
    from bellringer.bench.workflow import workflows as measure

    print_figures(measure_in_new_database(lambda dsn: measure(dsn, nodes, chain, slots)), as_json=as_json)


@bench.command()
@click.option("--jobs", type=int, help="Number of jobs; with the next options, one tier of your own.")
@click.option("--runs-per-day", type=float, help="Runs a day.")
@click.option("--peak", type=float, help="Runs a second at the busiest time.")
@click.option("--requests", type=float, default=0.0, show_default=True, help="API requests a second.")
@click.option("--handler-ms", type=float, default=0.0, show_default=True, help="CPU time of a handler in ms.")
@click.option("--price", "prices", multiple=True, metavar="NAME=USD", help="Replace a list price. Repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def cost(
    jobs: int | None,
    runs_per_day: float | None,
    peak: float | None,
    requests: float,
    handler_ms: float,
    prices: tuple[str, ...],
    *,
    as_json: bool,
) -> None:
    """Print the machines that tiers need and what they cost a month. Measures nothing.

    \b
    Prices are process_vcpu_hour, process_gb_hour, database_vcpu_hour, disk_gb_month and archive_gb_month.
    Example: bellringer bench cost
    Example: bellringer bench cost --jobs 50000 --runs-per-day 5e6 --peak 800 --handler-ms 2
    Example: bellringer bench cost --price database_vcpu_hour=0.06 --json
    """
    import json
    from dataclasses import asdict, replace

    from bellringer.bench.cost import TIERS, CostTier, cost_of, read_prices

    if jobs is not None or runs_per_day is not None or peak is not None:
        if jobs is None or runs_per_day is None or peak is None:
            raise click.UsageError("give --jobs, --runs-per-day and --peak together")
        name = f"{jobs:,} jobs, {peak:,.0f} runs/s"
        own = CostTier(
            name=name, jobs=jobs, runs_per_day=runs_per_day, peak_runs_per_second=peak, requests_per_second=requests
        )
        tiers: tuple[CostTier, ...] = (own,)
    else:
        tiers = TIERS
    try:
        given = read_prices(prices)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    rows = [asdict(cost_of(replace(tier, handler_ms=handler_ms), prices=given)) for tier in tiers]
    if as_json:
        click.echo(json.dumps(rows))
        return
    click.echo("  ".join([f"{'figure':<22}", *(f"{row['tier']:>26}" for row in rows)]))
    for figure in [name for name in rows[0] if name != "tier"]:
        click.echo("  ".join([f"{figure.replace('_', ' '):<22}", *(f"{row[figure]:>26,}" for row in rows)]))
