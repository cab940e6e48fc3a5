"""What a simulation tells when it is over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any

from bellringer.schedule.instants import write_instant
from bellringer.simulate.faults import Outage
from bellringer.verify import Finding, Summary


@dataclass(frozen=True, slots=True)
class Crash:
    """A worker that died, and how many runs it held."""

    at: datetime
    lost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSums:
    """What became of one job's occurrences; `late` and `caught_up` are among those that have a run."""

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
    """What was simulated, what went wrong on purpose, and what `verify` says of it."""

    start: datetime
    end: datetime
    seed: int
    jobs: Sequence[JobSums]
    outages: Sequence[Outage]
    crashes: Sequence[Crash]
    summary: Summary
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
        """One line: whether it is clean, and what that was proved on."""
        found = "clean" if self.clean else f"not clean, {_count(len(self.findings), 'finding')}"
        what = f"{_count(self.occurrences, 'occurrence')} of {_count(len(self.jobs), 'job')} in {_span(self)}"
        faults = f"{_count(len(self.outages), 'outage')}, {_count(len(self.crashes), 'crash', 'es')}"
        return f"{found}: {what}, {faults}, simulated in {self.seconds:,.0f} s"

    def __str__(self) -> str:
        told = [f"{f.kind} {write_instant(f.scheduled_for)} {f.job}: {f.detail}" for f in self.findings[:20]]
        return "\n".join([self.verdict, *told])

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


def _count(number: float, word: str, plural: str = "s") -> str:
    return f"{number:,} {word}{plural if number != 1 else ''}"


def _span(report: Report) -> str:
    length = report.end - report.start
    if length >= timedelta(days=2):
        return _count(round(length / timedelta(days=1)), "day")
    return _count(round(length / timedelta(hours=1), 1), "hour")
