"""Why nodes of a workflow run do not start, and how far a workflow run is, on the real database."""

from __future__ import annotations

from uuid import uuid4

import pytest
from tests.lifecycle.conftest import Bench
from tests.lifecycle.test_workflows import Nodes, failed, ok, start

from bellringer.errors import Conflict, NotFound
from bellringer.lifecycle import explain, flow
from bellringer.runs import RunKey, State


async def codes(bench: Bench, key: RunKey, name: str) -> list[str]:
    found = await explain.node(bench.store, key, flow.read_node(name), tenant_id=1)
    return [reason.code for reason in found.reasons]


async def text(bench: Bench, key: RunKey, name: str) -> str:
    found = await explain.node(bench.store, key, flow.read_node(name), tenant_id=1)
    return found.reasons[0].text


_RUN = """
    select r.job_id, r.scheduled_for, r.slot
    from flows f join flow_nodes n using (flow_id) join graph_nodes g on g.graph_id = f.graph_id and g.node = n.of
    join runs r on r.job_id = n.flow_id and r.slot = n.node
    where g.name || coalesce('[' || n.place || ']', '') = $1"""


async def of_node(bench: Bench, name: str) -> RunKey:
    [row] = await bench.sql(_RUN, name)
    return RunKey(*row)


async def test_a_workflow_run_says_how_far_its_nodes_are(bench: Bench) -> None:
    nodes: Nodes = [
        {"name": "list"},
        {"name": "each", "over": {"node": "list"}, "takes": {"x": {"item": True}}, "max_parallel": 2},
        {"name": "approve", "signal": {"timeout": "1h"}},
        {"name": "end", "after": ["each", "approve"]},
    ]
    play, key = await start(bench, nodes, {"list": ok([1, 2, 3])})
    await play.step()
    await play.step()
    await bench.claim(play.seat, 1)
    told = await explain.run(bench.store, key, tenant_id=1)
    assert [reason.code for reason in told.reasons] == ["nodes_under_way"]
    first = told.reasons[0]
    assert first.holds is False
    assert first.text.startswith(
        "its nodes are under way: 1 of 4 have ended; each: 0 of its 3 elements have ended, each[0] since "
    )
    assert "waits for the signal approve until " in first.text
    assert (told.job, told.placed) == ("flow", None)
    by_job = await explain.why(bench.store, key.job_id, tenant_id=1)
    assert by_job.reasons[0].code == "nodes_under_way"
    at = await explain.why(bench.store, key.job_id, key.scheduled_for.isoformat(), tenant_id=1)
    assert at.reasons  # by hand it is in another slot: only that it does not fall over


async def test_a_node_tells_what_it_waits_for(bench: Bench) -> None:
    nodes: Nodes = [
        {"name": "a"},
        {"name": "b", "after": ["a"]},
        {"name": "wait", "wait": {"for": "2h"}},
        {"name": "go", "signal": {}},
        {"name": "mend", "after": ["a"], "when": "one_failed"},
        {"name": "undo", "undoes": "a"},
    ]
    play, key = await start(bench, nodes)
    await play.step()
    assert await codes(bench, key, "a") == ["ready", "not_paused", "staffed"]
    [claimed] = await bench.claim(play.seat)
    assert await codes(bench, key, "a") == ["running"]
    assert (await text(bench, key, "b")).startswith("it waits for a (running since ")
    assert await codes(bench, key, "b") == ["waits_for_node"]
    assert await codes(bench, key, "mend") == ["waits_for_node", "rule"]
    assert await codes(bench, key, "undo") == ["waits_to_undo"]
    assert "until " in await text(bench, key, "wait")
    found = await explain.node(bench.store, key, ("go", None), tenant_id=1)
    assert (found.state, found.run) == ("waiting", None)
    assert found.reasons[0].code == "waits_for_signal"
    assert found.reasons[0].fix == f"bellringer workflows signal {key.id} go"
    await bench.pause(key.job_id)
    assert await codes(bench, key, "b") == ["job_paused", "waits_for_node"]
    await bench.end(play.seat, claimed)
    assert (await codes(bench, key, "b"))[0] == "job_paused"
    told = await explain.run(bench.store, key, tenant_id=1)
    assert [reason.code for reason in told.reasons] == ["job_paused", "nodes_under_way"]


async def test_a_node_that_waits_for_room(bench: Bench) -> None:
    nodes: Nodes = [
        {"name": "each", "over": {"value": [1, 2, 3, 4]}, "max_parallel": 3},
        {"name": "other"},
    ]
    play, key = await start(bench, nodes, max_parallel=2)
    await play.step()
    assert await codes(bench, key, "each") == ["map_under_way"]
    assert "2 of the 2 node runs of " in await text(bench, key, "each[2]")
    assert "3 of the 3 elements of each that" in await text(bench, key, "each[3]")
    assert await codes(bench, key, "each[3]") == ["waits_for_room"]


async def test_a_node_that_was_skipped_tells_by_what(bench: Bench) -> None:
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
    play, key = await start(bench, nodes, {"a": failed(), "pick": ok("right")})
    await play.all()
    assert await bench.state(key) is State.DEAD
    found = await explain.node(bench.store, key, ("b", None), tenant_id=1)
    assert found.reasons[0].text == "it was skipped: before it, a (dead) failed"
    assert found.reasons[0].fix == f"bellringer workflows retry {key.id} a"
    assert await text(bench, key, "c") == "it was skipped: before it, b (skipped) failed"
    assert await text(bench, key, "left") == 'it was skipped: pick did not return "left"'
    assert await text(bench, key, "right") == "it was skipped: left was skipped"
    assert await codes(bench, key, "mend") == ["skipped_condition"]
    assert await codes(bench, key, "undo") == ["not_needed"]
    assert "what it maps over is no list" in await text(bench, key, "odd")
    dead = await explain.node(bench.store, key, ("a", None), tenant_id=1)
    assert (dead.reasons[0].text[:10], dead.reasons[0].fix) == ("it gave up", f"bellringer workflows retry {key.id} a")
    with pytest.raises(Conflict, match="the run is dead") as refused:
        await bench.retry(await of_node(bench, "a"))
    assert "workflows retry" in refused.value.hint
    told = await explain.run(bench.store, key, tenant_id=1)
    assert told.reasons[0].text.endswith("NodesFailed: its nodes a, odd failed")


async def test_a_stopped_run_says_so_of_its_nodes(bench: Bench) -> None:
    nodes: Nodes = [{"name": "a"}, {"name": "b", "after": ["a"]}]
    play, key = await start(bench, nodes)
    await play.step()
    await bench.claim(play.seat)
    await bench.cancel(key)
    await flow.stop_flows(bench.store)
    assert await codes(bench, key, "b") == ["skipped_stopped"]
    told = await explain.run(bench.store, key, tenant_id=1)
    assert [reason.code for reason in told.reasons] == ["stopping", "nodes_under_way"]


async def test_the_run_of_a_node_is_explained_though_it_has_no_job(bench: Bench) -> None:
    inner = {"nodes": [{"name": "deep", "task": "greet"}]}
    nodes: Nodes = [
        {"name": "each", "over": {"value": [1, 2]}},
        {"name": "go", "signal": {}},
        {"name": "sub", "workflow": inner},
    ]
    play, key = await start(bench, nodes)
    await play.step()
    told = await explain.run(bench.store, await of_node(bench, "each[1]"), tenant_id=1)
    assert [reason.code for reason in told.reasons] == ["ready", "node_of", "not_paused", "staffed"]
    assert told.reasons[1].text == f"it is the node each[1] of the workflow run {key.id} of flow"
    assert told.placed is not None
    assert (told.placed.key, told.placed.job, told.next_at) == (key, "flow", None)
    signal = await explain.run(bench.store, await of_node(bench, "go"), tenant_id=1)
    assert [reason.code for reason in signal.reasons] == ["waits_for_signal", "node_of"]
    await play.step()  # the workflow inside is opened
    sub = await explain.node(bench.store, key, ("sub", None), tenant_id=1)
    assert [reason.code for reason in sub.reasons] == ["nodes_under_way"]
    assert sub.run is not None
    deep = await explain.node(bench.store, sub.run.key, ("deep", None), tenant_id=1)
    assert deep.reasons[0].code == "ready"
    await bench.pause(key.job_id)
    held = await explain.node(bench.store, sub.run.key, ("deep", None), tenant_id=1)
    assert held.reasons[0].code == "job_paused"


async def test_what_is_not_there(bench: Bench) -> None:
    play, key = await start(bench, [{"name": "a"}])
    with pytest.raises(NotFound, match="no such workflow run"):
        await explain.node(bench.store, key, ("a", None), tenant_id=1)
    await play.step()
    for name in (("x", None), ("a", 0)):
        with pytest.raises(NotFound, match="no such node"):
            await explain.node(bench.store, key, name, tenant_id=1)
    with pytest.raises(NotFound, match="no such run"):
        await explain.node(bench.store, RunKey(uuid4(), key.scheduled_for), ("a", None), tenant_id=1)
    [other] = await bench.tenants(1)
    with pytest.raises(NotFound, match="no such run"):
        await explain.node(bench.store, key, ("a", None), tenant_id=other)
