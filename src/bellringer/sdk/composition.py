"""Chains and groups: workflows that are put together where they are sent, without a declaration.

    chain(extract.step("eu"), transform.step(), load.step()).send()
    group(resize.step(photo) for photo in photos).then(publish.step()).send()

They become the graph of a workflow run without a job. Arguments are params of the run and not part of the graph, so
that equal shapes share one stored graph; a group of one task is a map, whatever its size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

from bellringer.core.jobs import DEFAULT_PRIORITY, GATHER_TASK
from bellringer.core.messages import Message
from bellringer.core.policies import UpstreamOutcome
from bellringer.core.tasks import Duration, Task
from bellringer.durations import parse_duration
from bellringer.errors import InvalidInput
from bellringer.schedule.instants import read_instant
from bellringer.sdk.arguments import bind, by_name
from bellringer.sdk.handles import RunHandle
from bellringer.sdk.nodes import task_node
from bellringer.sdk.task_handle import Prepared, Step, TaskHandle
from bellringer.sdk.usage_errors import read_choice
from bellringer.sdk.workflow_values import Value
from bellringer.workflow import Edge, NodeSpec, Ref, RunRule, ValueSource, WorkflowGraph, to_document
from bellringer.workflow.graph import DEFAULT_MAP_ITEMS, MAX_MAP_ITEMS, MAX_NODES

if TYPE_CHECKING:
    from bellringer.engine.send import WorkflowSend
    from bellringer.sdk.connection import ServiceCall, ServiceConnection
    from bellringer.sdk.service import Service

_RULES: Final = {
    UpstreamOutcome.SUCCESS: RunRule.ALL_SUCCESS,
    UpstreamOutcome.FAILURE: RunRule.ONE_FAILED,
    UpstreamOutcome.ANY: RunRule.ALL_DONE,
}
_HINT: Final = "pass task.step(…), task.message(…), a task, a chain or a group"


@dataclass(frozen=True, slots=True, kw_only=True)
class SendOptions:
    """The options of one composed run."""

    at: datetime | None = None
    delay: timedelta | None = None
    key: str | None = None
    priority: int = DEFAULT_PRIORITY
    timeout: timedelta | None = None
    max_parallel: int | None = None


@dataclass(frozen=True)
class Composition:
    """A chain or a group. `send` stores it as one run, whose nodes are the steps."""

    members: tuple[Any, ...]
    sent_with: SendOptions = field(default_factory=SendOptions)

    def options(
        self,
        *,
        at: datetime | str | None = None,
        delay: Duration | None = None,
        key: str | None = None,
        priority: int | None = None,
        timeout: Duration | None = None,
        max_parallel: int | None = None,
    ) -> Composition:
        """Return a copy with options of the whole run. `max_parallel` limits the steps that execute at once, and
        `timeout` applies to all steps together.

        `key` makes the send idempotent, as for a task; all chains and groups of a tenant share their keys.
        """
        if at is not None and delay is not None:
            raise InvalidInput("at and delay are both given", pointer="/delay", code="choice")
        chosen: dict[str, Any] = {
            "at": None if at is None else read_instant(at, what="at", pointer="/at"),
            "delay": None if delay is None else parse_duration(delay, what="delay"),
            "key": key,
            "priority": priority,
            "timeout": None if timeout is None else parse_duration(timeout, what="timeout"),
            "max_parallel": max_parallel,
        }
        given = {name: value for name, value in chosen.items() if value is not None}
        return replace(self, sent_with=replace(self.sent_with, **given))

    def then(self, callback: Any, *, on: UpstreamOutcome | str = UpstreamOutcome.SUCCESS) -> Composition:
        """Run a step after all others.

        With `on="success"` it runs if all have succeeded, and gets the result: of a group, the list of results in
        order. With `on="any"` it also runs if some failed, whose results are None. With `on="failure"` it runs once a
        step has failed, and gets no result.
        """
        outcome = read_choice(on, UpstreamOutcome, what="on")
        return Chain((self, _Callback(_read_member(callback), outcome)), self.sent_with)

    def send(self) -> RunHandle:
        """Store the run. When `send` returns, the run survives any crash."""
        connection, request = self._prepare()
        return connection.run(_send(connection, request), instead="`await ….asend()`")

    async def asend(self) -> RunHandle:
        connection, request = self._prepare()
        return await connection.call(_send(connection, request))

    def document(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the graph as a workflow document, and its params. Raises InvalidInput if a step is wrong."""
        builder = _GraphBuilder()
        output = builder.add(self, None, RunRule.ALL_SUCCESS)
        graph = WorkflowGraph(
            nodes=tuple(builder.nodes),
            params=dict.fromkeys(builder.params),
            max_parallel=self.sent_with.max_parallel,
            output=output.name,
        )
        if len(graph.nodes) > MAX_NODES:
            hint = "send a group of one task, which may have 100,000 members, or several runs"
            raise InvalidInput(f"{len(graph.nodes)} steps are more than {MAX_NODES}", hint=hint, code="limit")
        return to_document(graph), builder.params

    def _prepare(self) -> tuple[ServiceConnection, WorkflowSend]:
        from bellringer.engine.send import WorkflowSend  # noqa: PLC0415 - a slow import that is only needed here

        connection = next(_connections(self), None)
        if connection is None:
            raise InvalidInput("there is no step to send", hint=_HINT, code="missing_field")
        document, params = self.document()
        chosen = self.sent_with
        request = WorkflowSend(
            workflow=document,
            params=params,
            at=chosen.at,
            delay=chosen.delay,
            priority=chosen.priority,
            timeout=chosen.timeout,
            key=chosen.key,
        )
        return connection, request


@dataclass(frozen=True)
class Chain(Composition):
    """Steps that run one after the other. Each gets the result of the one before it as its first argument."""


@dataclass(frozen=True)
class Group(Composition):
    """Steps that run at the same time. Its result is the list of their results, in order."""


@dataclass(frozen=True, slots=True)
class _Callback:
    step: Any
    outcome: UpstreamOutcome


def chain(*steps: Any) -> Chain:
    """Run steps one after the other; each gets the result of the one before it as its first argument:
    `chain(extract.step("eu"), transform, load.step(table="sales")).send()`.

    A step is `task.step(…)`, a task without arguments, a message, which has all its arguments and gets no result, or
    a group or another chain. If a step fails, the steps after it are skipped, and the run is dead.
    """
    if not steps:
        raise InvalidInput("a chain needs a step", hint=_HINT, code="missing_field")
    return Chain(tuple(_read_member(step) for step in steps))


def group(*members: Any) -> Group:
    """Run steps at the same time: `group(resize.step(photo) for photo in photos).send()`.

    The result is the list of results in order. If a member fails, the others continue, and the run is dead.
    """
    single = members[0] if len(members) == 1 else None
    given = list(single) if isinstance(single, Iterable) and not isinstance(single, str | Mapping) else members
    return Group(tuple(_read_member(member) for member in given))


def _read_member(member: object) -> Step | Composition:
    if isinstance(member, Composition):
        if member.sent_with != SendOptions():
            hint = "set the options of the outermost chain or group"
            raise InvalidInput("a part of a chain or group has options of a send", hint=hint, code="choice")
        return member
    if isinstance(member, TaskHandle | Prepared):
        return member.step()
    if isinstance(member, Message) and isinstance(member.origin, Prepared):
        origin = member.origin
        if member.at is not None or member.delay is not None or member.key is not None:
            raise InvalidInput("at, delay and key are not options of a step", hint="use .options(…)", code="choice")
        return Step(origin.task, origin.connection, member.args, member.kwargs, takes_input=False)
    if isinstance(member, Step):
        return member
    raise InvalidInput(f"{member!r} cannot be a step", hint=_HINT, code="type")


def _connections(member: Any) -> Iterator[ServiceConnection]:
    if isinstance(member, Step):
        yield member.connection
    elif isinstance(member, _Callback):
        yield from _connections(member.step)
    elif isinstance(member, Composition):
        for inner in member.members:
            yield from _connections(inner)


def _send(connection: ServiceConnection, request: WorkflowSend) -> ServiceCall[RunHandle]:
    async def send(service: Service) -> RunHandle:
        sent = await service.send_workflow(request)
        return RunHandle(sent.key, connection, created=sent.created)

    return send


class _GraphBuilder:
    """Compiles a composition to nodes. Each method returns the reference to the result of what it added."""

    def __init__(self) -> None:
        self.nodes: list[NodeSpec] = []
        self.params: dict[str, Any] = {}
        self._names: dict[str, int] = {}  # how often a name was used

    def add(self, member: Any, given: Ref | None, rule: RunRule) -> Ref:
        if isinstance(member, Chain):
            return self._add_chain(member, given, rule)
        if isinstance(member, Group):
            return self._add_group(member, given, rule)
        return self._add_step(member, given, rule)

    def _add_chain(self, chain: Chain, given: Ref | None, rule: RunRule) -> Ref:
        first = len(self.nodes)
        for member, following in zip_longest(chain.members, chain.members[1:]):
            is_lenient = isinstance(following, _Callback) and following.outcome is UpstreamOutcome.ANY
            if isinstance(member, _Callback) and member.outcome is UpstreamOutcome.FAILURE:
                # a child of every node, so that the failure of each counts as handled
                parents = [node.name for node in self.nodes[first:]]
                self._add_step(self._single(member.step), None, RunRule.ONE_FAILED, parents)
                continue
            if isinstance(member, _Callback):
                member, rule = member.step, _RULES[member.outcome]  # noqa: PLW2901
            if isinstance(member, Group):
                given = self._add_group(member, given, rule, is_lenient=is_lenient)
            else:
                given = self.add(member, given, rule)
            rule = RunRule.ALL_SUCCESS
        assert given is not None, "a chain has a step"
        return given

    @staticmethod
    def _single(member: Any) -> Step:
        if not isinstance(member, Step):
            hint = "use one step, which may send a chain"
            raise InvalidInput('then(…, on="failure") takes a single step', hint=hint, code="type")
        return member.without_input()

    def _add_group(self, group: Group, given: Ref | None, rule: RunRule, *, is_lenient: bool = False) -> Ref:
        """Add the members. With `is_lenient`, the list of results is built even if some members failed."""
        if group.members and all(isinstance(member, Step) for member in group.members):
            rows = [self._named(member, given) for member in group.members]
            first = group.members[0]
            if all(
                m.task == first.task and row.keys() == rows[0].keys()
                for m, row in zip(group.members, rows, strict=True)
            ):
                return self._add_map(first.task, rows, given, rule)
        results = [self.add(member, given, rule) for member in group.members]
        takes = {str(number): ref for number, ref in enumerate(results)}
        node = NodeSpec(name=self._name("results"), task=GATHER_TASK, takes=takes)
        return self._put(node, None if results else given, RunRule.ALL_DONE if is_lenient else RunRule.ALL_SUCCESS)

    def _add_map(self, task: Task, rows: Sequence[Mapping[str, Any]], given: Ref | None, rule: RunRule) -> Ref:
        node = task_node(task, {})
        name = self._name(node.name)
        items = []
        takes: dict[str, Ref] = {}
        for row in rows:
            takes = {argument: value.ref for argument, value in row.items() if isinstance(value, Value)}
            items.append(bind(task.signature, row, later=takes))
        if len(items) > MAX_MAP_ITEMS:
            hint = "send several groups"
            raise InvalidInput(f"a group can have at most {MAX_MAP_ITEMS:,} members", hint=hint, code="limit")
        takes |= {argument: Ref(ValueSource.ITEM, path=(argument,)) for argument in items[0]}
        self.params[name] = items
        most = None if len(items) <= DEFAULT_MAP_ITEMS else MAX_MAP_ITEMS
        over = Ref(ValueSource.PARAM, name)
        return self._put(replace(node, name=name, takes=takes, over=over, max_items=most), given, rule)

    def _add_step(self, step: Step, given: Ref | None, rule: RunRule, parents: Sequence[str] = ()) -> Ref:
        named = self._named(step, given)
        refs = {argument: value.ref for argument, value in named.items() if isinstance(value, Value)}
        constants = bind(step.task.signature, named, later=refs)
        node = task_node(step.task, {})
        name = self._name(node.name)
        takes = dict(refs)
        for argument, value in constants.items():
            param = f"{name}.{argument}"
            self.params[param] = value
            takes[argument] = Ref(ValueSource.PARAM, param)
        return self._put(replace(node, name=name, takes=takes), given, rule, parents)

    def _named(self, step: Step, given: Ref | None) -> dict[str, Any]:
        """The arguments of a step by name; the result of the step before it is a placeholder."""
        args = [*([Value(given)] if given is not None and step.takes_input else []), *step.args]
        return by_name(step.task.signature, args, step.kwargs)

    def _put(self, node: NodeSpec, given: Ref | None, rule: RunRule, parents: Sequence[str] = ()) -> Ref:
        before = [*parents, *([given.name] if given is not None else [])]
        edges = tuple(Edge(parent, node.name) for parent in before)
        self.nodes.append(replace(node, after=edges, when=rule))
        return Ref(ValueSource.NODE, node.name)

    def _name(self, usual: str) -> str:
        number = self._names[usual] = self._names.get(usual, 0) + 1
        return usual if number == 1 else f"{usual}-{number}"
