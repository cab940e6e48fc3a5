"""Declares endpoints: the handler, the roles that may call it, its request and its responses.

Each operation is declared once, beside its handler. Routing, admission, the checks of queries and bodies, and the
OpenAPI document all use this declaration.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.responses import Response

from bellringer.access import Role
from bellringer.wire.routes import Route

if TYPE_CHECKING:
    from bellringer.api.http.request import RequestContext

Handler = Callable[["RequestContext"], Awaitable[Response]]
Shape = type[msgspec.Struct]


@dataclass(frozen=True, slots=True)
class Query:
    """One query parameter: its name, its JSON Schema and its description."""

    name: str
    schema: Mapping[str, Any]
    doc: str


def string(name: str, doc: str, **schema: Any) -> Query:
    return Query(name, {"type": "string", **schema}, doc)


def choice(name: str, doc: str, words: Sequence[str]) -> Query:
    return Query(name, {"type": "string", "enum": list(words)}, doc)


def flag(name: str, doc: str) -> Query:
    return Query(name, {"type": "string", "enum": ["true", "false"]}, doc)


def number(name: str, doc: str, least: int, most: int) -> Query:
    return Query(name, {"type": "integer", "minimum": least, "maximum": most}, doc)


def moment(name: str, doc: str) -> Query:
    return Query(name, {"type": "string", "format": "date-time"}, doc)


TAGS: Final[set[str]] = set()  # the tags of all operations; scopes of keys are made of them

LIMIT_PARAMETER: Final = Query(
    "limit", {"type": "integer", "minimum": 1, "maximum": 200, "default": 50}, "maximum number of items"
)
CURSOR_PARAMETER: Final = string("cursor", "next_cursor of the previous page")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One method of one path."""

    handler: Handler
    route: Route[Any]  # the method, path, body and responses
    role: Role | None  # the lowest role that may call it; None: no login is required
    everywhere: bool  # only for callers of the whole installation; others get 404
    query: Sequence[Query]
    conditional: bool  # supports If-Match
    problems: Sequence[int]  # error statuses beside those that follow from its form
    streams: bool  # the response may be a stream
    fires: bool  # it creates a run, which counts against the tenant's rate limit
    secret: bool  # the response contains a secret, so it must not be stored

    @property
    def tag(self) -> str:
        return self.route.tag

    @property
    def summary(self) -> str:
        return (self.handler.__doc__ or "").strip().split("\n")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Declaration:
    """The declaration of an operation before it has a handler."""

    terms: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, handler: Handler) -> Endpoint:
        return Endpoint(handler=handler, **self.terms)


def operation(
    route: Route[Any],
    *,
    role: Role | None,
    everywhere: bool = False,
    query: Sequence[Query] = (),
    conditional: bool = False,
    problems: Sequence[int] = (),
    streams: bool = False,
    fires: bool = False,
    secret: bool = False,
) -> _Declaration:
    """Declares a handler as an operation; its docstring becomes the description in the OpenAPI document."""
    TAGS.add(route.tag)
    return _Declaration(
        terms={
            "route": route,
            "role": role,
            "everywhere": everywhere,
            "query": query,
            "conditional": conditional,
            "problems": problems,
            "streams": streams,
            "fires": fires,
            "secret": secret,
        }
    )
