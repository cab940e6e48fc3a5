"""Claim: a worker takes ready runs of a pool, a fair share of each tenant's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bellringer.store import queue
from bellringer.store.pool import Store
from bellringer.store.queue import Claimed


@dataclass(frozen=True, slots=True)
class Turn:
    """Whose turn it is: the tenants behind the one served last; and how many shared the batch before."""

    after: int = -1
    lanes: int = 1


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

    With one tenant at work its share is everything; with several, each gets its part of the batch. After a batch
    that was shared or full, the next claim starts behind the tenant that was served last.
    """
    share = max(1, -(-most // turn.lanes))
    room = most if behind is None else behind
    taken = await queue.claim(store, seat.worker_id, seat.pool_id, seat.task_ids, most, share, turn.after, room)
    tenants = {claimed.tenant_id for claimed in taken}
    shared = len(tenants) > 1 or turn.lanes > 1
    if not taken or not (shared or len(taken) == most):
        return taken, Turn()
    wrapped = [tenant for tenant in tenants if tenant <= turn.after]  # the claim went on from the first tenant
    return taken, Turn(after=max(wrapped or tenants), lanes=len(tenants))
