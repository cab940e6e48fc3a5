"""Workflows on the real database: nodes start when those before them have ended, and the last one ends the run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest
from tests.support.engine_harness import EngineHarness

from bellringer.core.jobs import SIGNAL_TASK, WAIT_TASK, WORKFLOW_TASK
from bellringer.core.runs import Ending, Outcome, RunKey, State
from bellringer.engine import reap, settle, workflow_commands
from bellringer.engine.claim import ClaimSpec
from bellringer.errors import Conflict, InvalidInput, NotFound
from bellringer.store import queue
from bellringer.store.queue import ClaimedRun
from bellringer.store.workflows import load_node_arguments

_STATES = """
    select g.name || coalesce('[' || n.place || ']', '') as name,
           n.state::text || coalesce(' ' || n.reason, '') as state
    from flows f join flow_nodes n using (flow_id) join graph_nodes g on g.graph_id = f.graph_id and g.node = n.of
    where f.flow_id = flow_of($1, $2, $3) order by n.node"""

Act = Callable[[ClaimedRun], Ending]
Nodes = Sequence[Mapping[str, Any]]


def ok(result: Any = None) -> Ending:
    return Ending(outcome=Outcome.OK, result=result)


def failed(*, final: bool = True) -> Ending:
    error = {"type": "ValueError", "message": "no", "lineage": ["ValueError"]}
    return Ending(outcome=Outcome.FAILED, error=error, final="for good" if final else None)


class Play:
    """One worker that executes nodes as a test says, and remembers what it executed."""

    def __init__(self, harness: EngineHarness, seat: ClaimSpec, acts: Mapping[str, Any]) -> None:
        self.harness, self.seat, self.acts = harness, seat, acts
        self.seen: list[tuple[str, dict[str, Any]]] = []

    async def step(self, most: int = 100) -> int:
        taken = await load_node_arguments(self.harness.store, await self.harness.claim(self.seat, most))
        names = await self.harness.catalog.task_names({c.task_id for c in taken})
        batch = []
        for claimed in taken:
            ending = self._end(claimed, names[claimed.task_id])
            batch.append(settle.decide(claimed, ending))
        if batch:
            assert (await settle.settle(self.harness.store, self.seat.worker_id, batch)).written == len(batch)
        return len(batch)

    async def all(self) -> None:
        for _ in range(200):
            if not await self.step():
                return
        raise AssertionError("it never came to rest")

    def _end(self, claimed: ClaimedRun, task: str) -> Ending:
        if task == WORKFLOW_TASK:
            return Ending(outcome=Outcome.OK, opened=True)
        if task == WAIT_TASK:
            return ok()
        name = claimed.spec.node or ""
        self.seen.append((name, claimed.spec.kwargs))
        act = self.acts.get(name, ok())
        if task == SIGNAL_TASK and name not in self.acts:
            return ok(claimed.spec.kwargs["default"]) if "default" in claimed.spec.kwargs else failed()
        ending: Ending = act(claimed) if callable(act) else act
        return ending

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.seen]


async def start(
    harness: EngineHarness, nodes: Nodes, acts: Mapping[str, Any] | None = None, **more: Any
) -> tuple[Play, RunKey]:
    seat = await harness.join_worker("greet", WORKFLOW_TASK, WAIT_TASK, SIGNAL_TASK)
    document = {
        "nodes": [{"task": "greet", **n} if not {"wait", "signal", "workflow"} & n.keys() else n for n in nodes],
        **more,
    }
    job_id = await harness.job("flow", task=WORKFLOW_TASK, workflow=document)
    key = await harness.trigger(job_id)
    return Play(harness, seat, acts or {}), key


async def states(harness: EngineHarness, key: RunKey) -> dict[str, str]:
    rows = await harness.sql(
        _STATES,
        key.job_id, key.scheduled_for, key.slot,
    )  # fmt: skip
    return {row["name"]: row["state"] for row in rows}


async def test_nodes_run_after_those_before_them_and_take_their_results(harness: EngineHarness) -> None:
    nodes: Nodes = [
        {"name": "extract", "kwargs": {"limit": 3}},
        {"name": "double", "takes": {"n": {"node": "extract", "path": ["n"]}}},
        {"name": "load", "takes": {"all": {"node": "extract"}, "twice": {"node": "double"}}},
    ]
    acts = {"extract": ok({"n": 21}), "double": lambda c: ok(c.spec.kwargs["n"] * 2), "load": ok("done")}
    play, key = await start(harness, nodes, acts, output="load")
    assert await play.step() == 1  # opened
    assert await harness.state(key) is State.RUNNING
    assert await play.step() == 1
    assert await states(harness, key) == {"extract": "succeeded", "double": "queued", "load": "blocked"}
    await play.all()
    assert play.seen == [("extract", {"limit": 3}), ("double", {"n": 21}), ("load", {"all": {"n": 21}, "twice": 42})]
    run = await harness.run(key)
    assert (run.state, run.result, run.attempt) == (State.SUCCEEDED, "done", 1)
    assert await harness.value("select count(*) from queue") == 0
    assert await harness.value("select (busy, unfinished)::text from flows") == "(0,0)"


async def test_a_map_has_one_run_for_each_element_and_gathers_in_order(harness: EngineHarness) -> None:
    nodes: Nodes = [
        {"name": "list"},
        {
            "name": "each",
            "over": {"node": "list"},
            "takes": {"x": {"item": True}, "i": {"index": True}},
            "max_parallel": 2,
        },
        {"name": "sum", "takes": {"xs": {"node": "each"}}},
    ]
    acts = {"list": ok([5, 6, 7, 8, 9]), "each": lambda c: ok(c.spec.kwargs["x"] * 10 + c.spec.kwargs["i"])}
    play, key = await start(harness, nodes, acts)
    assert [await play.step() for _ in range(6)] == [1, 1, 2, 2, 1, 1]
    assert play.seen[-1] == ("sum", {"xs": [50, 61, 72, 83, 94]})
    assert await harness.state(key) is State.SUCCEEDED


async def test_a_large_result_goes_by_reference(harness: EngineHarness) -> None:
    nodes: Nodes = [{"name": "big"}, {"name": "use", "takes": {"text": {"node": "big", "path": ["text"]}}}]
    text = "".join(hashlib.sha256(str(n).encode()).hexdigest() for n in range(1_000))
    play, _ = await start(harness, nodes, {"big": ok({"text": text})})
    await play.step()
    await play.step()
    assert (await harness.sql("select spec ->> 'refs' from queue where blocked = 0"))[0][0] is not None
    await play.all()
    assert play.seen[-1] == ("use", {"text": text})


async def test_a_failure_skips_what_comes_after_it_and_ends_the_run_dead(harness: EngineHarness) -> None:
    nodes: Nodes = [
        {"name": "a"}, {"name": "b", "after": ["a"]}, {"name": "c", "after": ["b"]},
        {"name": "clean", "after": ["c"], "when": "all_done"}, {"name": "other"},
    ]  # fmt: skip
    play, key = await start(harness, nodes, {"a": failed()})
    await play.all()
    assert await states(harness, key) == {
        "a": "dead", "b": "skipped upstream", "c": "skipped upstream", "clean": "succeeded", "other": "succeeded",
    }  # fmt: skip
    run = await harness.run(key)
    assert (run.state, run.reason) == (State.DEAD, "node a failed: ValueError: no")
    assert await harness.value("select count(*) from dead_letters") == 1


async def test_the_error_of_a_run_names_the_failed_element_of_a_map(harness: EngineHarness) -> None:
    nodes: Nodes = [{"name": "each", "over": {"value": [1, 2]}}]
    play, key = await start(harness, nodes, {"each": failed()})
    await play.all()
    assert ((await harness.run(key)).error or {})["message"] == "node each[0] failed: ValueError: no"


async def test_a_failure_that_is_dealt_with_does_not_fail_the_run(harness: EngineHarness) -> None:
    nodes: Nodes = [
        {"name": "a"},
        {"name": "b", "after": ["a"]},
        {"name": "mend", "after": ["a"], "when": "one_failed"},
    ]
    play, key = await start(harness, nodes, {"a": failed()})
    await play.all()
    assert (await states(harness, key))["mend"] == "succeeded"
    assert await harness.state(key) is State.SUCCEEDED


async def test_a_branch_that_is_not_taken_is_passed_over(harness: EngineHarness) -> None:
    nodes: Nodes = [
        {"name": "pick"},
        {"name": "left", "after": [{"node": "pick", "is": "left"}]},
        {"name": "right", "after": [{"node": "pick", "is": "right"}]},
        {"name": "join", "after": ["left", "right"], "when": "none_failed"},
    ]
    play, key = await start(harness, nodes, {"pick": ok("right")})
    await play.all()
    assert await states(harness, key) == {
        "pick": "succeeded", "left": "skipped condition", "right": "succeeded", "join": "succeeded",
    }  # fmt: skip


async def test_what_was_done_is_taken_back_in_reverse(harness: EngineHarness) -> None:
    nodes: Nodes = [
        {"name": "hotel"}, {"name": "flight", "after": ["hotel"]}, {"name": "pay", "after": ["flight"]},
        {"name": "no hotel", "undoes": "hotel", "takes": {"id": {"node": "hotel"}}},
        {"name": "no flight", "undoes": "flight"}, {"name": "no pay", "undoes": "pay"},
    ]  # fmt: skip
    play, key = await start(harness, nodes, {"pay": failed(), "hotel": ok(7), "no flight": failed()})
    await play.all()
    assert play.names == ["hotel", "flight", "pay", "no flight", "no hotel"]
    assert play.seen[-1][1] == {"id": 7}
    assert (await states(harness, key))["no pay"] == "skipped not needed"
    assert await harness.state(key) is State.DEAD


async def test_a_wait_and_a_signal(harness: EngineHarness) -> None:
    nodes: Nodes = [
        {"name": "pause", "wait": {"for": "2h"}},
        {"name": "approve", "signal": {"timeout": "1d"}, "after": ["pause"]},
        {"name": "go", "takes": {"by": {"node": "approve", "path": ["by"]}}},
    ]
    play, key = await start(harness, nodes)
    await play.all()
    await harness.pass_time(7200)
    await harness.ring()
    await play.all()
    assert (await states(harness, key))["approve"] == "queued"
    assert await workflow_commands.send_signal(harness.store, key, "approve", {"by": "ana"}, tenant_id=1)
    await play.all()
    assert play.seen == [("go", {"by": "ana"})]
    assert await harness.state(key) is State.SUCCEEDED
    assert await harness.value("select count(*) from timers") == 0


async def test_a_signal_that_comes_early_is_kept_and_one_that_never_comes_fails(harness: EngineHarness) -> None:
    nodes: Nodes = [{"name": "a"}, {"name": "s", "signal": {"timeout": "1m"}, "after": ["a"]}]
    play, key = await start(harness, nodes)
    await play.step()
    assert not await workflow_commands.send_signal(harness.store, key, "s", 1, tenant_id=1)
    await play.all()
    assert await harness.state(key) is State.SUCCEEDED
    with pytest.raises(Conflict, match="no node waits for that signal any more"):
        await workflow_commands.send_signal(harness.store, key, "s", 1, tenant_id=1)


async def test_a_signal_that_never_comes_fails_or_has_a_default(harness: EngineHarness) -> None:
    nodes: Nodes = [
        {"name": "s", "signal": {"timeout": "5m"}}, {"name": "t", "signal": {"timeout": "5m", "default": {"value": 7}}},
        {"name": "end", "takes": {"x": {"node": "t"}}},
    ]  # fmt: skip
    play, key = await start(harness, nodes)
    await play.all()
    await harness.pass_time(300)
    await harness.ring()
    await play.all()
    assert await states(harness, key) == {"s": "dead", "t": "succeeded", "end": "succeeded"}
    assert play.seen[-1] == ("end", {"x": 7})


async def test_a_workflow_inside_of_another(harness: EngineHarness) -> None:
    inner = {
        "params": {"n": {}},
        "output": "twice",
        "nodes": [{"name": "twice", "task": "greet", "takes": {"n": {"param": "n"}}}],
    }
    nodes: Nodes = [
        {"name": "list"},
        {"name": "subs", "workflow": inner, "over": {"node": "list"}, "takes": {"n": {"item": True}}},
        {"name": "end", "takes": {"all": {"node": "subs"}}},
    ]
    play, key = await start(harness, nodes, {"list": ok([1, 2, 3]), "twice": lambda c: ok(c.spec.kwargs["n"] * 2)})
    await play.all()
    assert play.seen[-1] == ("end", {"all": [2, 4, 6]})
    assert await harness.state(key) is State.SUCCEEDED


async def test_failed_nodes_are_tried_again_with_what_comes_after_them(harness: EngineHarness) -> None:
    nodes: Nodes = [{"name": "a"}, {"name": "b", "after": ["a"]}, {"name": "c", "after": ["b"]}]
    play, key = await start(harness, nodes, {"b": failed()})
    await play.all()
    assert await harness.state(key) is State.DEAD
    play.acts, play.seen = {}, []
    await workflow_commands.retry_nodes(harness.store, key, None, tenant_id=1)
    assert await harness.state(key) is State.RUNNING
    assert await harness.value("select count(*) from dead_letters") == 0
    await play.all()
    assert play.names == ["b", "c"]
    run = await harness.run(key)
    assert (run.state, run.attempt) == (State.SUCCEEDED, 2)
    await workflow_commands.retry_nodes(harness.store, key, [("b", None)], tenant_id=1)
    await play.all()
    assert play.names == ["b", "c", "b", "c"]
    assert await harness.value("select max(attempt) from attempts where slot = 2") == 3


async def test_only_the_elements_that_failed_are_tried_again(harness: EngineHarness) -> None:
    nodes: Nodes = [
        {"name": "m", "over": {"value": [1, 2, 3]}, "takes": {"x": {"item": True}}},
        {"name": "end", "after": ["m"]},
    ]
    play, key = await start(harness, nodes, {"m": lambda c: failed() if c.spec.kwargs["x"] == 2 else ok()})
    await play.all()
    assert await harness.state(key) is State.DEAD
    play.acts, play.seen = {}, []
    await harness.redrive(key)
    await play.all()
    assert play.seen == [("m", {"x": 2}), ("end", {})]
    assert await harness.state(key) is State.SUCCEEDED


async def test_a_node_is_marked(harness: EngineHarness) -> None:
    nodes: Nodes = [{"name": "a"}, {"name": "b", "takes": {"x": {"node": "a"}}}]
    play, key = await start(harness, nodes, {"a": failed()})
    await play.all()
    await workflow_commands.mark_node(
        harness.store, key, ("a", None), State.SUCCEEDED, tenant_id=1, result=5, reason="by hand"
    )
    await play.all()
    assert play.seen[-1] == ("b", {"x": 5})
    assert await harness.state(key) is State.SUCCEEDED


async def test_a_cancel_stops_what_waits_and_asks_what_runs(harness: EngineHarness) -> None:
    nodes: Nodes = [
        {"name": "a"},
        {"name": "b", "after": ["a"]},
        {"name": "w", "wait": {"for": "1d"}},
        {"name": "s", "signal": {}},
    ]
    play, key = await start(harness, nodes)
    await play.step()
    [claimed] = await harness.claim(play.seat)
    assert await harness.cancel(key) is State.RUNNING
    assert await workflow_commands.stop_workflow_runs(harness.store) == 1
    assert await harness.value("select cancel_requested from queue where worker_id is not null")
    assert await harness.state(key) is State.RUNNING
    await harness.end(play.seat, claimed, outcome=Outcome.CANCELLED)
    assert await harness.state(key) is State.CANCELLED
    assert await states(harness, key) == {"a": "cancelled", "b": "skipped stopped", "w": "cancelled", "s": "cancelled"}
    assert await harness.value("select count(*) from queue") + await harness.value("select count(*) from timers") == 0


async def test_a_pause_holds_the_nodes_too(harness: EngineHarness) -> None:
    nodes: Nodes = [{"name": "a"}, {"name": "b", "after": ["a"]}, {"name": "c"}]
    play, key = await start(harness, nodes)
    await play.step()
    [one] = await harness.claim(play.seat, 1)
    await harness.pause(key.job_id)
    await harness.end(play.seat, one)
    assert await harness.claim(play.seat) == []
    await harness.resume(key.job_id)
    await play.all()
    assert await harness.state(key) is State.SUCCEEDED


async def test_a_cycle_is_refused_by_its_name(harness: EngineHarness) -> None:
    with pytest.raises(InvalidInput, match=r"a → b → a|b → a → b"):
        await start(harness, [{"name": "a", "after": ["b"]}, {"name": "b", "after": ["a"]}])


async def test_workflows_that_are_named_are_there_get_what_they_take_and_are_not_too_deep(
    harness: EngineHarness,
) -> None:
    inner = {"params": {"n": {}}, "nodes": [{"name": "x", "task": "greet", "takes": {"n": {"param": "n"}}}]}
    await harness.job("w0", task=WORKFLOW_TASK, workflow=inner)
    for wrong, told in (
        ({"name": "sub", "workflow": "nowhere"}, "there is no workflow 'nowhere'"),
        ({"name": "sub", "workflow": "w0"}, "the required param 'n' is missing"),
        ({"name": "sub", "workflow": "w0", "kwargs": {"n": 1, "m": 2}}, "no param 'm'"),
    ):
        with pytest.raises(InvalidInput, match=told):
            await harness.job("outer", task=WORKFLOW_TASK, workflow={"nodes": [wrong]})
    await harness.job(
        "w1", task=WORKFLOW_TASK, workflow={"nodes": [{"name": "sub", "workflow": "w0", "kwargs": {"n": 1}}]}
    )
    for depth in range(2, 6):
        await harness.job(
            f"w{depth}", task=WORKFLOW_TASK, workflow={"nodes": [{"name": "sub", "workflow": f"w{depth - 1}"}]}
        )
    with pytest.raises(InvalidInput, match="deeper than 5") as refused:
        await harness.job("w6", task=WORKFLOW_TASK, workflow={"nodes": [{"name": "sub", "workflow": "w5"}]})
    assert refused.value.pointer.startswith("/workflow/nodes/0/workflow")


async def test_a_signal_may_come_before_the_run_is_opened(harness: EngineHarness) -> None:
    play, key = await start(harness, [{"name": "s", "signal": {}}, {"name": "end", "takes": {"x": {"node": "s"}}}])
    assert not await workflow_commands.send_signal(harness.store, key, "s", 7, tenant_id=1)
    with pytest.raises(NotFound, match="no signal 'other'"):
        await workflow_commands.send_signal(harness.store, key, "other", 7, tenant_id=1)
    await play.all()
    assert play.seen == [("end", {"x": 7})]
    other = await harness.trigger(key.job_id)
    assert not await workflow_commands.send_signal(harness.store, other, "s", 7, tenant_id=1)
    await harness.cancel(other)
    assert await harness.value("select count(*) from signals") == 0


async def test_what_was_marked_keeps_what_has_succeeded_after_it(harness: EngineHarness) -> None:
    nodes: Nodes = [{"name": "a"}, {"name": "b", "after": ["a"]}, {"name": "clean", "after": ["b"], "when": "all_done"}]
    play, key = await start(harness, nodes, {"a": failed()})
    await play.all()
    assert (await states(harness, key))["clean"] == "succeeded"
    play.seen = []
    await workflow_commands.mark_node(harness.store, key, ("a", None), State.SUCCEEDED, tenant_id=1, reason="by hand")
    await play.all()
    assert play.names == ["b"]
    assert await harness.state(key) is State.SUCCEEDED


async def test_an_opening_that_is_lost_is_done_again(harness: EngineHarness) -> None:
    play, key = await start(harness, [{"name": "a"}])
    for _ in range(4):
        assert len(await harness.claim(play.seat)) == 1
        await harness.silence_worker(play.seat)
        assert await reap.reap(harness.store, harness.catalog) == 1
        play.seat = await harness.join_worker("greet", WORKFLOW_TASK, WAIT_TASK, SIGNAL_TASK)
    await play.all()
    assert await harness.state(key) is State.SUCCEEDED


async def test_large_params_and_many_results_go_by_reference(harness: EngineHarness) -> None:
    text = "".join(hashlib.sha256(str(n).encode()).hexdigest() for n in range(1_000))
    nodes: Nodes = [
        {"name": "m", "over": {"value": list(range(20))}, "takes": {"x": {"item": True}}},
        {"name": "end", "takes": {"p": {"param": "p"}, "xs": {"node": "m"}}},
    ]
    play, _ = await start(harness, nodes, {"m": ok(text[:1000])}, params={"p": {"default": {"value": text}}})
    await play.step()
    await play.step()
    [spec] = [json.loads(row[0]) for row in await harness.sql("select spec from queue where blocked = 0")]
    assert spec["refs"].keys() == {"p", "xs"}
    await play.all()
    assert play.seen[-1] == ("end", {"p": text, "xs": [text[:1000]] * 20})


async def test_a_workflow_is_paused_after_dead_runs_in_a_row(harness: EngineHarness) -> None:
    seat = await harness.join_worker("greet", WORKFLOW_TASK, WAIT_TASK, SIGNAL_TASK)
    document = {"nodes": [{"name": "only", "task": "greet"}]}
    job_id = await harness.job("flow", task=WORKFLOW_TASK, workflow=document, pause_after_failures=2)
    for acts in ({"only": failed()}, {}, {"only": failed()}, {"only": failed()}):
        assert (await harness.read(job_id)).paused_at is None
        await harness.trigger(job_id)
        await Play(harness, seat, acts).all()
    job = await harness.read(job_id)
    assert (job.paused_by, job.paused_reason) == ("system", "the last 2 runs died")


async def test_an_open_workflow_run_does_not_expire(harness: EngineHarness) -> None:
    seat = await harness.join_worker("greet", WORKFLOW_TASK, WAIT_TASK, SIGNAL_TASK)
    document = {"nodes": [{"name": "only", "task": "greet"}]}
    job_id = await harness.job("flow", task=WORKFLOW_TASK, workflow=document, expires_in=timedelta(seconds=10))
    opened = await harness.trigger(job_id)
    await Play(harness, seat, {}).step()
    late = await harness.trigger(job_id)
    await harness.pass_time(60)
    assert (await queue.expire_runs(harness.store, 10)).skipped == 1
    assert await harness.state(late) is State.SKIPPED
    await Play(harness, seat, {}).all()
    assert await harness.state(opened) is State.SUCCEEDED
