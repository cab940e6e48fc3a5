"""Walks over the jobs of a tenant by their keys, and lets each be judged: a page of jobs and of runs at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import asyncpg

from bellringer.errors import InvalidInput, NotFound
from bellringer.schedule.instants import EPOCH, write_instant
from bellringer.store.queries import load
from bellringer.verify.expected import ALL
from bellringer.verify.feed import Feed
from bellringer.verify.findings import Asked, Finding, Summary
from bellringer.verify.judge import Judge, Run
from bellringer.verify.revisions import read_catchups, read_spans

_SQL = load("history", "bellringer.verify")
MARGIN: Final = timedelta(seconds=70)  # a hand may be a minute late and still walk; younger instants are not judged
PAGE: Final = 500

if TYPE_CHECKING:
    Connection = asyncpg.Connection[Any]


async def verify(
    connection: Connection, asked: Asked, report: Callable[[Finding], None], *, retention: timedelta | None = None
) -> Summary:
    """Judge every occurrence of the window, and report what is wrong; answers the sums. Writes nothing."""
    await connection.execute(_SQL.settings)
    tenant_id = await connection.fetchval(_SQL.tenant, asked.tenant)
    if tenant_id is None:
        raise NotFound(f"there is no tenant {asked.tenant!r}")
    summary = await _window(connection, asked, retention)
    async for jobs in _pages(connection, asked, tenant_id, summary):
        await _check(connection, jobs, asked, summary, report)
    if asked.job is not None and not summary.jobs:
        raise NotFound(f"there was no job {asked.job!r} in this window", hint="`bellringer jobs list` shows them")
    return summary


async def _window(connection: Connection, asked: Asked, retention: timedelta | None) -> Summary:
    """The part of the window that can be judged: its runs are still kept, and its hands have had their time."""
    row = await connection.fetchrow(_SQL.bounds)
    assert row is not None
    now, start, end = row["now"], asked.start, min(asked.end, row["now"] - MARGIN)
    if row["kept"] is not None:
        start = max(start, row["kept"])
    if retention is not None:
        start = max(start, (now - retention).replace(hour=0, minute=0, second=0, microsecond=0))
    if start >= end:
        raise InvalidInput(
            f"nothing can be judged from {write_instant(start)} to {write_instant(end)}",
            hint=f"the last {MARGIN.seconds} s are too young, and old runs are dropped; choose a wider window",
        )
    return Summary(start=start, end=end, strict=asked.strict)


async def _pages(
    connection: Connection, asked: Asked, tenant_id: int, summary: Summary
) -> AsyncIterator[Sequence[asyncpg.Record]]:
    job_id, name = _read_job(asked.job)
    after = UUID(int=0)
    while True:
        page = await connection.fetch(_SQL.jobs, tenant_id, after, summary.start, summary.end, job_id, name, PAGE)
        if page:
            yield page
        if len(page) < PAGE:
            return
        after = page[-1]["job_id"]


def _read_job(job: str | None) -> tuple[UUID | None, str | None]:
    try:
        return (UUID(job) if job else None), None
    except ValueError:
        return None, job


async def _check(
    connection: Connection, jobs: Sequence[asyncpg.Record], asked: Asked, summary: Summary,
    report: Callable[[Finding], None],
) -> None:  # fmt: skip
    ids = [row["job_id"] for row in jobs]
    window = (summary.start, summary.end)
    spans = await read_spans(connection, ids, summary.start)
    judged = [job_id for job_id in ids if job_id in spans]
    names = {row["job_id"]: row["name"] for row in jobs}
    summary.jobs += len(ids)
    summary.unreadable += len(ids) - len(judged)
    if not judged:
        return
    catchups = await read_catchups(connection, judged, *window)
    runs = Feed(connection, _SQL.runs, judged, (summary.start, -1), *window)
    gaps = Feed(connection, _SQL.gaps, judged, (EPOCH, EPOCH, ALL), *window)
    for job_id in judged:
        summary.delays += any(span.has_delay and span.since < summary.end for span in spans[job_id])
        behind = catchups.get(job_id, ())
        await _follow(job_id, Judge(job_id, names[job_id], spans[job_id], behind, asked, summary, report), runs, gaps)
    await runs.close()
    await gaps.close()


async def _follow(job_id: UUID, judge: Judge, runs: Feed, gaps: Feed) -> None:
    """Tell a judge of the gaps and runs of its job in the order of time, a gap before a run of the same instant."""
    gap = await gaps.head(job_id)
    while True:
        run = await runs.head(job_id)
        at: datetime | None = run[1] if run is not None else None
        while gap is not None and (at is None or gap[1] <= at):
            judge.gap(*gap[1:])
            gaps.drop()
            gap = await gaps.head(job_id)
        if run is None:
            break
        judge.run(Run._make(run[1:]))
        runs.drop()
    judge.finish()
