"""Requests made from the OpenAPI document, good and bad, against the real server: it keeps to what it says.

`BELLRINGER_FUZZ=500 pytest tests/contracts/api/test_schemathesis.py` sends more requests to each operation,
and different ones each time.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import httpx2
import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from bellringer.api.app import create_app
from bellringer.api.endpoint_table import ROUTES
from bellringer.api.http import openapi
from bellringer.clock import SystemClock
from bellringer.sdk.sync_bridge import BlockingPortal
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.tenant_scope import open_tenants
from bellringer.testing.postgres import TestServer
from bellringer.wire.calendars import CalendarRequest, FreezeRequest

LONGER: Final = int(os.environ.get("BELLRINGER_FUZZ", "0"))
PATIENCE: Final = 20.0
NOT_SENT: Final = {
    "x-tenant",
    "authorization",
}  # a wrong one ends a request before it is read; they have tests of their own
CHECKS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
SERVED: Final = ["/", "/docs", "/docs/style.css", "/openapi.json", "/api/v1/openapi.json", "/metrics"]
OPERATIONS: Final = [(method, path) for path, at in ROUTES.items() for method in at] + [("GET", p) for p in SERVED]
EACH: Final = LONGER or max(10, 3000 // len(OPERATIONS))  # requests to each operation


@dataclass
class World:
    """A running server, what it says of itself, and how often it was asked."""

    url: str
    http: httpx2.Client
    document: dict[str, Any]
    schema: Any
    asked: dict[int, int] = field(default_factory=dict)


@pytest.fixture(scope="module")
def world(bellringer_server: TestServer) -> Iterator[World]:
    portal = BlockingPortal("schemathesis")
    with bellringer_server.plain_database() as dsn, socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        stop = asyncio.Event()
        serving = portal.run(lambda: _start(dsn, listener, stop), instead="an async fixture")
        with httpx2.Client(base_url=url, timeout=PATIENCE) as http:
            document = http.get("/openapi.json").json()
            yield World(url=url, http=http, document=document, schema=schemathesis.openapi.from_dict(document))
        portal.run(lambda: _end(stop, serving), instead="an async fixture")
    portal.close()


async def _start(dsn: str, listener: socket.socket, stop: asyncio.Event) -> asyncio.Task[None]:
    started = asyncio.Event()

    async def serve() -> None:
        store, tenants, clock = await Store.open(dsn), await open_tenants(dsn), SystemClock()
        app = create_app(store, Catalog(store), tenants, version="1.2.3", clock=clock)
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
        running = asyncio.create_task(server.serve(sockets=[listener]))
        started.set()
        await stop.wait()
        server.should_exit = True
        await running
        await tenants.close()
        await store.close()

    serving = asyncio.create_task(serve())
    await started.wait()
    return serving


async def _end(stop: asyncio.Event, serving: asyncio.Task[None]) -> None:
    stop.set()
    await serving


def _furnish(world: World) -> None:
    """One of most things, so that more than the missing is met; what is there already stays."""
    post = world.http.post
    free = {"suspended": False, "quotas": None}  # whatever was done to the tenant before
    assert world.http.patch("/api/v1/tenants/default", json=free).status_code == 200
    post("/api/v1/jobs", json={"name": "fuzzed", "task": "demo", "schedule": {"every": "1h"}})
    post("/api/v1/jobs/fuzzed/run")
    post("/api/v1/jobs", json={"name": "fuzzed flow", "workflow": {"nodes": [{"name": "s", "signal": {}}]}})
    post("/api/v1/jobs/fuzzed%20flow/run")
    post("/api/v1/jobs/execute", json={"task": "demo", "delay": "1h"})
    post("/api/v1/freezes", json=openapi.REQUEST_EXAMPLES[FreezeRequest])
    world.http.put("/api/v1/calendars/fuzzed", json=openapi.REQUEST_EXAMPLES[CalendarRequest])
    past = {"job": "fuzzed", "from": "2026-01-01T00:00:00Z", "to": "2026-01-01T03:00:00Z"}
    post("/api/v1/backfills", json=past)


def _known(world: World, path: str) -> list[str]:
    """Ids of things that are there, from the list that a path's first part belongs to."""
    above, brace, _ = path.partition("/{")
    if not brace or "GET" not in ROUTES.get(above, {}):
        return []
    items = world.http.get(above).json().get("items", [])
    return [str(value) for item in items[:3] for value in list(item.values())[:2]]


def _bounded(case: Case[Any]) -> None:
    """Nobody waits or follows, and all act for the one tenant that there is."""
    query = {name: value for name, value in (case.query or {}).items() if name != "follow"}
    if case.operation.get_parameter("timeout", "query") is not None:
        query["timeout"] = "0"
    case.query = query
    for name in [name for name in case.headers or {} if name.lower() in NOT_SENT]:
        del case.headers[name]


def _milder(case: Case[Any], example: dict[str, Any] | None) -> None:
    """A request that gets further: on the first page, and with only one field that is not as in the example."""
    (case.query or {}).pop("cursor", None)
    if example is not None and isinstance(case.body, dict):
        case.body = {**example, **dict(list(case.body.items())[:1])}


def _example(told: dict[str, Any]) -> dict[str, Any] | None:
    contents = told.get("requestBody", {}).get("content", {}).values()
    return next((content["example"] for content in contents if "example" in content), None)


@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=[f"{m} {p}" for m, p in OPERATIONS])
def test_every_operation_keeps_to_what_the_document_says(world: World, method: str, path: str) -> None:
    _furnish(world)
    known = _known(world, path)
    operation = world.schema[path][method]
    modes = [operation.as_strategy(generation_mode=mode) for mode in GenerationMode]
    example = _example(world.document["paths"][path][method.lower()])
    part = path.partition("{")[2].partition("}")[0]
    checks = CHECKS[1:] if path == "/readyz" else CHECKS  # where to be busy is an answer

    @settings(
        max_examples=EACH,
        derandomize=not LONGER,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=st.one_of(modes), named=st.sampled_from([None, *known]), is_mild=st.booleans())
    def ask(case: Case[Any], named: str | None, *, is_mild: bool) -> None:
        _bounded(case)
        if is_mild:
            _milder(case, example)
        if named is not None:
            case.path_parameters = {**(case.path_parameters or {}), part: named}
        response = case.call(base_url=world.url, timeout=PATIENCE)
        world.asked[response.status_code] = world.asked.get(response.status_code, 0) + 1
        case.validate_response(response, checks=checks)

    ask()


def test_thousands_were_asked_and_many_were_met(world: World, request: pytest.FixtureRequest) -> None:
    """The walk above is worth something only if much of it is accepted."""
    if len(request.session.items) < len(OPERATIONS):
        pytest.skip("only with all of the others")
    total = sum(world.asked.values())
    print(total, dict(sorted(world.asked.items())))
    good = sum(count for status, count in world.asked.items() if status < 400)
    turned_away = sum(world.asked.get(status, 0) for status in (401, 403, 429))
    assert total >= 2000
    assert good >= total / 5
    assert turned_away <= total / 50
