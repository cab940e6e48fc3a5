"""The overview: how it goes for a tenant, from bounded reads, with a verdict that is decided here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.calls import Call, reply
from bellringer.api.measures import bounded, percentile
from bellringer.api.operations import choice, operation
from bellringer.api.recent import Recent, recent
from bellringer.api.timelines import timeline
from bellringer.api.verdicts import Facts, attention, verdict
from bellringer.durations import format_duration
from bellringer.errors import InvalidInput
from bellringer.lifecycle import objective
from bellringer.schedule.instants import EPOCH
from bellringer.store import overview as stored
from bellringer.store import usage
from bellringer.store.overview import MOST_COUNTED, Schedulers, Sums, Waiting
from bellringer.store.usage import Goal
from bellringer.wire import overview as wire
from bellringer.wire.cluster import Shards

# How far back, and how many seconds a step of the series is.
RANGES: Final = {"1h": (timedelta(hours=1), 60), "6h": (timedelta(hours=6), 300), "24h": (timedelta(hours=24), 900)}
MOST_LOOKED_AT: Final = 2_000  # runs
MOST_LANES: Final = 20
MOST_TROUBLES: Final = 8  # of each kind
DIGITS: Final = 6

Starts = Mapping[datetime, tuple[int, int]]


@operation(
    "overview",
    role=Role.VIEWER,
    answers={200: wire.Overview},
    query=(choice("range", "how far to look back; 1h, where it is not given", list(RANGES)),),
)
async def get(call: Call) -> Response:
    """How it goes: a verdict, what to look at, what waits, whether runs start in time, and what the last runs did."""
    chosen = call.query().get("range", "1h")
    if chosen not in RANGES:
        raise InvalidInput("range is not known", hint=f"use {', '.join(RANGES)}", code="choice")
    length, seconds = RANGES[chosen]
    tenant_id = call.tenant_id
    goal = await usage.goal(call.store, tenant_id)
    assert goal is not None, "the caller's own tenant is there"
    steps = Steps(goal.now, length, seconds)
    looked = recent(await stored.tries(call.reads, tenant_id, steps.start, goal.now, MOST_LOOKED_AT), MOST_LOOKED_AT)
    started = await stored.started(call.reads, tenant_id, steps.first, seconds)
    schedulers = await _schedulers(call)
    timing = _timing(goal, started, looked, schedulers.firing)
    facts = Facts(
        sums=await stored.sums(call.reads, tenant_id),
        schedulers=schedulers,
        pools=await stored.waiting(call.store, tenant_id),
        troubles=await stored.troubles(call.reads, tenant_id, MOST_TROUBLES),
        burn=timing.burn,
        started_late=timing.late,
        range=chosen,
    )
    found = attention(facts)
    died = await stored.died(call.reads, tenant_id, steps.first, seconds)
    return reply(
        wire.Overview(
            now=goal.now,
            range=chosen,
            verdict=verdict(facts, found),
            jobs=_jobs(facts.sums),
            dead_letters=bounded(facts.sums.dead, MOST_COUNTED),
            workers=wire.WorkerSums(live=facts.sums.live, slots=facts.sums.slots, busy=facts.sums.busy),
            pools=[_pool(pool, goal.now) for pool in facts.pools],
            timing=timing,
            scheduler=_scheduler(schedulers),
            attention=found,
            series=_series(steps, started, died, looked),
            timeline=await timeline(call, goal.now, looked.busiest(MOST_LANES)),
            tasks=looked.tasks(),
        )
    )


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


async def _schedulers(call: Call) -> Schedulers:
    """Where a scheduler's engines are is told only to callers of the whole installation."""
    found = await stored.schedulers(call.service.store)
    if call.caller.everywhere or not found.waits_for:
        return found
    return replace(found, waits_for=found.waits_for.partition(" ")[0])


def _jobs(sums: Sums) -> wire.JobSums:
    return wire.JobSums(
        total=bounded(sums.jobs, MOST_COUNTED),
        late=bounded(sums.late, MOST_COUNTED),
        failing=bounded(sums.failing, MOST_COUNTED),
        paused=bounded(sums.paused, MOST_COUNTED),
    )


def _pool(found: Waiting, now: datetime) -> wire.PoolWait:
    return wire.PoolWait(
        pool=found.pool,
        paused=found.paused,
        workers=found.workers,
        slots=found.slots,
        busy=found.busy,
        ready=bounded(found.ready, MOST_COUNTED),
        oldest=None if found.since is None else max(0.0, (now - found.since).total_seconds()),
    )


def _scheduler(found: Schedulers) -> wire.SchedulerSums:
    return wire.SchedulerSums(
        nodes=found.nodes,
        shards=Shards(total=found.total, held=found.held, free=found.total - found.held),
        waits_for=found.waits_for,
    )


def _timing(goal: Goal, started: Starts, looked: Recent, firing: float) -> wire.Timing:
    due, late = (sum(numbers) for numbers in zip(*started.values(), strict=True)) if started else (0, 0)
    target = objective.TARGET if goal.target is None else goal.target
    part = objective.compliance(due, late)
    lateness = list(looked.lateness().values())
    return wire.Timing(
        started=due,
        late=late,
        compliance=None if part is None else round(part, DIGITS),
        target=target,
        within=format_duration(objective.WITHIN if goal.within is None else timedelta(seconds=goal.within)),
        burn=round(objective.burn_rate(due, late, target), DIGITS),
        lateness_p50_ms=percentile(lateness, 0.5),
        lateness_p99_ms=percentile(lateness, 0.99),
        firing=firing,
    )


def _series(steps: Steps, started: Starts, died: Mapping[datetime, int], looked: Recent) -> wire.Series:
    succeeded, lateness = looked.succeeded_by(steps.of), looked.lateness_by(steps.of)

    def is_known(at: datetime) -> bool:
        return looked.since is None or at >= looked.since

    return wire.Series(
        step=steps.seconds,
        points=[
            wire.Point(
                at=at,
                started=started.get(at, (0, 0))[0],
                late=started.get(at, (0, 0))[1],
                succeeded=succeeded.get(at, 0) if is_known(at) else None,
                failed=died.get(at, 0),
                lateness_p99_ms=percentile(lateness.get(at, []), 0.99) if is_known(at) else None,
            )
            for at in steps.all()
        ],
        looked_at=looked.runs,
    )
