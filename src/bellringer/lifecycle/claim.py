"""Claim: a worker takes ready runs of a pool, each tenant's part by its weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bellringer.lifecycle.turns import MOST_FRUITLESS, MOST_TENANTS, Turn
from bellringer.store import queue
from bellringer.store.pool import Store
from bellringer.store.queue import Claimed

__all__ = ["MOST_FRUITLESS", "MOST_TENANTS", "Seat", "Turn", "claim"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Who claims, and what it can execute."""

    worker_id: int
    pool_id: int
    task_ids: Sequence[int]


async def claim(
    store: Store, seat: Seat, most: int, turn: Turn, *, behind: int | None = None
) -> tuple[list[Claimed], Turn]:
    """At most this many attempts, `behind` of them from behind live work (None: no bound); and whose turn is next."""
    tenants = turn.looks_at(most)
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
    return taken, turn.next(walk, full=len(taken) == most, looked_at=tenants)
