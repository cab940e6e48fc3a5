"""`python -m bench.peers`: runs the comparison and writes its report; `make bench` is the usual way to call it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any, Final

import click

from bellringer.clock import SystemClock
from bench.peers import machine, report, sessions, summary
from bench.peers.catalog import System, environment, systems
from bench.peers.figures import Failed
from bench.peers.install import FOLDER, HERE, PYTHON_FOLDER, find_node, install_node, install_python
from bench.peers.recorder import FOLDER_VARIABLE
from bench.peers.servers import Postgres, VolatileRedis, create_owner, serve_postgres

PARTIAL_RESULTS: Final = FOLDER / "results.json"
RESULTS: Final = HERE / "results.json"
PAGE: Final = HERE.parents[1] / "docs" / "benchmarks.md"
IMAGES: Final = PAGE.parent / "images"
RUN: Final = {"ready": sessions.run_ready, "timed": sessions.run_timed, "recurring": sessions.run_recurring}


class Sweep:
    """Runs sessions and collects their results."""

    def __init__(self, postgres: Postgres, redis: VolatileRedis, scenarios: Sequence[str]) -> None:
        self._postgres, self._redis, self._scenarios = postgres, redis, scenarios
        self.results: list[dict[str, Any]] = []

    def run(self, system: System, session: str, number: int) -> None:
        """Run one session of one system. A failure is recorded, and the sweep continues."""
        database = f"bench_{system.name.replace('-', '_')}"
        dsn = asyncio.run(self._postgres.create_database(database))
        self._redis.flush()

        def emit(scenario: str, result: dict[str, Any]) -> None:
            self.results.append({"system": system.name, "scenario": scenario, "round": number, **result})
            shown = {name: value for name, value in result.items() if name not in {"count", "cpu_seconds"}}
            click.echo(f"  {number}  {system.name:<16} {scenario:<10} {json.dumps(shown)}")

        begin = time.monotonic()
        try:
            run = sessions.Run(
                system=system,
                dsn=dsn,
                redis=self._redis,
                postgres=self._postgres,
                folder=FOLDER / "records" / system.name,
                emit=emit,
                scenarios=self._scenarios,
                cron_jobs=system.counts.get("S2", sessions.COUNTS["S2"]) if session == "recurring" else 0,
            )
            run.prepare()
            asyncio.run(self._postgres.checkpoint())
            RUN[session](run)
        except Failed as error:
            for scenario in self._missing(system, session, number):
                emit(scenario, {"failed": str(error)})
        finally:
            asyncio.run(self._postgres.drop_database(database))
            click.echo(f"     {system.name} {session}: {time.monotonic() - begin:.0f} s")

    def should_run(self, system: System, session: str, number: int) -> bool:
        if session == "recurring" and not system.recurring:
            return False
        return number == 1 or summary.is_contender(self.results, system.name, sessions.SESSIONS[session])

    def _missing(self, system: System, session: str, number: int) -> list[str]:
        known = {(result["system"], result["round"], result["scenario"]) for result in self.results}
        wanted = [scenario for scenario in sessions.SESSIONS[session] if scenario in self._scenarios]
        return [scenario for scenario in wanted if (system.name, number, scenario) not in known]


def choose(only: str) -> tuple[list[System], list[str]]:
    """Returns the systems and scenarios that ONLY names; all of a kind if it names none of it."""
    known = systems()
    names = [name.strip() for name in only.split(",") if name.strip()]
    scenarios, chosen = [], []
    for name in names:
        found = [scenario for scenario in sessions.SCENARIOS if scenario.upper().startswith(name.upper())]
        if name in known:
            chosen.append(known[name])
        elif found:
            scenarios += found
        else:
            raise click.UsageError(f"{name} is neither a scenario (S1 to S5) nor one of {', '.join(known)}")
    return chosen or list(known.values()), scenarios or list(sessions.SCENARIOS)


@click.group()
def main() -> None:
    """Compare Bellringer with its peers: S1 to S5 on one PostgreSQL and one Redis.

    \b
    python -m bench.peers run --rounds 1 --only bellringer,graphile-worker,pgqueuer
    python -m bench.peers run --rounds 1 --only bellringer,S1,S5
    """


@main.command("run")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Number of rounds.")
@click.option("--only", default="", help="Systems and scenarios to run, such as bellringer,pgqueuer,S1.")
def run_sweep(rounds: int, only: str) -> None:
    """Run the scenarios; without --only, also write docs/benchmarks.md."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the servers are stopped on exit
    chosen, scenarios = choose(only)
    if not only or any(system.runtime == "Python" for system in chosen):  # the plots need it too
        install_python()
    if any(system.runtime == "Node.js" for system in chosen):
        install_node()
        chosen, scenarios = choose(only)  # again, because the commands name the Node.js that was just installed
    with serve_postgres(FOLDER / "postgres") as postgres, VolatileRedis(FOLDER / "redis") as redis:
        asyncio.run(create_owner(postgres))
        document = _measure(postgres, redis, chosen, scenarios, rounds)
    _print_best(document["results"], scenarios)
    path = PARTIAL_RESULTS if only else RESULTS
    path.write_text(json.dumps(document, indent=1) + "\n")
    click.echo(f"  results: {path}")
    if not only:
        _write_report()


def _measure(
    postgres: Postgres, redis: VolatileRedis, chosen: Sequence[System], scenarios: Sequence[str], rounds: int
) -> dict[str, Any]:
    limits = machine.describe(postgres)
    click.echo(f"  machine  {json.dumps(limits)}")
    servers = {"PostgreSQL": asyncio.run(postgres.version()), "Valkey": redis.version}
    sweep = Sweep(postgres, redis, scenarios)
    wanted = [name for name, members in sessions.SESSIONS.items() if set(members) & set(scenarios)]
    for number in range(1, rounds + 1):
        for session in wanted:
            for system in chosen:
                if sweep.should_run(system, session, number):
                    sweep.run(system, session, number)
    return {
        "date": f"{SystemClock().now():%Y-%m-%d}",
        "rounds": rounds,
        "machine": limits,
        "versions": machine.versions(chosen, servers),
        "systems": {
            system.name: {
                "title": system.title,
                "runtime": "Python" if system.runtime == "Bellringer" else system.runtime,
                "store": system.store,
                "settings": system.settings,
            }
            for system in chosen
        },
        "results": sweep.results,
    }


def _print_best(results: Sequence[dict[str, Any]], scenarios: Sequence[str]) -> None:
    for scenario in scenarios:
        best = summary.best_rounds(results, scenario)
        shown = [
            f"{name} {found.result['p50_ms']} / {found.result['p99_ms']} ms"
            if scenario == "S4"
            else f"{name} {found.result['per_second']:,.0f}"
            for name, found in best.items()
        ]
        ratio = summary.compare(results, scenario, "p99_ms" if scenario == "S4" else "per_second").ratio
        click.echo(f"  {scenario:<10} {', '.join(shown)}" + (f"  ratio {ratio:.2f}" if ratio is not None else ""))


@main.command("report")
def write_report() -> None:
    """Write docs/benchmarks.md and its plots again, from the results of the last full run."""
    install_python()
    _write_report()


def _write_report() -> None:
    report.write(json.loads(RESULTS.read_text()), PAGE)
    command = [str(PYTHON_FOLDER / "bin" / "python"), "-m", "bench.peers.plots", str(RESULTS), str(IMAGES)]
    subprocess.run(command, env={**os.environ, **environment()}, check=True)  # noqa: S603 - our own command
    click.echo(f"  report: {PAGE}")


RECORDER_COST: Final = {
    "Python": (
        "import time; from bench.peers.recorder import record\n"
        "record(1, 0, 0); start = time.perf_counter()\n"
        "for number in range(50_000): record(1, number, 0)\n"
        "print((time.perf_counter() - start) / 50_000 * 1e6)"
    ),
    "Node.js": (
        f"const {{ record, flush }} = require({str(HERE / 'node' / 'recorder.js')!r})\n"
        "const start = performance.now()\n"
        "for (let number = 0; number < 50000; number++) record(1, number, 0)\n"
        "flush(); console.log((performance.now() - start) / 50)"
    ),
}


@main.command()
def recorder() -> None:
    """Measure what recording an execution costs, in microseconds."""
    install_node()
    programs = {"Python": [sys.executable, "-c"], "Node.js": [find_node(), "-e"]}
    with tempfile.TemporaryDirectory() as folder:
        variables = {**os.environ, **environment(), FOLDER_VARIABLE: folder}
        for name, program in programs.items():
            command = [*program, RECORDER_COST[name]]
            done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)  # noqa: S603
            click.echo(f"  {name:<8} {float(done.stdout):.2f} µs")


if __name__ == "__main__":
    main(prog_name="python -m bench.peers")
