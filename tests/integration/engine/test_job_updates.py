"""Bulk changes of jobs: each job gets the new values once, keeps everything else, and can be set back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from bellringer.core.retry_policy import Retry
from bellringer.engine.operations import REVERT, OperationCursor, run_operations
from bellringer.errors import InvalidInput
from bellringer.schedule import parse_schedule
from bellringer.store import operations
from bellringer.store.operations import NewOperation, OperationJobFilter, OperationRow
from bellringer.wire.job_changes import read_changes

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness


async def start(harness: EngineHarness, changes: dict[str, Any], **wanted: str) -> int:
    order = NewOperation(
        tenant_id=harness.tenant,
        action="jobs.update",
        filter=OperationJobFilter(**wanted),
        ids=None,
        total=0,
        total_is_least=False,
        rate=None,
        who="me",
        reason="the bank is down",
        change=read_changes(changes),
    )
    return await _created(harness, order)


async def revert(harness: EngineHarness, number: int) -> int:
    order = NewOperation(
        tenant_id=harness.tenant,
        action=REVERT,
        filter=OperationJobFilter(),
        ids=None,
        total=0,
        total_is_least=False,
        rate=None,
        who="me",
        reason=None,
        reverts=number,
    )
    return await _created(harness, order)


async def _created(harness: EngineHarness, order: NewOperation) -> int:
    number = await operations.create(harness.store, order)
    assert number is not None
    return number


async def finish(harness: EngineHarness, number: int) -> OperationRow:
    for _ in range(20):
        await run_operations(harness.store, harness.catalog, OperationCursor())
        found = await operations.get(harness.store, number, harness.tenant)
        assert found is not None
        if found.state != "running":
            return found
    raise AssertionError("the operation does not end")


async def test_matching_jobs_are_changed_and_keep_everything_else(harness: EngineHarness) -> None:
    retry = Retry(5, base="10s", never_on=["ValueError"])
    hourly = parse_schedule({"every": "1h"})
    changed = [await harness.job(f"job {n}", hourly, retry=retry, tags=("a",)) for n in range(60)]
    other = await harness.job("other", hourly, task="another", retry=retry)
    before = {job_id: await harness.read(job_id) for job_id in changed}
    number = await start(
        harness,
        {"retry": {"attempts": 1}, "timeout": "30s", "priority": 2, "max_concurrency": 4, "add_tags": ["incident"]},
        task="greet",
    )
    done = await finish(harness, number)
    assert (done.state, done.done, done.skipped, done.failed) == ("done", 60, 0, 0)
    for job_id in changed:
        job = await harness.read(job_id)
        assert Retry.parse(job.spec.retry) == Retry(1, base="10s", never_on=["ValueError"])
        assert (job.spec.timeout, job.priority, job.cap, job.tags) == (30, 2, 4, ("a", "incident"))
        assert (job.next_at, job.schedules) == (before[job_id].next_at, before[job_id].schedules)
    assert Retry.parse((await harness.read(other)).spec.retry) == retry
    audited = "select count(*) from audit where action = 'job.changed' and who = 'me'"
    assert await harness.value(audited) == 60
    assert await harness.value("select why from jobs where job_id = $1", changed[0]) == f"op_{number}: the bank is down"


async def test_repeating_a_pass_changes_nothing_and_one_invalid_job_stops_no_other(harness: EngineHarness) -> None:
    good = await harness.job("good")
    full = await harness.job("full", tags=tuple(f"tag {n}" for n in range(50)))
    done = await finish(harness, await start(harness, {"add_tags": ["one more"]}))
    assert (done.done, done.failed) == (1, 1)
    assert [failure["id"] for failure in done.failures] == [str(full)]
    revision = (await harness.read(good)).revision
    again = await finish(harness, await start(harness, {"add_tags": ["one more"]}))
    assert (again.done, again.skipped) == (0, 1)
    assert (await harness.read(good)).revision == revision


async def test_a_revert_restores_the_values_except_where_they_were_changed_again(harness: EngineHarness) -> None:
    kept = await harness.job("kept", retry=Retry(7), pool="short", routed=True)
    touched = await harness.job("touched", retry=Retry(7))
    number = await start(harness, {"retry": {"attempts": 1}, "pool": "long"}, pool="short")
    assert (await finish(harness, number)).done == 2
    assert [(await harness.read(job_id)).pool for job_id in (kept, touched)] == ["long", "long"]
    definition = harness.definition("touched", retry=Retry(2), pool="long")
    await harness.change(touched, definition)
    done = await finish(harness, await revert(harness, number))
    assert (done.done, done.failed) == (2, 0)
    first, second = await harness.read(kept), await harness.read(touched)
    assert (Retry.parse(first.spec.retry).attempts, first.pool, first.routed) == (7, "short", True)
    assert (Retry.parse(second.spec.retry).attempts, second.pool) == (2, "short"), "its retries were changed again"
    again = await finish(harness, await revert(harness, number))
    assert (again.done, again.skipped) == (0, 2)


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({}, ""),
        ({"retry": {"attempts": 0}}, "/retry/attempts"),
        ({"retry": {"tries": 2}}, "/retry/tries"),
        ({"timeout": "soon"}, "/timeout"),
        ({"priority": 11}, "/priority"),
        ({"schedule": {"every": "1m"}}, "/schedule"),
    ],
)
def test_values_that_no_job_can_have_are_refused(changes: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_changes(changes)
    faults = getattr(caught.value, "faults", (caught.value,))
    assert faults[0].pointer == pointer
