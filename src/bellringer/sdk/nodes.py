"""Nodes that run something, as they are declared: a task or another workflow, and how its runs are treated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bellringer.errors import InvalidInput
from bellringer.jobs import DEFAULT_PRIORITY
from bellringer.signatures import Signature
from bellringer.tasks import Task, task_from
from bellringer.workflows import Graph, Node

Terms = Mapping[str, Any]  # pool, priority, timeout, heartbeat, retry, delivery; as far as they were given


def given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def task_node(task: Task, terms: Terms) -> Node:
    """A node that runs a task. How it is treated is written out, so that a change of the code is a new version."""
    if terms:
        checked = task_from(task.function, name=task.name, **terms)
        task = replace(task, **{name: getattr(checked, name) for name in terms})
    return Node(
        name=short_name(task),
        task=task.name,
        pool=task.goes_to,
        priority=task.priority,
        timeout=task.timeout,
        heartbeat=task.heartbeat,
        retry=task.retry,
        delivery=task.delivery,
    )


def workflow_node(inner: Task, graph: Graph, terms: Terms) -> Node:
    """A node that runs another workflow, which travels inside of this one. What nobody says is as in the outer one."""
    for name in sorted(terms.keys() & {"heartbeat", "delivery"}):
        message = f"{name} is an option of a task, and this node is a workflow"
        raise InvalidInput(message, hint="give it to nodes of that workflow", pointer=f"/{name}", code="choice")
    checked = task_from(inner.function, name=inner.name, **terms)
    own_priority = None if inner.priority == DEFAULT_PRIORITY else inner.priority
    return Node(
        name=short_name(inner),
        workflow=graph,
        pool=checked.pool or inner.pool,
        priority=checked.priority if "priority" in terms else own_priority,
        timeout=checked.timeout or inner.timeout,
        retry=checked.retry if "retry" in terms else None,
    )


def short_name(task: Task) -> str:
    return getattr(task.function, "__name__", None) or task.name.rpartition(".")[2]


def refuse_taken(signature: Signature, arguments: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """An option that is named like an argument is an option only where the argument is given in another way."""
    for name in options:
        if name in signature.by_name and name not in arguments:
            message = f"{name}= is an option of the node, and {signature.task} has an argument of that name"
            hint = f"give the argument by its place, or as kwargs={{{name!r}: …}}"
            raise InvalidInput(message, hint=hint, pointer=f"/kwargs/{name}", code="choice")
