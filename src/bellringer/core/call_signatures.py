"""Signatures of tasks: binds and converts arguments by a function's parameters, and describes them as JSON Schema."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter as Kind
from types import SimpleNamespace
from typing import Any, Final, get_type_hints

import msgspec

from bellringer.core.payload import check_payload, decode, encode_arguments, to_plain
from bellringer.core.secret_references import find_references
from bellringer.errors import InvalidInput

MAX_CACHED_FORMS: Final = 64
_EXACT_TYPES: Final = frozenset({str, int, float, bool})  # a value of such a type needs no conversion to it
_BY_POSITION: Final = (Kind.POSITIONAL_ONLY, Kind.POSITIONAL_OR_KEYWORD)
_BY_NAME: Final = (Kind.POSITIONAL_OR_KEYWORD, Kind.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter; `type` is None if arguments cannot be checked against the annotation."""

    name: str
    type: Any = None
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """The parameters of one task, without the context."""

    task: str
    by_position: tuple[Parameter, ...] = ()
    by_name: Mapping[str, Parameter] = field(default_factory=dict)
    rest: Parameter | None = None  # *args
    others: Parameter | None = None  # **kwargs
    required: tuple[str, ...] = ()
    wants_context: bool = False
    schema: dict[str, Any] = field(default_factory=dict)
    _matched: dict[tuple[Any, ...], tuple[list[Parameter], list[Parameter]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Check arguments and return them in stored form, as plain JSON."""
        stored = decode(self.encode(args, kwargs))
        return stored["args"], stored["kwargs"]

    def encode(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        """Check arguments and return them as JSON: {"args":[…],"kwargs":{…}}."""
        placed, named = self._match(args, kwargs)
        try:
            data = encode_arguments(args, kwargs)
        except InvalidInput:
            for place, (parameter, value) in enumerate(zip(placed, args, strict=True)):
                check_payload(value, pointer=f"/args/{place}", what=self._argument(parameter.name))
            for name, value in kwargs.items():
                check_payload(value, pointer=f"/kwargs/{name}", what=self._argument(name))
            raise  # each argument is valid, but together they are too large
        given = (*zip(placed, args, strict=True), *zip(named, kwargs.values(), strict=True))
        if any(p.type is not None and (type(v) is not p.type or p.type not in _EXACT_TYPES) for p, v in given):
            stored = decode(data)  # the types apply to the stored form
            if b'"$secret"' in data:  # the value of a reference is known only to the worker
                placed, named = _without_types(placed, stored["args"]), _without_types(named, stored["kwargs"].values())
            self._typed(placed, named, stored["args"], stored["kwargs"])
        return data

    def convert(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Convert stored arguments to the annotated types. Raises if the signature has changed incompatibly."""
        if not args and not kwargs and not self.required:
            return [], {}
        placed, named = self._match(args, kwargs)
        return self._typed(placed, named, args, kwargs)

    def _match(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Parameter], list[Parameter]]:
        """Return the parameter of each argument. Raises for missing, unknown, surplus and duplicate arguments."""
        form = (len(args), *kwargs)  # the result depends on nothing else, and programs use few forms
        matched = self._matched.get(form)
        if matched is None:
            matched = self._match_form(len(args), kwargs)
            if len(self._matched) < MAX_CACHED_FORMS:
                self._matched[form] = matched
        return matched

    def _match_form(self, count: int, kwargs: Mapping[str, Any]) -> tuple[list[Parameter], list[Parameter]]:
        placed = list(self.by_position[:count])
        taken = {parameter.name for parameter in placed}
        if surplus := count - len(placed):
            if self.rest is None:
                raise self._refusal(
                    f"takes at most {len(placed)} positional arguments, but {count} were given",
                    hint="pass the others by name, or leave them out",
                    pointer=f"/args/{len(placed)}",
                    code="too_many_arguments",
                )
            placed += [self.rest] * surplus
        named = [self._named(name, taken) for name in kwargs]
        for name in self.required:
            if name not in taken and name not in kwargs:
                raise self._refusal(f"is missing the argument {name!r}", pointer="/kwargs", code="missing_argument")
        return placed, named

    def _named(self, name: str, taken: set[str]) -> Parameter:
        parameter = self.by_name.get(name)
        if parameter is not None and name in taken:
            raise self._refusal(
                f"got the argument {name!r} twice",
                hint="pass it either by position or by name",
                pointer=f"/kwargs/{name}",
                code="argument_twice",
            )
        if parameter is not None or self.others is not None:
            return parameter or self.others or Parameter(name)
        shown = str(name)[:200]
        close = difflib.get_close_matches(shown, self.by_name, 1)
        raise self._refusal(
            f"has no argument {shown!r}",
            hint=f"did you mean {close[0]!r}?" if close else f"its arguments are: {', '.join(self.by_name) or 'none'}",
            pointer=f"/kwargs/{shown}",
            code="unexpected_argument",
        )

    def _typed(
        self,
        placed: Iterable[Parameter],
        named: Iterable[Parameter],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> tuple[list[Any], dict[str, Any]]:
        return (
            [
                value if parameter.type is None else self._one(parameter.name, parameter.type, place, value)
                for place, (parameter, value) in enumerate(zip(placed, args, strict=True))
            ],
            {
                name: value if parameter.type is None else self._one(name, parameter.type, None, value)
                for parameter, (name, value) in zip(named, kwargs.items(), strict=True)
            },
        )

    def _one(self, name: str, kind: Any, place: int | None, value: Any) -> Any:
        try:
            return msgspec.convert(value, kind, str_keys=True, dec_hook=_read_model)
        except msgspec.ValidationError:
            pass  # exact types have precedence; the second attempt also accepts "7" for 7
        try:
            return msgspec.convert(value, kind, strict=False, str_keys=True, dec_hook=_read_model)
        except msgspec.ValidationError as error:
            pointer = f"/kwargs/{name}" if place is None else f"/args/{place}"
            raise self._refusal(f"got an invalid argument {name!r}: {error}", pointer=pointer, code="type") from None

    def _argument(self, name: str) -> str:
        return f"argument {name!r} of {self.task}"

    def _refusal(self, problem: str, *, pointer: str, code: str, hint: str = "") -> InvalidInput:
        return InvalidInput(f"{self.task} {problem}", hint=hint, pointer=pointer, code=code)


def _without_types(parameters: Iterable[Parameter], values: Iterable[Any]) -> list[Parameter]:
    """Returns the parameters; those whose argument contains a reference to a secret have no type."""
    return [
        Parameter(parameter.name) if any(True for _ in find_references(value)) else parameter
        for parameter, value in zip(parameters, values, strict=True)
    ]


def read_signature(function: Callable[..., Any], task: str) -> Signature:
    """Read the signature of a function. Arguments with an unsupported annotation are not checked."""
    try:
        declared = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a C function without a signature
        return Signature(task=task, rest=Parameter("args"), others=Parameter("kwargs"))
    hints = [_hint(function, parameter) for parameter in declared]
    wants_context = bool(declared) and _is_context(declared[0], hints[0])
    if wants_context:
        del declared[0], hints[0]
    sorts = [parameter.kind for parameter in declared]
    known = [
        Parameter(p.name, hint if _is_readable(hint) else None, _is_required(p))
        for p, hint in zip(declared, hints, strict=True)
    ]
    pairs = list(zip(known, sorts, strict=True))
    return Signature(
        task=task,
        by_position=tuple(p for p, sort in pairs if sort in _BY_POSITION),
        by_name={p.name: p for p, sort in pairs if sort in _BY_NAME},
        rest=next((p for p, sort in pairs if sort is Kind.VAR_POSITIONAL), None),
        others=next((p for p, sort in pairs if sort is Kind.VAR_KEYWORD), None),
        required=tuple(p.name for p in known if p.required),
        wants_context=wants_context,
        schema=_schema(known, declared),
    )


def _hint(function: Callable[..., Any], parameter: Kind) -> Any:
    """Resolve an annotation; one that cannot be resolved is returned as text."""
    inner = inspect.unwrap(function)
    inner = getattr(inner, "func", inner)  # functools.partial
    names = getattr(inner, "__globals__", None) or getattr(type(inner).__call__, "__globals__", {})
    lone = SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    try:
        return get_type_hints(lone, globalns=names, include_extras=True)[parameter.name]
    except Exception:  # noqa: BLE001 - an annotation is an arbitrary expression and can raise anything
        return parameter.annotation


def _is_context(parameter: Kind, hint: Any) -> bool:
    """Whether a parameter takes the context. Compares names: this layer cannot import Context, and under
    `if TYPE_CHECKING` the annotation is only text."""
    if parameter.kind not in _BY_POSITION:
        return False
    if isinstance(hint, str):
        named_so = hint.strip("\"' ").rpartition(".")[2] == "Context"
    else:
        named_so = (
            getattr(hint, "__name__", "") == "Context"
            and str(getattr(hint, "__module__", "")).partition(".")[0] == "bellringer"
        )
    return named_so or parameter.name == "ctx"


def _is_required(parameter: Kind) -> bool:
    open_ended = parameter.kind in (Kind.VAR_POSITIONAL, Kind.VAR_KEYWORD)
    return parameter.default is Kind.empty and not open_ended


def _is_readable(hint: Any) -> bool:
    if hint is Kind.empty or hint is Any or isinstance(hint, str):
        return False
    try:
        msgspec.json.schema(hint, schema_hook=_model_schema)
    except Exception:  # noqa: BLE001 - user-defined types can raise anything
        return False
    return True


def _schema(known: Sequence[Parameter], declared: Sequence[Kind]) -> dict[str, Any]:
    """Return the JSON Schema of the arguments as one object."""
    listed = [
        (p, d) for p, d in zip(known, declared, strict=True) if d.kind not in (Kind.VAR_POSITIONAL, Kind.VAR_KEYWORD)
    ]
    types = [Any if p.type is None else p.type for p, _ in listed]
    schemas, shared = msgspec.json.schema_components(types, schema_hook=_model_schema, ref_template="#/$defs/{name}")
    properties = {p.name: {**schema, **_default(d.default)} for (p, d), schema in zip(listed, schemas, strict=True)}
    return {
        "type": "object",
        "properties": properties,
        "required": [p.name for p, _ in listed if p.required],
        "additionalProperties": any(d.kind is Kind.VAR_KEYWORD for d in declared),
        **({"$defs": shared} if shared else {}),
    }


def _default(value: Any) -> dict[str, Any]:
    if value is Kind.empty:
        return {}
    try:
        return {"default": to_plain(value)}
    except InvalidInput:
        return {}


def _read_model(kind: Any, value: Any) -> Any:
    """Decode hook of msgspec for pydantic models."""
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    raise NotImplementedError


def _model_schema(kind: Any) -> dict[str, Any]:
    if hasattr(kind, "model_validate"):
        return {"type": "object"}
    raise NotImplementedError
