"""Forecast: what is to come for a tenant, and what a change would make of a job. Nothing is changed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from bellringer.errors import Conflict
from bellringer.forecasting import Crowd, Difference, Proposal, Tally, Window, difference, fires, proposals, tally
from bellringer.jobs import Definition
from bellringer.payload import check_payload
from bellringer.schedule import Schedule, outlook
from bellringer.schedule.instants import END
from bellringer.store import forecast as stored
from bellringer.store import jobs
from bellringer.store.forecast import Size
from bellringer.store.jobs import Job
from bellringer.store.names import Names
from bellringer.store.pool import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Fires to come. `counted_at`: when the jobs were counted; `timers_until`: later timers are too many to count."""

    tally: Tally
    proposals: Sequence[Proposal]
    counted_at: datetime
    left_out: int
    timers_until: datetime | None


async def forecast(store: Store, names: Names, window: Window, *, tenant_id: int) -> Forecast:
    """What a tenant's active jobs and timers fire in a window.

    Bounds of single jobs (`starts_at`, `ends_at`) and freezes are not heeded; of a fixed delay only the next is known.
    """
    found = await stored.sizes(store, tenant_id)
    waiting = await stored.timers(store, tenant_id, window.start, window.end)
    known = await names.schedules({size.schedule_id for size in found.sizes})
    crowds = list(_crowds(found.sizes, known))
    # In a thread: it may take a second, and the scheduler may live on this loop.
    counted, spread = await asyncio.to_thread(_count, crowds, window, waiting.fires)
    return Forecast(
        tally=counted,
        proposals=spread,
        counted_at=found.counted_at,
        left_out=found.total - sum(crowd.jobs for crowd in crowds) + counted.left_out,
        timers_until=waiting.until,
    )


def _count(
    crowds: Sequence[Crowd], window: Window, timers: Mapping[tuple[str, datetime], int]
) -> tuple[Tally, list[Proposal]]:
    counted = tally(crowds, window, timers)
    return counted, proposals(counted)


def _crowds(sizes: Iterable[Size], known: Mapping[int, Schedule]) -> Iterator[Crowd]:
    """The jobs of each schedule, those with a jitter apart; a schedule that cannot be read here has none."""
    prompt: dict[int, dict[str, int]] = {}
    spread: dict[int, dict[str, int]] = {}
    jitters: dict[int, timedelta] = {}
    for size in sizes:
        if size.members > size.jittered:
            prompt.setdefault(size.schedule_id, {})[size.pool] = size.members - size.jittered
        if size.jittered:
            spread.setdefault(size.schedule_id, {})[size.pool] = size.jittered
            jitters[size.schedule_id] = max(size.jitter, jitters.get(size.schedule_id, size.jitter))
    for number, pools in prompt.items():
        if number in known:
            yield Crowd(schedule=known[number], pools=pools)
    for number, pools in spread.items():
        if number in known:
            yield Crowd(schedule=known[number], pools=pools, jitter=jitters[number])


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What a change would do: the definition as it would be taken, and the fires before and after it."""

    definition: Definition
    difference: Difference
    next_before: datetime | None
    next_after: datetime | None
    warnings: Sequence[tuple[str, str]]


async def dry_run(
    store: Store, job: Job, before: Definition, after: Definition, span: timedelta, *, tenant_id: int
) -> DryRun:
    """Compare a job's fires from now on with those after a change, given as it would be stored; refuses what the
    change itself would refuse.
    """
    now = await store.now()
    after = after.checked(now, job.schedules)
    check_payload({"args": list(after.args), "kwargs": dict(after.kwargs)}, pointer="")
    taken = await jobs.find(store, tenant_id, after.name)
    if taken is not None and taken[0] != job.job_id:
        raise Conflict(
            "a job of that name exists already",
            hint="choose another name, or change the job that has it",
            code="name_taken",
        )
    end = now + span
    compared = await asyncio.to_thread(difference, _before(job, before, now, end), fires(after, now, end), now, end)
    return DryRun(
        definition=after,
        difference=compared,
        next_before=next(_before(job, before, now, END), None),
        next_after=next(fires(after, now, END), None),
        warnings=list(dict(_warnings(job, before, after, now)).items()),
    )


def _before(job: Job, definition: Definition, start: datetime, end: datetime) -> Iterator[datetime]:
    """The fires of a job as it is; the next of a fixed delay waits in its timer."""
    if definition.delay is None or job.timer_at is None:
        yield from fires(definition, start, end)
    elif start < job.timer_at <= end:
        yield job.timer_at


def _warnings(job: Job, before: Definition, after: Definition, now: datetime) -> Iterator[tuple[str, str]]:
    if job.paused_at is not None:
        yield "job_paused", "the job is paused, and compared as if it were not: nothing fires before it is resumed"
    if not after.enabled:
        yield "job_disabled", "the job would be disabled: nothing fires"
    elif after.schedules and next(fires(after, now, END), None) is None:
        yield "never_again", "the job would not fire again"
    if after.delay is not None:
        yield (
            "delay",
            "a delay counts from the end of each run: only the next fire is known, and a change starts it anew",
        )
    for schedule in after.schedules:
        if schedule not in before.schedules:
            yield from outlook(schedule, now).warnings
    if before.jitter != after.jitter:
        yield "jitter", "a jitter moves the start of runs, not the instants that they are due at, which are compared"
