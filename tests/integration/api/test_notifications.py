"""The API of notifications: channels keep their secrets, and other tenants need an installation key."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from bellringer.api.app import create_app
from bellringer.clock import SystemClock
from bellringer.egress.secret_box import generate_secret_key
from bellringer.egress.settings import Egress
from bellringer.engine.notifications import notify
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog

CHANNELS = "/api/v1/notifications/channels"
ROUTES = "/api/v1/notifications/routes"
SLACK = "https://hooks.slack.com/services/T000/B000/very-secret"


@pytest.fixture
async def api(store: Store, catalog: Catalog, tenants: Store) -> AsyncIterator[httpx2.AsyncClient]:
    egress = Egress.read((), (generate_secret_key("k1"),))
    app = create_app(store, catalog, tenants, version="1", clock=SystemClock(), egress=egress)
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test", timeout=20) as client:
        yield client


async def test_a_channel_never_shows_its_secret_and_keeps_it(api: httpx2.AsyncClient, store: Store) -> None:
    made = await api.put(f"{CHANNELS}/team", json={"kind": "slack", "url": SLACK})
    assert (made.status_code, made.json()["url"]) == (201, "https://hooks.slack.com/***")
    before = await store.pool.fetchval("select secret_id from bellringer.notification_channels")
    again = await api.put(f"{CHANNELS}/team", json={"kind": "slack", "enabled": False})
    assert (again.status_code, again.json()["enabled"], again.json()["has_secret"]) == (200, False, True)
    assert await store.pool.fetchval("select secret_id from bellringer.notification_channels") == before
    replaced = await api.put(f"{CHANNELS}/team", json={"kind": "slack", "url": SLACK + "2"})
    assert replaced.status_code == 200
    assert await store.pool.fetchval("select count(*) from bellringer.secrets") == 1
    listed = await api.get(CHANNELS)
    audit = await store.pool.fetchval("select string_agg(coalesce(after::text, ''), '') from bellringer.audit")
    for text in (listed.text, made.text, replaced.text, audit):
        assert "very-secret" not in text
    assert [item["name"] for item in listed.json()["items"]] == ["team"]


@pytest.mark.parametrize(
    ("document", "pointer"),
    [
        ({"kind": "sms"}, "/kind"),
        ({"kind": "slack"}, "/url"),
        ({"kind": "slack", "url": "http://10.0.0.1/x"}, "/url"),
        ({"kind": "pagerduty"}, "/routing_key"),
        ({"kind": "pagerduty", "routing_key": "no spaces"}, "/routing_key"),
        ({"kind": "email"}, "/to"),
        ({"kind": "email", "to": ["nobody"]}, "/to/0"),
        ({"kind": "email", "to": ["a@b.c"], "url": SLACK}, "/url"),
        ({"kind": "slack", "url": SLACK, "to": ["a@b.c"]}, "/to"),
    ],
)
async def test_wrong_channels_are_refused(api: httpx2.AsyncClient, document: dict[str, object], pointer: str) -> None:
    refused = await api.put(f"{CHANNELS}/x", json=document)
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, pointer)


async def test_routes_are_stored_checked_and_keep_their_channel(api: httpx2.AsyncClient) -> None:
    await api.put(f"{CHANNELS}/mail", json={"kind": "email", "to": ["ops@example.com"]})
    quiet = {"from": "22:00", "to": "07:00", "tz": "Europe/Paris", "days": [], "critical": "send"}
    document = {
        "channel": "mail",
        "tags": ["billing"],
        "owners": ["data"],
        "jobs": ["b-*"],
        "quiet": quiet,
        "wait": "1s",
    }
    made = await api.put(f"{ROUTES}/billing", json=document)
    assert made.status_code == 201
    stored = (await api.get(f"{ROUTES}/billing")).json()
    assert {name: stored[name] for name in document} == document
    assert (stored["interval"], stored["repeat"], stored["severity"]) == ("5m", "4h", "warning")
    never = await api.put(f"{ROUTES}/billing", json={"channel": "mail", "repeat": None})
    assert (never.status_code, never.json()["repeat"]) == (200, None)
    wrong = {
        "channel": "mail",
        "kinds": ["deda"],
        "severity": "bad",
        "wait": "2h",
        "quiet": {"from": "9"},
        "group_by": "x",
    }
    refused = await api.put(f"{ROUTES}/billing", json=wrong)
    assert {e["pointer"] for e in refused.json()["errors"]} == {
        "/kinds/0", "/severity", "/wait", "/quiet/from", "/group_by",
    }  # fmt: skip
    assert (await api.put(f"{ROUTES}/y", json={"channel": "nowhere"})).json()["errors"][0]["code"] == "channel_unknown"
    assert (await api.delete(f"{CHANNELS}/mail")).json()["code"] == "channel_in_use"
    assert (await api.delete(f"{ROUTES}/billing")).status_code == 204
    assert (await api.delete(f"{CHANNELS}/mail")).status_code == 204
    assert (await api.get(f"{ROUTES}/billing")).status_code == 404


async def test_a_test_message_is_a_run_in_the_history(api: httpx2.AsyncClient) -> None:
    await api.put(f"{CHANNELS}/mail", json={"kind": "email", "to": ["ops@example.com"]})
    sent = await api.post(f"{CHANNELS}/mail/test")
    assert (sent.status_code, sent.json()["reason"], sent.json()["state"]) == (202, "test", "queued")
    assert (await api.get(sent.headers["location"])).json()["run_id"] == sent.json()["run_id"]
    [listed] = (await api.get("/api/v1/notifications/history?channel=mail")).json()["items"]
    assert listed["notification_id"] == sent.json()["notification_id"]
    assert (await api.get("/api/v1/notifications/history?channel=x")).json()["items"] == []
    await api.put(f"{CHANNELS}/mail", json={"kind": "email", "to": ["ops@example.com"], "enabled": False})
    assert (await api.post(f"{CHANNELS}/mail/test")).json()["code"] == "channel_disabled"


async def test_only_the_installation_routes_events_of_other_tenants(
    store: Store, catalog: Catalog, tenants: Store
) -> None:
    from bellringer.api.http.auth import Authenticator, AuthSettings

    clock, root = SystemClock(), "r" * 40
    guard = Authenticator(store, catalog, AuthSettings(root_key=root), clock)
    app = create_app(store, catalog, tenants, version="1", clock=clock, authenticator=guard)
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        admin = {"Authorization": f"Bearer {root}"}
        key = await client.post("/api/v1/api-keys", json={"name": "e", "role": "admin"}, headers=admin)
        tenant = {"Authorization": f"Bearer {key.json()['secret']}"} if "secret" in key.json() else {}
        tenant = tenant or {"Authorization": f"Bearer {key.json()['key']}"}
        mail = {"kind": "email", "to": ["ops@example.com"]}
        assert (await client.put(f"{CHANNELS}/mail", json=mail, headers=tenant)).status_code == 201
        all_tenants = {"channel": "mail", "tenants": ["*"]}
        refused = await client.put(f"{ROUTES}/all", json=all_tenants, headers=tenant)
        assert refused.status_code == 403
        assert (await client.put(f"{ROUTES}/all", json=all_tenants, headers=admin)).status_code == 201
        assert (await client.put(f"{ROUTES}/all", json={"channel": "mail"}, headers=tenant)).status_code == 403
        assert (await client.put(f"{CHANNELS}/mail", json=mail, headers=tenant)).status_code == 403
        assert (await client.delete(f"{ROUTES}/all", headers=tenant)).status_code == 403
        assert (await client.delete(f"{ROUTES}/all", headers=admin)).status_code == 204


async def test_incidents_are_listed_until_they_are_resolved(api: httpx2.AsyncClient, store: Store) -> None:
    await api.put(f"{CHANNELS}/mail", json={"kind": "email", "to": ["ops@example.com"]})
    await api.put(f"{ROUTES}/all", json={"channel": "mail"})
    made = await api.put("/api/v1/checkins/backup", json={"schedule": {"every": "1h"}, "tags": ["ops"]})
    path = httpx2.URL(made.json()["ping_url"]).path
    assert (await api.post(f"{path}/3", content=b"disk full")).json() == {"ok": True, "state": "down"}
    catalog = Catalog(store)
    found: list[dict[str, Any]] = []
    for _ in range(200):
        await notify(store, catalog)
        found = (await api.get("/api/v1/notifications/incidents")).json()["items"]
        if found:
            break
    assert [(i["severity"], i["count"], i["messages"]) for i in found] == [("critical", 1, 0)]
    [subject] = found[0]["subjects"]
    assert (subject["name"], subject["error"]) == ("backup", "exit code 3: disk full")
    await api.get(path)
    for _ in range(200):
        await notify(store, catalog)
        if not (await api.get("/api/v1/notifications/incidents")).json()["items"]:
            break
    [resolved] = (await api.get("/api/v1/notifications/incidents?resolved=true")).json()["items"]
    assert resolved["resolved_at"] is not None
