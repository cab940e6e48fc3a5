"""The reference of the Python SDK, from signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import bellringer
import bellringer.client
import bellringer.testing
from bellringer.client.calls import Call
from tools.reference.markdown import page

INTRODUCTION = (
    "The public names of `bellringer`, `bellringer.client` (clients of the REST API) and `bellringer.testing` (a test"
    " engine with a clock that you control)."
)
PACKAGES = (bellringer, bellringer.client, bellringer.testing)


def render_sdk() -> str:
    """Returns the page with one section per public name."""
    return page("Python SDK", INTRODUCTION, *(_package(package) for package in PACKAGES))


def _package(package: Any) -> str:
    names = package.__all__
    return "\n\n".join([f"## {package.__name__}", *(_entry(name, getattr(package, name)) for name in names)])


def _entry(name: str, value: Any) -> str:
    if not callable(value):
        return f"### {name}\n\n`{name}` = `{value!r}`"
    parts = [f"### {name}", f"```text\n{name}{_signature(value)}\n```", _doc(value)]
    if inspect.isclass(value) and not issubclass(value, BaseException):
        parts += [_method(member, found) for member, found in _members(value)]
    return "\n\n".join(part for part in parts if part)


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yields the public methods and properties, inherited ones last; calls of the API as their declarations."""
    seen = set()
    for owner in kind.__mro__:
        for name, found in vars(owner).items():
            value = found.declaration if isinstance(found, Call) else found
            if name in seen or name.startswith("_") or not _doc(value):
                continue
            if inspect.isfunction(value) or isinstance(value, property):
                seen.add(name)
                yield name, value


def _method(name: str, value: Any) -> str:
    if isinstance(value, property):
        return f"**{name}**: {_doc(value)}"
    first = "async " if inspect.iscoroutinefunction(value) else ""
    return f"```text\n{first}{name}{_signature(value)}\n```\n\n{_doc(value)}"


def _signature(value: Any) -> str:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    shown = [p.replace(annotation=p.empty) for p in signature.parameters.values() if p.name not in {"self", "cls"}]
    text = str(signature.replace(parameters=shown, return_annotation=signature.empty))
    text = re.sub(r"<\w+\.\w+: ('[^']*')>", r"\1", text)  # members of enumerations
    return re.sub(r"<[^<>]* at 0x\w+>", "…", text)


def _doc(value: Any) -> str:
    return inspect.getdoc(value) or ""
