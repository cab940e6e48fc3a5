"""Reads the arguments of nodes that were too large to travel with them, before these take a seat."""

from __future__ import annotations

from collections.abc import Sequence

from bellringer.clock import Clock
from bellringer.lifecycle.fill import fill
from bellringer.runs import Ending
from bellringer.store.pool import AWAY, Store
from bellringer.store.queue import Claimed
from bellringer.telemetry import log
from bellringer.worker.endings import failed


async def complete(store: Store, clock: Clock, lacking: Sequence[Claimed]) -> list[tuple[Claimed, Ending | None]]:
    """The same with all their arguments, or with how they end without them.

    They are claimed, so nobody else looks after them: a database that is away is waited for, and what cannot be read
    is a failure of its own run, not of those that were claimed beside it.
    """
    wait = 0.1
    while True:
        try:
            return [(claimed, None) for claimed in await fill(store, lacking)]
        except AWAY as error:
            log.warning("arguments of nodes wait for the database", nodes=len(lacking), error=str(error))
            await clock.sleep(wait)
            wait = min(wait * 2, 5.0)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not leave claimed runs behind
            if len(lacking) > 1:
                return [end for claimed in lacking for end in await complete(store, clock, [claimed])]
            log.warning("arguments of a node cannot be read", run_id=lacking[0].key.id, error=str(error))
            return [(lacking[0], failed("ArgumentsNotRead", f"what it takes of other nodes cannot be read: {error}"))]
