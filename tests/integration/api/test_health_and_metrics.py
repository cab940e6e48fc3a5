"""The service itself: health, readiness, metrics, the cluster, previews; and what it does in trouble."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from uuid import uuid4

import asyncpg
import httpx2
import pytest
import structlog
from structlog.testing import capture_logs

from bellringer import telemetry
from bellringer.api.app import create_app
from bellringer.clock import SystemClock
from bellringer.store import jobs, leases
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.leases import NodeHeartbeat, PostgresLeases
from bellringer.store.wakeups import CANCELS_CHANNEL, COHORTS_CHANNEL, WORK_CHANNEL


async def test_alive_and_ready(api: httpx2.AsyncClient) -> None:
    alive, ready = await api.get("/healthz"), await api.get("/readyz")
    assert (alive.status_code, alive.json()["status"]) == (200, "ok")
    assert (ready.status_code, ready.json()) == (
        200,
        {"status": "ready", "checks": {"process": "ok", "database": "ok", "schema": "ok", "row_security": "ok"}},
    )
    assert (await api.head("/readyz")).status_code == 200


async def test_not_ready_before_the_process_is_or_without_its_schema(
    store: Store, catalog: Catalog, tenants: Store
) -> None:
    app = create_app(store, catalog, tenants, version="1", clock=SystemClock(), ready=lambda: False)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://test") as api:
        waiting = await api.get("/readyz")
        assert (waiting.status_code, waiting.json()["checks"]["process"]) == (503, "starting")
        await store.pool.execute("update migrations set checksum = 'x' where number = 1")
        mismatch = await api.get("/readyz")
        assert mismatch.json()["checks"]["schema"] == "schema_mismatch"


async def test_a_newer_schema_keeps_a_server_ready_if_it_is_compatible(api: httpx2.AsyncClient, store: Store) -> None:
    newest: int = await store.pool.fetchval("select max(number) from migrations")
    await store.pool.execute(
        "insert into migrations values ($1, 'next.sql', 'x', '9.0', now(), $2)", newest + 1, newest
    )
    assert (await api.get("/readyz")).json()["checks"]["schema"] == "ok"
    await store.pool.execute(
        "insert into migrations values ($1, 'last.sql', 'y', '9.1', now(), $2)", newest + 2, newest + 1
    )
    refused = await api.get("/readyz")
    assert (refused.status_code, refused.json()["checks"]["schema"]) == (503, "schema_mismatch")


async def test_without_a_database_it_is_alive_and_says_what_is_missing(api: httpx2.AsyncClient, store: Store) -> None:
    await store.pool.close()
    assert (await api.get("/healthz")).status_code == 200
    ready = await api.get("/readyz")
    assert (ready.status_code, ready.json()["checks"]["database"]) == (503, "no answer")
    refused = await api.post("/api/v1/jobs", json={"name": "a", "task": "demo"})
    assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
    assert refused.headers["retry-after"] == "2"
    metrics = await api.get("/metrics")
    assert metrics.status_code == 200
    assert "bellringer_database_up 0.0" in metrics.text


async def test_a_mistake_of_ours_shows_nothing_but_its_id(
    api: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise asyncpg.UndefinedTableError("relation bellringer.secrets does not exist")

    monkeypatch.setattr(jobs, "get_many", broken)
    with capture_logs() as lines:
        response = await api.get(f"/api/v1/jobs/{uuid4()}", headers={"X-Request-Id": "r-1"})
    assert response.json() == {
        "type": "urn:bellringer:error:internal",
        "title": "Internal Server Error",
        "status": 500,
        "detail": "an internal error occurred",
        "code": "internal",
        "hint": "the server's log has the cause under this request_id",
        "request_id": "r-1",
        "errors": [],
    }
    assert [line["request_id"] for line in lines if line["log_level"] == "error"] == ["r-1"]


@pytest.fixture
def all_is_told(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every line counts, whatever level a test before this one has chosen for this process."""
    monkeypatch.setitem(telemetry._settings, "level", logging.DEBUG)
    before = structlog.get_config()
    structlog.configure(**{**before, "wrapper_class": structlog.make_filtering_bound_logger(logging.DEBUG)})
    yield
    structlog.configure(**before)


@pytest.mark.usefixtures("all_is_told")
async def test_only_changes_are_logged_at_info(api: httpx2.AsyncClient) -> None:
    with capture_logs() as lines:
        await api.post("/api/v1/jobs", json={"name": "a", "task": "demo"})
        await api.get("/api/v1/jobs/a")
    told = [(line["log_level"], line["method"], line["route"], line["status"]) for line in lines]
    assert told == [("info", "POST", "/api/v1/jobs", 202), ("debug", "GET", "/api/v1/jobs/{id}", 200)]


async def test_metrics_show_the_queue_and_the_requests(api: httpx2.AsyncClient) -> None:
    await api.post("/api/v1/jobs/execute", json={"task": "demo"})
    text = (await api.get("/metrics")).text
    assert 'bellringer_queue_depth{pool="short",state="ready"} 1.0' in text
    assert "bellringer_shards_free 64.0" in text
    assert "bellringer_db_connections{purpose=" in text
    assert 'route="/api/v1/jobs/execute",status="202"' in text
    await api.get(f"/api/v1/{uuid4()}")
    await api.post("/api/v1/jobs/execute", json={"task": "demo"})
    text = (await api.get("/metrics")).text
    assert 'route="unmatched",status="404"' in text
    assert 'state="ready"} 1.0' in text, "gauges are read at most once a second"


async def test_the_cluster_is_shown(api: httpx2.AsyncClient, store: Store) -> None:
    node = uuid4()
    await leases.record_heartbeat(store, NodeHeartbeat(node_id=node, name="n1", host="h", pid=1, version="1", skew=0.1))
    await PostgresLeases(store).acquire(node, 10)
    cluster = (await api.get("/api/v1/cluster")).json()
    assert cluster["shards"] == {"total": 64, "held": 10, "free": 54}
    assert [(n["name"], n["node_id"]) for n in cluster["nodes"]] == [("n1", str(node))]
    held = [lease for lease in cluster["leases"] if lease["holder"]]
    assert len(held) == 10
    assert held[0]["node"] == "n1"
    assert cluster["schema"]["current"] == cluster["schema"]["wanted"] > 0
    assert abs(cluster["skew"]) < 60


async def test_workers_and_version_are_shown(api: httpx2.AsyncClient, work: object) -> None:
    [worker] = (await api.get("/api/v1/workers")).json()["items"]
    assert (worker["name"], worker["pools"], worker["tasks"]) == ("w", {"short": 4}, ["demo"])
    assert (await api.get("/api/v1/version")).json() == {"version": "1.2.3", "api": "v1"}


async def test_a_preview_shows_what_the_clocks_change_does(api: httpx2.AsyncClient) -> None:
    body = {
        "schedule": {"cron": "30 2 * * *", "tz": "America/New_York"},
        "n": 2,
        "from": "2026-03-08T00:00:00Z",
    }
    preview = (await api.post("/api/v1/schedules/preview", json=body)).json()
    assert preview["description"] == "At 02:30 every day (America/New_York)"
    [gap, after] = preview["fires"]
    assert (gap["at"], gap["local"]) == ("2026-03-08T07:00:00Z", "2026-03-08T03:00:00-04:00")
    assert gap["flags"]
    assert after["flags"] == []


async def test_changes_send_hints(dsn: str, api: httpx2.AsyncClient) -> None:
    heard: list[str] = []
    connection = await asyncpg.connect(dsn)
    try:
        for channel in (WORK_CHANNEL, COHORTS_CHANNEL, CANCELS_CHANNEL):
            await connection.add_listener(channel, lambda *told: heard.append(told[2]))
        await api.post("/api/v1/jobs", json={"name": "a", "task": "demo"})
        run = (await api.post("/api/v1/jobs/a/run")).json()
        await api.post(f"/api/v1/runs/{run['run_id']}/cancel")
        async with asyncio.timeout(5):
            while len(heard) < 3:
                await connection.fetchval("select 1")
    finally:
        await connection.close()
    assert heard == [COHORTS_CHANNEL, WORK_CHANNEL, CANCELS_CHANNEL]


async def test_the_address_that_a_start_prints_answers_with_what_is_there(api: httpx2.AsyncClient) -> None:
    index = (await api.get("/")).json()
    assert index["name"] == "bellringer"
    assert {"/api/v1/jobs", "/api/v1/runs/{id}/explain", "/metrics"} <= set(index["paths"])
