"""Why nodes of a workflow run do not start, and how far a workflow run is, on the real database."""

from __future__ import annotations

from uuid import uuid4

import pytest
from tests.integration.workflow.test_workflows import Nodes, failed, ok, start
from tests.support.engine_harness import EngineHarness

from bellringer.core.runs import RunKey, State
from bellringer.engine import explain, workflow_commands
from bellringer.errors import Conflict, NotFound


async def codes(harness: EngineHarness, key: RunKey, name: str) -> list[str]:
    found = await explain.load_node_explanation(harness.store, key, workflow_commands.parse_node(name), tenant_id=1)
    return [reason.code for reason in found.reasons]


async def text(harness: EngineHarness, key: RunKey, name: str) -> str:
    found = await explain.load_node_explanation(harness.store, key, workflow_commands.parse_node(name), tenant_id=1)
    return found.reasons[0].text


_RUN = """
    select r.job_id, r.scheduled_for, r.slot
    from flows f join flow_nodes n using (flow_id) join graph_nodes g on g.graph_id = f.graph_id and g.node = n.of
    join runs r on r.job_id = n.flow_id and r.slot = n.node
    where g.name || coalesce('[' || n.place || ']', '') = $1"""


async def of_node(harness: EngineHarness, name: str) -> RunKey:
    [row] = await harness.sql(_RUN, name)
    return RunKey(*row)


async def test_a_workflow_run_says_how_far_its_nodes_are(harness: EngineHarness) -> None:
    nodes: Nodes = [
        {"name": "list"},
        {"name": "each", "over": {"node": "list"}, "takes": {"x": {"item": True}}, "max_parallel": 2},
        {"name": "approve", "signal": {"timeout": "1h"}},
        {"name": "end", "after": ["each", "approve"]},
    ]
    play, key = await start(harness, nodes, {"list": ok([1, 2, 3])})
    await play.step()
    await play.step()
    await harness.claim(play.seat, 1)
    told = await explain.load_run_explanation(harness.store, key, tenant_id=1)
    assert [reason.code for reason in told.reasons] == ["nodes_under_way"]
    first = told.reasons[0]
    assert first.holds is False
    assert first.text.startswith(
        "the workflow is running: 1 of 4 nodes have ended; each: 0 of its 3 elements have ended, each[0] since "
    )
    assert "waits for the signal approve until " in first.text
    assert (told.job, told.placed) == ("flow", None)
    by_job = await explain.load_job_explanation(harness.store, key.job_id, tenant_id=1)
    assert by_job.reasons[0].code == "nodes_under_way"
    at = await explain.load_job_explanation(harness.store, key.job_id, key.scheduled_for.isoformat(), tenant_id=1)
    assert at.reasons  # by hand it is in another slot: only that it does not fall over


async def test_a_node_shows_what_it_waits_for(harness: EngineHarness) -> None:
    nodes: Nodes = [
        {"name": "a"},
        {"name": "b", "after": ["a"]},
        {"name": "wait", "wait": {"for": "2h"}},
        {"name": "go", "signal": {}},
        {"name": "mend", "after": ["a"], "when": "one_failed"},
        {"name": "undo", "undoes": "a"},
    ]
    play, key = await start(harness, nodes)
    await play.step()
    assert await codes(harness, key, "a") == ["ready", "not_paused", "staffed"]
    [claimed] = await harness.claim(play.seat)
    assert await codes(harness, key, "a") == ["running"]
    assert (await text(harness, key, "b")).startswith("the node waits for a (running since ")
    assert await codes(harness, key, "b") == ["waits_for_node"]
    assert await codes(harness, key, "mend") == ["waits_for_node", "rule"]
    assert await codes(harness, key, "undo") == ["waits_to_undo"]
    assert "until " in await text(harness, key, "wait")
    found = await explain.load_node_explanation(harness.store, key, ("go", None), tenant_id=1)
    assert (found.state, found.run) == ("waiting", None)
    assert found.reasons[0].code == "waits_for_signal"
    assert found.reasons[0].fix == f"bellringer workflows signal {key.id} go"
    await harness.pause(key.job_id)
    assert await codes(harness, key, "b") == ["job_paused", "waits_for_node"]
    await harness.end(play.seat, claimed)
    assert (await codes(harness, key, "b"))[0] == "job_paused"
    told = await explain.load_run_explanation(harness.store, key, tenant_id=1)
    assert [reason.code for reason in told.reasons] == ["job_paused", "nodes_under_way"]


async def test_a_node_that_waits_for_room(harness: EngineHarness) -> None:
    nodes: Nodes = [
        {"name": "each", "over": {"value": [1, 2, 3, 4]}, "max_parallel": 3},
        {"name": "other"},
    ]
    play, key = await start(harness, nodes, max_parallel=2)
    await play.step()
    assert await codes(harness, key, "each") == ["map_under_way"]
    assert "2 of at most 2 node runs of " in await text(harness, key, "each[2]")
    assert "3 of at most 3 elements of each are running" in await text(harness, key, "each[3]")
    assert await codes(harness, key, "each[3]") == ["waits_for_room"]


async def test_a_node_that_was_skipped_shows_by_what(harness: EngineHarness) -> None:
    nodes: Nodes = [
        {"name": "a"},
        {"name": "b", "after": ["a"]},
        {"name": "c", "after": ["b"]},
        {"name": "pick"},
        {"name": "left", "after": [{"node": "pick", "is": "left"}]},
        {"name": "right", "after": ["left"]},
        {"name": "mend", "after": ["pick"], "when": "one_failed"},
        {"name": "undo", "undoes": "a"},
        {"name": "odd", "over": {"node": "pick"}},
    ]
    play, key = await start(harness, nodes, {"a": failed(), "pick": ok("right")})
    await play.all()
    assert await harness.state(key) is State.DEAD
    found = await explain.load_node_explanation(harness.store, key, ("b", None), tenant_id=1)
    assert found.reasons[0].text == "the node was skipped: its parent a (dead) failed"
    assert found.reasons[0].fix == f"bellringer workflows retry {key.id} a"
    assert await text(harness, key, "c") == "the node was skipped: its parent b (skipped) failed"
    assert await text(harness, key, "left") == 'the node was skipped: pick did not return "left"'
    assert await text(harness, key, "right") == "the node was skipped: left was skipped"
    assert await codes(harness, key, "mend") == ["skipped_condition"]
    assert await codes(harness, key, "undo") == ["not_needed"]
    assert "the value to map over is not a list" in await text(harness, key, "odd")
    dead = await explain.load_node_explanation(harness.store, key, ("a", None), tenant_id=1)
    assert (dead.reasons[0].text[:15], dead.reasons[0].fix) == (
        "the run is dead",
        f"bellringer workflows retry {key.id} a",
    )
    with pytest.raises(Conflict, match="the run is dead") as refused:
        await harness.retry(await of_node(harness, "a"))
    assert "workflows retry" in refused.value.hint
    told = await explain.load_run_explanation(harness.store, key, tenant_id=1)
    assert told.reasons[0].text.endswith("NodesFailed: nodes a, odd failed; a: ValueError: no")


async def test_a_stopped_run_says_so_of_its_nodes(harness: EngineHarness) -> None:
    nodes: Nodes = [{"name": "a"}, {"name": "b", "after": ["a"]}]
    play, key = await start(harness, nodes)
    await play.step()
    await harness.claim(play.seat)
    await harness.cancel(key)
    await workflow_commands.stop_workflow_runs(harness.store)
    assert await codes(harness, key, "b") == ["skipped_stopped"]
    told = await explain.load_run_explanation(harness.store, key, tenant_id=1)
    assert [reason.code for reason in told.reasons] == ["stopping", "nodes_under_way"]


async def test_the_run_of_a_node_is_explained_though_it_has_no_job(harness: EngineHarness) -> None:
    inner = {"nodes": [{"name": "deep", "task": "greet"}]}
    nodes: Nodes = [
        {"name": "each", "over": {"value": [1, 2]}},
        {"name": "go", "signal": {}},
        {"name": "sub", "workflow": inner},
    ]
    play, key = await start(harness, nodes)
    await play.step()
    told = await explain.load_run_explanation(harness.store, await of_node(harness, "each[1]"), tenant_id=1)
    assert [reason.code for reason in told.reasons] == ["ready", "node_of", "not_paused", "staffed"]
    assert told.reasons[1].text == f"this is node each[1] of the workflow run {key.id} of flow"
    assert told.placed is not None
    assert (told.placed.key, told.placed.job, told.next_at) == (key, "flow", None)
    signal = await explain.load_run_explanation(harness.store, await of_node(harness, "go"), tenant_id=1)
    assert [reason.code for reason in signal.reasons] == ["waits_for_signal", "node_of"]
    await play.step()  # the workflow inside is opened
    sub = await explain.load_node_explanation(harness.store, key, ("sub", None), tenant_id=1)
    assert [reason.code for reason in sub.reasons] == ["nodes_under_way"]
    assert sub.run is not None
    deep = await explain.load_node_explanation(harness.store, sub.run.key, ("deep", None), tenant_id=1)
    assert deep.reasons[0].code == "ready"
    await harness.pause(key.job_id)
    held = await explain.load_node_explanation(harness.store, sub.run.key, ("deep", None), tenant_id=1)
    assert held.reasons[0].code == "job_paused"


async def test_what_is_not_there(harness: EngineHarness) -> None:
    play, key = await start(harness, [{"name": "a"}])
    with pytest.raises(NotFound, match="no such workflow run"):
        await explain.load_node_explanation(harness.store, key, ("a", None), tenant_id=1)
    await play.step()
    for name in (("x", None), ("a", 0)):
        with pytest.raises(NotFound, match="no such node"):
            await explain.load_node_explanation(harness.store, key, name, tenant_id=1)
    with pytest.raises(NotFound, match="no such run"):
        await explain.load_node_explanation(harness.store, RunKey(uuid4(), key.scheduled_for), ("a", None), tenant_id=1)
    [other] = await harness.tenants(1)
    with pytest.raises(NotFound, match="no such run"):
        await explain.load_node_explanation(harness.store, key, ("a", None), tenant_id=other)
