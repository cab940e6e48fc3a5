"""Freezes and suspended tenants: what is due rests by the policy, and everything has an account afterwards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from bellringer.errors import Conflict, InvalidInput, NotFound
from bellringer.lifecycle import freeze as freezing
from bellringer.lifecycle.claim import Seat
from bellringer.lifecycle.freeze import Policy, Wish
from bellringer.policies import Overlap
from bellringer.runs import State
from bellringer.schedule import at, delay, every
from bellringer.store import freezes, queue
from bellringer.store.freezes import Freeze
from bellringer.store.pool import connect
from bellringer.verify import Asked, Finding, verify

if TYPE_CHECKING:
    from tests.lifecycle.conftest import Bench

Findings = Callable[[], Awaitable[list[Finding]]]


@pytest.fixture
def findings(bench: Bench, dsn: str) -> Findings:
    """What verify finds wrong with the last hour."""

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


async def freeze(bench: Bench, start: float, end: float, policy: str = "defer", **more: Any) -> Freeze:
    """A freeze by seconds after noon."""
    wish = Wish(name="rest", from_at=bench.after(start), to_at=bench.after(end), policy=Policy(policy), **more)
    return await freezing.freeze(bench.store, wish, await bench.now(), tenant_id=bench.tenant, who="me")


async def walk(bench: Bench, seconds: int, step: int = 10) -> None:
    """Let time pass, and tick all the while, with what a scheduler does beside it."""
    for _ in range(seconds // step):
        await bench.pass_time(step)
        await bench.tick_all()
        await bench.ring()
        await queue.decide(bench.store, 100)
        await queue.thaw(bench.store, 100)


async def work(bench: Bench, seat: Seat) -> list[float]:
    """Claim what is ready and end it well; answers the instants."""
    claimed = await bench.claim(seat)
    await bench.end(seat, claimed)
    return sorted(bench.seconds(c.key.scheduled_for) for c in claimed)


async def test_what_is_deferred_runs_after_the_end(bench: Bench, findings: Findings) -> None:
    job_id = await bench.job("job", every("10s"))
    seat = await bench.seat()
    await freeze(bench, 15, 45)
    await walk(bench, 10)
    assert await work(bench, seat) == [10]
    await walk(bench, 30)
    assert await work(bench, seat) == []
    held = await bench.run(bench.key(job_id, 20))
    assert (held.state, held.reason, held.blocked) == (State.BLOCKED, "freeze rest", 8)
    await walk(bench, 10)
    assert await work(bench, seat) == [20, 30, 40, 50]
    assert await findings() == []


async def test_what_is_deferred_runs_one_by_one_where_runs_may_not_overlap(bench: Bench, findings: Findings) -> None:
    job_id = await bench.job("job", every("10s"), overlap=Overlap.QUEUE)
    seat = await bench.seat()
    await freeze(bench, 5, 35)
    await walk(bench, 30)
    assert await work(bench, seat) == []
    await walk(bench, 10)
    order = []
    while ran := await work(bench, seat):
        order.append(ran)
    assert order == [[10], [20], [30], [40]]
    assert await bench.queued(job_id) == []
    assert await findings() == []


async def test_what_is_skipped_has_a_run_that_says_why(bench: Bench, findings: Findings) -> None:
    job_id = await bench.job("job", every("10s"))
    seat = await bench.seat()
    await freeze(bench, 15, 35, "skip")
    await walk(bench, 40)
    assert await work(bench, seat) == [10, 40]
    skipped = await bench.run(bench.key(job_id, 20))
    assert (skipped.state, skipped.reason) == (State.SKIPPED, "freeze rest")
    assert await bench.state(bench.key(job_id, 30)) is State.SKIPPED
    assert await findings() == []


async def test_what_is_collapsed_runs_once(bench: Bench, findings: Findings) -> None:
    job_id = await bench.job("job", every("10s"))
    seat = await bench.seat()
    await freeze(bench, 15, 45, "collapse")
    await walk(bench, 50)
    assert await work(bench, seat) == [10, 20, 50]
    gone = await bench.run(bench.key(job_id, 30))
    assert gone.state is State.SKIPPED
    assert gone.reason is not None
    assert gone.reason.startswith(f"coalesced into {bench.after(20):%Y-%m-%dT%H:%M:%S}Z by freeze")
    assert await findings() == []


async def test_the_first_instant_is_frozen_and_the_last_is_not(bench: Bench) -> None:
    job_id = await bench.job("job", every("10s"))
    await freeze(bench, 10, 30, "skip")
    await walk(bench, 30)
    states = [await bench.state(bench.key(job_id, n)) for n in (10, 20, 30)]
    assert states == [State.SKIPPED, State.SKIPPED, State.QUEUED]


async def test_only_jobs_with_one_of_the_tags_rest(bench: Bench, findings: Findings) -> None:
    tagged = await bench.job("tagged", every("10s"), tags=("a", "b"))
    other = await bench.job("other", every("10s"), tags=("c",))
    await freeze(bench, 5, 25, "skip", tags=("b", "z"))
    await walk(bench, 20)
    assert await bench.state(bench.key(tagged, 10)) is State.SKIPPED
    assert await bench.state(bench.key(other, 10)) is State.QUEUED
    assert await findings() == []


async def test_other_tenants_do_not_rest(bench: Bench) -> None:
    [second] = await bench.tenants(1)
    await freeze(bench, 0, 60, "skip")
    job_id = await bench.of(second).job("job", every("10s"))
    await walk(bench, 10)
    assert await bench.of(second).state(bench.key(job_id, 10)) is State.QUEUED


async def test_a_freeze_that_is_lifted_lets_go_at_once(bench: Bench, findings: Findings) -> None:
    await bench.job("job", every("10s"))
    seat = await bench.seat()
    made = await freeze(bench, 5, 3600)
    await walk(bench, 20)
    assert await work(bench, seat) == []
    assert await freezing.lift(bench.store, made.freeze_id, tenant_id=1) == 2
    assert await work(bench, seat) == [10, 20]
    assert await freezing.lift(bench.store, made.freeze_id, tenant_id=1) == 0
    await walk(bench, 10)
    assert await work(bench, seat) == [30]
    assert await findings() == []


async def test_a_freeze_that_is_lifted_before_it_began_leaves_no_trace(bench: Bench) -> None:
    made = await freeze(bench, 50, 60)
    await freezing.lift(bench.store, made.freeze_id, tenant_id=1)
    assert await freezes.get(bench.store, 1, made.freeze_id) is None
    with pytest.raises(NotFound):
        await freezing.lift(bench.store, made.freeze_id, tenant_id=1)


async def test_a_run_that_two_freezes_hold_waits_for_both(bench: Bench) -> None:
    await bench.job("job", every("10s"))
    seat = await bench.seat()
    first = await freeze(bench, 5, 3600)
    await freeze(bench, 15, 35)
    await walk(bench, 20)
    assert await freezing.lift(bench.store, first.freeze_id, tenant_id=1) == 0
    assert await work(bench, seat) == []
    await walk(bench, 20)
    assert await work(bench, seat) == [10, 20, 30, 40]


async def test_one_shots_and_delays_are_deferred_whatever_the_policy(bench: Bench, findings: Findings) -> None:
    once = await bench.job("once", at(bench.after(20)))
    again = await bench.job("again", delay("10s"))
    seat = await bench.seat()
    await freeze(bench, 5, 35, "skip")
    await walk(bench, 30)
    assert await work(bench, seat) == []
    assert await bench.state(bench.key(once, 20)) is State.BLOCKED
    assert await bench.state(bench.key(again, 10)) is State.BLOCKED
    await walk(bench, 10)
    assert await work(bench, seat) == [10, 20]
    await walk(bench, 10)
    assert await work(bench, seat) == [50]
    assert await findings() == []


async def test_what_runs_when_a_freeze_begins_goes_on_and_may_retry(bench: Bench) -> None:
    job_id = await bench.job("job", every("10s"), overlap=Overlap.SKIP)
    seat = await bench.seat()
    await walk(bench, 10)
    claimed = await bench.claim_one(seat)
    await freeze(bench, 10, 3600)
    await bench.fail(seat, claimed)
    await bench.pass_time(30)
    assert await work(bench, seat) == [10]
    assert await bench.state(bench.key(job_id, 10)) is State.SUCCEEDED


async def test_what_was_born_ahead_of_a_freeze_runs(bench: Bench) -> None:
    await bench.job("job", every("10s"))
    seat = await bench.seat()
    await bench.pass_time(9)
    await bench.tick_all(lead=1)
    await freeze(bench, 9, 3600, "skip")
    await bench.pass_time(1)
    assert await work(bench, seat) == [10]


async def test_an_end_may_move_and_what_was_frozen_stays_so(bench: Bench) -> None:
    job_id = await bench.job("job", every("10s"))
    made = await freeze(bench, 5, 15, "skip")
    longer = await freezing.amend(
        bench.store, made, await bench.now(), tenant_id=1, to_at=bench.after(25), reason="more"
    )
    assert (longer.to_at, longer.reason) == (bench.after(25), "more")
    await walk(bench, 20)
    assert await bench.state(bench.key(job_id, 20)) is State.SKIPPED
    now = await bench.now()
    with pytest.raises(InvalidInput, match="in the past"):
        await freezing.amend(bench.store, longer, now, tenant_id=1, to_at=bench.after(15), reason=None)
    await walk(bench, 10)
    now = await bench.now()
    with pytest.raises(Conflict, match="is over"):
        await freezing.amend(bench.store, longer, now, tenant_id=1, to_at=bench.after(60), reason=None)
    with pytest.raises(Conflict, match="is over"):
        await freezing.amend(bench.store, longer, now, tenant_id=1, reason="too late")


@pytest.mark.parametrize(
    ("start", "end", "pointer"),
    [(-120, 60, "/from"), (60, 60, "/to"), (60, 30, "/to"), (-30, -1, "/to"), (0, 367 * 86_400, "/to")],
    ids=["past", "empty", "backwards", "over", "too long"],
)
async def test_a_span_that_cannot_be_is_refused(bench: Bench, start: float, end: float, pointer: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        await freeze(bench, start, end)
    assert refused.value.pointer == pointer
    assert await freezes.listing(bench.store, 1, None, 10) == []


async def test_a_freeze_begins_now_at_the_earliest(bench: Bench) -> None:
    assert (await freeze(bench, -30, 60)).from_at == bench.noon


async def test_what_comes_and_what_holds_is_listed_before_what_is_over(bench: Bench) -> None:
    over, active, coming = [await freeze(bench, *span) for span in ((0, 10), (0, 100), (50, 200))]
    await bench.pass_time(20)
    listed = await freezes.listing(bench.store, 1, None, 2)
    assert listed == [coming, active]
    assert await freezes.listing(bench.store, 1, (active.to_at, active.freeze_id), 2) == [over]


# Suspended tenants


async def test_a_suspended_tenant_rests_and_goes_on(bench: Bench, findings: Findings) -> None:
    job_id = await bench.job("job", every("10s"))
    once = await bench.job("once", at(bench.after(20)))
    seat = await bench.seat()
    await walk(bench, 10)
    assert await freezing.suspend(bench.store, 1)
    assert not await freezing.suspend(bench.store, 1)
    assert await work(bench, seat) == []  # what waits is not claimed
    await walk(bench, 20)
    skipped = await bench.run(bench.key(job_id, 20))
    assert (skipped.state, skipped.reason) == (State.SKIPPED, "tenant suspended")
    assert await work(bench, seat) == []
    assert await freezing.unsuspend(bench.store, 1)
    assert await work(bench, seat) == [10, 20]
    assert await bench.state(bench.key(once, 20)) is State.SUCCEEDED
    await walk(bench, 10)
    assert await work(bench, seat) == [40]
    assert await findings() == []


async def test_a_suspended_tenant_keeps_no_other_from_work(bench: Bench) -> None:
    [second] = await bench.tenants(1)
    mine: UUID = await bench.job("job", every("10s"))
    theirs = await bench.of(second).job("job", every("10s"))
    seat = await bench.seat()
    await walk(bench, 10)
    await freezing.suspend(bench.store, 1)
    [claimed] = await bench.claim(seat)
    assert claimed.key.job_id == theirs != mine


async def test_a_tenant_has_only_so_many_freezes_that_are_not_over(bench: Bench) -> None:
    await bench.sql(
        "insert into freezes (tenant_id, name, from_at, to_at, policy, made_by, made_at) "
        "select 1, 'f', d, d + interval '1 hour', 'skip', 'me', bellringer.now() "
        "from generate_series(-9, $1::integer) n, lateral (select bellringer.now() + n * interval '1 day' as d) s "
        "where n <> 0",
        freezes.MOST - 1,
    )
    last = await freeze(bench, 10, 20)
    with pytest.raises(Conflict) as refused:
        await freeze(bench, 10, 20)
    assert refused.value.code == "limit"
    await freezing.lift(bench.store, last.freeze_id, tenant_id=1)
    await freeze(bench, 10, 20)


async def test_freezes_of_others_and_those_to_come_hold_nothing(bench: Bench) -> None:
    [other] = await bench.tenants(1)
    await bench.job("job", every("10s"))
    seat = await bench.seat()
    await freeze(bench, 15, 25)
    await bench.sql("update freezes set tenant_id = $1", other)
    await freeze(bench, 500, 600)
    await walk(bench, 30)
    assert await work(bench, seat) == [10, 20, 30]
