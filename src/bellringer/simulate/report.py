"""The report of a simulation, and the queries that fill it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any

from asyncpg import Record

from bellringer.schedule.instants import write_instant
from bellringer.simulate.faults import Outage
from bellringer.store.queries import load
from bellringer.testing.environment import TestEnvironment
from bellringer.verify import Finding, VerifySummary


@dataclass(frozen=True, slots=True)
class Crash:
    """A worker crash, and the number of runs that the worker held."""

    at: datetime
    lost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedJob:
    """The results of one job. `late` and `caught_up` runs are included in the runs."""

    job: str
    occurrences: int
    ran: int  # and succeeded
    late: int
    missed: int  # covered by gaps
    caught_up: int
    dead: int
    unfinished: int  # still to end, or to be caught up, when the simulation was over
    skipped: Mapping[str, int] = field(default_factory=dict)  # skipped or cancelled, by reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The simulated span, the injected faults, and the result of `verify`."""

    start: datetime
    end: datetime
    seed: int
    jobs: Sequence[SimulatedJob]
    outages: Sequence[Outage]
    crashes: Sequence[Crash]
    summary: VerifySummary
    findings: Sequence[Finding]
    attempts: int  # that came to an end
    steps: int
    seconds: float  # real ones

    @property
    def clean(self) -> bool:
        return self.summary.clean

    @property
    def occurrences(self) -> int:
        return sum(job.occurrences for job in self.jobs)

    @property
    def verdict(self) -> str:
        """One line: whether the result is clean, and the size of the simulation."""
        found = "clean" if self.clean else f"not clean, {_format_count(len(self.findings), 'finding')}"
        jobs = _format_count(len(self.jobs), "job")
        what = f"{_format_count(self.occurrences, 'occurrence')} of {jobs} in {_format_span(self)}"
        faults = f"{_format_count(len(self.outages), 'outage')}, {_format_count(len(self.crashes), 'crash', 'es')}"
        return f"{found}: {what}, {faults}, simulated in {self.seconds:,.0f} s"

    def __str__(self) -> str:
        shown = [f"{f.kind} {write_instant(f.scheduled_for)} {f.job}: {f.detail}" for f in self.findings[:20]]
        return "\n".join([self.verdict, *shown])

    def document(self) -> dict[str, Any]:
        return {
            "from": write_instant(self.start),
            "to": write_instant(self.end),
            "seed": self.seed,
            "jobs": [asdict(job) for job in self.jobs],
            "outages": [{"from": write_instant(o.start), "to": write_instant(o.end)} for o in self.outages],
            "crashes": [{"at": write_instant(c.at), "lost": c.lost} for c in self.crashes],
            "findings": [finding.document() for finding in self.findings],
            **self.summary.document(),
            "attempts": self.attempts,
            "steps": self.steps,
            "seconds": round(self.seconds, 2),
            "verdict": self.verdict,
        }


def _format_count(number: float, word: str, plural: str = "s") -> str:
    return f"{number:,} {word}{plural if number != 1 else ''}"


def _format_span(report: Report) -> str:
    length = report.end - report.start
    if length >= timedelta(days=2):
        return _format_count(round(length / timedelta(days=1)), "day")
    return _format_count(round(length / timedelta(hours=1), 1), "hour")


_SQL = load("report", "bellringer.simulate")


async def collect_results(
    stage: TestEnvironment, start: datetime, end: datetime
) -> tuple[list[SimulatedJob], VerifySummary, Sequence[Finding]]:
    """Returns the results of each job, and the summary and findings of `verify` over the whole span."""
    summary, findings = await stage.verify(start, end)
    window = (stage.tenant_id, start, end)
    skipped: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for row in await stage.store.pool.fetch(_SQL.skipped, *window):
        skipped[row["job"]][row["reason"]] = row["count"]
    jobs = []
    for row in await stage.store.pool.fetch(_SQL.sums, *window):
        judged, _ = await stage.verify(start, end, row["job"])
        jobs.append(_summarize_job(row, judged, skipped[row["job"]]))
    return jobs, summary, findings


def _summarize_job(row: Record, judged: VerifySummary, skipped: Mapping[str, int]) -> SimulatedJob:
    return SimulatedJob(
        job=row["job"],
        # A fixed delay names its instants as it goes, so its runs are the only account of them.
        occurrences=max(judged.expected, row["runs"] + judged.gaps + judged.pending),
        ran=row["ran"],
        late=judged.late,
        missed=judged.gaps,
        caught_up=row["caught_up"],
        dead=row["dead"],
        unfinished=row["unfinished"] + judged.pending,
        skipped=skipped,
    )
