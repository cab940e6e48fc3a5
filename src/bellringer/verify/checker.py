"""Verifies the jobs of a tenant, page by page in key order, so memory does not depend on the number of runs."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import asyncpg

from bellringer.errors import InvalidInput, NotFound
from bellringer.schedule.instants import EPOCH, write_instant
from bellringer.store.queries import load
from bellringer.verify.compare import JobChecker, ScheduledRun
from bellringer.verify.expected import ALL_SCHEDULES
from bellringer.verify.findings import Finding, VerifyScope, VerifySummary
from bellringer.verify.revisions import read_catchups, read_spans
from bellringer.verify.stuck_runs import find_stranded, find_unfollowed, find_unstarted

if TYPE_CHECKING:
    Connection = asyncpg.Connection[Any]

_SQL = load("history", "bellringer.verify")
MIN_AGE: Final = timedelta(
    seconds=70
)  # a scheduler may fire an instant up to a minute late, so younger ones are not checked
JOBS_PER_PAGE: Final = 500


async def verify(
    connection: Connection,
    asked: VerifyScope,
    report: Callable[[Finding], None],
    *,
    retention: timedelta | None = None,
    min_age: timedelta | None = None,
    progress: Callable[[int], None] | None = None,
) -> VerifySummary:
    """Verifies every occurrence in the scope that is at least `min_age` old (MIN_AGE by default), calls `report` for
    each finding and `progress` with the number of jobs so far, and returns the summary. Writes nothing.
    """
    async with connection.transaction(readonly=True):  # its settings must not outlive it, least of all in a pooler
        await connection.execute(_SQL.settings)
        age = MIN_AGE if min_age is None else min_age
        return await _verify(connection, asked, report, progress, retention, age)


async def _verify(
    connection: Connection,
    asked: VerifyScope,
    report: Callable[[Finding], None],
    progress: Callable[[int], None] | None,
    retention: timedelta | None,
    min_age: timedelta,
) -> VerifySummary:
    tenant_id = await connection.fetchval(_SQL.tenant, asked.tenant)
    if tenant_id is None:
        raise NotFound(f"there is no tenant {asked.tenant!r}")
    shortest = await connection.fetchval(_SQL.shortest_retention, tenant_id)
    if shortest is not None:
        retention = min(timedelta(seconds=shortest), timedelta.max if retention is None else retention)
    summary = await _verifiable_window(connection, asked, retention, min_age)
    async for jobs in _read_pages(connection, asked, tenant_id, summary):
        await _check_page(connection, jobs, asked, summary, report)
        if progress is not None:
            progress(summary.jobs)
    if asked.job is not None and not summary.jobs:
        raise NotFound(f"there was no job {asked.job!r} in this window", hint="`bellringer jobs list` shows them")
    if asked.unstarted_after is not None:
        before = await connection.fetchval(_SQL.now) - asked.unstarted_after
        await find_unstarted(connection, tenant_id, before, _parse_job(asked.job), summary, report)
    await find_stranded(connection, tenant_id, _parse_job(asked.job), summary, report)
    await find_unfollowed(connection, tenant_id, _parse_job(asked.job), summary, report)
    summary.repeatable = await connection.fetchval(_SQL.repeatable, tenant_id, summary.start, summary.end)
    return summary


async def _verifiable_window(
    connection: Connection, asked: VerifyScope, retention: timedelta | None, min_age: timedelta
) -> VerifySummary:
    """Limits the window to the time whose runs are still stored and which schedulers have had time to process."""
    row = await connection.fetchrow(_SQL.bounds)
    assert row is not None
    now, start, end = row["now"], asked.start, min(asked.end, row["now"] - min_age)
    if row["kept"] is not None:
        start = max(start, row["kept"])
    if retention is not None:
        start = max(start, (now - retention).replace(hour=0, minute=0, second=0, microsecond=0))
    if start >= end:
        raise InvalidInput(
            f"nothing can be judged from {write_instant(start)} to {write_instant(end)}",
            hint=f"the last {min_age.seconds} s are too young, and old runs are dropped; choose a wider window",
        )
    return VerifySummary(start=start, end=end, strict=asked.strict)


async def _read_pages(
    connection: Connection, asked: VerifyScope, tenant_id: int, summary: VerifySummary
) -> AsyncIterator[Sequence[asyncpg.Record]]:
    job_id, name = _parse_job(asked.job)
    after = UUID(int=0)
    while True:
        page = await connection.fetch(
            _SQL.jobs, tenant_id, after, summary.start, summary.end, job_id, name, JOBS_PER_PAGE
        )
        if page:
            yield page
        if len(page) < JOBS_PER_PAGE:
            return
        after = page[-1]["job_id"]


def _parse_job(job: str | None) -> tuple[UUID | None, str | None]:
    try:
        return (UUID(job) if job else None), None
    except ValueError:
        return None, job


async def _check_page(
    connection: Connection, jobs: Sequence[asyncpg.Record], asked: VerifyScope, summary: VerifySummary,
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
    runs = RowFeed(connection, _SQL.runs, judged, (summary.start, -1), *window)
    gaps = RowFeed(connection, _SQL.gaps, judged, (EPOCH, EPOCH, ALL_SCHEDULES), *window)
    for job_id in judged:
        summary.delays += any(span.has_delay and span.since < summary.end for span in spans[job_id])
        behind = catchups.get(job_id, ())
        await _check_job(
            job_id, JobChecker(job_id, names[job_id], spans[job_id], behind, asked, summary, report), runs, gaps
        )
    await runs.close()
    await gaps.close()


async def _check_job(job_id: UUID, judge: JobChecker, runs: RowFeed, gaps: RowFeed) -> None:
    """Feeds the gaps and runs of one job to its checker in time order, a gap before a run of the same instant."""
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
        judge.run(ScheduledRun._make(run[1:]))
        runs.drop()
    judge.finish()


ROWS_PER_PAGE: Final = 5000


class RowFeed:
    """Reads the rows of several jobs, page by page, in key order. No transaction stays open, so vacuum is not
    delayed.

    The key consists of the columns after the job id, as many as `first` has.
    """

    def __init__(
        self, connection: asyncpg.Connection[Any], statement: str, jobs: Sequence[UUID], first: tuple[Any, ...],
        start: datetime, end: datetime,
    ) -> None:  # fmt: skip
        self._connection = connection
        self._statement = statement
        self._jobs = jobs
        self._first = first
        self._window = (start, end)
        self._page: deque[asyncpg.Record] = deque()
        self._key = first  # how far the first of the jobs has been read
        self._more = True

    async def head(self, job_id: UUID) -> asyncpg.Record | None:
        """Returns the next row if it belongs to this job."""
        if not self._page and self._more:
            await self._read()
        return self._page[0] if self._page and self._page[0][0] == job_id else None

    def drop(self) -> None:
        self._page.popleft()

    async def close(self) -> None:
        """Raises RuntimeError if rows are left."""
        if self._page or (self._more and await self._read()):
            raise RuntimeError(f"rows of {self._page[0][0]} came out of order")

    async def _read(self) -> int:
        rest = [self._first] * (len(self._jobs) - 1)
        keys = zip(self._key, *rest, strict=True)
        rows = await self._connection.fetch(self._statement, self._jobs, *keys, *self._window, ROWS_PER_PAGE)
        self._page.extend(rows)
        self._more = len(rows) == ROWS_PER_PAGE
        if rows:
            job_id, *key = rows[-1][: len(self._first) + 1]
            self._jobs = self._jobs[self._jobs.index(job_id) :]
            self._key = tuple(key)
        return len(rows)
