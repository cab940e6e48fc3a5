"""Workflows as programs write them: a function that is called once, and says which nodes there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Concatenate, Final

import bellringer.workflows as words
from bellringer.durations import parse_duration
from bellringer.errors import Conflict, InvalidInput
from bellringer.jobs import WORKFLOW, Definition, check_name
from bellringer.payload import to_plain
from bellringer.policies import Delivery, Retry
from bellringer.schedule.instants import read_instant, write_instant
from bellringer.sdk.arguments import bind, by_name, read_params
from bellringer.sdk.connection import Connection
from bellringer.sdk.handles import JobHandle, RunHandle
from bellringer.sdk.misuse import read_choice
from bellringer.sdk.nodes import Terms, given, refuse_taken, short_name, task_node, workflow_node
from bellringer.sdk.sending import TaskHandle, definition_of
from bellringer.sdk.values import Branch, Node, Value
from bellringer.signatures import Signature
from bellringer.tasks import Duration, Registry, Task, task_from
from bellringer.workflows import Edge, Graph, Ref, Signal, Source, Wait, When
from bellringer.workflows.writing import canonical

AnyTask = TaskHandle[..., Any]
After = Node | Branch | Sequence[Node | Branch]
Declares = Callable[Concatenate["Workflow", ...], Any]

_NOTHING: Final = object()


class Workflow:
    """What the function of a workflow declares its nodes with. A node that is handed to another comes before it."""

    def __init__(self, name: str, registry: Registry) -> None:
        self.name = name
        self._registry = registry
        self._nodes: list[words.Node] = []

    @property
    def item(self) -> Any:
        """In the arguments of a map: the element, to be gone into or given to another argument than the first."""
        return Value(Ref(Source.ITEM), self)

    @property
    def index(self) -> Any:
        """In the arguments of a map: the place of the element, from 0."""
        return Value(Ref(Source.INDEX), self)

    def add(
        self,
        what: AnyTask | WorkflowHandle,
        /,
        *args: Any,
        name: str | None = None,
        after: After | None = None,
        when: When | str = When.ALL_SUCCESS,
        pool: str | None = None,
        priority: int | None = None,
        timeout: Duration | None = None,
        heartbeat: Duration | None = None,
        retry: Retry | int | None = None,
        delivery: Delivery | str | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> Node:
        """Run a task, or another workflow. Arguments that are nodes or params are filled in when their time comes.

        What is left out is as the task's code wants it. `kwargs` is for arguments that are named like an option.
        """
        terms = given(
            pool=pool, priority=priority, timeout=timeout, heartbeat=heartbeat, retry=retry, delivery=delivery
        )
        signature = _signature(what)
        named = by_name(signature, args, {**arguments, **(kwargs or {})})
        refuse_taken(signature, named, {**terms, **given(name=name, after=after)})
        return self._put(self._work(what, named, name, terms), after, when)

    def map(
        self,
        what: AnyTask | WorkflowHandle,
        over: Any,
        /,
        *,
        item: str | None = None,
        max_items: int | None = None,
        max_parallel: int | None = None,
        name: str | None = None,
        after: After | None = None,
        when: When | str = When.ALL_SUCCESS,
        pool: str | None = None,
        priority: int | None = None,
        timeout: Duration | None = None,
        heartbeat: Duration | None = None,
        retry: Retry | int | None = None,
        delivery: Delivery | str | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> Node:
        """Run it once for each element of a list: a node, a param, or a list. Its result is the list of results.

        The element is the first argument, or the one that `item` names, or wherever `wf.item` stands.
        """
        terms = given(
            pool=pool, priority=priority, timeout=timeout, heartbeat=heartbeat, retry=retry, delivery=delivery
        )
        of_map = given(item=item, max_items=max_items, max_parallel=max_parallel)
        signature = _signature(what)
        named = self._with_element(signature, item, {**arguments, **(kwargs or {})})
        refuse_taken(signature, named, {**terms, **of_map, **given(name=name, after=after)})
        node = self._work(what, named, name, terms)
        of = self._ref(over, what="the list of a map")
        return self._put(replace(node, over=of, max_items=max_items, max_parallel=max_parallel), after, when)

    def wait(
        self,
        length: Duration | None = None,
        /,
        *,
        until: Any = None,
        name: str | None = None,
        after: After | None = None,
        when: When | str = When.ALL_SUCCESS,
    ) -> Node:
        """Wait so long, or until an instant: a time, or a param or a node that will say it. No worker is held by it."""
        if (length is None) == (until is None):
            hint = 'wf.wait("2h"), or wf.wait(until=…)'
            raise InvalidInput("a wait has either a length or an end", hint=hint, pointer="/wait", code="choice")
        if until is not None and not isinstance(until, Value):
            until = write_instant(read_instant(until, what="until", pointer="/wait/until"))
        wait = Wait(
            None if length is None else parse_duration(length, what="wait"),
            None if until is None else self._ref(until, what="until"),
        )
        return self._put(words.Node(name=self._name(name, "wait"), wait=wait), after, when)

    def signal(
        self,
        signal: str,
        /,
        *,
        timeout: Duration | None = None,
        default: Any = _NOTHING,
        name: str | None = None,
        after: After | None = None,
        when: When | str = When.ALL_SUCCESS,
    ) -> Node:
        """Wait until somebody sends the run this signal; its result is what was sent.

        After the timeout it is the default, and without one the node fails.
        """
        called = self._name(name, check_name(signal, what="signal", pointer="/signal"))
        awaited = Signal(
            None if called == signal else signal,
            None if timeout is None else parse_duration(timeout, what="timeout"),
            None if default is _NOTHING else self._ref(default, what="the default of a signal"),
        )
        return self._put(words.Node(name=called, signal=awaited), after, when)

    def undo(
        self,
        node: Node,
        what: AnyTask | WorkflowHandle,
        /,
        *args: Any,
        name: str | None = None,
        pool: str | None = None,
        priority: int | None = None,
        timeout: Duration | None = None,
        heartbeat: Duration | None = None,
        retry: Retry | int | None = None,
        delivery: Delivery | str | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> None:
        """Take back what a node has done, if the workflow run fails or is cancelled after it: the last one first."""
        terms = given(
            pool=pool, priority=priority, timeout=timeout, heartbeat=heartbeat, retry=retry, delivery=delivery
        )
        done = self._edge(node, "").parent
        signature = _signature(what)
        named = by_name(signature, args, {**arguments, **(kwargs or {})})
        refuse_taken(signature, named, {**terms, **given(name=name)})
        self._put(replace(self._work(what, named, name, terms), undoes=done), None, When.ALL_SUCCESS)

    def graph(self, params: Mapping[str, Ref | None], max_parallel: int | None, output: object) -> Graph:
        """All that was declared, as the API would read it."""
        if output is not None and not isinstance(output, Node):
            hint = "return the node whose result is that of the workflow, or nothing"
            raise InvalidInput(f"{self.name} returns {output!r}", hint=hint, pointer="/output", code="type")
        name = None if output is None else self._edge(output, "").parent
        made = Graph(nodes=tuple(self._nodes), params=params, max_parallel=max_parallel, output=name)
        graph = words.read_graph(words.to_document(made))
        words.check(graph, known_tasks=self._registry.names())
        words.in_order(graph)
        return graph

    def _work(
        self, what: AnyTask | WorkflowHandle, named: Mapping[str, Any], name: str | None, terms: Terms
    ) -> words.Node:
        """A node that runs something; of its arguments some are known, and to the others there are references."""
        node = (
            workflow_node(what.task, what.graph, terms)
            if isinstance(what, WorkflowHandle)
            else task_node(self._own(what), terms)
        )
        takes = {argument: self._ref(value) for argument, value in named.items() if isinstance(value, Value)}
        known = bind(_signature(what), named, later=takes)
        return replace(node, name=self._name(name, node.name), kwargs=known, takes=takes)

    def _own(self, handle: AnyTask) -> Task:
        known = self._registry.get(handle.name)
        if known is None or known.function is not handle.task.function:
            hint = "declare it with the app of the workflow"
            raise InvalidInput(f"{handle.name} is a task of another app", hint=hint, code="unknown_task")
        return handle.task

    def _with_element(self, signature: Signature, item: str | None, named: Mapping[str, Any]) -> Mapping[str, Any]:
        placed = (Source.ITEM, Source.INDEX)
        if item is None and any(isinstance(value, Value) and value.ref.source in placed for value in named.values()):
            return named  # it stands where it was put
        name = item or next(iter(signature.by_name), None)
        if name is None or name in named:
            message = f"no argument of {signature.task} is left for the element"
            raise InvalidInput(message, hint="say with item= which one it is, or put wf.item there", code="choice")
        return {name: self.item, **named}

    def _put(self, node: words.Node, after: After | None, when: When | str) -> Node:
        parents = [after] if isinstance(after, Node | Branch) else after or ()
        edges = tuple(self._edge(parent, node.name) for parent in parents)
        self._nodes.append(replace(node, after=edges, when=read_choice(when, When, what="when")))
        return Node(node.name, self)

    def _edge(self, parent: object, child: str) -> Edge:
        node = parent.node if isinstance(parent, Branch) else parent
        if not isinstance(node, Node):
            hint = "name what wf.add, wf.map, wf.wait or wf.signal gave"
            raise InvalidInput(f"{node!r} is no node", hint=hint, pointer="/after", code="type")
        return Edge(self._ref(node).name, child, canonical(parent.value) if isinstance(parent, Branch) else None)

    def _ref(self, value: Any, *, what: str = "") -> Ref:
        """A reference to what is yet to come, or to a value that is known already."""
        if not isinstance(value, Value):
            return Ref(Source.VALUE, value=to_plain(value, what=what))
        if isinstance(value.owner, Workflow) and value.owner is not self:
            message = f"{value!r} is of the workflow {value.owner.name}, not of {self.name}"
            hint = "add that workflow to this one, and take its result"
            raise InvalidInput(message, hint=hint, code="unknown_node")
        return value.ref

    def _name(self, wanted: str | None, usual: str) -> str:
        """A name that was chosen, or the usual one: a second node of that name has a number."""
        if wanted is not None:
            return check_name(wanted)
        taken, name, number = {node.name for node in self._nodes}, usual, 1
        while name in taken:
            number += 1
            name = f"{usual}-{number}"
        return name


class WorkflowHandle:
    """A workflow of an app. Its job is declared with the app's others, with a schedule or without."""

    def __init__(
        self,
        function: Declares,
        connection: Connection,
        registry: Registry,
        *,
        name: str | None = None,
        max_parallel: int | None = None,
        **options: Any,
    ) -> None:
        read = task_from(function, name=WORKFLOW if name else None, **options)
        if read.is_async:
            hint = "write it as a plain function: it is called once, to declare nodes"
            raise InvalidInput(f"{read.name} is async", hint=hint, pointer="/function", code="type")
        self.name = check_name(name) if name else read.name
        self.task = replace(read, name=WORKFLOW)
        self.jobs: dict[str, Mapping[str, Any]] = {}  # those that schedules declare, with their params
        self._connection = connection
        self.__name__ = short_name(read)
        self.__doc__ = read.doc
        builder = Workflow(self.name, registry)
        self.signature, params, handles = read_params(function, self.name, builder)
        self.graph = builder.graph(params, max_parallel, function(builder, **handles))
        self.document = words.to_document(self.graph)

    @property
    def job(self) -> JobHandle:
        """Its job, where it is one only."""
        if len(self.jobs) > 1 and self.name not in self.jobs:
            hint = f"say which: app.jobs[{next(iter(self.jobs))!r}]"
            raise Conflict(f"{self.name} is the workflow of the jobs {', '.join(self.jobs)}", hint=hint)
        name = self.name if self.name in self.jobs else next(iter(self.jobs), self.name)
        return JobHandle(name, self._connection, Registry())

    def trigger(self, **params: Any) -> RunHandle:
        """Run it now, with these params; the others are as its job says, or have their defaults."""
        return self.job.trigger(**self._bound(params))

    async def atrigger(self, **params: Any) -> RunHandle:
        return await self.job.atrigger(**self._bound(params))

    def definition(self, **of_job: Any) -> Definition:
        made = definition_of(self.task, **{"name": self.name, "owner": "code", **of_job})
        # To open it takes no time, however long its nodes run: it does not go where long runs go.
        return replace(made, workflow=self.document, routed=False)

    def _bound(self, params: Mapping[str, Any]) -> dict[str, Any]:
        bound = bind(self.signature, {**self.jobs.get(self.job.name, {}), **params})
        return {name: bound[name] for name in params}

    def __repr__(self) -> str:
        return f"<workflow {self.name}>"


def _signature(what: object) -> Signature:
    if isinstance(what, WorkflowHandle):
        return what.signature
    if isinstance(what, TaskHandle):
        return what.task.signature
    hint = "give what @app.task or @app.workflow has made"
    raise InvalidInput(f"a node runs a task or a workflow, not {what!r}", hint=hint, code="type")
