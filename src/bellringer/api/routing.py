"""Finds the endpoint of a path part by part, so that a hundred routes cost no more than ten."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

_ANY: Final = object()  # a part that may be anything
_HERE: Final = object()  # the endpoint of a path that ends here

_Node = dict[Any, Any]


class Switch(BaseRoute):
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

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        parts = scope["path"].split("/") if scope["type"] == "http" else []
        values: list[str] = []
        found = _find(self._root, parts, 0, values)
        if found is None:
            return Match.NONE, {}
        endpoint, names = found
        return Match.FULL, {"endpoint": endpoint, "path_params": dict(zip(names, values, strict=True))}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await scope["endpoint"](scope, receive, send)


class Pages(BaseRoute):
    """What is below a path, for browsers; and the root for them, where a program finds the index."""

    def __init__(self, path: str, pages: ASGIApp) -> None:
        self._path = path
        self._pages = pages

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        path = scope.get("path", "")
        below = path == self._path or path.startswith(f"{self._path}/")
        return (Match.FULL, {"endpoint": self._pages}) if below or (path == "/" and _reads(scope)) else (Match.NONE, {})

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._pages(scope, receive, send)


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
