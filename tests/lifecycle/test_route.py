"""Route: a job whose pool nobody named goes where its runs belong by their length."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from bellringer.jobs import Definition, pool_for
from bellringer.lifecycle import explain
from bellringer.lifecycle.claim import Seat
from bellringer.lifecycle.route import FIRST, Moved, belongs_to_long, route
from bellringer.lifecycle.watch import usual
from bellringer.schedule import every
from bellringer.schedule.instants import EPOCH
from bellringer.scheduler.watchman import Watchman
from bellringer.telemetry import ROUTED
from bellringer.wire import patched

if TYPE_CHECKING:
    from tests.lifecycle.conftest import Bench

MINUTE = timedelta(minutes=1)


async def lived(bench: Bench, job: UUID, *took: float, pool: str = "short") -> Seat:
    """Runs of a job that took so many seconds each; one more is under way, for as long as the last."""
    seat = await bench.seat(pool=pool)
    for ran in took:
        await bench.trigger(job)
        claimed = await bench.claim_one(seat)
        await bench.pass_time(ran)
        await bench.end(seat, claimed, ran=ran)
    await bench.trigger(job)
    await bench.claim_one(seat)
    await bench.pass_time(took[-1])
    return seat


async def routed(bench: Bench) -> Moved:
    return await route(bench.store, bench.names, await bench.now())


async def pool_of(bench: Bench, job: UUID) -> str:
    return (await bench.read(job)).pool


async def told(bench: Bench, job: UUID) -> list[str]:
    why = await explain.why(bench.store, job, tenant_id=bench.tenant)
    return [reason.text for reason in why.reasons if reason.code == "routed"]


# By what is expected


@pytest.mark.parametrize(
    ("expected", "pool"), [(None, "short"), (1, "short"), (60, "short"), (60.001, "long"), (86_400, "long")]
)
def test_more_than_a_minute_is_long(expected: float | None, pool: str) -> None:
    assert pool_for("greet", None if expected is None else timedelta(seconds=expected)) == pool


def test_calls_have_a_pool_of_their_own() -> None:
    assert pool_for("http", timedelta(hours=1)) == "http"


async def test_what_is_expected_is_kept_and_told(bench: Bench) -> None:
    job = await bench.job("job", every("1h"), pool="long", routed=True, expected_duration=5 * MINUTE)
    stored = await bench.read(job)
    assert (stored.expected_duration, stored.routed, stored.pool) == (5 * MINUTE, True, "long")
    assert await told(bench, job) == ["nobody named its pool; it goes to long, as it is expected to take 5m"]
    [revision] = await bench.sql("select definition from revisions_of($1)", job)
    assert json.loads(revision["definition"])["routed"] is True


async def test_what_somebody_expects_is_not_overruled_by_runs(bench: Bench) -> None:
    job = await bench.job("job", routed=True, expected_duration=MINUTE / 2)
    await lived(bench, job, *[90] * 6)
    await bench.seat(pool="long")
    assert await routed(bench) == Moved()


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
    assert belongs_to_long(usual(took, [], EPOCH), is_long=is_long) is belongs


async def test_a_job_that_takes_long_is_moved_with_all_that_waits(bench: Bench) -> None:
    job = await bench.job("job", every("1h"), routed=True)
    await lived(bench, job, *[90] * 6)
    await bench.trigger(job)
    assert await routed(bench) == Moved(), "nobody who knows its task serves the other pool"
    long = await bench.seat(pool="long")
    assert await routed(bench) == Moved(to_long=1)
    assert await routed(bench) == Moved(), "it is done"
    stored = await bench.read(job)
    assert (stored.pool, stored.revision, stored.routed) == ("long", 2, True)
    assert stored.learned_at is not None
    [revision] = await bench.sql("select what, who, why from revisions_of($1) where revision = 2", job)
    assert tuple(revision) == ("changed", "learned from its runs", "its runs usually take 1m30s")
    [entry] = await bench.sql("select who, action from audit where target = $1 and revision = 2", str(job))
    assert tuple(entry) == ("learned from its runs", "job.changed")
    waiting = await bench.claim(long)
    assert [claimed.key.job_id for claimed in waiting] == [job], "what waited has followed"
    await bench.set_clock(bench.after(3600))
    assert await bench.tick_all() == 1
    [born] = await bench.sql("select r.revision, p.name from runs r join pools p using (pool_id) where slot = 0")
    assert tuple(born) == (2, "long")
    assert "its runs have shown to be long" in (await told(bench, job))[0]


async def test_a_job_that_became_short_comes_back(bench: Bench) -> None:
    job = await bench.job("job", routed=True)
    await lived(bench, job, *[90] * 5)
    await bench.seat(pool="long")
    assert (await routed(bench)).to_long == 1
    await lived(bench, job, *[40] * 20, pool="long")
    assert await routed(bench) == Moved()
    await lived(bench, job, *[2] * 20, pool="long")
    assert await routed(bench) == Moved(to_short=1)
    stored = await bench.read(job)
    assert (stored.pool, stored.learned_at) == ("short", None)
    assert await told(bench, job) == []


async def test_a_pool_that_somebody_named_is_never_changed(bench: Bench) -> None:
    job = await bench.job("job")
    await lived(bench, job, *[90] * 6)
    await bench.seat(pool="long")
    assert await routed(bench) == Moved()
    assert await pool_of(bench, job) == "short"


async def _moved(bench: Bench) -> tuple[UUID, Definition]:
    definition = bench.definition("job", every("1h"), routed=True)
    [made] = await bench.register(definition)
    await lived(bench, made.job_id, *[90] * 6)
    await bench.seat(pool="long")
    assert (await routed(bench)).to_long == 1
    return made.job_id, definition


async def test_code_that_declares_its_job_again_does_not_move_it_back(bench: Bench) -> None:
    job, definition = await _moved(bench)
    assert await bench.declare(definition) == []
    assert len(await bench.declare(replace(definition, priority=7))) == 1
    stored = await bench.read(job)
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
    bench: Bench, patch: dict[str, Any], pool: str, is_routed: bool
) -> None:
    job, _ = await _moved(bench)
    wanted = patched((await bench.read(job)).definition(), patch)
    assert wanted.pool == pool
    await bench.change(job, wanted)
    stored = await bench.read(job)
    assert (stored.pool, stored.routed) == (pool, is_routed)


async def test_a_job_that_is_changed_meanwhile_is_left_alone(bench: Bench) -> None:
    job = await bench.job("job", routed=True)
    stale = "select reroute($1, 7, 2::smallint, true, 'me', 'x')"
    assert await bench.value(stale, job) is None
    assert await pool_of(bench, job) == "short"


async def test_the_watchman_counts_what_he_moves(bench: Bench) -> None:
    job = await bench.job("job", routed=True)
    await lived(bench, job, *[90] * 6)
    await bench.seat(pool="long")
    before = ROUTED.labels("long")._value.get()
    watchman = Watchman(bench.store, bench.names)
    await watchman.route()
    assert ROUTED.labels("long")._value.get() == before + 1
    assert watchman._routed == FIRST
