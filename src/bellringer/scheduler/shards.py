"""Which shards this node holds: it renews them, takes its fair share, and hands over what is too much."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from bellringer.clock import Clock
from bellringer.errors import Unavailable
from bellringer.leases import LEASE, Holding, LeaseKeeper, Peer, Plan, Want, plan
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
        self._waits_for: str | None = None
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
        """One pass: renew, say that this node lives, then take or let go until the share is fair.

        Where who grants the leases cannot be asked, the node goes on to say that it lives, and what it waits for; what
        it holds is good until the trust in it runs out.
        """
        asked = self._clock.monotonic()
        if self._tokens and asked > self._trusted_until:
            RENEWAL_FAILURES.inc()  # this pass comes too late
        renewed = await self._asked(self._renew())
        if renewed:
            self._trusted_until = asked + self._lease.total_seconds() * 0.8
        await leases.beat(self._store, replace(beat, waits_for=self._waits_for or beat.waits_for))
        if renewed and await self._asked(self._share(beat.region)) and self._waits_for is not None:
            log.info("leases are granted again", held=len(self._tokens))
            self._waits_for = None
        SHARDS_HELD.set(len(self._tokens))

    async def _asked(self, question: Awaitable[None]) -> bool:
        """Whether the keeper could be asked; if not, that is told once in the log, and with every heartbeat."""
        try:
            await question
        except Unavailable as error:
            if self._waits_for is None:
                self._waits_for = f"{error.message} since {self._clock.now():%Y-%m-%d %H:%M:%S}Z"
                log.warning("leases cannot be renewed", error=error.message, held=len(self._tokens))
            return False
        return True

    async def _share(self, region: str | None) -> None:
        live = await leases.live(self._store, self._lease)
        wanted = await self._plan(Peer(self._node_id, region), live)
        if wanted.drop:
            await self._let_go(wanted.drop)
        for want in wanted.wants:
            taken = await self._keeper.acquire(self._node_id, want.most, want.among)
            self._tokens.update(taken)
            TAKEOVERS.inc(len(taken))
            if taken:
                log.info("shards taken", taken=len(taken), held=len(self._tokens), nodes=len(live))

    async def _plan(self, me: Peer, live: list[Peer]) -> Plan:
        if self._keeper.divides:
            regions = await leases.regions(self._store)
            return plan(me, live, self._shards, regions, self._tokens.keys())
        missing = tuple(s for s in range(self._shards) if s not in self._tokens)
        return Plan(wants=(Want(len(missing), missing),) if missing else ())

    async def _renew(self) -> None:
        tokens = dict(self._tokens)
        try:
            held = await self._keeper.renew(self._node_id, tokens)
        except Exception:
            RENEWAL_FAILURES.inc(1 if tokens else 0)
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
        with suppress(Unavailable):  # then the leases end by themselves
            await self._let_go(list(self._tokens))
        await self._keeper.close()
        await leases.leave(self._store, self._node_id)
        SHARDS_HELD.set(0)
