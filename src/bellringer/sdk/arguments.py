"""Arguments of nodes and params of workflows: by name, and some of them known only when the workflow runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from inspect import Parameter as Kind
from typing import Any

from bellringer.errors import InvalidInput
from bellringer.payload import to_plain
from bellringer.sdk.values import Value
from bellringer.signatures import Parameter, Signature, read_signature
from bellringer.workflows import Ref, Source


def by_name(signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by their names, for that is how those of nodes and workflows travel."""
    places = signature.by_position
    if len(args) > len(places) or any(p.name not in signature.by_name for p in places[: len(args)]):
        hint = "let it take what it needs by name"
        message = f"{signature.task} takes an argument by its place only"
        if len(args) > len(places) and signature.rest is None:
            message, hint = f"{signature.task} takes at most {len(places)} arguments by position", ""
        raise InvalidInput(message, hint=hint, pointer="/args", code="too_many_arguments")
    placed = {parameter.name: value for parameter, value in zip(places, args, strict=False)}
    for name in placed.keys() & kwargs.keys():
        message = f"{signature.task} was given its argument {name!r} twice"
        raise InvalidInput(message, pointer=f"/kwargs/{name}", code="argument_twice")
    return placed | dict(kwargs)


def bind(signature: Signature, given: Mapping[str, Any], later: Collection[str] = ()) -> dict[str, Any]:
    """Check arguments and give back those that are known, as plain JSON. Those that come `later` may be anything."""
    for name, value in given.items():
        if name not in later:
            _refuse_inside(signature, name, value)
    known = {name for name in later if name in signature.by_name or signature.others}
    open_minded = replace(signature, by_name={**signature.by_name, **{name: Parameter(name) for name in known}})
    _, named = open_minded.bind([], {name: None if name in later else value for name, value in given.items()})
    return {name: value for name, value in named.items() if name not in later}


def read_params(
    function: Callable[..., Any], name: str, owner: object
) -> tuple[Signature, dict[str, Ref | None], dict[str, Value]]:
    """What the function of a workflow takes beside the workflow: types, defaults, and what stands for each."""
    declared = list(inspect.signature(function).parameters.values())
    if not declared or declared[0].kind not in (Kind.POSITIONAL_ONLY, Kind.POSITIONAL_OR_KEYWORD):
        hint = f"write def {getattr(function, '__name__', 'etl')}(wf: Workflow, …)"
        raise InvalidInput(f"{name} takes no workflow to declare its nodes with", hint=hint, code="missing_argument")
    params: dict[str, Ref | None] = {}
    for parameter in declared[1:]:
        if parameter.kind not in (Kind.POSITIONAL_OR_KEYWORD, Kind.KEYWORD_ONLY):
            hint = "a workflow takes its params by name, and knows them all"
            raise InvalidInput(f"{name} cannot take {str(parameter)!r}", hint=hint, code="type")
        params[parameter.name] = _default(parameter)
    handles = {param: Value(Ref(Source.PARAM, param), owner) for param in params}
    return read_signature(partial(function, owner), name), params, handles


def takes_workflow(function: object) -> bool:
    """Whether a function declares nodes, by what it says of its first argument."""
    try:
        declared = list(inspect.signature(function).parameters.values()) if callable(function) else []
    except (TypeError, ValueError):
        return False
    said = declared[0].annotation if declared else None
    named = said if isinstance(said, str) else getattr(said, "__name__", "")
    return named.strip("\"' ").rpartition(".")[2] == "Workflow"


def _default(parameter: Kind) -> Ref | None:
    value = parameter.default
    if value is Kind.empty:
        return None
    if isinstance(value, Value):
        return value.ref
    return Ref(Source.VALUE, value=to_plain(value, what=f"the default of {parameter.name!r}"))


def _refuse_inside(signature: Signature, name: str, value: Any) -> None:
    """What is yet to come is an argument of its own: nobody would fill it in inside of another."""
    inner = list(value.values()) if isinstance(value, dict) else list(value) if isinstance(value, list | tuple) else []
    for item in inner:
        if isinstance(item, Value):
            message = f"{item!r} stands inside of the argument {name!r} of {signature.task}"
            raise InvalidInput(
                message, hint="give it as an argument of its own", pointer=f"/kwargs/{name}", code="type"
            )
        _refuse_inside(signature, name, item)
