"""Operations on many rows and requests to workers leave audit entries, and skip rows that changed later."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from bellringer.core.retry_policy import Retry
from bellringer.core.runs import State
from bellringer.engine import job_and_run_commands as commands
from bellringer.engine.operations import OperationCursor, run_operations
from bellringer.engine.prune import Retention, prune
from bellringer.schedule import every
from bellringer.store import operations, workers
from bellringer.store.operations import NewOperation
from bellringer.store.run_lists import RunFilter
from bellringer.store.tenant_scope import ScopedStore

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness


ACTOR = json.dumps({"who": "user:ada", "origin": "10.0.0.1", "request_id": "r1"})


async def ask(harness: EngineHarness, action: str, *, ids: list[str] | None = None, wanted: Any = None) -> int:
    number = await operations.create(
        harness.store,
        NewOperation(
            tenant_id=harness.tenant,
            action=action,
            filter=wanted,
            ids=ids,
            total=0,
            total_is_least=False,
            rate=None,
            who="user:ada",
            reason="because",
        ),
    )
    assert number is not None
    return number


async def test_what_an_operation_does_to_runs_is_in_the_audit(harness: EngineHarness) -> None:
    seat = await harness.join_worker()
    sent = await harness.send(retry=Retry(attempts=1))
    await harness.fail(seat, await harness.claim_one(seat))
    assert await harness.state(sent.key) is State.DEAD
    await ask(harness, "dead_letters.discard", ids=[sent.key.id])
    assert await run_operations(harness.store, harness.catalog, OperationCursor()) == 1
    told = await harness.sql("select who, target from audit where action = 'run.discarded'")
    assert [row["who"] for row in told] == ["user:ada"]


async def test_an_operation_leaves_alone_what_was_created_later(harness: EngineHarness) -> None:
    job = await harness.job()
    before = await harness.trigger(job)
    await ask(harness, "runs.cancel", wanted=RunFilter(job=job, states=("queued",)))
    await harness.pass_time(3600)  # all schedulers were away
    after = await harness.trigger(job)
    await run_operations(harness.store, harness.catalog, OperationCursor())
    assert await harness.state(before) is State.CANCELLED
    assert await harness.state(after) is State.QUEUED


async def test_to_pause_again_by_an_operation_changes_nothing(harness: EngineHarness) -> None:
    job = await harness.job("a", every("1m"))
    until = harness.after(600)
    await commands.pause(harness.store, job, tenant_id=1, who="user:bob", reason="repair", until=until)
    await ask(harness, "jobs.pause", ids=[str(job)])
    await run_operations(harness.store, harness.catalog, OperationCursor())
    read = await harness.read(job)
    assert (read.paused_by, read.paused_until, read.revision) == ("user:bob", until, 2)


async def test_retention_of_the_audit_keeps_up_with_the_seals(harness: EngineHarness) -> None:
    # One seal every two seconds are 1,800 an hour, and prune comes once an hour.
    await harness.sql(
        "insert into audit_seals (last_tx, last_id, count, prev_hash, hash, sealed_at) "
        "select '1', 0, 0, '', '', bellringer.now() - interval '400 days' from generate_series(1, 1800)"
    )
    await prune(harness.store, await harness.now(), Retention())
    assert await harness.value("select count(*) from audit_seals") <= 1


async def test_what_a_worker_is_asked_is_in_the_audit(harness: EngineHarness) -> None:
    seat = await harness.join_worker()
    acting = ScopedStore(harness.store, None, ACTOR)
    await workers.request_state(acting, seat.worker_id, "quiet")
    told = await harness.sql("select who, target from audit where kind = 'worker'")
    assert [tuple(row) for row in told] == [("user:ada", str(seat.worker_id))]
