"""Dead letters over HTTP: filters, groups by error, and what becomes an operation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest

from bellringer.api.endpoints import dead_letters as endpoint
from bellringer.core.runs import Ending, Outcome
from bellringer.engine.operations import OperationCursor, run_operations
from bellringer.store import dead_letters
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog

Work = Callable[[Ending | None], Awaitable[int]]


def failed(kind: str) -> Ending:
    return Ending(outcome=Outcome.FAILED, error={"type": kind, "message": "no 5"})


async def die(api: httpx2.AsyncClient, work: Work, kind: str, count: int = 1, job: str | None = None) -> list[str]:
    """So many runs, of a job where one is named, that died of this."""
    made = []
    for _ in range(count):
        path = f"/api/v1/jobs/{job}/run" if job else "/api/v1/jobs/execute"
        body = {} if job else {"task": "demo", "retry": 1}
        response = await api.post(path, json=body)
        assert response.status_code == 202, response.text
        made.append(response.json()["run_id"])
    assert await work(failed(kind)) == count
    return made


async def listed(api: httpx2.AsyncClient, **query: Any) -> list[Any]:
    response = await api.get("/api/v1/dead-letters", params=query)
    assert response.status_code == 200, response.text
    items: list[Any] = response.json()["items"]
    return items


async def test_dead_letters_are_filtered_by_job_and_task(api: httpx2.AsyncClient, work: Work) -> None:
    await api.post("/api/v1/jobs", json={"name": "a", "task": "demo", "retry": 1})
    [mine] = await die(api, work, "KeyError", job="a")
    others = await die(api, work, "KeyError", 2)
    assert [letter["run_id"] for letter in await listed(api, job="a")] == [mine]
    assert {letter["run_id"] for letter in await listed(api, task="demo")} == {mine, *others}
    assert await listed(api, task="other") == []
    assert (await api.get("/api/v1/dead-letters", params={"job": "b"})).status_code == 404


async def test_a_scan_for_dead_letters_is_bounded(
    api: httpx2.AsyncClient, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.post("/api/v1/jobs", json={"name": "a", "task": "demo", "retry": 1})
    [mine] = await die(api, work, "KeyError", job="a")
    await die(api, work, "KeyError", 5)
    monkeypatch.setattr(dead_letters, "MAX_LETTERS_SCANNED", 3)
    first = (await api.get("/api/v1/dead-letters", params={"job": "a"})).json()
    assert (first["items"], bool(first["next_cursor"])) == ([], True)
    second = (await api.get("/api/v1/dead-letters", params={"job": "a", "cursor": first["next_cursor"]})).json()
    assert [letter["run_id"] for letter in second["items"]] == [mine]


async def test_dead_letters_are_grouped_by_what_they_died_of(api: httpx2.AsyncClient, work: Work) -> None:
    await api.post("/api/v1/jobs", json={"name": "a", "task": "demo", "retry": 1})
    keys = await die(api, work, "KeyError", 3)
    values = await die(api, work, "ValueError", 2) + await die(api, work, "ValueError", job="a")
    newest, oldest = await listed(api, group_by="fingerprint")
    assert (newest["type"], newest["message"], newest["jobs"]) == ("ValueError", "no 5", ["a"])
    assert newest["count"] == {"value": 3, "relation": "eq"}
    assert newest["runs"][0] == values[-1]
    assert newest["first_died_at"] < newest["last_died_at"]
    assert (oldest["type"], set(oldest["runs"]), oldest["jobs"]) == ("KeyError", set(keys), [])
    found = await listed(api, fingerprint=newest["fingerprint"])
    assert {letter["run_id"] for letter in found} == set(values)


async def test_groups_come_in_pages_and_are_counted_so_far(
    api: httpx2.AsyncClient, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("A", "B", "C"):
        await die(api, work, kind, 4)
    monkeypatch.setattr(dead_letters, "MAX_LETTERS_COUNTED", 6)
    seen: list[Any] = []
    page: dict[str, Any] = {"next_cursor": None}
    for expected in (2, 1):
        cursor = {"cursor": page["next_cursor"]} if page["next_cursor"] else {}
        page = (await api.get("/api/v1/dead-letters", params={"group_by": "fingerprint", "limit": 2, **cursor})).json()
        assert len(page["items"]) == expected
        seen += page["items"]
    assert page["next_cursor"] is None
    assert {group["type"] for group in seen} == {"A", "B", "C"}
    assert all(group["count"] == {"value": 2, "relation": "gte"} for group in seen)


@pytest.mark.parametrize("query", [{"group_by": "task"}, {"group_by": "fingerprint", "task": "demo"}])
async def test_other_groups_are_refused(api: httpx2.AsyncClient, query: dict[str, str]) -> None:
    assert (await api.get("/api/v1/dead-letters", params=query)).status_code == 422


async def test_many_dead_letters_become_an_operation(
    api: httpx2.AsyncClient, work: Work, store: Store, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    await die(api, work, "KeyError", 5)
    monkeypatch.setattr(endpoint, "MAX_APPLIED_AT_ONCE", 3)
    asked = await api.post("/api/v1/dead-letters/redrive", json={"all": True})
    assert asked.status_code == 202
    operation = asked.json()
    assert asked.headers["location"] == f"/api/v1/operations/{operation['operation_id']}"
    assert (operation["action"], operation["total"]["value"], operation["state"]) == (
        "dead_letters.redrive",
        5,
        "running",
    )
    assert await run_operations(store, catalog, OperationCursor()) == 5
    after = (await api.get(asked.headers["location"])).json()
    assert (after["state"], after["done"], after["skipped"]) == ("done", 5, 0)
    assert await listed(api) == []
    assert await work(failed("KeyError")) == 5


async def test_a_rate_makes_an_operation_of_a_few(
    api: httpx2.AsyncClient, work: Work, store: Store, catalog: Catalog
) -> None:
    runs = await die(api, work, "KeyError", 3)
    asked = await api.post("/api/v1/dead-letters/redrive", json={"runs": runs, "rate": 1})
    assert (asked.status_code, asked.json()["named"], asked.json()["rate"]) == (202, 3, 1.0)
    assert await run_operations(store, catalog, OperationCursor()) == 1
    assert await run_operations(store, catalog, OperationCursor()) == 0
    assert len(await listed(api)) == 2
    for rate in (0, -1, 1e9):
        refused = await api.post("/api/v1/dead-letters/redrive", json={"all": True, "rate": rate})
        assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/rate")


async def test_a_discard_is_undone_by_run_fingerprint_and_all(api: httpx2.AsyncClient, work: Work) -> None:
    keys, values = await die(api, work, "KeyError", 2), await die(api, work, "ValueError", 2)
    before = await listed(api)
    discarded = await api.post("/api/v1/dead-letters/discard", json={"all": True})
    assert discarded.json()["count"] == 4
    items = (await api.get("/api/v1/dead-letters/discarded")).json()["items"]
    assert {item["run_id"] for item in items} == {*keys, *values}
    assert {item["operation_id"] for item in items} == {None}
    assert all(item["discarded_at"] < item["restorable_until"] for item in items)
    fingerprint = next(item["fingerprint"] for item in items if item["run_id"] == values[0])
    of_values = (await api.get("/api/v1/dead-letters/discarded", params={"fingerprint": fingerprint})).json()["items"]
    assert {item["run_id"] for item in of_values} == set(values)
    for selection, count in (({"runs": keys[:1]}, 1), ({"fingerprint": fingerprint}, 2), ({"all": True}, 1)):
        for expected in (count, 0):  # repeated, it restores nothing twice
            restored = await api.post("/api/v1/dead-letters/restore", json=selection)
            assert (restored.status_code, restored.json()) == (200, {"count": expected, "more": False})
    assert await listed(api) == before
    assert (await api.get("/api/v1/dead-letters/discarded")).json()["items"] == []


async def test_discarded_dead_letters_come_in_pages(api: httpx2.AsyncClient, work: Work) -> None:
    runs = await die(api, work, "KeyError", 5)
    await api.post("/api/v1/dead-letters/discard", json={"runs": runs[:3]})
    await api.post("/api/v1/dead-letters/discard", json={"runs": runs[3:]})
    seen: list[str] = []
    cursor: dict[str, str] = {}
    for expected in (2, 2, 1):
        page = (await api.get("/api/v1/dead-letters/discarded", params={"limit": 2, **cursor})).json()
        assert len(page["items"]) == expected
        seen += [item["run_id"] for item in page["items"]]
        cursor = {"cursor": page["next_cursor"] or ""}
    assert cursor == {"cursor": ""}
    assert set(seen[:2]) == set(runs[3:])
    assert sorted(seen) == sorted(runs)


async def test_what_an_operation_discarded_is_restored_in_parts(
    api: httpx2.AsyncClient, work: Work, store: Store, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    await die(api, work, "KeyError", 5)
    monkeypatch.setattr(endpoint, "MAX_APPLIED_AT_ONCE", 3)
    operation_id = (await api.post("/api/v1/dead-letters/discard", json={"all": True})).json()["operation_id"]
    assert await run_operations(store, catalog, OperationCursor()) == 5
    [other] = await die(api, work, "KeyError")
    await api.post("/api/v1/dead-letters/discard", json={"runs": [other]})
    of_operation = await api.get("/api/v1/dead-letters/discarded", params={"operation": operation_id})
    assert [item["operation_id"] for item in of_operation.json()["items"]] == [operation_id] * 5
    for expected in ({"count": 3, "more": True}, {"count": 2, "more": False}):
        restored = await api.post("/api/v1/dead-letters/restore", json={"operation_id": operation_id})
        assert restored.json() == expected
    assert len(await listed(api)) == 5
    [left] = (await api.get("/api/v1/dead-letters/discarded")).json()["items"]
    assert left["run_id"] == other
