"""Webhook endpoints through the API: made, read, changed, rotated, tried, and gone; their secrets shown once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from bellringer.api.app import create_app
from bellringer.client import AsyncClient
from bellringer.clock import SystemClock
from bellringer.core.runs import decode_run_id
from bellringer.egress.secret_box import generate_secret_key
from bellringer.egress.settings import Egress
from bellringer.egress.webhook_signatures import generate_secret
from bellringer.engine import http_targets
from bellringer.errors import Conflict, InvalidInput, NotFound
from bellringer.store import runs
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog

PATH = "/api/v1/webhook-endpoints"
URL = "https://example.com/hook"


@pytest.fixture
def egress() -> Egress:
    return Egress.read((), (generate_secret_key("k1"),))


@pytest.fixture
async def hooks(store: Store, catalog: Catalog, tenants: Store, egress: Egress) -> AsyncIterator[httpx2.AsyncClient]:
    app = create_app(store, catalog, tenants, version="1", clock=SystemClock(), egress=egress)
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app=app), base_url="http://test", timeout=20
    ) as client:
        yield client


@pytest.fixture
async def client(store: Store, catalog: Catalog, tenants: Store, egress: Egress) -> AsyncIterator[AsyncClient]:
    app = create_app(store, catalog, tenants, version="1", clock=SystemClock(), egress=egress)
    async with AsyncClient("http://test", transport=httpx2.ASGITransport(app=app), timeout=20) as made:
        yield made


async def test_a_secret_that_is_made_is_shown_once(client: AsyncClient, store: Store, egress: Egress) -> None:
    made = await client.create_webhook(URL, kinds=["dead", "late", "dead"], description="the pager")
    assert isinstance(made.new_secret, str)
    assert made.new_secret.startswith("whsec_")
    assert (made.url, made.kinds, made.enabled, made.description) == (URL, ["dead", "late"], True, "the pager")
    read = await client.webhook(made.endpoint_id)
    assert not isinstance(read.new_secret, str)
    assert read.secret == {"id": made.secret["id"], "set": True}
    [listed] = (await client.webhooks()).items
    assert listed == read
    assert await http_targets.open_secrets(store, egress, made.secret["id"], tenant_id=1) == [made.new_secret]


async def test_a_secret_that_is_given_is_never_shown(hooks: httpx2.AsyncClient) -> None:
    secret, other = generate_secret(), generate_secret()
    made = await hooks.post(PATH, json={"url": URL, "secret": secret})
    assert made.status_code == 201
    assert secret not in made.text
    endpoint = made.json()["endpoint_id"]
    assert made.headers["location"] == f"{PATH}/{endpoint}"
    turned = await hooks.post(f"{PATH}/{endpoint}/rotate-secret", json={"secret": other})
    assert turned.status_code == 200, turned.text
    assert "new_secret" not in turned.json()
    assert other not in turned.text


async def test_a_rotation_keeps_the_old_secret_for_a_while(client: AsyncClient, store: Store, egress: Egress) -> None:
    made = await client.create_webhook(URL)
    turned = await client.rotate_webhook(made.endpoint_id)
    assert isinstance(turned.new_secret, str)
    kept = await http_targets.open_secrets(store, egress, made.secret["id"], tenant_id=1)
    assert kept == [turned.new_secret, made.new_secret]


async def test_an_endpoint_is_changed_switched_off_and_deleted(client: AsyncClient, store: Store) -> None:
    made = await client.create_webhook(URL)
    changed = await client.patch_webhook(made.endpoint_id, {"url": "https://example.org/", "kinds": ["dead"]})
    assert (changed.url, changed.kinds, changed.enabled) == ("https://example.org/", ["dead"], True)
    off = await client.patch_webhook(made.endpoint_id, {"enabled": False})
    assert (off.enabled, off.disabled_reason, off.url) == (False, "switched off", "https://example.org/")
    with pytest.raises(Conflict, match="is disabled"):
        await client.test_webhook(made.endpoint_id)
    on = await client.patch_webhook(made.endpoint_id, {"enabled": True})
    assert (on.enabled, on.disabled_reason) == (True, None)
    await client.delete_webhook(made.endpoint_id)
    with pytest.raises(NotFound):
        await client.webhook(made.endpoint_id)
    with pytest.raises(NotFound):
        await client.delete_webhook(made.endpoint_id)
    assert await store.pool.fetchval("select count(*) from bellringer.secrets") == 0


async def test_a_test_is_a_delivery_that_can_be_replayed(client: AsyncClient, store: Store) -> None:
    made = await client.create_webhook(URL)
    first = await client.test_webhook(made.endpoint_id)
    assert (first.kind, first.state, first.event_id) == ("test", "queued", None)
    assert first.payload is not None
    assert first.payload["type"] == "test"
    assert (first.status, first.seconds, first.response, first.next_attempt_at) == (None, None, None, None)
    again = await client.replay_delivery(first.delivery_id)
    assert again.replay_of == first.delivery_id
    assert again.run_id != first.run_id
    page = await client.deliveries(made.endpoint_id, limit=1)
    assert [d.delivery_id for d in page.items] == [again.delivery_id]
    rest = await client.deliveries(made.endpoint_id, limit=1, cursor=page.next_cursor)
    assert ([d.delivery_id for d in rest.items], rest.next_cursor) == ([first.delivery_id], None)
    run = await runs.get(store, decode_run_id(again.run_id), 1)
    assert run is not None
    assert run.spec is not None
    assert (run.task, run.pool, run.cause) == ("http", "http", "webhook")
    assert run.spec.kwargs["secret"] == {"id": made.secret["id"]}


@pytest.mark.parametrize(
    ("body", "code", "pointer"),
    [
        ({}, "missing_field", "/url"),
        ({"url": "https://127.0.0.1/"}, "url_forbidden_address", "/url"),
        ({"url": "http://example.com/"}, "url_invalid", "/url"),
        ({"url": URL, "kinds": ["deed"]}, "kind_unknown", "/kinds/0"),
        ({"url": URL, "secret": "hunter2"}, "secret_invalid", "/secret"),
        ({"url": URL, "description": "x" * 501}, "limit", "/description"),
        ({"url": URL, "colour": "red"}, "unknown_field", "/colour"),
    ],
)
async def test_a_bad_endpoint_is_refused_and_nothing_is_stored(
    hooks: httpx2.AsyncClient, store: Store, body: dict[str, Any], code: str, pointer: str
) -> None:
    answer = await hooks.post(PATH, json=body)
    assert answer.status_code == 422, answer.text
    assert "hunter2" not in answer.text
    problem = answer.json()
    assert code in {problem["code"], *(error["code"] for error in problem["errors"])}, problem
    assert pointer in {error["pointer"] for error in problem["errors"]}, problem
    assert await store.pool.fetchval("select count(*) from bellringer.webhook_endpoints") == 0
    assert await store.pool.fetchval("select count(*) from bellringer.secrets") == 0


@pytest.mark.parametrize("number", ["whe_99", "whe_0x1", "whe_01", "whe_", "99", "whe_99999999999999999999"])
async def test_an_endpoint_that_is_not_there_is_not_found(hooks: httpx2.AsyncClient, number: str) -> None:
    for method, path in (
        ("GET", f"{PATH}/{number}"),
        ("DELETE", f"{PATH}/{number}"),
        ("GET", f"{PATH}/{number}/deliveries"),
        ("POST", f"{PATH}/{number}/test"),
        ("POST", f"{PATH}/{number}/rotate-secret"),
        ("POST", f"/api/v1/deliveries/{number.replace('whe', 'whd')}/replay"),
    ):
        answer = await hooks.request(method, path)
        assert answer.status_code == 404, (method, path, answer.text)


async def test_endpoints_come_in_pages_and_there_is_a_limit(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bellringer.store.webhooks.MAX_ENDPOINTS", 3)
    made = [(await client.create_webhook(URL)).endpoint_id for _ in range(3)]
    page = await client.webhooks(limit=2)
    rest = await client.webhooks(limit=2, cursor=page.next_cursor)
    assert [e.endpoint_id for e in (*page.items, *rest.items)] == made
    with pytest.raises(Conflict, match="already"):
        await client.create_webhook(URL)


async def test_an_endpoint_of_another_tenant_is_not_there(client: AsyncClient, store: Store) -> None:
    made = await client.create_webhook(URL)
    sent = await client.test_webhook(made.endpoint_id)
    other = await store.pool.fetchval("insert into bellringer.tenants (name) values ('other') returning tenant_id")
    await store.pool.execute("update bellringer.webhook_endpoints set tenant_id = $1", other)
    await store.pool.execute("update bellringer.deliveries set tenant_id = $1", other)
    assert (await client.webhooks()).items == []
    for ask in (client.webhook, client.test_webhook, client.rotate_webhook, client.delete_webhook, client.deliveries):
        with pytest.raises(NotFound):
            await ask(made.endpoint_id)
    with pytest.raises(NotFound):
        await client.replay_delivery(sent.delivery_id)


async def test_a_url_is_called_without_a_job(client: AsyncClient) -> None:
    run = await client.execute_http({"url": URL, "method": "PUT"}, key="once")
    assert (run.task, run.pool) == ("http", "http")
    assert (await client.execute_http({"url": URL, "method": "PUT"}, key="once")).run_id == run.run_id
    with pytest.raises(InvalidInput):
        await client.execute_http({"url": "https://10.0.0.1/"})
