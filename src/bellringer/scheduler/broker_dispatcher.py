"""Sends ready runs to the broker, pool by pool.

A pool is dispatched by the node that holds the shard `pool_id % shards`, so nodes divide the pools without direct
communication. If two nodes dispatch the same pool for a moment, each run is still sent once: its row is marked first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime, timedelta
from typing import Final

from bellringer.clock import Clock
from bellringer.core.background_loops import Wake, WakeupTimes, run_every
from bellringer.core.broker import UNSEND_AFTER, Broker, BrokerBackend, BrokerUnavailable
from bellringer.engine import broker_dispatch as steps
from bellringer.engine.claim import TenantCursor
from bellringer.store import broker_dispatch
from bellringer.store.broker_dispatch import BrokerLoad, BrokerPool
from bellringer.store.connection_pool import Store
from bellringer.store.wakeups import WorkHint
from bellringer.telemetry import RESENT, SENT, log, with_labels

POOL_REFRESH_SECONDS: Final = 1.0  # between two reads of the pools and their workers
DISPATCH_POLL_SECONDS: Final = 0.2
FULL_POOL_POLL_SECONDS: Final = 0.02  # for a pool whose workers are all busy
MIN_BROKER_BACKOFF_SECONDS, MAX_BROKER_BACKOFF_SECONDS = 0.5, 5.0  # while the broker is unavailable
SEND_AHEAD_SECONDS: Final = 0.25  # work sent beyond the free slots: about the delay of a message
BACKGROUND_SEND_SHARE: Final = 0.25  # the fraction of the slots that catch-ups and backfills can use
RECENTLY_SENT: Final = timedelta(seconds=1)  # runs sent longer ago are assumed to wait for a stuck consumer
MAX_SENT_FACTOR: Final = 4  # limit of all sent runs, in multiples of the normal number: tolerates a stuck consumer
MAX_SENT_RUNS: Final = 20_000
MAX_SEND_BATCH: Final = 2_000


class FlowControl:
    """Decides how many runs of a pool to send: only as many as its workers can start about now.

    A burst waits in the database, which shares it fairly among tenants, and not in the broker, which is first come,
    first served. The rate at which workers take runs is measured.
    """

    def __init__(self) -> None:
        self._sent = 0
        self._taken = 0.0
        self._since: float | None = None
        self._rate = 0.0

    def add(self, sent: int) -> None:
        self._sent += sent

    def measure(self, load: BrokerLoad, moment: float) -> None:
        """Update the rate at which workers take sent runs."""
        taken = float(self._sent - load.sent)
        if self._since is None:
            self._taken, self._since = taken, moment
            return
        passed = moment - self._since
        if passed >= SEND_AHEAD_SECONDS / 5:
            self._rate = self._rate * 0.5 + max(0.0, taken - self._taken) / passed * 0.5
            self._taken, self._since = taken, moment

    def room(self, slots: int, load: BrokerLoad) -> int:
        """Return how many runs to send now."""
        ahead = int(self._rate * SEND_AHEAD_SECONDS)
        free = max(0, slots - load.held)
        most = min(MAX_SENT_RUNS, MAX_SENT_FACTOR * (slots + ahead))
        return max(0, min(MAX_SEND_BATCH, free + ahead - load.fresh, most - load.sent))

    @staticmethod
    def background_room(slots: int) -> int:
        """Return how many catch-up and backfill runs can be among them. At least one slot is reserved for them."""
        return max(1, int(slots * BACKGROUND_SEND_SHARE))


class Dispatcher:
    """Dispatches the pools of one node."""

    def __init__(
        self,
        store: Store,
        backend: BrokerBackend,
        clock: Clock,
        now: Callable[[], datetime],
        holds: Callable[[int], bool],
    ) -> None:
        self._store = store
        self._backend = backend
        self._broker: Broker = backend.broker()
        self._clock = clock
        self._now = now
        self._holds = holds  # whether this node holds the shard of a pool
        self._pools: dict[int, _PoolDispatch] = {}
        self._backoff = MIN_BROKER_BACKOFF_SECONDS
        self._unavailable_since: datetime | None = None
        self._unavailable_reason = ""
        self._may_try_at = float("-inf")

    @property
    def waits_for(self) -> str | None:
        """Why runs cannot be sent at the moment, for the node's status; None if they can."""
        if self._unavailable_since is None:
            return None
        since = f"{self._unavailable_since:%H:%M:%S} UTC"
        return f"{self._backend.address}, unavailable since {since} ({self._unavailable_reason})"

    def hint(self, hint: WorkHint) -> None:
        """Wake the send loops of the pool: there is work now, and at these instants."""
        for pool_id, pool in self._pools.items():
            if hint.pool_id in (None, pool_id):
                pool.wakeup_times.add(*hint.instants)
                pool.wake.set()

    async def run(self) -> None:
        """Dispatch forever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(run_every(POOL_REFRESH_SECONDS, lambda: self._refresh_pools(group), name="dispatch"))
            group.create_task(run_every(POOL_REFRESH_SECONDS, self._resend_or_unsend, name="send again"))

    async def close(self) -> None:
        await self._broker.close()

    async def _refresh_pools(self, group: asyncio.TaskGroup) -> None:
        """Start send loops for pools that this node dispatches now, and stop those of other pools."""
        rows = {row.pool_id: row for row in await broker_dispatch.list_broker_pools(self._store, self._backend.name)}
        mine = {pool_id: row for pool_id, row in rows.items() if self._holds(pool_id)}
        for pool_id in self._pools.keys() - mine.keys():
            self._pools.pop(pool_id).task.cancel()
        if fresh := {pool_id: row for pool_id, row in mine.items() if pool_id not in self._pools}:
            await self._prepare(fresh)
        for pool_id, row in mine.items():
            if pool := self._pools.get(pool_id):
                pool.row = row
            else:
                pool = self._pools[pool_id] = _PoolDispatch(row, self._backend.topic(row.pool))
                pool.task = group.create_task(run_every(0.0, self._send_loop(pool), name=f"send {row.pool}"))

    async def _prepare(self, rows: Mapping[int, BrokerPool]) -> None:
        try:
            await self._broker.prepare([self._backend.topic(row.pool) for row in rows.values()])
        except BrokerUnavailable as error:
            self._on_broker_error(error)

    def _send_loop(self, pool: _PoolDispatch) -> Callable[[], Coroutine[None, None, None]]:
        async def send() -> None:
            await pool.wake.wait(await self._send_once(pool))

        return send

    async def _send_once(self, pool: _PoolDispatch) -> float:
        """Send one batch. Returns the seconds to sleep."""
        moment = self._clock.monotonic()
        if moment < self._may_try_at:
            return self._may_try_at - moment
        pool.wakeup_times.discard_until(self._now())
        load = await broker_dispatch.broker_load(self._store, pool.row, MAX_SENT_RUNS, RECENTLY_SENT)
        pool.flow.measure(load, moment)
        room = pool.flow.room(pool.row.slots, load)
        if not room:
            return FULL_POOL_POLL_SECONDS
        marked = await steps.mark_sent(
            self._store, pool.row, room, pool.cursor, background=pool.flow.background_room(pool.row.slots)
        )
        pool.cursor = marked.cursor
        if not marked.messages:
            return (
                0.0
                if pool.cursor.should_continue
                else pool.wakeup_times.seconds_until_next(self._now(), DISPATCH_POLL_SECONDS)
            )
        pool.flow.add(len(marked.messages))
        await pool.enqueue(self._send_marked(pool, marked))
        return 0.0 if len(marked.messages) == room or pool.cursor.should_continue else FULL_POOL_POLL_SECONDS

    async def _send_marked(self, pool: _PoolDispatch, marked: steps.DispatchPass) -> None:
        try:
            sent = await steps.send_marked(self._store, self._broker, pool.topic, pool.row, marked.messages)
        except BrokerUnavailable as error:
            pool.flow.add(-len(marked.messages))
            self._on_broker_error(error)
            await self._prepare({pool.row.pool_id: pool.row})  # the topic may have been deleted
            return
        with_labels(SENT, pool.row.pool).inc(sent)
        self._on_broker_success()

    async def _resend_or_unsend(self) -> None:
        """Send runs again that no worker has taken, and unsend runs of pools without a broker."""
        for pool_id in await broker_dispatch.pools_with_sent_runs(self._store):
            pool = self._pools.get(pool_id)
            if pool is None:
                if self._holds(pool_id):
                    await broker_dispatch.unsend_older(self._store, pool_id, UNSEND_AFTER)
            elif self._clock.monotonic() >= self._may_try_at:
                try:
                    again = await steps.resend_untaken(self._store, self._broker, pool.topic, pool.row)
                except BrokerUnavailable as error:
                    self._on_broker_error(error)
                    await self._prepare({pool_id: pool.row})
                else:
                    with_labels(RESENT, pool.row.pool).inc(again)

    def _on_broker_error(self, error: BrokerUnavailable) -> None:
        self._may_try_at = self._clock.monotonic() + self._backoff
        self._backoff = min(self._backoff * 2, MAX_BROKER_BACKOFF_SECONDS)
        self._unavailable_reason = error.message
        if self._unavailable_since is None:
            self._unavailable_since = self._now()
            log.warning("the broker is unavailable; runs wait in the database", error=error.message)

    def _on_broker_success(self) -> None:
        self._backoff = MIN_BROKER_BACKOFF_SECONDS
        if self._unavailable_since is not None:
            log.info("the broker is available again", unavailable_since=self._unavailable_since.isoformat())
            self._unavailable_since = None


class _PoolDispatch:
    """State of one dispatched pool. While one batch is being sent, the next one is marked."""

    def __init__(self, row: BrokerPool, topic: str) -> None:
        self.row = row
        self.topic = topic
        self.cursor = TenantCursor()
        self.flow = FlowControl()
        self.wakeup_times = WakeupTimes()
        self.wake = Wake()
        self.task: asyncio.Task[None]
        self._sending: asyncio.Task[None] | None = None

    async def enqueue(self, batch: Coroutine[None, None, None]) -> None:
        before, self._sending = self._sending, asyncio.create_task(batch)
        if before is not None:
            await before


async def unsend_all(store: Store) -> int:
    """Return sent runs to the queue in an installation that no longer uses a broker."""
    return sum(
        [
            await broker_dispatch.unsend_older(store, pool_id, UNSEND_AFTER)
            for pool_id in await broker_dispatch.pools_with_sent_runs(store)
        ]
    )
