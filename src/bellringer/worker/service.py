"""The worker process: claims runs, executes and settles them, sends heartbeats, and drains on shutdown."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from typing import Final
from uuid import uuid4

from bellringer.clock import Clock, DatabaseClock
from bellringer.codecs import PayloadCodec
from bellringer.core import fault_injection
from bellringer.core.background_loops import Wake, run_every, wait_for_any
from bellringer.core.loop_progress import loop_role
from bellringer.core.runs import Ending, RunKey
from bellringer.core.tasks import Registry
from bellringer.egress.secret_box import SecretBox
from bellringer.engine.claim import ClaimSpec
from bellringer.engine.settle import decide, decide_not_started, load_retry_windows
from bellringer.store import queue, usage, workers
from bellringer.store.connection_pool import DATABASE_ERRORS, Store
from bellringer.store.interned_names import Catalog
from bellringer.store.queue import ClaimedRun, EndedRun, NotLive
from bellringer.store.wakeups import CANCELS_CHANNEL, WORK_CHANNEL, Wakeups, listen, parse_work_hint
from bellringer.store.workers import WorkerRegistration
from bellringer.telemetry import (
    CLAIM_SECONDS,
    CLAIMS,
    CLOCK_SKEW,
    LATE_STARTS,
    RETURNED,
    START_LATENESS,
    STARTS,
    log,
    with_labels,
)
from bellringer.worker.attempt import Work
from bellringer.worker.built_in_tasks import RegistryWithBuiltIns
from bellringer.worker.executor import Executor
from bellringer.worker.fork_guard import close_connections_in_forks
from bellringer.worker.lanes.processes import IsolationSettings
from bellringer.worker.lanes.watchdog import BLOCK_LIMIT_SECONDS, BlockReports
from bellringer.worker.lease import LEASE_SECONDS, WorkerLease
from bellringer.worker.log_writer import LogWriter
from bellringer.worker.output.attempt_output import log_fields
from bellringer.worker.output.echo import CaptureSettings, Echo
from bellringer.worker.payload_preparation import PayloadPreparer
from bellringer.worker.results import expired_ending, not_started_ending
from bellringer.worker.secret_sources import DEFAULT_SOURCES, open_sources
from bellringer.worker.settler import PendingEnding, Settler, end_interrupted
from bellringer.worker.slots import POOL_TIMEOUTS_REFRESH_SECONDS, PoolSlots, PoolTimeouts
from bellringer.worker.usage import UsageMeter
from bellringer.worker.work_source import DatabaseSource, WorkSource, load_arguments, load_last_results

POLL_SECONDS: Final = 0.2
IDLE_POLL_SECONDS: Final = 1.0  # wake-ups announce new runs, so polls only replace lost ones
IDLE_AFTER_SECONDS: Final = 5.0
LONG_IDLE_POLL_SECONDS: Final = 2.0
LONG_IDLE_AFTER_SECONDS: Final = 60.0
REPORT_SECONDS: Final = 0.25
IDLE_REPORT_SLOWDOWN: Final = 4.0
SOON_SECONDS: Final = 0.02
IDLE_USAGE_SECONDS: Final = 10.0  # an idle worker writes its usage this often, instead of with every heartbeat
HEARTBEAT_SECONDS: Final = 2.0
# The service loop and the handlers' loop hand over every run, and a thread that wants to continue waits this long for
# the other one. With Python's default of 5 ms `bellringer bench drain` was a seventh slower, on a busy machine.
THREAD_SWITCH_SECONDS: Final = 0.001
RECORD_START_AFTER_SECONDS: Final = 1.0  # shorter attempts are not worth an update
FIRST_NAME_WAIT_SECONDS: Final = 0.1
LONGEST_NAME_WAIT_SECONDS: Final = 1.0
PROCESS_ID: Final = uuid4()  # stays the same when this process joins again with a new worker id

Observer = Callable[[str, Work, EndedRun | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    pools: Mapping[str, int]
    name: str = ""
    version: str = ""
    grace: timedelta = timedelta(seconds=30)
    threads: int = 64
    processes: int = 4
    isolation: IsolationSettings = field(default_factory=IsolationSettings)
    target: str | None = None
    block_limit: timedelta = timedelta(seconds=BLOCK_LIMIT_SECONDS)
    observer: Observer | None = None
    tenants: Mapping[int, str] = field(default_factory=dict)
    capture: CaptureSettings | None = None  # None: the output of handlers is not captured
    echo: Echo | None = None  # receives the lines of handlers for the worker's own stream
    secret_sources: Sequence[str] = DEFAULT_SOURCES
    secret_box: SecretBox | None = None  # decrypts secrets of the sealed store
    codec: PayloadCodec | None = None  # decrypts arguments and encrypts results


class Worker:
    """One worker. Every write names the worker id and the attempt number, which fence it against stale workers."""

    def __init__(
        self, store: Store, registry: Registry, clock: Clock, settings: WorkerSettings, source: WorkSource | None = None
    ) -> None:
        self._store = store
        self._source = source or DatabaseSource(store)
        self._registry = RegistryWithBuiltIns(registry)
        self._clock = clock
        self._database_clock = DatabaseClock(clock)
        self._settings = settings
        self._catalog = Catalog(store)
        self._log_writer = LogWriter(store)
        self._block_reports = BlockReports(self._database_clock.now)
        for dsn in {store.dsn, store.session_dsn or store.dsn}:
            close_connections_in_forks(dsn)
        self._lease = WorkerLease(clock)
        self._executor = self._create_executor()
        self._tenant_names = dict(settings.tenants)
        self._preparer = PayloadPreparer(
            open_sources(settings.secret_sources, store, settings.secret_box), settings.codec, clock, self._tenant_names
        )
        self._settler = Settler(
            store,
            clock,
            on_retry=self._on_retry,
            on_workflow_progress=self._on_workflow_progress,
            on_written=self._claim_successors,
            tenant_names=self._tenant_names,
        )
        self._wakeups = Wakeups(store, clock)
        self._other_workers_wake = Wake()
        self._has_workflow_progress = False
        self._usage = UsageMeter()
        self._usage_stored_at = float("-inf")
        self._pool_timeouts = PoolTimeouts(store, list(settings.pools))
        self._heartbeat_wake = Wake()
        self._report_wake = Wake()
        self._reconcile_wake = Wake()
        self._settled_at: datetime | None = None  # `_reconcile` has to check rows claimed before this time …
        self._confirmed_at: datetime | None = None  # … and has checked rows claimed before this one
        self._slots: list[PoolSlots] = []
        self._running: dict[int, ClaimedRun] = {}  # by the number of the start
        self._starts = count()
        self._none_running = asyncio.Event()
        self._interrupted: list[ClaimedRun] = []  # being stopped after the grace period
        self._is_interrupting = False  # the grace period is over: no handler is called any more
        self._recorded_starts: set[int] = set()  # attempts whose start is recorded, by the number of the start
        self._cancel_wake = Wake()
        self._stopping = False
        self._quiet = False  # an operator has asked this worker to finish its runs and claim no more
        self._stop_requested = asyncio.Event()
        self.worker_id = 0
        self.started = asyncio.Event()

    def _create_executor(self) -> Executor:
        settings = self._settings
        return Executor(
            self._registry,
            threads=settings.threads,
            processes=settings.processes,
            isolation=settings.isolation,
            target=settings.target,
            clock=self._clock,
            database_now=self._database_clock.now,
            log=self._log_writer.add,
            capture=settings.capture,
            echo=settings.echo,
            block_limit=settings.block_limit.total_seconds(),
            blocked=self._block_reports.add,
            may_start=self._may_start,
            codec=settings.codec,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set; then drain and give unfinished runs back."""
        loop_role.set("worker")
        sys.setswitchinterval(THREAD_SWITCH_SECONDS)
        pools = await self._catalog.pool_ids(self._settings.pools)
        await self._source.open(pools)
        await self._join()
        self._slots = slots = [PoolSlots(pool, pools[pool], count) for pool, count in self._settings.pools.items()]
        self._usage.learn(await usage.start_deadlines(self._store))
        await self._pool_timeouts.read()
        for s in slots:
            self._usage.open(s.pool_id, s.count, self._clock.monotonic())
        async with asyncio.TaskGroup() as group:
            background = [group.create_task(loop) for loop in self._background_loops()]
            claim_loops = [
                group.create_task(run_every(0.0, self._claim_loop(s), name=f"claim {s.pool}")) for s in slots
            ]
            self.started.set()
            await wait_for_any(stop, self._stop_requested)
            self._stopping = True
            for s, loop in zip(slots, claim_loops, strict=True):
                async with s.claiming:  # wait for the response of a running claim: its runs must be given back
                    loop.cancel()
            await self._source.close()
            await self._drain(slots)
            for loop in background:
                loop.cancel()
        try:
            await workers.remove(self._store, self.worker_id)
        except DATABASE_ERRORS as error:
            log.warning("the worker could not sign off; it will be declared lost", error=str(error))

    def _background_loops(self) -> Sequence[Coroutine[None, None, None]]:
        return [
            self._settler.run(),
            run_every(HEARTBEAT_SECONDS, self._send_heartbeat, name="heartbeat", wake=self._heartbeat_wake),
            run_every(60.0, self._reconcile, name="reconcile", wake=self._reconcile_wake),
            run_every(1.0, self._apply_cancel_requests, name="cancel", wake=self._cancel_wake),
            run_every(
                REPORT_SECONDS,
                self._write_reports,
                name="report",
                wake=self._report_wake,
                slowdown=lambda: 1.0 if self._running else IDLE_REPORT_SLOWDOWN,
            ),
            run_every(POOL_TIMEOUTS_REFRESH_SECONDS, self._pool_timeouts.read, name="pool timeouts"),
            run_every(60.0, self._wake_other_workers, name="wake workers", wake=self._other_workers_wake),
            listen(
                self._store, self._clock, {WORK_CHANNEL: self._hint, CANCELS_CHANNEL: lambda _: self._cancel_wake.set()}
            ),
        ]

    async def _join(self) -> None:
        known = self._registry.names()
        task_ids = await self._catalog.task_ids(known)
        await self._catalog.describe_tasks(self._registry.descriptions())
        self._tasks = {task_ids[name]: name for name in known}
        self._database_clock.observe(await self._store.now())
        joined_at = self._clock.monotonic()
        self.worker_id = await workers.join(
            self._store,
            WorkerRegistration(
                name=self._settings.name or f"{socket.gethostname()}-{os.getpid()}",
                host=socket.gethostname(),
                pid=os.getpid(),
                version=self._settings.version,
                pools=self._settings.pools,
                task_ids=sorted(self._tasks),
                dispatch=self._source.name,
                process=PROCESS_ID,
            ),
        )
        self._settled_at = self._confirmed_at = None
        self._lease.renew(joined_at)
        await queue.park_unknown_tasks(self._store, 10_000)  # unblocks runs whose task was unknown until now
        log.info("worker joined", worker_id=self.worker_id, pools=dict(self._settings.pools), tasks=len(known))

    # Claiming

    def _claim_loop(self, slots: PoolSlots) -> Callable[[], Coroutine[None, None, None]]:
        async def take() -> None:
            try:
                async with slots.claiming:
                    full = await self._claim(slots)
            except NotLive:
                self._heartbeat_wake.set()  # the heartbeat makes this worker join again
                full = False
            if not full:
                poll = self._poll_seconds(slots)
                await slots.wake.wait(slots.wakeup_times.seconds_until_next(self._database_clock.now(), poll))
            else:
                await asyncio.sleep(0)

        return take

    def _poll_seconds(self, slots: PoolSlots) -> float:
        """Return how long to wait for a wake-up before the next claim: longer while a pool has had no work."""
        listens = self._store.listener is not None and self._store.listener.connected
        idle_seconds = self._clock.monotonic() - slots.active_at
        if not listens or idle_seconds <= IDLE_AFTER_SECONDS:
            return POLL_SECONDS
        return IDLE_POLL_SECONDS if idle_seconds <= LONG_IDLE_AFTER_SECONDS else LONG_IDLE_POLL_SECONDS

    async def _claim(self, slots: PoolSlots) -> bool:
        """Claim runs for one pool. Returns True if there may be more to claim at once."""
        started = self._clock.monotonic()
        slots.measure(started)
        slots.wakeup_times.discard_until(self._database_clock.now())
        wanted = slots.wanted()
        if not wanted or self._quiet or not slots.worth_claiming() or not self._lease.valid:
            slots.may_have_more = True
            await self._source.pause(slots.pool_id, for_good=self._quiet)
            return False
        spec = ClaimSpec(worker_id=self.worker_id, pool_id=slots.pool_id, task_ids=list(self._tasks))
        taken, more = await self._source.take(spec, wanted, behind=slots.background_room())
        slots.may_have_more, slots.claimed_at = more, started
        slots.background += sum(claimed.background for claimed in taken)
        CLAIM_SECONDS.observe(self._clock.monotonic() - started)
        if not taken:
            return more
        slots.active_at = started
        fault_injection.fault_point("claim.taken")
        self._database_clock.observe(taken[0].claimed_at, sent_at=started)
        with_labels(CLAIMS, slots.pool).inc(len(taken))
        if self._clock.monotonic() - started > LEASE_SECONDS:  # this process was suspended during the claim
            await self._return_unstarted(
                spec.worker_id, [(claimed.key, claimed.attempt) for claimed in taken], "stale claim"
            )
            slots.background -= sum(claimed.background for claimed in taken)
            return more
        await self._accept(slots, spec.worker_id, taken)
        return more

    async def _accept(self, slots: PoolSlots, worker_id: int, taken: Sequence[ClaimedRun]) -> None:
        """Start claimed runs, or queue them for a slot. Runs of tenants that this worker has not served before, runs
        that record their start, and runs that need data from the database, follow after a query."""
        unnamed = [claimed for claimed in taken if claimed.tenant_id not in self._tenant_names]
        if unnamed:
            await self._accept(slots, worker_id, [c for c in taken if c.tenant_id in self._tenant_names])
            if not await self._learn_tenant_names({claimed.tenant_id for claimed in unnamed}):
                await self._return_unnamed(slots, worker_id, unnamed)
                return
            taken = unnamed
        slots.waiting.extend(
            (worker_id, claimed) for claimed in taken if not claimed.records_start and not claimed.lacks_data
        )
        self._start_waiting(slots)
        if recorded := [claimed for claimed in taken if claimed.records_start]:
            begun = await self._begin(slots, worker_id, recorded)
            slots.waiting.extend((worker_id, claimed) for claimed in begun if not claimed.lacks_data)
            self._start_waiting(slots)
            taken = [claimed for claimed in taken if not claimed.records_start] + begun
        lacking = [claimed for claimed in taken if claimed.lacks_data]
        if not lacking:
            return
        lacking = await load_last_results(self._store, self._clock, lacking)
        slots.waiting.extend((worker_id, claimed) for claimed in lacking if not claimed.spec.is_incomplete)
        incomplete = [claimed for claimed in lacking if claimed.spec.is_incomplete]
        for claimed, ending in await load_arguments(self._store, self._clock, incomplete):
            if ending is None:
                slots.waiting.append((worker_id, claimed))
            else:
                slots.background -= claimed.background
                self._settler.add(
                    PendingEnding(worker_id, claimed, self._tasks[claimed.task_id], decide(claimed, ending))
                )
        self._start_waiting(slots)

    async def _learn_tenant_names(self, tenant_ids: Collection[int]) -> bool:
        """Read the names of tenants. Waits for an unavailable database, because runs of these tenants are already
        claimed, but not longer than this worker can start them. Returns whether the names are known."""
        wait = FIRST_NAME_WAIT_SECONDS
        while True:
            try:
                self._tenant_names.update(await self._catalog.tenant_names(tenant_ids))
                return True
            except DATABASE_ERRORS as error:
                log.warning("reading names of tenants: waiting for the database", error=str(error))
            if self._stopping or not self._lease.valid:
                return False
            await self._clock.sleep(wait)
            wait = min(wait * 2, LONGEST_NAME_WAIT_SECONDS)

    async def _return_unnamed(self, slots: PoolSlots, worker_id: int, unnamed: Sequence[ClaimedRun]) -> None:
        """Give back runs of tenants whose names could not be read: a handler, a log line or a span with the name of
        another tenant is worse than a late run."""
        slots.background -= sum(claimed.background for claimed in unnamed)
        with suppress(*DATABASE_ERRORS):  # `_reconcile` gives back what this call does not
            await self._return_unstarted(worker_id, [(c.key, c.attempt) for c in unnamed], "tenant unknown")

    async def _begin(self, slots: PoolSlots, worker_id: int, claimed: Sequence[ClaimedRun]) -> list[ClaimedRun]:
        """Record the start of attempts. Returns the attempts that this worker still holds; the others are dropped, and
        `_reconcile` gives back any that are still assigned to it."""
        begun: list[ClaimedRun] = []
        try:
            begun = await queue.begin_attempts(self._store, worker_id, claimed)
            begun = await load_retry_windows(self._store, begun)
        except (NotLive, *DATABASE_ERRORS) as error:
            log.warning("attempts not started: their start could not be recorded", error=str(error))
        slots.background -= sum(c.background for c in claimed) - sum(c.background for c in begun)
        return begun

    def _start_waiting(self, slots: PoolSlots) -> None:
        """Start waiting runs while there are free slots and the lease is valid."""
        while slots.waiting and slots.busy < slots.count and not self._stopping:
            if not self._lease.valid:
                self._heartbeat_wake.set()  # a heartbeat renews the lease and calls this method again
                return
            worker_id, claimed = slots.waiting.popleft()
            if worker_id != self.worker_id:  # the run was claimed under a worker id that was declared lost
                slots.background -= claimed.background
                continue
            if claimed.expires_at is not None and self._database_clock.now() >= claimed.expires_at:
                slots.background -= claimed.background
                self._settle_expired(worker_id, claimed)
                continue
            slots.busy += 1
            self._start(slots, worker_id, claimed)

    def _settle_expired(self, worker_id: int, claimed: ClaimedRun) -> None:
        """End a run whose deadline passed while it waited for a slot."""
        settled = decide(claimed, expired_ending(), now=self._database_clock.now())
        self._settler.add(PendingEnding(worker_id, claimed, self._tasks[claimed.task_id], settled))

    def _may_start(self, work: Work) -> bool:
        """Whether the handler of an attempt may be called. An attempt that was claimed under an earlier worker id may
        have been given to another worker. Called from threads too."""
        return work.worker_id == self.worker_id and self._lease.valid and not self._is_interrupting

    def _start(self, slots: PoolSlots, worker_id: int, claimed: ClaimedRun) -> None:
        work = Work(
            key=claimed.key,
            attempt=claimed.attempt,
            spent=claimed.spent,
            task=self._tasks[claimed.task_id],
            spec=self._pool_timeouts.apply(slots.pool, claimed.spec),
            claimed_at=claimed.claimed_at,
            due_at=claimed.available_at,
            tenant=self._tenant_names[claimed.tenant_id],
            tenant_id=claimed.tenant_id,
            worker_id=worker_id,
            pool=slots.pool,
            job=claimed.name,
            resume_from=claimed.resume_from,
            last_result=claimed.last_result,
        )
        due = claimed.available_at or claimed.key.scheduled_for
        late = (self._database_clock.now() - due).total_seconds()
        if claimed.attempt == 1:
            with_labels(START_LATENESS, slots.pool).observe(max(late, 0.0))
        if not claimed.background:  # catch-ups and backfills have no start time objective
            STARTS.inc()
            if self._usage.started(slots.pool_id, claimed.tenant_id, due, late):
                LATE_STARTS.inc()
        if claimed.attempt > 1:
            self._usage.retried(slots.pool_id, claimed.tenant_id, due)
        elif claimed.is_occurrence:
            self._usage.occurred(slots.pool_id, claimed.tenant_id, claimed.key.scheduled_for)
        self._usage.began(slots.pool_id, claimed.tenant_id, self._clock.monotonic())
        if self._settings.observer:
            self._settings.observer("started", work, None)
        number = next(self._starts)
        self._running[number] = claimed
        on_end = partial(self._on_attempt_end, number, worker_id, slots, work)
        if claimed.has_markers:
            self._preparer.start(work, partial(self._executor.start, on_end=on_end), on_end)
        else:
            self._executor.start(work, on_end)

    def _on_attempt_end(self, number: int, worker_id: int, slots: PoolSlots, work: Work, ending: Ending) -> None:
        """Settle a finished attempt and start the next run in its slot."""
        claimed = self._running.pop(number, None)
        self._recorded_starts.discard(number)
        if claimed is None:  # already given back after the grace period
            return
        if not self._running:
            self._none_running.set()
        fault_injection.fault_point("execute.done")
        ended_at = self._clock.monotonic()
        slots.active_at = ended_at  # another run may have waited for this one
        self._usage.ended(slots.pool_id, claimed.tenant_id, ended_at)
        if worker_id == self.worker_id:
            if ending.started or ending.expired:
                settled = decide(claimed, ending, ended_at, self._database_clock.now())
            else:
                settled = decide_not_started(claimed, ending)
            self._settler.add(PendingEnding(worker_id, claimed, work.task, settled))
            if self._settings.observer:
                self._settings.observer("finished", work, settled)
        else:
            log.info("attempt ended under a lost worker id; its result is dropped", **log_fields(work))
        slots.finished(background=claimed.background)
        self._start_waiting(slots)
        if self._log_writer and not self._running:  # an idle worker writes reports rarely
            self._report_wake.set()
        if slots.may_have_more and slots.worth_claiming():
            slots.wake.set()

    # Hints

    def _hint(self, payload: str) -> None:
        instants, pool_id = parse_work_hint(payload)
        for slots in self._slots:
            if pool_id in (None, slots.pool_id):
                slots.wakeup_times.add(*instants)
                slots.wake.set()

    def _on_retry(self, settled: EndedRun) -> None:
        for slots in self._slots:
            slots.wakeup_times.add(self._database_clock.now() + (settled.decision.wait or timedelta(0)))
        self._wake_all()

    def _claim_successors(self) -> None:
        """Claim again after endings were written: runs may have waited for these to end, such as the next run of a job
        or of a limit. A pool in which no run has ended since its last claim is left out, and so is one that will claim
        very soon."""
        now = self._database_clock.now()
        for slots in self._slots:
            if (
                slots.active_at > slots.claimed_at
                and slots.wakeup_times.seconds_until_next(now, POLL_SECONDS) > SOON_SECONDS
            ):
                slots.wake.set()

    def _on_workflow_progress(self) -> None:
        """Wake all claim loops, here and in other workers: a finished node may have made other nodes ready."""
        self._wake_all()
        self._has_workflow_progress = True
        self._other_workers_wake.set()

    async def _wake_other_workers(self) -> None:
        if self._has_workflow_progress:
            self._has_workflow_progress = False
            await self._wakeups.send(WORK_CHANNEL)

    def _wake_all(self) -> None:
        for slots in self._slots:
            slots.wake.set()

    # Heartbeats

    async def _send_heartbeat(self) -> None:
        state = "draining" if self._stopping or self._quiet else "live"
        sent_at = self._clock.monotonic()
        heartbeat = await workers.record_heartbeat(
            self._store, self.worker_id, len(self._running), state, self._confirmed_at
        )
        if heartbeat is None:
            await self._rejoin()
            return
        self._lease.renew(sent_at)
        self._database_clock.observe(heartbeat.settled_at + workers.RESPONSE_TIME, sent_at=sent_at)
        CLOCK_SKEW.set(self._database_clock.skew().total_seconds())
        self._settled_at = heartbeat.settled_at
        self._reconcile_wake.set()
        for slots in self._slots:
            self._start_waiting(slots)
        self._quiet = self._quiet or heartbeat.requested != "work"
        if heartbeat.requested == "stop":
            self._stop_requested.set()
        await self._store_usage()

    async def _rejoin(self) -> None:
        """Join under a new worker id. Runs claimed under the old id belong to other workers now: their handlers are
        cancelled, and their results are dropped."""
        self._lease.revoke()
        log.warning(
            "this worker was declared lost and joins again", worker_id=self.worker_id, running=len(self._running)
        )
        for claimed in list(self._running.values()):  # those being prepared end before they start: see `_may_start`
            self._executor.cancel(claimed.key, claimed.attempt, "this worker was declared lost")
        await self._join()

    async def _reconcile(self) -> None:
        """Give back runs that the database assigns to this worker but that the worker does not know. Causes: the
        response of a claim was lost, or an error occurred between the claim and the start.

        A run is known while it waits, runs or is being settled. All `claiming` locks are held during the second check,
        so no claim is in flight that could make a run known. Giving back a run that was settled meanwhile has no
        effect, because the worker no longer holds it.
        """
        settled_at, worker_id = self._settled_at, self.worker_id
        if settled_at is None or settled_at == self._confirmed_at:
            return
        if await workers.held_before(self._store, worker_id, settled_at) - self._known_attempts():
            async with AsyncExitStack() as claims:
                for slots in self._slots:
                    await claims.enter_async_context(slots.claiming)
                known = self._known_attempts()
                unknown = await workers.held_before(self._store, worker_id, settled_at) - known
                await self._return_unstarted(worker_id, sorted(unknown), "lost response")
        if worker_id == self.worker_id:
            self._confirmed_at = settled_at
        await self._record_starts(worker_id)

    async def _record_starts(self, worker_id: int) -> None:
        """Record when first attempts have started that have been running for a while. If this worker is lost, the run
        counts as executed by it, and the attempt has its true start."""
        now = self._database_clock.now()
        started: dict[int, tuple[RunKey, int, datetime]] = {}
        for number, claimed in self._running.items():
            if claimed.records_start or number in self._recorded_starts:
                continue
            attempt = self._executor.find(claimed.key, claimed.attempt)
            if attempt is None or not attempt.called or attempt.work.worker_id != worker_id:
                continue
            if attempt.ran >= RECORD_START_AFTER_SECONDS:
                started[number] = (claimed.key, claimed.attempt, now - timedelta(seconds=attempt.ran))
        if started:
            await queue.record_starts(self._store, worker_id, list(started.values()))
            self._recorded_starts.update(started.keys() & self._running.keys())

    def _known_attempts(self) -> set[tuple[RunKey, int]]:
        """The attempts that this worker is responsible for."""
        claimed = [
            *self._running.values(),
            *self._interrupted,
            *(claimed for slots in self._slots for _, claimed in slots.waiting),
            *(entry.claimed for entry in self._settler.pending()),
        ]
        return {(c.key, c.attempt) for c in claimed}

    async def _return_unstarted(self, worker_id: int, attempts: Sequence[tuple[RunKey, int]], cause: str) -> None:
        """Give back attempts that were never started."""
        if attempts and (returned := await queue.give_back(self._store, worker_id, attempts)):
            RETURNED.labels(cause).inc(returned)
            log.warning("unstarted attempts given back", attempts=returned, cause=cause, run_id=attempts[0][0].id)
            self._wake_all()

    async def _store_usage(self) -> None:
        """Write collected usage to the database and read the start objectives of the tenants concerned."""
        moment = self._clock.monotonic()
        was_idle = all(slots.active_at < self._usage_stored_at for slots in self._slots) and not self._running
        if was_idle and not self._stopping and moment - self._usage_stored_at < IDLE_USAGE_SECONDS:
            return
        self._usage_stored_at = moment
        if used := self._usage.take(self._clock.monotonic(), self._database_clock.now()):
            try:
                self._usage.learn(await usage.add(self._store, used))
            except DATABASE_ERRORS:
                self._usage.keep(used)
                raise

    async def _apply_cancel_requests(self) -> None:
        if not self._running:
            return
        for key, attempt in await queue.cancel_requests(self._store, self.worker_id):
            self._executor.cancel(key, attempt, "cancelled on request")

    async def _write_reports(self) -> None:
        """Write progress, reports of blocked loops and log lines to the database, in batches."""
        if progress := self._executor.progress():
            await queue.record_progress(self._store, self.worker_id, progress)
        await self._block_reports.write(self._store)
        await self._log_writer.write()

    # Stopping

    def shorten_grace(self, grace: timedelta) -> None:
        """Limit how long a later shutdown waits for running attempts."""
        self._settings = replace(self._settings, grace=min(self._settings.grace, grace))

    async def _drain(self, slots: Sequence[PoolSlots]) -> None:
        """Give back waiting runs, let running attempts finish within the grace period, then interrupt the rest."""
        self._stopping = True
        await self._give_back(slots)
        if self._running:
            grace = self._settings.grace.total_seconds()
            log.info("draining", running=len(self._running), grace_s=grace)
            self._none_running.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await self._none_running.wait()
        await self._interrupt_running()
        await self._settler.drain()
        with suppress(*DATABASE_ERRORS):  # if this fails, the reaper gives the runs back
            held = await workers.held_before(self._store, self.worker_id, await self._store.now())
            await self._return_unstarted(self.worker_id, sorted(held - self._known_attempts()), "lost response")
        with suppress(*DATABASE_ERRORS):  # usage and log lines are not worth a failed shutdown
            await self._write_reports()
            await self._store_usage()

    async def _interrupt_running(self) -> None:
        """Stop the attempts that the grace period has not sufficed for, and give back those whose handler was not
        called: they wait for a thread, for a child process or for their arguments."""
        self._interrupted = list(self._running.values())
        attempts = [self._executor.find(c.key, c.attempt) for c in self._interrupted]
        self._running.clear()
        self._is_interrupting = True
        self._preparer.cancel()
        await self._executor.close()  # child processes are dead before another worker can claim their runs
        unstarted: list[ClaimedRun] = []
        for claimed, attempt in zip(self._interrupted, attempts, strict=True):
            if attempt is None or not attempt.called:
                unstarted.append(claimed)
            elif attempt.work.worker_id == self.worker_id:
                settled = end_interrupted(claimed, attempt.ran, attempt.control.stored_progress())
                self._settler.add(PendingEnding(self.worker_id, claimed, self._tasks[claimed.task_id], settled))
        await self._give_back_claimed(unstarted)
        self._interrupted = []

    async def _give_back(self, slots: Sequence[PoolSlots]) -> None:
        taken = [claimed for s in slots for worker_id, claimed in s.waiting if worker_id == self.worker_id]
        for s in slots:
            s.waiting.clear()
        await self._give_back_claimed(taken)

    async def _give_back_claimed(self, claimed: Sequence[ClaimedRun]) -> None:
        """Give back runs whose handlers were not called. If the database is unavailable, those whose start is already
        recorded are settled as not started: the reaper would take them for started."""
        if not claimed:
            return
        try:
            await queue.give_back(self._store, self.worker_id, [(c.key, c.attempt) for c in claimed])
        except DATABASE_ERRORS as error:
            log.warning("runs not given back; the reaper will do it", runs=len(claimed), error=str(error))
            for run in (c for c in claimed if c.records_start):
                settled = decide_not_started(run, not_started_ending())
                self._settler.add(PendingEnding(self.worker_id, run, self._tasks[run.task_id], settled))
