"""`bellringer bench`: the figures that the README quotes, on your own machine."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from typing import Any

import click


@click.group()
def bench() -> None:
    """Measure the engine on this machine.

    \b
    Each measurement makes a database of its own, on a throwaway embedded PostgreSQL or on the server that
    BELLRINGER_DSN names, and drops it afterwards.
    Example: bellringer bench herd --jobs 100000 --schedules 500 --json
    """


@bench.command()
@click.option("--jobs", default=100_000, show_default=True, help="Jobs that are due at one instant.")
@click.option("--schedules", default=1, show_default=True, help="Different schedules among them.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def herd(jobs: int, schedules: int, *, as_json: bool) -> None:
    """Fire many jobs that are due at one instant.

    \b
    Example: bellringer bench herd --jobs 100000 --schedules 1 --json
    """
    from bellringer.bench.herd import herd as measure

    _tell(_measured(lambda dsn: measure(dsn, jobs, schedules)), as_json=as_json)


@bench.command()
@click.option("--runs", default=100_000, show_default=True, help="Runs that are ready.")
@click.option("--slots", default=200, show_default=True, help="Slots of the worker.")
@click.option(
    "--dispatch", type=click.Choice(["postgresql", "kafka"]), help="kafka: compare both, with 1, 2 and 4 workers."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def drain(runs: int, slots: int, dispatch: str | None, *, as_json: bool) -> None:
    """Execute many ready runs with one worker; or with more, by the database and by Kafka in turn.

    \b
    Kafka is the one that BELLRINGER_DISPATCH names, the one of `bellringer services up`, or one of its own.
    Example: bellringer bench drain --runs 100000 --json
    Example: bellringer bench drain --dispatch kafka --runs 20000 --json
    """
    if dispatch == "kafka":
        from bellringer.bench.dispatch import broker, dispatches

        with broker() as address:
            figures = _measured(lambda dsn: dispatches(dsn, runs, slots, address))
        _tell(figures, as_json=as_json)
        return
    from bellringer.bench.drain import drain as measure

    _tell(_measured(lambda dsn: measure(dsn, runs, slots)), as_json=as_json)


@bench.command()
@click.option("--registered", default=1_000_000, show_default=True, help="Jobs that are not due.")
@click.option("--due", default=10, show_default=True, help="Jobs that are due.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def tick(registered: int, due: int, *, as_json: bool) -> None:
    """Compare a tick beside a thousand registered jobs with one beside many.

    \b
    Example: bellringer bench tick --registered 1000000 --due 10 --json
    """
    from bellringer.bench.herd import tick_beside

    few = _measured(lambda dsn: tick_beside(dsn, 1_000, due))
    many = _measured(lambda dsn: tick_beside(dsn, registered, due))
    ratio = round(many["median_ms"] / few["median_ms"], 3)
    _tell({"few": few, "many": many, "ratio": ratio}, as_json=as_json)


@bench.command()
@click.option("--jobs", default=3_000, show_default=True, help="Jobs to create one by one.")
@click.option("--seconds", default=2.0, show_default=True, help="How long each read is measured.")
@click.option("--connections", default=32, show_default=True, help="Connections at a time.")
@click.option("--bulks", default=3, show_default=True, help="Bulk requests, of 10,000 jobs each.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def api(jobs: int, seconds: float, connections: int, bulks: int, *, as_json: bool) -> None:
    """Call one API process over real connections: create jobs one by one and in bulk, read runs and jobs.

    \b
    Example: bellringer bench api --json
    """
    from bellringer.bench.api import api as measure

    _tell(_measured(lambda dsn: measure(dsn, jobs, seconds, connections, bulks)), as_json=as_json)


@bench.command()
@click.option("--herd", default=100_000, show_default=True, help="Ready runs of the noisy tenant.")
@click.option("--slots", default=20, show_default=True, help="Slots of the worker.")
@click.option("--task-ms", default=50.0, show_default=True, help="How long each run takes.")
@click.option("--rows", default=1_000_000, show_default=True, help="Ready runs beside which a claim is timed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def fair(herd: int, slots: int, task_ms: float, rows: int, *, as_json: bool) -> None:
    """Compare ten runs alone with ten beside another tenant's herd, and claims among 1, 100 and 10,000 tenants.

    \b
    Example: bellringer bench fair --herd 100000 --json
    """
    from bellringer.bench.fair import fair as measure

    _tell(_measured(lambda dsn: measure(dsn, herd, slots, task_ms, rows)), as_json=as_json)


@bench.command()
@click.option("--runs", default=10_000, show_default=True, help="Short runs that are ready at once.")
@click.option("--short", default=200, show_default=True, help="Slots for short runs.")
@click.option("--long", default=4, show_default=True, help="Slots for long runs; all of them are taken.")
@click.option("--task-ms", default=100.0, show_default=True, help="How long each short run takes.")
@click.option("--tries", default=3, show_default=True, help="How often both are measured, in turn.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def tiers(runs: int, short: int, long: int, task_ms: float, tries: int, *, as_json: bool) -> None:
    """Compare the waits of short runs alone with those beside half-hour runs in every long slot.

    \b
    Example: bellringer bench tiers --json
    """
    from bellringer.bench.tiers import tiers as measure

    _tell(_measured(lambda dsn: measure(dsn, runs, short, long, task_ms, tries)), as_json=as_json)


@bench.command()
@click.option("--jobs", default=1_000_000, show_default=True, help="Jobs in the database.")
@click.option("--runs", default=10_000_000, show_default=True, help="Runs of the last 30 days in it.")
@click.option("--rounds", default=10, show_default=True, help="How often each request is made.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def console(jobs: int, runs: int, rounds: int, *, as_json: bool) -> None:
    """Time every request of every page of the console, beside many jobs and runs; the bar is 300 ms.

    \b
    Example: bellringer bench console --jobs 100000 --runs 1000000 --json
    """
    from bellringer.bench.console import console as measure

    _tell(_measured(lambda dsn: measure(dsn, jobs, runs, rounds)), as_json=as_json)


@bench.command("simulate-day")
@click.option("--runs", default=100_000, show_default=True, help="Runs of the whole day.")
@click.option("--seconds", default=40, show_default=True, help="How long the day is.")
@click.option("--workers", default=1, show_default=True, help="Worker processes.")
@click.option("--slots", default=200, show_default=True, help="Slots of each.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def simulate_day(runs: int, seconds: int, workers: int, slots: int, *, as_json: bool) -> None:
    """Replay a day, scaled down: evenly, and a fifth of it at one instant; say what other sizes would need.

    \b
    Example: bellringer bench simulate-day --runs 100000 --seconds 40 --json
    """
    from bellringer.bench.day import day as measure

    dispatch = os.environ.get("BELLRINGER_DISPATCH", "postgresql")
    _tell(_measured(lambda dsn: measure(dsn, runs, seconds, workers, slots, dispatch)), as_json=as_json)


@bench.command()
@click.option("--nodes", type=click.IntRange(1, 100_000), default=10_000, show_default=True, help="Elements of a map.")
@click.option(
    "--chain", type=click.IntRange(2, 2_000), default=1_000, show_default=True, help="Nodes one after another."
)
@click.option("--slots", default=200, show_default=True, help="Slots of the worker.")
@click.option("--peer/--no-peer", default=True, show_default=True, help="Run the chain on DBOS too; installs it once.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def workflow(nodes: int, chain: int, slots: int, *, peer: bool, as_json: bool) -> None:
    """Compare a map and its fan-in with as many plain runs, and the hops of a chain with those of a peer.

    \b
    Example: bellringer bench workflow --json
    Example: bellringer bench workflow --nodes 1000 --chain 100 --no-peer --json
    """
    from bellringer.bench.workflow import workflows as measure

    _tell(_measured(lambda dsn: measure(dsn, nodes, chain, slots, with_peer=peer)), as_json=as_json)


def _measured(measure: Callable[[str], Coroutine[Any, Any, Any]]) -> dict[str, Any]:
    from bellringer import telemetry
    from bellringer.bench import database

    telemetry.configure("text", "error")

    async def once(dsn: str) -> dict[str, Any]:
        made = await database.create(dsn)
        try:
            return asdict(await measure(made))
        finally:
            await database.drop(dsn, made)

    with database.server() as dsn:
        return _runner()(once(dsn))


def _runner() -> Callable[[Coroutine[Any, Any, dict[str, Any]]], dict[str, Any]]:
    try:
        import uvloop
    except ImportError:
        return asyncio.run
    return uvloop.run


def _tell(figures: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(figures))
        return
    _show(figures, "")


def _show(figures: dict[str, Any], prefix: str) -> None:
    for name, value in figures.items():
        words = f"{prefix}{name.replace('_', ' ')}"
        if isinstance(value, dict):
            _show(value, f"{words} ")
        else:
            click.echo(f"  {words:<34} {f'{value:,}' if isinstance(value, int | float) else value}")
