"""Workflow runs that are stopped, mended, replaced and given odd things: what is put back runs, and all end."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any

import pytest
from tests.integration.workflow.test_races import LEFT, Nodes, under_way
from tests.integration.workflow.test_workflows import Play, failed, ok, start, states
from tests.support.engine_harness import EngineHarness

from bellringer.core.jobs import SIGNAL_TASK, WAIT_TASK, WORKFLOW_TASK
from bellringer.core.policies import Overlap
from bellringer.core.runs import Outcome, RunKey, State
from bellringer.engine import workflow_commands
from bellringer.engine.backfill import BackfillWindow, run_backfills
from bellringer.engine.backfill import start as start_backfill
from bellringer.engine.reap import reap
from bellringer.errors import Conflict
from bellringer.schedule import every
from bellringer.store import queue, workflows

TASK = {"task": "greet"}


async def test_a_wait_does_not_take_the_place_of_a_run(harness: EngineHarness) -> None:
    nodes: Nodes = [
        {"name": "s", "signal": {}},
        {"name": "w", "wait": {"for": "1d"}},
        {"name": "a"},
        {"name": "b", "after": ["s"]},
    ]
    play, key = await start(harness, nodes, max_parallel=1)
    await play.all()
    assert play.names == ["a"]
    assert await workflow_commands.send_signal(harness.store, key, "s", 1, tenant_id=1)
    await play.all()
    assert play.names == ["a", "b"]


async def test_a_map_that_cannot_be_done_has_no_result(harness: EngineHarness) -> None:
    nodes: Nodes = [
        {"name": "list"}, {"name": "m", "over": {"node": "list"}, "max_items": 2},
        {"name": "end", "takes": {"x": {"node": "m"}}, "when": "all_done"},
    ]  # fmt: skip
    play, key = await start(harness, nodes, {"list": ok([1, 2, 3])})
    await play.all()
    assert play.seen[-1] == ("end", {"x": None})
    assert (await states(harness, key))["m"] == "dead 3 elements, more than 2"


async def test_an_element_is_tried_again_while_others_wait_for_their_turn(harness: EngineHarness) -> None:
    nodes: Nodes = [
        {"name": "m", "over": {"value": [0, 1, 2, 3, 4]}, "takes": {"x": {"item": True}}, "max_parallel": 1}
    ]
    play, key = await start(harness, nodes, {"m": lambda c: failed() if c.spec.kwargs["x"] == 0 else ok()})
    await play.step(), await play.step()
    assert [kwargs["x"] for _, kwargs in play.seen] == [0]
    play.acts = {}
    await workflow_commands.retry_nodes(harness.store, key, [("m", 0)], tenant_id=1)
    await play.all()
    assert sorted(kwargs["x"] for _, kwargs in play.seen) == [0, 0, 1, 2, 3, 4]
    assert await harness.state(key) is State.SUCCEEDED
    assert await harness.value(LEFT) == 0


@pytest.mark.parametrize("until", ["garbage", "infinity", "9999-01-01T00:00:00Z", "", 5, None, {}])
async def test_a_wait_until_what_is_not_a_time_fails(harness: EngineHarness, until: object) -> None:
    nodes: Nodes = [
        {"name": "when"}, {"name": "w", "wait": {"until": {"node": "when"}}}, {"name": "ship", "after": ["w"]},
    ]  # fmt: skip
    play, key = await start(harness, nodes, {"when": ok(until)})
    await play.all()
    wanted = {
        "when": "succeeded",
        "w": "dead the time to wait until is not a time within a year",
        "ship": "skipped upstream",
    }
    assert await states(harness, key) == wanted
    assert await harness.state(key) is State.DEAD
    await workflow_commands.retry_nodes(harness.store, key, None, tenant_id=1)
    assert await harness.state(key) is State.DEAD, "it is what it was"
    await workflow_commands.mark_node(
        harness.store, key, ("w", None), State.SUCCEEDED, tenant_id=1, reason="it is time"
    )
    await play.all()
    assert await harness.state(key) is State.SUCCEEDED


async def test_a_map_that_was_stopped_goes_on_with_as_many_at_once_as_it_may(harness: EngineHarness) -> None:
    nodes: Nodes = [{"name": "m", "over": {"value": list(range(7))}, "takes": {"x": {"item": True}}, "max_parallel": 2}]
    play, key, [one, two] = await under_way(harness, nodes)
    await harness.cancel(key)
    await workflow_commands.stop_workflow_runs(harness.store)
    await harness.end(play.seat, [one, two])
    assert await harness.state(key) is State.CANCELLED
    await workflow_commands.retry_nodes(harness.store, key, None, tenant_id=1)
    steps = []
    while done := await play.step():
        steps.append(done)
    assert steps == [2, 2, 1]
    assert [kwargs["x"] for _, kwargs in play.seen] == [2, 3, 4, 5, 6]
    assert await harness.state(key) is State.SUCCEEDED


async def test_what_was_stopped_and_is_not_wanted_any_more_is_passed_over_when_it_is_tried_again(
    harness: EngineHarness,
) -> None:
    nodes: Nodes = [
        {"name": "pick"}, {"name": "left", "after": [{"node": "pick", "is": "left"}]},
        {"name": "mend", "after": ["pick"], "when": "one_failed"},
        {"name": "join", "after": ["left", "mend"], "when": "all_done"},
    ]  # fmt: skip
    play, key, [pick] = await under_way(harness, nodes)
    await harness.cancel(key)
    await workflow_commands.stop_workflow_runs(harness.store)
    await harness.end(play.seat, pick, result="right")
    await workflow_commands.retry_nodes(harness.store, key, None, tenant_id=1)
    await play.all()
    assert play.names == ["join"]
    wanted = {"pick": "succeeded", "left": "skipped condition", "mend": "skipped condition", "join": "succeeded"}
    assert await states(harness, key) == wanted
    assert await harness.state(key) is State.SUCCEEDED


async def test_a_far_wait_that_was_cancelled_waits_again(harness: EngineHarness) -> None:
    play, key = await start(harness, [{"name": "w", "wait": {"for": "1h"}}])
    await play.step()
    [(flow_id,)] = await harness.sql("select flow_id from flows")
    assert await harness.cancel(RunKey(flow_id, key.scheduled_for, 1)) is State.CANCELLED
    assert await harness.state(key) is State.DEAD
    await workflow_commands.retry_nodes(harness.store, key, None, tenant_id=1)
    await harness.hold()
    await harness.pass_time(3600)
    await harness.ring()
    await play.all()
    assert await harness.state(key) is State.SUCCEEDED


async def test_a_cancel_while_it_is_taken_back_leaves_that_its_time(harness: EngineHarness) -> None:
    nodes: Nodes = [
        {"name": "a"}, {"name": "b", "after": ["a"]}, {"name": "c", "after": ["b"]},
        {"name": "undo a", "undoes": "a"}, {"name": "undo b", "undoes": "b"},
    ]  # fmt: skip
    play, key = await start(harness, nodes, {"c": failed()})
    for _ in range(4):
        await play.step()
    undoing = await harness.claim_one(play.seat)
    await harness.cancel(key)
    assert await workflow_commands.stop_workflow_runs(harness.store) == 1
    assert await workflow_commands.stop_workflow_runs(harness.store) == 0
    assert await harness.claim(play.seat) == [], "one after another"
    await harness.end(play.seat, undoing)
    await play.all()
    assert play.names[-1] == "undo a"
    assert await harness.state(key) is State.CANCELLED
    assert await harness.value(LEFT) == 0
    with pytest.raises(Conflict, match="compensated"):
        await workflow_commands.retry_nodes(harness.store, key, None, tenant_id=1)
    assert await harness.redrive(key) == 0


INNER = {
    "params": {"n": {}},
    "nodes": [{"name": "x", **TASK, "takes": {"n": {"param": "n"}}}, {"name": "y", **TASK, "after": ["x"]}],
}


async def test_an_inner_workflow_that_is_tried_again_goes_on_where_it_failed(harness: EngineHarness) -> None:
    nodes: Nodes = [{"name": "a"}, {"name": "sub", "workflow": INNER, "takes": {"n": {"node": "a"}}, "timeout": "1h"}]
    play, key = await start(harness, nodes, {"a": ok(1), "y": failed()})
    await play.all()
    play.acts, play.seen = {}, []
    await harness.pass_time(7200)  # beyond the time that it had the first time
    await harness.redrive(key)
    await play.step()
    assert await workflow_commands.stop_workflow_runs(harness.store) == 0
    await play.all()
    assert play.names == ["y"]
    assert await harness.state(key) is State.SUCCEEDED


async def test_an_inner_workflow_that_is_given_something_else_starts_again(harness: EngineHarness) -> None:
    nodes: Nodes = [{"name": "a"}, {"name": "sub", "workflow": INNER, "takes": {"n": {"node": "a"}}}]
    play, key = await start(harness, nodes, {"a": ok(1), "y": failed()})
    await play.all()
    play.acts, play.seen = {"a": ok(2)}, []
    await workflow_commands.retry_nodes(harness.store, key, [("a", None)], tenant_id=1)
    await play.all()
    assert play.seen == [("a", {}), ("x", {"n": 2}), ("y", {})]
    assert await harness.state(key) is State.SUCCEEDED


async def test_an_inner_workflow_that_was_taken_back_starts_again(harness: EngineHarness) -> None:
    inner = {**INNER, "nodes": [*INNER["nodes"], {"name": "undo", **TASK, "undoes": "x"}]}
    play, key = await start(harness, [{"name": "sub", "workflow": inner, "kwargs": {"n": 1}}], {"y": failed()})
    await play.all()
    assert play.names == ["x", "y", "undo"]
    await harness.redrive(key)
    await play.all()
    assert play.names == ["x", "y", "undo"] * 2
    assert await harness.state(key) is State.DEAD
    assert await harness.value(LEFT) == 0


async def test_an_endless_inner_workflow_ends_with_the_outer_one(harness: EngineHarness) -> None:
    inner = {"nodes": [{"name": "s", "signal": {}}, {"name": "t", **TASK}]}
    nodes: Nodes = [
        {"name": "subs", "workflow": inner, "over": {"value": [1, 2]}},
        {"name": "after", "after": ["subs"]},
    ]
    play, key = await start(harness, nodes)
    await play.step(), await play.step()
    running = await harness.claim(play.seat)
    await harness.cancel(key)
    assert [await workflow_commands.stop_workflow_runs(harness.store) for _ in range(3)] == [1, 2, 0]
    assert await harness.end(play.seat, running, outcome=Outcome.CANCELLED) == 2
    assert await harness.state(key) is State.CANCELLED
    assert await harness.value(LEFT) == 0


async def test_a_running_workflow_is_replaced(harness: EngineHarness) -> None:
    document = {"nodes": [{"name": "a", **TASK}, {"name": "s", "signal": {}}]}
    job = await harness.job("flow", every("10s"), task=WORKFLOW_TASK, workflow=document, overlap=Overlap.REPLACE)
    play = Play(harness, await harness.join_worker("greet", WORKFLOW_TASK, WAIT_TASK, SIGNAL_TASK), {})
    for _ in range(2):
        await harness.pass_time(10)
        await harness.tick_all()
        await play.all()
    first, second = harness.key(job, 10), harness.key(job, 20)
    assert (await harness.state(first), await harness.state(second)) == (State.RUNNING, State.BLOCKED)
    await queue.decide_overlaps(harness.store, 100)
    assert await workflow_commands.stop_workflow_runs(harness.store) == 1
    assert await harness.state(first) is State.CANCELLED
    await play.all()
    assert await harness.state(second) is State.RUNNING
    assert play.names == ["a", "a"]


async def test_a_backfill_has_no_more_workflow_runs_under_way_than_it_may(harness: EngineHarness) -> None:
    document = {"nodes": [{"name": "a", **TASK}, {"name": "b", **TASK, "after": ["a"]}]}
    job = await harness.job("flow", every("10s"), task=WORKFLOW_TASK, workflow=document)
    play = Play(harness, await harness.join_worker("greet", WORKFLOW_TASK, WAIT_TASK, SIGNAL_TASK), {})
    wish = BackfillWindow(job=await harness.read(job), from_at=harness.after(-60), to_at=harness.noon, reprocess="none")
    more: dict[str, Any] = {"newest_first": False, "parallelism": 2, "rate": None, "tenant_id": 1, "who": "me"}
    await start_backfill(harness.store, harness.catalog, wish, **more)
    await harness.hold()
    most = 0
    for _ in range(40):
        await run_backfills(harness.store, harness.catalog, harness.holding, await harness.now())
        most = max(most, await harness.value("select count(*) from queue where job_id = $1", job))
        await play.step()
    assert most == 2
    assert play.names.count("b") == 6
    assert await harness.value("select count(*) from attempts where job_id = $1 and ends_as = 'succeeded'", job) == 6


async def test_a_node_that_is_delivered_at_most_once_dies_with_its_worker(harness: EngineHarness) -> None:
    play, key, [_] = await under_way(
        harness, [{"name": "a", "delivery": "at_most_once"}, {"name": "b", "after": ["a"]}]
    )
    await harness.silence_worker(play.seat)
    assert await reap(harness.store, harness.catalog, timedelta(minutes=5)) == 1
    assert await states(harness, key) == {"a": "dead", "b": "skipped upstream"}
    assert await harness.state(key) is State.DEAD


async def test_large_results_are_gathered_whole(harness: EngineHarness) -> None:
    text = "".join(hashlib.sha256(str(n).encode()).hexdigest() for n in range(15_000))  # a megabyte
    nodes: Nodes = [
        {"name": "m", "over": {"value": [0, 1, 2]}, "takes": {"x": {"item": True}}},
        {"name": "one", "takes": {"t": {"node": "m"}}},
    ]
    play, _ = await start(harness, nodes, {"m": lambda c: ok(text + str(c.spec.kwargs["x"]))})
    await play.all()
    assert play.seen[-1] == ("one", {"t": [text + "0", text + "1", text + "2"]})


async def test_a_param_that_is_missing_at_run_time_is_nothing(harness: EngineHarness) -> None:
    """A job says them all; what a version of its graph has come to want meanwhile, an older run does not have."""
    document = {"params": {"n": {}}, "nodes": [{"name": "a", **TASK, "takes": {"n": {"param": "n"}}}]}
    job = await harness.job("flow", every("10s"), task=WORKFLOW_TASK, workflow=document, kwargs={"n": 1})
    await harness.sql("update jobs set spec = spec - 'kwargs'")
    play = Play(harness, await harness.join_worker("greet", WORKFLOW_TASK, WAIT_TASK, SIGNAL_TASK), {})
    await harness.pass_time(10)
    await harness.tick_all()
    await play.all()
    assert play.seen == [("a", {"n": None})]
    assert await harness.state(harness.key(job, 10)) is State.SUCCEEDED


async def test_a_node_that_no_worker_has_claimed_is_marked(harness: EngineHarness) -> None:
    play, key = await start(harness, [{"name": "a"}, {"name": "b", "takes": {"x": {"node": "a"}}}])
    await play.step()
    await workflow_commands.mark_node(
        harness.store, key, ("a", None), State.SUCCEEDED, tenant_id=1, result=3, reason="by hand"
    )
    held = await harness.claim_one(play.seat)
    with pytest.raises(Conflict, match="running"):
        await workflow_commands.mark_node(harness.store, key, ("b", None), State.DEAD, tenant_id=1, reason="no")
    with pytest.raises(Conflict, match="running"):
        await workflow_commands.retry_nodes(harness.store, key, [("a", None)], tenant_id=1)
    assert held.spec.kwargs == {"x": 3}
    await harness.end(play.seat, held)
    assert await harness.state(key) is State.SUCCEEDED
    assert await harness.value(LEFT) == 0


async def test_a_flow_is_not_forgotten_while_its_run_may_be_tried_again(harness: EngineHarness) -> None:
    play, key = await start(harness, [{"name": "sub", "workflow": INNER, "kwargs": {"n": 1}}], {"y": failed()})
    await play.all()
    later = await harness.pass_time(1)
    assert await workflows.prune(harness.store, later) == 0
    play.acts = {}
    await harness.redrive(key)
    assert await workflows.prune(harness.store, later) == 0
    await play.all()
    assert await harness.state(key) is State.SUCCEEDED
    assert await workflows.prune(harness.store, later) == 2
    assert await harness.value("select count(*) from flow_nodes") == 0


async def test_what_begins_at_the_first_failure_has_nothing_of_those_under_way(harness: EngineHarness) -> None:
    nodes: Nodes = [
        {"name": "a"},
        {"name": "b"},
        {"name": "mend", "after": ["a"], "takes": {"x": {"node": "b"}}, "when": "one_failed"},
    ]
    play, key, [a, b] = await under_way(harness, nodes)
    await harness.end(play.seat, a, outcome=Outcome.FAILED, final="for good")
    await play.all()
    assert play.seen == [("mend", {"x": None})]
    await harness.end(play.seat, b, result=1)
    assert await harness.state(key) is State.SUCCEEDED
    assert await harness.value(LEFT) == 0
