"""Drives the engine step by step on a real database, with a clock that only tests move."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from bellringer.core.jobs import Definition
from bellringer.core.leases import Holding
from bellringer.core.policies import Missed, Overlap
from bellringer.core.runs import Ending, Outcome, RunKey, State
from bellringer.durations import parse_duration
from bellringer.engine import claim, register, settle
from bellringer.engine import job_and_run_commands as commands
from bellringer.engine import send as sending
from bellringer.engine import tick as ticking
from bellringer.engine.claim import ClaimSpec, TenantCursor
from bellringer.engine.register import RegisteredJob
from bellringer.engine.tick import TickLimits, TickResult
from bellringer.schedule import Schedule
from bellringer.store import cohorts, jobs, queue, runs, workers
from bellringer.store.cohorts import Cohort, TickOutcome
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.jobs import JobRow
from bellringer.store.leases import PostgresLeases
from bellringer.store.queue import ClaimedRun
from bellringer.store.runs import RunRow, SendResult
from bellringer.store.workers import WorkerRegistration

SECOND = timedelta(seconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FAKE_CLOCK = """
create table bellringer.test_clock (moment timestamptz);
insert into bellringer.test_clock values ('{}');
create or replace function bellringer.now() returns timestamptz language sql stable
  as 'select moment from bellringer.test_clock';
"""
FOREVER = datetime(9999, 1, 1, tzinfo=UTC)


@dataclass
class EngineHarness:
    """One method for each step of the engine, with defaults that fit together."""

    store: Store
    catalog: Catalog
    noon: datetime  # tomorrow's: history has a partition for that day
    tenant: int = 1
    holding: Holding = field(default_factory=lambda: Holding(uuid4(), {}))

    # The clock

    async def set_clock(self, moment: datetime) -> None:
        await self.store.pool.execute("update bellringer.test_clock set moment = $1", moment)

    async def pass_time(self, seconds: float) -> datetime:
        query = "update bellringer.test_clock set moment = moment + $1 returning moment"
        moment: datetime = await self.store.pool.fetchval(query, timedelta(seconds=seconds))
        return moment

    async def start_clock(self, speed: float) -> None:
        """Let the clock run from its current time, `speed` times as fast as real time."""
        await self.sql("alter table test_clock add started timestamptz")
        await self.sql("update test_clock set started = clock_timestamp()")
        await self.sql(
            "create or replace function bellringer.now() returns timestamptz language sql stable as "
            f"'select moment + greatest(pg_catalog.now() - started, interval ''0'') * {speed} "
            "from bellringer.test_clock'"
        )

    async def now(self) -> datetime:
        return await self.store.now()

    def after(self, seconds: float) -> datetime:
        """Returns the instant this many seconds after noon."""
        return self.noon + timedelta(seconds=seconds)

    # Jobs

    @staticmethod
    def definition(name: str = "job", *schedules: Schedule, **more: Any) -> Definition:
        return Definition(name=name, schedules=schedules, **{"task": "greet", "overlap": Overlap.ALLOW, **more})

    async def job(self, name: str = "job", *schedules: Schedule, **more: Any) -> UUID:
        return (await self.register(self.definition(name, *schedules, **more)))[0].job_id

    async def register(self, *definitions: Definition) -> list[RegisteredJob]:
        return await register.create(self.store, self.catalog, definitions, tenant_id=self.tenant, who="me")

    async def declare(self, *definitions: Definition) -> list[RegisteredJob]:
        return await register.declare(self.store, self.catalog, definitions, tenant_id=self.tenant, who="me")

    async def change(self, job_id: UUID, definition: Definition, revision: int | None = None) -> RegisteredJob:
        if revision is None:
            revision = (await self.read(job_id)).revision
        return await register.change(
            self.store, self.catalog, job_id, revision, definition, tenant_id=self.tenant, who="me"
        )

    async def pause(self, job_id: UUID) -> int:
        return await commands.pause(self.store, job_id, tenant_id=self.tenant, who="me")

    async def resume(self, job_id: UUID, missed: Missed = Missed.SKIP) -> int:
        resumed = await register.resume(
            self.store, self.catalog, job_id, tenant_id=self.tenant, who="me", missed=missed
        )
        return resumed.revision

    async def retire(self, job_id: UUID) -> None:
        await commands.delete_job(self.store, job_id, tenant_id=self.tenant, who="me")

    async def read(self, job_id: UUID) -> JobRow:
        job = await jobs.get(self.store, job_id, self.tenant)
        assert job is not None
        return job

    async def share_shard(self, shard: int = 0) -> None:
        """Place all jobs that are registered from now on in one shard."""
        await self.sql(
            "create or replace function bellringer.one_shard() returns trigger language plpgsql as "
            f"'begin new.shard := {shard}; return new; end'"
        )
        for table in ("jobs", "members"):  # members take the shard from the statement, not from the stored job
            await self.sql(
                f"create or replace trigger one_shard before insert on bellringer.{table} "
                "for each row execute function bellringer.one_shard()"
            )

    # Ticks

    async def hold(self, holder: UUID | None = None) -> Holding:
        """Acquire every free shard; later ticks use these leases."""
        holder = holder or uuid4()
        tokens = await PostgresLeases(self.store, timedelta(minutes=5)).acquire(holder, 1024)
        self.holding = Holding(holder, tokens)
        return self.holding

    async def seize(self, holder: UUID | None = None) -> Holding:
        """Expire all leases and acquire them."""
        await self.sql("update leases set expires_at = '-infinity'")
        return await self.hold(holder)

    async def due_cohorts(self, until: datetime | None = None) -> list[Cohort]:
        until = until or await self.now()
        shards = list(range(await self.catalog.shard_count()))
        return await cohorts.upcoming(self.store, shards, until, 10_000)

    async def tick(
        self, holding: Holding | None = None, *, lead: float = 0, grace: float = 60, most: int = 8000
    ) -> TickResult:
        """One pass over all cohorts that are due."""
        if holding is None:
            holding = self.holding if self.holding.tokens else await self.hold()
        pace = TickLimits(lead=lead * SECOND, grace=grace * SECOND, max_runs=most)
        now = await self.now()
        hands = await self.due_cohorts(now + pace.lead)
        return await ticking.tick(self.store, self.catalog, holding, hands, now, pace)

    async def tick_all(self, holding: Holding | None = None, **pace: Any) -> int:
        """Tick until no cohort is due; returns how many runs were created."""
        fired = 0
        for _ in range(1000):
            lead = pace.get("lead", 0) * SECOND
            if not await self.due_cohorts(await self.now() + lead):
                return fired
            fired += (await self.tick(holding, **pace)).fired.fired
        raise AssertionError("there are still due cohorts after 1000 ticks")

    async def ring(self, *, lead: float = 0, most: int = 8000) -> TickOutcome:
        holding = self.holding if self.holding.tokens else await self.hold()
        return await ticking.fire_timers(
            self.store, holding, sorted(holding.tokens), TickLimits(lead=lead * SECOND, max_runs=most)
        )

    # Workers

    async def join_worker(self, *tasks: str, pool: str = "short") -> ClaimSpec:
        """Join a worker for these tasks, by default for `greet`."""
        ids = await self.catalog.task_ids(tasks or ("greet",))
        task_ids = [ids[task] for task in tasks or ("greet",)]
        who = WorkerRegistration(name="w", host="h", pid=1, version="0", pools={pool: 10}, task_ids=task_ids)
        pool_id = (await self.catalog.pool_ids([pool]))[pool]
        worker_id = await workers.join(self.store, who)
        await workers.record_heartbeat(self.store, worker_id, 0, "live", FOREVER)  # all of its claims are confirmed
        return ClaimSpec(worker_id=worker_id, pool_id=pool_id, task_ids=task_ids)

    async def claim(self, seat: ClaimSpec, most: int = 100, *, begin: bool = True) -> list[ClaimedRun]:
        """Claim as a worker does, and record the start of the attempts. Without `begin`, no handler is called."""
        taken = (await claim.claim(self.store, seat, most, TenantCursor()))[0]
        if begin and (recorded := [claimed for claimed in taken if claimed.records_start]):
            await queue.begin_attempts(self.store, seat.worker_id, recorded)
        if begin and (others := [(c.key, c.attempt, c.claimed_at) for c in taken if not c.records_start]):
            await queue.record_starts(self.store, seat.worker_id, others)
        return taken

    async def claim_one(self, seat: ClaimSpec) -> ClaimedRun:
        [claimed] = await self.claim(seat)
        return claimed

    async def end(self, seat: ClaimSpec, claimed: Sequence[ClaimedRun] | ClaimedRun, **ending: Any) -> int:
        """Settle attempts, by default as succeeded."""
        batch = [claimed] if isinstance(claimed, ClaimedRun) else claimed
        how = Ending(**{"outcome": Outcome.OK, **ending})
        settlement = await settle.settle(self.store, seat.worker_id, [settle.decide(c, how) for c in batch])
        return settlement.written

    async def fail(self, seat: ClaimSpec, claimed: Sequence[ClaimedRun] | ClaimedRun, **error: Any) -> int:
        told = {"type": "ValueError", "message": "no", "lineage": ["ValueError"], **error}
        return await self.end(seat, claimed, outcome=Outcome.FAILED, error=told)

    async def silence_worker(self, seat: ClaimSpec) -> None:
        """Set the worker's last heartbeat to an hour ago."""
        await self.sql(
            "update workers set seen_at = clock_timestamp() - interval '1 hour' where worker_id = $1",
            seat.worker_id,
        )

    async def sweep(self) -> int:
        return await queue.park_unknown_tasks(self.store, 1000)

    # Requests

    async def send(self, *, tenant: int | None = None, **order: Any) -> SendResult:
        what = sending.SendSpec(**{"task": "greet", **order})
        return await sending.send(self.store, self.catalog, what, tenant_id=tenant or self.tenant)

    async def trigger(self, job_id: UUID, **arguments: Any) -> RunKey:
        return await sending.trigger(self.store, job_id, tenant_id=self.tenant, **arguments)

    async def cancel(self, key: RunKey) -> State:
        return await commands.cancel(self.store, key, tenant_id=self.tenant, reason="not wanted")

    async def retry(self, key: RunKey) -> None:
        await commands.retry(self.store, key, tenant_id=self.tenant)

    async def redrive(self, *keys: RunKey) -> int:
        return await commands.redrive(self.store, keys, tenant_id=self.tenant)

    # Reads

    async def run(self, key: RunKey) -> RunRow:
        run = await runs.get(self.store, key, self.tenant)
        assert run is not None
        return run

    async def state(self, key: RunKey) -> State:
        return (await self.run(key)).state

    async def sql(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        return await self.store.pool.fetch(query, *arguments)

    async def value(self, query: str, *arguments: Any) -> Any:
        return await self.store.pool.fetchval(query, *arguments)

    async def blocked_by(self, holder: asyncpg.pool.PoolConnectionProxy[asyncpg.Record], waiters: int = 1) -> None:
        """Wait until so many wait, in a row or at once, for a lock that this connection holds."""
        pid = await holder.fetchval("select pg_backend_pid()")
        waiting = """
            with recursive w (pid) as (values ($1::int) union
              select a.pid from pg_stat_activity a join w on w.pid = any (pg_blocking_pids(a.pid)))
            select count(*) - 1 from w"""
        for _ in range(500):
            if await self.value(waiting, pid) >= waiters:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("nobody waits for the lock")

    async def fired(self, job_id: UUID, slot: int = 0) -> list[float]:
        """Returns the scheduled times of a job's runs, in seconds after noon."""
        rows = await self.sql("select scheduled_for from runs where job_id = $1 and slot = $2 order by 1", job_id, slot)
        return [self.seconds(row[0]) for row in rows]

    async def queued(self, job_id: UUID) -> list[float]:
        """Returns the scheduled times of a job's queued runs, in seconds after noon."""
        rows = await self.sql("select scheduled_for from queue where job_id = $1 order by 1", job_id)
        return [self.seconds(row[0]) for row in rows]

    async def timers(self, job_id: UUID) -> list[float]:
        """Returns the due times of a job's timers, in seconds after noon."""
        rows = await self.sql("select due_at from timers where job_id = $1 order by 1", job_id)
        return [self.seconds(row[0]) for row in rows]

    async def gaps(self, job_id: UUID) -> list[dict[str, Any]]:
        rows = await self.sql(
            "select from_at, to_at, count, reason, into_at from gaps where job_id = $1 order by 1", job_id
        )
        return [{k: self.seconds(v) if isinstance(v, datetime) else v for k, v in dict(row).items()} for row in rows]

    async def verify(self, until: datetime) -> list[str]:
        """Returns one line for each occurrence after a job's registration that has not exactly one run or gap.

        The expected occurrences are computed here from the jobs' revisions alone: an `every` schedule applies to the
        instants after its revision, up to and including the instant of the next, while the job is active.
        """
        complaints = []
        revisions: dict[UUID, list[tuple[datetime, timedelta | None]]] = {}
        kept = "select job_id, r.* from jobs cross join lateral revisions_of(job_id) r order by job_id, r.revision"
        for row in await self.sql(kept):
            definition = json.loads(row["definition"])
            active = not definition.get("paused_at") and not definition.get("deleted_at")
            every = parse_duration(definition["schedules"][0]["every"]) if active else None
            revisions.setdefault(row["job_id"], []).append((row["effective_at"], every))
        for job_id, history in revisions.items():
            expected: set[datetime] = set()
            ends = [moment for moment, _ in history[1:]] + [until]
            for (start, every), end in zip(history, ends, strict=True):
                expected |= _multiples(every, start, end) if every else set()
            rows = await self.sql("select scheduled_for from runs where job_id = $1 and slot = 0", job_id)
            fired = {row[0] for row in rows}
            assert len(fired) == len(rows)
            spans = await self.sql("select from_at, to_at from gaps where job_id = $1", job_id)
            gaps = {at for at in expected if any(start <= at < end for start, end in spans)}
            complaints += [f"{job_id}: {self.seconds(at)} missed" for at in expected - fired - gaps]
            complaints += [f"{job_id}: {self.seconds(at)} run and gap" for at in fired & gaps]
            complaints += [f"{job_id}: {self.seconds(at)} not asked for" for at in fired - expected if at <= until]
        return complaints

    def seconds(self, moment: datetime) -> float:
        return (moment - self.noon).total_seconds()

    def key(self, job_id: UUID, seconds: float, slot: int = 0) -> RunKey:
        return RunKey(job_id, self.after(seconds), slot)

    def for_tenant(self, tenant: int) -> EngineHarness:
        """Returns this harness for another tenant."""
        return replace(self, tenant=tenant)

    async def tenants(self, count: int) -> list[int]:
        """Create tenants in addition to the default one."""
        rows = await self.sql(
            "insert into tenants (name) select 't' || n from generate_series(1, $1) n returning tenant_id",
            count,
        )
        return sorted(row[0] for row in rows)


def _multiples(interval: timedelta, after: datetime, until: datetime) -> set[datetime]:
    """Returns the multiples of the interval since 1970 in (after, until]."""
    first = (after - EPOCH) // interval + 1
    last = (until - EPOCH) // interval
    return {EPOCH + n * interval for n in range(first, last + 1)}


@pytest.fixture
async def harness(store: Store, catalog: Catalog) -> EngineHarness:
    """A harness whose clock shows noon."""
    today = datetime.now(UTC).date()
    noon = datetime(today.year, today.month, today.day, 12, tzinfo=UTC) + timedelta(days=1)
    await store.pool.execute(FAKE_CLOCK.format(noon.isoformat()))
    return EngineHarness(store, catalog, noon)
