"""The audit over the API: who did what, page by page, whole, and chained."""

from __future__ import annotations

from typing import Any

import httpx2
import msgspec
import pytest

from bellringer.api.endpoints import audit as served
from bellringer.client import AsyncClient
from bellringer.client.streams import LineBuffer
from bellringer.engine.audit_seal import seal_entries
from bellringer.errors import InvalidInput
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog

AUDIT = "/api/v1/audit"


async def make(api: httpx2.AsyncClient, name: str = "bell", **more: Any) -> dict[str, Any]:
    body = {"name": name, "task": "demo", "schedule": {"every": "1h"}, **more}
    answer = await api.post("/api/v1/jobs", json=body, headers={"X-Request-Id": f"make-{name}"})
    assert answer.status_code == 202
    made: dict[str, Any] = answer.json()
    return made


async def listed(api: httpx2.AsyncClient, **query: Any) -> list[dict[str, Any]]:
    answer = await api.get(AUDIT, params=query)
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


async def test_a_change_shows_who_from_where_by_which_request_and_what(api: httpx2.AsyncClient) -> None:
    job = await make(api)
    await api.patch(f"/api/v1/jobs/{job['job_id']}", json={"priority": 9}, headers={"X-Request-Id": "second"})
    changed, created = await listed(api, kind="job")
    assert (created["action"], created["target"], created["name"]) == ("job.created", job["job_id"], "bell")
    assert (created["who"], created["origin"], created["request_id"]) == ("local", "127.0.0.1", "make-bell")
    assert (created["before"], created["after"]["name"], created["changed"]) == (None, "bell", [])
    assert (changed["action"], changed["request_id"], changed["revision"]) == ("job.changed", "second", 2)
    assert changed["changed"] == ["priority"]
    assert (changed["before"], changed["after"]) == ({"priority": 5}, {"priority": 9})


async def test_what_is_set_and_what_is_taken_away_has_changed(api: httpx2.AsyncClient) -> None:
    job = await make(api)
    for late_after in ("1h", None):
        await api.patch(f"/api/v1/jobs/{job['job_id']}", json={"late_after": late_after})
    taken, given, _ = await listed(api, kind="job")
    assert (taken["changed"], given["changed"]) == (["late_after"], ["late_after"])
    assert (given["before"], taken["after"]) == ({"late_after": None}, {"late_after": None})
    assert given["after"] == taken["before"] == {"late_after": "01:00:00"}


async def test_a_run_is_named_by_its_id_and_found_by_it(api: httpx2.AsyncClient) -> None:
    job = await make(api)
    run = (await api.post(f"/api/v1/jobs/{job['job_id']}/run")).json()["run_id"]
    await api.post(f"/api/v1/runs/{run}/cancel", json={"reason": "no"})
    cancelled, triggered = await listed(api, target=run)
    assert (triggered["action"], cancelled["action"]) == ("run.triggered", "run.cancelled")
    assert {triggered["target"], cancelled["target"]} == {run}
    assert cancelled["after"] == {"reason": "no", "state": "cancelled"}


async def test_pages_follow_each_other(api: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(7):
        await make(api, f"bell {n}")
    seen: list[str] = []
    query: dict[str, Any] = {"kind": "job", "limit": 3}
    while True:
        page = (await api.get(AUDIT, params=query)).json()
        seen += [item["name"] for item in page["items"]]
        if page["next_cursor"] is None:
            break
        query["cursor"] = page["next_cursor"]
    assert seen == [f"bell {n}" for n in reversed(range(7))]
    other = await api.get(AUDIT, params={**query, "kind": "run", "cursor": query["cursor"]})
    assert (other.status_code, other.json()["code"]) == (400, "cursor_invalid")


async def test_filters(api: httpx2.AsyncClient) -> None:
    first, second = await make(api, "one"), await make(api, "two")
    await api.delete(f"/api/v1/jobs/{first['job_id']}")
    assert len(await listed(api, kind="job")) == 3
    assert [e["target"] for e in await listed(api, action="job.deleted")] == [first["job_id"]]
    assert [e["action"] for e in await listed(api, target=second["job_id"])] == ["job.created"]
    assert await listed(api, who="nobody") == []
    at = (await listed(api, action="job.deleted"))[0]["at"]
    assert [e["action"] for e in await listed(api, kind="job", **{"from": at})] == ["job.deleted"]
    assert {e["action"] for e in await listed(api, kind="job", to=at)} == {"job.created"}


async def test_large_fields_are_reported_by_their_size_in_lists_and_whole_in_the_export(
    api: httpx2.AsyncClient, store: Store
) -> None:
    await make(api, args=["x" * 5000, "a line\u2028separator"])
    [entry] = await listed(api, kind="job")
    assert entry["after"]["spec"]["bytes"] > 5000
    async with AsyncClient("http://test", transport=api._transport) as client:
        [whole] = [found async for found in client.audit_export(kind="job")]
    assert whole.after is not None
    assert whole.after["spec"]["args"] == ["x" * 5000, "a line\u2028separator"]


async def test_the_export_has_everything_oldest_first(api: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "ENTRIES_PER_QUERY", 3)
    for n in range(8):
        await make(api, f"bell {n}")
    answer = await api.get(f"{AUDIT}/export", params={"action": "job.created"})
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    entries = [msgspec.json.decode(line) for line in answer.content.splitlines()]
    assert [entry["name"] for entry in entries] == [f"bell {n}" for n in range(8)]
    assert entries[0]["after"]["priority"] == 5
    async with AsyncClient("http://test", transport=api._transport) as client:
        assert [e.name async for e in client.audit_export(action="job.created")] == [f"bell {n}" for n in range(8)]
        with pytest.raises(InvalidInput):
            _ = [e async for e in client.audit_export(start="yesterday")]


async def test_seals_can_be_read(api: httpx2.AsyncClient, store: Store) -> None:
    for n in range(4):
        await make(api, f"bell {n}")
    while await seal_entries(store, 2):
        pass
    seals = (await api.get(f"{AUDIT}/seals", params={"limit": 1})).json()
    [newest] = seals["items"]
    [before] = (await api.get(f"{AUDIT}/seals", params={"limit": 1, "cursor": seals["next_cursor"]})).json()["items"]
    assert newest["prev_hash"] == before["hash"]
    assert (len(newest["hash"]), newest["seal_id"]) == (64, before["seal_id"] + 1)


async def test_another_tenant_sees_nothing_of_it(api: httpx2.AsyncClient, store: Store) -> None:
    await make(api)
    assert (await api.post("/api/v1/tenants", json={"name": "other"})).status_code == 201
    answer = await api.get(AUDIT, headers={"X-Tenant": "other"}, params={"kind": "job"})
    assert answer.json()["items"] == []
    made = (await api.get(AUDIT, headers={"X-Tenant": "other"})).json()["items"]
    assert [(e["action"], e["who"], e["origin"]) for e in made] == [("tenant.created", "local", "127.0.0.1")]


async def test_what_is_of_the_whole_installation_is_for_its_administrators(
    api: httpx2.AsyncClient, catalog: Catalog
) -> None:
    await catalog.pool_ids(["wide"])
    assert "wide" in [e["target"] for e in await listed(api, installation="true", kind="pool")]
    key = (await api.post("/api/v1/api-keys", json={"name": "k", "role": "admin"})).json()
    headers = {"Authorization": f"Bearer {key['key']}"}
    refused = await api.get(AUDIT, params={"installation": "true"}, headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    mine = await api.get(AUDIT, params={"kind": "api_key"}, headers=headers)
    [made] = mine.json()["items"]
    assert (made["action"], made["after"]["hash"]) == ("api_key.created", "hidden")


async def test_only_administrators_read_it(api: httpx2.AsyncClient) -> None:
    key = (await api.post("/api/v1/api-keys", json={"name": "k", "role": "editor"})).json()
    for path in (AUDIT, f"{AUDIT}/export", f"{AUDIT}/seals"):
        answer = await api.get(path, headers={"Authorization": f"Bearer {key['key']}"})
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


@pytest.mark.parametrize("query", [{"from": "soon"}, {"who": ""}, {"target": "x" * 300}, {"installation": "maybe"}])
async def test_filters_that_cannot_be_are_refused(api: httpx2.AsyncClient, query: dict[str, str]) -> None:
    assert (await api.get(AUDIT, params=query)).status_code == 422


def test_only_a_newline_ends_a_line() -> None:
    lines = LineBuffer()
    assert lines.feed(b'{"a": 1}\n{"b') == [b'{"a": 1}']
    assert lines.feed('": "x\u2028\x85"}\n\n'.encode()) == ['{"b": "x\u2028\x85"}'.encode()]
