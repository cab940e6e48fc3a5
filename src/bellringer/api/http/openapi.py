"""The OpenAPI 3.1 document, generated from the table of routes that the server uses."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from functools import cache
from types import UnionType
from typing import Any, Final, get_args

import msgspec
from starlette.responses import Response

from bellringer.api.http.error_responses import MEDIA_TYPE as PROBLEM
from bellringer.api.http.json_body import JSON, MERGE_PATCH
from bellringer.api.http.operation import Endpoint, Shape, operation
from bellringer.api.http.request import RequestContext
from bellringer.api.http.schemas import Schemas
from bellringer.wire.backfills import BackfillRequest
from bellringer.wire.calendars import CalendarRequest, FreezePatch, FreezeRequest
from bellringer.wire.dead_letters import LettersRequest
from bellringer.wire.jobs import JobRequest, PauseRequest, ResumeRequest, TriggerRequest
from bellringer.wire.problems import Problem
from bellringer.wire.routes import Route, all_routes
from bellringer.wire.runs import CancelRequest, ExecuteRequest
from bellringer.wire.schedules import ParseRequest, PreviewRequest
from bellringer.wire.workflows import MarkNodeRequest, RetryNodesRequest, SignalRequest

Table = Mapping[str, Mapping[str, Endpoint]]  # endpoints by path and method


def operation_ids(table: Table) -> Mapping[tuple[str, str], str]:
    """Returns the operation id of every method and path."""
    named = {(route.method, route.path): route.name for route in all_routes()}
    places = [(method, path) for path, at in table.items() for method in at]
    return {place: named.get(place) or _derive(*place) for place in places}


def _derive(method: str, path: str) -> str:
    return "_".join([method.lower(), *re.findall(r"\w+", path.removeprefix("/api"))])


REQUEST_EXAMPLES: Final[Mapping[Shape, Mapping[str, Any]]] = {
    JobRequest: {
        "name": "nightly report",
        "task": "shop.report",
        "schedule": {"cron": "30 2 * * *", "tz": "Europe/Paris"},
        "kwargs": {"days": 30},
        "timeout": "10m",
        "retry": {"attempts": 5, "base": "10s", "cap": "15m"},
        "overlap": "queue",
        "tags": ["finance"],
    },
    ExecuteRequest: {"task": "shop.report", "kwargs": {"days": 7}, "delay": "5m", "key": "report-2026-01-31"},
    PauseRequest: {"reason": "the warehouse moves", "until": "2h"},
    ResumeRequest: {"missed": "latest"},
    TriggerRequest: {"kwargs": {"days": 1}},
    CancelRequest: {"reason": "started by mistake"},
    LettersRequest: {"all": True},
    PreviewRequest: {"schedule": {"cron": "30 2 * * *", "tz": "America/New_York"}, "n": 3},
    ParseRequest: {"text": "every weekday at 9:30 in Berlin", "n": 3},
    BackfillRequest: {
        "job": "nightly report",
        "from": "2026-01-01T00:00:00Z",
        "to": "2026-01-08T00:00:00Z",
        "dry_run": True,
    },
    CalendarRequest: {
        "dates": ["2026-12-25", "2026-12-26"],
        "weekend": ["SAT", "SUN"],
        "hours": ["MON-FRI 09:00-17:30"],
    },
    FreezeRequest: {"name": "migration", "to": "90m", "policy": "collapse", "reason": "the database moves"},
    FreezePatch: {"to": "30m"},
    RetryNodesRequest: {"nodes": ["transform[3]", "load"]},
    MarkNodeRequest: {"node": "load", "state": "succeeded", "result": {"rows": 1200}, "reason": "loaded by hand"},
    SignalRequest: {"payload": {"by": "ana"}},
}
PATCH_EXAMPLES: Final[Mapping[Shape, Mapping[str, Any]]] = {JobRequest: {"priority": 7, "timeout": None}}


Json = dict[str, Any]

SSE: Final = "text/event-stream"

ABOUT: Final = """\
JSON in and out. Instants are RFC 3339, in answers always in UTC; lengths of time are written like `"90s"` or
`"1h30m"`, or as seconds. Unknown fields and parameters are refused. Lists answer `items` and `next_cursor`. A foreign
id answers as a missing one.

Every error is a problem document (RFC 9457): branch on its `code`, which is stable; `errors` point at what is wrong
(RFC 6901), `hint` says what to do, and `request_id` is the same as in the header `X-Request-Id`."""

ERROR_DESCRIPTIONS: Final[Mapping[int, str]] = {
    400: "The JSON, the cursor or a header is malformed",
    401: "No credentials were sent, or the key or token is not valid",
    403: "The caller's role does not allow it",
    404: "Not found",
    408: "The body did not arrive in time",
    409: "The current state does not allow it",
    410: "It existed, and is no longer stored",
    412: "Precondition failed: it has changed meanwhile",
    413: "The body is too large",
    415: "The media type of the body is not supported",
    422: "The request is well-formed, but a value is not valid",
    429: "A quota or rate limit is exceeded",
    503: "The database does not respond in time",
}
_SUCCESS_DESCRIPTIONS: Final[Mapping[int, str]] = {
    200: "Done",
    201: "Made",
    202: "Accepted",
    204: "Done; the response has no body",
    207: "Each item has its own status",
    304: "Not modified",
    503: "Not now",
}
_PART: Final = re.compile(r"{(\w+)}")


def document(table: Table, version: str) -> Json:
    """Builds the whole document."""
    schemas = Schemas([*dict.fromkeys(_shapes(table)), Problem])
    names = operation_ids(table)
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
            "responses": {
                f"Problem{status}": _error_response(status, schemas) for status in sorted(ERROR_DESCRIPTIONS)
            },
            "headers": {
                name: {"description": about, "schema": made} for name, (about, made) in _RESPONSE_HEADERS.items()
            },
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "An API key (`br_…`), or a JWT"}
            },
        },
    }


def openapi_endpoint(table: Table, version: str) -> Endpoint:
    """Returns the operation that serves the document; it is built once, at the first request."""

    @cache
    def built() -> bytes:
        return msgspec.json.encode(document(table, version))

    @operation(
        Route("service", "GET", "/openapi.json", dict, responses={200: JSON}, prefix=""), role=None, problems=(422,)
    )
    async def openapi(call: RequestContext) -> Response:
        """Returns this document."""
        call.query()
        return Response(built(), media_type=JSON)

    return openapi


def _shapes(table: Table) -> Iterator[type[Any]]:
    for at in table.values():
        for op in at.values():
            if op.route.body is not None:
                yield op.route.body
            for answer in op.route.responses.values():
                yield from (option for option in _options(answer) if not isinstance(option, str))


def _options(answer: Any) -> tuple[Any, ...]:
    """Returns the schemas of the possible responses; other media types as text."""
    if answer is None:
        return ()
    if isinstance(answer, tuple | list):
        return tuple(option for one in answer for option in _options(one))
    return get_args(answer) if isinstance(answer, UnionType) else (answer,)


# Operations


def _operation(name: str, method: str, path: str, op: Endpoint, schemas: Schemas) -> Json:
    shown: Json = {
        "operationId": name,
        "tags": [op.tag],
        "summary": op.summary,
        "description": _description(op),
        "parameters": [*_parts(path), *_queries(op), *_headers(method, op)],
        "responses": _responses(method, path, op, schemas),
        "security": [] if op.role is None else [{"bearer": []}],
    }
    if op.route.body is not None:
        shown["requestBody"] = {
            "required": not op.route.body_optional,
            "content": {media: _body(media, op, schemas) for media in op.route.media},
        }
    return shown


def _description(op: Endpoint) -> str:
    _, _, more = inspect.cleandoc(op.handler.__doc__ or "").partition("\n")
    if op.role is None:
        who = "No login is required."
    elif op.everywhere:
        role = op.role.name.lower()
        who = f"For callers of the whole installation with the role {role} or higher; others get 404."
    else:
        who = f"Requires the role {op.role.name.lower()} or higher."
    return "\n\n".join(part for part in (more.strip(), who) if part)


def _body(media: str, op: Endpoint, schemas: Schemas) -> Json:
    assert op.route.body is not None
    if media not in {JSON, MERGE_PATCH}:
        return {"schema": {"type": "string"}}
    made = schemas.request(op.route.body)
    is_patch = MERGE_PATCH in op.route.media
    if is_patch:
        made = schemas.patch(op.route.body)
    example = (PATCH_EXAMPLES if is_patch else {}).get(op.route.body) or REQUEST_EXAMPLES.get(op.route.body)
    return {"schema": made, **({"example": example} if example else {})}


# Parameters


def _parts(path: str) -> Iterator[Json]:
    for name in _PART.findall(path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _queries(op: Endpoint) -> Iterator[Json]:
    for query in op.query:
        yield {"name": query.name, "in": "query", "description": query.doc, "schema": dict(query.schema)}


_Header = tuple[str, str, Json]  # name, description, schema

_IF_MATCH: Final[_Header] = ("If-Match", "Only if the resource still has this ETag", {"type": "string"})
_IF_NONE_MATCH: Final[_Header] = ("If-None-Match", "Only if the resource has another ETag", {"type": "string"})
_IDEMPOTENCY_KEY: Final[_Header] = (
    "Idempotency-Key",
    "A unique key of this request: a repetition with the same key has no effect and gets the first response",
    {"type": "string", "pattern": "^[!-~]([ -~]{0,253}[!-~])?$", "maxLength": 255},
)
_TENANT: Final[_Header] = (
    "X-Tenant",
    "The tenant to act for; only for callers of the whole installation",
    {"type": "string", "minLength": 1},
)
_LAST_EVENT_ID: Final[_Header] = (
    "Last-Event-ID",
    "The id of the last event that arrived; the stream continues after it",
    {"type": "string"},
)
_RESPONSE_HEADERS: Final[Mapping[str, tuple[str, Json]]] = {
    "X-Request-Id": ("The id of this request in the server's log", {"type": "string"}),
    "ETag": ("The revision, for If-Match", {"type": "string"}),
    "Location": ("The URL of the created resource", {"type": "string"}),
    "Retry-After": ("Seconds to wait before a retry", {"type": "string"}),
}


def _headers(method: str, op: Endpoint) -> Iterator[Json]:
    heeded: list[_Header] = []
    if op.conditional:
        heeded.append(_IF_MATCH)
    if 304 in op.route.responses or (op.conditional and method == "PUT"):
        heeded.append(_IF_NONE_MATCH)
    if method == "POST" and op.role is not None and not op.streams and not op.secret:
        heeded.append(_IDEMPOTENCY_KEY)
    if any(SSE in _options(answer) for answer in op.route.responses.values()):
        heeded.append(_LAST_EVENT_ID)
    if op.role is not None:
        heeded.append(_TENANT)
    for name, about, made in heeded:
        yield {"name": name, "in": "header", "description": about, "schema": made}


# Responses


def error_statuses(method: str, path: str, op: Endpoint) -> set[int]:
    """Returns the error statuses of an operation: those that follow from its form, and those that it declares."""
    implied = set(op.problems)
    if op.role is not None:  # X-Tenant may name a missing tenant, and every query is checked
        implied |= {400, 401, 403, 404, 422, 429, 503}
    if op.query:
        implied |= {400, 422}
    if _PART.search(path):
        implied.add(404)
    if op.route.body is not None:
        implied |= {400, 408, 413, 415, 422}
    if method == "POST" and op.role is not None:
        implied |= {408, 409, 413, 422}  # the body is read first for its fingerprint
    if op.conditional:
        implied.add(412)
    return implied - op.route.responses.keys()


def _responses(method: str, path: str, op: Endpoint, schemas: Schemas) -> Json:
    made = {str(status): _success_response(status, answer, schemas) for status, answer in op.route.responses.items()}
    for status in error_statuses(method, path, op):
        made[str(status)] = {"$ref": f"#/components/responses/Problem{status}"}
    return dict(sorted(made.items()))


def _success_response(status: int, answer: Any, schemas: Schemas) -> Json:
    shown: Json = {"description": _SUCCESS_DESCRIPTIONS.get(status, "Told"), "headers": _header_refs("X-Request-Id")}
    if status in {201, 202}:
        shown["headers"] |= _header_refs("Location")
    content: dict[str, list[Json]] = {}
    for option in _options(answer):
        if isinstance(option, str):
            content.setdefault(option, []).append({"type": "object" if option == JSON else "string"})
        else:
            content.setdefault(JSON, []).append(schemas.of(option))
    if content:
        shown["content"] = {
            media: {"schema": options[0] if len(options) == 1 else {"anyOf": options}}
            for media, options in content.items()
        }
    return shown


def _error_response(status: int, schemas: Schemas) -> Json:
    headers = _header_refs("X-Request-Id", *(["Retry-After"] if status in {429, 503} else []))
    return {
        "description": ERROR_DESCRIPTIONS[status],
        "headers": headers,
        "content": {PROBLEM: {"schema": schemas.of(Problem)}},
    }


def _header_refs(*names: str) -> Json:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}
