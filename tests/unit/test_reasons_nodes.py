"""Reasons of nodes: what one waits for, by what it was passed over, and how far a workflow run is."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from bellringer.reasons import (
    Before,
    Flow,
    Member,
    Node,
    Pause,
    Reason,
    Room,
    of_its_run,
    part_of,
    reasons_for_flow,
    reasons_for_node,
)

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
FLOW = Flow(run_id="run_1", job=Member(name="etl"))
PAUSED = replace(FLOW, job=Member(name="etl", pause=Pause(at=NOW - HOUR, by="ada")))
A = Before(name="a", state="running", since=NOW - HOUR)
B = Before(name="b", state="succeeded")

CASES: dict[str, tuple[Node, str, str, str]] = {
    "one before it": (
        Node(name="x", state="blocked", before=(A, B)),
        "waits_for_node",
        "it waits for a (running since 2026-11-16 11:00Z, 1h ago)",
        "bellringer why run_1 --node a",
    ),
    "room of the workflow run": (
        Node(name="x", state="queued", room=Room(20, 20)),
        "waits_for_room",
        "it waits for room: 20 of the 20 node runs of run_1 that may be under way at once are",
        "",
    ),
    "room of its map": (
        Node(name="x[7]", state="blocked", of="x", place=7, room=Room(3, 3)),
        "waits_for_room",
        "it waits for room: 3 of the 3 elements of x that may be under way at once are",
        "",
    ),
    "room that has just come": (
        Node(name="x", state="queued", room=Room(20, 19)),
        "ready",
        "it is ready, and starts in a moment",
        "",
    ),
    "a signal": (
        Node(name="ok", kind="signal", state="waiting", signal="go on", until=NOW + HOUR),
        "waits_for_signal",
        "it waits for the signal go on until 2026-11-16 13:00Z, in 1h",
        "bellringer workflows signal run_1 'go on'",
    ),
    "a signal without end": (
        Node(name="ok", kind="signal", state="waiting", signal="ok"),
        "waits_for_signal",
        "it waits for the signal ok, however long that takes",
        "bellringer workflows signal run_1 ok",
    ),
    "a time": (
        Node(name="pause", kind="wait", state="waiting", until=NOW + HOUR),
        "waits_until",
        "it waits until 2026-11-16 13:00Z, in 1h",
        "",
    ),
    "to take something back": (
        Node(name="x", state="blocked", undoes="hotel"),
        "waits_to_undo",
        "it takes back what hotel does, if the workflow run fails or is cancelled after that",
        "",
    ),
    "a map under way": (
        Node(name="m", state="running", size=240, ended=3, broken=1, room=Room(20, 0)),
        "map_under_way",
        "3 of its 240 elements have ended, 1 of them not well; 20 may be under way at once",
        "",
    ),
    "a failure before it": (
        Node(name="x", state="skipped", reason="upstream", before=(replace(A, state="dead"), B)),
        "skipped_upstream",
        "it was skipped: before it, a (dead) failed",
        "bellringer workflows retry run_1 a",
    ),
    "a failure farther before it": (
        Node(name="x", state="skipped", reason="upstream", before=(replace(A, state="skipped", reason="upstream"),)),
        "skipped_upstream",
        "it was skipped: before it, a (skipped) failed",
        "bellringer why run_1 --node a",
    ),
    "a branch": (
        Node(name="x", state="skipped", reason="condition", before=(replace(B, equals='"left"', is_met=False),)),
        "skipped_condition",
        'it was skipped: b did not return "left"',
        "",
    ),
    "nothing to mend": (
        Node(name="x", state="skipped", reason="condition", rule="one_failed", before=(B,)),
        "skipped_condition",
        "it was skipped: it is for a failure, and no node before it has failed",
        "",
    ),
    "not needed": (
        Node(name="x", state="skipped", reason="not needed", undoes="hotel"),
        "not_needed",
        "it was skipped: hotel is not to be taken back",
        "",
    ),
    "a map that failed": (
        Node(name="m", state="dead", size=240, broken=4, finished_at=NOW - HOUR),
        "ended",
        "it gave up 1h ago: 4 of its 240 elements did not go well",
        "bellringer workflows retry run_1 m",
    ),
    "a map that could not be opened": (
        Node(name="m", state="dead", size=0, reason="what it maps over is no list"),
        "ended",
        "it gave up: what it maps over is no list",
        "bellringer workflows retry run_1 m",
    ),
    "a map that went well": (
        Node(name="m", state="succeeded", size=2, finished_at=NOW - HOUR),
        "ended",
        "it succeeded 1h ago, with 2 elements",
        "",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_decisive_reason_of_a_node(case: str) -> None:
    node, code, text, fix = CASES[case]
    first = reasons_for_node(FLOW, node, NOW)[0]
    assert (first.code, first.text, first.fix) == (code, text, fix)


def test_a_pause_and_a_stop_come_before_what_a_node_waits_for() -> None:
    node = Node(name="x", state="blocked", before=(A,))
    assert [r.code for r in reasons_for_node(PAUSED, node, NOW)] == ["job_paused", "waits_for_node"]
    stopped = replace(FLOW, stopped="it was cancelled")
    assert [r.code for r in reasons_for_node(stopped, node, NOW)] == ["stopping", "waits_for_node"]
    undoing = replace(stopped, undoing=True)  # what is taken back is taken back to the end
    assert [r.code for r in reasons_for_node(undoing, node, NOW)] == ["waits_for_node"]


def test_many_before_it_are_counted() -> None:
    node = Node(name="x", state="blocked", before=tuple(replace(A, name=f"a{n}") for n in range(7)))
    found = reasons_for_node(FLOW, node, NOW)
    assert [r.code for r in found] == ["waits_for_node"] * 3 + ["waits_for_nodes"]
    assert found[-1].text == "it waits for 4 more nodes"


def test_how_far_a_workflow_run_is() -> None:
    flow = replace(
        FLOW,
        nodes=(
            Node(name="extract", state="succeeded"),
            Node(name="m", state="running", size=9, ended=5),
            *(Node(name=f"n{n}", state="running", since=NOW - HOUR * n) for n in range(5)),
            Node(name="load", state="queued"),
            Node(name="approve", kind="signal", state="waiting", signal="approve"),
            Node(name="undo", state="blocked", undoes="extract"),
        ),
        elements=(Node(name="m[7]", state="running", of="m", place=7, since=NOW),),
    )
    [told] = reasons_for_flow(flow, NOW)
    assert told.holds is False
    assert told.text.split("; ") == [
        "its nodes are under way: 1 of 9 have ended",
        "running: n4 since 2026-11-16 08:00Z, n3 since 2026-11-16 09:00Z, n2 since 2026-11-16 10:00Z and 2 more",
        "m: 5 of its 9 elements have ended, m[7] since 2026-11-16 12:00Z running",
        "queued: load",
        "waits for the signal approve",
    ]
    assert [r.code for r in reasons_for_flow(replace(flow, undoing=True), NOW)] == ["nodes_under_way", "undoing"]


def test_the_failed_run_of_a_node_is_mended_as_a_node() -> None:
    dead, fine = Reason("ended", holds=True, text="it gave up"), Reason("staffed", holds="ok", text="…")
    assert of_its_run([dead, fine], "run_1", "t[3]") == [
        replace(dead, fix="bellringer workflows retry run_1 't[3]'"),
        fine,
    ]
    assert part_of("run_1", "etl", "t[3]").text == "it is the node t[3] of the workflow run run_1 of etl"
    assert part_of("run_1", None, "a").text == "it is the node a of the workflow run run_1"
