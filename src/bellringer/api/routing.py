"""Finds the endpoint of a path part by part, so that a hundred routes cost no more than ten."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from starlette.types import ASGIApp, Scope

_ANY: Final = object()  # a part that may be anything
_HERE: Final = object()  # the endpoint of a path that ends here

_Node = dict[Any, Any]


class Switch:
    """All routes at once. A part that is written out goes before one that may be anything."""

    def __init__(self, endpoints: Mapping[str, ASGIApp]) -> None:
        self._root: _Node = {}
        for template, endpoint in endpoints.items():
            node, names = self._root, []
            for part in template.split("/"):
                is_open = part.startswith("{")
                names += [part.strip("{}")] if is_open else []
                node = node.setdefault(_ANY if is_open else part, {})
            node[_HERE] = (endpoint, names)

    def find(self, path: str) -> tuple[ASGIApp, Mapping[str, str]] | None:
        """The endpoint of a path, and the parts that its template leaves open."""
        values: list[str] = []
        found = _find(self._root, path.split("/"), 0, values)
        return None if found is None else (found[0], dict(zip(found[1], values, strict=True)))


class Pages:
    """What is below a path, for browsers; and the root for them, where a program finds the index."""

    def __init__(self, path: str, app: ASGIApp) -> None:
        self._path = path
        self.app = app

    def has(self, scope: Scope) -> bool:
        path: str = scope["path"]
        return path == self._path or path.startswith(f"{self._path}/") or (path == "/" and _reads(scope))


def _reads(scope: Scope) -> bool:
    """Whether a person seems to ask: a browser wants HTML; who wants nothing in particular gets what a person would."""
    wanted = [value for name, value in scope["headers"] if name == b"accept"]
    return not wanted or any(b"text/html" in value for value in wanted)


def _find(node: _Node, parts: list[str], place: int, values: list[str]) -> tuple[ASGIApp, list[str]] | None:
    if place == len(parts):
        return node.get(_HERE)
    part = parts[place]
    if part in node and (found := _find(node[part], parts, place + 1, values)) is not None:
        return found
    if not part or _ANY not in node:
        return None
    values.append(part)
    found = _find(node[_ANY], parts, place + 1, values)
    if found is None:
        values.pop()
    return found
