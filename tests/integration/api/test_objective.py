"""The objective over HTTP and on the command line."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import httpx2
import msgspec
from click.testing import CliRunner

from bellringer.cli.tenants import _summary, _worst, objective
from bellringer.store import usage
from bellringer.store.connection_pool import Store
from bellringer.store.usage import WHOLE_POOL_TENANT_ID, UsageDelta
from bellringer.wire.access import Objective

PATH = "/api/v1/objective"


async def _told(store: Store) -> None:
    await store.pool.execute("insert into tenants (name) values ('noisy')")
    noisy = await store.pool.fetchval("select tenant_id from tenants where name = 'noisy'")
    minute = (await store.now()).replace(second=0, microsecond=0) - timedelta(minutes=10)
    rows = [
        UsageDelta(minute, 1, 1, started=100, late=10, busy_ms=1000),
        UsageDelta(minute, 1, noisy, started=900, busy_ms=9000),
        UsageDelta(minute, 1, WHOLE_POOL_TENANT_ID, slots_ms=10_000),
        UsageDelta(minute - timedelta(minutes=5), 1, 1, started=900, late=1),
    ]
    await usage.add(store, rows)


async def _get(api: httpx2.AsyncClient, **query: str) -> dict[str, Any]:
    response = await api.get(PATH, params=query)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def test_an_objective_is_reported_with_its_burn_and_who_used_the_capacity(
    api: httpx2.AsyncClient, store: Store
) -> None:
    await _told(store)
    found = await _get(api)
    assert (found["tenant"], found["target"], found["within"]) == ("default", 0.999, "5s")
    assert (found["started"], found["late"], found["compliance"]) == (1000, 11, 0.989)
    assert found["budget_left"] == -10
    assert [(burn["over"], burn["rate"]) for burn in found["burns"]] == [("1h", 11), ("6h", 11), ("24h", 11)]
    full, away = found["worst"]
    assert (full["late"], away["late"]) == (10, 1)
    [pool] = full["pools"]
    assert (pool["pool"], pool["cause"], pool["saturation"], pool["own"], pool["others"]) == (
        "short",
        "full",
        1,
        0.1,
        0.9,
    )
    assert away["pools"][0]["cause"] == "no_worker"


async def test_a_window_is_heeded_and_checked(api: httpx2.AsyncClient, store: Store) -> None:
    await _told(store)
    assert (await _get(api, window="12m"))["started"] == 100
    assert (await _get(api))["started"] == 1000
    for window in ("31d", "1s", "soon", ""):
        response = await api.get(PATH, params={"window": window})
        assert response.status_code == 422, (window, response.text)
    assert (await api.get(PATH, params={"windows": "1h"})).status_code == 422


async def test_where_nothing_was_due_the_budget_is_whole(api: httpx2.AsyncClient) -> None:
    found = await _get(api)
    assert (found["compliance"], found["budget_left"], found["worst"]) == (None, 1, [])


async def test_the_command_line_says_it_in_words(api: httpx2.AsyncClient, store: Store) -> None:
    empty = msgspec.convert(await _get(api), Objective)
    assert "no runs were due" in "\n".join(_summary(empty))
    await _told(store)
    found = msgspec.convert(await _get(api), Objective)
    text = "\n".join((*_summary(found), *_worst(found.worst)))
    assert "99.9000% of the runs of default start within 5s" in text
    assert "11 of 1,000 late" in text
    assert "violated: 11 times the error budget is used" in text
    assert "  last  1h:     11 times the allowed share   " in text
    assert "100% of the slots busy, 10% by this tenant, 90% by others" in text
    assert "pool short: no worker" in text


def test_the_command_shows_what_it_is_for() -> None:
    done = CliRunner().invoke(objective, ["--help"])
    assert done.exit_code == 0
    assert "what used the capacity" in " ".join(done.output.split())


async def test_the_share_of_missed_occurrences_is_reported(api: httpx2.AsyncClient, store: Store) -> None:
    minute = (await store.now()).replace(second=0, microsecond=0) - timedelta(minutes=10)
    await usage.add(store, [UsageDelta(minute, 1, 1, started=20_000, occurrences=9_999)])
    await store.pool.execute("update usage set missed = 1")
    found = (await _get(api, window="1h"))["occurrences"]
    assert (found["expected"], found["missed"], found["rate"], found["max_rate"]) == (10_000, 1, 0.0001, 0.0001)
    assert found["budget_left"] == 0
    assert [(burn["over"], burn["burn"]) for burn in found["burns"]] == [("1h", 1), ("6h", 1), ("24h", 1)]
    everyone = await _get(api, scope="installation")
    assert (everyone["tenant"], everyone["occurrences"]["missed"]) == ("all tenants", 1)
    refused = await api.get(PATH, params={"scope": "installation", "window": "30d"})
    assert refused.status_code == 422
    timing = (await api.get("/api/v1/overview")).json()["timing"]
    assert (timing["expected"], timing["missed_rate"], timing["missed_burn"]) == (10_000, 0.0001, 1)
    changed = await api.patch("/api/v1/tenants/default", json={"objective": {"max_missed": 0.001}})
    assert changed.status_code == 200, changed.text
    assert (await _get(api))["occurrences"]["budget_left"] == 0.9


async def test_a_jobs_missed_occurrences_are_counted(api: httpx2.AsyncClient, store: Store) -> None:
    made = (await api.post("/api/v1/jobs", json={"name": "j", "task": "demo", "schedule": {"every": "1h"}})).json()
    await store.pool.execute(
        "insert into gaps (job_id, from_at, to_at, count, reason, recorded_at) "
        "select $1, now() - interval '2 h' * n, now() - interval '1 h' * n, 3, reason, now() "
        "from unnest(array['misfire', 'paused']) with ordinality given (reason, n)",
        made["job_id"],
    )
    missed = (await api.get("/api/v1/jobs/j/stats")).json()["missed"]
    assert (missed["missed"], missed["expected"], missed["rate"], missed["uncounted"]) == (3, 3, 1, 0)
