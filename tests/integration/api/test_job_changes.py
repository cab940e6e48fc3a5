"""Jobs beside create and patch: put by name, skip, revisions, rollback, delete with its runs, and lists."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from tests.integration.api.conftest import Work

from bellringer.store.connection_pool import Store

JOBS = "/api/v1/jobs"
DAILY = {"task": "demo", "schedule": {"cron": "0 3 * * *"}, "kwargs": {"n": 1}}


async def put(api: httpx2.AsyncClient, name: str, body: dict[str, Any], **headers: str) -> httpx2.Response:
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return await api.put(f"{JOBS}/{name}", json=body, headers=named)


async def test_put_creates_changes_or_leaves_alone(api: httpx2.AsyncClient) -> None:
    made = await put(api, "nightly", DAILY)
    assert (made.status_code, made.headers["etag"]) == (201, '"1"')
    assert made.headers["location"] == f"{JOBS}/{made.json()['job_id']}"
    assert made.json() == (await api.get(f"{JOBS}/nightly")).json(), "the answer is what a read gives"
    same = await put(api, "nightly", DAILY)
    assert (same.status_code, same.headers["etag"]) == (200, '"1"')
    changed = await put(api, "nightly", {**DAILY, "priority": 9})
    assert (changed.status_code, changed.headers["etag"], changed.json()["priority"]) == (200, '"2"', 9)
    back = await put(api, "nightly", DAILY)
    assert back.json()["priority"] == 5, "what is left out has its default again"


async def test_put_heeds_its_conditions(api: httpx2.AsyncClient) -> None:
    missing = await put(api, "nightly", DAILY, If_Match='"1"')
    assert (missing.status_code, missing.json()["code"]) == (412, "job_missing")
    assert (await put(api, "nightly", DAILY, If_None_Match="*")).status_code == 201
    twice = await put(api, "nightly", {**DAILY, "priority": 1}, If_None_Match="*")
    assert (twice.status_code, twice.json()["code"]) == (412, "job_exists")
    stale = await put(api, "nightly", {**DAILY, "priority": 1}, If_Match='"7"')
    assert (stale.status_code, stale.json()["code"]) == (412, "revision_mismatch")
    assert (await put(api, "nightly", {**DAILY, "priority": 1}, If_Match='"1"')).json()["revision"] == 2
    other = await put(api, "nightly", {**DAILY, "name": "weekly"})
    assert (other.status_code, other.json()["errors"][0]["pointer"]) == (422, "/name")


async def test_an_occurrence_is_skipped_and_wanted_again(api: httpx2.AsyncClient) -> None:
    job = (await put(api, "nightly", DAILY)).json()
    at = job["next_at"]
    done = await api.post(f"{JOBS}/nightly/skip", json={"at": at, "reason": "a release"})
    assert done.status_code == 200, done.text
    assert {k: done.json()[k] for k in ("job_id", "at", "by", "reason")} == {
        "job_id": job["job_id"],
        "at": at,
        "by": "local",
        "reason": "a release",
    }
    assert [s["at"] for s in (await api.get(f"{JOBS}/nightly/skip")).json()["items"]] == [at]
    wrong = await api.post(f"{JOBS}/nightly/skip", json={"at": at.replace("03:00", "03:01")})
    assert (wrong.status_code, wrong.json()["code"]) == (422, "not_an_occurrence")
    assert wrong.json()["errors"][0]["pointer"] == "/at"
    past = await api.post(f"{JOBS}/nightly/skip", json={"at": "2026-01-01T03:00:00Z"})
    assert (past.status_code, past.json()["code"]) == (409, "already_fired")
    assert (await api.delete(f"{JOBS}/nightly/skip", params={"at": at})).status_code == 204
    again = await api.delete(f"{JOBS}/nightly/skip", params={"at": at})
    assert again.status_code == 404
    assert (await api.get(f"{JOBS}/nightly/skip")).json()["items"] == []
    assert (await api.delete(f"{JOBS}/nightly/skip")).status_code == 422
    assert (await api.post(f"{JOBS}/nobody/skip", json={"at": at})).status_code == 404


async def test_revisions_show_what_each_change_changed(api: httpx2.AsyncClient) -> None:
    await put(api, "nightly", {**DAILY, "jitter": "10m", "tags": ["a"]})
    await api.patch(f"{JOBS}/nightly", json={"priority": 8, "tags": ["a", "b"]})
    await api.post(f"{JOBS}/nightly/pause", json={"reason": "INC-1"})
    page = (await api.get(f"{JOBS}/nightly/revisions", params={"limit": 2})).json()
    assert [(r["revision"], r["what"], r["why"]) for r in page["items"]] == [
        (3, "paused", "INC-1"),
        (2, "changed", None),
    ]
    rest = await api.get(f"{JOBS}/nightly/revisions", params={"limit": 2, "cursor": page["next_cursor"]})
    assert [r["what"] for r in rest.json()["items"]] == ["created"]
    second = (await api.get(f"{JOBS}/nightly/revisions/2")).json()
    assert second["against"] == 1
    assert {c["field"]: (c["before"], c["after"]) for c in second["changes"]} == {
        "priority": (5, 8),
        "tags": (["a"], ["a", "b"]),
    }
    assert second["job"]["jitter"] == "10m"
    third = (await api.get(f"{JOBS}/nightly/revisions/3", params={"against": 1})).json()
    assert {c["field"] for c in third["changes"]} == {"priority", "tags", "paused"}
    assert (await api.get(f"{JOBS}/nightly/revisions/1")).json()["changes"] == []
    for path in ("9", "x", "0", "99999999999"):
        assert (await api.get(f"{JOBS}/nightly/revisions/{path}")).status_code == 404
    assert (await api.get(f"{JOBS}/nightly/revisions/1", params={"against": "x"})).status_code == 422


async def test_an_old_definition_holds_again(api: httpx2.AsyncClient, store: Store) -> None:
    await put(api, "nightly", {**DAILY, "max_concurrency": 2, "late_after": "1h"})
    await put(api, "nightly", {"task": "other", "schedule": {"every": "5m"}})
    stale = await api.post(f"{JOBS}/nightly/rollback", json={"revision": 1}, headers={"If-Match": '"1"'})
    assert stale.status_code == 412
    back = await api.post(f"{JOBS}/nightly/rollback", json={"revision": 1}, headers={"If-Match": '"2"'})
    assert back.status_code == 200, back.text
    job = back.json()
    told = (job["revision"], job["task"], job["kwargs"], job["max_concurrency"], job["late_after"])
    assert told == (3, "demo", {"n": 1}, 2, "1h")
    assert job["schedules"] == [{"cron": "0 3 * * *"}]
    newest = (await api.get(f"{JOBS}/nightly/revisions")).json()["items"][0]
    assert (newest["what"], newest["why"]) == ("changed", "rolled back to revision 1")
    assert (await api.post(f"{JOBS}/nightly/rollback", json={"revision": 9})).status_code == 404
    await store.pool.execute(
        "update job_revisions set definition = jsonb_set(definition, '{schedules}', $1) where revision = 1",
        '[{"moon": "full"}]',
    )
    broken = await api.post(f"{JOBS}/nightly/rollback", json={"revision": 1})
    assert (broken.status_code, broken.json()["code"]) == (422, "revision_unreadable")


@pytest.mark.parametrize(("wish", "asked"), [("keep", False), ("cancel", True), (None, False)])
async def test_delete_may_ask_what_runs_to_stop(
    api: httpx2.AsyncClient, store: Store, work: Work, wish: str | None, asked: bool
) -> None:
    await put(api, "nightly", DAILY)
    await api.post(f"{JOBS}/nightly/run")
    assert await work(None) == 1
    gone = await api.delete(f"{JOBS}/nightly", params={"runs": wish} if wish else {})
    assert gone.status_code == 204
    assert await store.pool.fetchval("select cancel_requested from queue") is asked
    assert (await api.delete(f"{JOBS}/nightly", params={"runs": "kill"})).status_code == 422


async def test_lists_are_filtered_and_counted(api: httpx2.AsyncClient) -> None:
    wanted: dict[str, dict[str, Any]] = {
        "Alpha one": {"tags": ["x"]},
        "alpha_two": {"tags": ["x", "y"], "pool": "long"},
        "beta": {"enabled": False},
        "gamma": {"task": "other"},
    }
    for name, more in wanted.items():
        assert (await put(api, name, {**DAILY, **more})).status_code == 201
    await api.post(f"{JOBS}/gamma/pause")

    async def names(**query: str) -> list[str]:
        answer = await api.get(JOBS, params=query)
        assert answer.status_code == 200, answer.text
        return [item["name"] for item in answer.json()["items"]]

    assert await names(q="ALPHA") == ["Alpha one", "alpha_two"]
    assert await names(prefix="alpha_") == ["alpha_two"]
    assert await names(tag="y") == ["alpha_two"]
    assert await names(state="disabled") == ["beta"]
    assert await names(state="paused") == ["gamma"]
    assert await names(state="enabled", pool="short") == ["Alpha one"]
    assert await names(task="other") == ["gamma"]
    assert await names(owner="nobody") == []
    pages, cursor = [], None
    for _ in range(4):
        query = {"sort": "name", "limit": "1", **({"cursor": cursor} if cursor else {})}
        page = (await api.get(JOBS, params=query)).json()
        pages += [item["name"] for item in page["items"]]
        cursor = page["next_cursor"]
    assert (pages, cursor) == (["Alpha one", "alpha_two", "beta", "gamma"], None)
    counted = (await api.get(JOBS, params={"tag": "x", "count": "bounded", "limit": "1"})).json()
    assert (counted["count"], len(counted["items"])) == ({"value": 2, "relation": "eq"}, 1)
    for query in ({"state": "odd"}, {"sort": "age"}, {"count": "all"}):
        assert (await api.get(JOBS, params=query)).status_code == 422
    foreign = (await api.get(JOBS, params={"limit": "1"})).json()["next_cursor"]
    mixed = await api.get(JOBS, params={"limit": "1", "tag": "x", "cursor": foreign})
    assert mixed.status_code == 400, "a cursor belongs to its filter"


async def test_a_page_that_looked_far_enough_says_where_it_came_to(
    api: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bellringer.store.jobs.MAX_JOBS_SCANNED", 2)
    for n in range(5):
        await put(api, f"job {n}", {**DAILY, "tags": ["last"] if n == 4 else []})
    found, cursor, pages = [], None, 0
    while pages == 0 or cursor:
        query = {"tag": "last", **({"cursor": cursor} if cursor else {})}
        page = (await api.get(JOBS, params=query)).json()
        found += [item["name"] for item in page["items"]]
        cursor, pages = page["next_cursor"], pages + 1
    assert (found, pages) == (["job 4"], 3)
    count = (await api.get(JOBS, params={"count": "bounded"})).json()["count"]
    assert count == {"value": 2, "relation": "gte"}


async def test_large_arguments_are_left_out_of_a_list(api: httpx2.AsyncClient) -> None:
    await put(api, "large", {**DAILY, "kwargs": {"text": "x" * 3000}})
    await put(api, "small", DAILY)
    large, small = (await api.get(JOBS)).json()["items"]
    assert (large["kwargs"], large["arguments_left_out"]) == ({}, True)
    assert small["kwargs"] == {"n": 1}
    assert "arguments_left_out" not in small
    assert len((await api.get(f"{JOBS}/large")).json()["kwargs"]["text"]) == 3000
