"""Check-ins over the API: secret URLs, states by the database's clock, events, limits."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import httpx2

from bellringer.core.checkins import MAX_BODY_BYTES, MAX_PINGS_PER_MINUTE
from bellringer.engine.checkins import report_missed_checkins
from bellringer.engine.webhooks import event_body
from bellringer.store import events
from bellringer.store.connection_pool import Store

CHECKINS = "/api/v1/checkins"


async def set_clock(store: Store, now: datetime) -> None:
    await store.pool.execute(
        "create or replace function bellringer.now() returns timestamptz language sql stable parallel safe as "
        f"$$ select timestamptz '{now.isoformat()}' $$"
    )


async def create(api: httpx2.AsyncClient, name: str = "backup", **more: object) -> str:
    document = {"schedule": {"cron": "0 3 * * *", "tz": "UTC"}, "grace": "30m", **more}
    made = await api.put(f"{CHECKINS}/{name}", json=document)
    assert made.status_code == 201, made.text
    return httpx2.URL(made.json()["ping_url"]).path


async def state(api: httpx2.AsyncClient, name: str = "backup") -> str:
    return str((await api.get(f"{CHECKINS}/{name}")).json()["state"])


async def kinds(store: Store) -> list[str]:
    rows = await store.pool.fetch("select kind from bellringer.events order by event_id")
    return [row["kind"] for row in rows]


async def test_a_day_of_a_check_in(api: httpx2.AsyncClient, store: Store) -> None:
    three = datetime(2026, 11, 18, 3, 0, tzinfo=UTC)
    await set_clock(store, three)
    path = await create(api)
    assert await state(api) == "new"
    await set_clock(store, three + timedelta(days=9))
    assert (await report_missed_checkins(store), await state(api)) == (0, "new")
    await set_clock(store, three)
    assert (await api.get(path)).json() == {"ok": True, "state": "up"}
    await set_clock(store, three + timedelta(days=1, minutes=29))
    assert (await report_missed_checkins(store), await state(api)) == (0, "late")
    await set_clock(store, three + timedelta(days=1, minutes=30))
    passes = await asyncio.gather(*(report_missed_checkins(store) for _ in range(5)))  # several nodes at once
    assert (sum(passes), await state(api)) == (1, "down")
    await set_clock(store, three + timedelta(days=3))
    assert await report_missed_checkins(store) == 0  # it is reported once
    assert (await api.head(path)).status_code == 200
    assert (await state(api), await kinds(store)) == ("up", ["checkin_missed", "checkin_recovered"])
    tenant_id = await store.pool.fetchval("select tenant_id from bellringer.checkins")
    missed = (await events.newest(store, tenant_id, None, 9))[-1]
    body = event_body(missed)
    assert (body["type"], body["data"]["checkin"], body["data"]["run_id"]) == ("checkin.missed", "backup", None)


async def test_start_fail_and_exit_codes(api: httpx2.AsyncClient, store: Store) -> None:
    now = datetime(2026, 11, 18, 3, 0, tzinfo=UTC)
    await set_clock(store, now)
    path = await create(api)
    await api.get(path)
    await set_clock(store, now + timedelta(hours=1))
    assert (await api.post(f"{path}/start")).status_code == 200
    await set_clock(store, now + timedelta(hours=1, minutes=10))
    assert (await api.post(f"{path}/0", content=b"done")).json()["state"] == "up"
    assert (await api.get(f"{path}/start")).status_code == 200
    await set_clock(store, now + timedelta(hours=2))
    assert (await report_missed_checkins(store), await state(api)) == (1, "down")  # it did not finish in time
    assert (await api.post(f"{path}/7", content=b"x" * 20_000)).json()["state"] == "down"
    pings = (await api.get(f"{CHECKINS}/backup/pings")).json()["items"]
    assert [(p["kind"], p["exit_code"]) for p in pings[:3]] == [("fail", 7), ("start", None), ("success", 0)]
    assert len(pings[0]["body"]) == MAX_BODY_BYTES
    assert pings[2]["duration_seconds"] == 600.0
    assert (await api.get(f"{path}/fail")).status_code == 200
    assert await kinds(store) == ["checkin_missed"]
    for wrong in ("256", "-1", "done", "1.0"):
        assert (await api.get(f"{path}/{wrong}")).status_code == 422


async def test_the_token_is_the_only_way_in_and_can_be_replaced(api: httpx2.AsyncClient, store: Store) -> None:
    path = await create(api)
    token = path.rpartition("/")[2]
    shown = await api.get(f"{CHECKINS}/backup")
    assert "ping_url" not in shown.json()
    stored = await store.pool.fetchval("select string_agg(c::text, '') from bellringer.checkins c")
    audit = await store.pool.fetchval("select string_agg(coalesce(after::text, ''), '') from bellringer.audit")
    assert token not in shown.text + stored + audit
    rotated = await api.post(f"{CHECKINS}/backup/rotate")
    assert (await api.get(path)).status_code == 404
    assert (await api.get(httpx2.URL(rotated.json()["ping_url"]).path)).status_code == 200
    assert (await api.get("/ping/unknown-token-of-some-length")).status_code == 404
    assert (await api.delete(f"{CHECKINS}/backup")).status_code == 204
    actions = await store.pool.fetch("select action from bellringer.audit where kind = 'checkin' order by audit_id")
    assert [row["action"] for row in actions] == ["checkin.created", "checkin.changed", "checkin.deleted"]


async def test_pauses_changes_and_limits(api: httpx2.AsyncClient, store: Store) -> None:
    now = datetime(2026, 11, 18, 3, 0, tzinfo=UTC)
    await set_clock(store, now)
    path = await create(api, schedule={"every": "10m"}, grace="2m", owner="data", tags=["b"])
    await api.get(path)
    assert (await api.post(f"{CHECKINS}/backup/pause")).json()["state"] == "paused"
    await set_clock(store, now + timedelta(days=1))
    assert await report_missed_checkins(store) == 0
    resumed = (await api.post(f"{CHECKINS}/backup/resume")).json()
    assert (resumed["state"], resumed["deadline_at"]) == ("up", "2026-11-19T03:12:00Z")
    changed = await api.put(f"{CHECKINS}/backup", json={"schedule": {"every": "1h"}, "grace": "2m"})
    assert (changed.status_code, changed.json()["deadline_at"]) == (200, "2026-11-19T04:02:00Z")
    statuses = [(await api.get(path)).status_code for _ in range(MAX_PINGS_PER_MINUTE + 5)]
    assert statuses.count(429) >= 1
    assert statuses[0] == 200
    refused = await api.put(f"{CHECKINS}/x", json={"schedule": {"at": "2030-01-01T00:00:00Z"}, "grace": "0s"})
    assert {e["pointer"] for e in refused.json()["errors"]} == {"/schedule", "/grace"}
