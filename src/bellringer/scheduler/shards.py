"""Which shards this node holds: it renews them, takes its fair share, and hands over what is too much."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from datetime import timedelta
from uuid import UUID

from bellringer.clock import Clock
from bellringer.leases import LEASE, Holding, LeaseKeeper, fair_share
from bellringer.store import leases
from bellringer.store.leases import Beat
from bellringer.store.pool import Store
from bellringer.telemetry import LOST_LEASES, RENEWAL_FAILURES, SHARDS_HELD, TAKEOVERS, log


class Shards:
    """The node's holding. It trusts a lease for less time than the database grants it, counted from before it asked."""

    def __init__(
        self,
        store: Store,
        keeper: LeaseKeeper,
        node_id: UUID,
        shards: int,
        clock: Clock,
        lease: timedelta = LEASE,
    ) -> None:
        self._store = store
        self._keeper = keeper
        self._node_id = node_id
        self._shards = shards
        self._clock = clock
        self._lease = lease
        self._tokens: dict[int, int] = {}
        self._trusted_until = 0.0
        self.at_work = asyncio.Lock()  # a tick is under way; shards are not let go under it

    def holding(self) -> Holding:
        """What may be fired now: nothing, once the trust in the leases has run out."""
        trusted = self._clock.monotonic() < self._trusted_until
        return Holding(self._node_id, dict(self._tokens) if trusted else {})

    def lost(self, shards: Collection[int]) -> None:
        """The fence says that others hold these."""
        for shard in shards:
            self._tokens.pop(shard, None)
        LOST_LEASES.inc(len(shards))
        SHARDS_HELD.set(len(self._tokens))

    async def keep(self, beat: Beat) -> None:
        """One pass: renew, say that this node lives, then take or let go until the share is fair."""
        asked = self._clock.monotonic()
        if self._tokens and asked > self._trusted_until:
            RENEWAL_FAILURES.inc()  # this pass comes too late
        await self._renew()
        await leases.beat(self._store, beat)
        live = await leases.live(self._store, self._lease)
        rank = live.index(self._node_id) if self._node_id in live else len(live)
        share = fair_share(len(self._tokens), self._shards, max(len(live), rank + 1), rank)
        if share.drop:
            await self._let_go(sorted(self._tokens)[-share.drop :])
        if share.take:
            taken = await self._keeper.acquire(self._node_id, share.take)
            self._tokens.update(taken)
            TAKEOVERS.inc(len(taken))
            if taken:
                log.info("shards taken", taken=len(taken), held=len(self._tokens), nodes=len(live))
        self._trusted_until = asked + self._lease.total_seconds() * 0.8
        SHARDS_HELD.set(len(self._tokens))

    async def _renew(self) -> None:
        if not self._tokens:
            return
        tokens = dict(self._tokens)
        try:
            held = await self._keeper.renew(self._node_id, tokens)
        except Exception:
            RENEWAL_FAILURES.inc()
            raise
        if gone := tokens.keys() - held:
            log.warning("shards were taken by another node", shards=len(gone))
            self.lost(gone)

    async def _let_go(self, shards: Collection[int]) -> None:
        async with self.at_work:
            tokens = {shard: self._tokens.pop(shard) for shard in shards if shard in self._tokens}
            await self._keeper.release(self._node_id, tokens)
        log.info("shards handed over", shards=len(tokens), held=len(self._tokens))

    async def leave(self) -> None:
        """Hand over everything at once, so that others need not wait for the leases to end."""
        await self._let_go(list(self._tokens))
        await leases.leave(self._store, self._node_id)
        SHARDS_HELD.set(0)
