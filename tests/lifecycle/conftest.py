"""A bench for the steps of a run: the real database, on a clock that stands still until a test moves it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from bellringer.durations import parse_duration
from bellringer.jobs import Definition
from bellringer.leases import Holding
from bellringer.lifecycle import claim, control, register, settle
from bellringer.lifecycle import send as sending
from bellringer.lifecycle import tick as ticking
from bellringer.lifecycle.claim import Seat, Turn
from bellringer.lifecycle.tick import Pace, Ticked
from bellringer.policies import Missed, Overlap
from bellringer.runs import Ending, Outcome, RunKey, State
from bellringer.schedule import Schedule
from bellringer.store import cohorts, jobs, queue, runs, workers
from bellringer.store.cohorts import Fired, Hand
from bellringer.store.jobs import Job, Registered
from bellringer.store.leases import PostgresLeases
from bellringer.store.names import Names
from bellringer.store.pool import Store
from bellringer.store.queue import Claimed
from bellringer.store.runs import Run, Sent
from bellringer.store.workers import Introduction

SECOND = timedelta(seconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FAKE_CLOCK = """
create table bellringer.test_clock (moment timestamptz);
insert into bellringer.test_clock values ('{}');
create or replace function bellringer.now() returns timestamptz language sql stable
  as 'select moment from bellringer.test_clock';
"""


@dataclass
class Bench:
    """Short ways to do each step, with defaults that fit together."""

    store: Store
    names: Names
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
        """Let the clock run from where it stands, so many times as fast as the real one."""
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
        """So many seconds after noon."""
        return self.noon + timedelta(seconds=seconds)

    # Jobs

    @staticmethod
    def definition(name: str = "job", *schedules: Schedule, **more: Any) -> Definition:
        return Definition(name=name, schedules=schedules, **{"task": "greet", "overlap": Overlap.ALLOW, **more})

    async def job(self, name: str = "job", *schedules: Schedule, **more: Any) -> UUID:
        return (await self.register(self.definition(name, *schedules, **more)))[0].job_id

    async def register(self, *definitions: Definition) -> list[Registered]:
        return await register.register(self.store, self.names, definitions, tenant_id=self.tenant, who="me")

    async def declare(self, *definitions: Definition) -> list[Registered]:
        return await register.declare(self.store, self.names, definitions, tenant_id=self.tenant, who="me")

    async def change(self, job_id: UUID, definition: Definition, revision: int | None = None) -> Registered:
        if revision is None:
            revision = (await self.read(job_id)).revision
        return await register.change(
            self.store, self.names, job_id, revision, definition, tenant_id=self.tenant, who="me"
        )

    async def pause(self, job_id: UUID) -> int:
        return await control.pause(self.store, job_id, tenant_id=self.tenant, who="me")

    async def resume(self, job_id: UUID, missed: Missed = Missed.SKIP) -> int:
        resumed = await register.resume(self.store, self.names, job_id, tenant_id=self.tenant, who="me", missed=missed)
        return resumed.revision

    async def retire(self, job_id: UUID) -> None:
        await control.retire(self.store, job_id, tenant_id=self.tenant, who="me")

    async def read(self, job_id: UUID) -> Job:
        job = await jobs.get(self.store, job_id, self.tenant)
        assert job is not None
        return job

    async def share_shard(self, shard: int = 0) -> None:
        """Let all jobs that are registered from now on live in one shard."""
        await self.sql(
            "create or replace function bellringer.one_shard() returns trigger language plpgsql as "
            f"'begin new.shard := {shard}; return new; end'"
        )
        for table in ("jobs", "members"):  # a new member is as it was sent, not as its job was stored
            await self.sql(
                f"create or replace trigger one_shard before insert on bellringer.{table} "
                "for each row execute function bellringer.one_shard()"
            )

    # Firing

    async def hold(self, holder: UUID | None = None) -> Holding:
        """Take every shard that is free, and fire with them from now on."""
        holder = holder or uuid4()
        tokens = await PostgresLeases(self.store, timedelta(minutes=5)).acquire(holder, 1024)
        self.holding = Holding(holder, tokens)
        return self.holding

    async def seize(self, holder: UUID | None = None) -> Holding:
        """Let all leases expire, and take them."""
        await self.sql("update leases set expires_at = '-infinity'")
        return await self.hold(holder)

    async def hands(self, until: datetime | None = None) -> list[Hand]:
        until = until or await self.now()
        shards = list(range(await self.names.shards()))
        return await cohorts.coming(self.store, shards, until, 10_000)

    async def tick(
        self, holding: Holding | None = None, *, lead: float = 0, grace: float = 60, most: int = 8000
    ) -> Ticked:
        """One pass over all hands that strike now."""
        if holding is None:
            holding = self.holding if self.holding.tokens else await self.hold()
        pace = Pace(lead=lead * SECOND, grace=grace * SECOND, most=most)
        now = await self.now()
        hands = await self.hands(now + pace.lead)
        return await ticking.tick(self.store, self.names, holding, hands, now, pace)

    async def tick_all(self, holding: Holding | None = None, **pace: Any) -> int:
        """Pass by pass, until nothing strikes any more; answers how many runs were born."""
        fired = 0
        for _ in range(1000):
            lead = pace.get("lead", 0) * SECOND
            if not await self.hands(await self.now() + lead):
                return fired
            fired += (await self.tick(holding, **pace)).fired.fired
        raise AssertionError("the hands never came to rest")

    async def ring(self, *, lead: float = 0, most: int = 8000) -> Fired:
        holding = self.holding if self.holding.tokens else await self.hold()
        return await ticking.ring(self.store, holding, sorted(holding.tokens), Pace(lead=lead * SECOND, most=most))

    # Working

    async def seat(self, *tasks: str, pool: str = "short") -> Seat:
        """A worker that knows these tasks, `greet` if none is named."""
        ids = await self.names.task_ids(tasks or ("greet",))
        task_ids = [ids[task] for task in tasks or ("greet",)]
        who = Introduction(name="w", host="h", pid=1, version="0", pools={pool: 10}, task_ids=task_ids)
        pool_id = (await self.names.pool_ids([pool]))[pool]
        return Seat(worker_id=await workers.join(self.store, who), pool_id=pool_id, task_ids=task_ids)

    async def claim(self, seat: Seat, most: int = 100) -> list[Claimed]:
        return (await claim.claim(self.store, seat, most, Turn()))[0]

    async def claim_one(self, seat: Seat) -> Claimed:
        [claimed] = await self.claim(seat)
        return claimed

    async def end(self, seat: Seat, claimed: Sequence[Claimed] | Claimed, **ending: Any) -> int:
        """Settle attempts; they ended well unless something else is said."""
        batch = [claimed] if isinstance(claimed, Claimed) else claimed
        how = Ending(**{"outcome": Outcome.OK, **ending})
        return await settle.settle(self.store, seat.worker_id, [settle.decide(c, how) for c in batch])

    async def fail(self, seat: Seat, claimed: Sequence[Claimed] | Claimed, **error: Any) -> int:
        told = {"type": "ValueError", "message": "no", "lineage": ["ValueError"], **error}
        return await self.end(seat, claimed, outcome=Outcome.FAILED, error=told)

    async def vanish(self, seat: Seat) -> None:
        """The worker has been silent for an hour."""
        await self.sql(
            "update workers set seen_at = clock_timestamp() - interval '1 hour' where worker_id = $1",
            seat.worker_id,
        )

    async def sweep(self) -> int:
        return await queue.sweep(self.store, 1000)

    # Asking

    async def send(self, *, tenant: int | None = None, **order: Any) -> Sent:
        what = sending.Order(**{"task": "greet", **order})
        return await sending.send(self.store, self.names, what, tenant_id=tenant or self.tenant)

    async def trigger(self, job_id: UUID, **arguments: Any) -> RunKey:
        return await sending.trigger(self.store, job_id, tenant_id=self.tenant, **arguments)

    async def cancel(self, key: RunKey) -> State:
        return await control.cancel(self.store, key, tenant_id=self.tenant, reason="not wanted")

    async def retry(self, key: RunKey) -> None:
        await control.retry(self.store, key, tenant_id=self.tenant)

    async def redrive(self, *keys: RunKey) -> int:
        return await control.redrive(self.store, keys, tenant_id=self.tenant)

    # Looking

    async def run(self, key: RunKey) -> Run:
        run = await runs.get(self.store, key, self.tenant)
        assert run is not None
        return run

    async def state(self, key: RunKey) -> State:
        return (await self.run(key)).state

    async def sql(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        return await self.store.pool.fetch(query, *arguments)

    async def value(self, query: str, *arguments: Any) -> Any:
        return await self.store.pool.fetchval(query, *arguments)

    async def fired(self, job_id: UUID, slot: int = 0) -> list[float]:
        """For when the runs of a job were scheduled, in seconds after noon."""
        rows = await self.sql("select scheduled_for from runs where job_id = $1 and slot = $2 order by 1", job_id, slot)
        return [self.seconds(row[0]) for row in rows]

    async def queued(self, job_id: UUID) -> list[float]:
        """What of a job is in the queue, in seconds after noon."""
        rows = await self.sql("select scheduled_for from queue where job_id = $1 order by 1", job_id)
        return [self.seconds(row[0]) for row in rows]

    async def timers(self, job_id: UUID) -> list[float]:
        """When the timers of a job are due, in seconds after noon."""
        rows = await self.sql("select due_at from timers where job_id = $1 order by 1", job_id)
        return [self.seconds(row[0]) for row in rows]

    async def gaps(self, job_id: UUID) -> list[dict[str, Any]]:
        rows = await self.sql(
            "select from_at, to_at, count, reason, into_at from gaps where job_id = $1 order by 1", job_id
        )
        return [{k: self.seconds(v) if isinstance(v, datetime) else v for k, v in dict(row).items()} for row in rows]

    async def verify(self, until: datetime) -> list[str]:
        """Complaints, where an occurrence after a job's registration has not exactly one run or gap.

        What should have happened is worked out here, from nothing but the jobs' revisions: an `every`
        schedule holds for the instants after a revision, up to and with the next, while the job is active.
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

    def of(self, tenant: int) -> Bench:
        """The same bench for another tenant."""
        return replace(self, tenant=tenant)

    async def tenants(self, count: int) -> list[int]:
        """New tenants, beside the one that is there by default."""
        rows = await self.sql(
            "insert into tenants (name) select 't' || n from generate_series(1, $1) n returning tenant_id",
            count,
        )
        return sorted(row[0] for row in rows)


def _multiples(interval: timedelta, after: datetime, until: datetime) -> set[datetime]:
    """The instants, whole intervals from 1970, after one moment up to and with another."""
    first = (after - EPOCH) // interval + 1
    last = (until - EPOCH) // interval
    return {EPOCH + n * interval for n in range(first, last + 1)}


@pytest.fixture
async def bench(store: Store, names: Names) -> Bench:
    """A bench whose clock stands at noon."""
    today = datetime.now(UTC).date()
    noon = datetime(today.year, today.month, today.day, 12, tzinfo=UTC) + timedelta(days=1)
    await store.pool.execute(FAKE_CLOCK.format(noon.isoformat()))
    return Bench(store, names, noon)
