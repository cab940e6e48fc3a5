"""Writes a graph as a workflow document. Fields that have their default value are omitted."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import msgspec

from bellringer.core.payload import decode
from bellringer.durations import format_duration
from bellringer.workflow.graph import Edge, NodeSpec, Ref, RunRule, SignalNode, ValueSource, WaitNode, WorkflowGraph

_encode: Final = msgspec.json.Encoder(order="deterministic").encode


def to_document(graph: WorkflowGraph) -> dict[str, Any]:
    return _drop_empty(
        {
            "params": {name: {} if ref is None else {"default": write_ref(ref)} for name, ref in graph.params.items()},
            "max_parallel": graph.max_parallel,
            "output": graph.output,
        }
    ) | {"nodes": [write_node(node) for node in graph.nodes]}


def canonical_json(value: Any) -> str:
    """Encodes a JSON value so that equal values give equal text."""
    return _encode(value).decode()


def graph_digest(graph: WorkflowGraph) -> str:
    """Returns a hash that is equal for graphs with the same meaning."""
    return hashlib.sha256(canonical_json(to_document(graph)).encode()).hexdigest()[:32]


def write_node(node: NodeSpec) -> dict[str, Any]:
    inner = node.workflow
    kind = {
        "task": node.task,
        "workflow": to_document(inner) if isinstance(inner, WorkflowGraph) else inner,
        "wait": _write_wait(node.wait) if node.wait else None,
    }
    # A signal without options is written as an empty object.
    signal = {} if node.signal is None else {"signal": _write_signal(node.signal)}
    rest = {
        "kwargs": dict(node.kwargs),
        "takes": {name: write_ref(ref) for name, ref in node.takes.items()},
        "over": write_ref(node.over) if node.over else None,
        "max_items": node.max_items,
        "max_parallel": node.max_parallel,
        "after": [_write_edge(edge) for edge in node.after],
        "when": node.when.value if node.when is not RunRule.ALL_SUCCESS else None,
        "undoes": node.undoes,
        "pool": node.pool,
        "priority": node.priority,
        "timeout": _format_optional(node.timeout),
        "heartbeat": _format_optional(node.heartbeat),
        "retry": node.retry.to_document() if node.retry else None,
        "delivery": node.delivery.value if node.delivery else None,
    }
    return {"name": node.name} | _drop_empty(kind) | signal | _drop_empty(rest)


def write_ref(ref: Ref, numbers: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Writes a reference. With `numbers`, nodes are written by number instead of name."""
    if ref.source is ValueSource.VALUE:
        return {"value": ref.value}
    if ref.source in (ValueSource.ITEM, ValueSource.INDEX):
        named: str | int = True
    else:
        named = numbers[ref.name] if numbers is not None and ref.source is ValueSource.NODE else str(ref.name)
    return {ref.source.value: named} | ({"path": list(ref.path)} if ref.path else {})


def _write_wait(wait: WaitNode) -> dict[str, Any]:
    if wait.until is None:
        return {"for": _format_optional(wait.length)}
    return {"until": wait.until.value if wait.until.source is ValueSource.VALUE else write_ref(wait.until)}


def _write_signal(signal: SignalNode) -> dict[str, Any]:
    default = write_ref(signal.default) if signal.default else None
    return _drop_empty({"name": signal.name, "timeout": _format_optional(signal.timeout), "default": default})


def _write_edge(edge: Edge) -> str | dict[str, Any]:
    return edge.parent if edge.equals is None else {"node": edge.parent, "is": decode(edge.equals)}


def _format_optional(length: timedelta | None) -> str | None:
    return None if length is None else format_duration(length)


def _drop_empty(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None and value not in ({}, [])}
