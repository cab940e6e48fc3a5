"""Parses a workflow document into a graph. A syntax error carries the JSON pointer of the field.

`validate_graph` checks the meaning: names that must exist, limits, and nodes that can never run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, Final, NoReturn, TypeVar

from bellringer.core.jobs import check_name
from bellringer.core.payload import MAX_PAYLOAD_DEPTH, to_plain
from bellringer.core.policies import Delivery
from bellringer.core.retry_policy import Retry
from bellringer.durations import parse_duration
from bellringer.errors import InvalidInput
from bellringer.schedule.instants import read_instant, write_instant
from bellringer.workflow.graph import (
    MAX_WORKFLOW_NESTING,
    Edge,
    NodeKind,
    NodeSpec,
    Ref,
    RunRule,
    SignalNode,
    ValueSource,
    WaitNode,
    WorkflowFact,
    WorkflowGraph,
    child_pointer,
)
from bellringer.workflow.serializer import canonical_json

T = TypeVar("T")
D = TypeVar("D")
W = TypeVar("W", bound=StrEnum)
Reader = Callable[[Any, str], T]  # of a value and its pointer

_MAX_QUOTE_LENGTH: Final = 40  # characters of user input in an error message


class ObjectReader:
    """Reads the fields of one JSON object. Raises InvalidInput on unknown fields. A null field counts as omitted."""

    def __init__(self, document: object, pointer: str, known: Collection[str]) -> None:
        self.fields = check_object(document, pointer)
        self.pointer = pointer
        for name in self.fields:
            if name not in known:
                shown = name[:_MAX_QUOTE_LENGTH]
                hint = suggest(shown, known) or f"use {', '.join(known)}"
                message = f"unknown field {shown!r}"
                raise InvalidInput(message, hint=hint, pointer=child_pointer(pointer, shown), code="unknown_field")

    def get(self, name: str, read: Reader[T], otherwise: D) -> T | D:
        value = self.fields.get(name)
        return otherwise if value is None else read(value, child_pointer(self.pointer, name))

    def need(self, name: str, read: Reader[T]) -> T:
        if self.fields.get(name) is None:
            raise InvalidInput(f"{name} is missing", pointer=child_pointer(self.pointer, name), code="missing_field")
        return read(self.fields[name], child_pointer(self.pointer, name))


def mapping_reader(read: Reader[T], what: str) -> Reader[dict[str, T]]:
    """Returns a reader for an object whose field names the user chooses."""

    def read_all(value: object, pointer: str) -> dict[str, T]:
        fields = check_object(value, pointer)
        return {
            check_name(name, what=what, pointer=pointer): read(inner, child_pointer(pointer, name))
            for name, inner in fields.items()
        }

    return read_all


def list_reader(read: Reader[T]) -> Reader[tuple[T, ...]]:
    def read_all(value: object, pointer: str) -> tuple[T, ...]:
        if not isinstance(value, list | tuple):
            raise_wrong_type("a list", pointer)
        return tuple(read(inner, f"{pointer}/{place}") for place, inner in enumerate(value))

    return read_all


def name_reader(what: str) -> Reader[str]:
    return lambda value, pointer: check_name(value, what=what, pointer=pointer)


def enum_reader(words: type[W], what: str) -> Reader[W]:
    def read(value: object, pointer: str) -> W:
        found = next((word for word in words if word == value), None)
        if found is None:
            message, hint = f"unknown {what} {str(value)[:_MAX_QUOTE_LENGTH]!r}", f"use {', '.join(words)}"
            raise InvalidInput(message, hint=hint, pointer=pointer, code="unknown_word")
        return found

    return read


def read_integer(value: object, pointer: str) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # in JSON Schema, 7.0 is an integer
    if isinstance(value, bool) or not isinstance(value, int):
        raise_wrong_type("a whole number", pointer)
    return value


def duration_reader(what: str) -> Reader[timedelta]:
    def read(value: Any, pointer: str) -> timedelta:
        try:
            return parse_duration(value, what=what)
        except InvalidInput as fault:
            fault.pointer = pointer
            raise

    return read


def check_object(value: object, pointer: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise_wrong_type("an object", pointer)
    return value


def raise_wrong_type(expected: str, pointer: str) -> NoReturn:
    raise InvalidInput(f"{pointer} must be {expected}", pointer=pointer, code="type")


def suggest(name: str, known: Collection[str]) -> str:
    """Returns a hint with the most similar known name, or an empty string."""
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else ""


_GRAPH_FIELDS: Final = ("params", "max_parallel", "output", "nodes")
_ORDER_FIELDS: Final = ("name", "after", "when")
_ARGUMENT_FIELDS: Final = ("kwargs", "takes", "over", "max_items", "max_parallel")
_WORK_FIELDS: Final = (*_ARGUMENT_FIELDS, "undoes", "pool", "priority", "timeout", "retry")
_FIELDS_BY_KIND: Final[Mapping[NodeKind, tuple[str, ...]]] = {
    NodeKind.TASK: (*_ORDER_FIELDS, NodeKind.TASK, *_WORK_FIELDS, "heartbeat", "delivery"),
    NodeKind.WORKFLOW: (*_ORDER_FIELDS, NodeKind.WORKFLOW, *_WORK_FIELDS),
    NodeKind.WAIT: (*_ORDER_FIELDS, NodeKind.WAIT),
    NodeKind.SIGNAL: (*_ORDER_FIELDS, NodeKind.SIGNAL),
}
_NODE_FIELDS: Final = tuple(dict.fromkeys(name for names in _FIELDS_BY_KIND.values() for name in names))
_SOURCES_WITH_PATH: Final = frozenset(
    {ValueSource.NODE, ValueSource.PARAM, ValueSource.ITEM}
)  # sources whose values may be objects or lists
_FIXED_SOURCES: Final = (ValueSource.RUN, ValueSource.VALUE)


def parse_graph(document: object, *, pointer: str = "/workflow") -> WorkflowGraph:
    """Parses a workflow document. The result of `to_document` parses to an equal graph. Raises InvalidInput."""
    return _parse_graph(document, pointer, 0)


def _parse_graph(document: object, pointer: str, nested: int) -> WorkflowGraph:
    if nested > MAX_WORKFLOW_NESTING:
        message = f"workflows are nested more than {MAX_WORKFLOW_NESTING} levels deep"
        raise InvalidInput(
            message, hint="declare the inner workflow as a job, and refer to it by name", pointer=pointer, code="limit"
        )
    given = ObjectReader(document, pointer, _GRAPH_FIELDS)
    return WorkflowGraph(
        nodes=given.need("nodes", list_reader(lambda value, place: _parse_node(value, place, nested))),
        params=given.get("params", mapping_reader(_parse_param, "param"), {}),
        max_parallel=given.get("max_parallel", read_integer, None),
        output=given.get("output", name_reader("output"), None),
    )


def _parse_param(value: object, pointer: str) -> Ref | None:
    return ObjectReader(value, pointer, ("default",)).get("default", _ref_reader(*_FIXED_SOURCES), None)


def _parse_node(value: object, pointer: str, nested: int) -> NodeSpec:
    given = ObjectReader(value, pointer, _NODE_FIELDS)
    kind = _node_kind(given)
    for field in given.fields:
        if field not in _FIELDS_BY_KIND[kind] and given.fields[field] is not None:
            hint = f"use {', '.join(_FIELDS_BY_KIND[kind])}"
            message = f"a node with `{kind}` cannot have `{field}`"
            raise InvalidInput(message, hint=hint, pointer=child_pointer(pointer, field), code="conflicting_fields")
    name = given.need("name", name_reader("name"))
    return NodeSpec(
        name=name,
        task=given.get("task", name_reader("task"), None),
        workflow=given.get("workflow", lambda value, place: _parse_nested(value, place, nested), None),
        wait=given.get("wait", _parse_wait, None),
        signal=given.get("signal", _parse_signal, None),
        kwargs=given.get("kwargs", _parse_kwargs, {}),
        takes=given.get("takes", mapping_reader(_ref_reader(*ValueSource), "argument"), {}),
        over=given.get("over", _ref_reader(ValueSource.NODE, ValueSource.PARAM, ValueSource.VALUE), None),
        max_items=given.get("max_items", read_integer, None),
        max_parallel=given.get("max_parallel", read_integer, None),
        after=given.get("after", list_reader(lambda value, place: _parse_edge(value, place, name)), ()),
        when=given.get("when", enum_reader(RunRule, "when"), RunRule.ALL_SUCCESS),
        undoes=given.get("undoes", name_reader("undoes"), None),
        pool=given.get("pool", name_reader("pool"), None),
        priority=given.get("priority", read_integer, None),
        timeout=given.get("timeout", duration_reader("timeout"), None),
        heartbeat=given.get("heartbeat", duration_reader("heartbeat"), None),
        retry=given.get("retry", _parse_retry, None),
        delivery=given.get("delivery", enum_reader(Delivery, "delivery"), None),
    )


def _node_kind(given: ObjectReader) -> NodeKind:
    kinds = [kind for kind in NodeKind if given.fields.get(kind) is not None]
    if not kinds:
        hint = f"add one of {', '.join(NodeKind)}"
        raise InvalidInput("the node has no kind", hint=hint, pointer=given.pointer, code="missing_field")
    if len(kinds) > 1:
        message, place = f"{kinds[0]} and {kinds[1]} exclude each other", child_pointer(given.pointer, kinds[1])
        raise InvalidInput(message, hint="use a separate node for each", pointer=place, code="conflicting_fields")
    return kinds[0]


def _parse_nested(value: object, pointer: str, nested: int) -> WorkflowGraph | str:
    return (
        name_reader("workflow")(value, pointer) if isinstance(value, str) else _parse_graph(value, pointer, nested + 1)
    )


def _parse_wait(value: object, pointer: str) -> WaitNode:
    given = ObjectReader(value, pointer, ("for", "until"))
    wait = WaitNode(given.get("for", duration_reader("for"), None), given.get("until", _parse_until, None))
    if (wait.length is None) == (wait.until is None):
        code = "missing_field" if wait.length is None else "conflicting_fields"
        raise InvalidInput("a wait needs either `for` (a duration) or `until` (an instant)", pointer=pointer, code=code)
    return wait


def _parse_until(value: object, pointer: str) -> Ref:
    """Parses an instant or a reference. An instant becomes a reference to a fixed value."""
    if isinstance(value, str):
        return Ref(ValueSource.VALUE, value=_normalize_instant(value, pointer))
    ref = _ref_reader(ValueSource.NODE, ValueSource.PARAM, *_FIXED_SOURCES)(value, pointer)
    return (
        Ref(ValueSource.VALUE, value=_normalize_instant(ref.value, child_pointer(pointer, "value")))
        if ref.source is ValueSource.VALUE
        else ref
    )


def _normalize_instant(value: Any, pointer: str) -> str:
    return write_instant(read_instant(value, what="until", pointer=pointer))


def _parse_signal(value: object, pointer: str) -> SignalNode:
    given = ObjectReader(value, pointer, ("name", "timeout", "default"))
    signal = SignalNode(
        name=given.get("name", name_reader("name"), None),
        timeout=given.get("timeout", duration_reader("timeout"), None),
        default=given.get("default", _ref_reader(ValueSource.PARAM, *_FIXED_SOURCES), None),
    )
    if signal.default is not None and signal.timeout is None:
        hint = "set the time after which the default is used"
        raise InvalidInput(
            "default requires timeout", hint=hint, pointer=child_pointer(pointer, "timeout"), code="missing_field"
        )
    return signal


def _parse_edge(value: object, pointer: str, child: str) -> Edge:
    if isinstance(value, str):
        return Edge(name_reader("after")(value, pointer), child)
    given = ObjectReader(value, pointer, ("node", "is"))
    parent = given.need("node", name_reader("node"))
    if "is" not in given.fields:
        return Edge(parent, child)
    wanted = to_plain(given.fields["is"], pointer=child_pointer(pointer, "is"))  # null is a valid value
    return Edge(parent, child, canonical_json(wanted))


def _ref_reader(*allowed: ValueSource) -> Reader[Ref]:
    def read(value: object, pointer: str) -> Ref:
        given = ObjectReader(value, pointer, (*ValueSource, "path"))
        sources = [source for source in ValueSource if source in given.fields]
        if len(sources) != 1 or sources[0] not in allowed:
            message = f"the reference must have exactly one of {', '.join(allowed)}"
            raise InvalidInput(message, hint=f'for example {{"{allowed[0]}": …}}', pointer=pointer, code="choice")
        source = sources[0]
        path = given.get("path", _parse_path, ())
        if path and source not in _SOURCES_WITH_PATH:
            message = f"`path` is not allowed with `{source}`"
            raise InvalidInput(message, pointer=child_pointer(pointer, "path"), code="conflicting_fields")
        if source is ValueSource.VALUE:
            return Ref(source, value=to_plain(given.fields[source], pointer=child_pointer(pointer, source)))
        return Ref(source, given.need(source, _NAME_READERS[source]), path)

    return read


def _parse_path(value: object, pointer: str) -> tuple[str | int, ...]:
    steps = list_reader(_parse_path_step)(value, pointer)
    if len(steps) > MAX_PAYLOAD_DEPTH:
        raise InvalidInput(f"the path has more than {MAX_PAYLOAD_DEPTH} steps", pointer=pointer, code="limit")
    return steps


def _parse_path_step(value: object, pointer: str) -> str | int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise_wrong_type("a field name or a list index", pointer)
    step: str | int = to_plain(value, pointer=pointer)
    return step


def _parse_true(value: object, pointer: str) -> str:
    if value is not True:
        raise_wrong_type("true", pointer)
    return ""


def _parse_kwargs(value: object, pointer: str) -> dict[str, Any]:
    kwargs: dict[str, Any] = to_plain(dict(check_object(value, pointer)), pointer=pointer)
    return kwargs


def _parse_retry(value: object, pointer: str) -> Retry:
    try:
        return Retry.parse(value)
    except InvalidInput as fault:
        fault.pointer = pointer + fault.pointer.removeprefix("/retry")
        raise


_NAME_READERS: Final[Mapping[ValueSource, Reader[str]]] = {
    ValueSource.NODE: name_reader("node"),
    ValueSource.PARAM: name_reader("param"),
    ValueSource.RUN: enum_reader(WorkflowFact, "run"),
    ValueSource.ITEM: _parse_true,
    ValueSource.INDEX: _parse_true,
}
