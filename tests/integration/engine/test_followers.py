"""Jobs that start after another job: one run for each matching end, in the transaction that ends the upstream run."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from uuid import UUID

import asyncpg
import pytest

from bellringer.core.advisory_locks import AdvisoryLock
from bellringer.core.policies import After, Delivery, Overlap, UpstreamOutcome
from bellringer.core.retry_policy import Retry
from bellringer.core.runs import Ending, Outcome, State
from bellringer.engine import settle
from bellringer.engine.audit_seal import seal_entries, verify_chain
from bellringer.engine.explain import load_job_explanation
from bellringer.engine.reap import reap
from bellringer.errors import InvalidInput
from bellringer.schedule import every
from bellringer.store import queue
from bellringer.store.connection_pool import connect
from bellringer.store.wakeups import WORK_CHANNEL, parse_work_hint
from bellringer.store.workflows import load_node_arguments
from bellringer.verify.checker import verify
from bellringer.verify.findings import Finding, VerifyScope

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness

ANY, FAILURE = UpstreamOutcome.ANY, UpstreamOutcome.FAILURE
ONCE = {"retry": Retry(1)}
TEN_SECONDS = timedelta(seconds=10)


async def runs_of(harness: EngineHarness, job: UUID) -> list[asyncpg.Record]:
    return await harness.sql("select * from runs where job_id = $1 order by fired_at, scheduled_for, slot", job)


async def pair(harness: EngineHarness, on: UpstreamOutcome = UpstreamOutcome.SUCCESS, **more: Any) -> tuple[UUID, UUID]:
    upstream = await harness.job("extract", **ONCE)
    return upstream, await harness.job("load", after=After("extract", on), **more)


@pytest.mark.parametrize(
    ("on", "ends", "expected"),
    [
        ("success", "ok", 1), ("failure", "ok", 0), ("any", "ok", 1),
        ("success", "failed", 0), ("failure", "failed", 1), ("any", "failed", 1),
        ("success", "cancelled", 0), ("failure", "cancelled", 0), ("any", "cancelled", 0),
    ],
)  # fmt: skip
async def test_the_end_of_a_run_starts_the_jobs_that_want_it(
    harness: EngineHarness, on: str, ends: str, expected: int
) -> None:
    upstream, follower = await pair(harness, UpstreamOutcome(on))
    seat = await harness.join_worker()
    key = await harness.trigger(upstream)
    await harness.end(seat, await harness.claim_one(seat), outcome=Outcome(ends), error={"type": "E", "lineage": []})
    found = await runs_of(harness, follower)
    assert [(run["cause"], run["scheduled_for"]) for run in found] == [("after", key.scheduled_for)] * expected


async def test_the_follow_up_knows_the_run_that_started_it(harness: EngineHarness) -> None:
    upstream, _ = await pair(harness, kwargs={"own": 1})
    seat = await harness.join_worker()
    key = await harness.trigger(upstream)
    await harness.end(seat, await harness.claim_one(seat), result={"rows": 7})
    follow_up = await harness.claim_one(seat)
    found = follow_up.spec.upstream
    assert found is not None
    assert (found.key(follow_up.key.scheduled_for), found.job, found.state) == (key, "extract", "succeeded")
    assert (found.result, follow_up.spec.kwargs) == ({"rows": 7}, {"own": 1})
    assert follow_up.key.backfill is None


async def test_a_large_result_is_read_by_the_worker(harness: EngineHarness) -> None:
    upstream, _ = await pair(harness)
    seat = await harness.join_worker()
    await harness.trigger(upstream)
    large = [f"{n * 7919:x}" for n in range(5_000)]
    await harness.end(seat, await harness.claim_one(seat), result=large)
    claimed = await harness.claim_one(seat)
    assert claimed.spec.is_incomplete
    [complete] = await load_node_arguments(harness.store, [claimed])
    assert complete.spec.upstream is not None
    assert complete.spec.upstream.result == large


async def test_a_repeated_settle_starts_nothing_again(harness: EngineHarness) -> None:
    upstream, follower = await pair(harness)
    seat = await harness.join_worker()
    await harness.trigger(upstream)
    claimed = await harness.claim_one(seat)
    for _ in range(3):
        await harness.end(seat, claimed)
    assert len(await runs_of(harness, follower)) == 1


async def test_a_redriven_run_starts_a_follower_once(harness: EngineHarness) -> None:
    upstream, follower = await pair(harness, ANY)
    seat = await harness.join_worker()
    key = await harness.trigger(upstream)
    await harness.fail(seat, await harness.claim_one(seat))
    await harness.end(seat, await harness.claim_one(seat))  # the follow-up of the failure
    await harness.redrive(key)
    await harness.end(seat, await harness.claim_one(seat))
    assert await harness.state(key) is State.SUCCEEDED
    assert len(await runs_of(harness, follower)) == 1


async def test_a_settle_that_fails_leaves_neither_the_end_nor_the_follow_up(harness: EngineHarness) -> None:
    upstream, follower = await pair(harness)
    seat = await harness.join_worker()
    key = await harness.trigger(upstream)
    claimed = await harness.claim_one(seat)
    await harness.sql(
        "create function bellringer.crash() returns trigger language plpgsql as $$ begin raise 'crash'; end $$"
    )
    await harness.sql(
        f"create trigger crash before insert on queue for each row when (new.job_id = '{follower}') "
        "execute function bellringer.crash()"
    )
    with pytest.raises(asyncpg.PostgresError, match="crash"):
        await harness.end(seat, claimed)
    assert await harness.state(key) is State.RUNNING
    assert await runs_of(harness, follower) == []
    await harness.sql("drop trigger crash on queue")
    assert await harness.end(seat, claimed) == 1
    assert len(await runs_of(harness, follower)) == 1


async def test_a_lost_worker_counts_as_a_failure_once_its_run_is_dead(harness: EngineHarness) -> None:
    upstream = await harness.job("extract", retry=Retry(1), delivery=Delivery.AT_MOST_ONCE)
    follower = await harness.job("load", after=After("extract", FAILURE))
    seat = await harness.join_worker()
    await harness.trigger(upstream)
    await harness.claim_one(seat)
    await harness.silence_worker(seat)
    await reap(harness.store, harness.catalog)
    assert len(await runs_of(harness, follower)) == 1


@pytest.mark.parametrize("overlap", [Overlap.SKIP, Overlap.QUEUE, Overlap.ALLOW])
async def test_two_upstream_runs_that_end_at_once(harness: EngineHarness, overlap: Overlap) -> None:
    upstream, follower = await pair(harness, overlap=overlap)
    seat = await harness.join_worker()
    for _ in range(6):
        await harness.trigger(upstream)
        await harness.pass_time(0.001)
    taken = await harness.claim(seat)
    assert len(taken) == 6
    await asyncio.gather(*(harness.end(seat, claimed) for claimed in taken))
    assert len(await runs_of(harness, follower)) == 6
    await harness.pass_time(1)
    await queue.decide_overlaps(harness.store, 100)
    unfinished = await harness.sql("select blocked from queue where job_id = $1", follower)
    claimable = len(await harness.claim(seat))
    expected = {Overlap.SKIP: (1, 1), Overlap.QUEUE: (6, 1), Overlap.ALLOW: (6, 6)}
    assert (len(unfinished), claimable) == expected[overlap]


async def test_one_batch_with_several_ends_follows_the_overlap_policy(harness: EngineHarness) -> None:
    upstream, follower = await pair(harness, overlap=Overlap.QUEUE)
    seat = await harness.join_worker()
    for _ in range(3):
        await harness.trigger(upstream)
        await harness.pass_time(0.001)
    taken = await harness.claim(seat)
    how = Ending(outcome=Outcome.OK)
    await settle.settle(harness.store, seat.worker_id, [settle.decide(claimed, how) for claimed in taken])
    for left in (3, 2, 1):
        assert len(await harness.queued(follower)) == left
        await harness.end(seat, await harness.claim_one(seat))


async def test_a_paused_follower_waits_and_a_disabled_or_deleted_one_gets_no_run(harness: EngineHarness) -> None:
    upstream, paused = await pair(harness)
    disabled = await harness.job("disabled", after=After("extract"), enabled=False)
    deleted = await harness.job("deleted", after=After("extract"))
    await harness.pause(paused)
    await harness.retire(deleted)
    seat = await harness.join_worker()
    await harness.trigger(upstream)
    await harness.end(seat, await harness.claim_one(seat))
    assert [len(await runs_of(harness, job)) for job in (paused, disabled, deleted)] == [1, 0, 0]
    assert await harness.claim(seat) == []
    await harness.resume(paused)
    assert (await harness.claim_one(seat)).key.job_id == paused


async def test_a_run_that_dies_at_its_deadline_starts_the_jobs_that_want_a_failure(harness: EngineHarness) -> None:
    upstream = await harness.job("extract", retry=Retry(delays=["5s"]), expires_in=TEN_SECONDS)
    follower = await harness.job("alarm", after=After("extract", FAILURE))
    seat = await harness.join_worker()
    failed = await harness.trigger(upstream)
    await harness.fail(seat, await harness.claim_one(seat))
    assert await harness.state(failed) is State.RETRYING
    await harness.pass_time(1)
    skipped = await harness.trigger(upstream)
    await harness.pass_time(10)
    expired = await queue.expire_runs(harness.store, 100)
    assert (expired.skipped, expired.dead) == (1, 1)
    assert await harness.state(skipped) is State.SKIPPED
    [follow_up] = await runs_of(harness, follower)
    assert follow_up["scheduled_for"] == failed.scheduled_for
    assert (await harness.claim_one(seat)).key.job_id == follower


async def test_the_deadline_of_a_follow_up_counts_from_its_start(harness: EngineHarness) -> None:
    upstream, follower = await pair(harness, expires_in=TEN_SECONDS)
    seat = await harness.join_worker()
    await harness.trigger(upstream)
    claimed = await harness.claim_one(seat)
    await harness.pass_time(60)
    await harness.end(seat, claimed)
    assert await harness.value("select expires_at from queue where job_id = $1", follower) == harness.after(70)
    await harness.pass_time(10)
    assert (await queue.expire_runs(harness.store, 100)).skipped == 1


async def test_workers_are_notified_of_follow_ups_by_pool(harness: EngineHarness) -> None:
    upstream, _ = await pair(harness, pool="reports")
    seat = await harness.join_worker()
    await harness.trigger(upstream)
    claimed = await harness.claim_one(seat)
    heard: asyncio.Queue[str] = asyncio.Queue()
    listener = await connect(harness.store.dsn)
    try:
        await listener.add_listener(WORK_CHANNEL, lambda *notice: heard.put_nowait(str(notice[-1])))
        await harness.end(seat, claimed)
        hint = parse_work_hint(await asyncio.wait_for(heard.get(), 5))
    finally:
        await listener.close()
    assert hint.pool_id == await harness.value("select pool_id from pools where name = 'reports'")


async def test_a_settle_locks_upstream_jobs_and_followers_in_one_order(harness: EngineHarness) -> None:
    upstream = await harness.job("extract", retry=Retry(3))
    follower = await harness.job("load", after=After("extract"))
    assert upstream < follower
    seat = await harness.join_worker()
    await harness.trigger(upstream)
    claimed = await harness.claim_one(seat)
    lock = "select from jobs where job_id = $1 for update"
    async with harness.store.pool.acquire() as connection, connection.transaction():
        await connection.execute(lock, upstream)
        settling = asyncio.ensure_future(harness.fail(seat, claimed))
        await harness.blocked_by(connection)
        await connection.execute(lock, follower)
    await settling
    assert await harness.state(claimed.key) is State.RETRYING


async def test_settles_do_not_wait_for_each_other_if_follow_ups_may_overlap(harness: EngineHarness) -> None:
    upstream, follower = await pair(harness, overlap=Overlap.ALLOW)
    seat = await harness.join_worker()
    await harness.trigger(upstream)
    claimed = await harness.claim_one(seat)
    async with harness.store.pool.acquire() as connection, connection.transaction():
        lock = f"select pg_advisory_xact_lock({int(AdvisoryLock.FOLLOWER_RUN)}, uuid_hash($1))"
        await connection.fetchval(lock, follower)
        assert await asyncio.wait_for(harness.end(seat, claimed), 5) == 1
    assert len(await runs_of(harness, follower)) == 1


async def test_a_chain_of_jobs_and_the_schedule_of_a_follower(harness: EngineHarness) -> None:
    upstream = await harness.job("extract")
    middle = await harness.job("transform", every("10s"), after=After("Extract"))
    last = await harness.job("load", after=After("transform"))
    seat = await harness.join_worker()
    await harness.trigger(upstream)
    await harness.end(seat, await harness.claim_one(seat))
    await harness.set_clock(harness.after(10))
    await harness.tick_all()
    taken = await harness.claim(seat)
    assert [claimed.key.job_id for claimed in taken] == [middle, middle]
    await harness.end(seat, taken)
    assert len(await runs_of(harness, last)) == 2


@pytest.mark.parametrize("lengths", [2, 3])
async def test_a_job_cannot_start_after_itself(harness: EngineHarness, lengths: int) -> None:
    names = [f"job{n}" for n in range(lengths)]
    first = await harness.job(names[0])
    for before, name in pairwise(names):
        await harness.job(name, after=After(before))
    with pytest.raises(InvalidInput, match=" → ".join([names[0], *reversed(names)])) as refused:
        await harness.change(first, harness.definition(names[0], after=After(names[-1])))
    assert (refused.value.code, refused.value.pointer) == ("cycle", "/after/job")
    with pytest.raises(InvalidInput, match="cannot start after itself"):
        await harness.change(first, harness.definition(names[0], after=After(names[0].upper())))


async def test_two_changes_that_form_a_cycle_together(harness: EngineHarness) -> None:
    jobs = {name: await harness.job(name) for name in ("a", "b")}
    results = await asyncio.gather(
        harness.change(jobs["a"], harness.definition("a", after=After("b"))),
        harness.change(jobs["b"], harness.definition("b", after=After("a"))),
        return_exceptions=True,
    )
    assert sorted(isinstance(result, InvalidInput) for result in results) == [False, True], results


async def test_the_upstream_job_must_exist_in_the_same_tenant(harness: EngineHarness) -> None:
    [other] = await harness.tenants(1)
    await harness.for_tenant(other).job("extract")
    with pytest.raises(InvalidInput, match="there is no job 'extract'"):
        await harness.job("load", after=After("extract"))
    both = [harness.definition("load", after=After("extract")), harness.definition("extract")]
    assert len(await harness.register(*both)) == 2


async def test_a_follower_survives_the_deletion_and_the_new_creation_of_its_upstream_job(
    harness: EngineHarness,
) -> None:
    upstream, follower = await pair(harness)
    await harness.retire(upstream)
    await harness.change(follower, harness.definition("load", after=After("extract"), priority=3))
    again = await harness.job("extract")
    seat = await harness.join_worker()
    await harness.trigger(again)
    await harness.end(seat, await harness.claim_one(seat))
    assert len(await runs_of(harness, follower)) == 1


async def test_followers_follow_a_renamed_job(harness: EngineHarness) -> None:
    upstream, follower = await pair(harness)
    await harness.change(upstream, harness.definition("fetch", **ONCE))
    assert (await harness.read(follower)).after == After("fetch")
    seat = await harness.join_worker()
    await harness.trigger(upstream)
    await harness.end(seat, await harness.claim_one(seat))
    assert len(await runs_of(harness, follower)) == 1


async def test_a_renamed_upstream_job_makes_a_new_revision_of_its_followers(harness: EngineHarness) -> None:
    upstream = await harness.job("extract")
    follower = await harness.job("load", every("10s"), after=After("extract"))
    await seal_entries(harness.store)
    await harness.change(upstream, harness.definition("fetch"))
    await seal_entries(harness.store)
    assert (await verify_chain(harness.store)).broken is None
    found = await harness.sql("select revision, definition from revisions_of($1) order by revision", follower)
    assert [json.loads(row["definition"])["after"]["job"] for row in found] == ["extract", "fetch"]
    assert await harness.value("select revision from members where job_id = $1", follower) == 2


async def test_a_change_without_after_ends_the_following(harness: EngineHarness) -> None:
    upstream, follower = await pair(harness)
    changed = await harness.change(follower, harness.definition("load"))
    assert changed.definition.after is None
    history = await harness.sql("select definition from revisions_of($1) order by revision", follower)
    assert [json.loads(row[0]).get("after") for row in history] == [{"job": "extract", "on": "success"}, None]
    seat = await harness.join_worker()
    await harness.trigger(upstream)
    await harness.end(seat, await harness.claim_one(seat))
    assert await runs_of(harness, follower) == []


async def test_a_follower_that_is_paused_while_its_upstream_run_ends(harness: EngineHarness) -> None:
    """The pause and the settle come one after the other; neither waits for ever, and the run is held."""
    upstream, follower = await pair(harness)
    seat = await harness.join_worker()
    await harness.trigger(upstream)
    claimed = await harness.claim_one(seat)
    async with harness.store.pool.acquire() as connection, connection.transaction():
        await connection.fetchval("select bellringer.pause($1, 1, 'me', null, null)", follower)
        settling = asyncio.ensure_future(harness.end(seat, claimed))
        await harness.blocked_by(connection)
    assert await settling == 1
    [row] = await harness.sql("select blocked from queue where job_id = $1", follower)
    assert row["blocked"] & 1 == 1


async def reasons(harness: EngineHarness, job: UUID) -> dict[str, str]:
    found = await load_job_explanation(harness.store, job, tenant_id=harness.tenant)
    return {reason.code: reason.text for reason in found.reasons}


async def test_why_names_the_upstream_job_and_its_last_run(harness: EngineHarness) -> None:
    upstream, follower = await pair(harness)
    seat = await harness.join_worker()
    waits = (await reasons(harness, follower))["waits_for_upstream"]
    assert waits == "the job starts after extract has succeeded; extract has not run yet"
    await harness.trigger(upstream)
    await harness.fail(seat, await harness.claim_one(seat))
    assert "the last run of extract failed" in (await reasons(harness, follower))["waits_for_upstream"]
    key = await harness.trigger(upstream)
    await harness.end(seat, await harness.claim_one(seat))
    assert (await reasons(harness, follower))["follows"] == f"it was started by {key.id} of extract, which succeeded"
    await harness.retire(upstream)
    await harness.end(seat, await harness.claim_one(seat))
    assert (await reasons(harness, follower))["upstream_missing"].endswith("and there is no job extract")


async def test_verify_finds_a_missing_follow_up(harness: EngineHarness) -> None:
    upstream, follower = await pair(harness)
    seat = await harness.join_worker()
    for _ in range(3):
        await harness.pass_time(100)
        key = await harness.trigger(upstream)
        while taken := await harness.claim(seat):
            await harness.end(seat, taken)
    await harness.pass_time(100)
    scope = VerifyScope(start=harness.noon, end=await harness.now())
    found: list[Finding] = []
    async with harness.store.pool.acquire() as connection:
        summary = await verify(connection, scope, found.append)  # type: ignore[arg-type]
        assert (summary.clean, found) == (True, [])
        await connection.execute("set default_transaction_read_only = off")
        await connection.execute(
            "delete from runs where job_id = $1 and scheduled_for = $2", follower, key.scheduled_for
        )
        summary = await verify(connection, scope, found.append)  # type: ignore[arg-type]
    assert (summary.unfollowed, summary.clean) == (1, False)
    assert [(f.kind, f.job, f.scheduled_for) for f in found] == [("unfollowed", "load", key.scheduled_for)]


async def test_a_workflow_starts_followers_when_its_last_node_ends(harness: EngineHarness) -> None:
    graph = {"nodes": [{"name": "one", "task": "greet"}, {"name": "two", "task": "greet", "after": ["one"]}]}
    upstream = await harness.job("flow", task="workflow", workflow=graph)
    follower = await harness.job("load", after=After("flow"))
    seat = await harness.join_worker("greet", "workflow")
    await harness.trigger(upstream)
    await harness.end(seat, await harness.claim_one(seat), opened=True)
    for _ in range(2):
        assert await runs_of(harness, follower) == []
        await harness.end(seat, await harness.claim_one(seat))
    assert [row["cause"] for row in await runs_of(harness, follower)] == ["after"]
