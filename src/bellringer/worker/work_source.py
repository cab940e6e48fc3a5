"""Sources of work: a worker claims runs in the database, or takes runs announced by a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from bellringer.clock import Clock
from bellringer.core.broker import BrokerBackend, Inbox, ReceivedMessage
from bellringer.core.runs import Ending
from bellringer.engine.broker_dispatch import take_messages
from bellringer.engine.claim import ClaimSpec, TenantCursor, claim
from bellringer.store import queue
from bellringer.store.connection_pool import UNREACHABLE_ERRORS, Store
from bellringer.store.queue import ClaimedRun
from bellringer.store.workflows import load_node_arguments
from bellringer.telemetry import log
from bellringer.worker.results import failed_ending

INBOX_WAIT_SECONDS: Final = 0.2


class WorkSource(Protocol):
    """Returns the attempts that a worker executes. They are claimed in the database before they are returned."""

    @property
    def name(self) -> str:
        """The name of the source, such as "postgresql" or "kafka"."""

    async def open(self, pools: Mapping[str, int]) -> None: ...

    async def take(self, spec: ClaimSpec, most: int, *, behind: int) -> tuple[list[ClaimedRun], bool]:
        """Return up to `most` runs, at most `behind` of them catch-ups and backfills, and whether there may be more."""

    async def pause(self, pool_id: int, *, for_good: bool) -> None:
        """Called instead of `take` while the worker wants no work for a pool, now or never again."""

    async def close(self) -> None: ...


class DatabaseSource:
    """Claims ready runs in the database, with a fair share for each tenant."""

    name = "postgresql"

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cursors: dict[int, TenantCursor] = {}

    async def open(self, pools: Mapping[str, int]) -> None: ...

    async def take(self, spec: ClaimSpec, most: int, *, behind: int) -> tuple[list[ClaimedRun], bool]:
        cursor = self._cursors.get(spec.pool_id, TenantCursor())
        taken, cursor = await claim(self._store, spec, most, cursor, background=behind)
        self._cursors[spec.pool_id] = cursor
        return taken, len(taken) == most or cursor.should_continue

    async def pause(self, pool_id: int, *, for_good: bool) -> None: ...

    async def close(self) -> None: ...


class BrokerSource:
    """Receives messages from a broker and takes their runs in the database, a batch in one statement."""

    def __init__(self, store: Store, backend: BrokerBackend) -> None:
        self._store = store
        self._backend = backend
        self._inboxes: dict[int, Inbox] = {}
        self._untaken: dict[int, list[ReceivedMessage]] = {}  # received while the database was unavailable

    @property
    def name(self) -> str:
        return self._backend.name

    async def open(self, pools: Mapping[str, int]) -> None:
        await self.close()  # a failed start may have opened inboxes
        self._inboxes = {pool_id: self._backend.inbox(pool) for pool, pool_id in pools.items()}

    async def take(
        self,
        spec: ClaimSpec,
        most: int,
        *,
        behind: int,  # noqa: ARG002 - the scheduler limits them when it sends
    ) -> tuple[list[ClaimedRun], bool]:
        inbox = self._inboxes[spec.pool_id]
        messages = self._untaken.get(spec.pool_id) or await inbox.get(most, INBOX_WAIT_SECONDS)
        if not messages:
            return [], True  # `get` has already waited
        self._untaken[spec.pool_id] = messages
        taken = await take_messages(self._store, spec.worker_id, spec.pool_id, spec.task_ids, messages)
        del self._untaken[spec.pool_id]
        await inbox.commit()
        return taken, True

    async def pause(self, pool_id: int, *, for_good: bool) -> None:
        inbox = self._inboxes.get(pool_id)
        if inbox is not None and for_good:  # a paused consumer would keep its partitions from other workers
            del self._inboxes[pool_id]
            await inbox.close()
        elif inbox is not None:
            await inbox.pause()

    async def close(self) -> None:
        await asyncio.gather(*(inbox.close() for inbox in self._inboxes.values()), return_exceptions=True)


async def load_last_results(store: Store, clock: Clock, claimed: Sequence[ClaimedRun]) -> list[ClaimedRun]:
    """Load the result of the run before each of these, if its job keeps results. Waits for an unavailable database,
    because the runs are already claimed."""
    lacking = [c for c in claimed if c.spec.keep_result]
    wait = 0.1
    while lacking:
        try:
            found = {(c.key, c.attempt): c for c in await queue.load_last_results(store, lacking)}
            return [found.get((c.key, c.attempt), c) for c in claimed]
        except UNREACHABLE_ERRORS as error:
            log.warning("loading last results: waiting for the database", runs=len(lacking), error=str(error))
            await clock.sleep(wait)
            wait = min(wait * 2, 5.0)
    return list(claimed)


async def load_arguments(
    store: Store, clock: Clock, lacking: Sequence[ClaimedRun]
) -> list[tuple[ClaimedRun, Ending | None]]:
    """Load arguments of workflow nodes, and results of upstream runs, that were too large to be stored with the run.

    Returns each run with its arguments and None, or with the ending of a run whose arguments cannot be read. The runs
    are already claimed, so this function waits for an unavailable database instead of failing.
    """
    wait = 0.1
    while True:
        try:
            return [(claimed, None) for claimed in await load_node_arguments(store, lacking)]
        except UNREACHABLE_ERRORS as error:
            log.warning("loading node arguments: waiting for the database", nodes=len(lacking), error=str(error))
            await clock.sleep(wait)
            wait = min(wait * 2, 5.0)
        except Exception as error:  # noqa: BLE001 - no error may leave claimed runs without an ending
            if len(lacking) > 1:
                return [end for claimed in lacking for end in await load_arguments(store, clock, [claimed])]
            log.warning("node arguments cannot be read", run_id=lacking[0].key.id, error=str(error))
            return [
                (lacking[0], failed_ending("ArgumentsNotRead", f"the results of other nodes cannot be read: {error}"))
            ]
