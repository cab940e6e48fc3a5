"""Answers that go on end soon after their caller would not be let in any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import httpx2
import pytest

from bellringer.access.api_keys import ApiKeyCredential, generate_api_key
from bellringer.api.app import create_app
from bellringer.api.http.auth import Authenticator, AuthSettings
from bellringer.clock import SystemClock
from bellringer.store import api_keys
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog

API: Final = "/api/v1"
PATIENCE: Final = 30.0
ROOT: Final = "r" * 40
Change = Callable[[Store, ApiKeyCredential], Awaitable[Any]]


@pytest.fixture
async def api(
    store: Store, catalog: Catalog, tenants: Store, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[httpx2.AsyncClient]:
    monkeypatch.setattr("bellringer.api.http.verify_credentials.CREDENTIAL_TTL_SECONDS", 0.1)
    for place in ("http.sse", "endpoints.runs"):
        monkeypatch.setattr(f"bellringer.api.{place}.HEARTBEAT_SECONDS", 0.1)
    authenticator = Authenticator(store, catalog, AuthSettings(root_key=ROOT))
    app = create_app(store, catalog, tenants, version="1", clock=SystemClock(), authenticator=authenticator)
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test", timeout=PATIENCE) as client:
        yield client


async def revoked(store: Store, key: ApiKeyCredential) -> None:
    assert await api_keys.revoke(store, key.key_id, 1)


async def demoted(store: Store, key: ApiKeyCredential) -> None:
    await store.pool.execute("update api_keys set role = 'viewer' where key_id = $1", key.key_id)


async def narrowed(store: Store, key: ApiKeyCredential) -> None:
    await store.pool.execute("update api_keys set scopes = '{freezes}' where key_id = $1", key.key_id)


async def held(store: Store) -> tuple[ApiKeyCredential, dict[str, str]]:
    key = generate_api_key()
    await api_keys.add(store, key, tenant_id=1, name="k", role="operator", who="test")
    return key, {"Authorization": f"Bearer {key.text}"}


async def sent(api: httpx2.AsyncClient, headers: dict[str, str]) -> str:
    answer = await api.post(f"{API}/jobs/execute", json={"task": "demo"}, headers=headers)
    assert answer.status_code == 202, answer.text
    run_id: str = answer.json()["run_id"]
    return run_id


async def goes_on(asked: asyncio.Task[httpx2.Response]) -> bool:
    """Whether it is still open after some looks at its caller."""
    return not (await asyncio.wait([asked], timeout=1.0))[0]


@pytest.mark.parametrize("change", [revoked, demoted, narrowed])
@pytest.mark.parametrize("path", ["/events", "/runs/{}/logs?follow=true"])
async def test_a_stream_ends_when_its_caller_is_another(
    api: httpx2.AsyncClient, store: Store, path: str, change: Change
) -> None:
    key, headers = await held(store)
    place = f"{API}{path}".format(await sent(api, headers))
    asked = asyncio.create_task(api.get(place, headers={**headers, "Accept": "text/event-stream"}))
    assert await goes_on(asked)
    await change(store, key)
    answer = await asyncio.wait_for(asked, PATIENCE)
    assert (answer.status_code, answer.text[:12]) == (200, ": still here")


async def test_a_waiting_request_with_a_revoked_key_is_rejected(api: httpx2.AsyncClient, store: Store) -> None:
    key, headers = await held(store)
    place = f"{API}/runs/{await sent(api, headers)}/wait?timeout=60"
    waiting = asyncio.create_task(api.get(place, headers=headers))
    assert await goes_on(waiting)
    await revoked(store, key)
    answer = await asyncio.wait_for(waiting, PATIENCE)
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")


async def test_streams_that_end_so_are_no_guesses(api: httpx2.AsyncClient, store: Store) -> None:
    """Or many streams of one key would lock out all others behind the same address."""
    key, headers = await held(store)
    listening = {**headers, "Accept": "text/event-stream"}
    asked = [asyncio.create_task(api.get(f"{API}/events", headers=listening)) for _ in range(15)]
    assert all(await asyncio.gather(*(goes_on(one) for one in asked)))
    await revoked(store, key)
    await asyncio.wait_for(asyncio.gather(*asked), PATIENCE)
    answer = await api.get(f"{API}/whoami", headers={"Authorization": f"Bearer {ROOT}"})
    assert answer.status_code == 200, answer.text
