"""Claims ready runs of a pool for a worker, divided among tenants by weight. The SQL function `bellringer.claim`
decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bellringer.store import queue
from bellringer.store.connection_pool import Store
from bellringer.store.queue import ClaimedRun, ClaimPosition

MAX_TENANTS_PER_CLAIM: Final = 200
MAX_FRUITLESS_CLAIMS: Final = 10  # after this many fruitless claims in a row, a worker waits as when it is idle


@dataclass(frozen=True, slots=True)
class TenantCursor:
    """The position of the round robin: the next tenant follows `after_tenant` and is still owed `carry` runs.

    `fruitless_claims` counts claims in a row that visited as many tenants as allowed and found too few runs: the
    ready runs are capped, suspended, not due, or of tasks that this worker does not know.
    """

    after_tenant: int = -1
    carry: int = 0
    fruitless_claims: int = 0

    @property
    def should_continue(self) -> bool:
        """Whether an immediate claim may find runs among the next tenants."""
        return 0 < self.fruitless_claims < MAX_FRUITLESS_CLAIMS

    def tenants_to_visit(self, limit: int) -> int:
        """Returns how many tenants a claim of this size visits: few for a small claim, many after a fruitless one."""
        return MAX_TENANTS_PER_CLAIM if self.fruitless_claims else min(2 * limit + 10, MAX_TENANTS_PER_CLAIM)

    def advance(self, position: ClaimPosition, *, full: bool, visited: int) -> TenantCursor:
        """Returns the cursor after a claim that ended at `position`; `full` means that the claim got all the runs
        it wanted.
        """
        fruitless = (
            self.fruitless_claims % MAX_FRUITLESS_CLAIMS + 1 if not full and position.tenants_visited == visited else 0
        )
        return TenantCursor(position.after_tenant, position.carry, fruitless)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSpec:
    """The worker that claims, its pool, and the tasks that it can execute."""

    worker_id: int
    pool_id: int
    task_ids: Sequence[int]


async def claim(
    store: Store, spec: ClaimSpec, limit: int, cursor: TenantCursor, *, background: int | None = None
) -> tuple[list[ClaimedRun], TenantCursor]:
    """Claims up to `limit` runs, at most `background` of them from backfills. Returns the runs and the next cursor."""
    tenants = cursor.tenants_to_visit(limit)
    taken, position = await queue.claim(
        store,
        spec.worker_id,
        spec.pool_id,
        spec.task_ids,
        limit,
        after=cursor.after_tenant,
        rest=cursor.carry,
        behind=limit if background is None else background,
        tenants=tenants,
    )
    return taken, cursor.advance(position, full=len(taken) == limit, visited=tenants)
