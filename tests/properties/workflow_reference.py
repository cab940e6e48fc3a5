"""What must become of a workflow run, worked out in plain Python from the rules as they are told to people.

Nothing here knows how the engine does it: a document and how each attempt would end go in, and out comes how every node
ends, what it was given, and how often it is executed. Nodes are told apart by their paths: names, and places of
elements, from the outermost workflow inwards.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Path = tuple[str | int, ...]
Document = Mapping[str, Any]

OK: Final = "ok"
FAILED: Final = "failed"  # and may be tried again
FINAL: Final = "final"  # failed for good
LOST: Final = "lost"  # its worker died with it
DISCARDED: Final = "discarded"  # it says that it is not wanted: cancelled

EARLY: Final = "early"  # a signal that is sent before anybody waits for it
SENT: Final = "sent"
NEVER: Final = "never"


@dataclass(frozen=True)
class Script:
    """How each attempt of each node ends, and which signals are sent; determined by the seed."""

    seed: int
    trouble: float  # how likely it is that an attempt does not go well

    def ending(self, path: Path, attempt: int, *, opens: bool = False) -> str:
        """`opens`: the attempt opens a workflow run, which cannot fail by itself."""
        dice = self._dice("ending", path, attempt)
        if dice.random() >= self.trouble:
            return OK
        return LOST if opens else dice.choice([FAILED, FAILED, FINAL, LOST, DISCARDED])

    def result(self, path: Path) -> Any:
        return self._dice("result", path).choice(["a", "b", "b", [], [1], ["x", "y"], [1, 2, 3, 4, 5], None])

    def signal(self, path: Path, *, endless: bool) -> str:
        return self._dice("signal", path).choice([EARLY, SENT] if endless else [EARLY, SENT, NEVER])

    @staticmethod
    def payload(path: Path) -> str:
        return f"told {path[-1]}"

    def _dice(self, *what: object) -> random.Random:
        return random.Random(repr((self.seed, *what)))


@dataclass
class Ended:
    """How a node, an element of a map or a workflow run ended."""

    state: str
    reason: str | None = None
    result: Any = None
    attempts: list[str] = field(default_factory=list)  # how each ended
    given: Mapping[str, Any] | None = None  # its arguments, where they are sure
    handled: bool = False  # a failure that another node has dealt with


@dataclass
class Told:
    """The expected result of one workflow run."""

    ends: dict[Path, Ended] = field(default_factory=dict)
    undone: dict[Path, list[str]] = field(default_factory=dict)  # by workflow run: what undoes its nodes, as it runs

    def executions(self) -> dict[Path, list[str]]:
        return {path: ended.attempts for path, ended in self.ends.items() if ended.attempts}


def interpret(document: Document, script: Script) -> Told:
    """Returns the expected result of a run of this document with its default arguments."""
    told = Told()
    attempts = _attempts(script, (), 3, "at_least_once", opens=True)
    if attempts[-1] == OK:
        told.ends[()] = _Flow(document, script, (), {}, told).run()
        told.ends[()].attempts = attempts
    else:
        told.ends[()] = Ended("dead", attempts=attempts)
    return told


def edges(document: Document) -> dict[str, dict[str, Any]]:
    """Child → parent → the result it wants, as {"is": …}; references make edges, but for nodes that undo others."""
    found: dict[str, dict[str, Any]] = {node["name"]: {} for node in document["nodes"]}
    for node in document["nodes"]:
        if "undoes" in node:
            continue
        for edge in node.get("after", ()):
            parent, wanted = (
                (edge, {}) if isinstance(edge, str) else (edge["node"], {k: edge[k] for k in edge if k == "is"})
            )
            found[node["name"]][parent] = wanted or found[node["name"]].get(parent, {})
        for ref in _refs(node):
            if "node" in ref:
                found[node["name"]].setdefault(ref["node"], {})
    return found


def in_order(document: Document) -> list[str]:
    """Returns names in topological order, ties in order of declaration."""
    before = edges(document)
    rest = [node["name"] for node in document["nodes"] if "undoes" not in node]
    order: list[str] = []
    while rest:
        name = next(name for name in rest if all(parent in order for parent in before[name]))
        rest.remove(name)
        order.append(name)
    return order


def failed(ended: Ended) -> bool:
    return ended.state in ("dead", "cancelled") or ended.reason == "upstream"


class _Flow:
    """Interprets one workflow run."""

    def __init__(self, document: Document, script: Script, path: Path, given: Mapping[str, Any], told: Told) -> None:
        self.document, self.script, self.path, self.told = document, script, path, told
        self.nodes = {node["name"]: node for node in document["nodes"]}
        self.ends: dict[str, Ended] = {}
        defaults = {
            name: (param.get("default") or {}).get("value") for name, param in document.get("params", {}).items()
        }
        self.params = {**defaults, **given}

    def run(self) -> Ended:
        before = edges(self.document)
        order = in_order(self.document)
        for name in order:
            self._end(name, before[name])
        for name in order:
            self.ends[name].handled = any(
                self.nodes[child].get("when") == "one_failed" and self.ends[child].state == "succeeded"
                for child in order
                if name in before[child]
            )
        bad = any(e.state in ("dead", "cancelled") and not e.handled for e in self.ends.values())
        self._undo(order, bad=bad)
        output = self.document.get("output")
        if bad:
            return Ended("dead")
        return Ended("succeeded", result=self.ends[output].result if output else None)

    def _end(self, name: str, parents: Mapping[str, Any]) -> None:
        node = self.nodes[name]
        reason = self._skipped(node, parents)
        ended = Ended("skipped", reason) if reason else self._executed(node, (*self.path, name))
        self.ends[name] = self.told.ends[(*self.path, name)] = ended

    def _skipped(self, node: Document, parents: Mapping[str, Any]) -> str | None:
        """Returns why the node is skipped, or None."""
        ends = [self.ends[parent] for parent in parents]
        bad = any(failed(ended) for ended in ends)
        good = [
            ended.state == "succeeded" and ("is" not in wanted or _same(ended.result, wanted["is"]))
            for ended, wanted in zip(ends, parents.values(), strict=True)
        ]
        rule = node.get("when", "all_success")
        if not parents or rule == "all_done":
            return None
        if rule == "one_failed":
            return None if bad else "condition"
        if bad:
            return "upstream"
        enough = any(good) if rule == "none_failed" else all(good)
        return None if enough else "condition"

    def _executed(self, node: Document, path: Path) -> Ended:
        if "over" not in node:
            return self._one(node, path, None, None)
        items = self._value(node["over"], None, None)
        if not isinstance(items, list):
            return Ended("dead", "the value to map over is not a list")
        if len(items) > node.get("max_items", 10_000):
            return Ended("dead", f"{len(items)} elements, more than {node['max_items']}")
        parts = [self._one(node, (*path, place), item, place) for place, item in enumerate(items)]
        self.told.ends |= {(*path, place): part for place, part in enumerate(parts)}
        state = "succeeded" if all(part.state == "succeeded" for part in parts) else "dead"
        return Ended(state, result=[part.result for part in parts] if state == "succeeded" else None)

    def _one(self, node: Document, path: Path, item: Any, place: int | None) -> Ended:
        if "wait" in node:
            return Ended("succeeded", attempts=[OK])
        if "signal" in node:
            return self._signal(node, path)
        given = dict(node.get("kwargs", {}))
        given |= {name: self._value(ref, item, place) for name, ref in node.get("takes", {}).items()}
        retry, opens = node.get("retry", {}).get("attempts", 3), "workflow" in node
        attempts = _attempts(self.script, path, retry, node.get("delivery", "at_least_once"), opens=opens)
        if attempts[-1] != OK:
            ended = Ended("cancelled" if attempts[-1] == DISCARDED else "dead")
        elif opens:
            ended = _Flow(node["workflow"], self.script, path, given, self.told).run()
        else:
            ended = Ended("succeeded", result=self.script.result(path))
        ended.attempts = attempts
        # It may begin while others before it are under way, and then what it takes of them is nothing yet.
        ended.given = None if node.get("when") == "one_failed" or opens else given
        return ended

    def _signal(self, node: Document, path: Path) -> Ended:
        timeout, default = node["signal"].get("timeout"), node["signal"].get("default")
        if self.script.signal(path, endless=timeout is None) != NEVER:
            return Ended("succeeded", result=self.script.payload(path))
        if default is not None:
            return Ended("succeeded", result=default["value"], attempts=[OK])
        return Ended("dead", attempts=[FINAL])

    def _undo(self, order: Sequence[str], *, bad: bool) -> None:
        undoing = [node for node in self.document["nodes"] if "undoes" in node]
        needed = [node for node in undoing if bad and self.ends[node["undoes"]].state == "succeeded"]
        needed.sort(key=lambda node: -order.index(node["undoes"]))
        for node in undoing:
            path = (*self.path, node["name"])
            self.told.ends[path] = (
                self._one(node, path, None, None) if node in needed else Ended("skipped", "not needed")
            )
        self.told.undone[self.path] = [node["name"] for node in needed]

    def _value(self, ref: Document, item: Any, place: int | None) -> Any:
        if "item" in ref:
            return item
        if "index" in ref:
            return place
        if "node" in ref:
            return (
                self.ends[ref["node"]].result
                if self.ends[ref["node"]].state == "succeeded"
                else self._part(ref["node"])
            )
        return self.params[ref["param"]] if "param" in ref else ref["value"]

    def _part(self, name: str) -> Any:
        """Returns the results of the elements of a map that succeeded."""
        parts = [self.told.ends.get((*self.path, name, place)) for place in range(100)]
        found = [part.result for part in parts if part is not None]
        return found if "over" in self.nodes[name] and self.ends[name].reason is None else None


def _attempts(script: Script, path: Path, most: int, delivery: str, *, opens: bool) -> list[str]:
    """Returns how the attempts end; a third lost attempt is final, except for attempts that open a workflow run."""
    ends: list[str] = []
    while True:
        ends.append(script.ending(path, len(ends) + 1, opens=opens))
        if opens and ends[-1] == LOST:
            continue  # nothing was done: it is opened again, however often
        counted = len(ends) - ends.count(LOST)  # a lost attempt uses up no retry
        over = counted >= most or ends.count(LOST) >= 3 or ends[-1] in (OK, FINAL, DISCARDED)
        if over or (ends[-1] == LOST and delivery == "at_most_once"):
            return ends


def _refs(node: Document) -> Iterator[Document]:
    yield from node.get("takes", {}).values()
    if "over" in node:
        yield node["over"]


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)
