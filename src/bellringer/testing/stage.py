"""An app on a database of a test's own: the clock, one scheduler that holds every shard, and one worker."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final
from uuid import uuid4

from bellringer.leases import Holding
from bellringer.sdk.app import App
from bellringer.store.leases import PostgresLeases
from bellringer.store.names import Names
from bellringer.store.pool import Store, connect
from bellringer.testing import reads
from bellringer.testing.chores import do_chores
from bellringer.testing.clock import Due, TestClock
from bellringer.testing.workshop import Workshop
from bellringer.verify import Asked, Finding, Summary, verify
from bellringer.verify.check import MARGIN

LEASE: Final = timedelta(days=1)  # real time; here is no loop that renews
# Steps are many and tables small: to plan each statement for its arguments would take half of the time.
_PLANS: Final = "set plan_cache_mode = force_generic_plan"


class Stage:
    """While it is open, the app uses this database, and holds it for the app's own."""

    store: Store
    names: Names
    clock: TestClock
    workshop: Workshop
    tenant_id: int

    def __init__(self, app: App, dsn: str) -> None:
        self.app = app
        self._dsn = dsn

    async def open(self, at: datetime | str) -> None:
        self.store = await Store.open(self._dsn, size=4, name="bellringer test")
        try:
            await self._prepare(at)
        except BaseException:
            await self.store.close()
            raise

    async def _prepare(self, at: datetime | str) -> None:
        await self.store.pool.execute(_PLANS)  # the pool gives the connection used last, so here there is only one
        self.names = Names(self.store)
        self.clock = TestClock(self.store)
        await self.clock.install(at)
        await reads.add_tenant(self.store, self.app.tenant)
        self.tenant_id = await self.names.tenant_id(self.app.tenant)
        holder = uuid4()
        tokens = await PostgresLeases(self.store, LEASE).acquire(holder, await self.names.shards())
        self._holding = Holding(holder, tokens)
        self.workshop = Workshop(self.app, self.store, self.names, self.clock.now)
        await self.workshop.open()
        self._was = await self.app.connection.move(self._dsn)
        try:
            await self.app.adeclare()
        except BaseException:
            await self.app.connection.move(self._was)
            await self.workshop.close()
            raise

    async def close(self) -> None:
        await self.app.connection.move(self._was)
        await self.workshop.close()
        await self.store.close()

    async def do_chores(self, due: Due) -> int:
        """What schedulers do at this instant, one pass of it; answers how many runs were born or came back."""
        if due.stuck:
            await self.workshop.introduce()  # or its new tasks would be taken for unknown
        return await do_chores(self.store, self.names, self._holding, due)

    async def tidy(self) -> None:
        """Vacuum what changes all the time: autovacuum sleeps for a minute, in which a test may live through years."""
        await self.store.pool.execute("vacuum cohorts, queue, timers, test_clock")

    async def verify(self, start: datetime, end: datetime, job: str | None = None) -> tuple[Summary, list[Finding]]:
        """Judge what was done from `start` up to, and without, `end`, the latest included."""
        now, findings = self.clock.now(), list[Finding]()
        connection = await connect(self._dsn, name="bellringer test")
        await self.clock.put(max(now, end + MARGIN))
        try:
            asked = Asked(start=start, end=end, tenant=self.app.tenant, job=job)
            return await verify(connection, asked, findings.append), findings
        finally:
            await self.clock.put(now)
            await connection.close()
