"""The shards that this node holds: renews their leases, takes the node's fair share, and releases surplus shards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from bellringer.clock import Clock
from bellringer.core.leases import LEASE_DURATION, Holding, LeaseKeeper
from bellringer.core.shard_balance import Peer, Rebalance, Want, plan_rebalance
from bellringer.errors import Unavailable
from bellringer.store import leases
from bellringer.store.connection_pool import Store
from bellringer.store.leases import NodeHeartbeat
from bellringer.telemetry import LOST_LEASES, RENEWAL_FAILURES, SHARDS_HELD, TAKEOVERS, log


class HeldShards:
    """The leases of this node. They expire here earlier than in the database: the time counts from before the request
    and is shortened by a fifth."""

    def __init__(
        self,
        store: Store,
        keeper: LeaseKeeper,
        node_id: UUID,
        shards: int,
        clock: Clock,
        lease: timedelta = LEASE_DURATION,
    ) -> None:
        self._store = store
        self._keeper = keeper
        self._node_id = node_id
        self._shards = shards
        self._clock = clock
        self._lease = lease
        self._tokens: dict[int, int] = {}
        self._valid_until = 0.0
        self._waits_for: str | None = None
        self.ticking = asyncio.Lock()  # held during a tick; shards are not released meanwhile

    def holding(self) -> Holding:
        """Return the shards that can be fired now; none if the leases have expired."""
        valid = self._clock.monotonic() < self._valid_until
        return Holding(self._node_id, dict(self._tokens) if valid else {})

    def lost(self, shards: Collection[int]) -> None:
        """Remove shards that another node holds, according to the fencing check."""
        for shard in shards:
            self._tokens.pop(shard, None)
        LOST_LEASES.inc(len(shards))
        SHARDS_HELD.set(len(self._tokens))

    async def maintain(self, beat: NodeHeartbeat) -> None:
        """Do one pass: renew leases, write the node's heartbeat, then take or release shards to hold a fair share.

        If the lease service is unavailable, the node still writes its heartbeat, with the reason. Its leases stay valid
        until they expire.
        """
        requested_at = self._clock.monotonic()
        if self._tokens and requested_at > self._valid_until:
            RENEWAL_FAILURES.inc()  # the leases have expired before this pass
        renewed = await self._try(self._renew())
        if renewed:
            self._valid_until = requested_at + self._lease.total_seconds() * 0.8
        await leases.record_heartbeat(self._store, replace(beat, waits_for=self._waits_for or beat.waits_for))
        if renewed and await self._try(self._rebalance(beat.region)) and self._waits_for is not None:
            log.info("the lease service is available again", held=len(self._tokens))
            self._waits_for = None
        SHARDS_HELD.set(len(self._tokens))

    async def _try(self, request: Awaitable[None]) -> bool:
        """Await a request to the lease service. Returns False if the service is unavailable; logs that once."""
        try:
            await request
        except Unavailable as error:
            if self._waits_for is None:
                self._waits_for = f"{error.message} since {self._clock.now():%Y-%m-%d %H:%M:%S}Z"
                log.warning("leases cannot be renewed", error=error.message, held=len(self._tokens))
            return False
        return True

    async def _rebalance(self, region: str | None) -> None:
        live = await leases.live_nodes(self._store, self._lease)
        wanted = await self._plan(Peer(self._node_id, region), live)
        if wanted.drop:
            await self._release(wanted.drop)
        for want in wanted.wants:
            taken = await self._keeper.acquire(self._node_id, want.count, want.among)
            self._tokens.update(taken)
            TAKEOVERS.inc(len(taken))
            if taken:
                log.info("shards acquired", taken=len(taken), held=len(self._tokens), nodes=len(live))

    async def _plan(self, me: Peer, live: list[Peer]) -> Rebalance:
        if self._keeper.shares_shards:
            regions = await leases.regions(self._store)
            return plan_rebalance(me, live, self._shards, regions, self._tokens.keys())
        missing = tuple(s for s in range(self._shards) if s not in self._tokens)
        return Rebalance(wants=(Want(len(missing), missing),) if missing else ())

    async def _renew(self) -> None:
        tokens = dict(self._tokens)
        try:
            held = await self._keeper.renew(self._node_id, tokens)
        except Exception:
            RENEWAL_FAILURES.inc(1 if tokens else 0)
            raise
        if gone := tokens.keys() - held:
            log.warning("shards lost to another node", shards=len(gone))
            self.lost(gone)

    async def _release(self, shards: Collection[int]) -> None:
        async with self.ticking:
            tokens = {shard: self._tokens.pop(shard) for shard in shards if shard in self._tokens}
            await self._keeper.release(self._node_id, tokens)
        log.info("shards released", shards=len(tokens), held=len(self._tokens))

    async def leave(self) -> None:
        """Release all shards, so that other nodes need not wait until the leases expire."""
        with suppress(Unavailable):  # the leases expire anyway
            await self._release(list(self._tokens))
        await self._keeper.close()
        await leases.remove_node(self._store, self._node_id)
        SHARDS_HELD.set(0)
