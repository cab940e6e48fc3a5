"""What is asked of a simulation, read and checked; then it is lived through, and judged."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Final

from bellringer.clock import SystemClock
from bellringer.durations import parse_duration
from bellringer.errors import InvalidInput
from bellringer.schedule import Delay
from bellringer.sdk.app import App
from bellringer.sdk.portal import refuse_to_block
from bellringer.simulate.faults import Outage, choose_faults, read_time
from bellringer.simulate.report import Report
from bellringer.simulate.simulation import Progress, Simulation
from bellringer.simulate.standins import node_names, stand_ins
from bellringer.simulate.sums import judge
from bellringer.simulate.worker import SimulatedWorker
from bellringer.testing.server import serve
from bellringer.testing.stage import Stage

Length = str | float | timedelta

BEFORE: Final = timedelta(seconds=1)  # jobs are declared that long before the start, so that its own instant counts
MOST_SLOTS: Final = 10_000


def simulate(app: App, start: datetime | str, end: datetime | str, *, dsn: str | None = None, **how: Any) -> Report:
    """Live through a span of the schedules that an app declares; see `asimulate` for what can be asked.

    Without a DSN it brings a database of its own. To be called in the main thread then.
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
    """The same on a fresh database.

    `outage` names times without schedulers; `outages` and `crashes` say how many more are drawn by the seed. If none
    of the three is given, 2 outages and 5 crashes are. Each run takes `duration`, or what `durations` say of
    its job or node, and succeeds; with `execute` its handler is called, and decides.
    """
    since, until = _span(start, end)
    faults = choose_faults(since, until, given=outage, outages=outages, crashes=crashes, seed=seed)
    _check_slots(slots)
    lengths = _lengths(app, duration, durations or {})
    clock, stage = SystemClock(), Stage(app, dsn)
    began = clock.monotonic()
    with _seeded(seed):
        await stage.open(since - BEFORE)
        try:
            results = stand_ins(flows := _workflows(app))
            worker = SimulatedWorker(stage, slots=slots, duration=lengths, execute=execute, results=results)
            simulation = Simulation(stage, worker, faults, until, exact=execute or _delays(app) or bool(flows))
            await simulation.run(progress)
            jobs, summary, findings = await judge(stage, since, until)
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


def _check_slots(slots: int) -> None:
    if not 1 <= slots <= MOST_SLOTS:
        raise InvalidInput(f"slots must be from 1 to {MOST_SLOTS:,}, not {slots}", pointer="/slots", code="limit")


def _span(start: datetime | str, end: datetime | str) -> tuple[datetime, datetime]:
    since, until = read_time(start, what="from"), read_time(end, what="to")
    if since >= until:
        raise InvalidInput(f"from {since.isoformat()} to {until.isoformat()} there is no time", code="span_invalid")
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
def _seeded(seed: int) -> Iterator[None]:
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
