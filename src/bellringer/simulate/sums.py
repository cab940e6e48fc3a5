"""Reads what became of a simulated span, job by job, and has it judged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime

from asyncpg import Record

from bellringer.simulate.report import JobSums
from bellringer.store.queries import load
from bellringer.testing.stage import Stage
from bellringer.verify import Finding, Summary

_SQL = load("sums", "bellringer.simulate")


async def judge(stage: Stage, start: datetime, end: datetime) -> tuple[list[JobSums], Summary, Sequence[Finding]]:
    """The sums of each job, and what verify finds over the whole span."""
    summary, findings = await stage.verify(start, end)
    window = (stage.tenant_id, start, end)
    skipped: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for row in await stage.store.pool.fetch(_SQL.skipped, *window):
        skipped[row["job"]][row["reason"]] = row["count"]
    jobs = []
    for row in await stage.store.pool.fetch(_SQL.sums, *window):
        judged, _ = await stage.verify(start, end, row["job"])
        jobs.append(_sums(row, judged, skipped[row["job"]]))
    return jobs, summary, findings


def _sums(row: Record, judged: Summary, skipped: Mapping[str, int]) -> JobSums:
    return JobSums(
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
