"""Binds the arguments of nodes and the params of workflows; some values are known only at run time."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from inspect import Parameter as Kind
from typing import Any

from bellringer.core.call_signatures import Parameter, Signature, read_signature
from bellringer.core.payload import to_plain
from bellringer.errors import InvalidInput
from bellringer.sdk.workflow_values import Value
from bellringer.workflow import Ref, ValueSource


def by_name(signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Convert positional arguments to named ones: nodes and workflows store arguments by name."""
    places = signature.by_position
    if len(args) > len(places) or any(p.name not in signature.by_name for p in places[: len(args)]):
        hint = "change the function so that all its arguments can be passed by name"
        message = f"{signature.task} takes a positional-only argument"
        if len(args) > len(places) and signature.rest is None:
            message = f"{signature.task} takes at most {len(places)} positional arguments"
            hint = "pass the others by name, or leave them out"
        raise InvalidInput(message, hint=hint, pointer="/args", code="too_many_arguments")
    placed = {parameter.name: value for parameter, value in zip(places, args, strict=False)}
    for name in placed.keys() & kwargs.keys():
        message = f"{signature.task} got the argument {name!r} twice"
        hint = "pass it either by position or by name"
        raise InvalidInput(message, hint=hint, pointer=f"/kwargs/{name}", code="argument_twice")
    return placed | dict(kwargs)


def bind(signature: Signature, given: Mapping[str, Any], later: Collection[str] = ()) -> dict[str, Any]:
    """Check the arguments, and return the constants as plain JSON. The values of `later` are not known yet."""
    for name, value in given.items():
        if name not in later:
            _refuse_inside(signature, name, value)
    known = {name for name in later if name in signature.by_name or signature.others}
    relaxed = replace(signature, by_name={**signature.by_name, **{name: Parameter(name) for name in known}})
    _, named = relaxed.bind([], {name: None if name in later else value for name, value in given.items()})
    return {name: value for name, value in named.items() if name not in later}


def read_params(
    function: Callable[..., Any], name: str, owner: object
) -> tuple[Signature, dict[str, Ref | None], dict[str, Value]]:
    """Read the params of a workflow function: its signature, the defaults, and the placeholders to call it with."""
    declared = list(inspect.signature(function).parameters.values())
    if not declared or declared[0].kind not in (Kind.POSITIONAL_ONLY, Kind.POSITIONAL_OR_KEYWORD):
        hint = f"write def {getattr(function, '__name__', 'etl')}(wf: Workflow, …)"
        raise InvalidInput(f"{name} has no parameter for the workflow", hint=hint, code="missing_argument")
    params: dict[str, Ref | None] = {}
    for parameter in declared[1:]:
        if parameter.kind not in (Kind.POSITIONAL_OR_KEYWORD, Kind.KEYWORD_ONLY):
            hint = "params of a workflow must be named parameters"
            raise InvalidInput(f"{name} cannot take {str(parameter)!r}", hint=hint, code="type")
        params[parameter.name] = _default(parameter)
    handles = {param: Value(Ref(ValueSource.PARAM, param), owner) for param in params}
    return read_signature(partial(function, owner), name), params, handles


def takes_workflow(function: object) -> bool:
    """Whether the first parameter of a function is annotated as Workflow."""
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
    return Ref(ValueSource.VALUE, value=to_plain(value, what=f"the default of {parameter.name!r}"))


def _refuse_inside(signature: Signature, name: str, value: Any) -> None:
    """Reject placeholders inside of lists and dicts: only whole arguments are replaced at run time."""
    inner = list(value.values()) if isinstance(value, dict) else list(value) if isinstance(value, list | tuple) else []
    for item in inner:
        if isinstance(item, Value):
            message = f"{item!r} is nested in the argument {name!r} of {signature.task}"
            raise InvalidInput(message, hint="pass it as a separate argument", pointer=f"/kwargs/{name}", code="type")
        _refuse_inside(signature, name, item)
