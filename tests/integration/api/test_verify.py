"""GET /api/v1/verify: a server verifies the history of a tenant."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import httpx2
import msgspec
import pytest
from tests.support.engine_harness import EngineHarness

from bellringer.client import AsyncClient
from bellringer.errors import NotFound
from bellringer.schedule import every

VERIFY = "/api/v1/verify"


@pytest.fixture
async def tens(harness: EngineHarness) -> None:
    """A job every ten seconds that has run for two minutes; the last 70 seconds are not verified."""
    await harness.job("tens", every("10s"))
    for _ in range(12):
        await harness.pass_time(10)
        await harness.tick_all()


@pytest.mark.usefixtures("tens")
async def test_a_clean_history_has_only_a_summary(api: httpx2.AsyncClient) -> None:
    response = await api.get(VERIFY)
    assert response.headers["content-type"].startswith("application/x-ndjson")
    [line] = response.content.splitlines()
    summary = msgspec.json.decode(line)["summary"]
    assert (summary["jobs"], summary["expected"], summary["created"], summary["clean"]) == (1, 4, 4, True)


@pytest.mark.usefixtures("tens")
async def test_findings_come_before_the_summary(api: httpx2.AsyncClient, harness: EngineHarness) -> None:
    await harness.sql("delete from runs where scheduled_for = $1", harness.after(30))
    async with AsyncClient("http://test", transport=api._transport) as client:
        finding, end = [line async for line in client.verify(job="tens")]
    assert (finding.finding, finding.job, finding.detail) == ("missing", "tens", "neither a run nor a gap")
    assert end.summary is not None
    assert (end.summary["missing"], end.summary["clean"]) == (1, False)


@pytest.mark.usefixtures("tens")
async def test_errors_have_their_own_status(api: httpx2.AsyncClient, harness: EngineHarness) -> None:
    missing = await api.get(VERIFY, params={"job": "nightly"})
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
    async with AsyncClient("http://test", transport=api._transport) as client:
        with pytest.raises(NotFound, match="'nightly'"):
            _ = [line async for line in client.verify(job="nightly")]
    start, end = harness.after(0) - timedelta(days=32), harness.after(120)
    long = await api.get(VERIFY, params={"from": start.isoformat(), "to": end.isoformat()})
    assert (long.status_code, long.json()["code"]) == (422, "window_too_long")
    young = await api.get(VERIFY, params={"from": harness.after(119).isoformat()})
    assert (young.status_code, "nothing can be judged" in young.json()["detail"]) == (422, True)


@pytest.mark.usefixtures("tens")
async def test_a_second_verification_waits_for_the_first(
    api: httpx2.AsyncClient, harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table of jobs is locked, so that the first verification cannot end."""
    monkeypatch.setattr("bellringer.api.endpoints.verify.EARLY_ERROR_SECONDS", 0.2)
    async with harness.store.pool.acquire() as connection, connection.transaction():
        await connection.execute("lock table bellringer.jobs in access exclusive mode")
        first = asyncio.create_task(api.get(VERIFY))
        await asyncio.sleep(0.1)
        second = await api.get(VERIFY)
    assert (second.status_code, second.json()["code"]) == (429, "too_many_streams")
    assert b'"clean":true' in (await first).content
    assert (await api.get(VERIFY)).status_code == 200


@pytest.mark.usefixtures("tens")
async def test_a_tenant_sees_only_its_own_history(api: httpx2.AsyncClient) -> None:
    assert (await api.post("/api/v1/tenants", json={"name": "other"})).status_code == 201
    response = await api.get(VERIFY, headers={"X-Tenant": "other"})
    assert msgspec.json.decode(response.content)["summary"]["jobs"] == 0
