"""The API as one application: its table of routes, and what every request passes through."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uuid_utils.compat import uuid7

from bellringer.api import (
    backfills,
    bodies,
    calendars,
    cluster,
    events,
    explain,
    forecast,
    freezes,
    health,
    jobs,
    letters,
    metrics,
    problems,
    runs,
)
from bellringer.api.calls import PATIENCE, Call, Service, reply
from bellringer.api.door import Door
from bellringer.api.operations import Operation, operation
from bellringer.api.problems import Refused
from bellringer.clock import Clock
from bellringer.store.names import Names
from bellringer.store.pool import Store
from bellringer.store.scope import ScopedStore
from bellringer.store.wakeups import Wakeups
from bellringer.telemetry import log
from bellringer.wire.answers import Index
from bellringer.wire.asks import PREFIX

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_CHANGES: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_ROUTE: Final = "bellringer.route"  # the template of a request's route, in its scope
_REQUEST: Final = "bellringer.request"  # its id

ROUTES: Final[Mapping[str, Mapping[str, Operation]]] = {
    f"{PREFIX}/jobs": {"GET": jobs.listing, "POST": jobs.create},
    f"{PREFIX}/jobs/execute": {"POST": runs.execute},
    f"{PREFIX}/jobs/{{id}}": {"GET": jobs.get, "PATCH": jobs.change, "DELETE": jobs.delete},
    f"{PREFIX}/jobs/{{id}}/pause": {"POST": jobs.pause},
    f"{PREFIX}/jobs/{{id}}/resume": {"POST": jobs.resume},
    f"{PREFIX}/jobs/{{id}}/run": {"POST": jobs.trigger},
    f"{PREFIX}/jobs/{{id}}/runs": {"GET": runs.of_job},
    f"{PREFIX}/jobs/{{id}}/why": {"GET": explain.why},
    f"{PREFIX}/jobs/{{id}}/baseline": {"GET": events.baseline},
    f"{PREFIX}/runs": {"GET": runs.listing},
    f"{PREFIX}/runs/{{id}}": {"GET": runs.get},
    f"{PREFIX}/runs/{{id}}/cancel": {"POST": runs.cancel},
    f"{PREFIX}/runs/{{id}}/retry": {"POST": runs.retry},
    f"{PREFIX}/runs/{{id}}/logs": {"GET": runs.logs},
    f"{PREFIX}/runs/{{id}}/explain": {"GET": explain.run},
    f"{PREFIX}/dead-letters": {"GET": letters.listing},
    f"{PREFIX}/dead-letters/redrive": {"POST": letters.redrive},
    f"{PREFIX}/dead-letters/discard": {"POST": letters.discard},
    f"{PREFIX}/events": {"GET": events.listing},
    f"{PREFIX}/backfills": {"GET": backfills.listing, "POST": backfills.create},
    f"{PREFIX}/backfills/{{id}}": {"GET": backfills.get},
    f"{PREFIX}/backfills/{{id}}/pause": {"POST": backfills.pause},
    f"{PREFIX}/backfills/{{id}}/resume": {"POST": backfills.resume},
    f"{PREFIX}/backfills/{{id}}/cancel": {"POST": backfills.cancel},
    f"{PREFIX}/calendars": {"GET": calendars.listing},
    f"{PREFIX}/calendars/{{name}}": {"GET": calendars.get, "PUT": calendars.put, "DELETE": calendars.delete},
    f"{PREFIX}/freezes": {"GET": freezes.listing, "POST": freezes.create},
    f"{PREFIX}/freezes/{{id}}": {"GET": freezes.get, "PATCH": freezes.amend, "DELETE": freezes.lift},
    f"{PREFIX}/workers": {"GET": cluster.list_workers},
    f"{PREFIX}/cluster": {"GET": cluster.get_cluster},
    f"{PREFIX}/cluster/tz-moves": {"GET": events.tz_moves},
    f"{PREFIX}/forecast": {"GET": forecast.get},
    f"{PREFIX}/schedules/preview": {"POST": cluster.preview_schedule},
    f"{PREFIX}/version": {"GET": cluster.get_version},
    "/healthz": {"GET": health.healthz},
    "/readyz": {"GET": health.readyz},
}


def create_app(
    store: Store,
    names: Names,
    tenants: Store,
    *,
    version: str,
    clock: Clock,
    door: Door | None = None,
    replica: Store | None = None,
    wakeups: Wakeups | None = None,
    ready: Callable[[], bool] = lambda: True,
) -> Starlette:
    """The whole API; `ready` says whether the rest of the process has started. Without a door nobody has to log in."""
    service = Service(
        store=store,
        tenants=tenants,
        replica=replica,
        names=names,
        version=version,
        clock=clock,
        wakeups=wakeups,
        ready=ready,
    )
    table = {**ROUTES, "/metrics": {"GET": metrics.scraping(service)}}
    table["/"] = {"GET": _index(sorted(table))}
    door = door or Door(store, names)
    app = Starlette(
        routes=[Route(path, _Endpoint(service, door, path, at), methods=None) for path, at in table.items()],
        middleware=[Middleware(Attendant, clock=clock)],
        exception_handlers={HTTPException: _pass_on},
    )
    app.router.redirect_slashes = False
    return app


def _index(paths: list[str]) -> Operation:
    @operation("service", role=None, answers={200: Index})
    async def index(call: Call) -> Response:
        """What is here."""
        call.query()
        return reply(Index(name="bellringer", version=call.service.version, paths=paths))

    return index


async def _pass_on(_request: Request, error: Exception) -> Response:
    """The attendant answers all errors in one way, those of the router too."""
    raise error


class _Endpoint:
    """One path with its methods; knowing all of them, it can say which are allowed."""

    def __init__(self, service: Service, door: Door, path: str, operations: Mapping[str, Operation]) -> None:
        self._service = service
        self._door = door
        self._path = path
        self._operations = operations
        self._allowed = ", ".join(sorted({*operations, *(["HEAD"] if "GET" in operations else [])}))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[_ROUTE] = self._path
        method = scope["method"]
        operation = self._operations.get("GET" if method == "HEAD" else method)
        if operation is None:
            raise Refused(
                405,
                "method_not_allowed",
                "this path does not take that method",
                hint=f"use {self._allowed}",
                headers={"Allow": self._allowed},
            )
        async with asyncio.timeout(bodies.PATIENCE + PATIENCE) as deadline:
            call = await self._admit(Request(scope, receive), operation, deadline)
            if method not in _CHANGES:
                call.hurry()
            response = await operation.handler(call)
        await response(scope, receive, send)

    async def _admit(self, request: Request, operation: Operation, deadline: asyncio.Timeout) -> Call:
        service, request_id = self._service, request.scope[_REQUEST]
        caller = await self._door.admit(request, operation)
        is_change = request.method in _CHANGES
        actor = caller.actor(request_id) if is_change else None
        store = ScopedStore(service.tenants, caller.tenant_id, actor)
        reads = store if service.replica is None else ScopedStore(service.replica, caller.tenant_id, None)
        return Call(
            service=service,
            request=request,
            deadline=deadline,
            operation=operation,
            caller=caller,
            store=store,
            reads=reads,
            request_id=request_id,
        )


class Attendant:
    """Gives each request an id, answers its errors, counts and logs it."""

    def __init__(self, app: ASGIApp, clock: Clock) -> None:
        self._app = app
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = self._clock.monotonic()
        request_id = scope[_REQUEST] = _request_id(scope)
        status = 0

        async def tagged(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        if scope["path"].startswith("/api/"):
            # A name may hold a slash: paths are matched as they were sent, and their parts decoded later.
            scope["path"] = scope.get("raw_path", scope["path"].encode()).decode("ascii", "replace")
        try:
            await self._app(scope, receive, tagged)
        except Exception as error:  # noqa: BLE001 - the last stop: whatever it is becomes an answer
            if not problems.is_expected(error):
                log.error("request failed", request_id=request_id, exc_info=error)
            if not status:
                await problems.answer(error, request_id)(scope, receive, tagged)
        finally:
            _tell(scope, status, self._clock.monotonic() - started, request_id)


def _request_id(scope: Scope) -> str:
    """The caller's own id where it is harmless, or a new one."""
    given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
    text: str = given.decode("latin-1")
    return text if _REQUEST_ID.fullmatch(text) else uuid7().hex


def _tell(scope: Scope, status: int, seconds: float, request_id: str) -> None:
    route = scope.get(_ROUTE, "unmatched")
    method = scope["method"] if scope["method"] in _METHODS else "other"
    metrics.REQUESTS.labels(route, method, str(status)).inc()
    metrics.SECONDS.labels(route, method).observe(seconds)
    fields: dict[str, Any] = {
        "method": method,
        "route": route,
        "status": status,
        "ms": round(seconds * 1000, 1),
        "request_id": request_id,
    }
    if method in _CHANGES and status < 400:
        log.info("request", **fields)
    else:
        log.debug("request", **fields)
