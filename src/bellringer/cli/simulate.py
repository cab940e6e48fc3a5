"""`bellringer simulate`: run an app's schedules in simulated time, with faults."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from bellringer.cli.command_groups import Command
from bellringer.cli.output import format_seconds, output_option, print_fields, print_table, sanitize, to_json

if TYPE_CHECKING:
    from bellringer.simulate import Report, SimulatedJob, SimulationEstimate

MAX_SHOWN: Final = 100  # findings and faults in the text output
ALWAYS: Final = frozenset(
    {"expected", "created", "skipped", "gaps", "pending", "missing", "double", "unexpected", "early"}
)  # counts that are shown even if 0
USUAL: Final = "1s"
PROGRESS_SECONDS: Final = 5.0  # between two lines, if stderr is not a terminal
LONG_SECONDS: Final = 120.0


@click.command(
    cls=Command,
    examples="""
    bellringer simulate app.py --from 2025-01-01 --to 2026-01-01
    bellringer simulate shop.jobs:app --from 2025-01-01 --to 2025-04-01 --outage 2025-03-01T00:00Z/3d --crashes 20
    bellringer simulate app.py --from 2025-01-01 --to 2025-02-01 --duration 5s --duration report=90m --seed 7
    """,
)
@click.argument("target", metavar="APP")
@click.option(
    "--from", "start", required=True, metavar="TIME", help="Start of the simulation; UTC if no offset is given."
)
@click.option("--to", "end", required=True, metavar="TIME", help="End of the simulation (exclusive).")
@click.option(
    "--outage", multiple=True, metavar="FROM/TO", help="Period without schedulers; TO may be a duration. Repeatable."
)
@click.option("--outages", type=click.IntRange(0, 1000), metavar="N", help="Number of additional random outages.")
@click.option(
    "--crashes", type=click.IntRange(0, 1000), metavar="N", help="Number of workers that crash while they hold runs."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed for random faults.")
@click.option(
    "--duration",
    "lengths",
    multiple=True,
    metavar="[JOB=]TIME",
    help="Duration of runs, of all jobs or of one. Repeatable.  [default: 1s]",
)
@click.option("--slots", type=click.IntRange(1, 10_000), default=10, show_default=True, help="Slots per pool.")
@click.option("--execute", is_flag=True, help="Call the real handlers, including their side effects.")
@output_option("table", "json")
def simulate(*, target: str, start: str, end: str, lengths: Sequence[str], output: str, **how: Any) -> None:
    """Simulate the schedules of APP with faults, and check that no occurrence was missed or ran twice.

    The real engine runs on a temporary PostgreSQL with a simulated clock, so that a year takes seconds or minutes.
    Handlers are not called: each run succeeds after its --duration. Faults are outages of all schedulers and crashes
    of workers; by default, 2 outages of 10 minutes to 3 days and 5 crashes. At the end, `bellringer verify` checks
    the whole range; the exit code is 0 if it finds no problem, else 1. Progress is written to stderr.
    """
    from bellringer import telemetry
    from bellringer.simulate import estimate
    from bellringer.simulate import simulate as run_simulation
    from bellringer.worker.app_loader import load_target

    telemetry.configure("text", "error")
    usual, durations = _read_durations(lengths)
    drawn = not how["outage"] and how["outages"] is None and how["crashes"] is None
    app: Any = load_target(target)
    expected = estimate(app, start, end)
    click.echo(f"{expected.occurrences:,} occurrences, about {format_seconds(round(expected.seconds))}", err=True)
    if expected.seconds > LONG_SECONDS:
        click.echo("this takes long; press Ctrl-C to stop, and choose a shorter --from … --to", err=True)
    with _progress(expected) as progress:
        report = run_simulation(app, start, end, duration=usual, durations=durations, progress=progress, **how)
    if output == "json":
        click.echo(to_json(report.document()))
    else:
        _print_report(report, drawn=drawn)
    if not report.clean:
        click.get_current_context().exit(1)


def _read_durations(given: Sequence[str]) -> tuple[str, Mapping[str, str]]:
    """Parse the default duration, and the durations of single jobs."""
    usual, durations = USUAL, {}
    for text in given:
        job, equals, length = text.rpartition("=")
        if equals:
            durations[job] = length
        else:
            usual = length
    return usual, durations


@contextmanager
def _progress(expected: SimulationEstimate) -> Iterator[Callable[[datetime], None]]:
    """Show the progress on stderr: as a live line on a terminal, else as a line every few seconds."""
    began = last = time.monotonic()

    def line(now: datetime) -> str:
        done = min(max((now - expected.start) / (expected.end - expected.start), 0.0), 1.0)
        spent = time.monotonic() - began
        left = spent / done - spent if done > 0.01 else max(expected.seconds - spent, 0.0)
        return f"{done:4.0%}  {now:%Y-%m-%d %H:%M}Z  about {format_seconds(round(left))} left"

    if sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True).status("starting") as status:
            yield lambda now: status.update(line(now))
        return

    def show(now: datetime) -> None:
        nonlocal last
        if time.monotonic() - last >= PROGRESS_SECONDS:
            last = time.monotonic()
            click.echo(f"  {line(now)}", err=True)

    yield show


def _print_report(report: Report, *, drawn: bool) -> None:
    from bellringer.schedule.instants import write_instant
    from bellringer.simulate.faults import DEFAULT_CRASHES, DEFAULT_OUTAGES

    rate = report.occurrences / max(report.seconds, 0.001)
    print_fields(
        {
            "simulated": f"{write_instant(report.start)} – {write_instant(report.end)}",
            "speed": f"{rate:,.0f} occurrences/s, {report.steps:,} instants, {report.attempts:,} attempts",
            "injected": f"{DEFAULT_OUTAGES} outages and {DEFAULT_CRASHES} crashes (the default), seed {report.seed}"
            if drawn
            else f"as requested, seed {report.seed}",
        }
    )
    click.echo()
    _print_jobs(report.jobs)
    _print_faults(report)
    click.echo()
    _print_verify(report)
    click.echo(report.verdict)


def _print_jobs(jobs: Sequence[SimulatedJob]) -> None:
    head = ["JOB", "OCCURRENCES", "RAN", "LATE", "SKIPPED", "MISSED", "CAUGHT UP", "DEAD", "UNFINISHED"]
    rows = [
        [
            job.job,
            *(f"{count:,}" for count in (job.occurrences, job.ran, job.late)),
            ", ".join(f"{count:,} {reason}" for reason, count in job.skipped.items()) or "0",
            *(f"{count:,}" for count in (job.missed, job.caught_up, job.dead, job.unfinished)),
        ]
        for job in jobs
    ]
    print_table(head, rows)


def _print_faults(report: Report) -> None:
    from bellringer.schedule.instants import write_instant

    rows = [
        ["outage", write_instant(outage.start), f"no scheduler for {format_seconds(outage.length.total_seconds())}"]
        for outage in report.outages
    ]
    rows += [["crash", write_instant(c.at), f"{c.lost:,} runs lost"] for c in report.crashes]
    if not rows:
        return
    click.echo()
    print_table(["FAULT", "AT", "WHAT"], sorted(rows, key=lambda row: row[1])[:MAX_SHOWN])
    if len(rows) > MAX_SHOWN:
        click.echo(f"… and {len(rows) - MAX_SHOWN:,} more; use -o json to see all")


def _print_verify(report: Report) -> None:
    for finding in report.findings[:MAX_SHOWN]:
        described = finding.document()
        click.echo(f"{described['finding']:<11}{described['scheduled_for']}  {sanitize(finding.job)}  {finding.detail}")
    if len(report.findings) > MAX_SHOWN:
        click.echo(f"… and {len(report.findings) - MAX_SHOWN:,} more; use -o json to see all")
    sums = report.summary.document()["summary"]
    sums["skipped"] = sum(sums["skipped"].values())
    counts = {key: count for key, count in sums.items() if type(count) is int and key != "jobs"}
    said = (f"{key} {count:,}" for key, count in counts.items() if count or key in ALWAYS)
    print_fields({"verify": ", ".join(said)})
