"""Writes a graph as the document that its author could have written: what is as usual is left out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import msgspec

from bellringer.durations import format_duration
from bellringer.payload import decode
from bellringer.workflows.graph import Edge, Graph, Node, Ref, Signal, Source, Wait, When

_encode: Final = msgspec.json.Encoder(order="deterministic").encode


def to_document(graph: Graph) -> dict[str, Any]:
    return _given(
        {
            "params": {name: {} if ref is None else {"default": write_ref(ref)} for name, ref in graph.params.items()},
            "max_parallel": graph.max_parallel,
            "output": graph.output,
        }
    ) | {"nodes": [write_node(node) for node in graph.nodes]}


def canonical(value: Any) -> str:
    """A JSON value as text that is the same for the same value."""
    return _encode(value).decode()


def digest(graph: Graph) -> str:
    """Equal for graphs that say the same, whichever way it was written."""
    return hashlib.sha256(canonical(to_document(graph)).encode()).hexdigest()[:32]


def write_node(node: Node) -> dict[str, Any]:
    inner = node.workflow
    kind = {
        "task": node.task,
        "workflow": to_document(inner) if isinstance(inner, Graph) else inner,
        "wait": _wait(node.wait) if node.wait else None,
    }
    # A signal about which nothing is said is an empty object, and still a signal.
    signal = {} if node.signal is None else {"signal": _signal(node.signal)}
    rest = {
        "kwargs": dict(node.kwargs),
        "takes": {name: write_ref(ref) for name, ref in node.takes.items()},
        "over": write_ref(node.over) if node.over else None,
        "max_items": node.max_items,
        "max_parallel": node.max_parallel,
        "after": [_edge(edge) for edge in node.after],
        "when": node.when.value if node.when is not When.ALL_SUCCESS else None,
        "undoes": node.undoes,
        "pool": node.pool,
        "priority": node.priority,
        "timeout": _length(node.timeout),
        "heartbeat": _length(node.heartbeat),
        "retry": node.retry.to_document() if node.retry else None,
        "delivery": node.delivery.value if node.delivery else None,
    }
    return {"name": node.name} | _given(kind) | signal | _given(rest)


def write_ref(ref: Ref, numbers: Mapping[str, int] | None = None) -> dict[str, Any]:
    """A reference; with `numbers`, nodes are written by their number instead of their name."""
    if ref.source is Source.VALUE:
        return {"value": ref.value}
    if ref.source in (Source.ITEM, Source.INDEX):
        named: str | int = True
    else:
        named = numbers[ref.name] if numbers is not None and ref.source is Source.NODE else str(ref.name)
    return {ref.source.value: named} | ({"path": list(ref.path)} if ref.path else {})


def _wait(wait: Wait) -> dict[str, Any]:
    if wait.until is None:
        return {"for": _length(wait.length)}
    return {"until": wait.until.value if wait.until.source is Source.VALUE else write_ref(wait.until)}


def _signal(signal: Signal) -> dict[str, Any]:
    default = write_ref(signal.default) if signal.default else None
    return _given({"name": signal.name, "timeout": _length(signal.timeout), "default": default})


def _edge(edge: Edge) -> str | dict[str, Any]:
    return edge.parent if edge.equals is None else {"node": edge.parent, "is": decode(edge.equals)}


def _length(length: timedelta | None) -> str | None:
    return None if length is None else format_duration(length)


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None and value not in ({}, [])}
