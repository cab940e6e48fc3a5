"""The scheduler process: a list of chores, each a loop around one step."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Final
from uuid import uuid4

from bellringer import faults
from bellringer.clock import Clock, DatabaseClock
from bellringer.dispatch import HOME, Post
from bellringer.leases import LEASE, Holding, LeaseKeeper
from bellringer.lifecycle import prune as pruning
from bellringer.lifecycle.backfill import Turn, backfill
from bellringer.lifecycle.operate import Turn as OperationsTurn
from bellringer.lifecycle.operate import operate
from bellringer.lifecycle.prune import Retention
from bellringer.lifecycle.reap import SILENCE
from bellringer.lifecycle.tick import Pace, ring, tick
from bellringer.loops import Wake, every
from bellringer.scheduler.dispatcher import Dispatcher, bring_home
from bellringer.scheduler.lookout import AHEAD, Lookout
from bellringer.scheduler.shards import Shards
from bellringer.scheduler.steward import Steward
from bellringer.scheduler.watchman import Watchman
from bellringer.scheduler.wheel import TimeIndex, Wheel
from bellringer.store import forecast, queue, tz
from bellringer.store.cohorts import Fired, Hand
from bellringer.store.leases import Beat
from bellringer.store.names import Names
from bellringer.store.pool import Store
from bellringer.store.wakeups import CANCELS, HANDS, RUNS, SHARDS, WORK, Wakeups, hear, read_instant
from bellringer.telemetry import CLOCK_SKEW, FIRE_LATENESS, FIRES, MISSED, STALE, TICK_SECONDS, log

_Step = Callable[[], Awaitable[object]]

POLL: Final = 0.5
KEEP: Final = 1.0  # seconds between two looks at the leases, at most: so soon a standby takes over
MOST_HINTS: Final = 20
FEWEST, MOST_STRIDE = 4, 8_000
PASSES: Final = 10  # of backfilling, before it rests


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """How a scheduler goes about its work."""

    name: str = ""
    version: str = ""
    pace: Pace = field(default_factory=Pace)
    retention: Retention = field(default_factory=Retention)
    lease: timedelta = LEASE
    silence: timedelta = SILENCE
    region: str | None = None


class Scheduler:
    """One node. Nodes are equal; each fires what is due in the shards that it holds."""

    def __init__(
        self,
        store: Store,
        keeper: LeaseKeeper,
        clock: Clock,
        settings: SchedulerSettings,
        post: Post | None = None,
        index: TimeIndex | None = None,
    ) -> None:
        self._store = store
        self._names = Names(store)
        self._keeper = keeper
        self._clock = clock
        self._time = DatabaseClock(clock)
        self._settings = settings
        self._dispatcher = Dispatcher(store, post, clock, self._time.now, self._sends) if post else None
        self._node_id = uuid4()  # new with every start: token and holder together are never granted twice
        self._watchman = Watchman(store, self._names)
        self._steward = Steward(store, self._names, clock, self._time.now, settings.retention, settings.silence)
        self._wheel = Wheel()
        self._lookout = Lookout(store, self._names, self._wheel, self._time, clock, index)
        self._turn = Turn()
        self._operations = OperationsTurn()
        self._wake = Wake()
        self._shards_free = Wake()
        self._wakeups = Wakeups(store, clock)
        self._polled_at = float("-inf")
        self._stride = 2_000
        self.fired = 0
        self.refused = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Work until asked to stop, then hand over the shards."""
        self._total = await self._names.shards()
        self._shards = Shards(
            self._store,
            self._keeper,
            self._node_id,
            self._total,
            self._clock,
            self._settings.lease,
        )
        await pruning.make_days(self._store, await self._store.now())
        async with asyncio.TaskGroup() as chores:
            loops = [chores.create_task(loop) for loop in self._chores()]
            await stop.wait()
            for loop in loops:
                loop.cancel()
        if self._dispatcher is not None:
            await self._dispatcher.close()
        await self._shards.leave()
        await self._wakeups.send(HANDS, SHARDS)
        await self._lookout.close()

    def _chores(self) -> Sequence[Coroutine[None, None, None]]:
        lease = self._settings.lease.total_seconds()
        return [
            every(min(lease / 5, KEEP), self._keep, name="keep", wake=self._shards_free),
            self._keeper.watch(self._shards_free.set),
            every(0.0, self._fire, name="fire"),
            every(0.5, self._backfill, name="backfill"),
            every(1.0, self._for_all(self._steward.reap), name="reap"),
            every(2.0, self._for_all(self._steward.sweep), name="sweep"),
            every(0.25, self._for_all(self._steward.decide), name="decide"),
            every(0.25, self._for_all(self._steward.stop), name="stop"),
            every(1.0, self._for_all(self._steward.resume), name="resume"),
            every(2.0, self._for_all(self._watchman.watch), name="watch"),
            every(5.0, self._for_all(self._watchman.compare), name="compare"),
            every(5.0, self._for_all(self._watchman.route), name="route"),
            every(5.0, self._for_all(self._watchman.recover), name="recover"),
            every(1.0, self._for_all(self._watchman.announce), name="announce"),
            every(0.5, self._operate, name="operate"),
            every(5.0, self._retime, name="retime"),
            every(3600.0, self._watchman.check_rules, name="check rules"),
            every(600.0, self._make_days, name="make days"),
            every(3600.0, self._for_all(self._steward.prune), name="prune"),
            every(2.0, self._for_all(self._steward.seal), name="seal"),
            every(60.0, self._tidy, name="tidy"),
            every(1.0, self._recount, name="recount"),
            *self._sending(),
        ]

    def _sending(self) -> Sequence[Coroutine[None, None, None]]:
        if self._dispatcher is None:
            return [
                every(HOME.total_seconds(), self._for_all(partial(bring_home, self._store)), name="bring home"),
                hear(self._store, self._clock, {HANDS: self._hint}),
            ]
        work = self._dispatcher.hint
        return [
            self._dispatcher.run(),
            hear(self._store, self._clock, {HANDS: self._hint, WORK: lambda payload: work(read_instant(payload))}),
        ]

    def _sends(self, pool_id: int) -> bool:
        """Whether this node sends a pool's work to the broker: it does if it holds the pool's shard."""
        return pool_id % self._total in self._shards.holding().tokens

    def _hint(self, payload: str) -> None:
        if payload == SHARDS:
            self._shards_free.set()
            return
        self._polled_at = float("-inf")
        self._lookout.forget()
        self._wake.set()

    # Shards

    async def _keep(self) -> None:
        skew = self._time.skew().total_seconds()
        CLOCK_SKEW.set(skew)
        await self._shards.keep(
            Beat(
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
        """Fire all that is due, pass by pass, then sleep to the next strike or the next poll."""
        while await self._pass():
            pass
        await self._wake.wait(self._rest())

    def _rest(self) -> float:
        poll = self._polled_at + POLL - self._clock.monotonic()
        strike = self._wheel.next_strike()
        if strike is None:
            return max(min(poll, POLL), 0.01)
        until = (strike - self._settings.pace.lead - self._time.now()).total_seconds()
        return max(min(poll, until, POLL), 0.001)

    async def _pass(self) -> bool:
        """One bounded pass; True: there may be more."""
        async with self._shards.at_work:
            holding = self._shards.holding()
            if not holding.tokens:
                return False
            self._wheel.keep(holding.tokens.keys())
            rung = await self._poll(holding.tokens)
            fired = Fired()
            if rung:
                self._lookout.moved(rung)
                fired = await ring(self._store, holding, rung, self._settings.pace)
                self._count(fired, self._time.now())
                await self._announce(fired.strikes)
            hands = self._wheel.take(self._time.now() + self._settings.pace.lead, self._stride)
            more_timers = fired.moved >= self._settings.pace.most
            if more_timers:
                self._polled_at = float("-inf")
            if not hands:
                return more_timers
            faults.point("tick.checked")  # from here on only the token protects
            await self._strike(holding, hands)
            return True

    async def _poll(self, tokens: Mapping[int, int]) -> list[int]:
        """Look for what strikes soon, at most twice a second; answers the shards that have a timer due."""
        if self._clock.monotonic() - self._polled_at < POLL:
            return []
        self._polled_at = self._clock.monotonic()
        seen = await self._lookout.look(tokens, self._settings.pace.lead)
        if seen.more:
            self._polled_at = float("-inf")  # look again as soon as these are done
        return seen.rung

    async def _strike(self, holding: Holding, hands: Sequence[Hand]) -> None:
        self._lookout.moved({hand.shard for hand in hands})
        started, now = self._clock.monotonic(), self._time.now()
        rules = await tz.tz_id(self._store)
        ticked = await tick(self._store, self._names, holding, hands, now, self._settings.pace, rules)
        fired = ticked.fired
        TICK_SECONDS.observe(self._clock.monotonic() - started)
        self._count(fired, hands[0].next_at)
        if fired.fired:
            await self._announce({hand.next_at for hand in hands[: fired.moved + fired.cut]})
        if fired.missed:
            MISSED.inc(fired.missed)
            log.info("occurrences were missed and are recorded as gaps", hands=fired.moved, missed=fired.missed)
        if ticked.stale or (fired.cut and not fired.fired):  # memory was wrong, or it jumps on, to a goal it has now
            self._polled_at = float("-inf")
        horizon = now + self._settings.pace.lead + AHEAD
        self._wheel.put(hand for hand in ticked.hands if hand.next_at <= horizon)
        self._fit(len(hands), fired)

    async def _announce(self, instants: Collection[datetime]) -> None:
        """Tell the workers when what was born may be claimed."""
        for instant in sorted(instants)[:MOST_HINTS]:
            FIRE_LATENESS.observe(max((self._time.now() - instant).total_seconds(), 0.0))
            await self._wakeups.send(WORK, instant.isoformat())

    def _fit(self, given: int, fired: Fired) -> None:
        """Give the next call about as many hands as it can fire: it counts the members of all that it is given."""
        if fired.moved < given and fired.fired * 2 > self._settings.pace.most:
            self._stride = max(FEWEST, fired.moved + fired.moved // 4)
        elif fired.moved == given and fired.fired * 2 < self._settings.pace.most:
            self._stride = min(MOST_STRIDE, self._stride * 2)

    def _count(self, fired: Fired, at: datetime) -> None:
        self.fired += fired.fired
        FIRES.inc(fired.fired)
        if fired.refused:
            self.refused += 1
            STALE.labels("scheduler").inc()
            log.warning("a stale write was refused", shards=sorted(fired.refused), at=at.isoformat())
            self._shards.lost(fired.refused)

    async def _backfill(self) -> None:
        """Work off what is still to be run of the past, behind live work."""
        for _ in range(PASSES):
            now = await self._store.now()
            born = await backfill(self._store, self._names, self._shards.holding(), now, self._turn)
            if born:
                self.fired += born
                FIRES.inc(born)
                await self._wakeups.send(WORK, now.isoformat())
            if not self._turn.more:
                return

    async def _operate(self) -> None:
        """Work off what somebody asked to be done to many; nodes pass by what another one has in hand."""
        done = 0
        for _ in range(PASSES):
            done += await operate(self._store, self._names, self._operations)
            if not self._operations.more:
                break
        if done:
            await self._wakeups.send(WORK, self._time.now().isoformat())
            await self._wakeups.send(CANCELS)
            await self._wakeups.send(HANDS)
            await self._wakeups.send(RUNS)

    # What one node does for all: the one that holds shard 0

    def _for_all(self, step: _Step) -> _Step:
        async def guarded() -> None:
            if 0 in self._shards.holding().tokens:
                await step()

        return guarded

    async def _make_days(self) -> None:
        await pruning.make_days(self._store, await self._store.now())

    async def _retime(self) -> None:
        if await self._watchman.retime(self._shards.holding()):
            self._hint("")  # the hands in memory stand elsewhere now

    async def _tidy(self) -> None:
        if 0 in self._shards.holding().tokens:
            await queue.rearm_orphans(self._store)
        await pruning.tidy(self._store, sorted(self._shards.holding().tokens))

    async def _recount(self) -> None:
        """One of the shards a second, each once a minute: so the forecast need not count jobs."""
        await forecast.recount(self._store, sorted(self._shards.holding().tokens))
