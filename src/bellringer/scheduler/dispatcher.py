"""Sends ready runs to the broker, pool by pool.

A pool is sent by the node that holds its shard (the pool's number among the shards): so nodes share the pools without
talking. Should two of them send one pool for a moment, each run goes out once all the same: its row is marked first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from typing import Final

from bellringer.clock import Clock
from bellringer.dispatch import HOME, Away, Broker, Post
from bellringer.lifecycle import dispatch as steps
from bellringer.lifecycle.turns import Turn
from bellringer.loops import Wake, every
from bellringer.scheduler.outflow import FRESH, MOST_OUT, Outflow
from bellringer.store import dispatch
from bellringer.store.dispatch import Lane
from bellringer.store.pool import Store
from bellringer.strikes import Strikes
from bellringer.telemetry import RESENT, SENT, log, one_of

LOOK: Final = 1.0  # seconds between two looks for pools and their workers
POLL: Final = 0.2
FULL: Final = 0.02  # seconds until a pool whose workers are all busy is looked at again
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 5.0  # while the broker is away


class Dispatcher:
    """One node's part of what is sent."""

    def __init__(
        self,
        store: Store,
        post: Post,
        clock: Clock,
        now: Callable[[], datetime],
        holds: Callable[[int], bool],
    ) -> None:
        self._store = store
        self._post = post
        self._broker: Broker = post.broker()
        self._clock = clock
        self._now = now
        self._holds = holds  # whether this node holds the shard of a pool
        self._lines: dict[int, _Line] = {}
        self._pause = FIRST_PAUSE
        self._away_since: datetime | None = None
        self._away_because = ""
        self._may_try_at = float("-inf")

    @property
    def waits_for(self) -> str | None:
        """What keeps runs from being sent, in words."""
        if self._away_since is None:
            return None
        return f"{self._post.place}, which does not answer since {self._away_since:%H:%M:%S} UTC ({self._away_because})"

    def hint(self, instant: datetime | None) -> None:
        """There is work, now or from an instant on."""
        for line in self._lines.values():
            if instant is not None:
                line.strikes.add(instant)
            line.wake.set()

    async def run(self) -> None:
        """Send for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(every(LOOK, lambda: self._look(group), name="dispatch"))
            group.create_task(every(LOOK, self._sweep, name="send again"))

    async def close(self) -> None:
        await self._broker.close()

    async def _look(self, group: asyncio.TaskGroup) -> None:
        """Take up the pools that are this node's to send, and leave those that are no more."""
        lanes = {lane.pool_id: lane for lane in await dispatch.lanes(self._store, self._post.engine)}
        mine = {pool_id: lane for pool_id, lane in lanes.items() if self._holds(pool_id)}
        for pool_id in self._lines.keys() - mine.keys():
            self._lines.pop(pool_id).task.cancel()
        if fresh := {pool_id: lane for pool_id, lane in mine.items() if pool_id not in self._lines}:
            await self._prepare(fresh)
        for pool_id, lane in mine.items():
            if line := self._lines.get(pool_id):
                line.lane = lane
            else:
                line = self._lines[pool_id] = _Line(lane, self._post.topic(lane.pool))
                line.task = group.create_task(every(0.0, self._sender(line), name=f"send {lane.pool}"))

    async def _prepare(self, lanes: Mapping[int, Lane]) -> None:
        try:
            await self._broker.prepare([self._post.topic(lane.pool) for lane in lanes.values()])
        except Away as error:
            self._lost(error)

    def _sender(self, line: _Line) -> Callable[[], Coroutine[None, None, None]]:
        async def send() -> None:
            await line.wake.wait(await self._pass(line))

        return send

    async def _pass(self, line: _Line) -> float:
        """Send what there is room for; answers for how long to rest."""
        moment = self._clock.monotonic()
        if moment < self._may_try_at:
            return self._may_try_at - moment
        load = await dispatch.load_of(self._store, line.lane, MOST_OUT, FRESH)
        line.outflow.measure(load, moment)
        room = line.outflow.room(line.lane.slots, load)
        if not room:
            return FULL
        marked = await steps.mark(self._store, line.lane, room, line.turn, behind=line.outflow.behind(line.lane.slots))
        line.turn = marked.turn
        if not marked.messages:
            return 0.0 if line.turn.goes_on else line.strikes.until_next(self._now(), POLL)
        line.outflow.add(len(marked.messages))
        await line.hand(self._hand_in(line, marked))
        return 0.0 if len(marked.messages) == room or line.turn.goes_on else FULL

    async def _hand_in(self, line: _Line, marked: steps.Marked) -> None:
        try:
            sent = await steps.hand_in(self._store, self._broker, line.topic, line.lane, marked.messages)
        except Away as error:
            line.outflow.add(-len(marked.messages))
            self._lost(error)
            await self._prepare({line.lane.pool_id: line.lane})  # perhaps its topic is gone
            return
        one_of(SENT, line.lane.pool).inc(sent)
        self._found()

    async def _sweep(self) -> None:
        """What nobody has taken is sent again, and comes home where nobody would take it."""
        for pool_id in await dispatch.out(self._store):
            line = self._lines.get(pool_id)
            if line is None:
                if self._holds(pool_id):
                    await dispatch.unsend_old(self._store, pool_id, HOME)
            elif self._clock.monotonic() >= self._may_try_at:
                try:
                    again = await steps.send_again(self._store, self._broker, line.topic, line.lane)
                except Away as error:
                    self._lost(error)
                    await self._prepare({pool_id: line.lane})
                else:
                    one_of(RESENT, line.lane.pool).inc(again)

    def _lost(self, error: Away) -> None:
        self._may_try_at = self._clock.monotonic() + self._pause
        self._pause = min(self._pause * 2, LONGEST_PAUSE)
        self._away_because = error.message
        if self._away_since is None:
            self._away_since = self._now()
            log.warning("the broker does not take messages; runs wait in the database", error=error.message)

    def _found(self) -> None:
        self._pause = FIRST_PAUSE
        if self._away_since is not None:
            log.info("the broker takes messages again", away_since=self._away_since.isoformat())
            self._away_since = None


class _Line:
    """What is known of one pool that is sent. While the broker takes one batch, the next one is marked."""

    def __init__(self, lane: Lane, topic: str) -> None:
        self.lane = lane
        self.topic = topic
        self.turn = Turn()
        self.outflow = Outflow()
        self.strikes = Strikes()
        self.wake = Wake()
        self.task: asyncio.Task[None]
        self._handed: asyncio.Task[None] | None = None

    async def hand(self, batch: Coroutine[None, None, None]) -> None:
        before, self._handed = self._handed, asyncio.create_task(batch)
        if before is not None:
            await before


async def bring_home(store: Store) -> int:
    """Where no broker is used any more: what was sent by one comes back to the queue."""
    return sum([await dispatch.unsend_old(store, pool_id, HOME) for pool_id in await dispatch.out(store)])
