"""The history of jobs: their last runs in a strip, how their attempts went, and their year day by day."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from typing import Final
from uuid import UUID

from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.calls import Call, no_job, reply
from bellringer.api.measures import percentile
from bellringer.api.operations import Query, number, operation, string
from bellringer.errors import InvalidInput
from bellringer.forecasting import Crowd, Window, fires, tally
from bellringer.store import history, jobs
from bellringer.store import job_history as stored
from bellringer.store.job_history import MOST_OF_A_DAY, PastRun, Try
from bellringer.store.jobs import Job
from bellringer.wire import job_history as wire

MOST_STRIPS: Final = 100
STRIP: Final = range(1, 61)
USUAL_STRIP: Final = 20
MOST_TRIES: Final = 1_000
YEARS: Final = range(1970, 9999)
MOST_MERGED: Final = 20_000  # fires of several schedules that are looked at one by one
_DAY: Final = timedelta(days=1)
_MOMENT: Final = timedelta(microseconds=1)
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")


@operation(
    "jobs",
    role=Role.VIEWER,
    answers={200: wire.Strips},
    query=(
        string("ids", f"the ids of jobs, with commas or repeated; {MOST_STRIPS} at most"),
        Query(
            "limit",
            {"type": "integer", "minimum": STRIP[0], "maximum": STRIP[-1], "default": USUAL_STRIP},
            "how many runs of each at most",
        ),
    ),
)
async def strips(call: Call) -> Response:
    """The last runs of some jobs, and when they last succeeded. Jobs that are not there are left out."""
    call.query()
    wanted, most = _ids(call), _number(call, "limit", STRIP, USUAL_STRIP)
    tenant_id = call.tenant_id
    there = await stored.known(call.reads, tenant_id, wanted)
    ids = [job_id for job_id in wanted if job_id in there]
    runs: dict[UUID, list[PastRun]] = defaultdict(list)
    for run in await stored.last_runs(call.reads, tenant_id, ids, most):
        runs[run.key.job_id].append(run)
    succeeded = await stored.last_successes(call.reads, tenant_id, ids)
    items = [
        wire.StripOfRuns(
            job_id=str(job_id), runs=[_strip_run(run) for run in runs[job_id]], last_success=succeeded.get(job_id)
        )
        for job_id in ids
    ]
    return reply(wire.Strips(items=items))


def _ids(call: Call) -> list[UUID]:
    texts = [part.strip() for text in call.request.query_params.getlist("ids") for part in text.split(",")]
    given = list(dict.fromkeys(text for text in texts if text))
    if len(given) > MOST_STRIPS:
        raise InvalidInput(f"ids has more than {MOST_STRIPS} ids", hint="ask for fewer at a time", code="limit")
    if not all(_UUID.fullmatch(text) for text in given):
        raise InvalidInput("ids holds what is no id of a job", hint="`GET /jobs` shows the ids", code="id_invalid")
    return [UUID(text) for text in given]


def _number(call: Call, name: str, among: range, usual: int) -> int:
    text = call.request.query_params.get(name, str(usual))
    found = int(text) if re.fullmatch("[0-9]{1,9}", text, re.ASCII) else -1
    if found not in among:
        raise InvalidInput(f"{name} must be a number from {among[0]} to {among[-1]}", code="limit_range")
    return found


def _strip_run(run: PastRun) -> wire.StripRun:
    return wire.StripRun(
        run_id=run.key.id, scheduled_for=run.key.scheduled_for, state=run.state, seconds=seconds_of(run)
    )


def seconds_of(run: PastRun | Try) -> float | None:
    """How long an attempt took, or the last of a run."""
    if run.started_at is None or run.finished_at is None:
        return None
    return max(0.0, (run.finished_at - run.started_at).total_seconds())


@operation("jobs", role=Role.VIEWER, answers={200: wire.JobStats})
async def stats(call: Call) -> Response:
    """How the last 1,000 attempts of a job went: how many succeeded, and how long they waited and took."""
    call.query()
    job = await _job(call)
    found = await stored.last_tries(call.reads, call.tenant_id, job.job_id, MOST_TRIES)
    tries = [one for one in found if one.attempt > 0]
    failed = sum(one.outcome not in {"ok", None} for one in tries)
    succeeded = sum(one.outcome == "ok" for one in tries)
    return reply(
        wire.JobStats(
            attempts=len(tries),
            since=min((one.scheduled_for for one in tries), default=None),
            succeeded=succeeded,
            failed=failed,
            success_rate=round(succeeded / (succeeded + failed), 4) if succeeded + failed else None,
            wait=_spread([wait for one in tries if (wait := _wait(one, job)) is not None]),
            run=_spread([took for one in tries if (took := seconds_of(one)) is not None]),
            days=_day_times(tries),
        )
    )


async def _job(call: Call) -> Job:
    job = await jobs.get(call.store, await call.job_id(), call.tenant_id)
    if job is None:
        raise no_job()
    return job


def _wait(one: Try, job: Job) -> float | None:
    """How long after its time a run's first attempt started."""
    if one.attempt != 1 or one.started_at is None:
        return None
    return max(0.0, (one.started_at - one.scheduled_for - job.jitter_by).total_seconds())


def _spread(seconds: Sequence[float]) -> wire.Spread | None:
    p50, p95, p99 = (percentile(seconds, part) for part in (0.5, 0.95, 0.99))
    return None if p50 is None or p95 is None or p99 is None else wire.Spread(p50=p50, p95=p95, p99=p99)


def _day_times(tries: Sequence[Try]) -> list[wire.DayTime]:
    by_day: dict[date, list[Try]] = defaultdict(list)
    for one in tries:
        by_day[one.scheduled_for.astimezone(UTC).date()].append(one)
    return [
        wire.DayTime(
            day=day,
            attempts=len(some),
            failed=sum(one.outcome not in {"ok", None} for one in some),
            p95=percentile([took for one in some if (took := seconds_of(one)) is not None], 0.95),
        )
        for day, some in sorted(by_day.items())
    ]


@operation(
    "jobs",
    role=Role.VIEWER,
    answers={200: wire.Days},
    query=(number("year", "which year; this one, where it is not given", YEARS[0], YEARS[-1]),),
)
async def days(call: Call) -> Response:
    """A job's year by days in UTC: its runs, those that gave up, what got no run, and what is to come."""
    call.query()
    now = await call.store.now()
    year = _number(call, "year", YEARS, now.year)
    job = await _job(call)
    start, end = datetime(year, 1, 1, tzinfo=UTC), datetime(year + 1, 1, 1, tzinfo=UTC)
    kept = await history.days(call.reads)
    last = min(end.date(), (now + 2 * _DAY).date())  # a run may be born a little ahead
    wanted = [start.date() + n * _DAY for n in range((last - start.date()).days)]
    runs = await stored.days(call.reads, call.tenant_id, job.job_id, wanted)
    gaps = await stored.gap_days(call.reads, job.job_id, start, end)
    # In a thread: it may take a second, and the scheduler may live on this loop.
    coming = await asyncio.to_thread(_coming, job, max(start, now), end)
    found = sorted({day for day, (some, _) in runs.items() if some} | gaps.keys() | (coming or {}).keys())
    told = [_day(day, runs.get(day, (0, 0)), gaps.get(day, 0), (coming or {}).get(day, 0)) for day in found]
    return reply(wire.Days(year=year, kept_from=min(kept, default=None), coming_known=coming is not None, days=told))


def _day(day: date, runs: tuple[int, int], gaps: int, coming: int) -> wire.Day:
    some, failed = runs
    return wire.Day(
        day=day, runs=min(some, MOST_OF_A_DAY), failed=failed, gaps=gaps, more=some > MOST_OF_A_DAY, coming=coming
    )


def _coming(job: Job, start: datetime, end: datetime) -> Mapping[date, int] | None:
    """The fires of each day to come; None where they cannot be told: of a delay, or where it is too much work."""
    definition = job.definition()
    if definition.delay is not None:
        return None
    if job.paused_at is not None:
        start = end if job.paused_until is None else max(start, job.paused_until)
    start = max(start, definition.starts_at) if definition.starts_at else start
    end = min(end, definition.ends_at + _MOMENT) if definition.ends_at else end
    if start >= end or not definition.enabled:
        return {}
    window = Window(start, end, _DAY)
    counted = tally([Crowd(schedule=s, pools={"": 1}) for s in definition.schedules], window)
    if counted.left_out:
        return None
    totals = counted.totals()
    if len(definition.schedules) > 1 and sum(totals) <= MOST_MERGED:  # an instant that two of them name fires once
        totals = [0] * window.size
        for at in islice(fires(definition, start - _MOMENT, end - _MOMENT), MOST_MERGED):
            totals[window.index(at)] += 1
    return {window.at(index).date(): total for index, total in enumerate(totals) if total}
