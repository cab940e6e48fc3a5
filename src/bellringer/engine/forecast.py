"""Forecasts the fires of a tenant's jobs, and compares a job's fires before and after a change. Reads only."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from bellringer.core.jobs import Definition
from bellringer.core.payload import check_payload
from bellringer.errors import Conflict
from bellringer.forecast import (
    FireCounts,
    FireDiff,
    ForecastWindow,
    JobGroup,
    SpreadProposal,
    count_fires,
    diff_fires,
    list_fires,
    propose_spreading,
)
from bellringer.schedule import Schedule, summarize_schedule
from bellringer.schedule.instants import END
from bellringer.store import forecast as stored
from bellringer.store import jobs
from bellringer.store.connection_pool import Store
from bellringer.store.forecast import CohortSize
from bellringer.store.interned_names import Catalog
from bellringer.store.jobs import JobRow


@dataclass(frozen=True, slots=True, kw_only=True)
class FireForecast:
    """Forecast fires. `counted_at`: when the jobs were counted; `timers_until`: later timers are too many to count."""

    tally: FireCounts
    proposals: Sequence[SpreadProposal]
    counted_at: datetime
    left_out: int
    timers_until: datetime | None


async def forecast_fires(
    store: Store, catalog: Catalog, window: ForecastWindow, *, tenant_id: int, sub_minute: bool = True
) -> FireForecast:
    """Forecasts the fires of a tenant's active jobs and timers in a window. Without `sub_minute`, jobs that fire more
    often than every minute are omitted.

    Ignores freezes and the bounds `starts_at` and `ends_at` of single jobs. A fixed delay contributes only its next
    fire.
    """
    found = await stored.load_sizes(store, tenant_id)
    waiting = await stored.load_timers(store, tenant_id, window.start, window.end)
    known = await catalog.schedules({size.schedule_id for size in found.sizes})
    crowds = list(_crowds(found.sizes, known))
    # In a thread, because this may take a second and the scheduler may share the event loop.
    counted, spread = await asyncio.to_thread(_count, crowds, window, waiting.fires, sub_minute)
    return FireForecast(
        tally=counted,
        proposals=spread,
        counted_at=found.counted_at,
        left_out=found.total - sum(crowd.jobs for crowd in crowds) + counted.left_out,
        timers_until=waiting.until,
    )


def _count(
    crowds: Sequence[JobGroup], window: ForecastWindow, timers: Mapping[tuple[str, datetime], int], sub_minute: bool
) -> tuple[FireCounts, list[SpreadProposal]]:
    counted = count_fires(crowds, window, timers, sub_minute=sub_minute)
    return counted, propose_spreading(counted)


def _crowds(sizes: Iterable[CohortSize], known: Mapping[int, Schedule]) -> Iterator[JobGroup]:
    """Groups jobs by schedule, jobs with a jitter separately. Schedules that this version cannot read are left out."""
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
            yield JobGroup(schedule=known[number], pools=pools)
    for number, pools in spread.items():
        if number in known:
            yield JobGroup(schedule=known[number], pools=pools, jitter=jitters[number])


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePreview:
    """The effect of a change: the definition as it would be stored, and the fires before and after."""

    definition: Definition
    difference: FireDiff
    next_before: datetime | None
    next_after: datetime | None
    warnings: Sequence[tuple[str, str]]


async def dry_run(
    store: Store, job: JobRow, before: Definition, after: Definition, span: timedelta, *, tenant_id: int
) -> ChangePreview:
    """Compares a job's fires with those after a change. Raises the errors that the change itself would raise."""
    now = await store.now()
    after = after.validate(now, job.schedules)
    check_payload({"args": list(after.args), "kwargs": dict(after.kwargs)}, pointer="")
    taken = await jobs.find(store, tenant_id, after.name)
    if taken is not None and taken[0] != job.job_id:
        raise Conflict(
            "a job with that name already exists",
            hint="choose another name, or change the existing job",
            code="name_taken",
        )
    end = now + span
    compared = await asyncio.to_thread(
        diff_fires, _current_fires(job, before, now, end), list_fires(after, now, end), now, end
    )
    return ChangePreview(
        definition=after,
        difference=compared,
        next_before=next(_current_fires(job, before, now, END), None),
        next_after=next(list_fires(after, now, END), None),
        warnings=list(dict(_warnings(job, before, after, now)).items()),
    )


def _current_fires(job: JobRow, definition: Definition, start: datetime, end: datetime) -> Iterator[datetime]:
    """Yields the fires of a job as it is; the next fire of a fixed delay is its timer."""
    if definition.delay is None or job.timer_at is None:
        yield from list_fires(definition, start, end)
    elif start < job.timer_at <= end:
        yield job.timer_at


def _warnings(job: JobRow, before: Definition, after: Definition, now: datetime) -> Iterator[tuple[str, str]]:
    if job.paused_at is not None:
        yield "job_paused", "the job is paused; the comparison ignores the pause"
    if not after.enabled:
        yield "job_disabled", "the job would be disabled: nothing fires"
    elif after.schedules and next(list_fires(after, now, END), None) is None:
        yield "never_again", "the job would not fire again"
    if after.delay is not None:
        yield (
            "delay",
            "a delay counts from the end of each run: only the next fire is known, and a change restarts the delay",
        )
    for schedule in after.schedules:
        if schedule not in before.schedules:
            yield from summarize_schedule(schedule, now).warnings
    if before.jitter != after.jitter:
        yield "jitter", "jitter delays the start of runs; the comparison shows due times without jitter"
