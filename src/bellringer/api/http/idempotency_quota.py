"""Bounds what is stored for Idempotency-Keys, of one tenant and in total.

Each process counts the stored blocks now and then, and adds what it has stored since. The bounds are therefore exact to
within what all processes store between two counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bellringer.clock import Clock
from bellringer.errors import QuotaExceeded
from bellringer.store import idempotency
from bellringer.store.connection_pool import Store

BLOCKS_PER_TENANT: Final = 250_000  # of 4 KiB; most responses take one
FULL_TENANTS: Final = 10  # the number of full tenants that fill the total
RECOUNT_SECONDS: Final = 60.0
RECOUNT_SECONDS_NEAR_FULL: Final = 5.0  # once half of the quota is used
MAX_TENANTS_KNOWN: Final = 10_000
_ALL_TENANTS: Final = -1  # counts the total over all tenants


@dataclass(slots=True)
class _Count:
    at: float
    blocks: int


class IdempotencyQuota:
    """The storage that is left for responses to requests with an Idempotency-Key."""

    def __init__(self, store: Store, clock: Clock, per_tenant: int = BLOCKS_PER_TENANT) -> None:
        self._store = store
        self._clock = clock
        self._most = {False: per_tenant, True: per_tenant * FULL_TENANTS}
        self._counts: dict[int, _Count] = {}

    async def refusal(self, tenant_id: int) -> QuotaExceeded | None:
        """Returns the error to raise if there is no room for another response. Must be called outside of a transaction,
        because it needs a connection of its own.
        """
        for whose in (tenant_id, _ALL_TENANTS):
            most = self._most[whose == _ALL_TENANTS]
            if await self._counted(whose, most) >= most:
                what = "this installation has stored" if whose == _ALL_TENANTS else "the tenant has stored"
                return QuotaExceeded(
                    f"{what} {most:,} blocks of responses to requests with an Idempotency-Key, which is the maximum",
                    hint="send the request without a key, or wait: a response is stored for 24 hours",
                )
        return None

    def spent(self, tenant_id: int, body: bytes) -> None:
        """Counts a response that was stored for this tenant."""
        for whose in (tenant_id, _ALL_TENANTS):
            if (count := self._counts.get(whose)) is not None:
                count.blocks += idempotency.size_in_blocks(body)

    async def _counted(self, whose: int, most: int) -> int:
        count, now = self._counts.get(whose), self._clock.monotonic()
        if count is not None:
            is_near = count.blocks * 2 >= most
            if now < count.at + (RECOUNT_SECONDS_NEAR_FULL if is_near else RECOUNT_SECONDS):
                return count.blocks
        if len(self._counts) >= MAX_TENANTS_KNOWN:
            self._counts.clear()
        which = None if whose == _ALL_TENANTS else whose
        blocks = await idempotency.stored_blocks(self._store, which, most)
        if blocks >= most:  # the count includes expired responses
            await idempotency.prune(self._store)
            blocks = await idempotency.stored_blocks(self._store, which, most)
        self._counts[whose] = _Count(now, blocks)
        return blocks
