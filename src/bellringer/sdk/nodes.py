"""Builds nodes that run a task or another workflow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bellringer.core.call_signatures import Signature
from bellringer.core.jobs import DEFAULT_PRIORITY
from bellringer.core.tasks import Task, make_task
from bellringer.errors import InvalidInput
from bellringer.workflow import NodeSpec, WorkflowGraph

NodeOptions = Mapping[str, Any]  # the given ones of pool, priority, timeout, heartbeat, retry and delivery


def drop_none(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def task_node(task: Task, options: NodeOptions) -> NodeSpec:
    """Build a node that runs a task. The graph stores all options, so that a changed default is a new version."""
    refuse_deadline(task)
    if options:
        checked = make_task(task.function, name=task.name, **options)
        task = replace(task, **{name: getattr(checked, name) for name in options})
    return NodeSpec(
        name=short_name(task),
        task=task.name,
        pool=task.effective_pool,
        priority=task.priority,
        timeout=task.timeout,
        heartbeat=task.heartbeat,
        retry=task.retry,
        delivery=task.delivery,
    )


def refuse_deadline(task: Task) -> None:
    """Reject a task with `expires_in`: nodes have no deadline, and the run would start however late it is."""
    if task.expires_in is not None:
        message = f"the task {task.name} has expires_in, which steps and workflow nodes do not support"
        hint = "give expires_in to its sends and jobs instead of the task; timeout= limits a whole chain or workflow"
        raise InvalidInput(message, hint=hint, pointer="/expires_in", code="choice")


def workflow_node(inner: Task, graph: WorkflowGraph, options: NodeOptions) -> NodeSpec:
    """Build a node that embeds another workflow. Omitted options are those of the outer workflow."""
    for name in sorted(options.keys() & {"heartbeat", "delivery"}):
        message = f"{name} is not an option of workflow nodes"
        raise InvalidInput(message, hint="use it for the nodes of that workflow", pointer=f"/{name}", code="choice")
    checked = make_task(inner.function, name=inner.name, **options)
    own_priority = None if inner.priority == DEFAULT_PRIORITY else inner.priority
    return NodeSpec(
        name=short_name(inner),
        workflow=graph,
        pool=checked.pool or inner.pool,
        priority=checked.priority if "priority" in options else own_priority,
        timeout=checked.timeout or inner.timeout,
        retry=checked.retry if "retry" in options else None,
    )


def short_name(task: Task) -> str:
    return getattr(task.function, "__name__", None) or task.name.rpartition(".")[2]


def refuse_taken(signature: Signature, arguments: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Reject an option that may be meant as an argument of the same name."""
    for name in options:
        if name in signature.by_name and name not in arguments:
            message = f"{name}= is an option of the node, and {signature.task} has an argument of that name"
            hint = f"pass the argument by position, or with kwargs={{{name!r}: …}}"
            raise InvalidInput(message, hint=hint, pointer=f"/kwargs/{name}", code="choice")
