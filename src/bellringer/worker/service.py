"""The worker process: claims, executes, settles; says that it lives; and stops without harm."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Final

from bellringer import faults
from bellringer.clock import Clock, DatabaseClock
from bellringer.lifecycle.claim import Seat
from bellringer.lifecycle.settle import decide
from bellringer.loops import Wake, every, first_of
from bellringer.runs import Ending
from bellringer.store import history, queue, usage, workers
from bellringer.store.names import Names
from bellringer.store.pool import FAILURES, RETRYABLE, Store
from bellringer.store.queue import Claimed, Settled
from bellringer.store.wakeups import CANCELS, WORK, Wakeups, hear, read_instant
from bellringer.store.workers import Introduction
from bellringer.strikes import Strikes
from bellringer.tasks import Registry
from bellringer.telemetry import CLAIM_SECONDS, CLAIMS, START_LATENESS, log, one_of
from bellringer.worker.builtin import WithBuiltIns
from bellringer.worker.executor import Executor
from bellringer.worker.filling import complete
from bellringer.worker.meter import Meter
from bellringer.worker.seats import Seats
from bellringer.worker.settler import Entry, Settler, interrupted
from bellringer.worker.sources import Claims, Source
from bellringer.worker.tiers import FRESH, Tiers
from bellringer.worker.work import LogLine, Work

POLL: Final = 0.2
BEAT: Final = 2.0
MOST_LINES: Final = 5_000

Observer = Callable[[str, Work, Settled | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """How a worker goes about its work."""

    pools: Mapping[str, int]
    name: str = ""
    version: str = ""
    grace: timedelta = timedelta(seconds=30)
    threads: int = 64
    processes: int = 4
    target: str | None = None
    observer: Observer | None = None
    tenants: Mapping[int, str] = field(default_factory=dict)


class Worker:
    """One worker. What it holds is its own by its number and the attempt's; both are named in every write."""

    def __init__(
        self, store: Store, registry: Registry, clock: Clock, settings: WorkerSettings, source: Source | None = None
    ) -> None:
        self._store = store
        self._source = source or Claims(store)
        self._registry = WithBuiltIns(registry)
        self._clock = clock
        self._time = DatabaseClock(clock)
        self._settings = settings
        self._names = Names(store)
        self._lines: deque[LogLine] = deque()  # handlers' threads append to it
        self._executor = Executor(
            self._registry,
            threads=settings.threads,
            processes=settings.processes,
            target=settings.target,
            clock=clock,
            database_now=self._time.now,
            log=self._lines.append,
        )
        self._settler = Settler(store, clock, self._strike_again, self._go_on)
        self._wakeups = Wakeups(store, clock)
        self._others_wake = Wake()
        self._strikes = Strikes()
        self._meter = Meter()
        self._tiers = Tiers(store, list(settings.pools))
        self._wakes: list[Wake] = []
        self._running: dict[asyncio.Future[Ending], Claimed] = {}
        self._cancel_wake = Wake()
        self._stopping = False
        self._quiet = False  # an operator wants it to finish what runs, and to claim no more
        self._asked_to_stop = asyncio.Event()
        self.worker_id = 0
        self.started = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Work until asked to stop; then drain, and give the rest back."""
        pools = await self._names.pool_ids(self._settings.pools)
        await self._source.open(pools)
        await self._join()
        seats = [Seats(pool, pools[pool], slots) for pool, slots in self._settings.pools.items()]
        self._wakes = [Wake() for _ in seats]
        self._meter.learn(await usage.within(self._store))
        await self._tiers.read()
        for s in seats:
            self._meter.open(s.pool_id, s.slots, self._clock.monotonic())
        async with asyncio.TaskGroup() as chores:
            kept = [chores.create_task(loop) for loop in self._chores()]
            taking = [
                chores.create_task(every(0.0, self._taker(s, w), name=f"claim {s.pool}"))
                for s, w in zip(seats, self._wakes, strict=True)
            ]
            self.started.set()
            await first_of(stop, self._asked_to_stop)
            self._stopping = True
            for s, loop in zip(seats, taking, strict=True):
                async with s.claiming:  # what a claim has taken must be known, to be given back
                    loop.cancel()
            await self._source.close()
            await self._drain(seats)
            for loop in kept:
                loop.cancel()
        await workers.leave(self._store, self.worker_id)

    def _chores(self) -> Sequence[Coroutine[None, None, None]]:
        return [
            self._settler.run(),
            every(BEAT, self._beat, name="beat"),
            every(1.0, self._cancel, name="cancel", wake=self._cancel_wake),
            every(0.25, self._report, name="report"),
            every(FRESH, self._tiers.read, name="tiers"),
            every(60.0, partial(self._wakeups.send, WORK), name="tell others", wake=self._others_wake),
            hear(self._store, self._clock, {WORK: self._hint, CANCELS: lambda _: self._cancel_wake.set()}),
        ]

    async def _join(self) -> None:
        known = self._registry.names()
        task_ids = await self._names.task_ids(known)
        await self._names.describe_tasks(self._registry.descriptions())
        self._tasks = {task_ids[name]: name for name in known}
        self._time.observe(await self._store.now())
        self.worker_id = await workers.join(
            self._store,
            Introduction(
                name=self._settings.name or f"{socket.gethostname()}-{os.getpid()}",
                host=socket.gethostname(),
                pid=os.getpid(),
                version=self._settings.version,
                pools=self._settings.pools,
                task_ids=sorted(self._tasks),
                dispatch=self._source.engine,
            ),
        )
        await queue.sweep(self._store, 10_000)  # runs that waited for somebody who knows their task
        log.info("worker joined", worker_id=self.worker_id, pools=dict(self._settings.pools), tasks=len(known))

    # Claiming

    def _taker(self, seats: Seats, wake: Wake) -> Callable[[], Coroutine[None, None, None]]:
        async def take() -> None:
            async with seats.claiming:
                full = await self._claim(seats)
            if not full:
                await wake.wait(self._strikes.until_next(self._time.now(), POLL))
            else:
                await asyncio.sleep(0)

        return take

    async def _claim(self, seats: Seats) -> bool:
        """Claim for one pool; True: there may be more, as all that was asked for was there, or not all was seen."""
        started = self._clock.monotonic()
        seats.measure(started)
        wanted = seats.wanted()
        if not wanted or self._quiet or not seats.worth_claiming():
            await self._source.rest(seats.pool_id, for_good=self._quiet)
            return False
        seat = Seat(worker_id=self.worker_id, pool_id=seats.pool_id, task_ids=list(self._tasks))
        taken, more = await self._source.take(seat, wanted, behind=seats.room_behind())
        seats.behind += sum(claimed.behind for claimed in taken)
        CLAIM_SECONDS.observe(self._clock.monotonic() - started)
        if not taken:
            return more
        faults.point("claim.taken")
        self._time.observe(taken[0].claimed_at)
        one_of(CLAIMS, seats.pool).inc(len(taken))
        await self._seat(seats, seat.worker_id, taken)
        return more

    async def _seat(self, seats: Seats, worker_id: int, taken: Sequence[Claimed]) -> None:
        """Seat what was claimed; nodes once their arguments are read. One whose arguments cannot be read has failed."""
        seats.waiting.extend((worker_id, claimed) for claimed in taken if not claimed.spec.refs)
        self._fill(seats)
        for claimed, ending in await complete(self._store, self._clock, [c for c in taken if c.spec.refs]):
            if ending is None:
                seats.waiting.append((worker_id, claimed))
            else:
                seats.behind -= claimed.behind
                self._settler.add(Entry(worker_id, claimed, self._tasks[claimed.task_id], decide(claimed, ending)))
        self._fill(seats)

    def _fill(self, seats: Seats) -> None:
        """Seat what waits, as far as there are seats."""
        while seats.waiting and seats.busy < seats.slots and not self._stopping:
            worker_id, claimed = seats.waiting.popleft()
            if worker_id != self.worker_id:  # this worker was declared lost since; the run is somebody else's
                seats.behind -= claimed.behind
                continue
            seats.busy += 1
            self._start(seats, claimed)

    def _start(self, seats: Seats, claimed: Claimed) -> None:
        work = Work(
            key=claimed.key,
            attempt=claimed.attempt,
            spent=claimed.spent,
            task=self._tasks[claimed.task_id],
            spec=self._tiers.bounded(seats.pool, claimed.spec),
            claimed_at=claimed.claimed_at,
            due_at=claimed.available_at,
            tenant=self._settings.tenants.get(claimed.tenant_id, "default"),
            tenant_id=claimed.tenant_id,
            pool=seats.pool,
            job=claimed.name,
        )
        due = claimed.available_at or claimed.key.scheduled_for
        late = (self._time.now() - due).total_seconds()
        if claimed.attempt == 1:
            one_of(START_LATENESS, seats.pool).observe(max(late, 0.0))
        if not claimed.behind:  # what runs behind live work has no time to keep
            self._meter.started(seats.pool_id, claimed.tenant_id, due, late)
        self._meter.began(seats.pool_id, claimed.tenant_id, self._clock.monotonic())
        if self._settings.observer:
            self._settings.observer("started", work, None)
        end = self._executor.start(work)
        self._running[end] = claimed
        end.add_done_callback(partial(self._ended, self.worker_id, seats, claimed, work))

    def _ended(self, worker_id: int, seats: Seats, claimed: Claimed, work: Work, end: asyncio.Future[Ending]) -> None:
        """Settle an ending, under the number that claimed it, and give its seat to the next."""
        if self._running.pop(end, None) is None:  # the grace was over; it was given back
            return
        faults.point("execute.done")
        ended_at = self._clock.monotonic()
        self._meter.ended(seats.pool_id, claimed.tenant_id, ended_at)
        settled = decide(claimed, end.result(), ended_at)
        self._settler.add(Entry(worker_id, claimed, work.task, settled))
        if self._settings.observer:
            self._settings.observer("finished", work, settled)
        seats.finished(behind=claimed.behind)
        self._fill(seats)
        if seats.worth_claiming():
            self._wake_all()

    # Hints

    def _hint(self, payload: str) -> None:
        if instant := read_instant(payload):
            self._strikes.add(instant)
        self._wake_all()

    def _strike_again(self, settled: Settled) -> None:
        self._strikes.add(self._time.now() + (settled.verdict.wait or timedelta(0)))
        self._wake_all()

    def _go_on(self) -> None:
        """Nodes of workflows have ended, so others may be ready: here, or where other workers claim."""
        self._wake_all()
        self._others_wake.set()

    def _wake_all(self) -> None:
        for wake in self._wakes:
            wake.set()

    # Staying alive

    async def _beat(self) -> None:
        state = "draining" if self._stopping or self._quiet else "live"
        if asked := await workers.beat(self._store, self.worker_id, len(self._running), state):
            self._quiet = self._quiet or asked != "work"
            if asked == "stop":
                self._asked_to_stop.set()
            await self._tell_usage()
            return
        log.warning("this worker was declared lost; it starts over", worker_id=self.worker_id)
        for claimed in list(self._running.values()):
            self._executor.cancel(claimed.key, claimed.attempt, "this worker was declared lost")
        await self._join()

    async def _tell_usage(self) -> None:
        """Bring what was summed up to the database, and learn within what time those tenants want their runs."""
        if used := self._meter.take(self._clock.monotonic(), self._time.now()):
            try:
                self._meter.learn(await usage.add(self._store, used))
            except FAILURES:
                self._meter.keep(used)
                raise

    async def _cancel(self) -> None:
        for key, attempt in await queue.cancels(self._store, self.worker_id):
            self._executor.cancel(key, attempt, "cancelled on request")

    async def _report(self) -> None:
        """Bring progress and log lines to the database, in batches."""
        if news := self._executor.progress():
            await queue.report(self._store, self.worker_id, news)
        while lines := [self._lines.popleft() for _ in range(min(len(self._lines), MOST_LINES))]:
            try:
                await history.ensure_days(self._store, {line.key.scheduled_for.date() for line in lines})
                await queue.log(self._store, [line.row for line in lines])
            except FAILURES:
                self._lines.extendleft(reversed(lines))
                raise

    # Stopping

    async def _drain(self, seats: Sequence[Seats]) -> None:
        """Give back what was not started; let what runs finish within the grace; give back the rest unharmed."""
        self._stopping = True
        await self._give_back(seats)
        if self._running:
            grace = self._settings.grace.total_seconds()
            log.info("draining", running=len(self._running), grace_s=grace)
            await asyncio.wait(list(self._running), timeout=grace)
        unfinished = list(self._running.values())
        self._running.clear()
        await self._executor.close()  # a child process is dead before its run is anybody else's
        for claimed in unfinished:
            entry = Entry(self.worker_id, claimed, self._tasks[claimed.task_id], interrupted(claimed))
            self._settler.add(entry)
        await self._settler.drained()
        await self._report()
        with suppress(*FAILURES):  # figures are not worth a stop that fails
            await self._tell_usage()

    async def _give_back(self, seats: Sequence[Seats]) -> None:
        taken = [(c.key, c.attempt) for s in seats for worker_id, c in s.waiting if worker_id == self.worker_id]
        for s in seats:
            s.waiting.clear()
        if taken:
            try:
                await queue.give_back(self._store, self.worker_id, taken)
            except RETRYABLE as error:
                log.warning("could not give runs back; the reaper will", runs=len(taken), error=str(error))
