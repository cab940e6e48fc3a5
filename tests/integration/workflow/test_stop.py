"""Workflow runs that are to stop: each on its own."""

from __future__ import annotations

from tests.integration.workflow.test_workflows import start
from tests.support.engine_harness import EngineHarness

from bellringer.core.jobs import WORKFLOW_TASK
from bellringer.core.runs import State
from bellringer.engine import job_and_run_commands as commands
from bellringer.engine import workflow_commands as flow
from bellringer.store import workflows


async def test_one_that_cannot_be_stopped_keeps_no_other_from_it(harness: EngineHarness) -> None:
    play, one = await start(harness, [{"name": "s", "signal": {}}])
    workflow = {"nodes": [{"name": "s", "signal": {}}]}
    two = await harness.trigger(await harness.job("other", task=WORKFLOW_TASK, workflow=workflow))
    assert await play.step() == 2
    for key in (one, two):
        await commands.cancel(harness.store, key, tenant_id=1, reason="not wanted")
    first, second = await workflows.runs_to_stop(harness.store, 10)
    await harness.sql(
        "create function bellringer.refuse() returns trigger language plpgsql as "
        "$$ begin raise exception 'refused' using errcode = '54000'; end $$"
    )
    when = f"new.flow_id = '{first.flow_id}'"
    await harness.sql(f"create trigger r before update on flows for each row when ({when}) execute function refuse()")
    assert await flow.stop_workflow_runs(harness.store) == 1
    assert await workflows.runs_to_stop(harness.store, 10) == [first]
    await harness.sql("drop trigger r on flows")
    assert await flow.stop_workflow_runs(harness.store) == 1
    assert [await harness.state(key) for key in (one, two)] == [State.CANCELLED] * 2
    assert first != second
