"""The OpenAPI 3.1 document, made from the table of routes: what is served is what is written here."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from functools import cache
from types import UnionType
from typing import Any, Final, get_args

import msgspec
from starlette.responses import Response

from bellringer.api import catalog, examples
from bellringer.api.bodies import JSON, MERGE_PATCH
from bellringer.api.calls import Call
from bellringer.api.catalog import Table
from bellringer.api.operations import Operation, operation
from bellringer.api.problems import MEDIA_TYPE as PROBLEM
from bellringer.api.schemas import Schemas
from bellringer.wire import Problem

Json = dict[str, Any]

SSE: Final = "text/event-stream"

ABOUT: Final = """\
JSON in and out. Instants are RFC 3339, in answers always in UTC; lengths of time are written like `"90s"` or
`"1h30m"`, or as seconds. Unknown fields and parameters are refused. Lists answer `items` and `next_cursor`. A foreign
id answers as a missing one.

Every error is a problem document (RFC 9457): branch on its `code`, which is stable; `errors` point at what is wrong
(RFC 6901), `hint` says what to do, and `request_id` is the same as in the header `X-Request-Id`."""

REFUSALS: Final[Mapping[int, str]] = {
    400: "It cannot be read: its JSON, its cursor or a header",
    401: "Nobody is logged in, or the key or token does not hold",
    403: "The caller's role does not allow it",
    404: "There is no such thing here",
    408: "The body did not arrive in time",
    409: "The present state does not allow it",
    410: "It was there, and is no longer kept",
    412: "It has changed meanwhile: the condition does not hold",
    413: "The body is too large",
    415: "The body is of a kind that is not read here",
    422: "It can be read, and is not acceptable",
    429: "Too much, or too often",
    503: "The database does not answer in time",
}
_SAID: Final[Mapping[int, str]] = {
    200: "Done",
    201: "Made",
    202: "Accepted",
    204: "Done; there is nothing to tell",
    207: "Each item has a status of its own",
    304: "It has not changed",
    503: "Not now",
}
_PART: Final = re.compile(r"{(\w+)}")


def document(table: Table, version: str) -> Json:
    """The whole document."""
    schemas = Schemas([*dict.fromkeys(_shapes(table)), Problem])
    names = catalog.names(table)
    paths = {
        path: {method.lower(): _operation(names[method, path], method, path, at[method], schemas) for method in at}
        for path, at in sorted(table.items())
    }
    tags = dict.fromkeys(op.tag for at in table.values() for op in at.values())
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Bellringer",
            "version": version,
            "description": ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": tag} for tag in tags],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "responses": {f"Problem{status}": _refusal(status, schemas) for status in sorted(REFUSALS)},
            "headers": {name: {"description": about, "schema": made} for name, (about, made) in _TOLD.items()},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "An API key (`br_…`), or a JWT"}
            },
        },
    }


def serving(table: Table, version: str) -> Operation:
    """The operation that hands out the document; it is built once, when it is first asked for."""

    @cache
    def built() -> bytes:
        return msgspec.json.encode(document(table, version))

    @operation("service", role=None, answers={200: JSON}, problems=(422,))
    async def openapi(call: Call) -> Response:
        """This document."""
        call.query()
        return Response(built(), media_type=JSON)

    return openapi


def _shapes(table: Table) -> Iterator[type[Any]]:
    for at in table.values():
        for op in at.values():
            if op.body is not None:
                yield op.body
            for answer in op.answers.values():
                yield from (option for option in _options(answer) if not isinstance(option, str))


def _options(answer: Any) -> tuple[Any, ...]:
    """What an answer may be: shapes, and other media types as text."""
    if answer is None:
        return ()
    if isinstance(answer, tuple | list):
        return tuple(option for one in answer for option in _options(one))
    return get_args(answer) if isinstance(answer, UnionType) else (answer,)


# Operations


def _operation(name: str, method: str, path: str, op: Operation, schemas: Schemas) -> Json:
    told: Json = {
        "operationId": name,
        "tags": [op.tag],
        "summary": op.summary,
        "description": _description(op),
        "parameters": [*_parts(path), *_queries(op), *_headers(method, op)],
        "responses": _responses(method, path, op, schemas),
        "security": [] if op.role is None else [{"bearer": []}],
    }
    if op.body is not None:
        told["requestBody"] = {
            "required": not op.optional,
            "content": {media: _body(media, op, schemas) for media in op.media},
        }
    return told


def _description(op: Operation) -> str:
    _, _, more = inspect.cleandoc(op.handler.__doc__ or "").partition("\n")
    if op.role is None:
        who = "Anyone may ask, without a login."
    elif op.everywhere:
        role = op.role.name.lower()
        who = f"For callers of the whole installation, from the role {role} on; to others it is not there."
    else:
        who = f"From the role {op.role.name.lower()} on."
    return "\n\n".join(part for part in (more.strip(), who) if part)


def _body(media: str, op: Operation, schemas: Schemas) -> Json:
    assert op.body is not None
    if media not in {JSON, MERGE_PATCH}:
        return {"schema": {"type": "string"}}
    made = schemas.request(op.body)
    is_patch = MERGE_PATCH in op.media
    if is_patch:
        made = schemas.patch(op.body)
    example = (examples.PATCHES if is_patch else {}).get(op.body) or examples.BODIES.get(op.body)
    return {"schema": made, **({"example": example} if example else {})}


# Parameters


def _parts(path: str) -> Iterator[Json]:
    for name in _PART.findall(path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _queries(op: Operation) -> Iterator[Json]:
    for query in op.query:
        yield {"name": query.name, "in": "query", "description": query.doc, "schema": dict(query.schema)}


_Header = tuple[str, str, Json]  # its name, what it means, its schema

_IF_MATCH: Final[_Header] = ("If-Match", "Only if it still has this ETag", {"type": "string"})
_IF_NONE_MATCH: Final[_Header] = ("If-None-Match", "Only if it has another ETag than this", {"type": "string"})
_ONCE: Final[_Header] = (
    "Idempotency-Key",
    "A name for this request: sent again with the same one, it is not done again, and gets the first answer",
    {"type": "string", "pattern": "^[!-~]([ -~]{0,253}[!-~])?$", "maxLength": 255},
)
_TENANT: Final[_Header] = (
    "X-Tenant",
    "The tenant to act for, by callers of the whole installation",
    {"type": "string", "minLength": 1},
)
_LAST: Final[_Header] = (
    "Last-Event-ID",
    "Where the stream broke off: the id of the last event that arrived",
    {"type": "string"},
)
_TOLD: Final[Mapping[str, tuple[str, Json]]] = {
    "X-Request-Id": ("The id of this request, as the server's log has it", {"type": "string"}),
    "ETag": ("Its revision, for If-Match", {"type": "string"}),
    "Location": ("Where what was made is to be found", {"type": "string"}),
    "Retry-After": ("Seconds after which it is worth trying again", {"type": "string"}),
}


def _headers(method: str, op: Operation) -> Iterator[Json]:
    heeded: list[_Header] = []
    if op.conditional:
        heeded.append(_IF_MATCH)
    if 304 in op.answers or (op.conditional and method == "PUT"):
        heeded.append(_IF_NONE_MATCH)
    if method == "POST" and op.role is not None and not op.streams and not op.secret:
        heeded.append(_ONCE)
    if any(SSE in _options(answer) for answer in op.answers.values()):
        heeded.append(_LAST)
    if op.role is not None:
        heeded.append(_TENANT)
    for name, about, made in heeded:
        yield {"name": name, "in": "header", "description": about, "schema": made}


# Answers


def refusals(method: str, path: str, op: Operation) -> set[int]:
    """The statuses of an operation's refusals: those that its form implies, and those that it declares."""
    implied = set(op.problems)
    if op.role is not None:  # a tenant that X-Tenant names may be missing, and any query is checked
        implied |= {400, 401, 403, 404, 422, 429, 503}
    if op.query:
        implied |= {400, 422}
    if _PART.search(path):
        implied.add(404)
    if op.body is not None:
        implied |= {400, 408, 413, 415, 422}
    if method == "POST" and op.role is not None:
        implied |= {408, 409, 413, 422}  # what is sent under a key is read first, to tell it from another
    if op.conditional:
        implied.add(412)
    return implied - op.answers.keys()


def _responses(method: str, path: str, op: Operation, schemas: Schemas) -> Json:
    made = {str(status): _answer(status, answer, schemas) for status, answer in op.answers.items()}
    for status in refusals(method, path, op):
        made[str(status)] = {"$ref": f"#/components/responses/Problem{status}"}
    return dict(sorted(made.items()))


def _answer(status: int, answer: Any, schemas: Schemas) -> Json:
    told: Json = {"description": _SAID.get(status, "Told"), "headers": _header_refs("X-Request-Id")}
    if status in {201, 202}:
        told["headers"] |= _header_refs("Location")
    content: dict[str, list[Json]] = {}
    for option in _options(answer):
        if isinstance(option, str):
            content.setdefault(option, []).append({"type": "object" if option == JSON else "string"})
        else:
            content.setdefault(JSON, []).append(schemas.of(option))
    if content:
        told["content"] = {
            media: {"schema": options[0] if len(options) == 1 else {"anyOf": options}}
            for media, options in content.items()
        }
    return told


def _refusal(status: int, schemas: Schemas) -> Json:
    headers = _header_refs("X-Request-Id", *(["Retry-After"] if status in {429, 503} else []))
    return {
        "description": REFUSALS[status],
        "headers": headers,
        "content": {PROBLEM: {"schema": schemas.of(Problem)}},
    }


def _header_refs(*names: str) -> Json:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}
