"""Skips one upcoming occurrence of a job, and records who asked for it and why."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from bellringer.errors import Conflict, InvalidInput, NotFound, Unavailable
from bellringer.schedule import At, Delay, Schedule
from bellringer.schedule.instants import write_instant
from bellringer.store import job_history, jobs
from bellringer.store.connection_pool import Store
from bellringer.store.job_history import SkipRow
from bellringer.store.jobs import JobRow

_MICROSECOND: Final = timedelta(microseconds=1)
MAX_TRIES: Final = 5


async def skip(
    store: Store, job_id: UUID, at: datetime, *, tenant_id: int, who: str, reason: str | None = None
) -> SkipRow:
    """Skips the occurrence at this instant. Idempotent."""
    for _ in range(MAX_TRIES):
        job = await jobs.get(store, job_id, tenant_id)
        if job is None:
            raise NotFound("there is no such job")
        check_occurrence(job, at)
        done = await job_history.skip(store, job_id, tenant_id, at, job.revision, who, reason)
        if done is None:
            raise NotFound("there is no such job")
        if done == "fired":
            raise _already_fired(at)
        if done == "skipped":
            [kept] = await job_history.upcoming_skips(store, job_id, tenant_id, at - _MICROSECOND, 1)
            return kept
    raise Unavailable("the job is being changed too often to skip an occurrence", hint="try again in a moment")


async def unskip(store: Store, job_id: UUID, at: datetime, *, tenant_id: int) -> None:
    """Removes a skip."""
    done = await job_history.unskip(store, job_id, tenant_id, at)
    if done is None:
        raise NotFound("there is no such skip")
    if done == "fired":
        raise _already_fired(at)


def check_occurrence(job: JobRow, at: datetime) -> None:
    """Raises InvalidInput if the instant is not an occurrence of the job."""
    recurring = [schedule for schedule in job.schedules if not isinstance(schedule, At | Delay)]
    if job.schedules and not recurring:
        raise InvalidInput(
            "this job has no recurring occurrences",
            hint="pause or delete one-shots and jobs with a delay",
            pointer="/at",
            code="not_an_occurrence",
        )
    is_within = (job.starts_at is None or at >= job.starts_at) and (job.ends_at is None or at <= job.ends_at)
    if is_within and any(schedule.next_after(at - _MICROSECOND) == at for schedule in recurring):
        return
    raise InvalidInput(
        f"{write_instant(at)} is not an occurrence of this job",
        hint=_nearest_hint(recurring, at),
        pointer="/at",
        code="not_an_occurrence",
    )


def _nearest_hint(recurring: Sequence[Schedule], at: datetime) -> str:
    following = [moment for schedule in recurring if (moment := schedule.next_after(at)) is not None]
    return f"the next after it is {write_instant(min(following))}" if following else "there is none after it"


def _already_fired(at: datetime) -> Conflict:
    return Conflict(
        f"the time {write_instant(at)} has come already",
        hint="cancel its run instead",
        code="already_fired",
    )
