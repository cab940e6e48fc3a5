"""Freezes and suspended tenants: what is due rests by the policy, and everything has an account afterwards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from bellringer.core.policies import Overlap
from bellringer.core.runs import State
from bellringer.engine import freeze as freezing
from bellringer.engine.claim import ClaimSpec
from bellringer.engine.freeze import FreezePolicy, FreezeSpec
from bellringer.errors import Conflict, InvalidInput, NotFound
from bellringer.schedule import at, delay, every
from bellringer.store import freezes, queue
from bellringer.store.connection_pool import connect
from bellringer.store.freezes import FreezeRow
from bellringer.verify import Finding, VerifyScope, verify

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness

Findings = Callable[[], Awaitable[list[Finding]]]


@pytest.fixture
def findings(harness: EngineHarness, dsn: str) -> Findings:
    """What verify finds wrong with the last hour."""

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


async def freeze(harness: EngineHarness, start: float, end: float, policy: str = "defer", **more: Any) -> FreezeRow:
    """A freeze by seconds after noon."""
    wish = FreezeSpec(
        name="rest", from_at=harness.after(start), to_at=harness.after(end), policy=FreezePolicy(policy), **more
    )
    return await freezing.freeze(harness.store, wish, await harness.now(), tenant_id=harness.tenant, who="me")


async def walk(harness: EngineHarness, seconds: int, step: int = 10) -> None:
    """Let time pass, and tick all the while, with what a scheduler does beside it."""
    for _ in range(seconds // step):
        await harness.pass_time(step)
        await harness.tick_all()
        await harness.ring()
        await queue.decide_overlaps(harness.store, 100)
        await queue.release_frozen(harness.store, 100)


async def work(harness: EngineHarness, seat: ClaimSpec) -> list[float]:
    """Claim what is ready and end it well; answers the instants."""
    claimed = await harness.claim(seat)
    await harness.end(seat, claimed)
    return sorted(harness.seconds(c.key.scheduled_for) for c in claimed)


async def test_what_is_deferred_runs_after_the_end(harness: EngineHarness, findings: Findings) -> None:
    job_id = await harness.job("job", every("10s"))
    seat = await harness.join_worker()
    await freeze(harness, 15, 45)
    await walk(harness, 10)
    assert await work(harness, seat) == [10]
    await walk(harness, 30)
    assert await work(harness, seat) == []
    held = await harness.run(harness.key(job_id, 20))
    assert (held.state, held.reason, held.blocked) == (State.BLOCKED, "freeze rest", 8)
    await walk(harness, 10)
    assert await work(harness, seat) == [20, 30, 40, 50]
    assert await findings() == []


async def test_what_is_deferred_runs_one_by_one_where_runs_may_not_overlap(
    harness: EngineHarness, findings: Findings
) -> None:
    job_id = await harness.job("job", every("10s"), overlap=Overlap.QUEUE)
    seat = await harness.join_worker()
    await freeze(harness, 5, 35)
    await walk(harness, 30)
    assert await work(harness, seat) == []
    await walk(harness, 10)
    order = []
    while ran := await work(harness, seat):
        order.append(ran)
    assert order == [[10], [20], [30], [40]]
    assert await harness.queued(job_id) == []
    assert await findings() == []


async def test_what_is_skipped_has_a_run_that_says_why(harness: EngineHarness, findings: Findings) -> None:
    job_id = await harness.job("job", every("10s"))
    seat = await harness.join_worker()
    await freeze(harness, 15, 35, "skip")
    await walk(harness, 40)
    assert await work(harness, seat) == [10, 40]
    skipped = await harness.run(harness.key(job_id, 20))
    assert (skipped.state, skipped.reason) == (State.SKIPPED, "freeze rest")
    assert await harness.state(harness.key(job_id, 30)) is State.SKIPPED
    assert await findings() == []


async def test_what_is_collapsed_runs_once(harness: EngineHarness, findings: Findings) -> None:
    job_id = await harness.job("job", every("10s"))
    seat = await harness.join_worker()
    await freeze(harness, 15, 45, "collapse")
    await walk(harness, 50)
    assert await work(harness, seat) == [10, 20, 50]
    gone = await harness.run(harness.key(job_id, 30))
    assert gone.state is State.SKIPPED
    assert gone.reason is not None
    assert gone.reason.startswith(f"coalesced into {harness.after(20):%Y-%m-%dT%H:%M:%S}Z by freeze")
    assert await findings() == []


async def test_the_first_instant_is_frozen_and_the_last_is_not(harness: EngineHarness) -> None:
    job_id = await harness.job("job", every("10s"))
    await freeze(harness, 10, 30, "skip")
    await walk(harness, 30)
    states = [await harness.state(harness.key(job_id, n)) for n in (10, 20, 30)]
    assert states == [State.SKIPPED, State.SKIPPED, State.QUEUED]


async def test_only_jobs_with_one_of_the_tags_rest(harness: EngineHarness, findings: Findings) -> None:
    tagged = await harness.job("tagged", every("10s"), tags=("a", "b"))
    other = await harness.job("other", every("10s"), tags=("c",))
    await freeze(harness, 5, 25, "skip", tags=("b", "z"))
    await walk(harness, 20)
    assert await harness.state(harness.key(tagged, 10)) is State.SKIPPED
    assert await harness.state(harness.key(other, 10)) is State.QUEUED
    assert await findings() == []


async def test_other_tenants_do_not_rest(harness: EngineHarness) -> None:
    [second] = await harness.tenants(1)
    await freeze(harness, 0, 60, "skip")
    job_id = await harness.for_tenant(second).job("job", every("10s"))
    await walk(harness, 10)
    assert await harness.for_tenant(second).state(harness.key(job_id, 10)) is State.QUEUED


async def test_a_freeze_that_is_lifted_lets_go_at_once(harness: EngineHarness, findings: Findings) -> None:
    await harness.job("job", every("10s"))
    seat = await harness.join_worker()
    made = await freeze(harness, 5, 3600)
    await walk(harness, 20)
    assert await work(harness, seat) == []
    assert await freezing.lift(harness.store, made.freeze_id, tenant_id=1) == 2
    assert await work(harness, seat) == [10, 20]
    assert await freezing.lift(harness.store, made.freeze_id, tenant_id=1) == 0
    await walk(harness, 10)
    assert await work(harness, seat) == [30]
    assert await findings() == []


async def test_a_freeze_that_is_lifted_before_it_began_leaves_no_trace(harness: EngineHarness) -> None:
    made = await freeze(harness, 50, 60)
    await freezing.lift(harness.store, made.freeze_id, tenant_id=1)
    assert await freezes.get(harness.store, 1, made.freeze_id) is None
    with pytest.raises(NotFound):
        await freezing.lift(harness.store, made.freeze_id, tenant_id=1)


async def test_a_run_that_two_freezes_hold_waits_for_both(harness: EngineHarness) -> None:
    await harness.job("job", every("10s"))
    seat = await harness.join_worker()
    first = await freeze(harness, 5, 3600)
    await freeze(harness, 15, 35)
    await walk(harness, 20)
    assert await freezing.lift(harness.store, first.freeze_id, tenant_id=1) == 0
    assert await work(harness, seat) == []
    await walk(harness, 20)
    assert await work(harness, seat) == [10, 20, 30, 40]


async def test_one_shots_and_delays_are_deferred_whatever_the_policy(
    harness: EngineHarness, findings: Findings
) -> None:
    once = await harness.job("once", at(harness.after(20)))
    again = await harness.job("again", delay("10s"))
    seat = await harness.join_worker()
    await freeze(harness, 5, 35, "skip")
    await walk(harness, 30)
    assert await work(harness, seat) == []
    assert await harness.state(harness.key(once, 20)) is State.BLOCKED
    assert await harness.state(harness.key(again, 10)) is State.BLOCKED
    await walk(harness, 10)
    assert await work(harness, seat) == [10, 20]
    await walk(harness, 10)
    assert await work(harness, seat) == [50]
    assert await findings() == []


async def test_what_runs_when_a_freeze_begins_goes_on_and_may_retry(harness: EngineHarness) -> None:
    job_id = await harness.job("job", every("10s"), overlap=Overlap.SKIP)
    seat = await harness.join_worker()
    await walk(harness, 10)
    claimed = await harness.claim_one(seat)
    await freeze(harness, 10, 3600)
    await harness.fail(seat, claimed)
    await harness.pass_time(30)
    assert await work(harness, seat) == [10]
    assert await harness.state(harness.key(job_id, 10)) is State.SUCCEEDED


async def test_what_was_created_ahead_of_a_freeze_runs(harness: EngineHarness) -> None:
    await harness.job("job", every("10s"))
    seat = await harness.join_worker()
    await harness.pass_time(9)
    await harness.tick_all(lead=1)
    await freeze(harness, 9, 3600, "skip")
    await harness.pass_time(1)
    assert await work(harness, seat) == [10]


async def test_an_end_may_move_and_what_was_frozen_stays_so(harness: EngineHarness) -> None:
    job_id = await harness.job("job", every("10s"))
    made = await freeze(harness, 5, 15, "skip")
    longer = await freezing.amend(
        harness.store, made, await harness.now(), tenant_id=1, to_at=harness.after(25), reason="more"
    )
    assert (longer.to_at, longer.reason) == (harness.after(25), "more")
    await walk(harness, 20)
    assert await harness.state(harness.key(job_id, 20)) is State.SKIPPED
    now = await harness.now()
    with pytest.raises(InvalidInput, match="in the past"):
        await freezing.amend(harness.store, longer, now, tenant_id=1, to_at=harness.after(15), reason=None)
    await walk(harness, 10)
    now = await harness.now()
    with pytest.raises(Conflict, match="has ended"):
        await freezing.amend(harness.store, longer, now, tenant_id=1, to_at=harness.after(60), reason=None)
    with pytest.raises(Conflict, match="has ended"):
        await freezing.amend(harness.store, longer, now, tenant_id=1, reason="too late")


@pytest.mark.parametrize(
    ("start", "end", "pointer"),
    [(-120, 60, "/from"), (60, 60, "/to"), (60, 30, "/to"), (-30, -1, "/to"), (0, 367 * 86_400, "/to")],
    ids=["past", "empty", "backwards", "over", "too long"],
)
async def test_a_span_that_cannot_be_is_refused(harness: EngineHarness, start: float, end: float, pointer: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        await freeze(harness, start, end)
    assert refused.value.pointer == pointer
    assert await freezes.list_page(harness.store, 1, None, 10) == []


async def test_a_freeze_begins_now_at_the_earliest(harness: EngineHarness) -> None:
    assert (await freeze(harness, -30, 60)).from_at == harness.noon


async def test_what_comes_and_what_holds_is_listed_before_what_is_over(harness: EngineHarness) -> None:
    over, active, coming = [await freeze(harness, *span) for span in ((0, 10), (0, 100), (50, 200))]
    await harness.pass_time(20)
    listed = await freezes.list_page(harness.store, 1, None, 2)
    assert listed == [coming, active]
    assert await freezes.list_page(harness.store, 1, (active.to_at, active.freeze_id), 2) == [over]


# Suspended tenants


async def test_a_suspended_tenant_rests_and_goes_on(harness: EngineHarness, findings: Findings) -> None:
    job_id = await harness.job("job", every("10s"))
    once = await harness.job("once", at(harness.after(20)))
    seat = await harness.join_worker()
    await walk(harness, 10)
    assert await freezing.suspend(harness.store, 1)
    assert not await freezing.suspend(harness.store, 1)
    assert await work(harness, seat) == []  # what waits is not claimed
    await walk(harness, 20)
    skipped = await harness.run(harness.key(job_id, 20))
    assert (skipped.state, skipped.reason) == (State.SKIPPED, "tenant suspended")
    assert await work(harness, seat) == []
    assert await freezing.unsuspend(harness.store, 1)
    assert await work(harness, seat) == [10, 20]
    assert await harness.state(harness.key(once, 20)) is State.SUCCEEDED
    await walk(harness, 10)
    assert await work(harness, seat) == [40]
    assert await findings() == []


async def test_a_suspended_tenant_keeps_no_other_from_work(harness: EngineHarness) -> None:
    [second] = await harness.tenants(1)
    mine: UUID = await harness.job("job", every("10s"))
    theirs = await harness.for_tenant(second).job("job", every("10s"))
    seat = await harness.join_worker()
    await walk(harness, 10)
    await freezing.suspend(harness.store, 1)
    [claimed] = await harness.claim(seat)
    assert claimed.key.job_id == theirs != mine


async def test_a_tenant_has_only_so_many_freezes_that_are_not_over(harness: EngineHarness) -> None:
    await harness.sql(
        "insert into freezes (tenant_id, name, from_at, to_at, policy, made_by, made_at) "
        "select 1, 'f', d, d + interval '1 hour', 'skip', 'me', bellringer.now() "
        "from generate_series(-9, $1::integer) n, lateral (select bellringer.now() + n * interval '1 day' as d) s "
        "where n <> 0",
        freezes.MAX_OPEN_FREEZES - 1,
    )
    last = await freeze(harness, 10, 20)
    with pytest.raises(Conflict) as refused:
        await freeze(harness, 10, 20)
    assert refused.value.code == "limit"
    await freezing.lift(harness.store, last.freeze_id, tenant_id=1)
    await freeze(harness, 10, 20)


async def test_freezes_of_others_and_those_to_come_hold_nothing(harness: EngineHarness) -> None:
    [other] = await harness.tenants(1)
    await harness.job("job", every("10s"))
    seat = await harness.join_worker()
    await freeze(harness, 15, 25)
    await harness.sql("update freezes set tenant_id = $1", other)
    await freeze(harness, 500, 600)
    await walk(harness, 30)
    assert await work(harness, seat) == [10, 20, 30]
