"""Runs a simulation: the real engine steps, from one due instant to the next, without waiting in between."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Final

from bellringer.clock import SystemClock
from bellringer.durations import parse_duration
from bellringer.errors import InvalidInput
from bellringer.schedule import Delay
from bellringer.sdk.app import App
from bellringer.sdk.sync_bridge import refuse_to_block
from bellringer.simulate.faults import FaultPlan, Outage, choose_faults, parse_time
from bellringer.simulate.report import Crash, Report, collect_results
from bellringer.simulate.worker import SimulatedWorker, node_names, stand_in_results
from bellringer.testing.environment import TestEnvironment
from bellringer.testing.postgres import serve

Length = str | float | timedelta

DECLARE_BEFORE_START: Final = timedelta(
    seconds=1
)  # jobs are declared that long before the start, so that its own instant counts
MAX_SLOTS: Final = 10_000
OCCURRENCES_PER_SECOND: Final = 350  # if every occurrence has its own instant
START_SECONDS: Final = 3.0


def simulate(app: App, start: datetime | str, end: datetime | str, *, dsn: str | None = None, **how: Any) -> Report:
    """Simulates the schedules of an app over a span. See `asimulate` for the options.

    Without a DSN it starts its own database; call it in the main thread then.
    """
    refuse_to_block("`await asimulate(app, start, end, dsn)`")
    if dsn is not None:
        return _run(asimulate(app, start, end, dsn, **how))
    with serve() as server, server.plain_database() as made:
        return _run(asimulate(app, start, end, made, **how))


async def asimulate(
    app: App,
    start: datetime | str,
    end: datetime | str,
    dsn: str,
    *,
    outage: Sequence[Outage | str] = (),
    outages: int | None = None,
    crashes: int | None = None,
    seed: int = 0,
    duration: Length = "1s",
    durations: Mapping[str, Length] | None = None,
    slots: int = 10,
    execute: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Simulates on a fresh database.

    `outage` lists times without schedulers. `outages` and `crashes` are numbers of random ones, drawn with the seed; if
    none of the three is given, there are 2 outages and 5 crashes. Each run takes `duration`, or the entry of
    `durations` for its job or node, and succeeds; with `execute`, the handler is called and decides the outcome.
    """
    since, until = _parse_span(start, end)
    faults = choose_faults(since, until, given=outage, outages=outages, crashes=crashes, seed=seed)
    _check_slots(slots)
    lengths = _lengths(app, duration, durations or {})
    clock, stage = SystemClock(), TestEnvironment(app, dsn)
    began = clock.monotonic()
    with _seed_random(seed):
        await stage.open(since - DECLARE_BEFORE_START)
        try:
            results = stand_in_results(flows := _workflows(app))
            worker = SimulatedWorker(stage, slots=slots, duration=lengths, execute=execute, results=results)
            simulation = Simulation(stage, worker, faults, until, exact=execute or _delays(app) or bool(flows))
            await simulation.run(progress)
            jobs, summary, findings = await collect_results(stage, since, until)
        finally:
            await stage.close()
    return Report(
        start=since,
        end=until,
        seed=seed,
        jobs=jobs,
        outages=faults.outages,
        crashes=simulation.crashes,
        summary=summary,
        findings=findings,
        attempts=worker.settled,
        steps=simulation.steps,
        seconds=clock.monotonic() - began,
    )


@dataclass(frozen=True, slots=True)
class SimulationEstimate:
    """The number of occurrences in a span, including workflow nodes, and the estimated duration of the simulation."""

    start: datetime
    end: datetime
    occurrences: int

    @property
    def seconds(self) -> float:
        return START_SECONDS + self.occurrences / OCCURRENCES_PER_SECOND


def estimate(app: App, start: datetime | str, end: datetime | str) -> SimulationEstimate:
    """Counts the occurrences of an app's schedules without simulating them."""
    since, until = _parse_span(start, end)
    count = 0
    for job in app.definitions():
        runs = 1 if job.workflow is None else 1 + len(job.workflow.get("nodes", ()))
        count += runs * sum(schedule.count_between(since, until) for schedule in job.schedules)
    return SimulationEstimate(since, until, count)


def _check_slots(slots: int) -> None:
    if not 1 <= slots <= MAX_SLOTS:
        raise InvalidInput(f"slots must be from 1 to {MAX_SLOTS:,}, not {slots}", pointer="/slots", code="limit")


def _parse_span(start: datetime | str, end: datetime | str) -> tuple[datetime, datetime]:
    since, until = parse_time(start, what="from"), parse_time(end, what="to")
    if since >= until:
        message = f"from {since.isoformat()} to {until.isoformat()} there is no time"
        raise InvalidInput(message, hint="the end must be after the start", code="span_invalid")
    return since, until


def _lengths(app: App, otherwise: Length, given: Mapping[str, Length]) -> Callable[[str | None], timedelta]:
    """How long the runs of a job, or of a node, take; they go by their names, or by the last parts of them."""
    definitions = app.definitions()
    if not any(definition.schedules for definition in definitions):
        hint = "declare one with @app.schedule(cron(…))"
        raise InvalidInput("the app declares no schedules, so there is nothing to simulate", hint=hint)
    plain = [definition.name for definition in definitions if definition.workflow is None]
    jobs = [*plain, *dict.fromkeys(name for workflow in _workflows(app) for name in node_names(workflow))]
    usual = _length(otherwise)
    known: dict[str | None, timedelta] = {}
    for name, length in given.items():
        meant = [job for job in jobs if name in (job, job.rpartition(".")[2])]
        if not meant:
            near = get_close_matches(name, [*jobs, *(job.rpartition(".")[2] for job in jobs)], n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"its jobs and nodes are {', '.join(jobs)}"
            raise InvalidInput(f"the app declares no job {name!r}", hint=hint, code="job_unknown")
        known.update(dict.fromkeys(meant, _length(length)))
    return lambda job: known.get(job, usual)


def _length(value: Length) -> timedelta:
    length = parse_duration(value, what="duration")
    if not length:
        raise InvalidInput("a run takes some time", hint="give a duration of more than zero", code="duration_invalid")
    return length


def _workflows(app: App) -> list[Mapping[str, Any]]:
    return [definition.workflow for definition in app.definitions() if definition.workflow is not None]


def _delays(app: App) -> bool:
    """Whether some run's end starts the clock of the next."""
    return any(isinstance(s, Delay) for definition in app.definitions() for s in definition.schedules)


@contextmanager
def _seed_random(seed: int) -> Iterator[None]:
    """Let the jitter of retries be the same for the same seed."""
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)


def _run(simulation: Coroutine[Any, Any, Report]) -> Report:
    try:
        runner: Any = import_module("uvloop")
    except ImportError:
        runner = asyncio
    report: Report = runner.run(simulation)
    return report


Progress = Callable[[datetime], None]

MAX_DRAIN_TIME: Final = timedelta(days=30)  # after the end of the span, created runs may take this long to end
VACUUM_INTERVAL_STEPS: Final = 500  # steps


class Simulation:
    """Jumps to the next instant at which something is due, and runs all steps that are due at it.

    `exact`: the end of a run may matter at its own instant, even if nothing in the queue waits for it.
    """

    def __init__(
        self, stage: TestEnvironment, worker: SimulatedWorker, faults: FaultPlan, end: datetime, *, exact: bool
    ) -> None:
        self._stage = stage
        self._worker = worker
        self._faults = faults
        self._end = end
        self._exact = exact
        self._pending_crashes = list(faults.crashes)
        self._waits = False  # something may be waiting for a run to end
        self._again = False  # something may have become ready at this very instant
        self.crashes: list[Crash] = []
        self.steps = 0

    async def run(self, progress: Progress | None = None) -> None:
        """Runs to the end of the span; then, without new occurrences, until all created runs have ended."""
        definitions = self._stage.app.definitions()
        numbers = await self._stage.catalog.pool_ids({d.pool for d in definitions})
        pools = {numbers[d.pool] for d in definitions}
        now = self._stage.clock.now()
        while not self._over(now):
            now = await self._step(now, pools)
            self.steps += 1
            if self.steps % VACUUM_INTERVAL_STEPS == 0:
                await self._stage.tidy()
            if progress is not None:
                progress(min(now, self._end))

    def _over(self, now: datetime) -> bool:
        if now < self._end:
            return False
        return now >= self._end + MAX_DRAIN_TIME or (self._worker.idle and not self._waits and not self._again)

    async def _step(self, now: datetime, pools: Collection[int]) -> datetime:
        """Processes one instant. Runs that end free their slots before other runs start."""
        ticking = now < self._end and not self._faults.away(now)
        due = await self._stage.clock.leap(self._horizon(now), schedulers=ticking)
        now = due.now
        if now >= self._end:
            due = replace(due, hands=(), timers=False, pauses=False)
        if due.cancels:
            await self._worker.cancel_requested_runs(now)
        ended = await self._worker.finish(now)
        reaped = await self._apply_faults(now)
        born = 0 if self._faults.away(now) else await self._stage.run_due_steps(due)
        taken = 0
        if due.pools or born:
            taken = await self._worker.take(now, {*due.pools, *(pools if born else ())})
        if self._pending_crashes and self._pending_crashes[0] <= now and self._worker.schedule_crash(now):
            self._pending_crashes.pop(0)
        self._waits = due.backfills or due.waiting + born > taken
        self._again = reaped or (bool(ended or born or taken) and (self._exact or self._waits))
        return now

    def _horizon(self, now: datetime) -> datetime:
        """Returns the next instant that the database does not know about.

        The end of a run that nothing waits for is not such an instant: it is recorded later, with its own time.
        """
        if self._again:
            return now
        worker, closing = self._worker, now >= self._end
        moments = [
            self._end + MAX_DRAIN_TIME if closing else self._end,
            self._faults.next_turn(now),
            worker.dies_at,
            None if self._faults.away(now) else worker.noticed_at,
            worker.next_end() if closing or self._exact or self._waits else None,
        ]
        return min(moment for moment in moments if moment is not None)

    async def _apply_faults(self, now: datetime) -> bool:
        """Crashes the worker when its time has come, and replaces it when the crash is noticed. Returns True if it
        was replaced.
        """
        worker = self._worker
        if worker.dies_at is not None and worker.dies_at <= now:
            self.crashes.append(worker.crash(now))
        if worker.noticed_at is None or worker.noticed_at > now or self._faults.away(now):
            return False
        await worker.rejoin()
        return True
