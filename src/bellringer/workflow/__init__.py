"""Workflow definitions: graphs of nodes, their validation, compilation and comparison. All functions are pure."""

from __future__ import annotations

from bellringer.workflow.compiler import CompiledGraph, CompiledNode, compile_graph
from bellringer.workflow.critical_path import NodeTiming, find_critical_path
from bellringer.workflow.diff import GraphDiff, diff_graphs
from bellringer.workflow.graph import (
    DEFAULT_MAP_ITEMS,
    MAX_EDGES,
    MAX_MAP_ITEMS,
    MAX_NODES,
    MAX_WORKFLOW_NESTING,
    Edge,
    NodeKind,
    NodeSpec,
    Ref,
    RunRule,
    SignalNode,
    ValueSource,
    WaitNode,
    WorkflowGraph,
    edges_of,
    topological_order,
)
from bellringer.workflow.parser import parse_graph
from bellringer.workflow.serializer import graph_digest, to_document
from bellringer.workflow.validator import bind_params, validate_graph, validate_nested_arguments

__all__ = [
    "DEFAULT_MAP_ITEMS",
    "MAX_EDGES",
    "MAX_MAP_ITEMS",
    "MAX_NODES",
    "MAX_WORKFLOW_NESTING",
    "CompiledGraph",
    "CompiledNode",
    "Edge",
    "GraphDiff",
    "NodeKind",
    "NodeSpec",
    "NodeTiming",
    "Ref",
    "RunRule",
    "SignalNode",
    "ValueSource",
    "WaitNode",
    "WorkflowGraph",
    "bind_params",
    "compile_graph",
    "diff_graphs",
    "edges_of",
    "find_critical_path",
    "graph_digest",
    "parse_graph",
    "to_document",
    "topological_order",
    "validate_graph",
    "validate_nested_arguments",
]
