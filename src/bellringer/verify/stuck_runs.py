"""Finds runs that exist but do not make progress, runs that were cancelled without a request, and runs that did not
start the jobs that start after them.

The comparison with the schedules cannot find these: a queued or running run counts as accounted for. This module
also covers sends, which no schedule names.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

import asyncpg

from bellringer.core.run_blocked_flags import Blocked
from bellringer.schedule.instants import EPOCH, write_instant
from bellringer.store.queries import load
from bellringer.verify.findings import Finding, FindingKind, VerifySummary

if TYPE_CHECKING:
    Connection = asyncpg.Connection[Any]

_SQL = load("history", "bellringer.verify")
RUNS_PER_PAGE: Final = 2_000
_DETAIL: Final = {
    "worker_gone": "claimed by a worker that is gone, and not returned to the queue since",
    "unconfirmed": "taken by a live worker that does not confirm that it executes it, since",
    "not_taken": "sent to a broker, and not taken from it since",
}


async def find_stranded(
    connection: Connection,
    tenant_id: int,
    job: tuple[UUID | None, str | None],
    summary: VerifySummary,
    report: Callable[[Finding], None],
) -> None:
    """Reports stranded runs of any time, and unrequested cancels in the window. `job` is an id or a name."""
    for row in await connection.fetch(_SQL.stranded, tenant_id, *job):
        summary.stranded += 1
        report(_finding(FindingKind.STRANDED, row, f"{_DETAIL[row['reason']]} {write_instant(row['since'])}"))
    place: tuple[datetime, UUID] = (EPOCH, UUID(int=0))
    while True:
        rows = await connection.fetch(
            _SQL.unrequested, tenant_id, *place, summary.start, summary.end, *job, RUNS_PER_PAGE
        )
        for row in rows:
            summary.unrequested += 1
            report(_finding(FindingKind.UNREQUESTED, row, "it was cancelled while it ran, and no request is recorded"))
        if len(rows) < RUNS_PER_PAGE:
            return
        place = (rows[-1]["finished_at"], rows[-1]["job_id"])


async def find_unfollowed(
    connection: Connection,
    tenant_id: int,
    job: tuple[UUID | None, str | None],
    summary: VerifySummary,
    report: Callable[[Finding], None],
) -> None:
    """Reports runs of upstream jobs in the window that did not start a follower. `job` is the follower's id or name."""
    for follower in await connection.fetch(_SQL.followers, tenant_id, *job):
        place: tuple[datetime, int] = (EPOCH, 0)
        while True:
            rows = await connection.fetch(
                _SQL.unfollowed, follower["job_id"], *place, summary.start, summary.end, RUNS_PER_PAGE
            )
            for row in rows:
                summary.unfollowed += 1
                detail = f"{follower['upstream']} ended as {row['ends_as']}, and this job was not started"
                report(
                    Finding(
                        kind=FindingKind.UNFOLLOWED,
                        job_id=follower["job_id"],
                        job=follower["job"],
                        scheduled_for=row["scheduled_for"],
                        detail=detail,
                    )
                )
            if len(rows) < RUNS_PER_PAGE:
                break
            place = (rows[-1]["scheduled_for"], rows[-1]["slot"])


def _finding(kind: FindingKind, row: asyncpg.Record, detail: str) -> Finding:
    return Finding(
        kind=kind, job_id=row["job_id"], job=row["job"], scheduled_for=row["scheduled_for"], detail=detail
    )  # fmt: skip


class UnstartedRun(NamedTuple):
    """A run without an attempt that neither an operator nor an earlier run of its job holds back."""

    job_id: UUID
    scheduled_for: datetime
    slot: int
    available_at: datetime
    blocked: int
    job: str | None  # None: a send
    task: str
    pool: str
    is_served: bool  # a live worker serves its pool …
    is_known: bool  # … and one of these knows its task


async def find_unstarted(
    connection: Connection,
    tenant_id: int,
    before: datetime,
    job: tuple[UUID | None, str | None],
    summary: VerifySummary,
    report: Callable[[Finding], None],
) -> None:
    """Reports runs of the window that could have started before `before` and have not. `job` is an id or a name.

    Runs that wait on purpose are left out; the SQL statement lists the cases.
    """
    place: tuple[UUID, datetime, int] = (UUID(int=0), EPOCH, 0)
    while True:
        rows = await connection.fetch(
            _SQL.unstarted, tenant_id, *place, before, summary.start, summary.end, *job, RUNS_PER_PAGE
        )
        for row in rows:
            run = UnstartedRun(*row)
            summary.unstarted += 1
            report(
                Finding(
                    kind=FindingKind.UNSTARTED,
                    job_id=run.job_id,
                    job=run.job or run.task,
                    scheduled_for=run.scheduled_for,
                    detail=_detail(run),
                )
            )
        if len(rows) < RUNS_PER_PAGE:
            return
        last = UnstartedRun(*rows[-1])
        place = (last.job_id, last.scheduled_for, last.slot)


def _detail(run: UnstartedRun) -> str:
    since = f"not started since {write_instant(run.available_at)}"
    if not run.is_served:
        return f"{since}: no live worker serves pool {run.pool}"
    if not run.is_known:
        return f"{since}: no live worker of pool {run.pool} knows the task {run.task}"
    if run.blocked & Blocked.SENT:
        return f"{since}: it was sent to a broker, and no worker of pool {run.pool} has taken it"
    return f"{since}: no worker of pool {run.pool} has taken it"
