"""Route: a job whose pool nobody named goes where its runs belong by their length."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from bellringer.core.jobs import Definition, pool_for
from bellringer.engine import explain
from bellringer.engine.claim import ClaimSpec
from bellringer.engine.monitor import compute_baseline
from bellringer.engine.pool_by_duration import FIRST_JOB_ID, MovedJobs, belongs_to_long, move_jobs
from bellringer.schedule import every
from bellringer.schedule.instants import EPOCH
from bellringer.scheduler.monitoring import Monitoring
from bellringer.telemetry import ROUTED
from bellringer.wire.definitions import patched

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness

MINUTE = timedelta(minutes=1)


async def lived(harness: EngineHarness, job: UUID, *took: float, pool: str = "short") -> ClaimSpec:
    """Runs of a job that took so many seconds each; one more is under way, for as long as the last."""
    seat = await harness.join_worker(pool=pool)
    for ran in took:
        await harness.trigger(job)
        claimed = await harness.claim_one(seat)
        await harness.pass_time(ran)
        await harness.end(seat, claimed, ran=ran)
    await harness.trigger(job)
    await harness.claim_one(seat)
    await harness.pass_time(took[-1])
    return seat


async def routed(harness: EngineHarness) -> MovedJobs:
    return await move_jobs(harness.store, harness.catalog, await harness.now())


async def pool_of(harness: EngineHarness, job: UUID) -> str:
    return (await harness.read(job)).pool


async def told(harness: EngineHarness, job: UUID) -> list[str]:
    why = await explain.load_job_explanation(harness.store, job, tenant_id=harness.tenant)
    return [reason.text for reason in why.reasons if reason.code == "routed"]


# By what is expected


@pytest.mark.parametrize(
    ("expected", "pool"), [(None, "short"), (1, "short"), (60, "short"), (60.001, "long"), (86_400, "long")]
)
def test_more_than_a_minute_is_long(expected: float | None, pool: str) -> None:
    assert pool_for("greet", None if expected is None else timedelta(seconds=expected)) == pool


def test_calls_have_a_pool_of_their_own() -> None:
    assert pool_for("http", timedelta(hours=1)) == "http"


async def test_what_is_expected_is_kept_and_reported(harness: EngineHarness) -> None:
    job = await harness.job("job", every("1h"), pool="long", routed=True, expected_duration=5 * MINUTE)
    stored = await harness.read(job)
    assert (stored.expected_duration, stored.routed, stored.pool) == (5 * MINUTE, True, "long")
    assert await told(harness, job) == [
        "the job names no pool and runs in long, because its runs are expected to take 5m"
    ]
    [revision] = await harness.sql("select definition from revisions_of($1)", job)
    assert json.loads(revision["definition"])["routed"] is True


async def test_what_somebody_expects_is_not_overruled_by_runs(harness: EngineHarness) -> None:
    job = await harness.job("job", routed=True, expected_duration=MINUTE / 2)
    await lived(harness, job, *[90] * 6)
    await harness.join_worker(pool="long")
    assert await routed(harness) == MovedJobs()


# By what runs have taught


@pytest.mark.parametrize(
    ("took", "is_long", "belongs"),
    [
        ([90] * 5, False, True),
        ([90] * 4, False, False),  # too few to know
        ([60] * 9, False, False),
        ([59, 59, 61, 61, 61], False, True),
        ([45] * 9, True, True),  # it does not go to and fro
        ([29.9] * 9, True, False),
        ([29.9] * 4, True, True),
        ([], True, True),
    ],
)
def test_where_a_job_belongs_by_its_runs(took: list[float], is_long: bool, belongs: bool) -> None:
    assert belongs_to_long(compute_baseline(took, [], EPOCH), is_long=is_long) is belongs


async def test_a_job_that_takes_long_is_moved_with_all_that_waits(harness: EngineHarness) -> None:
    job = await harness.job("job", every("1h"), routed=True)
    await lived(harness, job, *[90] * 6)
    await harness.trigger(job)
    assert await routed(harness) == MovedJobs(), "nobody who knows its task serves the other pool"
    long = await harness.join_worker(pool="long")
    assert await routed(harness) == MovedJobs(to_long=1)
    assert await routed(harness) == MovedJobs(), "it is done"
    stored = await harness.read(job)
    assert (stored.pool, stored.revision, stored.routed) == ("long", 2, True)
    assert stored.learned_at is not None
    [revision] = await harness.sql("select what, who, why from revisions_of($1) where revision = 2", job)
    assert tuple(revision) == ("changed", "learned from its runs", "its runs usually take 1m30s")
    [entry] = await harness.sql("select who, action from audit where target = $1 and revision = 2", str(job))
    assert tuple(entry) == ("learned from its runs", "job.changed")
    waiting = await harness.claim(long)
    assert [claimed.key.job_id for claimed in waiting] == [job], "what waited has followed"
    await harness.set_clock(harness.after(3600))
    assert await harness.tick_all() == 1
    [born] = await harness.sql("select r.revision, p.name from runs r join pools p using (pool_id) where slot = 0")
    assert tuple(born) == (2, "long")
    assert "its past runs were long" in (await told(harness, job))[0]


async def test_a_job_that_became_short_comes_back(harness: EngineHarness) -> None:
    job = await harness.job("job", routed=True)
    await lived(harness, job, *[90] * 5)
    await harness.join_worker(pool="long")
    assert (await routed(harness)).to_long == 1
    await lived(harness, job, *[40] * 20, pool="long")
    assert await routed(harness) == MovedJobs()
    await lived(harness, job, *[2] * 20, pool="long")
    assert await routed(harness) == MovedJobs(to_short=1)
    stored = await harness.read(job)
    assert (stored.pool, stored.learned_at) == ("short", None)
    assert await told(harness, job) == []


async def test_a_pool_that_somebody_named_is_never_changed(harness: EngineHarness) -> None:
    job = await harness.job("job")
    await lived(harness, job, *[90] * 6)
    await harness.join_worker(pool="long")
    assert await routed(harness) == MovedJobs()
    assert await pool_of(harness, job) == "short"


async def _moved(harness: EngineHarness) -> tuple[UUID, Definition]:
    definition = harness.definition("job", every("1h"), routed=True)
    [made] = await harness.register(definition)
    await lived(harness, made.job_id, *[90] * 6)
    await harness.join_worker(pool="long")
    assert (await routed(harness)).to_long == 1
    return made.job_id, definition


async def test_code_that_declares_its_job_again_does_not_move_it_back(harness: EngineHarness) -> None:
    job, definition = await _moved(harness)
    assert await harness.declare(definition) == []
    assert len(await harness.declare(replace(definition, priority=7))) == 1
    stored = await harness.read(job)
    assert (stored.pool, stored.priority, stored.learned_at is not None) == ("long", 7, True)


@pytest.mark.parametrize(
    ("patch", "pool", "is_routed"),
    [
        ({"priority": 7}, "long", True),
        ({"pool": "short"}, "short", False),
        ({"pool": "narrow"}, "narrow", False),
        ({"expected_duration": "10s"}, "short", True),
        ({"expected_duration": "2m"}, "long", True),
    ],
)
async def test_a_person_may_change_a_job_that_was_moved(
    harness: EngineHarness, patch: dict[str, Any], pool: str, is_routed: bool
) -> None:
    job, _ = await _moved(harness)
    wanted = patched((await harness.read(job)).definition(), patch)
    assert wanted.pool == pool
    await harness.change(job, wanted)
    stored = await harness.read(job)
    assert (stored.pool, stored.routed) == (pool, is_routed)


async def test_a_job_that_is_changed_meanwhile_is_left_alone(harness: EngineHarness) -> None:
    job = await harness.job("job", routed=True)
    stale = "select change_pool($1, 7, 2::smallint, true, 'me', 'x')"
    assert await harness.value(stale, job) is None
    assert await pool_of(harness, job) == "short"


async def test_the_watchman_counts_what_he_moves(harness: EngineHarness) -> None:
    job = await harness.job("job", routed=True)
    await lived(harness, job, *[90] * 6)
    await harness.join_worker(pool="long")
    before = ROUTED.labels("long")._value.get()
    watchman = Monitoring(harness.store, harness.catalog)
    await watchman.route()
    assert ROUTED.labels("long")._value.get() == before + 1
    assert watchman._routed == FIRST_JOB_ID
