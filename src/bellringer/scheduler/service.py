"""The scheduler process: a list of background loops, each around one step of the engine."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Final
from uuid import uuid4

from bellringer import tracing
from bellringer.clock import Clock, DatabaseClock
from bellringer.core import fault_injection
from bellringer.core.archive import ObjectStore
from bellringer.core.background_loops import Wake, run_every
from bellringer.core.broker import UNSEND_AFTER, BrokerBackend
from bellringer.core.leases import LEASE_DURATION, Holding, LeaseKeeper
from bellringer.core.loop_progress import loop_role
from bellringer.core.time_index import TimeIndex
from bellringer.engine import prune as pruning
from bellringer.engine.backfill import BackfillCursor, run_backfills
from bellringer.engine.operations import OperationCursor, run_operations
from bellringer.engine.prune import Retention
from bellringer.engine.reap import WORKER_SILENCE
from bellringer.engine.tick import TickLimits, fire_timers, max_timers, tick
from bellringer.scheduler.broker_dispatcher import Dispatcher, unsend_all
from bellringer.scheduler.due_cohorts import POLL_AHEAD, CohortPoller, DueHeap
from bellringer.scheduler.maintenance import Maintenance
from bellringer.scheduler.monitoring import Monitoring, SealCheckStep
from bellringer.scheduler.shards import HeldShards
from bellringer.store import forecast, queue, tzdata
from bellringer.store.cohorts import Cohort, TickOutcome
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.leases import NodeHeartbeat
from bellringer.store.wakeups import (
    CANCELS_CHANNEL,
    COHORTS_CHANNEL,
    RUNS_CHANNEL,
    SHARDS_RELEASED,
    WORK_CHANNEL,
    Wakeups,
    format_instants,
    listen,
    parse_work_hint,
)
from bellringer.telemetry import CLOCK_SKEW, FIRE_LATENESS, FIRES, MISSED, POLL_SECONDS, STALE, TICK_SECONDS, log

_Step = Callable[[], Awaitable[object]]

POLL_INTERVAL_SECONDS: Final = 0.5
IDLE_POLL_SECONDS: Final = 1.0
IDLE_AFTER_SECONDS: Final = 30.0
IDLE_SLOWDOWN: Final = 4.0  # by this factor, background steps are rarer while nothing happens
RENEW_SECONDS: Final = 1.0  # maximum time between two lease renewals; bounds the time until a standby takes over
MIN_TICK_COHORTS, MAX_TICK_COHORTS = 4, 8_000
UNNEEDED_STEP_SECONDS: Final = 5.0  # between passes of a step that has nothing to do
LONG_STEP_SECONDS: Final = 900.0  # for steps that process large batches, before they count as stalled
SEAL_CHECK_SECONDS: Final = 30.0
ARCHIVE_SECONDS: Final = 15.0  # between two slices of the archive, which take up to 5 s each
MAX_PASSES: Final = 10  # of backfills or operations, before their loop sleeps


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    name: str = ""
    version: str = ""
    pace: TickLimits = field(default_factory=TickLimits)
    retention: Retention = field(default_factory=Retention)
    lease: timedelta = LEASE_DURATION
    silence: timedelta = WORKER_SILENCE
    region: str | None = None
    archive: ObjectStore | None = None  # for runs past retention; None: they are deleted
    heartbeat_url: str | None = field(default=None, repr=False)
    heartbeat_interval: timedelta = timedelta(seconds=60)


class Scheduler:
    """One scheduler node. All nodes are equal; each fires the due cohorts and timers of the shards that it holds."""

    def __init__(
        self,
        store: Store,
        keeper: LeaseKeeper,
        clock: Clock,
        settings: SchedulerSettings,
        broker: BrokerBackend | None = None,
        index: TimeIndex | None = None,
    ) -> None:
        self._store = store
        self._catalog = Catalog(store)
        self._keeper = keeper
        self._clock = clock
        self._database_clock = DatabaseClock(clock)
        self._settings = settings
        self._dispatcher = (
            Dispatcher(store, broker, clock, self._database_clock.now, self._dispatches_pool) if broker else None
        )
        self._node_id = uuid4()  # new at every start, so that a (holder, token) pair is never granted twice
        self._monitoring = Monitoring(store, self._catalog)
        self._maintenance = Maintenance(
            store,
            self._catalog,
            clock,
            self._database_clock.now,
            settings.retention,
            settings.silence,
            settings.archive,
        )
        self._seal_check = SealCheckStep(store)
        self._due_heap = DueHeap()
        self._poller = CohortPoller(store, self._catalog, self._due_heap, self._database_clock, clock, index)
        self._backfill_cursor = BackfillCursor()
        self._operation_cursor = OperationCursor()
        self._wake = Wake()
        self._shards_free = Wake()
        self._step_wakes: dict[str, Wake] = {}
        self._wakeups = Wakeups(store, clock)
        self._polled_at = float("-inf")
        self._active_at = clock.monotonic()
        self._idle_wakes: list[Wake] = []
        self._tick_size = 2_000
        self.fired = 0
        self.refused = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set, then release the shards."""
        loop_role.set("scheduler")
        self._total = await self._catalog.shard_count()
        self._shards = HeldShards(
            self._store,
            self._keeper,
            self._node_id,
            self._total,
            self._clock,
            self._settings.lease,
        )
        await pruning.create_partitions(self._store, await self._store.now())
        async with asyncio.TaskGroup() as group:
            loops = [group.create_task(loop) for loop in self._loops()]
            await stop.wait()
            for loop in loops:
                loop.cancel()
        if self._dispatcher is not None:
            await self._dispatcher.close()
        await self._shards.leave()
        await self._wakeups.send(COHORTS_CHANNEL, SHARDS_RELEASED)
        await self._poller.close()

    def _loops(self) -> Sequence[Coroutine[None, None, None]]:
        lease = self._settings.lease.total_seconds()
        return [
            run_every(min(lease / 5, RENEW_SECONDS), self._renew_leases, name="keep", wake=self._shards_free),
            self._keeper.watch(self._shards_free.set),
            run_every(0.0, self._fire, name="fire"),
            self._unless_idle(0.25, self._wake_steps, name="wake steps"),
            self._when_needed("backfill", self._backfill),
            run_every(1.0, self._on_shard_zero(self._maintenance.reap), name="reap"),
            self._unless_idle(2.0, self._on_shard_zero(self._maintenance.sweep), name="sweep"),
            self._when_needed("decide", self._on_shard_zero(self._maintenance.decide)),
            self._when_needed("stop", self._on_shard_zero(self._maintenance.stop)),
            self._when_needed("resume", self._on_shard_zero(self._maintenance.resume)),
            self._unless_idle(2.0, self._on_shard_zero(self._maintenance.finish), name="finish"),
            self._unless_idle(
                2.0, self._on_shard_zero(self._monitoring.watch, otherwise=self._monitoring.clear), name="watch"
            ),
            self._unless_idle(5.0, self._on_shard_zero(self._monitoring.compare), name="compare"),
            self._unless_idle(5.0, self._on_shard_zero(self._monitoring.find_stuck), name="find stuck"),
            self._unless_idle(5.0, self._on_shard_zero(self._monitoring.route), name="route"),
            self._unless_idle(5.0, self._on_shard_zero(self._monitoring.recover), name="recover"),
            self._when_needed("announce", self._on_shard_zero(self._monitoring.announce)),
            self._unless_idle(1.0, self._on_shard_zero(self._monitoring.notify), name="notify"),
            self._unless_idle(1.0, self._on_shard_zero(self._monitoring.check_in), name="check in"),
            *self._heartbeat_loops(),
            self._when_needed("operate", self._operate),
            self._unless_idle(5.0, self._retime, name="retime"),
            run_every(3600.0, self._monitoring.check_rules, name="check rules"),
            run_every(600.0, self._make_days, name="make days"),
            run_every(
                3600.0, self._on_shard_zero(self._maintenance.prune), name="prune", step_seconds=LONG_STEP_SECONDS
            ),
            run_every(
                ARCHIVE_SECONDS,
                self._on_shard_zero(self._maintenance.trim),
                name="trim",
                step_seconds=LONG_STEP_SECONDS,
            ),
            run_every(
                ARCHIVE_SECONDS,
                self._on_shard_zero(self._maintenance.archive),
                name="archive",
                step_seconds=LONG_STEP_SECONDS,
            ),
            self._unless_idle(2.0, self._on_shard_zero(self._maintenance.seal), name="seal"),
            run_every(
                SEAL_CHECK_SECONDS,
                self._on_shard_zero(self._seal_check.check, otherwise=self._seal_check.clear),
                name="check seals",
            ),
            run_every(60.0, self._tidy, name="tidy"),
            self._unless_idle(1.0, self._recount, name="recount"),
            *self._dispatch_loops(),
        ]

    def _heartbeat_loops(self) -> Sequence[Coroutine[None, None, None]]:
        url = self._settings.heartbeat_url
        if url is None:
            return []
        step = self._on_shard_zero(partial(self._monitoring.beat, url, self._clock))
        return [run_every(self._settings.heartbeat_interval.total_seconds(), step, name="heartbeat")]

    def _when_needed(self, name: str, step: _Step) -> Coroutine[None, None, None]:
        """The loop of a step that `steps_with_work` names when it has something to do."""
        self._step_wakes[name] = Wake()
        return run_every(
            UNNEEDED_STEP_SECONDS,
            step,
            name=name,
            wake=self._step_wakes[name],
            slowdown=self._idle_slowdown,
            step_seconds=LONG_STEP_SECONDS,
        )

    async def _wake_steps(self) -> None:
        """Wake the loops of steps that have something to do: one query instead of one for each step."""
        for step in await queue.steps_with_work(self._store, sorted(self._shards.holding().tokens)):
            self._step_wakes[step].set()
            self._note_activity()

    def _unless_idle(self, seconds: float, step: _Step, *, name: str) -> Coroutine[None, None, None]:
        """The loop of a step that is rarer while nothing happens."""
        wake = Wake()
        self._idle_wakes.append(wake)
        return run_every(seconds, step, name=name, wake=wake, slowdown=self._idle_slowdown)

    def _idle_slowdown(self) -> float:
        return IDLE_SLOWDOWN if self._is_idle() else 1.0

    def _is_idle(self) -> bool:
        """Whether nothing was fired, sent or changed for a while."""
        return self._clock.monotonic() - self._active_at > IDLE_AFTER_SECONDS

    def _note_activity(self) -> None:
        """Return from idle: the steps that were rarer run now."""
        was_idle, self._active_at = self._is_idle(), self._clock.monotonic()
        if was_idle:
            for wake in self._idle_wakes:
                wake.set()

    def _dispatch_loops(self) -> Sequence[Coroutine[None, None, None]]:
        if self._dispatcher is None:
            return [
                run_every(
                    UNSEND_AFTER.total_seconds(),
                    self._on_shard_zero(partial(unsend_all, self._store)),
                    name="bring home",
                ),
                listen(
                    self._store,
                    self._clock,
                    {COHORTS_CHANNEL: self._hint, WORK_CHANNEL: lambda _: self._note_activity()},
                ),
            ]
        dispatcher = self._dispatcher

        def hint_dispatcher(payload: str) -> None:
            self._note_activity()
            dispatcher.hint(parse_work_hint(payload))

        return [
            dispatcher.run(),
            listen(self._store, self._clock, {COHORTS_CHANNEL: self._hint, WORK_CHANNEL: hint_dispatcher}),
        ]

    def _dispatches_pool(self, pool_id: int) -> bool:
        """Whether this node sends the runs of a pool to the broker: the holder of the pool's shard does."""
        return pool_id % self._total in self._shards.holding().tokens

    def _hint(self, payload: str) -> None:
        if payload == SHARDS_RELEASED:
            self._shards_free.set()
            return
        self._note_activity()
        self._polled_at = float("-inf")
        self._poller.request_full_poll()
        self._wake.set()

    # Shards

    async def _renew_leases(self) -> None:
        skew = self._database_clock.skew().total_seconds()
        CLOCK_SKEW.set(skew)
        await self._shards.maintain(
            NodeHeartbeat(
                node_id=self._node_id,
                name=self._settings.name or f"{socket.gethostname()}-{os.getpid()}",
                host=socket.gethostname(),
                pid=os.getpid(),
                version=self._settings.version,
                shards=len(self._shards.holding().tokens),
                fired=self.fired,
                refused=self.refused,
                skew=skew,
                region=self._settings.region,
                waits_for=self._dispatcher.waits_for if self._dispatcher else None,
            )
        )

    # Firing

    async def _fire(self) -> None:
        """Fire all due cohorts and timers, pass by pass, then sleep until the next due time or poll."""
        while await self._fire_once():
            pass
        await self._wake.wait(self._sleep_seconds())

    def _sleep_seconds(self) -> float:
        interval = self._poll_seconds()
        poll = self._polled_at + interval - self._clock.monotonic()
        due_at = self._due_heap.next_due_at()
        if due_at is None:
            return max(min(poll, interval), 0.01)
        until = (due_at - self._settings.pace.lead - self._database_clock.now()).total_seconds()
        return max(min(poll, until, interval), 0.001)

    def _poll_seconds(self) -> float:
        return IDLE_POLL_SECONDS if self._is_idle() and self._poller.may_poll_rarely else POLL_INTERVAL_SECONDS

    async def _fire_once(self) -> bool:
        """Do one bounded pass. Returns True if there may be more to fire."""
        async with self._shards.ticking:
            holding = self._shards.holding()
            if not holding.tokens:
                return False
            self._due_heap.keep(holding.tokens.keys())
            timer_shards = await self._poll(holding.tokens)
            fired = TickOutcome()
            if timer_shards:
                self._poller.mark_changed(timer_shards)
                fault_injection.fault_point("fire_timers.checked")  # as for `tick.checked` below
                with _fire_span("timers", shards=len(timer_shards)) as record_fired:
                    fired = await fire_timers(self._store, holding, timer_shards, self._settings.pace)
                    record_fired(fired.fired)
                self._count(fired, self._database_clock.now())
                if fired.first_due_at is not None:
                    self._observe_lateness(fired.first_due_at)
            cohorts = self._due_heap.take(self._database_clock.now() + self._settings.pace.lead, self._tick_size)
            more_timers = fired.moved >= max_timers(self._settings.pace)
            if more_timers:
                self._polled_at = float("-inf")
            if not cohorts:
                return more_timers
            fault_injection.fault_point("tick.checked")  # from here on, only the fencing token protects the write
            await self._tick(holding, cohorts)
            return True

    async def _poll(self, tokens: Mapping[int, int]) -> list[int]:
        """Fill the heap of due cohorts, at most twice a second. Returns the shards that have a timer that is due soon.

        An idle scheduler polls less often, so it looks further ahead; the first timer that it sees ends the idleness.
        """
        interval, lead = self._poll_seconds(), self._settings.pace.lead
        if self._clock.monotonic() - self._polled_at < interval:
            return []
        self._polled_at = self._clock.monotonic()
        timers_within = lead + timedelta(seconds=interval - POLL_INTERVAL_SECONDS)
        seen = await self._poller.poll(tokens, lead, timers_within=timers_within)
        POLL_SECONDS.observe(self._clock.monotonic() - self._polled_at)
        if seen.more:
            self._polled_at = float("-inf")  # poll again as soon as these are done
        if seen.timer_shards or len(self._due_heap):
            self._note_activity()
        return seen.timer_shards

    async def _tick(self, holding: Holding, cohorts: Sequence[Cohort]) -> None:
        self._poller.mark_changed({cohort.shard for cohort in cohorts})
        started, now = self._clock.monotonic(), self._database_clock.now()
        rules = await tzdata.local_tz_id(self._store)
        with _fire_span("schedules", cohorts=len(cohorts)) as record_fired:
            ticked = await tick(self._store, self._catalog, holding, cohorts, now, self._settings.pace, rules)
            record_fired(ticked.fired.fired)
        fired = ticked.fired
        TICK_SECONDS.observe(self._clock.monotonic() - started)
        self._count(fired, cohorts[0].next_at)
        if fired.fired:
            await self._wake_workers(ticked.due_instants)
        if ticked.stale or (fired.cut and not fired.fired):  # the heap was stale, or a fast-forward continues
            self._polled_at = float("-inf")
        horizon = now + self._settings.pace.lead + POLL_AHEAD
        self._due_heap.put(cohort for cohort in ticked.cohorts if cohort.next_at <= horizon)
        self._adjust_tick_size(len(cohorts), min(fired.moved, len(cohorts)), fired.fired)

    async def _wake_workers(self, instants: Collection[datetime]) -> None:
        """Send workers the times at which new runs become claimable."""
        for instant in instants:
            self._observe_lateness(instant)
        await self._wakeups.send(WORK_CHANNEL, format_instants(instants))

    def _observe_lateness(self, due_at: datetime) -> None:
        FIRE_LATENESS.observe(max((self._database_clock.now() - due_at).total_seconds(), 0.0))

    def _adjust_tick_size(self, given: int, moved: int, fired: int) -> None:
        """Adjust the number of cohorts of the next tick to what one call can fire: a tick counts the members of all
        cohorts that it is given, even of those that exceed its limit."""
        if moved < given and fired * 2 > self._settings.pace.max_runs:
            self._tick_size = max(MIN_TICK_COHORTS, moved + moved // 4)
        elif moved == given and fired * 2 < self._settings.pace.max_runs:
            self._tick_size = min(MAX_TICK_COHORTS, self._tick_size * 2)

    def _count(self, fired: TickOutcome, at: datetime) -> None:
        self.fired += fired.fired
        FIRES.inc(fired.fired)
        _count_missed(fired.missed)
        if fired.refused:
            self.refused += 1
            STALE.labels("scheduler").inc()
            log.warning(
                "write rejected: another node holds these shards", shards=sorted(fired.refused), at=at.isoformat()
            )
            self._shards.lost(fired.refused)

    async def _backfill(self) -> None:
        """Create runs of backfills and catch-ups."""
        for _ in range(MAX_PASSES):
            now = await self._store.now()
            created = await run_backfills(
                self._store, self._catalog, self._shards.holding(), now, self._backfill_cursor
            )
            _count_missed(self._backfill_cursor.missed)
            if created:
                self.fired += created
                FIRES.inc(created)
                await self._wakeups.send(WORK_CHANNEL, now.isoformat())
            if not self._backfill_cursor.more:
                return

    async def _operate(self) -> None:
        """Process bulk operations. An operation that another node is processing is skipped."""
        done = 0
        for _ in range(MAX_PASSES):
            done += await run_operations(self._store, self._catalog, self._operation_cursor)
            if not self._operation_cursor.more:
                break
        if done:
            await self._wakeups.send(WORK_CHANNEL, self._database_clock.now().isoformat())
            await self._wakeups.send(CANCELS_CHANNEL)
            await self._wakeups.send(COHORTS_CHANNEL)
            await self._wakeups.send(RUNS_CHANNEL)

    # Cluster-wide steps, done by the node that holds shard 0

    def _on_shard_zero(self, step: _Step, otherwise: Callable[[], None] = lambda: None) -> _Step:
        """Return a step that the holder of shard 0 does. Other nodes call `otherwise`, which resets their gauges."""

        async def guarded() -> None:
            if 0 in self._shards.holding().tokens:
                await step()
            else:
                otherwise()

        return guarded

    async def _make_days(self) -> None:
        await pruning.create_partitions(self._store, await self._store.now())

    async def _retime(self) -> None:
        if await self._monitoring.retime(self._shards.holding()):
            self._hint("")  # the due times in the heap have changed

    async def _tidy(self) -> None:
        if 0 in self._shards.holding().tokens:
            await queue.rearm_orphans(self._store)
        await pruning.delete_empty_cohorts(self._store, sorted(self._shards.holding().tokens))

    async def _recount(self) -> None:
        """Recount the jobs of one held shard, for the forecast. Each shard is recounted about once a minute."""
        await forecast.recount_oldest_shard(self._store, sorted(self._shards.holding().tokens))


@contextmanager
def _fire_span(what: str, **counts: int) -> Iterator[Callable[[int], None]]:
    """Opens the span of one pass that creates runs; the yielded function records how many. The runs themselves have
    traces of their own, so a pass has one span, however many runs it creates."""
    tracer = tracing.active()
    if tracer is None:
        yield lambda _: None
        return
    attributes = {f"bellringer.{name}": count for name, count in counts.items()}
    with tracer.batch(f"fire {what}", attributes) as span:
        yield lambda fired: span.set_attribute("messaging.batch.message_count", fired)


def _count_missed(missed: int) -> None:
    if missed:
        MISSED.inc(missed)
        log.warning("missed occurrences recorded as gaps", missed=missed)
