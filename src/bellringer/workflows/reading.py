"""Reads a workflow's document into a graph. What cannot be read is refused with its place; `check` judges the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bellringer.errors import InvalidInput
from bellringer.payload import DEEPEST, to_plain
from bellringer.policies import Delivery, Retry
from bellringer.schedule.instants import read_instant, write_instant
from bellringer.workflows.fields import (
    Fields,
    Reader,
    a_length,
    a_name,
    a_whole,
    a_word,
    listed,
    mapping,
    mistyped,
    named,
)
from bellringer.workflows.graph import (
    MOST_NESTED,
    Edge,
    Fact,
    Graph,
    Kind,
    Node,
    Ref,
    Signal,
    Source,
    Wait,
    When,
    at,
)
from bellringer.workflows.writing import canonical

_GRAPH: Final = ("params", "max_parallel", "output", "nodes")
_ORDER: Final = ("name", "after", "when")
_ARGUMENTS: Final = ("kwargs", "takes", "over", "max_items", "max_parallel")
_WORK: Final = (*_ARGUMENTS, "undoes", "pool", "priority", "timeout", "retry")
_FIELDS: Final[Mapping[Kind, tuple[str, ...]]] = {
    Kind.TASK: (*_ORDER, Kind.TASK, *_WORK, "heartbeat", "delivery"),
    Kind.WORKFLOW: (*_ORDER, Kind.WORKFLOW, *_WORK),
    Kind.WAIT: (*_ORDER, Kind.WAIT),
    Kind.SIGNAL: (*_ORDER, Kind.SIGNAL),
}
_ALL: Final = tuple(dict.fromkeys(name for names in _FIELDS.values() for name in names))
_PATHS: Final = frozenset({Source.NODE, Source.PARAM, Source.ITEM})  # values that one can go into
_FIXED: Final = (Source.RUN, Source.VALUE)


def read_graph(document: object, *, pointer: str = "/workflow") -> Graph:
    """The graph that a document declares; read again from what `to_document` makes of it, it is the same."""
    return _graph(document, pointer, 0)


def _graph(document: object, pointer: str, nested: int) -> Graph:
    if nested > MOST_NESTED:
        message = f"workflows are nested deeper than {MOST_NESTED}"
        raise InvalidInput(message, hint="make a job of the inner one, and name it", pointer=pointer, code="limit")
    given = Fields(document, pointer, _GRAPH)
    return Graph(
        nodes=given.need("nodes", listed(lambda value, place: _node(value, place, nested))),
        params=given.get("params", named(_param, "param"), {}),
        max_parallel=given.get("max_parallel", a_whole, None),
        output=given.get("output", a_name("output"), None),
    )


def _param(value: object, pointer: str) -> Ref | None:
    return Fields(value, pointer, ("default",)).get("default", _ref(*_FIXED), None)


def _node(value: object, pointer: str, nested: int) -> Node:
    given = Fields(value, pointer, _ALL)
    kind = _kind(given)
    for field in given.fields:
        if field not in _FIELDS[kind] and given.fields[field] is not None:
            hint = f"its fields are {', '.join(_FIELDS[kind])}"
            message = f"a node with `{kind}` takes no {field}"
            raise InvalidInput(message, hint=hint, pointer=at(pointer, field), code="conflicting_fields")
    name = given.need("name", a_name("name"))
    return Node(
        name=name,
        task=given.get("task", a_name("task"), None),
        workflow=given.get("workflow", lambda value, place: _workflow(value, place, nested), None),
        wait=given.get("wait", _wait, None),
        signal=given.get("signal", _signal, None),
        kwargs=given.get("kwargs", _kwargs, {}),
        takes=given.get("takes", named(_ref(*Source), "argument"), {}),
        over=given.get("over", _ref(Source.NODE, Source.PARAM, Source.VALUE), None),
        max_items=given.get("max_items", a_whole, None),
        max_parallel=given.get("max_parallel", a_whole, None),
        after=given.get("after", listed(lambda value, place: _edge(value, place, name)), ()),
        when=given.get("when", a_word(When, "when"), When.ALL_SUCCESS),
        undoes=given.get("undoes", a_name("undoes"), None),
        pool=given.get("pool", a_name("pool"), None),
        priority=given.get("priority", a_whole, None),
        timeout=given.get("timeout", a_length("timeout"), None),
        heartbeat=given.get("heartbeat", a_length("heartbeat"), None),
        retry=given.get("retry", _retry, None),
        delivery=given.get("delivery", a_word(Delivery, "delivery"), None),
    )


def _kind(given: Fields) -> Kind:
    kinds = [kind for kind in Kind if given.fields.get(kind) is not None]
    if not kinds:
        hint = f"give one of {', '.join(Kind)}"
        raise InvalidInput("the node does nothing", hint=hint, pointer=given.pointer, code="missing_field")
    if len(kinds) > 1:
        message, place = f"{kinds[0]} and {kinds[1]} are both given", at(given.pointer, kinds[1])
        raise InvalidInput(message, hint="make one node for each", pointer=place, code="conflicting_fields")
    return kinds[0]


def _workflow(value: object, pointer: str, nested: int) -> Graph | str:
    return a_name("workflow")(value, pointer) if isinstance(value, str) else _graph(value, pointer, nested + 1)


def _wait(value: object, pointer: str) -> Wait:
    given = Fields(value, pointer, ("for", "until"))
    wait = Wait(given.get("for", a_length("for"), None), given.get("until", _until, None))
    if (wait.length is None) == (wait.until is None):
        code = "missing_field" if wait.length is None else "conflicting_fields"
        raise InvalidInput("a wait is `for` a length or `until` an instant", pointer=pointer, code=code)
    return wait


def _until(value: object, pointer: str) -> Ref:
    """An instant, which is as a reference to that value; any other reference is read when its time comes."""
    if isinstance(value, str):
        return Ref(Source.VALUE, value=_instant(value, pointer))
    ref = _ref(Source.NODE, Source.PARAM, *_FIXED)(value, pointer)
    return Ref(Source.VALUE, value=_instant(ref.value, at(pointer, "value"))) if ref.source is Source.VALUE else ref


def _instant(value: Any, pointer: str) -> str:
    return write_instant(read_instant(value, what="until", pointer=pointer))


def _signal(value: object, pointer: str) -> Signal:
    given = Fields(value, pointer, ("name", "timeout", "default"))
    signal = Signal(
        name=given.get("name", a_name("name"), None),
        timeout=given.get("timeout", a_length("timeout"), None),
        default=given.get("default", _ref(Source.PARAM, *_FIXED), None),
    )
    if signal.default is not None and signal.timeout is None:
        hint = "say how long to wait before the default is taken"
        raise InvalidInput("default goes with timeout", hint=hint, pointer=at(pointer, "timeout"), code="missing_field")
    return signal


def _edge(value: object, pointer: str, child: str) -> Edge:
    if isinstance(value, str):
        return Edge(a_name("after")(value, pointer), child)
    given = Fields(value, pointer, ("node", "is"))
    parent = given.need("node", a_name("node"))
    if "is" not in given.fields:
        return Edge(parent, child)
    wanted = to_plain(given.fields["is"], pointer=at(pointer, "is"))  # null is a value too
    return Edge(parent, child, canonical(wanted))


def _ref(*allowed: Source) -> Reader[Ref]:
    def read(value: object, pointer: str) -> Ref:
        given = Fields(value, pointer, (*Source, "path"))
        sources = [source for source in Source if source in given.fields]
        if len(sources) != 1 or sources[0] not in allowed:
            message = f"the reference must name one of {', '.join(allowed)}"
            raise InvalidInput(message, hint=f'such as {{"{allowed[0]}": …}}', pointer=pointer, code="choice")
        source = sources[0]
        path = given.get("path", _path, ())
        if path and source not in _PATHS:
            message = f"there is no path into `{source}`"
            raise InvalidInput(message, pointer=at(pointer, "path"), code="conflicting_fields")
        if source is Source.VALUE:
            return Ref(source, value=to_plain(given.fields[source], pointer=at(pointer, source)))
        return Ref(source, given.need(source, _SOURCES[source]), path)

    return read


def _path(value: object, pointer: str) -> tuple[str | int, ...]:
    steps = listed(_path_step)(value, pointer)
    if len(steps) > DEEPEST:
        raise InvalidInput(f"the path has more than {DEEPEST} steps", pointer=pointer, code="limit")
    return steps


def _path_step(value: object, pointer: str) -> str | int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        mistyped("a field or a place in a list", pointer)
    step: str | int = to_plain(value, pointer=pointer)
    return step


def _true(value: object, pointer: str) -> str:
    if value is not True:
        mistyped("true", pointer)
    return ""


def _kwargs(value: object, pointer: str) -> dict[str, Any]:
    kwargs: dict[str, Any] = to_plain(dict(mapping(value, pointer)), pointer=pointer)
    return kwargs


def _retry(value: object, pointer: str) -> Retry:
    try:
        return Retry.parse(value)
    except InvalidInput as fault:
        fault.pointer = pointer + fault.pointer.removeprefix("/retry")
        raise


_SOURCES: Final[Mapping[Source, Reader[str]]] = {
    Source.NODE: a_name("node"),
    Source.PARAM: a_name("param"),
    Source.RUN: a_word(Fact, "run"),
    Source.ITEM: _true,
    Source.INDEX: _true,
}
