"""What an endpoint is: its handler, who may call it, what it reads and how it answers.

Declared once beside the handler. Routing, admission, the check of queries and bodies, and the OpenAPI document all read
it from here, so none of them can tell something else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.bodies import JSON
from bellringer.wire.asks import BODY_LIMIT

if TYPE_CHECKING:
    from bellringer.api.calls import Call

Handler = Callable[["Call"], Awaitable[Response]]
Shape = type[msgspec.Struct]


@dataclass(frozen=True, slots=True)
class Query:
    """One parameter of a query: its name, what it may be (as JSON Schema), and what it means."""

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


TAGS: Final[set[str]] = set()  # of all operations: what a key may be scoped to

LIMIT: Final = Query("limit", {"type": "integer", "minimum": 1, "maximum": 200, "default": 50}, "how many at most")
CURSOR: Final = string("cursor", "where the page before ended, from its next_cursor")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path."""

    handler: Handler
    tag: str
    role: Role | None  # the least that may; None: anyone, without a login
    everywhere: bool  # only callers of the whole installation; to others it is not there
    answers: Mapping[int, Any]  # by status: a shape (or several), another media type as text, or nothing
    body: Shape | None
    optional: bool  # the body may be missing
    media: Sequence[str]  # what the body may be
    query: Sequence[Query]
    conditional: bool  # heeds If-Match
    problems: Sequence[int]  # statuses of refusals beside those that its form implies
    streams: bool  # its answer may go on for long
    fires: bool  # it makes a run, and counts as one against the tenant's rate
    secret: bool  # its answer holds a secret, so nobody may keep it
    largest: int  # bytes of a body

    @property
    def summary(self) -> str:
        return (self.handler.__doc__ or "").strip().split("\n")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Declaration:
    """The terms of an operation, before it has its handler."""

    terms: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, handler: Handler) -> Operation:
        return Operation(handler=handler, **self.terms)


def operation(
    tag: str,
    *,
    role: Role | None,
    answers: Mapping[int, Any],
    everywhere: bool = False,
    body: Shape | None = None,
    optional: bool = False,
    media: Sequence[str] = (JSON,),
    query: Sequence[Query] = (),
    conditional: bool = False,
    problems: Sequence[int] = (),
    streams: bool = False,
    fires: bool = False,
    secret: bool = False,
    largest: int = BODY_LIMIT,
) -> _Declaration:
    """Declare a handler; its docstring tells callers what it does."""
    TAGS.add(tag)
    return _Declaration(
        terms={
            "tag": tag,
            "role": role,
            "everywhere": everywhere,
            "answers": answers,
            "body": body,
            "optional": optional,
            "media": media,
            "query": query,
            "conditional": conditional,
            "problems": problems,
            "streams": streams,
            "fires": fires,
            "secret": secret,
            "largest": largest,
        }
    )
