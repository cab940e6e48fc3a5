"""The overview of a tenant: a health verdict, recent runs and a timeline, from bounded reads."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from math import ceil
from typing import Final, TypeVar
from uuid import UUID

from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.endpoints.health import SLOW_ROUND_TRIP_SECONDS, HealthFacts, attention, verdict
from bellringer.api.endpoints.load_series import WORKFLOW_TASKS, StepLoad, loads_by_step
from bellringer.api.endpoints.objective import round_share
from bellringer.api.http.operation import choice, operation
from bellringer.api.http.request import RequestContext, reply
from bellringer.core.loop_progress import check_health, loops_of_all_processes
from bellringer.core.runs import RunKey
from bellringer.durations import format_duration
from bellringer.engine import objective
from bellringer.engine.monitor import STRANDED_AFTER
from bellringer.errors import InvalidInput, InvalidSchedule
from bellringer.forecast import list_fires
from bellringer.schedule.instants import EPOCH
from bellringer.store import job_history, jobs, overview, task_pauses, usage
from bellringer.store import overview as stored
from bellringer.store.job_history import PastRun
from bellringer.store.jobs import JobRow
from bellringer.store.load import count_silent_claims
from bellringer.store.overview import MAX_COUNTED, OverviewCounts, PoolBacklog, RunBar, Schedulers
from bellringer.store.task_pauses import TaskPauseRow
from bellringer.store.usage import ObjectiveRow
from bellringer.wire import overview as wire
from bellringer.wire.cluster import Shards
from bellringer.wire.models import Count
from bellringer.wire.overview import Bar, Lane, TaskTime, TaskTimes, Timeline
from bellringer.wire.routes import Routes

N = TypeVar("N", int, float)


def percentile(values: Sequence[N], part: float) -> N | None:
    """Returns the percentile of sorted values; None if there are none."""
    return sorted(values)[max(0, ceil(part * len(values)) - 1)] if values else None


def bounded_count(number: int, most: int) -> Count:
    """Returns a count that stopped after `most`."""
    return Count(value=min(number, most), relation="gte" if number > most else "eq")


MAX_TASKS: Final = 20
_MILLISECOND: Final = timedelta(milliseconds=1)
_GOOD_OUTCOMES: Final = frozenset({"ok", None})  # None: the run ended without an attempt, or was given back


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentRuns:
    """The attempts of the newest runs. `since`: runs scheduled earlier were not read; None: all were."""

    tries: Sequence[RunBar]
    runs: Count
    since: datetime | None

    def lateness(self) -> Mapping[RunKey, int]:
        """Returns how many milliseconds after its time each run started; workflow nodes are left out."""
        found: dict[RunKey, int] = {}
        for one in self.tries:
            if one.started_at is not None and not one.is_node:
                late = one.started_at - one.key.scheduled_for - (one.jitter_by or timedelta(0))
                found[one.key] = min(round(late / _MILLISECOND), found.get(one.key, 1 << 53))
        return found

    def lateness_by(self, step: Callable[[datetime], datetime]) -> Mapping[datetime, list[int]]:
        """Returns the lateness of runs by the step in which they were due."""
        found: dict[datetime, list[int]] = defaultdict(list)
        for key, late in self.lateness().items():
            found[step(key.scheduled_for)].append(late)
        return found

    def succeeded_by(self, step: Callable[[datetime], datetime]) -> Mapping[datetime, int]:
        """Returns the number of succeeded runs in each step."""
        return Counter(step(one.finished_at) for one in self.tries if one.ends_as == "succeeded" and one.finished_at)

    def busiest(self, most: int) -> list[UUID]:
        """Returns the jobs with the most runs."""
        runs = Counter(key.job_id for key in {one.key for one in self.tries if not one.is_node})
        return [job_id for job_id, _ in runs.most_common(most)]

    def tasks(self) -> TaskTimes:
        """Returns the tasks that took the most time, and those that failed most."""
        by_task: dict[str, list[RunBar]] = defaultdict(list)
        for one in self.tries:
            if one.attempt and one.task not in WORKFLOW_TASKS:
                by_task[one.task].append(one)
        described = [_time(task, tries) for task, tries in by_task.items()]
        longest = sorted(described, key=lambda t: (-t.seconds, t.task))
        kept = [*longest[: MAX_TASKS // 2], *sorted(longest, key=lambda t: -t.failures)[: MAX_TASKS // 2]]
        looked = sum(len(tries) for tries in by_task.values())
        return TaskTimes(
            looked_at=Count(value=looked, relation=self.runs.relation), items=[t for t in longest if t in kept]
        )


def summarize_runs(tries: Sequence[RunBar], most: int) -> RecentRuns:
    """Summarizes the rows of a query that was limited to `most` runs."""
    keys = {one.key for one in tries}
    is_cut = len(keys) >= most
    return RecentRuns(
        tries=tries,
        runs=bounded_count(len(keys) + is_cut, len(keys)),
        since=min(key.scheduled_for for key in keys) if is_cut else None,
    )


def _time(task: str, tries: Sequence[RunBar]) -> TaskTime:
    took = [(t.finished_at - t.started_at).total_seconds() for t in tries if t.finished_at and t.started_at]
    return TaskTime(
        task=task,
        attempts=len(tries),
        failures=sum(t.outcome not in _GOOD_OUTCOMES for t in tries),
        seconds=round(sum(took), 3),
        p50=percentile(took, 0.5),
        p95=percentile(took, 0.95),
    )


TIMELINE_SPAN: Final = timedelta(hours=1)
MAX_LANES: Final = 20
MAX_BARS: Final = 60  # per lane, so 1,200 in all
MAX_FIRES: Final = 60  # per lane


async def timeline(call: RequestContext, now: datetime, busiest: Sequence[UUID]) -> Timeline:
    """Returns the lanes of the busiest jobs, filled up with the newest jobs."""
    tenant_id = call.tenant_id
    newest = [] if len(busiest) >= MAX_LANES else await overview.newest_jobs(call.reads, tenant_id, MAX_LANES)
    wanted = list(dict.fromkeys([*busiest, *newest]))[:MAX_LANES]
    found = {job.job_id: job for job in await jobs.get_many(call.store, wanted, tenant_id)}
    shown = [found[job_id] for job_id in wanted if job_id in found]  # sends have no job
    bars: dict[UUID, list[PastRun]] = defaultdict(list)
    ids = [job.job_id for job in shown]
    for run in await job_history.last_runs(
        call.reads, tenant_id, ids, MAX_BARS + 1, start=now - TIMELINE_SPAN, before=(now + timedelta(seconds=1), 0)
    ):
        bars[run.key.job_id].append(run)
    # Runs in a thread: finding the next fires of a schedule may take a while.
    lanes = await asyncio.to_thread(lambda: [_lane(job, bars[job.job_id], now) for job in shown])
    cut = any(len(of_job) > MAX_BARS for of_job in bars.values())
    described = [lane for lane in lanes if lane.runs or lane.fires]
    return Timeline(start=now - TIMELINE_SPAN, end=now + TIMELINE_SPAN, lanes=described, truncated=cut)


def _lane(job: JobRow, runs: Sequence[PastRun], now: datetime) -> Lane:
    coming = _upcoming_fires(job, now)
    return Lane(
        job_id=str(job.job_id),
        job=job.name,
        runs=[
            Bar(
                run_id=run.key.id,
                state=run.state,
                scheduled_for=run.key.scheduled_for,
                started_at=run.started_at,
                finished_at=run.finished_at,
            )
            for run in runs[:MAX_BARS]
        ],
        fires=coming[:MAX_FIRES],
        more=len(coming) > MAX_FIRES,
        earlier=len(runs) > MAX_BARS,
        paused=job.paused_at is not None,
    )


def _upcoming_fires(job: JobRow, now: datetime) -> list[datetime]:
    """Returns the next fires of a job, plus one if there are more; for a fixed delay, the time of its timer."""
    if job.paused_at is not None:
        return []
    definition = job.definition()
    if definition.delay is not None:
        return [job.timer_at] if job.timer_at is not None and now < job.timer_at <= now + TIMELINE_SPAN else []
    try:
        return list(islice(list_fires(definition, now, now + TIMELINE_SPAN), MAX_FIRES + 1))
    except InvalidSchedule:  # such as a calendar that is not loaded
        return []


# The ranges, and the seconds of one step of their series.
RANGES: Final = {"1h": (timedelta(hours=1), 60), "6h": (timedelta(hours=6), 300), "24h": (timedelta(hours=24), 900)}
MAX_RUNS_READ: Final = 2_000  # runs
MAX_TROUBLES: Final = 8  # per kind
DIGITS: Final = 6

Starts = Mapping[datetime, tuple[int, int, int]]  # started, late and missed


@operation(
    Routes.overview, role=Role.VIEWER, query=(choice("range", "how far to look back; 1h if omitted", list(RANGES)),)
)
async def get(call: RequestContext) -> Response:
    """Returns the overview: verdict, attention items, backlog, lateness and recent runs."""
    chosen = call.query().get("range", "1h")
    if chosen not in RANGES:
        raise InvalidInput("unknown range", hint=f"use {', '.join(RANGES)}", code="choice")
    length, seconds = RANGES[chosen]
    tenant_id = call.tenant_id
    goal = await usage.load_objective(call.store, tenant_id)
    assert goal is not None, "the caller's own tenant exists"
    steps = Steps(goal.now, length, seconds)
    looked = summarize_runs(
        await stored.load_attempts(call.reads, tenant_id, steps.start, goal.now, MAX_RUNS_READ), MAX_RUNS_READ
    )
    started = await stored.starts_by_step(call.reads, tenant_id, steps.first, seconds)
    schedulers = await _schedulers(call)
    [occurrences] = await usage.starts_since(call.reads, tenant_id, [steps.first], goal.now)
    timing = _timing(goal, started, looked, schedulers.firing, occurrences.occurrences)
    unknown = await stored.list_unknown_tasks(call.reads, tenant_id, MAX_TROUBLES)
    facts = HealthFacts(
        sums=await stored.load_counts(call.reads, tenant_id),
        schedulers=schedulers,
        pools=await stored.pool_backlogs(call.store, tenant_id),
        troubles=await stored.list_troubles(call.reads, tenant_id, MAX_TROUBLES),
        pauses=await stored.list_failing_pauses(call.reads, tenant_id, MAX_TROUBLES),
        unknown=unknown,
        orphans=await stored.list_orphans(call.reads, tenant_id, MAX_TROUBLES + 1),
        tasks=await stored.list_live_tasks(call.reads) if unknown else (),
        burn=timing.burn,
        started_late=timing.late + timing.missed,
        missed=timing.missed,
        range=chosen,
        late=await stored.count_late_jobs(call.reads, tenant_id),
        suspension=await stored.find_suspension(call.service.store, tenant_id),
        paused_tasks=await _paused_tasks(call),
        stranded=await stored.count_stranded(call.service.store, tenant_id, STRANDED_AFTER),
        silent_claims=await count_silent_claims(call.service.store),
        needs_workers=await stored.needs_workers(call.reads, tenant_id),
        round_trip=await stored.measure_round_trip(call.service.store, SLOW_ROUND_TRIP_SECONDS),
        stalled_loops=list(check_health(loops_of_all_processes())[1].get("checks", ())),
    )
    died = await stored.deaths_by_step(call.reads, tenant_id, steps.first, seconds)
    return reply(
        wire.Overview(
            now=goal.now,
            range=chosen,
            verdict=verdict(facts),
            jobs=_jobs(facts.sums),
            dead_letters=bounded_count(facts.sums.dead, MAX_COUNTED),
            workers=wire.WorkerSums(live=facts.sums.live, slots=facts.sums.slots, busy=facts.sums.busy),
            pools=[_pool(pool, goal.now) for pool in facts.pools],
            timing=timing,
            scheduler=_scheduler(schedulers),
            attention=attention(facts),
            series=_series(steps, started, died, looked, await _loads(call, steps, looked)),
            timeline=await timeline(call, goal.now, looked.busiest(MAX_LANES)),
            tasks=looked.tasks(),
        )
    )


async def _paused_tasks(call: RequestContext) -> list[TaskPauseRow]:
    found = await task_pauses.list_pauses(call.reads, call.tenant_id)
    return [pause for pause in found.values() if pause.resumed_at is None]


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a series up to now; they begin at whole multiples of their length."""

    now: datetime
    length: timedelta
    seconds: int

    @property
    def start(self) -> datetime:
        return self.now - self.length

    @property
    def first(self) -> datetime:
        return self.of(self.start) + timedelta(seconds=self.seconds)

    def of(self, moment: datetime) -> datetime:
        return moment - (moment - EPOCH) % timedelta(seconds=self.seconds)

    def all(self) -> list[datetime]:
        step = timedelta(seconds=self.seconds)
        return [self.first + n * step for n in range((self.now - self.first) // step + 1)]


async def _schedulers(call: RequestContext) -> Schedulers:
    """Hides the addresses of coordination services from callers of a tenant."""
    found = await stored.load_schedulers(call.service.store)
    if call.caller.everywhere or not found.waits_for:
        return found
    return replace(found, waits_for=found.waits_for.partition(" ")[0])


def _jobs(sums: OverviewCounts) -> wire.JobSums:
    return wire.JobSums(
        total=bounded_count(sums.jobs, MAX_COUNTED),
        late=bounded_count(sums.late, MAX_COUNTED),
        failing=bounded_count(sums.failing, MAX_COUNTED),
        paused=bounded_count(sums.paused, MAX_COUNTED),
    )


def _pool(found: PoolBacklog, now: datetime) -> wire.PoolWait:
    return wire.PoolWait(
        pool=found.pool,
        paused=found.paused,
        workers=found.workers,
        slots=found.slots,
        busy=found.busy,
        ready=bounded_count(found.ready, MAX_COUNTED),
        oldest=None if found.since is None else max(0.0, (now - found.since).total_seconds()),
    )


def _scheduler(found: Schedulers) -> wire.SchedulerSums:
    return wire.SchedulerSums(
        nodes=found.nodes,
        shards=Shards(total=found.total, held=found.held, free=found.total - found.held),
        waits_for=found.waits_for,
    )


def _timing(goal: ObjectiveRow, started: Starts, looked: RecentRuns, firing: float, occurrences: int) -> wire.Timing:
    begun, late, missed = (sum(numbers) for numbers in zip(*started.values(), strict=True)) if started else (0, 0, 0)
    target = objective.DEFAULT_TARGET if goal.target is None else goal.target
    part = objective.compliance(begun + missed, late + missed)
    lateness = list(looked.lateness().values())
    max_missed = objective.DEFAULT_MAX_MISSED if goal.max_missed is None else goal.max_missed
    share = objective.missed_share(timedelta(0), occurrences, missed, max_missed)
    return wire.Timing(
        started=begun,
        late=late,
        missed=missed,
        compliance=None if part is None else round(part, DIGITS),
        target=target,
        within=format_duration(
            objective.DEFAULT_START_WITHIN if goal.within is None else timedelta(seconds=goal.within)
        ),
        burn=round(objective.burn_rate(begun + missed, late + missed, target), DIGITS),
        lateness_p50_ms=percentile(lateness, 0.5),
        lateness_p99_ms=percentile(lateness, 0.99),
        firing=firing,
        expected=share.expected,
        missed_rate=round_share(share.share),
        max_missed_rate=max_missed,
        missed_burn=round(share.burn, DIGITS),
    )


async def _loads(call: RequestContext, steps: Steps, looked: RecentRuns) -> Mapping[datetime, StepLoad]:
    """Returns the load of each step; of none if not all runs of the range were read, as older ones may still wait."""
    if looked.since is not None:
        return {}
    claimed = await stored.list_claims(call.reads, call.tenant_id, MAX_RUNS_READ)
    moments = steps.all()
    found = loads_by_step(looked.tries, moments, timedelta(seconds=steps.seconds), steps.now, claimed)
    return dict(zip(moments, found, strict=True))


def _series(
    steps: Steps,
    started: Starts,
    died: Mapping[datetime, int],
    looked: RecentRuns,
    loads: Mapping[datetime, StepLoad],
) -> wire.Series:
    succeeded, lateness = looked.succeeded_by(steps.of), looked.lateness_by(steps.of)

    def is_known(at: datetime) -> bool:
        return looked.since is None or at >= looked.since

    return wire.Series(
        step=steps.seconds,
        points=[
            wire.Point(
                at=at,
                started=started.get(at, (0, 0, 0))[0],
                late=started.get(at, (0, 0, 0))[1],
                missed=started.get(at, (0, 0, 0))[2],
                succeeded=succeeded.get(at, 0) if is_known(at) else None,
                failed=died.get(at, 0),
                lateness_p50_ms=percentile(lateness.get(at, []), 0.5) if is_known(at) else None,
                lateness_p99_ms=percentile(lateness.get(at, []), 0.99) if is_known(at) else None,
                waiting=loads[at].waiting if at in loads else None,
                busy=loads[at].busy if at in loads else None,
            )
            for at in steps.all()
        ],
        looked_at=looked.runs,
    )
