"""Skip: the tick passes over one occurrence, however it comes to it, and history says who wanted it so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bellringer.core.policies import Misfire
from bellringer.core.runs import RunKey, State
from bellringer.engine import explain
from bellringer.engine.skip import skip, unskip
from bellringer.errors import Conflict, InvalidInput, NotFound
from bellringer.schedule import at, delay, every
from bellringer.store import job_history, runs
from bellringer.store.connection_pool import connect
from bellringer.verify import Finding, VerifyScope, verify

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness

Findings = Callable[[], Awaitable[list[Finding]]]


@pytest.fixture
def findings(harness: EngineHarness, dsn: str) -> Findings:
    """What verify finds wrong with the time since before noon."""

    async def check() -> list[Finding]:
        end = await harness.now()
        await harness.set_clock(end + timedelta(seconds=70))
        connection = await connect(dsn)
        found: list[Finding] = []
        try:
            await verify(connection, VerifyScope(start=harness.after(-60), end=end), found.append)
        finally:
            await connection.close()
            await harness.set_clock(end)
        return found

    return check


async def states(harness: EngineHarness, job_id: UUID) -> dict[float, str]:
    """The runs of a job, by seconds after noon."""
    found = await runs.of_job(harness.store, job_id, harness.tenant, None, 100)
    return {(run.key.scheduled_for - harness.noon).total_seconds(): run.state.value for run in found}


async def walk(harness: EngineHarness, seconds: int, step: int = 10) -> None:
    for _ in range(seconds // step):
        await harness.pass_time(step)
        await harness.tick_all()


async def skip_at(
    harness: EngineHarness, job_id: UUID, seconds: float, reason: str | None = None
) -> job_history.SkipRow:
    return await skip(harness.store, job_id, harness.after(seconds), tenant_id=harness.tenant, who="ada", reason=reason)


async def test_only_the_occurrence_that_was_named_is_passed_over(harness: EngineHarness, findings: Findings) -> None:
    await harness.hold()
    job_id, other = await harness.job("a", every("20s")), await harness.job("b", every("20s"))
    kept = await skip_at(harness, job_id, 40, "a release")
    assert (kept.at, kept.who, kept.reason) == (harness.after(40), "ada", "a release")
    again = await skip_at(harness, job_id, 40, "another reason")
    assert again == kept, "to say it twice changes nothing"
    await walk(harness, 60)
    assert await states(harness, job_id) == {20: "queued", 40: "skipped", 60: "queued"}
    assert await states(harness, other) == {20: "queued", 40: "queued", 60: "queued"}
    run = await runs.get(harness.store, RunKey(job_id, harness.after(40), 0), harness.tenant)
    assert run is not None
    assert run.reason == "skipped by ada: a release"
    told = await explain.load_job_explanation(
        harness.store, job_id, harness.after(40).isoformat(), tenant_id=harness.tenant
    )
    assert "skipped by ada: a release" in " ".join(reason.text for reason in told.reasons)
    assert await findings() == []


async def test_a_cohort_that_jumps_does_not_fire_it_either(harness: EngineHarness, findings: Findings) -> None:
    await harness.hold()
    passed, goal = await harness.job("a", every("20s")), await harness.job("b", every("20s"))
    missing = await harness.job("c", every("20s"), misfire=Misfire.FIRE_ALL)
    await skip_at(harness, passed, 100)
    await skip_at(harness, goal, 200)
    await skip_at(harness, missing, 100)
    await harness.set_clock(harness.after(205))
    await harness.tick_all()
    assert await states(harness, passed) == {200: "queued"}
    assert await states(harness, goal) == {200: "skipped"}
    await walk(harness, 20)
    assert (await states(harness, goal))[220] == "queued"
    assert await findings() == []


async def test_what_the_lead_has_created_ahead_of_its_time_is_taken_back(
    harness: EngineHarness, findings: Findings
) -> None:
    await harness.hold()
    job_id = await harness.job("a", every("20s"))
    await harness.set_clock(harness.after(19.5))
    await harness.tick_all(lead=1)
    assert await states(harness, job_id) == {20: "queued"}
    await skip_at(harness, job_id, 20)
    assert await states(harness, job_id) == {20: "skipped"}
    await harness.pass_time(5)
    await harness.tick_all()
    assert await states(harness, job_id) == {20: "skipped"}
    with pytest.raises(Conflict, match="has come already"):
        await unskip(harness.store, job_id, harness.after(20), tenant_id=harness.tenant)
    assert await findings() == []


async def test_an_edit_that_meets_a_cohort_ahead_does_not_create_it(harness: EngineHarness, findings: Findings) -> None:
    await harness.hold()
    job_id, _ = await harness.job("a", every("20s")), await harness.job("b", every("20s"))
    await skip_at(harness, job_id, 20)
    await harness.set_clock(harness.after(19.5))
    await harness.tick_all(lead=1)
    await harness.change(job_id, harness.definition("a", every("20s"), priority=9))
    assert (await states(harness, job_id)).get(20, "skipped") == "skipped"
    await harness.pass_time(2)
    await harness.tick_all()
    assert (await states(harness, job_id)).get(20, "skipped") == "skipped"
    assert await findings() == []


@pytest.mark.parametrize("act", ["pause", "edit", "delete"])
async def test_a_skip_whose_time_never_comes_means_nothing(
    harness: EngineHarness, findings: Findings, act: str
) -> None:
    await harness.hold()
    job_id = await harness.job("a", every("20s"))
    await skip_at(harness, job_id, 40)
    await walk(harness, 30)
    if act == "pause":
        await harness.pause(job_id)
    elif act == "edit":
        await harness.change(job_id, harness.definition("a", every("15s")))
    else:
        await harness.retire(job_id)
    await walk(harness, 30)
    assert 40 not in await states(harness, job_id)
    assert await findings() == []


async def test_it_can_be_wanted_again(harness: EngineHarness, findings: Findings) -> None:
    await harness.hold()
    job_id = await harness.job("a", every("20s"))
    await skip_at(harness, job_id, 40)
    assert [s.at for s in await job_history.upcoming_skips(harness.store, job_id, harness.tenant, None, 10)] == [
        harness.after(40)
    ]
    await unskip(harness.store, job_id, harness.after(40), tenant_id=harness.tenant)
    assert await job_history.upcoming_skips(harness.store, job_id, harness.tenant, None, 10) == []
    await walk(harness, 40)
    assert await states(harness, job_id) == {20: "queued", 40: "queued"}
    with pytest.raises(NotFound):
        await unskip(harness.store, job_id, harness.after(60), tenant_id=harness.tenant)
    assert await findings() == []


async def test_a_time_that_is_not_an_occurrence_or_has_fired_is_refused(harness: EngineHarness) -> None:
    await harness.hold()
    job_id = await harness.job("a", every("20s"), ends_at=harness.after(100))
    for seconds in (41, 120):
        with pytest.raises(InvalidInput) as refused:
            await skip_at(harness, job_id, seconds)
        assert refused.value.code == "not_an_occurrence"
        assert refused.value.pointer == "/at"
    for schedule in (at(harness.after(60)), delay("1m")):
        with pytest.raises(InvalidInput) as refused:
            await skip_at(harness, await harness.job(schedule.kind, schedule), 60)
        assert refused.value.code == "not_an_occurrence"
    await walk(harness, 40)
    with pytest.raises(Conflict) as late:
        await skip_at(harness, job_id, 40)
    assert late.value.code == "already_fired"
    with pytest.raises(NotFound):
        await skip(harness.store, job_id, harness.after(60), tenant_id=2, who="eve")
    assert await states(harness, job_id) == {20: "queued", 40: "queued"}


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    chosen=st.sets(st.integers(1, 12), max_size=5),
    steps=st.lists(st.sampled_from([5, 10, 19, 40, 75]), min_size=1, max_size=3),
    several=st.booleans(),
)
async def test_however_time_passes_no_skipped_occurrence_runs(
    harness: EngineHarness, findings: Findings, chosen: set[int], steps: list[int], several: bool
) -> None:
    if not harness.holding.tokens:
        await harness.hold()
    start = (await harness.now()).replace(second=0) + timedelta(minutes=1)  # time only goes forward
    await harness.set_clock(start)
    await harness.tick_all()
    schedules = (every("20s"), every("30s")) if several else (every("20s"),)
    job_id = await harness.job(f"job {start}", *schedules)
    skipped = {start + timedelta(seconds=20 * n) for n in chosen}
    for at_ in sorted(skipped):
        await skip(harness.store, job_id, at_, tenant_id=harness.tenant, who="ada")
    for step in steps:
        await harness.pass_time(step)
        await harness.tick_all()
    found = {
        run.key.scheduled_for: run.state for run in await runs.of_job(harness.store, job_id, harness.tenant, None, 100)
    }
    assert {found[moment] for moment in skipped if moment in found} <= {State.SKIPPED}
    assert {moment for moment, state in found.items() if state is State.SKIPPED} <= skipped
    assert await findings() == []
    await harness.retire(job_id)
