"""`python -m bench`: runs one benchmark and prints its figures."""

from __future__ import annotations

from typing import Any

import click

from bellringer.bench.report import measure_in_new_database, print_figures


@click.group()
def bench() -> None:
    """Benchmarks of single properties: fairness, pool tiers, console requests, scale, rolling restarts, restores from
    backups, and a comparison with DBOS.

    \b
    Each benchmark creates its own database, on a temporary embedded PostgreSQL or on the server that BELLRINGER_DSN
    names, and drops it at the end.
    Example: python -m bench fair --herd 100000 --json
    """


@bench.command()
@click.option("--herd", default=100_000, show_default=True, help="Ready runs of the noisy tenant.")
@click.option("--slots", default=20, show_default=True, help="Worker slots.")
@click.option("--task-ms", default=50.0, show_default=True, help="Duration of each run in milliseconds.")
@click.option("--rows", default=1_000_000, show_default=True, help="Ready runs in the queue when claims are timed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def fair(herd: int, slots: int, task_ms: float, rows: int, *, as_json: bool) -> None:
    """Compare ten runs alone with ten runs next to another tenant's backlog; time claims among many tenants."""
    from bench.fair import fair as measure

    print_figures(measure_in_new_database(lambda dsn: measure(dsn, herd, slots, task_ms, rows)), as_json=as_json)


@bench.command()
@click.option("--runs", default=10_000, show_default=True, help="Short runs that are ready at once.")
@click.option("--short", default=200, show_default=True, help="Slots for short runs.")
@click.option("--long", default=4, show_default=True, help="Slots for long runs; all of them are taken.")
@click.option("--task-ms", default=100.0, show_default=True, help="Duration of each short run in milliseconds.")
@click.option("--tries", default=3, show_default=True, help="Measurements of each kind, alternating.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def tiers(runs: int, short: int, long: int, task_ms: float, tries: int, *, as_json: bool) -> None:
    """Compare the waits of short runs with and without half-hour runs in every slot of the long pool."""
    from bench.tiers import tiers as measure

    figures = measure_in_new_database(lambda dsn: measure(dsn, runs, short, long, task_ms, tries))
    print_figures(figures, as_json=as_json)


@bench.command()
@click.option("--jobs", default=1_000_000, show_default=True, help="Jobs in the database.")
@click.option("--runs", default=10_000_000, show_default=True, help="Runs of the last 30 days in the database.")
@click.option("--rounds", default=10, show_default=True, help="Requests of each kind.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def console(jobs: int, runs: int, rounds: int, *, as_json: bool) -> None:
    """Time every request of every console page against a large database; the limit is 300 ms."""
    from bench.console import console as measure

    print_figures(measure_in_new_database(lambda dsn: measure(dsn, jobs, runs, rounds)), as_json=as_json)


@bench.command()
@click.option("--jobs", default=10_000, show_default=True, help="Jobs that are due in half a year.")
@click.option("--settle", default=60.0, show_default=True, help="Seconds to wait before the measurement.")
@click.option("--seconds", default=60.0, show_default=True, help="Length of the measurement.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def idle(jobs: int, settle: float, seconds: float, *, as_json: bool) -> None:
    """Measure the CPU of `bellringer dev` and its PostgreSQL while all jobs sleep."""
    from bench.idle import idle as measure

    print_figures(measure(jobs, settle, seconds), as_json=as_json)


@bench.command()
@click.option("--chain", type=click.IntRange(2, 2_000), default=1_000, show_default=True, help="Nodes in the chain.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def peer(chain: int, *, as_json: bool) -> None:
    """Run a chain of no-op nodes on DBOS, in a database on the same server; compare `bellringer bench workflow`.

    The first call installs DBOS in a virtual environment in the user's cache folder.
    """
    from bench.peer import measure_peer

    async def measure(dsn: str) -> dict[str, Any]:
        return await measure_peer(dsn, chain)

    print_figures(measure_in_new_database(measure), as_json=as_json)


@bench.command()
@click.option("--rate", default=2_000, show_default=True, help="Runs a second: four fifths recurring, one fifth sent.")
@click.option("--schedulers", default=3, show_default=True, help="Schedulers.")
@click.option("--workers", default=3, show_default=True, help="Workers.")
@click.option("--rounds", default=1, show_default=True, help="Times that every process is restarted.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def rolling(rate: int, schedulers: int, workers: int, rounds: int, *, as_json: bool) -> None:
    """Restart every process under load, one by one; print missed and doubled runs and the lateness."""
    from bench.rolling.restarts import restart_all

    figures = measure_in_new_database(
        lambda dsn: restart_all(dsn, rate, schedulers=schedulers, workers=workers, rounds=rounds)
    )
    print_figures(figures, as_json=as_json)


@bench.command()
@click.option("--seconds", default=10.0, show_default=True, help="Seconds of load in each of the three phases.")
@click.option("--jobs", default=30, show_default=True, help="Jobs that are due every second.")
@click.option("--sends", default=50, show_default=True, help="Sends a second.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def restore(seconds: float, jobs: int, sends: int, *, as_json: bool) -> None:
    """Restore a loaded cluster's database from a base backup and WAL; check that nothing accepted is missing.

    The servers have their own data folders, on the distribution's PostgreSQL; BELLRINGER_DSN is ignored. The exit code
    is 1 if a send that was accepted before the recovery point is missing or was not executed, if `verify` finds
    something, if the audit chain is broken, or if a repeated run does not say so.
    """
    from dataclasses import asdict

    from bellringer import telemetry
    from bench.restore import run_drill

    telemetry.configure("text", "error")
    figures = run_drill(seconds, jobs=jobs, sends=sends)
    print_figures(asdict(figures), as_json=as_json)
    if not figures.is_clean:
        raise SystemExit(1)


@bench.command()
@click.option("--factor", default=30.0, show_default=True, help="Divides `for` and range windows of the rules.")
@click.option("--only", multiple=True, metavar="ALERT", help="Alerts to drill. Repeatable.  [default: all]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def alerts(factor: float, only: tuple[str, ...], *, as_json: bool) -> None:
    """Inject the fault of each alert into a cluster with a real Prometheus; print when it fires and clears."""
    import json

    from bench.alerts.drill import AlertTiming, DrillFigures, render, run_drill

    figures = measure_in_new_database(lambda dsn: run_drill(dsn, factor, only=only))
    timings = [AlertTiming(**timing) for timing in figures["timings"]]
    done = DrillFigures(factor=factor, timings=timings, metrics=figures["metrics"])
    click.echo(json.dumps(figures) if as_json else render(done))
    if done.failed:
        raise SystemExit(1)


def _sizes(_ctx: click.Context, _parameter: click.Parameter, given: str) -> list[int]:
    try:
        return [int(size) for size in given.split(",") if size.strip()]
    except ValueError:
        raise click.BadParameter("give numbers, separated by commas") from None


@bench.command()
@click.option(
    "--sizes",
    callback=_sizes,
    default="1000,100000,1000000",
    show_default=True,
    help="Numbers of jobs, and of as many timers. 10,000,000 of each take seven minutes to load, and 12 GB.",
)
@click.option(
    "--history", callback=_sizes, default="1000000", show_default=True, help="Numbers of ended runs; empty: none."
)
@click.option("--rounds", type=click.IntRange(1), default=30, show_default=True, help="Calls of each operation.")
@click.option("--scheduler-seconds", default=20.0, show_default=True, help="Time of the scheduler process; 0: none.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def scale(sizes: list[int], history: list[int], rounds: int, scheduler_seconds: float, *, as_json: bool) -> None:
    """Compare the cost of operations among few and many jobs, timers and ended runs, on the distribution's PostgreSQL.

    The server has its own data folder, .bench/scale, which is deleted at the end; BELLRINGER_DSN is ignored.
    """
    import asyncio
    import json
    from dataclasses import asdict

    from bellringer import telemetry
    from bench import scale as measurement
    from bench.peers.install import FOLDER
    from bench.peers.servers import serve_postgres

    least = measurement.least_size(rounds)
    if any(size < least for size in sizes):
        raise click.UsageError(f"a size is at least {least:,} with {rounds} rounds")
    if any(size < measurement.MIN_HISTORY for size in history):
        raise click.UsageError(f"a history is at least {measurement.MIN_HISTORY:,} runs")
    telemetry.configure("text", "error")
    with serve_postgres(FOLDER / "scale") as postgres:
        figures = asyncio.run(measurement.scale(postgres.admin_dsn, sizes, history, rounds, scheduler_seconds))
    if as_json:
        click.echo(json.dumps(asdict(figures)))
    else:
        measurement.print_scale(figures)


if __name__ == "__main__":
    bench(prog_name="python -m bench")
