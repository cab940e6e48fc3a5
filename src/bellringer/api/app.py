"""The API as one application: its table of routes, and what every request passes through."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uuid_utils import uuid7

from bellringer.api import docs, idempotency, metrics, openapi, problems
from bellringer.api.calls import Call, Service, reply
from bellringer.api.creating import Creating
from bellringer.api.deadlines import Deadline
from bellringer.api.door import CHANGES, HEADERS, NOBODY, Door, Settings
from bellringer.api.moulds import Moulds
from bellringer.api.operations import CURSOR, Operation, operation
from bellringer.api.problems import Refused
from bellringer.api.protocol import check_head
from bellringer.api.reads import REVIVES, Desk
from bellringer.api.routes import ROUTES
from bellringer.api.routing import Pages, Switch
from bellringer.api.streams import Streams
from bellringer.cache import Cache, ProcessCache
from bellringer.clock import Clock
from bellringer.dispatch import Unread
from bellringer.egress.settings import Egress
from bellringer.store.lookups import Lookups
from bellringer.store.names import Names
from bellringer.store.pool import Store
from bellringer.store.replica import ReadStore, Replica
from bellringer.store.scope import ScopedStore
from bellringer.store.wakeups import RUNS, Wakeups
from bellringer.telemetry import log, one_of, tells_all
from bellringer.wire.answers import Index
from bellringer.wire.asks import PREFIX
from bellringer.wire.overview import Setting

CONSOLE: Final = "/console"
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_ROUTE: Final = "bellringer.route"  # the template of a request's route, in its scope
_REQUEST: Final = "bellringer.request"  # its id
_CLOSED: Final = "the handler is closed"  # how uvloop says that the connection is gone


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
    egress: Egress = Egress(),
    cache: Cache | None = None,
    lookups: Lookups | None = None,
    unread: Unread | None = None,
    ready: Callable[[], bool] = lambda: True,
    console: ASGIApp | None = None,
    settings: Sequence[Setting] = (),
) -> Api:
    """The whole API; `ready` says whether the rest of the process has started. Without a door nobody has to log in;
    without connections for look-ups these go by those that serve tenants."""
    names = names.for_callers()
    cache = cache or ProcessCache(clock)
    desk = Desk(store, lookups.of if lookups else partial(ScopedStore, tenants, actor=None), names, clock, cache)
    service = Service(
        store=store,
        tenants=tenants,
        replica=None if replica is None else Replica(replica, clock),
        names=names,
        desk=desk,
        moulds=Moulds(desk),
        creating=Creating(tenants, names),
        version=version,
        clock=clock,
        wakeups=wakeups,
        egress=egress,
        ready=ready,
        streams=Streams(cache),
        unread=unread,
        settings=settings,
    )
    door = door or Door(store, names, Settings(open_to="anyone"), clock, cache)
    endpoints = {path: _Endpoint(service, door, path, at) for path, at in _table(service).items()}
    return Api(Switch(endpoints), None if console is None else Pages(CONSOLE, console), service)


def _table(service: Service) -> dict[str, Mapping[str, Operation]]:
    """What is answered, by path and method."""
    table = {**ROUTES, "/metrics": {"GET": metrics.scraping(service)}}
    table["/openapi.json"] = table[f"{PREFIX}/openapi.json"] = {"GET": openapi.serving(table, service.version)}
    table |= docs.pages(table, service.version)
    table["/"] = {"GET": _index(sorted(table))}
    return table


def _index(paths: list[str]) -> Operation:
    @operation("service", role=None, answers={200: Index}, problems=(422,))
    async def index(call: Call) -> Response:
        """What is here."""
        call.query()
        return reply(Index(name="bellringer", version=call.service.version, paths=paths))

    return index


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
        async with self._service.deadlines.within() as deadline:
            call = await self._admit(Request(scope, receive), operation, deadline)
            try:
                response = await (
                    idempotency.answered(call, self._path) if method == "POST" else operation.handler(call)
                )
            except BaseException:
                await self._changed(call, is_sure=False)
                raise
            await self._changed(call)
        await response(scope, receive, send)

    async def _changed(self, call: Call, *, is_sure: bool = True) -> None:
        """What is kept of the tenant may not be so any more: it is forgotten here and by the other processes, before
        the change is confirmed. Where that is not sure, it may have been committed nevertheless."""
        desk, tag = self._service.desk, call.operation.tag
        if call.request.method not in CHANGES:
            return
        if tag == "runs" and not call.request.path_params:
            return  # to execute a task changes no run that there is
        whose = None if call.tenant_id == NOBODY else call.tenant_id  # what belongs to no tenant may show in all
        if (tag in REVIVES or desk.keeps_jobs) and not await desk.forget(whose) and is_sure:
            await self._service.wake(RUNS, "" if whose is None else str(whose))

    async def _admit(self, request: Request, operation: Operation, deadline: Deadline) -> Call:
        service, request_id = self._service, request.scope[_REQUEST]
        caller = await self._door.admit(request, operation)
        is_change = request.method in CHANGES
        actor = caller.actor(request_id) if is_change else None
        store = ScopedStore(service.tenants, caller.tenant_id, actor)
        if operation.everywhere and actor is not None:
            service = replace(service, store=ScopedStore(service.store, None, actor))
        reads: Store = store
        if service.replica is not None:
            lagging = ScopedStore(service.replica.store, caller.tenant_id, None)
            reads = ReadStore(service.replica, lagging, store)
        return Call(
            service=service,
            request=request,
            deadline=deadline,
            operation=operation,
            caller=caller,
            store=store,
            reads=reads,
            request_id=request_id,
            seal=await self._door.seal() if CURSOR in operation.query else b"",
            still=partial(self._door.still, request, caller),
        )


class Api:
    """The application: gives each request an id, finds who answers it, answers its errors, counts and logs it."""

    def __init__(self, switch: Switch, pages: Pages | None, service: Service) -> None:
        self._switch = switch
        self._pages = pages
        self._clock = service.clock
        self.desk = service.desk
        self.streams = service.streams  # so that whoever ends the process can end these first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError("this speaks HTTP alone")  # so says the protocol to servers that offer more
        started = self._clock.monotonic()
        request_id = scope[_REQUEST] = _request_id(scope)
        status = 0

        async def tagged(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                beside = scope.get(HEADERS, ())
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode()), *beside]
            try:
                await send(message)
            except RuntimeError as error:
                if _CLOSED in str(error):  # a caller who goes before it has the answer is no mistake of ours
                    raise ConnectionResetError("the caller has gone") from error
                raise

        if scope["path"].startswith("/api/"):
            # A name may hold a slash: paths are matched as they were sent, and their parts decoded later.
            scope["path"] = scope.get("raw_path", scope["path"].encode()).decode("ascii", "replace")
        try:
            check_head(scope)
            await self._found(scope)(scope, receive, tagged)
        except Exception as error:  # noqa: BLE001 - the last stop: whatever it is becomes an answer
            if not problems.is_expected(error):
                log.error("request failed", request_id=request_id, exc_info=error)
            if not status:
                await problems.answer(error, request_id)(scope, receive, tagged)
        finally:
            _tell(scope, status, self._clock.monotonic() - started, request_id)

    def _found(self, scope: Scope) -> ASGIApp:
        if self._pages is not None and self._pages.has(scope):
            return self._pages.app
        found = self._switch.find(scope["path"])
        if found is None:
            raise HTTPException(404)
        endpoint, scope["path_params"] = found
        return endpoint


def _request_id(scope: Scope) -> str:
    """The caller's own id where it is harmless, or a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            text: str = value.decode("latin-1")
            return text if _REQUEST_ID.fullmatch(text) else uuid7().hex
    return uuid7().hex


def _tell(scope: Scope, status: int, seconds: float, request_id: str) -> None:
    route = scope.get(_ROUTE, "unmatched")
    method = scope["method"] if scope["method"] in _METHODS else "other"
    one_of(metrics.REQUESTS, route, method, str(status)).inc()
    one_of(metrics.SECONDS, route, method).observe(seconds)
    is_done = method in CHANGES and status < 400
    if not is_done and not tells_all():
        return
    fields: dict[str, Any] = {
        "method": method,
        "route": route,
        "status": status,
        "ms": round(seconds * 1000, 1),
        "request_id": request_id,
    }
    if is_done:
        log.info("request", **fields)
    else:
        log.debug("request", **fields)
