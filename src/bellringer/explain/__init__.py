"""Explains why a run, a job or an occurrence is in its state.

The engine collects facts from the database; these pure functions turn the facts into ordered reasons.
"""

from __future__ import annotations

from bellringer.explain.facts import (
    ASKED_TIME_SPAN,
    MAX_RUNS_AHEAD_COUNTED,
    WORKER_SILENT_AFTER,
    Capacity,
    Dependency,
    ExplainFacts,
    ExplainReason,
    FreezeFacts,
    InstantFacts,
    JobFacts,
    LimitFacts,
    LiveWorker,
    LoopBlock,
    MissedSpan,
    NodeFacts,
    OpenBreaker,
    OrphanFacts,
    PauseFacts,
    PendingBackfill,
    PoolLimits,
    QueuedRun,
    RestoreFacts,
    UpstreamFacts,
    WorkflowFacts,
)
from bellringer.explain.rules import (
    explain_job,
    explain_occurrence,
    explain_run,
    nearest_instant,
    next_instant,
    parse_asked_time,
)
from bellringer.explain.text import format_instant, restored_reason, sort_reasons
from bellringer.explain.workflow_nodes import explain_node, explain_workflow_run, node_of_reason, with_node_retry

__all__ = [
    "ASKED_TIME_SPAN",
    "MAX_RUNS_AHEAD_COUNTED",
    "WORKER_SILENT_AFTER",
    "Capacity",
    "Dependency",
    "ExplainFacts",
    "ExplainReason",
    "FreezeFacts",
    "InstantFacts",
    "JobFacts",
    "LimitFacts",
    "LiveWorker",
    "LoopBlock",
    "MissedSpan",
    "NodeFacts",
    "OpenBreaker",
    "OrphanFacts",
    "PauseFacts",
    "PendingBackfill",
    "PoolLimits",
    "QueuedRun",
    "RestoreFacts",
    "UpstreamFacts",
    "WorkflowFacts",
    "explain_job",
    "explain_node",
    "explain_occurrence",
    "explain_run",
    "explain_workflow_run",
    "format_instant",
    "nearest_instant",
    "next_instant",
    "node_of_reason",
    "parse_asked_time",
    "restored_reason",
    "sort_reasons",
    "with_node_retry",
]
