"""Claim: a worker takes ready runs of a pool, each tenant's part by its weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bellringer.store import queue
from bellringer.store.pool import Store
from bellringer.store.queue import Claimed

MOST_TENANTS: Final = 200  # that one claim looks at
MOST_FRUITLESS: Final = (
    10  # claims at once that leave room and come to that bound; then a worker rests, as when it is idle
)


@dataclass(frozen=True, slots=True)
class Turn:
    """Whose turn it is: the tenants behind `after`; the first of them has `rest` to get of its last turn.

    `fruitless` counts claims that found too little among as many tenants as they may look at: what is there is
    capped, suspended, unknown to this worker, or not due.
    """

    after: int = -1
    rest: int = 0
    fruitless: int = 0

    @property
    def goes_on(self) -> bool:
        """Whether a claim right now may find, among the next tenants, what the last one did not."""
        return 0 < self.fruitless < MOST_FRUITLESS


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Who claims, and what it can execute."""

    worker_id: int
    pool_id: int
    task_ids: Sequence[int]


async def claim(
    store: Store, seat: Seat, most: int, turn: Turn, *, behind: int | None = None
) -> tuple[list[Claimed], Turn]:
    """At most this many attempts, `behind` of them from behind live work (None: no bound), and whose turn it is next.

    A small claim looks at few tenants, for it can serve no more; one after a claim that found too little, at many.
    """
    tenants = MOST_TENANTS if turn.fruitless else min(2 * most + 10, MOST_TENANTS)
    taken, walk = await queue.claim(
        store,
        seat.worker_id,
        seat.pool_id,
        seat.task_ids,
        most,
        after=turn.after,
        rest=turn.rest,
        behind=most if behind is None else behind,
        tenants=tenants,
    )
    fruitless = turn.fruitless % MOST_FRUITLESS + 1 if len(taken) < most and walk.tenants == tenants else 0
    return taken, Turn(walk.after, walk.rest, fruitless)
