"""Headers that every answer of the API carries, and the path prefix that only trusted proxies may set."""

from __future__ import annotations

import re
from typing import Any

import httpx2
import pytest

from bellringer.api.app import create_app
from bellringer.api.trusted_proxies import behind_proxies
from bellringer.clock import SystemClock
from bellringer.console import Console
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/healthz", 200),
        ("GET", "/", 200),
        ("GET", "/api/v1/jobs", 200),
        ("GET", "/api/v1/jobs/missing", 404),
        ("PUT", "/api/v1/jobs", 405),
        ("POST", "/api/v1/jobs", 415),
        ("GET", "/metrics", 200),
        ("GET", "/openapi.json", 200),
        ("GET", "/nothing", 404),
    ],
)
async def test_answers_are_neither_sniffed_nor_stored(
    api: httpx2.AsyncClient, method: str, path: str, status: int
) -> None:
    answer = await api.request(method, path, headers={"accept": "application/json"})
    assert answer.status_code == status, answer.text
    assert answer.headers.get_list("x-content-type-options") == ["nosniff"]
    assert answer.headers.get_list("cache-control") == ["no-store"]


async def test_pages_that_set_their_own_caching_keep_it(api: httpx2.AsyncClient) -> None:
    answer = await api.get("/docs", headers={"accept": "text/html"})
    assert answer.status_code == 200
    assert answer.headers.get_list("cache-control") == ["no-cache"]
    assert answer.headers.get_list("x-content-type-options") == ["nosniff"]


@pytest.mark.parametrize(
    ("trusted", "peer", "expected"),
    [
        ((), "127.0.0.1", "/console/"),
        (("10.0.0.0/8",), "192.0.2.1", "/console/"),
        (("10.0.0.0/8",), "10.1.2.3", "/ops/bell/console/"),
        (("127.0.0.1",), "127.0.0.1", "/ops/bell/console/"),
        (("*",), "192.0.2.1", "/ops/bell/console/"),
    ],
)
async def test_the_prefix_counts_from_trusted_proxies_alone(
    store: Store, catalog: Catalog, tenants: Store, trusted: tuple[str, ...], peer: str, expected: str
) -> None:
    app: Any = create_app(store, catalog, tenants, version="1", clock=SystemClock(), console=Console())
    transport = httpx2.ASGITransport(app=behind_proxies(app, trusted), client=(peer, 4711))
    told = {"x-forwarded-prefix": "/ops/bell", "x-forwarded-for": "203.0.113.7"}
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        page = await client.get("/console/", headers=told)
        moved = await client.get("/console", headers=told)
    assert re.findall(r'<base href="([^"]*)"', page.text) == [expected]
    assert moved.headers["location"] == expected
