"""`bellringer simulate`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from bellringer.cli.groups import Command
from bellringer.cli.output import as_json, clean, output_option, print_facts, print_table
from bellringer.cli.times import span

if TYPE_CHECKING:
    from bellringer.simulate import JobSums, Report

SHOWN: Final = 100  # findings and crashes that a person reads
ALWAYS: Final = frozenset(
    {"expected", "ran", "skipped", "gaps", "pending", "missing", "double", "unexpected", "early"}
)  # said, if also 0: what is expected is the sum of the next five
USUAL: Final = "1s"


@click.command(
    cls=Command,
    examples="""
    bellringer simulate app.py --from 2025-01-01 --to 2026-01-01
    bellringer simulate shop.jobs:app --from 2025-01-01 --to 2025-04-01 --outage 2025-03-01T00:00Z/3d --crashes 20
    bellringer simulate app.py --from 2025-01-01 --to 2025-02-01 --duration 5s --duration report=90m --seed 7
    """,
)
@click.argument("target", metavar="APP")
@click.option("--from", "start", required=True, metavar="TIME", help="Where it begins; without a zone, in UTC.")
@click.option("--to", "end", required=True, metavar="TIME", help="Where it ends; this instant is not in it.")
@click.option("--outage", multiple=True, metavar="FROM/TO", help="Time without schedulers; TO may be a length.")
@click.option("--outages", type=click.IntRange(0, 1000), metavar="N", help="So many more, drawn by the seed.")
@click.option("--crashes", type=click.IntRange(0, 1000), metavar="N", help="Workers that die while they hold runs.")
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed draws the same faults.")
@click.option("--duration", "lengths", multiple=True, metavar="[JOB=]TIME", help="How long runs take.  [default: 1s]")
@click.option("--slots", type=click.IntRange(1, 10_000), default=10, show_default=True, help="Slots of each pool.")
@click.option("--execute", is_flag=True, help="Call the handlers, with all that they do.")
@output_option("table", "json")
def simulate(*, target: str, start: str, end: str, lengths: Sequence[str], output: str, **how: Any) -> None:
    """Live through a span of APP's schedules in seconds, with faults, and prove that nothing was missed or doubled.

    The real engine runs on a throwaway PostgreSQL whose clock leaps from instant to instant. Handlers are not
    called: each run succeeds after its --duration. Schedulers go away for a while (--outage, --outages), workers
    die (--crashes); if nothing is said of either, 2 outages of 10 minutes to 3 days and 5 crashes are drawn. At the
    end, `bellringer verify` judges the whole span: the exit code is 0 only if it is clean, else 1.
    """
    from bellringer import telemetry
    from bellringer.simulate import simulate as live
    from bellringer.worker.target import load_target

    telemetry.configure("text", "error")
    usual, durations = _lengths(lengths)
    drawn = not how["outage"] and how["outages"] is None and how["crashes"] is None
    app: Any = load_target(target)
    with _progress() as progress:
        report = live(app, start, end, duration=usual, durations=durations, progress=progress, **how)
    if output == "json":
        click.echo(as_json(report.document()))
    else:
        _tell(report, drawn=drawn)
    if not report.clean:
        click.get_current_context().exit(1)


def _lengths(given: Sequence[str]) -> tuple[str, Mapping[str, str]]:
    """The length for all, and those of single jobs."""
    usual, durations = USUAL, {}
    for text in given:
        job, equals, length = text.rpartition("=")
        if equals:
            durations[job] = length
        else:
            usual = length
    return usual, durations


@contextmanager
def _progress() -> Iterator[Callable[[datetime], None] | None]:
    """A line for a person who waits, and nothing for a pipe."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status("starting") as line:

        def show(now: datetime) -> None:
            line.update(f"{now:%Y-%m-%d %H:%M}Z")

        yield show


def _tell(report: Report, *, drawn: bool) -> None:
    from bellringer.schedule.instants import write_instant
    from bellringer.simulate.faults import CRASHES, OUTAGES

    rate = report.occurrences / max(report.seconds, 0.001)
    print_facts(
        {
            "simulated": f"{write_instant(report.start)} – {write_instant(report.end)}",
            "speed": f"{rate:,.0f} occurrences/s, {report.steps:,} instants, {report.attempts:,} attempts",
            "injected": f"{OUTAGES} outages and {CRASHES} crashes, drawn by seed {report.seed}; nothing was asked for"
            if drawn
            else f"what was asked for, drawn by seed {report.seed} where no times were given",
        }
    )
    click.echo()
    _tell_jobs(report.jobs)
    _tell_faults(report)
    click.echo()
    _tell_verify(report)
    click.echo(report.verdict)


def _tell_jobs(jobs: Sequence[JobSums]) -> None:
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


def _tell_faults(report: Report) -> None:
    from bellringer.schedule.instants import write_instant

    rows = [
        ["outage", write_instant(outage.start), f"nobody ticked for {span(outage.length.total_seconds())}"]
        for outage in report.outages
    ]
    rows += [["crash", write_instant(c.at), f"{c.lost:,} held and lost"] for c in report.crashes]
    if not rows:
        return
    click.echo()
    print_table(["FAULT", "AT", "WHAT"], sorted(rows, key=lambda row: row[1])[:SHOWN])
    if len(rows) > SHOWN:
        click.echo(f"… and {len(rows) - SHOWN:,} more; -o json writes them all")


def _tell_verify(report: Report) -> None:
    for finding in report.findings[:SHOWN]:
        told = finding.document()
        click.echo(f"{told['finding']:<11}{told['scheduled_for']}  {clean(finding.job)}  {finding.detail}")
    if len(report.findings) > SHOWN:
        click.echo(f"… and {len(report.findings) - SHOWN:,} more; -o json writes them all")
    sums = report.summary.document()["summary"]
    sums["skipped"] = sum(sums["skipped"].values())
    counts = {key: count for key, count in sums.items() if type(count) is int and key != "jobs"}
    said = (f"{key} {count:,}" for key, count in counts.items() if count or key in ALWAYS)
    print_facts({"verify": ", ".join(said)})
