"""Retry policies, deadlines, automatic pauses and kept results over HTTP."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from tests.integration.api.conftest import Work

from bellringer.core.runs import Ending, Outcome
from bellringer.store import queue
from bellringer.store.connection_pool import Store

API = "/api/v1"
FAILED = Ending(outcome=Outcome.FAILED, error={"type": "E", "message": "m"}, final="no")
OPTIONS: dict[str, Any] = {
    "retry": {"attempts": 4, "delays": ["1s"], "jitter": 0.5, "only_on": ["OSError"], "max_elapsed": "2h"},
    "expires_in": "10m",
    "pause_after_failures": 5,
    "keep_result": True,
}


async def _create(api: httpx2.AsyncClient, **fields: Any) -> dict[str, Any]:
    response = await api.post(f"{API}/jobs", json={"name": "nightly", "task": "demo", **fields})
    assert response.status_code in (201, 202), response.text
    document: dict[str, Any] = response.json()
    return document


async def test_a_job_is_created_read_and_patched_with_these_options(api: httpx2.AsyncClient) -> None:
    job = await _create(api, **OPTIONS)
    assert {name: job[name] for name in OPTIONS} == OPTIONS
    changed = await api.patch(
        f"{API}/jobs/nightly",
        json={"retry": {"max_elapsed": "1h"}, "expires_in": None, "keep_result": False},
    )
    assert changed.status_code == 200, changed.text
    job = changed.json()
    assert job["retry"] == {**OPTIONS["retry"], "max_elapsed": "1h"}
    assert (job["expires_in"], job["pause_after_failures"], job["keep_result"]) == (None, 5, False)
    revision = (await api.get(f"{API}/jobs/nightly/revisions/{job['revision']}")).json()
    assert {"retry", "expires_in", "keep_result"} <= {change["field"] for change in revision["changes"]}


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"expires_in": "0s"}, "/expires_in"),
        ({"expires_in": "soon"}, "/expires_in"),
        ({"expires_in": "400d"}, "/expires_in"),
        ({"expires_in": "5m", "jitter": "10m", "schedule": {"every": "1h"}}, "/expires_in"),
        ({"pause_after_failures": 0}, "/pause_after_failures"),
        ({"pause_after_failures": 1001}, "/pause_after_failures"),
        ({"retry": {"max_elapsed": "0s"}}, "/retry/max_elapsed"),
        ({"retry": {"only_on": "E"}}, "/retry/only_on"),
        ({"retry": {"only_on": ["E"], "never_on": ["E"]}}, "/retry/only_on"),
        ({"task": None, "http": {"url": "https://example.com"}, "keep_result": True}, "/keep_result"),
    ],
)
async def test_wrong_options_are_refused_with_their_place(
    api: httpx2.AsyncClient, fields: dict[str, Any], pointer: str
) -> None:
    response = await api.post(f"{API}/jobs", json={"name": "nightly", "task": "demo", **fields})
    assert response.status_code == 422, response.text
    assert [error["pointer"] for error in response.json()["errors"]] == [pointer]


async def test_a_send_that_expired_says_why(api: httpx2.AsyncClient, store: Store) -> None:
    sent = await api.post(f"{API}/jobs/execute", json={"task": "demo", "expires_in": 0.001})
    assert sent.status_code == 202, sent.text
    bulk = await api.post(f"{API}/runs/bulk", json={"items": [{"task": "demo", "expires_in": "1ms"}] * 2})
    assert bulk.status_code in (200, 202), bulk.text
    await store.pool.execute("select pg_sleep(0.01)")
    assert tuple(await queue.expire_runs(store, 10)) == (3, 0)
    run_id = sent.json()["run_id"]
    run = (await api.get(f"{API}/runs/{run_id}")).json()
    assert (run["state"], run["error"]["reason"]) == ("skipped", "expired")
    why = (await api.get(f"{API}/runs/{run_id}/explain")).json()
    assert why["reasons"][0]["code"] == "expired"


async def test_a_job_that_was_paused_by_failures_needs_attention(
    api: httpx2.AsyncClient, store: Store, work: Work
) -> None:
    await _create(api, pause_after_failures=1)
    assert (await api.post(f"{API}/jobs/nightly/run")).status_code == 202
    assert await work(FAILED) == 1
    job = (await api.get(f"{API}/jobs/nightly")).json()
    assert (job["paused"]["by"], job["paused"]["reason"]) == ("system", "the last run died")
    items = (await api.get(f"{API}/overview")).json()["attention"]
    [item] = [item for item in items if item["job"] == "nightly"]
    assert (item["kind"], item["text"]) == ("paused_failing", "Job “nightly” was paused: the last run died.")
    assert item["fix"] == "bellringer jobs resume nightly"
    [event] = (await api.get(f"{API}/events", params={"kind": "paused"})).json()["items"]
    assert event["data"] == {"reason": "the last run died", "failures": 1, "by": "system"}
    why = (await api.get(f"{API}/jobs/nightly/why")).json()
    assert any("paused by system" in reason["text"] for reason in why["reasons"])
    assert (await api.post(f"{API}/jobs/nightly/resume")).status_code == 200
    assert await store.pool.fetchval("select failures from job_outcomes") == 0
    assert not [i for i in (await api.get(f"{API}/overview")).json()["attention"] if i["kind"] == "paused_failing"]
