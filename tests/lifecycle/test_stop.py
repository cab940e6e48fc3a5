"""Workflow runs that are to stop: each on its own."""

from __future__ import annotations

from tests.lifecycle.conftest import Bench
from tests.lifecycle.test_workflows import start

from bellringer.jobs import WORKFLOW
from bellringer.lifecycle import control, flow
from bellringer.runs import State
from bellringer.store import flows


async def test_one_that_cannot_be_stopped_keeps_no_other_from_it(bench: Bench) -> None:
    play, one = await start(bench, [{"name": "s", "signal": {}}])
    workflow = {"nodes": [{"name": "s", "signal": {}}]}
    two = await bench.trigger(await bench.job("other", task=WORKFLOW, workflow=workflow))
    assert await play.step() == 2
    for key in (one, two):
        await control.cancel(bench.store, key, tenant_id=1, reason="not wanted")
    first, second = await flows.to_stop(bench.store, 10)
    await bench.sql(
        "create function bellringer.refuse() returns trigger language plpgsql as "
        "$$ begin raise exception 'refused' using errcode = '54000'; end $$"
    )
    when = f"new.flow_id = '{first.flow_id}'"
    await bench.sql(f"create trigger r before update on flows for each row when ({when}) execute function refuse()")
    assert await flow.stop_flows(bench.store) == 1
    assert await flows.to_stop(bench.store, 10) == [first]
    await bench.sql("drop trigger r on flows")
    assert await flow.stop_flows(bench.store) == 1
    assert [await bench.state(key) for key in (one, two)] == [State.CANCELLED] * 2
    assert first != second
