"""Workflows in code: a function that is called once and declares nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Final

import bellringer.workflow as workflow_model
from bellringer.core.call_signatures import Signature
from bellringer.core.jobs import WORKFLOW_TASK, Definition, check_name
from bellringer.core.payload import to_plain
from bellringer.core.policies import Delivery
from bellringer.core.retry_policy import Retry
from bellringer.core.tasks import Duration, Registry, Task, make_task
from bellringer.durations import parse_duration
from bellringer.errors import Conflict, InvalidInput
from bellringer.schedule.instants import read_instant, write_instant
from bellringer.sdk.arguments import bind, by_name, read_params
from bellringer.sdk.connection import ServiceConnection
from bellringer.sdk.handles import JobHandle, RunHandle
from bellringer.sdk.nodes import NodeOptions, drop_none, refuse_taken, short_name, task_node, workflow_node
from bellringer.sdk.task_handle import TaskHandle, definition_of
from bellringer.sdk.usage_errors import read_choice
from bellringer.sdk.workflow_values import Branch, Value, WorkflowNode
from bellringer.workflow import Edge, Ref, RunRule, SignalNode, ValueSource, WaitNode, WorkflowGraph
from bellringer.workflow.serializer import canonical_json

if TYPE_CHECKING:
    from bellringer.sdk.connection import ServiceCall
    from bellringer.sdk.service import Service

AnyTask = TaskHandle[..., Any]
Predecessors = WorkflowNode | Branch | Sequence[WorkflowNode | Branch]
Declares = Callable[Concatenate["Workflow", ...], Any]

_UNSET: Final = object()


class Workflow:
    """Declares the nodes of a workflow. A node that is passed as an argument to another runs before it."""

    def __init__(self, name: str, registry: Registry) -> None:
        self.name = name
        self._registry = registry
        self._nodes: list[workflow_model.NodeSpec] = []

    @property
    def item(self) -> Any:
        """In the arguments of `map`: the current element, for arguments other than the first, or for parts of it."""
        return Value(Ref(ValueSource.ITEM), self)

    @property
    def index(self) -> Any:
        """In the arguments of `map`: the index of the element, from 0."""
        return Value(Ref(ValueSource.INDEX), self)

    def add(
        self,
        what: AnyTask | WorkflowHandle,
        /,
        *args: Any,
        name: str | None = None,
        after: Predecessors | None = None,
        when: RunRule | str = RunRule.ALL_SUCCESS,
        pool: str | None = None,
        priority: int | None = None,
        timeout: Duration | None = None,
        heartbeat: Duration | None = None,
        retry: Retry | int | None = None,
        delivery: Delivery | str | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> WorkflowNode:
        """Add a node that runs a task or another workflow: `wf.add(load, files, table="sales")`.

        Arguments that are nodes or params are replaced by their values at run time. Omitted options are those of the
        task. Use `kwargs` for arguments that have the name of an option.
        """
        options = drop_none(
            pool=pool, priority=priority, timeout=timeout, heartbeat=heartbeat, retry=retry, delivery=delivery
        )
        signature = _signature(what)
        named = by_name(signature, args, {**arguments, **(kwargs or {})})
        refuse_taken(signature, named, {**options, **drop_none(name=name, after=after)})
        return self._put(self._work(what, named, name, options), after, when)

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
        after: Predecessors | None = None,
        when: RunRule | str = RunRule.ALL_SUCCESS,
        pool: str | None = None,
        priority: int | None = None,
        timeout: Duration | None = None,
        heartbeat: Duration | None = None,
        retry: Retry | int | None = None,
        delivery: Delivery | str | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> WorkflowNode:
        """Add a node that runs once per element of a list (a node, a param or a list): `wf.map(transform, files)`.

        Its result is the list of results. The element is passed as the first argument, as the one named by `item`, or
        wherever `wf.item` is used.
        """
        options = drop_none(
            pool=pool, priority=priority, timeout=timeout, heartbeat=heartbeat, retry=retry, delivery=delivery
        )
        map_options = drop_none(item=item, max_items=max_items, max_parallel=max_parallel)
        signature = _signature(what)
        named = self._with_element(signature, item, {**arguments, **(kwargs or {})})
        refuse_taken(signature, named, {**options, **map_options, **drop_none(name=name, after=after)})
        node = self._work(what, named, name, options)
        of = self._ref(over, what="the list of a map")
        return self._put(replace(node, over=of, max_items=max_items, max_parallel=max_parallel), after, when)

    def wait(
        self,
        length: Duration | None = None,
        /,
        *,
        until: Any = None,
        name: str | None = None,
        after: Predecessors | None = None,
        when: RunRule | str = RunRule.ALL_SUCCESS,
    ) -> WorkflowNode:
        """Add a node that waits for a duration or `until` an instant, param or node result. It occupies no worker."""
        if (length is None) == (until is None):
            hint = 'write wf.wait("2h") or wf.wait(until=…)'
            raise InvalidInput("give either a duration or until", hint=hint, pointer="/wait", code="choice")
        if until is not None and not isinstance(until, Value):
            until = write_instant(read_instant(until, what="until", pointer="/wait/until"))
        wait = WaitNode(
            None if length is None else parse_duration(length, what="wait"),
            None if until is None else self._ref(until, what="until"),
        )
        return self._put(workflow_model.NodeSpec(name=self._name(name, "wait"), wait=wait), after, when)

    def signal(
        self,
        signal: str,
        /,
        *,
        timeout: Duration | None = None,
        default: Any = _UNSET,
        name: str | None = None,
        after: Predecessors | None = None,
        when: RunRule | str = RunRule.ALL_SUCCESS,
    ) -> WorkflowNode:
        """Add a node that waits for a signal; its result is the payload of the signal.

        After the timeout, the result is `default`; without a default, the node fails.
        """
        called = self._name(name, check_name(signal, what="signal", pointer="/signal"))
        awaited = SignalNode(
            None if called == signal else signal,
            None if timeout is None else parse_duration(timeout, what="timeout"),
            None if default is _UNSET else self._ref(default, what="the default of a signal"),
        )
        return self._put(workflow_model.NodeSpec(name=called, signal=awaited), after, when)

    def undo(
        self,
        node: WorkflowNode,
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
        """Add a compensation: run `what` if the workflow run fails or is cancelled after `node` succeeded.

        Compensations run in reverse order.
        """
        options = drop_none(
            pool=pool, priority=priority, timeout=timeout, heartbeat=heartbeat, retry=retry, delivery=delivery
        )
        done = self._edge(node, "").parent
        signature = _signature(what)
        named = by_name(signature, args, {**arguments, **(kwargs or {})})
        refuse_taken(signature, named, {**options, **drop_none(name=name)})
        self._put(replace(self._work(what, named, name, options), undoes=done), None, RunRule.ALL_SUCCESS)

    def graph(self, params: Mapping[str, Ref | None], max_parallel: int | None, output: object) -> WorkflowGraph:
        """Build and validate the graph of the declared nodes."""
        if output is not None and not isinstance(output, WorkflowNode):
            hint = "return the node whose result is the result of the workflow, or None"
            raise InvalidInput(f"{self.name} returns {output!r}", hint=hint, pointer="/output", code="type")
        name = None if output is None else self._edge(output, "").parent
        made = WorkflowGraph(nodes=tuple(self._nodes), params=params, max_parallel=max_parallel, output=name)
        graph = workflow_model.parse_graph(workflow_model.to_document(made))
        workflow_model.validate_graph(graph, known_tasks=self._registry.names())
        workflow_model.topological_order(graph)
        return graph

    def _work(
        self, what: AnyTask | WorkflowHandle, named: Mapping[str, Any], name: str | None, options: NodeOptions
    ) -> workflow_model.NodeSpec:
        """Build a node that runs a task or workflow, with constant arguments and references."""
        node = (
            workflow_node(what.task, what.graph, options)
            if isinstance(what, WorkflowHandle)
            else task_node(self._own(what), options)
        )
        takes = {argument: self._ref(value) for argument, value in named.items() if isinstance(value, Value)}
        known = bind(_signature(what), named, later=takes)
        return replace(node, name=self._name(name, node.name), kwargs=known, takes=takes)

    def _own(self, handle: AnyTask) -> Task:
        known = self._registry.get(handle.name)
        if known is None or known.function is not handle.task.function:
            hint = "declare the task with the app of the workflow"
            raise InvalidInput(f"{handle.name} is a task of another app", hint=hint, code="unknown_task")
        return handle.task

    def _with_element(self, signature: Signature, item: str | None, named: Mapping[str, Any]) -> Mapping[str, Any]:
        placed = (ValueSource.ITEM, ValueSource.INDEX)
        if item is None and any(isinstance(value, Value) and value.ref.source in placed for value in named.values()):
            return named  # the element is used explicitly
        name = item or next(iter(signature.by_name), None)
        if name is None or name in named:
            message = f"no argument of {signature.task} is left for the element"
            raise InvalidInput(message, hint="name the argument with item=, or use wf.item", code="choice")
        return {name: self.item, **named}

    def _put(self, node: workflow_model.NodeSpec, after: Predecessors | None, when: RunRule | str) -> WorkflowNode:
        parents = [after] if isinstance(after, WorkflowNode | Branch) else after or ()
        edges = tuple(self._edge(parent, node.name) for parent in parents)
        self._nodes.append(replace(node, after=edges, when=read_choice(when, RunRule, what="when")))
        return WorkflowNode(node.name, self)

    def _edge(self, parent: object, child: str) -> Edge:
        node = parent.node if isinstance(parent, Branch) else parent
        if not isinstance(node, WorkflowNode):
            hint = "pass the return value of wf.add, wf.map, wf.wait or wf.signal"
            raise InvalidInput(f"{node!r} is not a node", hint=hint, pointer="/after", code="type")
        return Edge(self._ref(node).name, child, canonical_json(parent.value) if isinstance(parent, Branch) else None)

    def _ref(self, value: Any, *, what: str = "") -> Ref:
        """A reference to a value known at run time, or a constant."""
        if not isinstance(value, Value):
            return Ref(ValueSource.VALUE, value=to_plain(value, what=what))
        if isinstance(value.owner, Workflow) and value.owner is not self:
            message = f"{value!r} belongs to the workflow {value.owner.name}, not to {self.name}"
            hint = "add that workflow as a node, and use its result"
            raise InvalidInput(message, hint=hint, code="unknown_node")
        return value.ref

    def _name(self, wanted: str | None, usual: str) -> str:
        """The given name, or the default name; a number is appended if a node already has it."""
        if wanted is not None:
            return check_name(wanted)
        taken, name, number = {node.name for node in self._nodes}, usual, 1
        while name in taken:
            number += 1
            name = f"{usual}-{number}"
        return name


class WorkflowHandle:
    """A workflow of an app, registered as a job: `etl.trigger(region="eu")`."""

    def __init__(
        self,
        function: Declares,
        connection: ServiceConnection,
        registry: Registry,
        *,
        name: str | None = None,
        max_parallel: int | None = None,
        **options: Any,
    ) -> None:
        read = make_task(function, name=WORKFLOW_TASK if name else None, **options)
        if read.is_async:
            hint = "use a plain def function: it is called once, to declare nodes"
            raise InvalidInput(f"{read.name} is async", hint=hint, pointer="/function", code="type")
        self.name = check_name(name) if name else read.name
        self.task = replace(read, name=WORKFLOW_TASK)
        self.jobs: dict[str, Mapping[str, Any]] = {}  # the scheduled jobs of this workflow, with their params
        self._connection = connection
        self.__name__ = short_name(read)
        self.__doc__ = read.doc
        builder = Workflow(self.name, registry)
        self.signature, params, handles = read_params(function, self.name, builder)
        self.graph = builder.graph(params, max_parallel, function(builder, **handles))
        self.document = workflow_model.to_document(self.graph)

    @property
    def job(self) -> JobHandle:
        """The job of the workflow. Raises Conflict if it has several."""
        if len(self.jobs) > 1 and self.name not in self.jobs:
            hint = f"choose one: app.jobs[{next(iter(self.jobs))!r}]"
            raise Conflict(f"{self.name} is the workflow of the jobs {', '.join(self.jobs)}", hint=hint)
        name = self.name if self.name in self.jobs else next(iter(self.jobs), self.name)
        return JobHandle(name, self._connection, Registry())

    def trigger(self, **params: Any) -> RunHandle:
        """Run the workflow now. Omitted params are those of the job, or their defaults."""
        return self.job.trigger(**self._bound(params))

    async def atrigger(self, **params: Any) -> RunHandle:
        return await self.job.atrigger(**self._bound(params))

    def send(self, **params: Any) -> RunHandle:
        """Run the workflow once, without a job: nothing needs to be registered, and no policy of a job applies."""
        return PreparedWorkflow(self, self._connection).send(**params)

    async def asend(self, **params: Any) -> RunHandle:
        return await PreparedWorkflow(self, self._connection).asend(**params)

    def options(
        self,
        *,
        at: datetime | str | None = None,
        delay: Duration | None = None,
        key: str | None = None,
        priority: int | None = None,
        timeout: Duration | None = None,
    ) -> PreparedWorkflow:
        """Options of one send: `etl.options(delay="5m", key="eu-2030-01-01").send(region="eu")`.

        Another send of this workflow with the same key within a day creates no run, and returns the first one.
        """
        if at is not None and delay is not None:
            raise InvalidInput("at and delay are both given", pointer="/delay", code="choice")
        return PreparedWorkflow(
            self,
            self._connection,
            at=None if at is None else read_instant(at, what="at", pointer="/at"),
            delay=None if delay is None else parse_duration(delay, what="delay"),
            key=None if key is None else f"{self.name} {key}",
            priority=self.task.priority if priority is None else priority,
            timeout=self.task.timeout if timeout is None else parse_duration(timeout, what="timeout"),
        )

    def definition(self, **of_job: Any) -> Definition:
        made = definition_of(self.task, **{"name": self.name, "owner": "code", **of_job})
        # The run of the workflow itself is short, however long its nodes take: it never moves to the pool `long`.
        return replace(made, workflow=self.document, routed=False)

    def _bound(self, params: Mapping[str, Any]) -> dict[str, Any]:
        bound = bind(self.signature, {**self.jobs.get(self.job.name, {}), **params})
        return {name: bound[name] for name in params}

    def __repr__(self) -> str:
        return f"<workflow {self.name}>"


@dataclass(frozen=True)
class PreparedWorkflow:
    """A workflow with the options of one send."""

    workflow: WorkflowHandle
    connection: ServiceConnection
    at: datetime | None = None
    delay: timedelta | None = None
    key: str | None = None
    priority: int | None = None
    timeout: timedelta | None = None

    def send(self, **params: Any) -> RunHandle:
        return self.connection.run(self._send(params), instead="`await ….asend(…)`")

    async def asend(self, **params: Any) -> RunHandle:
        return await self.connection.call(self._send(params))

    def _send(self, params: Mapping[str, Any]) -> ServiceCall[RunHandle]:
        """Check the params now, before connecting to the database."""
        from bellringer.engine.send import WorkflowSend  # noqa: PLC0415 - a slow import that is only needed here

        task = self.workflow.task
        request = WorkflowSend(
            workflow=self.workflow.document,
            params=bind(self.workflow.signature, params),
            at=self.at,
            delay=self.delay,
            pool=task.effective_pool,
            priority=task.priority if self.priority is None else self.priority,
            timeout=self.timeout or task.timeout,
            key=self.key,
            is_declared=True,
        )

        async def send(service: Service) -> RunHandle:
            sent = await service.send_workflow(request)
            return RunHandle(sent.key, self.connection, created=sent.created)

        return send


def _signature(what: object) -> Signature:
    if isinstance(what, WorkflowHandle):
        return what.signature
    if isinstance(what, TaskHandle):
        return what.task.signature
    hint = "pass a function decorated with @app.task or @app.workflow"
    raise InvalidInput(f"a node runs a task or a workflow, not {what!r}", hint=hint, code="type")
