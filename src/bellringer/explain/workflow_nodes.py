"""Explains the nodes of a workflow run: why a node has not started or was skipped, and the overall progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from shlex import quote

from bellringer.explain.facts import Dependency, ExplainReason, NodeFacts, WorkflowFacts
from bellringer.explain.text import (
    blocking_reason,
    format_count,
    format_instant,
    format_relative,
    info_reason,
    pause_reason,
    shorten,
    sort_reasons,
)

MAX_NODES_NAMED = 3  # nodes that a reason names
ENDED_STATES = frozenset({"succeeded", "dead", "cancelled", "skipped"})
FAILED_STATES = frozenset({"dead", "cancelled"})


def explain_workflow_run(flow: WorkflowFacts, now: datetime) -> list[ExplainReason]:
    """Describes the progress of a workflow run."""
    counting = [node for node in flow.nodes if node.undoes is None]
    ended = sum(node.state in ENDED_STATES for node in counting)
    parts = [f"the workflow is running: {ended:,} of {len(counting):,} nodes have ended"]
    alone = [node for node in flow.nodes if node.size is None]
    running = sorted((n for n in alone if n.state == "running"), key=lambda n: n.since or now)
    parts += _describe_several("running", [f"{n.name}{_format_since(n)}" for n in running])
    parts += [f"{n.name}: {_describe_elements(flow, n)}" for n in flow.nodes if n.size and n.state == "running"][
        :MAX_NODES_NAMED
    ]
    parts += _describe_several("retrying", [n.name for n in alone if n.state == "retrying"])
    parts += _describe_several("queued", [n.name for n in alone if n.state == "queued"])
    parts += [_describe_wait(n, now) for n in alone if n.state == "waiting"][:MAX_NODES_NAMED]
    found = [*_stopping_reasons(flow), *_pause_reasons(flow, now)]
    found.append(info_reason("nodes_under_way", "; ".join(parts)))
    if flow.undoing:
        found.append(info_reason("undoing", "the workflow run has failed, and its undo nodes are running"))
    return sort_reasons(found)


def explain_node(flow: WorkflowFacts, node: NodeFacts, now: datetime) -> list[ExplainReason]:
    """Explains why a node has not started, or how it ended, if the node has no run of its own that could be
    explained.
    """
    if node.state == "skipped":
        return [_skipped_reason(flow, node)]
    if node.state in ENDED_STATES:
        return [_ended_reason(flow, node, now)]
    if node.state == "waiting":
        return sort_reasons([*_pause_reasons(flow, now), _waiting_reason(flow, node, now)])
    if node.size is not None:
        return sort_reasons([*_stopping_reasons(flow), *_pause_reasons(flow, now), _map_reason(flow, node)])
    found = [*_stopping_reasons(flow), *_pause_reasons(flow, now)]
    if node.state == "queued":
        return sort_reasons([*found, _no_room_reason(flow, node)])
    return sort_reasons([*found, *_blocked_reasons(flow, node, now)])


def with_node_retry(found: Sequence[ExplainReason], flow_run: str, node: str) -> list[ExplainReason]:
    """Replaces the fix of a failed run by the command that retries it as a node, together with the nodes after it."""
    return [
        replace(reason, fix=_retry_command(flow_run, node))
        if reason.code == "ended" and reason.holds is True
        else reason
        for reason in found
    ]


def node_of_reason(flow_run: str, job: str | None, node: str) -> ExplainReason:
    """States which node of which workflow run this run is."""
    whose = f" of {job}" if job else ""
    return info_reason("node_of", f"this is node {node} of the workflow run {flow_run}{whose}")


# A node that waits


def _blocked_reasons(flow: WorkflowFacts, node: NodeFacts, now: datetime) -> list[ExplainReason]:
    if node.undoes is not None:
        text = f"the node undoes {node.undoes}: it runs only if the workflow run fails or is cancelled after that node"
        return [blocking_reason("waits_to_undo", text)]
    if node.place is not None:
        return [_no_room_reason(flow, node)]
    waited = [before for before in node.before if before.state not in ENDED_STATES]
    found = [_waits_for_reason(flow, before, now) for before in waited[:MAX_NODES_NAMED]]
    if len(waited) > MAX_NODES_NAMED:
        found.append(
            blocking_reason(
                "waits_for_nodes", f"the node waits for {format_count(len(waited) - MAX_NODES_NAMED, 'more node')}"
            )
        )
    if node.rule == "one_failed" and waited:
        found.append(
            info_reason("rule", "the node runs as soon as one of its parents has failed, and is skipped if none fails")
        )
    return found


def _waits_for_reason(flow: WorkflowFacts, before: Dependency, now: datetime) -> ExplainReason:
    since = (
        f" since {format_instant(before.since)}, {format_relative(before.since, now)}"
        if before.since is not None
        else ""
    )
    text = f"the node waits for {before.name} ({before.state}{since})"
    return blocking_reason("waits_for_node", text, _why_command(flow, before.name))


def _no_room_reason(flow: WorkflowFacts, node: NodeFacts) -> ExplainReason:
    room = node.room
    if room is None or room.taken < room.most:
        return info_reason("ready", "the node is ready and starts shortly")
    whose = f"elements of {node.of}" if node.state == "blocked" else f"node runs of {flow.run_id}"
    text = f"the node waits for a slot: {room.taken:,} of at most {room.most:,} {whose} are running"
    return blocking_reason("waits_for_room", text)


def _waiting_reason(flow: WorkflowFacts, node: NodeFacts, now: datetime) -> ExplainReason:
    if node.signal is None:
        until = _format_until(node, now) or " for its time"
        return blocking_reason("waits_until", f"the node waits{until}")
    until = f"{_format_until(node, now)}" if node.until is not None else ", without a timeout"
    fix = f"bellringer workflows signal {flow.run_id} {quote(node.signal)}"
    return blocking_reason("waits_for_signal", f"the node waits for the signal {node.signal}{until}", fix)


def _map_reason(flow: WorkflowFacts, node: NodeFacts) -> ExplainReason:
    most = "" if node.room is None else f"; at most {node.room.most:,} run at once"
    return info_reason("map_under_way", f"{_describe_elements(flow, node)}{most}")


def _describe_elements(flow: WorkflowFacts, node: NodeFacts) -> str:
    parts = [f"{node.ended:,} of its {format_count(node.size or 0, 'element')} have ended"]
    if node.elements_failed:
        parts.append(f"{node.elements_failed:,} of them failed")
    named = [f"{n.name}{_format_since(n)}" for n in flow.elements if n.of == node.name]
    if named:
        parts.append(
            f"{', '.join(named[:MAX_NODES_NAMED])}{' and others' if len(named) > MAX_NODES_NAMED else ''} running"
        )
    return ", ".join(parts)


# A node that has ended


def _ended_reason(flow: WorkflowFacts, node: NodeFacts, now: datetime) -> ExplainReason:
    when = "" if node.finished_at is None else f" {format_relative(node.finished_at, now)}"
    if node.state == "succeeded":
        of = "" if node.size is None else f", with {format_count(node.size, 'element')}"
        return info_reason("ended", f"the node succeeded{when}{of}")
    elements_failed = (
        f"{node.elements_failed:,} of its {format_count(node.size, 'element')} failed" if node.size else ""
    )
    because = node.reason or elements_failed
    verb = "the node failed" if node.state == "dead" else f"the node was {node.state}"
    return blocking_reason(
        "ended", f"{verb}{when}{f': {shorten(because)}' if because else ''}", _retry_command(flow.run_id, node.name)
    )


def _skipped_reason(flow: WorkflowFacts, node: NodeFacts) -> ExplainReason:
    if node.reason == "stopped":
        return blocking_reason(
            "skipped_stopped",
            f"the node was skipped: the workflow run was stopped ({flow.stopped or 'no reason is recorded'})",
        )
    if node.reason == "not needed":
        return info_reason(
            "not_needed", f"the node was skipped: {node.undoes or 'the node that it undoes'} does not have to be undone"
        )
    if node.reason == "upstream":
        failed = [b for b in node.before if b.state in FAILED_STATES]
        passed_on = [b for b in node.before if b.state == "skipped" and b.reason in {"upstream", "stopped"}]
        names = _list_names([f"{b.name} ({b.state})" for b in failed or passed_on])
        fix = (
            _retry_command(flow.run_id, failed[0].name)
            if failed
            else _why_command(flow, passed_on[0].name)
            if passed_on
            else ""
        )
        return blocking_reason("skipped_upstream", f"the node was skipped: its parent {names or 'node'} failed", fix)
    return blocking_reason("skipped_condition", f"the node was skipped: {_describe_condition(node)}")


def _describe_condition(node: NodeFacts) -> str:
    if node.rule == "one_failed":
        return "it runs only after a failure, and none of its parents failed"
    unmet = [b for b in node.before if b.state == "succeeded" and b.equals is not None and not b.is_met]
    shown = [f"{b.name} did not return {shorten(b.equals or '')}" for b in unmet[:MAX_NODES_NAMED]]
    passed = [b.name for b in node.before if b.state == "skipped"]
    if passed:
        shown.append(f"{_list_names(passed)} {'was' if len(passed) == 1 else 'were'} skipped")
    return " and ".join(shown) or "its condition was not met"


# Words


def _stopping_reasons(flow: WorkflowFacts) -> list[ExplainReason]:
    if flow.stopped is None or flow.undoing:
        return []
    return [
        blocking_reason("stopping", f"the workflow run is stopping ({shorten(flow.stopped)}): no further node starts")
    ]


def _pause_reasons(flow: WorkflowFacts, now: datetime) -> list[ExplainReason]:
    return [pause_reason(flow.job, now)] if flow.job is not None and flow.job.pause is not None else []


def _describe_wait(node: NodeFacts, now: datetime) -> str:
    what = f"for the signal {node.signal}" if node.signal is not None else f"in {node.name}"
    return f"waits {what}{_format_until(node, now)}"


def _format_until(node: NodeFacts, now: datetime) -> str:
    return "" if node.until is None else f" until {format_instant(node.until)}, {format_relative(node.until, now)}"


def _format_since(node: NodeFacts) -> str:
    return "" if node.since is None else f" since {format_instant(node.since)}"


def _describe_several(what: str, names: Sequence[str]) -> list[str]:
    return [f"{what}: {_list_names(names)}"] if names else []


def _list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NODES_NAMED:,} more" if len(names) > MAX_NODES_NAMED else ""
    return ", ".join(names[:MAX_NODES_NAMED]) + more


def _why_command(flow: WorkflowFacts, node: str) -> str:
    return f"bellringer why {flow.run_id} --node {quote(node)}"


def _retry_command(flow_run: str, node: str) -> str:
    return f"bellringer workflows retry {flow_run} {quote(node)}"
