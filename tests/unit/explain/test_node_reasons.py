"""Reasons of nodes: what one waits for, by what it was passed over, and how far a workflow run is."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from bellringer.explain import (
    Capacity,
    Dependency,
    ExplainReason,
    JobFacts,
    NodeFacts,
    PauseFacts,
    WorkflowFacts,
    explain_node,
    explain_workflow_run,
    node_of_reason,
    with_node_retry,
)

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
FLOW = WorkflowFacts(run_id="run_1", job=JobFacts(name="etl"))
PAUSED = replace(FLOW, job=JobFacts(name="etl", pause=PauseFacts(at=NOW - HOUR, by="ada")))
A = Dependency(name="a", state="running", since=NOW - HOUR)
B = Dependency(name="b", state="succeeded")

CASES: dict[str, tuple[NodeFacts, str, str, str]] = {
    "one before it": (
        NodeFacts(name="x", state="blocked", before=(A, B)),
        "waits_for_node",
        "the node waits for a (running since 2026-11-16 11:00Z, 1h ago)",
        "bellringer why run_1 --node a",
    ),
    "room of the workflow run": (
        NodeFacts(name="x", state="queued", room=Capacity(20, 20)),
        "waits_for_room",
        "the node waits for a slot: 20 of at most 20 node runs of run_1 are running",
        "",
    ),
    "room of its map": (
        NodeFacts(name="x[7]", state="blocked", of="x", place=7, room=Capacity(3, 3)),
        "waits_for_room",
        "the node waits for a slot: 3 of at most 3 elements of x are running",
        "",
    ),
    "room that has just come": (
        NodeFacts(name="x", state="queued", room=Capacity(20, 19)),
        "ready",
        "the node is ready and starts shortly",
        "",
    ),
    "a signal": (
        NodeFacts(name="ok", kind="signal", state="waiting", signal="go on", until=NOW + HOUR),
        "waits_for_signal",
        "the node waits for the signal go on until 2026-11-16 13:00Z, in 1h",
        "bellringer workflows signal run_1 'go on'",
    ),
    "a signal without end": (
        NodeFacts(name="ok", kind="signal", state="waiting", signal="ok"),
        "waits_for_signal",
        "the node waits for the signal ok, without a timeout",
        "bellringer workflows signal run_1 ok",
    ),
    "a time": (
        NodeFacts(name="pause", kind="wait", state="waiting", until=NOW + HOUR),
        "waits_until",
        "the node waits until 2026-11-16 13:00Z, in 1h",
        "",
    ),
    "to take something back": (
        NodeFacts(name="x", state="blocked", undoes="hotel"),
        "waits_to_undo",
        "the node undoes hotel: it runs only if the workflow run fails or is cancelled after that node",
        "",
    ),
    "a map under way": (
        NodeFacts(name="m", state="running", size=240, ended=3, elements_failed=1, room=Capacity(20, 0)),
        "map_under_way",
        "3 of its 240 elements have ended, 1 of them failed; at most 20 run at once",
        "",
    ),
    "a failure before it": (
        NodeFacts(name="x", state="skipped", reason="upstream", before=(replace(A, state="dead"), B)),
        "skipped_upstream",
        "the node was skipped: its parent a (dead) failed",
        "bellringer workflows retry run_1 a",
    ),
    "a failure farther before it": (
        NodeFacts(
            name="x", state="skipped", reason="upstream", before=(replace(A, state="skipped", reason="upstream"),)
        ),
        "skipped_upstream",
        "the node was skipped: its parent a (skipped) failed",
        "bellringer why run_1 --node a",
    ),
    "a branch": (
        NodeFacts(name="x", state="skipped", reason="condition", before=(replace(B, equals='"left"', is_met=False),)),
        "skipped_condition",
        'the node was skipped: b did not return "left"',
        "",
    ),
    "nothing to mend": (
        NodeFacts(name="x", state="skipped", reason="condition", rule="one_failed", before=(B,)),
        "skipped_condition",
        "the node was skipped: it runs only after a failure, and none of its parents failed",
        "",
    ),
    "not needed": (
        NodeFacts(name="x", state="skipped", reason="not needed", undoes="hotel"),
        "not_needed",
        "the node was skipped: hotel does not have to be undone",
        "",
    ),
    "a map that failed": (
        NodeFacts(name="m", state="dead", size=240, elements_failed=4, finished_at=NOW - HOUR),
        "ended",
        "the node failed 1h ago: 4 of its 240 elements failed",
        "bellringer workflows retry run_1 m",
    ),
    "a map that could not be opened": (
        NodeFacts(name="m", state="dead", size=0, reason="the value to map over is not a list"),
        "ended",
        "the node failed: the value to map over is not a list",
        "bellringer workflows retry run_1 m",
    ),
    "a map that went well": (
        NodeFacts(name="m", state="succeeded", size=2, finished_at=NOW - HOUR),
        "ended",
        "the node succeeded 1h ago, with 2 elements",
        "",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_decisive_reason_of_a_node(case: str) -> None:
    node, code, text, fix = CASES[case]
    first = explain_node(FLOW, node, NOW)[0]
    assert (first.code, first.text, first.fix) == (code, text, fix)


def test_a_pause_and_a_stop_come_before_what_a_node_waits_for() -> None:
    node = NodeFacts(name="x", state="blocked", before=(A,))
    assert [r.code for r in explain_node(PAUSED, node, NOW)] == ["job_paused", "waits_for_node"]
    stopped = replace(FLOW, stopped="it was cancelled")
    assert [r.code for r in explain_node(stopped, node, NOW)] == ["stopping", "waits_for_node"]
    undoing = replace(stopped, undoing=True)  # what is taken back is taken back to the end
    assert [r.code for r in explain_node(undoing, node, NOW)] == ["waits_for_node"]


def test_many_before_it_are_counted() -> None:
    node = NodeFacts(name="x", state="blocked", before=tuple(replace(A, name=f"a{n}") for n in range(7)))
    found = explain_node(FLOW, node, NOW)
    assert [r.code for r in found] == ["waits_for_node"] * 3 + ["waits_for_nodes"]
    assert found[-1].text == "the node waits for 4 more nodes"


def test_how_far_a_workflow_run_is() -> None:
    flow = replace(
        FLOW,
        nodes=(
            NodeFacts(name="extract", state="succeeded"),
            NodeFacts(name="m", state="running", size=9, ended=5),
            *(NodeFacts(name=f"n{n}", state="running", since=NOW - HOUR * n) for n in range(5)),
            NodeFacts(name="load", state="queued"),
            NodeFacts(name="approve", kind="signal", state="waiting", signal="approve"),
            NodeFacts(name="undo", state="blocked", undoes="extract"),
        ),
        elements=(NodeFacts(name="m[7]", state="running", of="m", place=7, since=NOW),),
    )
    [told] = explain_workflow_run(flow, NOW)
    assert told.holds is False
    assert told.text.split("; ") == [
        "the workflow is running: 1 of 9 nodes have ended",
        "running: n4 since 2026-11-16 08:00Z, n3 since 2026-11-16 09:00Z, n2 since 2026-11-16 10:00Z and 2 more",
        "m: 5 of its 9 elements have ended, m[7] since 2026-11-16 12:00Z running",
        "queued: load",
        "waits for the signal approve",
    ]
    assert [r.code for r in explain_workflow_run(replace(flow, undoing=True), NOW)] == ["nodes_under_way", "undoing"]


def test_the_failed_run_of_a_node_is_repaired_as_a_node() -> None:
    dead, fine = ExplainReason("ended", holds=True, text="it gave up"), ExplainReason("staffed", holds="ok", text="…")
    assert with_node_retry([dead, fine], "run_1", "t[3]") == [
        replace(dead, fix="bellringer workflows retry run_1 't[3]'"),
        fine,
    ]
    assert node_of_reason("run_1", "etl", "t[3]").text == "this is node t[3] of the workflow run run_1 of etl"
    assert node_of_reason("run_1", None, "a").text == "this is node a of the workflow run run_1"
