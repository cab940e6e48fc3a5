"""What each operation is called: by the Python client's method where it has one, else by its own method and path."""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, Final

from bellringer import wire
from bellringer.api.operations import Operation
from bellringer.wire.asks import Ask

Table = Mapping[str, Mapping[str, Operation]]
Place = tuple[str, str]  # a method and the template of a path

_ANY: Final = "~"  # stands for a part of a path; quoting leaves it as it is
_STAND_INS: Final[tuple[tuple[str, Any], ...]] = (("int", 1), ("Sequence", ()), ("Document", {}), ("Mapping", {}))


def names(table: Table) -> Mapping[Place, str]:
    """The name of each operation. What one call of the client says in more words than another is the other's."""
    templates = [(method, path) for path, at in table.items() for method in at]
    found: dict[Place, tuple[int, str]] = {}
    for name, ask in _samples():
        place = _place(templates, ask)
        if place is not None:
            found[place] = min((len(ask.query) + len(ask.body or ()), name), found.get(place, (1 << 30, "")))
    return {place: found[place][1] if place in found else _derived(*place) for place in templates}


def _samples() -> Iterator[tuple[str, Ask[Any]]]:
    """Every ask of `wire.asks` and its neighbours, made with stand-ins for what it must be given."""
    for module in pkgutil.iter_modules(wire.__path__):
        if not module.name.startswith("asks"):
            continue
        held = import_module(f"{wire.__name__}.{module.name}")
        for name, made in inspect.getmembers(held, inspect.isfunction):
            told = str(made.__annotations__.get("return", ""))
            if not name.startswith("_") and made.__module__ == held.__name__ and told.startswith("Ask["):
                yield name, _sample(made)


def _sample(make: Callable[..., Ask[Any]]) -> Ask[Any]:
    needed = [
        p
        for p in inspect.signature(make).parameters.values()
        if p.default is p.empty and p.kind not in {p.VAR_KEYWORD, p.VAR_POSITIONAL}
    ]
    placed = [_stand_in(p) for p in needed if p.kind is not p.KEYWORD_ONLY]
    return make(*placed, **{p.name: _stand_in(p) for p in needed if p.kind is p.KEYWORD_ONLY})


def _stand_in(parameter: inspect.Parameter) -> Any:
    told = str(parameter.annotation)
    return next((value for kind, value in _STAND_INS if told.startswith(kind)), _ANY)


def _place(templates: list[Place], ask: Ask[Any]) -> Place | None:
    """Which operation an ask goes to; a word of the path goes before a part."""
    parts = ask.path.split("/")
    fitting = [(method, path) for method, path in templates if method == ask.method and _fits(path.split("/"), parts)]
    return min(fitting, key=lambda place: place[1].count("{"), default=None)


def _fits(template: list[str], parts: list[str]) -> bool:
    return len(template) == len(parts) and all(
        word == part or word.startswith("{") for word, part in zip(template, parts, strict=True)
    )


def _derived(method: str, path: str) -> str:
    return "_".join([method.lower(), *re.findall(r"\w+", path.removeprefix("/api"))])
