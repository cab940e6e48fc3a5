"""Skip: one coming occurrence of a job does not run, and history says who wanted it so."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from bellringer.errors import Conflict, InvalidInput, NotFound, Unavailable
from bellringer.schedule import At, Delay, Schedule
from bellringer.schedule.instants import write_instant
from bellringer.store import jobs, skips
from bellringer.store.jobs import Job
from bellringer.store.pool import Store
from bellringer.store.skips import Skip

MOMENT: Final = timedelta(microseconds=1)
TRIES: Final = 5


async def skip(
    store: Store, job_id: UUID, at: datetime, *, tenant_id: int, who: str, reason: str | None = None
) -> Skip:
    """Pass over the occurrence of this instant; to say it again changes nothing."""
    for _ in range(TRIES):
        job = await jobs.get(store, job_id, tenant_id)
        if job is None:
            raise NotFound("there is no such job")
        check_occurrence(job, at)
        done = await skips.skip(store, job_id, tenant_id, at, job.revision, who, reason)
        if done is None:
            raise NotFound("there is no such job")
        if done == "fired":
            raise _fired(at)
        if done == "skipped":
            [kept] = await skips.coming(store, job_id, tenant_id, at - MOMENT, 1)
            return kept
    raise Unavailable("the job is changed too often to skip one of its times", hint="try again in a moment")


async def unskip(store: Store, job_id: UUID, at: datetime, *, tenant_id: int) -> None:
    """Let it run after all."""
    done = await skips.unskip(store, job_id, tenant_id, at)
    if done is None:
        raise NotFound("there is no such skip")
    if done == "fired":
        raise _fired(at)


def check_occurrence(job: Job, at: datetime) -> None:
    """Refuse an instant that no schedule of the job names."""
    hands = [schedule for schedule in job.schedules if not isinstance(schedule, At | Delay)]
    if job.schedules and not hands:
        raise InvalidInput(
            "this job has no occurrences to choose from",
            hint="pause or delete a job that is to run once, or after a delay",
            pointer="/at",
            code="not_an_occurrence",
        )
    is_within = (job.starts_at is None or at >= job.starts_at) and (job.ends_at is None or at <= job.ends_at)
    if is_within and any(schedule.next_after(at - MOMENT) == at for schedule in hands):
        return
    raise InvalidInput(
        f"{write_instant(at)} is no occurrence of this job",
        hint=_near(hands, at),
        pointer="/at",
        code="not_an_occurrence",
    )


def _near(hands: Sequence[Schedule], at: datetime) -> str:
    following = [moment for schedule in hands if (moment := schedule.next_after(at)) is not None]
    return f"the next after it is {write_instant(min(following))}" if following else "there is none after it"


def _fired(at: datetime) -> Conflict:
    return Conflict(
        f"the time {write_instant(at)} has come already",
        hint="cancel the run that was born of it",
        code="already_fired",
    )
