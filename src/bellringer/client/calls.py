"""Derives the methods of both clients from the routes of the API.

A method is declared by its signature alone:

    @call(Routes.pause)
    def pause(self, job: str, *, reason: str | None = None) -> Job:
        "Pause a job until it is resumed."

The route supplies the HTTP method, the path and the type of the response. The arguments become the request:

- The first arguments fill the parameters of the path, in order.
- `document` or `patch` is the whole body.
- `create_only` becomes the header If-None-Match, `idempotency_key` the header Idempotency-Key.
- All others are fields of the body, or of the query where the route has no body or the body is given whole. None is
  left out. `start` and `end` are sent as `from` and `to`; `renamed` lists other differences.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, TypeVar, overload
from urllib.parse import quote

from bellringer.core.payload import check_payload
from bellringer.wire.routes import Route

if TYPE_CHECKING:
    from bellringer.client import AsyncClient, Client

P = ParamSpec("P")
T = TypeVar("T")
Document = Mapping[str, Any]

_RENAMED: Final[Mapping[str, str]] = {"start": "from", "end": "to"}
_WHOLE_BODIES: Final = ("document", "patch")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest(Generic[T]):
    """A request to one route, ready to be sent."""

    route: Route[T]
    path: str
    query: Document = field(default_factory=dict)
    body: Document | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def content(self) -> bytes | None:
        """The body as JSON. A body above the limit is refused here: when a server cuts the connection during an
        upload, the client may never see its response."""
        if self.body is None:
            return None
        return check_payload(self.body, limit=self.route.body_limit, what="the request")


class Call(Generic[P, T]):
    """A method of both clients: `Client` returns the response, `AsyncClient` an awaitable of it."""

    def __init__(
        self,
        route: Route[T],
        declaration: Callable[Concatenate[Any, P], T],
        *,
        renamed: Mapping[str, str],
        fixed: Document,
        headers: Mapping[str, str],
        if_match: str,
    ) -> None:
        self.route = route
        self.declaration = declaration
        self.renamed = {**_RENAMED, **renamed}
        self.fixed = fixed
        self.headers = headers
        self.if_match = if_match

    @overload
    def __get__(self, client: None, owner: object = None) -> Call[P, T]: ...

    @overload
    def __get__(self, client: Client, owner: object = None) -> Callable[P, T]: ...

    @overload
    def __get__(self, client: AsyncClient, owner: object = None) -> Callable[P, Awaitable[T]]: ...

    def __get__(self, client: Client | AsyncClient | None, owner: object = None) -> Call[P, T] | Callable[P, Any]:
        if client is None:
            return self

        def method(*args: P.args, **kwargs: P.kwargs) -> Any:
            return client.send(self.request(*args, **kwargs))

        update_wrapper(method, self.declaration)
        method.__signature__ = self.signature  # type: ignore[attr-defined]
        return method

    @cached_property
    def signature(self) -> inspect.Signature:
        declared = inspect.signature(self.declaration)
        return declared.replace(parameters=[*declared.parameters.values()][1:])  # without self

    def request(self, *args: P.args, **kwargs: P.kwargs) -> ApiRequest[T]:
        given = _flatten(self.signature.bind(*args, **kwargs))
        headers = dict(self.headers)
        revision = given.pop(self.if_match, None)
        if revision is not None:
            headers["If-Match"] = f'"{revision}"'
        if given.pop("create_only", False):
            headers["If-None-Match"] = "*"
        if (key := given.pop("idempotency_key", None)) is not None:
            headers["Idempotency-Key"] = key
        names = [*given][: len(self.route.path_parameters)]
        path = _fill(self.route, [str(given.pop(name)) for name in names])
        body = next((given.pop(name) for name in _WHOLE_BODIES if name in given), None)
        given = {self.renamed.get(name, name): value for name, value in given.items() if value is not None}
        given.update(self.fixed)
        if body is None and self.route.body is not None:
            return ApiRequest(route=self.route, path=path, body=given, headers=headers)
        return ApiRequest(route=self.route, path=path, query=_query(given), body=body, headers=headers)


def call(
    route: Route[T],
    *,
    renamed: Mapping[str, str] | None = None,
    fixed: Document | None = None,
    headers: Mapping[str, str] | None = None,
    if_match: str = "",
) -> Callable[[Callable[Concatenate[Any, P], T]], Call[P, T]]:
    """Declare a method of both clients.

    `fixed` holds fields that are always sent. `if_match` names the argument with the revision that the job must have.
    """

    def declare(declaration: Callable[Concatenate[Any, P], T]) -> Call[P, T]:
        return Call(
            route, declaration, renamed=renamed or {}, fixed=fixed or {}, headers=headers or {}, if_match=if_match
        )

    return declare


def _flatten(bound: inspect.BoundArguments) -> dict[str, Any]:
    """The given arguments by name, those of `**options` among them."""
    given = dict(bound.arguments)
    for parameter in bound.signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            given |= given.pop(parameter.name, {})
    return given


def _fill(route: Route[Any], values: Iterable[str]) -> str:
    path = route.path
    for name, value in zip(route.path_parameters, values, strict=True):
        path = path.replace(f"{{{name}}}", quote(value, safe=""), 1)
    return path


def _query(fields: Document) -> Document:
    """Lists are written with commas; an empty list is left out."""
    listed = {name: ",".join(value) if isinstance(value, list | tuple) else value for name, value in fields.items()}
    return {name: value for name, value in listed.items() if value or not isinstance(fields[name], list | tuple)}
