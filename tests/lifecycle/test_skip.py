"""Skip: the tick passes over one occurrence, however it comes to it, and history says who wanted it so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bellringer.errors import Conflict, InvalidInput, NotFound
from bellringer.lifecycle import explain
from bellringer.lifecycle.skip import skip, unskip
from bellringer.policies import Misfire
from bellringer.runs import RunKey, State
from bellringer.schedule import at, delay, every
from bellringer.store import runs, skips
from bellringer.store.pool import connect
from bellringer.verify import Asked, Finding, verify

if TYPE_CHECKING:
    from tests.lifecycle.conftest import Bench

Findings = Callable[[], Awaitable[list[Finding]]]


@pytest.fixture
def findings(bench: Bench, dsn: str) -> Findings:
    """What verify finds wrong with the time since before noon."""

    async def check() -> list[Finding]:
        end = await bench.now()
        await bench.set_clock(end + timedelta(seconds=70))
        connection = await connect(dsn)
        found: list[Finding] = []
        try:
            await verify(connection, Asked(start=bench.after(-60), end=end), found.append)
        finally:
            await connection.close()
            await bench.set_clock(end)
        return found

    return check


async def states(bench: Bench, job_id: UUID) -> dict[float, str]:
    """The runs of a job, by seconds after noon."""
    found = await runs.of_job(bench.store, job_id, bench.tenant, None, 100)
    return {(run.key.scheduled_for - bench.noon).total_seconds(): run.state.value for run in found}


async def walk(bench: Bench, seconds: int, step: int = 10) -> None:
    for _ in range(seconds // step):
        await bench.pass_time(step)
        await bench.tick_all()


async def skip_at(bench: Bench, job_id: UUID, seconds: float, reason: str | None = None) -> skips.Skip:
    return await skip(bench.store, job_id, bench.after(seconds), tenant_id=bench.tenant, who="ada", reason=reason)


async def test_only_the_occurrence_that_was_named_is_passed_over(bench: Bench, findings: Findings) -> None:
    await bench.hold()
    job_id, other = await bench.job("a", every("20s")), await bench.job("b", every("20s"))
    kept = await skip_at(bench, job_id, 40, "a release")
    assert (kept.at, kept.who, kept.reason) == (bench.after(40), "ada", "a release")
    again = await skip_at(bench, job_id, 40, "another reason")
    assert again == kept, "to say it twice changes nothing"
    await walk(bench, 60)
    assert await states(bench, job_id) == {20: "queued", 40: "skipped", 60: "queued"}
    assert await states(bench, other) == {20: "queued", 40: "queued", 60: "queued"}
    run = await runs.get(bench.store, RunKey(job_id, bench.after(40), 0), bench.tenant)
    assert run is not None
    assert run.reason == "skipped by ada: a release"
    told = await explain.why(bench.store, job_id, bench.after(40).isoformat(), tenant_id=bench.tenant)
    assert "skipped by ada: a release" in " ".join(reason.text for reason in told.reasons)
    assert await findings() == []


async def test_a_hand_that_jumps_does_not_fire_it_either(bench: Bench, findings: Findings) -> None:
    await bench.hold()
    passed, goal = await bench.job("a", every("20s")), await bench.job("b", every("20s"))
    missing = await bench.job("c", every("20s"), misfire=Misfire.FIRE_ALL)
    await skip_at(bench, passed, 100)
    await skip_at(bench, goal, 200)
    await skip_at(bench, missing, 100)
    await bench.set_clock(bench.after(205))
    await bench.tick_all()
    assert await states(bench, passed) == {200: "queued"}
    assert await states(bench, goal) == {200: "skipped"}
    await walk(bench, 20)
    assert (await states(bench, goal))[220] == "queued"
    assert await findings() == []


async def test_what_the_lead_has_born_ahead_of_its_time_is_taken_back(bench: Bench, findings: Findings) -> None:
    await bench.hold()
    job_id = await bench.job("a", every("20s"))
    await bench.set_clock(bench.after(19.5))
    await bench.tick_all(lead=1)
    assert await states(bench, job_id) == {20: "queued"}
    await skip_at(bench, job_id, 20)
    assert await states(bench, job_id) == {20: "skipped"}
    await bench.pass_time(5)
    await bench.tick_all()
    assert await states(bench, job_id) == {20: "skipped"}
    with pytest.raises(Conflict, match="has come already"):
        await unskip(bench.store, job_id, bench.after(20), tenant_id=bench.tenant)
    assert await findings() == []


async def test_an_edit_that_meets_a_hand_ahead_does_not_bear_it(bench: Bench, findings: Findings) -> None:
    await bench.hold()
    job_id, _ = await bench.job("a", every("20s")), await bench.job("b", every("20s"))
    await skip_at(bench, job_id, 20)
    await bench.set_clock(bench.after(19.5))
    await bench.tick_all(lead=1)
    await bench.change(job_id, bench.definition("a", every("20s"), priority=9))
    assert (await states(bench, job_id)).get(20, "skipped") == "skipped"
    await bench.pass_time(2)
    await bench.tick_all()
    assert (await states(bench, job_id)).get(20, "skipped") == "skipped"
    assert await findings() == []


@pytest.mark.parametrize("act", ["pause", "edit", "delete"])
async def test_a_skip_whose_time_never_comes_means_nothing(bench: Bench, findings: Findings, act: str) -> None:
    await bench.hold()
    job_id = await bench.job("a", every("20s"))
    await skip_at(bench, job_id, 40)
    await walk(bench, 30)
    if act == "pause":
        await bench.pause(job_id)
    elif act == "edit":
        await bench.change(job_id, bench.definition("a", every("15s")))
    else:
        await bench.retire(job_id)
    await walk(bench, 30)
    assert 40 not in await states(bench, job_id)
    assert await findings() == []


async def test_it_can_be_wanted_again(bench: Bench, findings: Findings) -> None:
    await bench.hold()
    job_id = await bench.job("a", every("20s"))
    await skip_at(bench, job_id, 40)
    assert [s.at for s in await skips.coming(bench.store, job_id, bench.tenant, None, 10)] == [bench.after(40)]
    await unskip(bench.store, job_id, bench.after(40), tenant_id=bench.tenant)
    assert await skips.coming(bench.store, job_id, bench.tenant, None, 10) == []
    await walk(bench, 40)
    assert await states(bench, job_id) == {20: "queued", 40: "queued"}
    with pytest.raises(NotFound):
        await unskip(bench.store, job_id, bench.after(60), tenant_id=bench.tenant)
    assert await findings() == []


async def test_what_is_no_occurrence_or_has_fired_is_refused(bench: Bench) -> None:
    await bench.hold()
    job_id = await bench.job("a", every("20s"), ends_at=bench.after(100))
    for seconds in (41, 120):
        with pytest.raises(InvalidInput) as refused:
            await skip_at(bench, job_id, seconds)
        assert refused.value.code == "not_an_occurrence"
        assert refused.value.pointer == "/at"
    for schedule in (at(bench.after(60)), delay("1m")):
        with pytest.raises(InvalidInput) as refused:
            await skip_at(bench, await bench.job(schedule.kind, schedule), 60)
        assert refused.value.code == "not_an_occurrence"
    await walk(bench, 40)
    with pytest.raises(Conflict) as late:
        await skip_at(bench, job_id, 40)
    assert late.value.code == "already_fired"
    with pytest.raises(NotFound):
        await skip(bench.store, job_id, bench.after(60), tenant_id=2, who="eve")
    assert await states(bench, job_id) == {20: "queued", 40: "queued"}


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    chosen=st.sets(st.integers(1, 12), max_size=5),
    steps=st.lists(st.sampled_from([5, 10, 19, 40, 75]), min_size=1, max_size=3),
    several=st.booleans(),
)
async def test_however_time_passes_no_skipped_occurrence_runs(
    bench: Bench, findings: Findings, chosen: set[int], steps: list[int], several: bool
) -> None:
    if not bench.holding.tokens:
        await bench.hold()
    start = (await bench.now()).replace(second=0) + timedelta(minutes=1)  # time only goes forward
    await bench.set_clock(start)
    await bench.tick_all()
    schedules = (every("20s"), every("30s")) if several else (every("20s"),)
    job_id = await bench.job(f"job {start}", *schedules)
    skipped = {start + timedelta(seconds=20 * n) for n in chosen}
    for at_ in sorted(skipped):
        await skip(bench.store, job_id, at_, tenant_id=bench.tenant, who="ada")
    for step in steps:
        await bench.pass_time(step)
        await bench.tick_all()
    found = {
        run.key.scheduled_for: run.state for run in await runs.of_job(bench.store, job_id, bench.tenant, None, 100)
    }
    assert {found[moment] for moment in skipped if moment in found} <= {State.SKIPPED}
    assert {moment for moment, state in found.items() if state is State.SKIPPED} <= skipped
    assert await findings() == []
    await bench.retire(job_id)
