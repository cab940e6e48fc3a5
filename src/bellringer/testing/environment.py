"""An app on a test database: a controllable clock, one scheduler that holds every shard, and one worker.

`run_due_steps` does what the chores of `bellringer.scheduler.service` do at one instant. A chore that is added there
must be added here too, or tests and simulations run without it. Reaping is left out: silence is measured in real
time, so the code that makes a worker vanish also decides when the scheduler notices. Monitoring and cleanup chores
are left out, and so are bulk operations, which only the API starts.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final
from uuid import UUID, uuid4

from bellringer.core.leases import Holding
from bellringer.engine import register
from bellringer.engine.backfill import run_backfills
from bellringer.engine.tick import TickLimits, fire_timers, tick
from bellringer.engine.workflow_commands import stop_workflow_runs
from bellringer.errors import Conflict
from bellringer.schedule.instants import EPOCH
from bellringer.sdk.app import App
from bellringer.store import jobs, queue
from bellringer.store.connection_pool import Store, connect
from bellringer.store.interned_names import Catalog
from bellringer.store.leases import PostgresLeases
from bellringer.testing import records
from bellringer.testing.clock import Due, TestClock
from bellringer.testing.test_worker import TestWorker
from bellringer.verify import Finding, VerifyScope, VerifySummary, verify
from bellringer.verify.checker import MIN_AGE

TEST_LEASE: Final = timedelta(days=1)  # real time; long, because nothing renews the lease
# Steps are many and tables small: to plan each statement for its arguments would take half of the time.
_GENERIC_PLANS: Final = "set plan_cache_mode = force_generic_plan"


class TestEnvironment:
    """While it is open, the app uses this database instead of its own."""

    __test__ = False  # not a test case

    store: Store
    catalog: Catalog
    clock: TestClock
    test_worker: TestWorker
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
        await self.store.pool.execute(
            _GENERIC_PLANS
        )  # the pool gives the connection used last, so here there is only one
        self.catalog = Catalog(self.store)
        self.clock = TestClock(self.store)
        await self.clock.install(at)
        await records.add_tenant(self.store, self.app.tenant)
        self.tenant_id = await self.catalog.tenant_id(self.app.tenant)
        holder = uuid4()
        tokens = await PostgresLeases(self.store, TEST_LEASE).acquire(holder, await self.catalog.shard_count())
        self._holding = Holding(holder, tokens)
        self.test_worker = TestWorker(self.app, self.store, self.catalog, self.clock.now)
        await self.test_worker.open()
        self._was = await self.app.connection.move(self._dsn)
        try:
            await self.app.adeclare()
        except BaseException:
            await self.app.connection.move(self._was)
            await self.test_worker.close()
            raise

    async def close(self) -> None:
        await self.app.connection.move(self._was)
        await self.test_worker.close()
        await self.store.close()

    async def run_due_steps(self, due: Due) -> int:
        """Runs one pass of the due scheduler steps. Returns the number of runs that were created or returned to the
        queue.
        """
        if due.stuck:
            await self.test_worker.introduce()  # or its new tasks would be taken for unknown
        return await run_due_steps(self.store, self.catalog, self._holding, due)

    async def tidy(self) -> None:
        """Vacuums the tables that change often: autovacuum runs once a minute, and a test may simulate years in that
        time.
        """
        await self.store.pool.execute("vacuum cohorts, queue, timers, test_clock")

    async def verify(
        self, start: datetime, end: datetime, job: str | None = None
    ) -> tuple[VerifySummary, list[Finding]]:
        """Verifies the time from `start` up to, but not including, `end`, including the most recent instants."""
        now, findings = self.clock.now(), list[Finding]()
        connection = await connect(self._dsn, name="bellringer test")
        await self.clock.put(max(now, end + MIN_AGE))
        try:
            asked = VerifyScope(start=start, end=end, tenant=self.app.tenant, job=job, unstarted_after=None)
            return await verify(connection, asked, findings.append), findings
        finally:
            await self.clock.put(now)
            await connection.close()


TEST_TICK_LIMITS: Final = TickLimits(lead=timedelta(0))  # everything at its own instant
MAX_ROWS_PER_PASS: Final = 10_000


async def run_due_steps(store: Store, catalog: Catalog, holding: Holding, due: Due) -> int:
    """Runs one pass over everything that is due. Returns the number of runs that were created or returned to the
    queue. Work that is left is due again.
    """
    born = 0
    if due.pauses:
        for job_id, tenant_id in await jobs.find_expired_pauses(store, MAX_ROWS_PER_PASS):
            await register.resume(store, catalog, job_id, tenant_id=tenant_id, who="the end of its pause")
    if due.hands:
        ticked = await tick(store, catalog, holding, due.hands, due.now, TEST_TICK_LIMITS)
        if not (ticked.fired.moved or ticked.fired.cut):
            raise _lost_shards_error()
        born += ticked.fired.fired
    if due.timers:
        rung = await fire_timers(store, holding, sorted(holding.tokens), TEST_TICK_LIMITS)
        if rung.refused:
            raise _lost_shards_error()
        born += rung.moved
    if due.backfills:
        born += await run_backfills(store, catalog, holding, due.now)
    await _release_held(store, due)
    return born


async def _release_held(store: Store, due: Due) -> None:
    """Releases runs that are no longer held, and stops workflow runs that were cancelled or timed out."""
    if due.expired:
        await queue.expire_runs(store, MAX_ROWS_PER_PASS)
    if due.undecided:
        await queue.decide_overlaps(store, MAX_ROWS_PER_PASS)
    if due.frozen:
        await queue.release_frozen(store, MAX_ROWS_PER_PASS)
    if due.stuck:
        await queue.park_unknown_tasks(store, MAX_ROWS_PER_PASS)
        await queue.unblock_orphans(store, (EPOCH, UUID(int=0)), MAX_ROWS_PER_PASS)
    if due.stops:
        await stop_workflow_runs(store)


def _lost_shards_error() -> Conflict:
    return Conflict("the test's engine lost its shards", hint="let no other scheduler use this database")
