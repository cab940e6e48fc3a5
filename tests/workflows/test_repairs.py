"""Workflow runs that are stopped, mended, replaced and given odd things: what is put back runs, and all end."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any

import pytest
from tests.lifecycle.conftest import Bench
from tests.lifecycle.test_workflows import Play, failed, ok, start, states
from tests.workflows.test_races import LEFT, Nodes, under_way

from bellringer.errors import Conflict
from bellringer.jobs import SIGNAL, WAIT, WORKFLOW
from bellringer.lifecycle import flow
from bellringer.lifecycle.backfill import Wish, backfill
from bellringer.lifecycle.backfill import start as start_backfill
from bellringer.lifecycle.reap import reap
from bellringer.policies import Overlap
from bellringer.runs import Outcome, RunKey, State
from bellringer.schedule import every
from bellringer.store import flows, queue

TASK = {"task": "greet"}


async def test_a_wait_does_not_take_the_place_of_a_run(bench: Bench) -> None:
    nodes: Nodes = [
        {"name": "s", "signal": {}},
        {"name": "w", "wait": {"for": "1d"}},
        {"name": "a"},
        {"name": "b", "after": ["s"]},
    ]
    play, key = await start(bench, nodes, max_parallel=1)
    await play.all()
    assert play.names == ["a"]
    assert await flow.signal(bench.store, key, "s", 1, tenant_id=1)
    await play.all()
    assert play.names == ["a", "b"]


async def test_a_map_that_cannot_be_done_has_no_result(bench: Bench) -> None:
    nodes: Nodes = [
        {"name": "list"}, {"name": "m", "over": {"node": "list"}, "max_items": 2},
        {"name": "end", "takes": {"x": {"node": "m"}}, "when": "all_done"},
    ]  # fmt: skip
    play, key = await start(bench, nodes, {"list": ok([1, 2, 3])})
    await play.all()
    assert play.seen[-1] == ("end", {"x": None})
    assert (await states(bench, key))["m"] == "dead 3 elements, more than 2"


async def test_an_element_is_tried_again_while_others_wait_for_their_turn(bench: Bench) -> None:
    nodes: Nodes = [
        {"name": "m", "over": {"value": [0, 1, 2, 3, 4]}, "takes": {"x": {"item": True}}, "max_parallel": 1}
    ]
    play, key = await start(bench, nodes, {"m": lambda c: failed() if c.spec.kwargs["x"] == 0 else ok()})
    await play.step(), await play.step()
    assert [kwargs["x"] for _, kwargs in play.seen] == [0]
    play.acts = {}
    await flow.retry_nodes(bench.store, key, [("m", 0)], tenant_id=1)
    await play.all()
    assert sorted(kwargs["x"] for _, kwargs in play.seen) == [0, 0, 1, 2, 3, 4]
    assert await bench.state(key) is State.SUCCEEDED
    assert await bench.value(LEFT) == 0


@pytest.mark.parametrize("until", ["garbage", "infinity", "9999-01-01T00:00:00Z", "", 5, None, {}])
async def test_a_wait_until_what_is_no_time_fails(bench: Bench, until: object) -> None:
    nodes: Nodes = [
        {"name": "when"}, {"name": "w", "wait": {"until": {"node": "when"}}}, {"name": "ship", "after": ["w"]},
    ]  # fmt: skip
    play, key = await start(bench, nodes, {"when": ok(until)})
    await play.all()
    wanted = {
        "when": "succeeded",
        "w": "dead what it waits until is no time within a year",
        "ship": "skipped upstream",
    }
    assert await states(bench, key) == wanted
    assert await bench.state(key) is State.DEAD
    await flow.retry_nodes(bench.store, key, None, tenant_id=1)
    assert await bench.state(key) is State.DEAD, "it is what it was"
    await flow.mark(bench.store, key, ("w", None), State.SUCCEEDED, tenant_id=1, reason="it is time")
    await play.all()
    assert await bench.state(key) is State.SUCCEEDED


async def test_a_map_that_was_stopped_goes_on_with_as_many_at_once_as_it_may(bench: Bench) -> None:
    nodes: Nodes = [{"name": "m", "over": {"value": list(range(7))}, "takes": {"x": {"item": True}}, "max_parallel": 2}]
    play, key, [one, two] = await under_way(bench, nodes)
    await bench.cancel(key)
    await flow.stop_flows(bench.store)
    await bench.end(play.seat, [one, two])
    assert await bench.state(key) is State.CANCELLED
    await flow.retry_nodes(bench.store, key, None, tenant_id=1)
    steps = []
    while done := await play.step():
        steps.append(done)
    assert steps == [2, 2, 1]
    assert [kwargs["x"] for _, kwargs in play.seen] == [2, 3, 4, 5, 6]
    assert await bench.state(key) is State.SUCCEEDED


async def test_what_was_stopped_and_is_not_wanted_any_more_is_passed_over_when_it_is_tried_again(bench: Bench) -> None:
    nodes: Nodes = [
        {"name": "pick"}, {"name": "left", "after": [{"node": "pick", "is": "left"}]},
        {"name": "mend", "after": ["pick"], "when": "one_failed"},
        {"name": "join", "after": ["left", "mend"], "when": "all_done"},
    ]  # fmt: skip
    play, key, [pick] = await under_way(bench, nodes)
    await bench.cancel(key)
    await flow.stop_flows(bench.store)
    await bench.end(play.seat, pick, result="right")
    await flow.retry_nodes(bench.store, key, None, tenant_id=1)
    await play.all()
    assert play.names == ["join"]
    wanted = {"pick": "succeeded", "left": "skipped condition", "mend": "skipped condition", "join": "succeeded"}
    assert await states(bench, key) == wanted
    assert await bench.state(key) is State.SUCCEEDED


async def test_a_far_wait_that_was_cancelled_waits_again(bench: Bench) -> None:
    play, key = await start(bench, [{"name": "w", "wait": {"for": "1h"}}])
    await play.step()
    [(flow_id,)] = await bench.sql("select flow_id from flows")
    assert await bench.cancel(RunKey(flow_id, key.scheduled_for, 1)) is State.CANCELLED
    assert await bench.state(key) is State.DEAD
    await flow.retry_nodes(bench.store, key, None, tenant_id=1)
    await bench.hold()
    await bench.pass_time(3600)
    await bench.ring()
    await play.all()
    assert await bench.state(key) is State.SUCCEEDED


async def test_a_cancel_while_it_is_taken_back_leaves_that_its_time(bench: Bench) -> None:
    nodes: Nodes = [
        {"name": "a"}, {"name": "b", "after": ["a"]}, {"name": "c", "after": ["b"]},
        {"name": "undo a", "undoes": "a"}, {"name": "undo b", "undoes": "b"},
    ]  # fmt: skip
    play, key = await start(bench, nodes, {"c": failed()})
    for _ in range(4):
        await play.step()
    undoing = await bench.claim_one(play.seat)
    await bench.cancel(key)
    assert await flow.stop_flows(bench.store) == 1
    assert await flow.stop_flows(bench.store) == 0
    assert await bench.claim(play.seat) == [], "one after another"
    await bench.end(play.seat, undoing)
    await play.all()
    assert play.names[-1] == "undo a"
    assert await bench.state(key) is State.CANCELLED
    assert await bench.value(LEFT) == 0
    with pytest.raises(Conflict, match="taken back"):
        await flow.retry_nodes(bench.store, key, None, tenant_id=1)
    assert await bench.redrive(key) == 0


INNER = {
    "params": {"n": {}},
    "nodes": [{"name": "x", **TASK, "takes": {"n": {"param": "n"}}}, {"name": "y", **TASK, "after": ["x"]}],
}


async def test_an_inner_workflow_that_is_tried_again_goes_on_where_it_failed(bench: Bench) -> None:
    nodes: Nodes = [{"name": "a"}, {"name": "sub", "workflow": INNER, "takes": {"n": {"node": "a"}}, "timeout": "1h"}]
    play, key = await start(bench, nodes, {"a": ok(1), "y": failed()})
    await play.all()
    play.acts, play.seen = {}, []
    await bench.pass_time(7200)  # beyond the time that it had the first time
    await bench.redrive(key)
    await play.step()
    assert await flow.stop_flows(bench.store) == 0
    await play.all()
    assert play.names == ["y"]
    assert await bench.state(key) is State.SUCCEEDED


async def test_an_inner_workflow_that_is_given_something_else_begins_anew(bench: Bench) -> None:
    nodes: Nodes = [{"name": "a"}, {"name": "sub", "workflow": INNER, "takes": {"n": {"node": "a"}}}]
    play, key = await start(bench, nodes, {"a": ok(1), "y": failed()})
    await play.all()
    play.acts, play.seen = {"a": ok(2)}, []
    await flow.retry_nodes(bench.store, key, [("a", None)], tenant_id=1)
    await play.all()
    assert play.seen == [("a", {}), ("x", {"n": 2}), ("y", {})]
    assert await bench.state(key) is State.SUCCEEDED


async def test_an_inner_workflow_that_was_taken_back_begins_anew(bench: Bench) -> None:
    inner = {**INNER, "nodes": [*INNER["nodes"], {"name": "undo", **TASK, "undoes": "x"}]}
    play, key = await start(bench, [{"name": "sub", "workflow": inner, "kwargs": {"n": 1}}], {"y": failed()})
    await play.all()
    assert play.names == ["x", "y", "undo"]
    await bench.redrive(key)
    await play.all()
    assert play.names == ["x", "y", "undo"] * 2
    assert await bench.state(key) is State.DEAD
    assert await bench.value(LEFT) == 0


async def test_an_endless_inner_workflow_ends_with_the_outer_one(bench: Bench) -> None:
    inner = {"nodes": [{"name": "s", "signal": {}}, {"name": "t", **TASK}]}
    nodes: Nodes = [
        {"name": "subs", "workflow": inner, "over": {"value": [1, 2]}},
        {"name": "after", "after": ["subs"]},
    ]
    play, key = await start(bench, nodes)
    await play.step(), await play.step()
    running = await bench.claim(play.seat)
    await bench.cancel(key)
    assert [await flow.stop_flows(bench.store) for _ in range(3)] == [1, 2, 0]
    assert await bench.end(play.seat, running, outcome=Outcome.CANCELLED) == 2
    assert await bench.state(key) is State.CANCELLED
    assert await bench.value(LEFT) == 0


async def test_a_running_workflow_is_replaced(bench: Bench) -> None:
    document = {"nodes": [{"name": "a", **TASK}, {"name": "s", "signal": {}}]}
    job = await bench.job("flow", every("10s"), task=WORKFLOW, workflow=document, overlap=Overlap.REPLACE)
    play = Play(bench, await bench.seat("greet", WORKFLOW, WAIT, SIGNAL), {})
    for _ in range(2):
        await bench.pass_time(10)
        await bench.tick_all()
        await play.all()
    first, second = bench.key(job, 10), bench.key(job, 20)
    assert (await bench.state(first), await bench.state(second)) == (State.RUNNING, State.BLOCKED)
    await queue.decide(bench.store, 100)
    assert await flow.stop_flows(bench.store) == 1
    assert await bench.state(first) is State.CANCELLED
    await play.all()
    assert await bench.state(second) is State.RUNNING
    assert play.names == ["a", "a"]


async def test_a_backfill_has_no_more_workflow_runs_under_way_than_it_may(bench: Bench) -> None:
    document = {"nodes": [{"name": "a", **TASK}, {"name": "b", **TASK, "after": ["a"]}]}
    job = await bench.job("flow", every("10s"), task=WORKFLOW, workflow=document)
    play = Play(bench, await bench.seat("greet", WORKFLOW, WAIT, SIGNAL), {})
    wish = Wish(job=await bench.read(job), from_at=bench.after(-60), to_at=bench.noon, reprocess="none")
    more: dict[str, Any] = {"newest_first": False, "parallelism": 2, "rate": None, "tenant_id": 1, "who": "me"}
    await start_backfill(bench.store, bench.names, wish, **more)
    await bench.hold()
    most = 0
    for _ in range(40):
        await backfill(bench.store, bench.names, bench.holding, await bench.now())
        most = max(most, await bench.value("select count(*) from queue where job_id = $1", job))
        await play.step()
    assert most == 2
    assert play.names.count("b") == 6
    assert await bench.value("select count(*) from attempts where job_id = $1 and ends_as = 'succeeded'", job) == 6


async def test_a_node_that_is_delivered_at_most_once_dies_with_its_worker(bench: Bench) -> None:
    play, key, [_] = await under_way(bench, [{"name": "a", "delivery": "at_most_once"}, {"name": "b", "after": ["a"]}])
    await bench.vanish(play.seat)
    assert await reap(bench.store, bench.names, timedelta(minutes=5)) == 1
    assert await states(bench, key) == {"a": "dead", "b": "skipped upstream"}
    assert await bench.state(key) is State.DEAD


async def test_large_results_are_gathered_whole(bench: Bench) -> None:
    text = "".join(hashlib.sha256(str(n).encode()).hexdigest() for n in range(15_000))  # a megabyte
    nodes: Nodes = [
        {"name": "m", "over": {"value": [0, 1, 2]}, "takes": {"x": {"item": True}}},
        {"name": "one", "takes": {"t": {"node": "m"}}},
    ]
    play, _ = await start(bench, nodes, {"m": lambda c: ok(text + str(c.spec.kwargs["x"]))})
    await play.all()
    assert play.seen[-1] == ("one", {"t": [text + "0", text + "1", text + "2"]})


async def test_a_param_that_is_missing_at_run_time_is_nothing(bench: Bench) -> None:
    """A job says them all; what a version of its graph has come to want meanwhile, an older run does not have."""
    document = {"params": {"n": {}}, "nodes": [{"name": "a", **TASK, "takes": {"n": {"param": "n"}}}]}
    job = await bench.job("flow", every("10s"), task=WORKFLOW, workflow=document, kwargs={"n": 1})
    await bench.sql("update jobs set spec = spec - 'kwargs'")
    play = Play(bench, await bench.seat("greet", WORKFLOW, WAIT, SIGNAL), {})
    await bench.pass_time(10)
    await bench.tick_all()
    await play.all()
    assert play.seen == [("a", {"n": None})]
    assert await bench.state(bench.key(job, 10)) is State.SUCCEEDED


async def test_a_node_that_nobody_has_claimed_is_marked(bench: Bench) -> None:
    play, key = await start(bench, [{"name": "a"}, {"name": "b", "takes": {"x": {"node": "a"}}}])
    await play.step()
    await flow.mark(bench.store, key, ("a", None), State.SUCCEEDED, tenant_id=1, result=3, reason="by hand")
    held = await bench.claim_one(play.seat)
    with pytest.raises(Conflict, match="running"):
        await flow.mark(bench.store, key, ("b", None), State.DEAD, tenant_id=1, reason="no")
    with pytest.raises(Conflict, match="running"):
        await flow.retry_nodes(bench.store, key, [("a", None)], tenant_id=1)
    assert held.spec.kwargs == {"x": 3}
    await bench.end(play.seat, held)
    assert await bench.state(key) is State.SUCCEEDED
    assert await bench.value(LEFT) == 0


async def test_a_flow_is_not_forgotten_while_its_run_may_be_tried_again(bench: Bench) -> None:
    play, key = await start(bench, [{"name": "sub", "workflow": INNER, "kwargs": {"n": 1}}], {"y": failed()})
    await play.all()
    later = await bench.pass_time(1)
    assert await flows.forget(bench.store, later) == 0
    play.acts = {}
    await bench.redrive(key)
    assert await flows.forget(bench.store, later) == 0
    await play.all()
    assert await bench.state(key) is State.SUCCEEDED
    assert await flows.forget(bench.store, later) == 2
    assert await bench.value("select count(*) from flow_nodes") == 0


async def test_what_begins_at_the_first_failure_has_nothing_of_those_under_way(bench: Bench) -> None:
    nodes: Nodes = [
        {"name": "a"},
        {"name": "b"},
        {"name": "mend", "after": ["a"], "takes": {"x": {"node": "b"}}, "when": "one_failed"},
    ]
    play, key, [a, b] = await under_way(bench, nodes)
    await bench.end(play.seat, a, outcome=Outcome.FAILED, final="for good")
    await play.all()
    assert play.seen == [("mend", {"x": None})]
    await bench.end(play.seat, b, result=1)
    assert await bench.state(key) is State.SUCCEEDED
    assert await bench.value(LEFT) == 0
