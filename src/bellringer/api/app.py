"""The API as an ASGI application: routing, admission, error responses, metrics and logs of every request."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uuid_utils import uuid7

from bellringer import tracing
from bellringer.api.endpoint_table import ROUTES
from bellringer.api.endpoints import health, metrics
from bellringer.api.http import docs_page, error_responses, idempotency, openapi
from bellringer.api.http.auth import CHANGING_METHODS, NO_TENANT_ID, RESPONSE_HEADERS_KEY, Authenticator, AuthSettings
from bellringer.api.http.connection_limits import check_head
from bellringer.api.http.create_batcher import CreateBatcher
from bellringer.api.http.error_responses import Refused
from bellringer.api.http.idempotency_quota import BLOCKS_PER_TENANT, IdempotencyQuota
from bellringer.api.http.json_body import RESPONSE_TIMEOUT_SECONDS
from bellringer.api.http.operation import CURSOR_PARAMETER, Endpoint, operation
from bellringer.api.http.read_cache import REVIVING_TAGS, ReadCache
from bellringer.api.http.request import AppState, RequestContext, reply
from bellringer.api.http.sse import OpenStreams
from bellringer.clock import Clock
from bellringer.codecs import PayloadCodec
from bellringer.core.broker import QueueDepths
from bellringer.core.cache import Cache, ProcessCache, RateLimits
from bellringer.egress.settings import Egress
from bellringer.engine.known_tasks import KnownTasks, UnknownTasks
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.keyed_read_connections import KeyedReads
from bellringer.store.replica import ReadStore, Replica
from bellringer.store.tenant_scope import ScopedStore
from bellringer.store.wakeups import RUNS_CHANNEL, Wakeups
from bellringer.telemetry import is_debug_enabled, log, with_labels
from bellringer.wire.overview import Index, Readiness, Setting
from bellringer.wire.routes import PREFIX, Route

CONSOLE: Final = "/console"
GUIDE: Final = "/guide"
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_ROUTE_KEY: Final = "bellringer.route"  # the path template of the matched route, in the ASGI scope
_REQUEST_ID_KEY: Final = "bellringer.request"  # the request's id, in the ASGI scope
# Responses are private to the caller and must not be sniffed for another media type. Pages set their own caching.
_SECURITY_HEADERS: Final = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))
_CONNECTION_CLOSED: Final = "the handler is closed"  # uvloop's message when the connection is closed


_PARAMETER: Final = object()  # the key of a part in braces
_ENDPOINT: Final = object()  # the key of the endpoint of a path that ends at a node

_Node = dict[Any, Any]


def create_app(
    store: Store,
    catalog: Catalog,
    tenants: Store,
    *,
    version: str,
    clock: Clock,
    authenticator: Authenticator | None = None,
    replica: Store | None = None,
    wakeups: Wakeups | None = None,
    egress: Egress = Egress(),
    cache: Cache | None = None,
    keyed_reads: KeyedReads | None = None,
    queue_depths: QueueDepths | None = None,
    ready: Callable[[], bool] = lambda: True,
    console: ASGIApp | None = None,
    guide: ASGIApp | None = None,
    settings: Sequence[Setting] = (),
    roles: Sequence[str] = ("api",),
    unknown_tasks: UnknownTasks = "warn",
    idempotency_keys: int = BLOCKS_PER_TENANT,
    payload_codec: PayloadCodec | None = None,
    public_url: str | None = None,
    run_retention: timedelta | None = None,
) -> Api:
    """Builds the API. `ready` returns whether the rest of the process has started. Without an authenticator, no
    credentials are required; without `keyed_reads`, reads by key use the pool for tenants.
    """
    catalog = catalog.for_callers()
    cache = cache or ProcessCache(clock)
    read_cache = ReadCache(
        store, keyed_reads.of if keyed_reads else partial(ScopedStore, tenants, actor=None), catalog, clock, cache
    )
    service = AppState(
        store=store,
        tenants=tenants,
        replica=None if replica is None else Replica(replica, clock),
        catalog=catalog,
        read_cache=read_cache,
        known_tasks=KnownTasks(store, unknown_tasks, reads_options=True),
        create_batcher=CreateBatcher(tenants, catalog),
        version=version,
        clock=clock,
        wakeups=wakeups,
        egress=egress,
        idempotency_quota=IdempotencyQuota(store, clock, idempotency_keys),
        ready=ready,
        streams=OpenStreams(cache),
        queue_depths=queue_depths,
        settings=settings,
        run_retention=run_retention,
        roles=roles,
        payload_codec=payload_codec,
        public_url=public_url,
        ping_limits=RateLimits(clock),
    )
    authenticator = authenticator or Authenticator(store, catalog, AuthSettings(open_to="anyone"), clock, cache)
    gauges = metrics.Gauges(service)
    endpoints = {path: _Endpoint(service, authenticator, path, at) for path, at in _table(service, gauges).items()}
    mounted = [MountedApp(CONSOLE, console, at_root=True)] if console else []
    mounted += [MountedApp(GUIDE, guide)] if guide else []
    return Api(Router(endpoints), mounted, service, gauges)


def _table(service: AppState, gauges: metrics.Gauges) -> dict[str, Mapping[str, Endpoint]]:
    """Returns the operations by path and method."""
    table = {**ROUTES, "/metrics": {"GET": metrics.metrics_endpoint(gauges)}}
    table["/openapi.json"] = table[f"{PREFIX}/openapi.json"] = {"GET": openapi.openapi_endpoint(table, service.version)}
    table |= docs_page.pages(table, service.version)
    table["/"] = {"GET": _index(sorted(table))}
    return table


def _index(paths: list[str]) -> Endpoint:
    @operation(Route("service", "GET", "/", Index, prefix=""), role=None, problems=(422,))
    async def index(call: RequestContext) -> Response:
        """Lists the paths of the API."""
        call.query()
        return reply(Index(name="bellringer", version=call.service.version, paths=paths))

    return index


class Router:
    """Finds the endpoint of a path. Literal parts take precedence over parameters."""

    def __init__(self, endpoints: Mapping[str, ASGIApp]) -> None:
        self._root: _Node = {}
        for template, endpoint in endpoints.items():
            node, names = self._root, []
            for part in template.split("/"):
                is_parameter = part.startswith("{")
                names += [part.strip("{}")] if is_parameter else []
                node = node.setdefault(_PARAMETER if is_parameter else part, {})
            node[_ENDPOINT] = (endpoint, names)

    def find(self, path: str) -> tuple[ASGIApp, Mapping[str, str]] | None:
        """Returns the endpoint of a path, and the values of its parameters."""
        values: list[str] = []
        found = _find(self._root, path.split("/"), 0, values)
        return None if found is None else (found[0], dict(zip(found[1], values, strict=True)))


class MountedApp:
    """An application below a path. With `at_root`, browsers get it at the root too, where programs get the index."""

    def __init__(self, path: str, app: ASGIApp, *, at_root: bool = False) -> None:
        self._path = path
        self._at_root = at_root
        self.app = app

    def has(self, scope: Scope) -> bool:
        path: str = scope["path"]
        if path == "/":
            return self._at_root and _accepts_html(scope)
        return path == self._path or path.startswith(f"{self._path}/")


def _accepts_html(scope: Scope) -> bool:
    """Returns whether the client accepts HTML, or sends no Accept header."""
    wanted = [value for name, value in scope["headers"] if name == b"accept"]
    return not wanted or any(b"text/html" in value for value in wanted)


def _find(node: _Node, parts: list[str], index: int, values: list[str]) -> tuple[ASGIApp, list[str]] | None:
    if index == len(parts):
        return node.get(_ENDPOINT)
    part = parts[index]
    if part in node and (found := _find(node[part], parts, index + 1, values)) is not None:
        return found
    if not part or _PARAMETER not in node:
        return None
    values.append(part)
    found = _find(node[_PARAMETER], parts, index + 1, values)
    if found is None:
        values.pop()
    return found


class _Endpoint:
    """One path with its methods; it replies 405 with the allowed methods to all others."""

    def __init__(
        self, service: AppState, authenticator: Authenticator, path: str, operations: Mapping[str, Endpoint]
    ) -> None:
        self._service = service
        self._authenticator = authenticator
        self._path = path
        self._operations = operations
        self._allowed = ", ".join(sorted({*operations, *(["HEAD"] if "GET" in operations else [])}))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[_ROUTE_KEY] = self._path
        method = scope["method"]
        operation = self._operations.get("GET" if method == "HEAD" else method)
        if operation is None:
            raise Refused(
                405,
                "method_not_allowed",
                "this path does not support that method",
                hint=f"use {self._allowed}",
                headers={"Allow": self._allowed},
            )
        async with asyncio.timeout(RESPONSE_TIMEOUT_SECONDS) as timeout:
            call = await self._admit(Request(scope, receive), operation, timeout)
            try:
                response = await (
                    idempotency.respond_once(call, self._path) if method == "POST" else operation.handler(call)
                )
            except BaseException:
                await self._changed(call, is_sure=False)
                raise
            await self._changed(call)
        await response(scope, receive, send)

    async def _changed(self, call: RequestContext, *, is_sure: bool = True) -> None:
        """Invalidates what is cached for the tenant, here and in other processes, before the change is confirmed. With
        `is_sure` false, the handler has failed, but its change may have been committed.
        """
        read_cache, tag = self._service.read_cache, call.operation.tag
        if call.request.method not in CHANGING_METHODS:
            return
        if tag == "access":
            self._authenticator.forget()
        if tag == "runs" and not call.request.path_params:
            return  # executing a task changes no existing run
        whose = (
            None if call.tenant_id == NO_TENANT_ID else call.tenant_id
        )  # a change outside all tenants may concern each of them
        if (tag in REVIVING_TAGS or read_cache.keeps_jobs) and not await read_cache.invalidate(whose) and is_sure:
            await self._service.wake(RUNS_CHANNEL, "" if whose is None else str(whose))

    async def _admit(self, request: Request, operation: Endpoint, timeout: asyncio.Timeout) -> RequestContext:
        service, request_id = self._service, request.scope[_REQUEST_ID_KEY]
        caller = await self._authenticator.admit(request, operation)
        is_change = request.method in CHANGING_METHODS
        actor = caller.actor(request_id) if is_change else None
        store = ScopedStore(service.tenants, caller.tenant_id, actor)
        if operation.everywhere and actor is not None:
            service = replace(service, store=ScopedStore(service.store, None, actor))
        reads: Store = store
        if service.replica is not None:
            lagging = ScopedStore(service.replica.store, caller.tenant_id, None)
            reads = ReadStore(service.replica, lagging, store)
        return RequestContext(
            service=service,
            request=request,
            timeout=timeout,
            operation=operation,
            caller=caller,
            store=store,
            reads=reads,
            request_id=request_id,
            seal=await self._authenticator.seal() if CURSOR_PARAMETER in operation.query else b"",
            is_still_admitted=partial(self._authenticator.is_still_admitted, request, caller),
            count_sends=partial(self._authenticator.count_sends, caller),
        )


class Api:
    """The application: assigns an id to each request, finds its endpoint, renders errors, counts and logs."""

    def __init__(
        self, switch: Router, mounted: Sequence[MountedApp], service: AppState, gauges: metrics.Gauges
    ) -> None:
        self._switch = switch
        self._service = service
        self.gauges = gauges
        self._mounted = mounted
        self._clock = service.clock
        self.read_cache = service.read_cache
        self.streams = service.streams  # so that the process can end streams before it stops

    async def check_readiness(self) -> Readiness:
        """Returns the document of /readyz, for a port that serves it without the API."""
        return await health.check_readiness(self._service)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(
                "only HTTP is supported"
            )  # the ASGI server then knows that lifespan and websockets are not supported
        started = self._clock.monotonic()
        request_id = scope[_REQUEST_ID_KEY] = _request_id(scope)
        status = 0

        async def tagged(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                beside = [(b"x-request-id", request_id.encode()), *scope.get(RESPONSE_HEADERS_KEY, ())]
                given = [*message.get("headers", ())]
                names = {name.lower() for name, _ in given}
                message["headers"] = [*given, *beside, *(line for line in _SECURITY_HEADERS if line[0] not in names)]
            try:
                await send(message)
            except RuntimeError as error:
                if _CONNECTION_CLOSED in str(error):  # a client that disconnects early is not an error of the server
                    raise ConnectionResetError("the client has disconnected") from error
                raise

        if scope["path"].startswith("/api/"):
            # A name may contain a slash: paths are matched as they were sent, and their parts are decoded later.
            scope["path"] = scope.get("raw_path", scope["path"].encode()).decode("ascii", "replace")
        try:
            check_head(scope)
            with _caller_context(scope):
                await self._found(scope)(scope, receive, tagged)
        except Exception as error:  # noqa: BLE001 - the last stop: whatever it is becomes an answer
            if not error_responses.is_expected(error):
                log.error("request failed", request_id=request_id, exc_info=error)
            if not status:
                await error_responses.render_error(error, request_id)(scope, receive, tagged)
        finally:
            _record_request(scope, status, self._clock.monotonic() - started, request_id)

    def _found(self, scope: Scope) -> ASGIApp:
        for mounted in self._mounted:
            if mounted.has(scope):
                return mounted.app
        found = self._switch.find(scope["path"])
        if found is None:
            raise HTTPException(404)
        endpoint, scope["path_params"] = found
        return endpoint


def _request_id(scope: Scope) -> str:
    """Returns the caller's own request id if it is well-formed, or a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            text: str = value.decode("latin-1")
            return text if _REQUEST_ID.fullmatch(text) else uuid7().hex
    return uuid7().hex


def _caller_context(scope: Scope) -> AbstractContextManager[None]:
    """Makes the span that the header traceparent names current, so that the spans of the request are its children."""
    tracer = tracing.active()
    return nullcontext() if tracer is None else tracer.received(scope["headers"])


def _record_request(scope: Scope, status: int, seconds: float, request_id: str) -> None:
    route = scope.get(_ROUTE_KEY, "unmatched")
    method = scope["method"] if scope["method"] in _METHODS else "other"
    with_labels(metrics.REQUESTS, route, method, str(status)).inc()
    with_labels(metrics.SECONDS, route, method).observe(seconds)
    is_done = method in CHANGING_METHODS and status < 400
    if not is_done and not is_debug_enabled():
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
