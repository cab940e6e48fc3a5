"""Why a node of a workflow run has not started or was passed over, and how far a workflow run is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from shlex import quote

from bellringer.reasons.facts import Before, Flow, Node, Reason
from bellringer.reasons.words import counted, from_now, holds, ordered, paused, short, shown, tells

NAMED = 3  # nodes that a reason tells of by name
ENDED = frozenset({"succeeded", "dead", "cancelled", "skipped"})
FAILED = frozenset({"dead", "cancelled"})


def reasons_for_flow(flow: Flow, now: datetime) -> list[Reason]:
    """How far a workflow run is whose nodes are under way."""
    counting = [node for node in flow.nodes if node.undoes is None]
    ended = sum(node.state in ENDED for node in counting)
    parts = [f"its nodes are under way: {ended:,} of {len(counting):,} have ended"]
    alone = [node for node in flow.nodes if node.size is None]
    running = sorted((n for n in alone if n.state == "running"), key=lambda n: n.since or now)
    parts += _several("running", [f"{n.name}{_since(n)}" for n in running])
    parts += [f"{n.name}: {_elements(flow, n)}" for n in flow.nodes if n.size and n.state == "running"][:NAMED]
    parts += _several("retrying", [n.name for n in alone if n.state == "retrying"])
    parts += _several("queued", [n.name for n in alone if n.state == "queued"])
    parts += [_waited_for(n, now) for n in alone if n.state == "waiting"][:NAMED]
    found = [*_stopping(flow), *_pause(flow, now)]
    found.append(tells("nodes_under_way", "; ".join(parts)))
    if flow.undoing:
        found.append(tells("undoing", "it has failed, and what its nodes had done is taken back"))
    return ordered(found)


def reasons_for_node(flow: Flow, node: Node, now: datetime) -> list[Reason]:
    """Why a node does not start, or has ended, where it has no run that could say so itself."""
    if node.state == "skipped":
        return [_skipped(flow, node)]
    if node.state in ENDED:
        return [_ended(flow, node, now)]
    if node.state == "waiting":
        return ordered([*_pause(flow, now), _waits(flow, node, now)])
    if node.size is not None:
        return ordered([*_stopping(flow), *_pause(flow, now), _map(flow, node)])
    found = [*_stopping(flow), *_pause(flow, now)]
    if node.state == "queued":
        return ordered([*found, _no_room(flow, node)])
    return ordered([*found, *_blocked(flow, node, now)])


def of_its_run(found: Sequence[Reason], flow_run: str, node: str) -> list[Reason]:
    """The reasons of a node's run: one that has failed is tried again as a node, with what comes after it."""
    return [
        replace(reason, fix=_retry(flow_run, node)) if reason.code == "ended" and reason.holds is True else reason
        for reason in found
    ]


def part_of(flow_run: str, job: str | None, node: str) -> Reason:
    """What a run is that is one of a node."""
    whose = f" of {job}" if job else ""
    return tells("node_of", f"it is the node {node} of the workflow run {flow_run}{whose}")


# A node that waits


def _blocked(flow: Flow, node: Node, now: datetime) -> list[Reason]:
    if node.undoes is not None:
        text = f"it takes back what {node.undoes} does, if the workflow run fails or is cancelled after that"
        return [holds("waits_to_undo", text)]
    if node.place is not None:
        return [_no_room(flow, node)]
    waited = [before for before in node.before if before.state not in ENDED]
    found = [_waits_for(flow, before, now) for before in waited[:NAMED]]
    if len(waited) > NAMED:
        found.append(holds("waits_for_nodes", f"it waits for {counted(len(waited) - NAMED, 'more node')}"))
    if node.rule == "one_failed" and waited:
        found.append(tells("rule", "it runs as soon as one node before it has failed, and is skipped if none does"))
    return found


def _waits_for(flow: Flow, before: Before, now: datetime) -> Reason:
    since = f" since {shown(before.since)}, {from_now(before.since, now)}" if before.since is not None else ""
    text = f"it waits for {before.name} ({before.state}{since})"
    return holds("waits_for_node", text, _why(flow, before.name))


def _no_room(flow: Flow, node: Node) -> Reason:
    room = node.room
    if room is None or room.taken < room.most:
        return tells("ready", "it is ready, and starts in a moment")
    whose = f"elements of {node.of}" if node.state == "blocked" else f"node runs of {flow.run_id}"
    text = f"it waits for room: {room.taken:,} of the {room.most:,} {whose} that may be under way at once are"
    return holds("waits_for_room", text)


def _waits(flow: Flow, node: Node, now: datetime) -> Reason:
    if node.signal is None:
        until = _until(node, now) or " for its time"
        return holds("waits_until", f"it waits{until}")
    until = f"{_until(node, now)}" if node.until is not None else ", however long that takes"
    fix = f"bellringer workflows signal {flow.run_id} {quote(node.signal)}"
    return holds("waits_for_signal", f"it waits for the signal {node.signal}{until}", fix)


def _map(flow: Flow, node: Node) -> Reason:
    most = "" if node.room is None else f"; {node.room.most:,} may be under way at once"
    return tells("map_under_way", f"{_elements(flow, node)}{most}")


def _elements(flow: Flow, node: Node) -> str:
    parts = [f"{node.ended:,} of its {counted(node.size or 0, 'element')} have ended"]
    if node.broken:
        parts.append(f"{node.broken:,} of them not well")
    named = [f"{n.name}{_since(n)}" for n in flow.elements if n.of == node.name]
    if named:
        parts.append(f"{', '.join(named[:NAMED])}{' and others' if len(named) > NAMED else ''} running")
    return ", ".join(parts)


# A node that has ended


def _ended(flow: Flow, node: Node, now: datetime) -> Reason:
    when = "" if node.finished_at is None else f" {from_now(node.finished_at, now)}"
    if node.state == "succeeded":
        of = "" if node.size is None else f", with {counted(node.size, 'element')}"
        return tells("ended", f"it succeeded{when}{of}")
    broken = f"{node.broken:,} of its {counted(node.size, 'element')} did not go well" if node.size else ""
    because = node.reason or broken
    verb = "it gave up" if node.state == "dead" else f"it was {node.state}"
    return holds("ended", f"{verb}{when}{f': {short(because)}' if because else ''}", _retry(flow.run_id, node.name))


def _skipped(flow: Flow, node: Node) -> Reason:
    if node.reason == "stopped":
        return holds("skipped_stopped", f"it was skipped: the workflow run was stopped ({flow.stopped or 'since'})")
    if node.reason == "not needed":
        return tells("not_needed", f"it was skipped: {node.undoes or 'what it takes back'} is not to be taken back")
    if node.reason == "upstream":
        failed = [b for b in node.before if b.state in FAILED]
        passed_on = [b for b in node.before if b.state == "skipped" and b.reason in {"upstream", "stopped"}]
        names = _named([f"{b.name} ({b.state})" for b in failed or passed_on])
        fix = _retry(flow.run_id, failed[0].name) if failed else _why(flow, passed_on[0].name) if passed_on else ""
        return holds("skipped_upstream", f"it was skipped: before it, {names or 'a node'} failed", fix)
    return holds("skipped_condition", f"it was skipped: {_condition(node)}")


def _condition(node: Node) -> str:
    if node.rule == "one_failed":
        return "it is for a failure, and no node before it has failed"
    unmet = [b for b in node.before if b.state == "succeeded" and b.equals is not None and not b.is_met]
    told = [f"{b.name} did not return {short(b.equals or '')}" for b in unmet[:NAMED]]
    passed = [b.name for b in node.before if b.state == "skipped"]
    if passed:
        told.append(f"{_named(passed)} {'was' if len(passed) == 1 else 'were'} skipped")
    return " and ".join(told) or "its condition was not met"


# Words


def _stopping(flow: Flow) -> list[Reason]:
    if flow.stopped is None or flow.undoing:
        return []
    return [holds("stopping", f"the workflow run is stopped ({short(flow.stopped)}): no further node starts")]


def _pause(flow: Flow, now: datetime) -> list[Reason]:
    return [paused(flow.job, now)] if flow.job is not None and flow.job.pause is not None else []


def _waited_for(node: Node, now: datetime) -> str:
    what = f"for the signal {node.signal}" if node.signal is not None else f"in {node.name}"
    return f"waits {what}{_until(node, now)}"


def _until(node: Node, now: datetime) -> str:
    return "" if node.until is None else f" until {shown(node.until)}, {from_now(node.until, now)}"


def _since(node: Node) -> str:
    return "" if node.since is None else f" since {shown(node.since)}"


def _several(what: str, names: Sequence[str]) -> list[str]:
    return [f"{what}: {_named(names)}"] if names else []


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _why(flow: Flow, node: str) -> str:
    return f"bellringer why {flow.run_id} --node {quote(node)}"


def _retry(flow_run: str, node: str) -> str:
    return f"bellringer workflows retry {flow_run} {quote(node)}"
