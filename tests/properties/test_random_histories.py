"""Random histories on the real engine with a manual clock: every occurrence has exactly one run or gap.

`BELLRINGER_EXAMPLES=2000 pytest tests/properties` runs it for longer, with new examples every time.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from tests.properties.conftest import AT_ONCE, breaches, chores, judged, overlapping, prepare, rest

from bellringer.core.policies import Catchup, Limit, Misfire, Missed, Overlap
from bellringer.core.retry_policy import Retry
from bellringer.core.runs import RunKey
from bellringer.engine.backfill import BackfillWindow, run_backfills, start
from bellringer.engine.claim import ClaimSpec
from bellringer.engine.reap import reap
from bellringer.errors import InvalidInput
from bellringer.schedule import at, cron, delay, every
from bellringer.store import backfills
from bellringer.store.connection_pool import Store
from bellringer.store.queue import ClaimedRun
from bellringer.testing.postgres import TestServer

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness

T = TypeVar("T")
EXAMPLES: Final = int(os.environ.get("BELLRINGER_EXAMPLES", "0"))
STEPS: Final = 40
WRITTEN: Final = """  -- that a catch-up's job is gone, anybody may write down: that expects a state, and no lease
    select array[(select count(*) from runs), (select count(*) from gaps where reason <> 'deleted'),
                 (select sum(1 + made + passed) from backfills)::bigint,
                 (select sum(extract(epoch from next_at)) from cohorts)::bigint]"""
TABLES: Final = (
    "jobs", "job_revisions", "cohorts", "members", "timers", "runs", "queue", "attempts", "gaps", "backfills",
    "freezes", "dead_letters", "workers", "events", "limits", "job_outcomes",
)  # fmt: skip

SCHEDULES: Final = (  # few, so that jobs share them
    every("1s"),
    every("2s"),
    every("7s"),
    cron("*/4 * * * * *", seconds=True),
    cron("* * * * *"),
)
schedules = st.lists(st.sampled_from(SCHEDULES), min_size=1, max_size=3, unique=True)
FREEZE: Final = """
    insert into freezes (tenant_id, name, from_at, to_at, policy, made_by, made_at)
    select 1, 'rest', n + $1 * interval '1 s', n + ($1 + $2) * interval '1 s', $3, 'me', n from now() n"""
LIMITS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {},
    {"max_concurrency": 1},
    {"max_concurrency": 2},
    {"limit": Limit("key", 1)},
    {"limit": Limit("key", 1), "max_concurrency": 1},
)
picks = st.integers(0, 1000)
definitions = st.fixed_dictionaries(
    {
        "of": st.one_of(schedules, schedules, schedules, st.integers(1, 90), st.just("3s")),
        "start": st.sampled_from([None, None, None, -5, 10, 100]),  # in seconds from now
        "end": st.sampled_from([None, None, None, 20, 150]),
        "limits": st.sampled_from(LIMITS),
        "misfire": st.sampled_from(Misfire),
        "overlap": st.sampled_from(Overlap),
        "catchup": st.builds(
            Catchup, st.sampled_from([1, 3, 100]), st.sampled_from([timedelta(minutes=1), timedelta(days=1)])
        ),
        "jitter": st.sampled_from([None, None, timedelta(seconds=2), timedelta(seconds=20)]),
        "enabled": st.sampled_from([True] * 5 + [False]),
        "retry": st.sampled_from(
            [Retry(1), Retry(3, delays=["1s", "5s"], jitter=0), Retry(2, delays=["2m"], jitter=0)]
        ),
        "expires_in": st.sampled_from([None, None, None, timedelta(seconds=25), timedelta(seconds=150)]),
        "pause_after_failures": st.sampled_from([None, None, 2]),  # one number: an edit could set it below the count
    }
)


class Engine(RuleBasedStateMachine):
    """A state machine of nodes (one of them stale), workers (some disappear) and job changes."""

    harness: ClassVar[Any]  # an EngineHarness
    runner: ClassVar[asyncio.Runner]

    def do(self, step: Awaitable[T]) -> T:
        async def doing() -> T:
            return await step

        return self.runner.run(doing())

    @initialize(first=st.lists(definitions, min_size=1, max_size=4))
    def begin(self, first: list[dict[str, Any]]) -> None:
        self.jobs: list[UUID] = []
        self.catalog: dict[UUID, str] = {}
        self.limits: dict[UUID, dict[str, Any]] = {}  # limits do not change: running runs would exceed a lower one
        self.paused: set[UUID] = set()
        self.free_to_overlap: set[UUID] = set()  # overlap was allowed before, or a run was triggered manually
        self.held: list[tuple[ClaimSpec, ClaimedRun]] = []
        self.do(self._begin())
        for definition in first:
            self._register(**definition)

    async def _begin(self) -> None:
        await self.harness.store.pool.execute(";".join(f"delete from {table}" for table in TABLES))
        await self.harness.sql("update tenants set suspended_at = null")
        await self.harness.set_clock(self.harness.noon)
        await self.harness.seize()
        self.seat = await self.harness.join_worker()

    # People

    @precondition(lambda self: len(self.jobs) < 6)
    @rule(definition=definitions)
    def register(self, definition: dict[str, Any]) -> None:
        self._register(**definition)

    def _register(self, limits: dict[str, Any], **wanted: Any) -> None:
        name = f"job {len(self.catalog)}"
        job_id = self.do(self.harness.register(self.definition(name, **wanted, **limits)))[0].job_id
        self.jobs.append(job_id)
        self.catalog[job_id], self.limits[job_id] = name, limits
        self.note(job_id, wanted["overlap"])

    def definition(self, name: str, of: Any, start: int | None, end: int | None, **more: Any) -> Any:
        now = self.do(self.harness.now())
        starts_at = None if start is None else now + timedelta(seconds=start)
        ends_at = None if end is None else (starts_at or now) + timedelta(seconds=end)
        return self.harness.definition(name, *self.when(of), starts_at=starts_at, ends_at=ends_at, **more)

    def when(self, of: list[Any] | int | str) -> list[Any]:
        """A strategy of recurring schedules, one-shots and delays."""
        if isinstance(of, int):
            return [at(self.do(self.harness.now()) + timedelta(seconds=of))]
        return [delay(of)] if isinstance(of, str) else of

    def note(self, job_id: UUID, overlap: Overlap) -> None:
        if overlap is Overlap.ALLOW:
            self.free_to_overlap.add(job_id)

    def pick(self, chance: int) -> UUID:
        return self.jobs[chance % len(self.jobs)]

    @precondition(lambda self: self.jobs)
    @rule(chance=picks, definition=definitions)
    def edit(self, chance: int, definition: dict[str, Any]) -> None:
        job_id = self.pick(chance)
        wanted = {key: value for key, value in definition.items() if key != "limits"} | self.limits[job_id]
        self.do(self.harness.change(job_id, self.definition(self.catalog[job_id], **wanted)))
        self.note(job_id, definition["overlap"])

    @precondition(lambda self: self.jobs)
    @rule(chance=picks)
    def pause(self, chance: int) -> None:
        self.do(self.harness.pause(self.pick(chance)))
        self.paused.add(self.pick(chance))

    @precondition(lambda self: self.paused)
    @rule(chance=picks, missed=st.sampled_from(Missed))
    def resume(self, chance: int, missed: Missed) -> None:
        job_id = sorted(self.paused)[chance % len(self.paused)]
        self.do(self.harness.resume(job_id, missed))
        self.paused.discard(job_id)

    @precondition(lambda self: self.jobs)
    @rule(chance=picks)
    def retire(self, chance: int) -> None:
        job_id = self.pick(chance)
        self.do(self.harness.retire(job_id))
        self.jobs.remove(job_id)
        self.paused.discard(job_id)

    @precondition(lambda self: self.jobs)
    @rule(chance=picks)
    def trigger(self, chance: int) -> None:
        self.do(self.harness.trigger(self.pick(chance)))
        self.free_to_overlap.add(self.pick(chance))

    @rule(chance=picks)
    def cancel(self, chance: int) -> None:
        rows = self.do(self.harness.sql("select job_id, scheduled_for, slot from queue order by 2, 3, 1"))
        if rows:  # and else nothing: an assumption would throw the whole history away
            self.do(self.harness.cancel(RunKey(*rows[chance % len(rows)])))

    @rule()
    def redrive(self) -> None:
        rows = self.do(self.harness.sql("select job_id, scheduled_for, slot from dead_letters"))
        self.do(self.harness.redrive(*(RunKey(*row) for row in rows)))

    @rule(start=st.integers(-5, 30), length=st.integers(1, 100), policy=st.sampled_from(["defer", "skip", "collapse"]))
    def freeze(self, start: int, length: int, policy: str) -> None:
        self.do(self.harness.sql(FREEZE, start, length, policy))

    @precondition(lambda self: self.jobs)
    @rule(
        chance=picks, back=st.integers(1, 100), newest=st.booleans(), again=st.sampled_from(["none", "failed", "all"])
    )
    def ask_for_backfill(self, chance: int, back: int, newest: bool, again: str) -> None:
        async def ask() -> None:
            job, now = await self.harness.read(self.pick(chance)), await self.harness.now()
            wish = BackfillWindow(job=job, from_at=now - timedelta(seconds=back), to_at=now, reprocess=again)
            more: Any = {"newest_first": newest, "parallelism": 2, "rate": None, "tenant_id": 1, "who": "me"}
            with suppress(InvalidInput):  # it has no recurring schedule
                await start(self.harness.store, self.harness.catalog, wish, **more)

        self.do(ask())

    @rule(chance=picks, what=st.sampled_from(["pause", "resume", "end"]))
    def control_backfill(self, chance: int, what: str) -> None:
        rows = self.do(self.harness.sql("select backfill_id from backfills where ended_at is null order by 1"))
        if not rows:
            return
        number, store = rows[chance % len(rows)][0], self.harness.store
        if what == "end":
            self.do(backfills.end(store, number, 1, "cancelled", None))
        else:
            self.do((backfills.pause if what == "pause" else backfills.resume)(store, number, 1))

    @rule(suspended=st.booleans())
    def suspend(self, suspended: bool) -> None:
        self.do(self.harness.sql("update tenants set suspended_at = case when $1 then now() end", suspended))

    # Time and nodes

    @rule(seconds=st.sampled_from([0.5, 1, 1, 2, 3.25, 10, 30]))
    def pass_time(self, seconds: float) -> None:
        self.do(self.harness.pass_time(seconds))

    @rule(seconds=st.sampled_from([59, 61, 90, 200, 400]))
    def outage(self, seconds: int) -> None:
        self.do(self.harness.pass_time(seconds))

    @rule(lead=st.sampled_from([0, 0.5, 1, 2]), most=st.sampled_from([1, 2, 3, 8000]))
    def tick(self, lead: float, most: int) -> None:
        self.do(self.harness.tick(lead=lead, most=most))

    @rule(
        seconds=st.sampled_from([1, 2, 5]),
        lead=st.sampled_from([0, 1]),
        most=st.sampled_from([1, 2, 8000]),
        work=st.sampled_from(["none", "begun", "done"]),
    )
    def live(self, seconds: int, lead: float, most: int, work: str) -> None:
        """Let some seconds pass on a healthy node; workers idle, hold runs, or execute them."""
        for _ in range(seconds):
            self.do(self.harness.pass_time(1))
            self.do(self.harness.tick_all(lead=lead, most=most))
            self.do(chores(self.harness))
            if work != "none":
                self.claim(100)
            if work == "done":
                self.end_all()

    @rule(seconds=st.sampled_from([0, 2, 10, 100]), lead=st.sampled_from([0, 1]))
    def take_over(self, seconds: int, lead: float) -> None:
        """Another node takes the shards; the previous holder continues with stale tokens."""
        stale = self.harness.holding
        self.do(self.harness.seize(uuid4()))
        self.do(self.harness.pass_time(seconds))
        before = self.do(self.harness.value(WRITTEN))
        self.do(self.harness.tick(stale, lead=lead))
        self.do(self.harness.tick(stale, lead=lead))
        self.do(run_backfills(self.harness.store, self.harness.catalog, stale, self.do(self.harness.now())))
        assert self.do(self.harness.value(WRITTEN)) == before, "a stale holder wrote"

    @rule()
    def do_chores(self) -> None:
        self.do(self.harness.ring())
        self.do(chores(self.harness))

    # Workers

    @rule(most=st.sampled_from([1, 3, 100]))
    def claim(self, most: int) -> None:
        self.held += [(self.seat, claimed) for claimed in self.do(self.harness.claim(self.seat, most))]
        assert self.do(breaches(self.harness, *AT_ONCE)) == []
        assert self.do(overlapping(self.harness, *self.free_to_overlap)) == []

    @precondition(lambda self: self.held)
    @rule(chance=picks, ok=st.booleans())
    def end(self, chance: int, ok: bool) -> None:
        seat, claimed = self.held.pop(chance % len(self.held))
        assert self.do(self.harness.end(seat, claimed) if ok else self.harness.fail(seat, claimed)) == 1

    @rule()
    def end_all(self) -> None:
        for seat, claimed in self.held:
            assert self.do(self.harness.end(seat, claimed)) == 1
        self.held = []

    @precondition(lambda self: self.held)
    @rule()
    def vanish(self) -> None:
        self.do(self.harness.silence_worker(self.seat))
        self.do(reap(self.harness.store, self.harness.catalog, timedelta(minutes=5)))
        for seat, claimed in self.held:
            assert self.do(self.harness.end(seat, claimed)) == 0, "a report that came too late was taken"
        self.held = []
        self.seat = self.do(self.harness.join_worker())

    # The end

    def teardown(self) -> None:
        if hasattr(self, "seat"):
            self.do(self.finish())

    async def finish(self) -> None:
        for seat, claimed in self.held:
            await self.harness.end(seat, claimed)
        await rest(self.harness, self.seat)
        assert await judged(self.harness) + await breaches(self.harness) == []
        await self.harness.sql("update tenants set suspended_at = null")
        await self.harness.pass_time(200)  # beyond freezes, retries and the grace
        await rest(self.harness, self.seat)
        assert await judged(self.harness) + await breaches(self.harness) == []


@pytest.fixture
def engine(bellringer_server: TestServer) -> Iterator[type[Engine]]:
    """Runs the state machine in one database, which its histories use one after the other."""
    with bellringer_server.plain_database() as dsn, asyncio.Runner() as runner:

        async def begin() -> EngineHarness:
            return await prepare(await Store.open(dsn))

        Engine.runner, Engine.harness = runner, runner.run(begin())
        yield Engine
        runner.run(Engine.harness.store.close())


def test_every_occurrence_is_accounted_for_whatever_happens(engine: type[Engine]) -> None:
    chosen = settings(
        max_examples=EXAMPLES or 100,
        stateful_step_count=STEPS,
        derandomize=not EXAMPLES,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    run_state_machine_as_test(engine, settings=chosen)
