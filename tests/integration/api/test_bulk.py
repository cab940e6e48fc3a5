"""Many jobs in one request: all or none, or each for itself; by the same rules as one."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from bellringer.store.connection_pool import Store

BULK = "/api/v1/jobs/bulk"
BRIEF = {"Prefer": "return=minimal"}


def job(n: int, **more: Any) -> dict[str, Any]:
    return {"name": f"job {n}", "task": "demo", "schedule": {"cron": f"{n % 60} 3 * * *"}, "kwargs": {"n": n}, **more}


async def count(store: Store) -> int:
    found: int = await store.pool.fetchval("select count(*) from jobs")
    return found


async def test_all_of_them_are_jobs_as_if_made_one_by_one(api: httpx2.AsyncClient, store: Store) -> None:
    items = [job(n) for n in range(300)]
    items += [job(300, jitter="10m", max_concurrency=2), job(301, schedule={"cron": "H 3 * * *"}), job(302, tags=["x"])]
    items += [{"name": "by hand", "task": "demo"}, job(304, schedule={"at": "2026-12-24T18:00:00Z"})]
    made = await api.post(BULK, json={"items": items})
    assert made.status_code == 201, made.text
    answer = made.json()
    assert (answer["created"], answer["failed"]) == (305, 0)
    for place in (0, 7, 299, 300, 301, 302, 303, 304):
        told = answer["items"][place]
        read = (await api.get(f"/api/v1/jobs/{told['job_id']}")).json()
        assert (told["index"], told["status"]) == (place, 201)
        assert told["job"] == read
        assert read["name"] == items[place]["name"]
    assert await store.pool.fetchval("select count(*) from members") == 303
    assert await store.pool.fetchval("select count(*) from audit where action = 'job.created'") == 305
    assert await store.pool.fetchval("select count(distinct shard) from jobs") > 30
    twin = await api.post("/api/v1/jobs", json={**items[301], "name": "twin"})
    assert twin.status_code == 202


async def test_lines_are_read_as_items(api: httpx2.AsyncClient, store: Store) -> None:
    body = "\n".join(json.dumps(job(n)) for n in range(20)) + "\n\n"
    headers = {"Content-Type": "application/x-ndjson", **BRIEF}
    made = await api.post(BULK, content=body, headers=headers)
    assert made.status_code == 201, made.text
    assert len(set(made.json()["job_ids"])) == 20
    assert "items" not in made.json()
    broken = await api.post(BULK, content='{"name": "a", "task": "b"}\n{"name": }', headers=headers)
    assert (broken.status_code, broken.json()["code"]) == (400, "json_invalid")
    assert broken.json()["errors"][0]["pointer"] == "/items/1"
    assert await count(store) == 20


async def test_one_that_is_wrong_refuses_all_and_is_pointed_at(api: httpx2.AsyncClient, store: Store) -> None:
    await api.post("/api/v1/jobs", json=job(3))
    wrong = [job(n) for n in range(10)]
    wrong[4]["priority"] = 12
    wrong[5] = {"name": "x", "task": "demo", "schedule": {"cron": "60 * * * *"}}
    wrong[6]["tenant_id"] = 7
    refused = await api.post(BULK, json={"items": wrong})
    assert refused.status_code == 422
    told = {(e["pointer"], e["code"]) for e in refused.json()["errors"]}
    assert {("/items/6/tenant_id", "unknown_field")} <= told
    assert any(pointer.startswith("/items/5/schedule") for pointer, _ in told)
    for place in (5, 6):
        wrong[place] = job(place)
    late = await api.post(BULK, json={"items": wrong})
    assert [(e["pointer"], e["code"]) for e in late.json()["errors"]] == [("/items/4/priority", "limit")]
    taken = await api.post(BULK, json={"items": [job(n) for n in (1, 2, 3, 2)]})
    assert [(e["pointer"], e["code"]) for e in taken.json()["errors"]] == [("/items/3/name", "name_taken")]
    taken = await api.post(BULK, json={"items": [job(n) for n in (1, 2, 3)]})
    assert taken.status_code == 422
    assert [(e["pointer"], e["code"]) for e in taken.json()["errors"]] == [("/items/2/name", "name_taken")]
    assert await count(store) == 1, "nothing of any of them was stored"


async def test_each_for_itself(api: httpx2.AsyncClient, store: Store) -> None:
    await api.post("/api/v1/jobs", json=job(3))
    items: list[Any] = [job(1), job(2, priority=99), job(3), "what", job(1), {"task": "demo"}, job(4)]
    done = await api.post(BULK, json={"items": items, "atomic": False})
    assert done.status_code == 207
    answer = done.json()
    told = [(item["index"], item["status"], item.get("code")) for item in answer["items"]]
    assert told == [
        (0, 201, None),
        (1, 422, "limit"),
        (2, 409, "name_taken"),
        (3, 422, "type"),
        (4, 409, "name_taken"),
        (5, 422, "missing_field"),
        (6, 201, None),
    ]
    assert answer["items"][5]["errors"][0]["pointer"] == "/name"
    assert (answer["created"], answer["failed"], await count(store)) == (2, 5, 3)
    lines = "\n".join(json.dumps(job(n)) for n in (4, 5))
    headers = {"Content-Type": "application/x-ndjson", **BRIEF}
    done = await api.post(BULK, content=lines, params={"atomic": "false"}, headers=headers)
    assert [item["status"] for item in done.json()["items"]] == [409, 201]
    assert "job" not in done.json()["items"][1]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b'{"items": [{"name": "a\\u0000", "task": "t"}]}', 422, "nul_character"),
        (b'{"items": [{"name": "a", "task": "t", "args": ["\\ud800"]}]}', 400, "encoding"),
        (b'{"items": [{"name": "\xff", "task": "t"}]}', 400, "encoding"),
        (
            b'{"items": [{"name": "a", "task": "t", "kwargs": {"a": ' + b"[" * 40 + b"]" * 40 + b"}}]}",
            400,
            "json_too_deep",
        ),
        (b'{"items": [{"name": "a", "task": "t", "args": [NaN]}]}', 400, "number_invalid"),
        (b'{"items": [{"name": "a", "task": "t", "args": [1e999]}]}', 400, "number_invalid"),
        (b'{"items": [{"name": "a", "name": "b", "task": "t"}]}', 400, "duplicate_key"),
        (b'{"items": [{"name": "a", "task": "t", "state": "x"}]}', 422, "unknown_field"),
        (b'{"items": []}', 422, "limit"),
        (b'{"items": {}}', 422, "type"),
        (b'{"jobs": []}', 422, "unknown_field"),
        (b"[]", 400, "body_not_object"),
    ],
)
async def test_the_rules_of_a_body_hold(
    api: httpx2.AsyncClient, store: Store, body: bytes, status: int, code: str
) -> None:
    refused = await api.post(BULK, content=body, headers={"Content-Type": "application/json"})
    assert (refused.status_code, refused.json()["code"]) == (status, code)
    if not body.startswith(b'{"jobs') and b"\n" not in body and body.startswith(b'{"items": [{'):
        line = body.removeprefix(b'{"items": [').removesuffix(b"]}")
        refused = await api.post(BULK, content=line, headers={"Content-Type": "application/x-ndjson"})
        assert (refused.status_code, refused.json()["code"]) == (status, code)
    assert await count(store) == 0


async def test_the_limits_hold(api: httpx2.AsyncClient, store: Store) -> None:
    many = {"items": [{"name": f"{n}", "task": "t"} for n in range(10_001)]}
    refused = await api.post(BULK, json=many)
    assert (refused.status_code, refused.json()["code"]) == (422, "limit")
    large = json.dumps({"items": [{"name": "a", "task": "t", "kwargs": {"x": "y" * (17 << 20)}}]})
    refused = await api.post(BULK, content=large, headers={"Content-Type": "application/json"})
    assert (refused.status_code, refused.json()["code"]) == (413, "body_too_large")
    item = {"name": "a", "task": "t", "kwargs": {"x": "y" * (300 << 10)}}
    refused = await api.post(BULK, json={"items": [item]})
    assert refused.status_code in (413, 422)
    plain = await api.post(BULK, content=b"{}", headers={"Content-Type": "text/plain"})
    assert plain.status_code == 415
    assert await count(store) == 0


async def test_ten_thousand_in_one_request(api: httpx2.AsyncClient, store: Store) -> None:
    made = await api.post(BULK, json={"items": [job(n) for n in range(10_000)]}, headers=BRIEF)
    assert made.status_code == 201, made.text
    assert len(set(made.json()["job_ids"])) == 10_000
    assert await count(store) == 10_000


async def test_a_fault_in_a_late_item_creates_no_job(api: httpx2.AsyncClient, store: Store) -> None:
    many = 5_010
    assert (await api.post("/api/v1/jobs", json=job(many))).status_code == 202
    late = {
        "priority": ({**job(many), "name": "other", "priority": 12}, "limit"),
        "tenant_id": ({**job(many), "name": "other", "tenant_id": 7}, "unknown_field"),
        "name": ({**job(many), "name": "JOB 5"}, "name_taken"),
    }
    for field, (item, code) in late.items():
        refused = await api.post(BULK, json={"items": [*(job(n) for n in range(many)), item]})
        assert [(e["pointer"], e["code"]) for e in refused.json()["errors"]] == [(f"/items/{many}/{field}", code)]
    taken = await api.post(BULK, json={"items": [job(n) for n in range(many + 1)]})
    assert [(e["pointer"], e["code"]) for e in taken.json()["errors"]] == [(f"/items/{many}/name", "name_taken")]
    for table in ("jobs", "members", "audit"):
        assert await store.pool.fetchval(f"select count(*) from {table}") == 1, table
    assert await store.pool.fetchval("select sum(jobs) from job_counts") == 1


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        (b'"n": 2999', b'"n": 2999, "n": 1', "duplicate_key"),
        (b'"n": 2999', b'"n": 1e999', "number_invalid"),
        (b'"n": 2999', b'"n": 29x', "json_invalid"),
        (b'"n": 2999', b'"n": "\xff"', "encoding"),
        (b'"n": 2999', b'"n": ' + b"[" * 29 + b"]" * 29, "json_too_deep"),
        (b'{"items"', b'{"items": [], "items"', "duplicate_key"),
    ],
)
async def test_a_late_item_is_read_as_strictly_as_the_first(
    api: httpx2.AsyncClient, store: Store, old: bytes, new: bytes, code: str
) -> None:
    body = json.dumps({"items": [job(n) for n in range(3000)]}).encode()
    assert body.count(old) == 1
    sent = await api.post(BULK, content=body.replace(old, new), headers={"Content-Type": "application/json"})
    assert (sent.status_code, sent.json()["code"]) == (400, code), sent.text
    assert await count(store) == 0


async def test_more_values_than_anyone_needs_are_refused_before_they_are_read(api: httpx2.AsyncClient) -> None:
    for values in (b"0," * 1_000_001 + b"0", b"[]," * 700_000 + b"[]"):
        body = b'{"items": [' + values + b"]}"
        sent = await api.post(BULK, content=body, headers={"Content-Type": "application/json"})
        assert (sent.status_code, sent.json()["code"]) == (400, "json_too_many"), sent.text


async def test_an_item_may_nest_as_deep_as_in_any_document(api: httpx2.AsyncClient) -> None:
    deep: Any = []
    for _ in range(27):  # within the document, its items, an item and its kwargs; so the 32nd bracket is the innermost
        deep = [deep]
    made = await api.post(BULK, json={"items": [job(1, kwargs={"n": deep, "items": 1, "atomic": 2})]})
    assert made.status_code == 201, made.text


async def test_revisions_of_jobs_that_are_alike_are_each_ones_own(api: httpx2.AsyncClient, store: Store) -> None:
    items = [job(n, schedule={"cron": "0 3 * * *"}) for n in range(50)]
    items += [job(50, jitter="10m"), job(51, max_concurrency=2), job(52, schedule={"cron": "H 3 * * *"})]
    assert (await api.post(BULK, json={"items": items})).status_code == 201
    firsts = {(await api.get(f"/api/v1/jobs/{item['name']}/revisions/1")).json()["job"]["name"] for item in items}
    assert firsts == {item["name"] for item in items}
