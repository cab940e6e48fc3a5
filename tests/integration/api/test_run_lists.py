"""Lists of runs: every filter, alone and with others; pages; and what a list never shows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import httpx2
import pytest

from bellringer.core.runs import Ending, Outcome
from bellringer.store import run_lists
from bellringer.store.connection_pool import Store

Work = Callable[[Ending | None], Awaitable[int]]
FAILED = Ending(outcome=Outcome.FAILED, error={"type": "ValueError", "message": "no 5"})
DONE = Ending(outcome=Outcome.OK, result={"large": "x" * 9000})


async def _execute(api: httpx2.AsyncClient, **fields: Any) -> str:
    response = await api.post("/api/v1/jobs/execute", json={"task": "demo", **fields})
    assert response.status_code == 202, response.text
    run_id: str = response.json()["run_id"]
    return run_id


async def _page(api: httpx2.AsyncClient, **query: Any) -> dict[str, Any]:
    response = await api.get("/api/v1/runs", params=query)
    assert response.status_code == 200, response.text
    page: dict[str, Any] = response.json()
    return page


async def _ids(api: httpx2.AsyncClient, **query: Any) -> list[str]:
    """All that fit, page by page."""
    found: list[str] = []
    cursor: dict[str, Any] = {}
    while True:
        page = await _page(api, **query, **cursor)
        found += [run["run_id"] for run in page["items"]]
        if page["next_cursor"] is None:
            return found
        cursor = {"cursor": page["next_cursor"]}


@pytest.fixture
async def some(api: httpx2.AsyncClient, work: Work) -> dict[str, str]:
    """One run in each state."""
    made = {"succeeded": await _execute(api)}
    await work(DONE)
    made["dead"] = await _execute(api, retry=1)
    await work(FAILED)
    made["retrying"] = await _execute(api, retry={"attempts": 2, "delays": ["30s"]})
    far = await _execute(api, retry={"attempts": 2, "delays": ["1h"]})
    await work(FAILED)
    made["running"] = await _execute(api)
    await work(None)
    made["cancelled"] = await _execute(api)
    assert (await api.post(f"/api/v1/runs/{made['cancelled']}/cancel")).status_code == 200
    made["waiting"] = await _execute(api, delay="1h")
    await api.post("/api/v1/jobs", json={"name": "nightly", "task": "unknown.to.all", "tags": ["books"]})
    made["blocked"] = (await api.post("/api/v1/jobs/nightly/run")).json()["run_id"]
    await api.post("/api/v1/jobs/nightly/pause")
    made["queued"] = await _execute(api, pool="long")
    return {**made, "far": far}


@pytest.mark.parametrize("state", ["succeeded", "dead", "running", "cancelled", "waiting", "blocked", "queued"])
async def test_each_state_can_be_asked_for(api: httpx2.AsyncClient, some: dict[str, str], state: str) -> None:
    assert await _ids(api, state=state) == [some[state]]


async def test_what_waits_for_its_next_try_is_found_in_the_queue_and_in_timers(
    api: httpx2.AsyncClient, some: dict[str, str]
) -> None:
    assert await _ids(api, state="retrying") == [some["far"], some["retrying"]]
    assert await _ids(api, state="retrying", limit=1) == [some["far"], some["retrying"]]


async def test_states_can_be_joined_by_commas_or_repeated(api: httpx2.AsyncClient, some: dict[str, str]) -> None:
    everything = await _ids(api)
    assert set(everything) == set(some.values()) - {some["waiting"]}
    mixed = await _ids(api, state="dead,running", limit=1)
    assert mixed == [some["running"], some["dead"]]
    assert await _ids(api, state=["dead", "running"]) == mixed
    assert await _ids(api, state="waiting,queued,succeeded") == [some["waiting"], some["queued"], some["succeeded"]]
    assert await _ids(api, state="dead,cancelled", limit=1) == [some["cancelled"], some["dead"]]
    assert await _ids(api, state="blocked,queued,running") == [some["queued"], some["blocked"], some["running"]]
    every_state = await _ids(api, state=",".join(run_lists.STATES), limit=2)
    assert every_state == [some["waiting"], *everything]


async def test_a_large_queue_is_walked_by_time_and_answers_the_same(
    api: httpx2.AsyncClient, some: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {state: await _ids(api, state=state) for state in sorted(run_lists.UNFINISHED)}
    monkeypatch.setattr(run_lists, "SMALL_QUEUE_ROWS", 0)
    assert {state: await _ids(api, state=state) for state in small} == small


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"pool": "long"}, ["queued"]),
        ({"pool": "none"}, []),
        ({"task": "unknown.to.all"}, ["blocked"]),
        ({"task": "nobody"}, []),
        ({"cause": "manual"}, ["blocked"]),
        ({"tag": "books"}, ["blocked"]),
        ({"tag": "cooks"}, []),
        ({"q": "NIGHT"}, ["blocked"]),
        ({"q": "to.all"}, ["blocked"]),
        ({"job": "nightly"}, ["blocked"]),
        ({"job": "nightly", "state": "blocked"}, ["blocked"]),
        ({"job": "nightly", "state": "dead,waiting"}, []),
        ({"task": "demo", "state": "dead,cancelled"}, ["cancelled", "dead"]),
        ({"pool": "long", "state": "cancelled"}, []),
        ({"tag": "books", "state": "blocked,queued"}, ["blocked"]),
    ],
)
async def test_filters_narrow_the_list(
    api: httpx2.AsyncClient, some: dict[str, str], query: dict[str, str], expected: list[str]
) -> None:
    assert await _ids(api, **query) == [some[name] for name in expected]


async def test_a_worker_is_found_by_what_it_runs_and_has_run(api: httpx2.AsyncClient, some: dict[str, str]) -> None:
    [running] = (await _page(api, state="running"))["items"]
    worker = running["worker_id"]
    touched = {"succeeded", "dead", "retrying", "far", "running"}
    assert set(await _ids(api, worker=worker)) == {some[name] for name in touched}
    assert await _ids(api, worker=worker, state="running") == [some["running"]]
    assert await _ids(api, worker=worker, state="dead") == [some["dead"]]
    assert await _ids(api, worker=worker + 1) == []


async def test_lists_name_the_worker_of_the_last_attempt(
    api: httpx2.AsyncClient, some: dict[str, str], store: Store
) -> None:
    [running] = (await _page(api, state="running"))["items"]
    number = running["worker_id"]
    name = await store.pool.fetchval("select name from workers where worker_id = $1", number)
    listed = {run["run_id"]: run for run in (await _page(api))["items"]}
    for state in ("running", "succeeded", "dead", "retrying", "far"):
        run = listed[some[state]]
        assert (run["worker_id"], run["worker"]) == (number, name), state
        assert (await api.get(f"/api/v1/runs/{some[state]}")).json()["worker_id"] == number
    for state in ("cancelled", "blocked", "queued"):  # no worker has attempted them
        assert listed[some[state]]["worker_id"] is None, state
        assert "worker" not in listed[some[state]], state
    await store.pool.execute("delete from workers where worker_id = $1", number)  # workers are forgotten after a week
    [dead] = (await _page(api, state="dead"))["items"]
    assert (dead["worker_id"], dead["worker"]) == (number, f"worker-{number}")


async def test_a_range_of_time_takes_its_start_and_not_its_end(api: httpx2.AsyncClient, some: dict[str, str]) -> None:
    [dead] = (await _page(api, state="dead"))["items"]
    moment = datetime.fromisoformat(dead["scheduled_for"])
    later = (moment + timedelta(microseconds=1)).isoformat()
    for state in ({}, {"state": "dead"}):
        assert some["dead"] in await _ids(api, **state, **{"from": moment.isoformat(), "to": later})
        assert await _ids(api, **state, to=moment.isoformat()) == ([] if state else [some["succeeded"]])
        assert some["dead"] not in await _ids(api, **state, **{"from": later})


async def test_a_redriven_run_is_no_longer_dead_and_one_that_died_twice_is_listed_once(
    api: httpx2.AsyncClient, some: dict[str, str], work: Work
) -> None:
    await api.post(f"/api/v1/runs/{some['dead']}/retry")
    assert await _ids(api, state="dead") == []
    assert await work(FAILED) >= 1
    assert (await _ids(api, state="dead")).count(some["dead"]) == 1


async def test_a_list_holds_nothing_large(
    api: httpx2.AsyncClient, some: dict[str, str], work: Work, store: Store
) -> None:
    await _execute(api, retry=1, args=["x" * 5000])
    await work(Ending(outcome=Outcome.FAILED, error={"type": "Huge", "message": "m" * 5000, "traceback": "t" * 9000}))
    response = await api.get("/api/v1/runs")
    assert len(response.content) < 20_000
    [huge] = [run for run in response.json()["items"] if run["error"] and run["error"].get("type") == "Huge"]
    assert huge["error"]["cut"] is True
    assert len(huge["error"]["message"]) == 300
    whole = (await api.get(f"/api/v1/runs/{huge['run_id']}")).json()
    assert len(whole["error"]["message"]) == 5000


async def test_a_look_is_bounded_and_says_how_far_it_came(
    api: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.post("/api/v1/jobs", json={"name": "rare", "task": "demo"})
    rare = (await api.post("/api/v1/jobs/rare/run")).json()["run_id"]
    for _ in range(12):
        await _execute(api)
    monkeypatch.setattr(run_lists, "SCANS", ((5, 3),))
    page = await _page(api, cause="manual", limit=2)
    assert (page["items"], page["scanned"], bool(page["next_cursor"])) == ([], 5, True)
    assert await _ids(api, cause="manual", limit=2) == [rare]
    assert (await _page(api, q="rare"))["scanned"] == 3
    assert await _ids(api, q="rare") == [rare]
    assert (await _page(api, q="rare", count="bounded"))["count"] == {"value": 0, "relation": "gte"}
    monkeypatch.setattr(run_lists, "SCANS", ((3, 3), (8, 8), (8, 8)))
    assert [run["run_id"] for run in (await _page(api, cause="manual", limit=1))["items"]] == [rare]


async def test_runs_are_counted_as_far_as_that_is_quick(api: httpx2.AsyncClient, some: dict[str, str]) -> None:
    assert "count" not in await _page(api)
    assert (await _page(api, state="dead", count="bounded", limit=1))["count"] == {"value": 1, "relation": "eq"}
    assert (await _page(api, count="bounded"))["count"] == {"value": len(some) - 1, "relation": "eq"}


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"state": "ded"}, "state_unknown"),
        ({"state": ""}, "state_unknown"),
        ({"cause": "luck"}, "cause_unknown"),
        ({"worker": "x"}, "limit_range"),
        ({"worker": "0"}, "limit_range"),
        ({"worker": "99999999999999999999"}, "limit_range"),
        ({"from": "yesterday"}, "datetime_invalid"),
        ({"q": "x" * 300}, "limit"),
        ({"count": "all"}, "choice"),
        ({"states": "dead"}, "unknown_parameter"),
    ],
)
async def test_what_cannot_be_asked_is_refused(api: httpx2.AsyncClient, query: dict[str, str], code: str) -> None:
    refused = await api.get("/api/v1/runs", params=query)
    assert (refused.status_code, refused.json()["code"]) == (422, code)


async def test_a_cursor_belongs_to_its_filter(api: httpx2.AsyncClient) -> None:
    for _ in range(2):
        await _execute(api)
    cursor = (await _page(api, limit=1))["next_cursor"]
    refused = await api.get("/api/v1/runs", params={"cursor": cursor, "state": "dead"})
    assert (refused.status_code, refused.json()["code"]) == (400, "cursor_invalid")


async def test_another_tenants_runs_are_not_listed(api: httpx2.AsyncClient, some: dict[str, str], store: Store) -> None:
    for table in ("runs", "queue", "timers", "attempts"):
        await store.pool.execute(f"update {table} set tenant_id = 99")
    for state in run_lists.STATES:
        assert await _ids(api, state=state) == [], state
    assert await _ids(api) == []
