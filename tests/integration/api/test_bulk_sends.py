"""Many sends in one request: all or none, or each for itself; by the same rules as one."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from bellringer.store.connection_pool import Store

BULK = "/api/v1/runs/bulk"
EXECUTE = "/api/v1/jobs/execute"
BRIEF = {"Prefer": "return=minimal"}
NDJSON = {"Content-Type": "application/x-ndjson"}


def item(n: int, **more: Any) -> dict[str, Any]:
    return {"task": "demo", "kwargs": {"n": n}, **more}


async def count(store: Store) -> int:
    found: int = await store.pool.fetchval("select (select count(*) from queue) + (select count(*) from timers)")
    return found


def without(document: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in names}


async def test_all_of_them_are_runs_as_if_sent_one_by_one(api: httpx2.AsyncClient, store: Store) -> None:
    items = [item(n) for n in range(300)]
    items += [
        {"task": "other", "args": [1, "x"], "priority": 9, "retry": 3, "timeout": "5s", "delivery": "at_most_once"},
        item(301, delay="1h", key="a"),
        item(302, payload={"x": [None, {}]}) | {"kwargs": None},
        item(303, at="2030-01-01T00:00:00+01:00"),
        item(304, key="b", expected_duration="5m"),
    ]
    made = await api.post(BULK, json={"items": items})
    assert made.status_code == 202, made.text
    answer = made.json()
    assert (answer["created"], answer["existing"], answer["failed"]) == (305, 0, 0)
    assert [told["index"] for told in answer["items"]] == list(range(305))
    own = ("run_id", "job_id", "fired_at", "scheduled_for", "available_at", "created", "lateness_ms")
    for place in (0, 7, 299, 300, 301, 302, 303, 304):
        told = answer["items"][place]
        assert told["status"] == 202
        read = (await api.get(f"/api/v1/runs/{told['run_id']}")).json()
        assert read["scheduled_for"] == told["scheduled_for"]
        alone = (await api.post(EXECUTE, json=without(items[place], "key"))).json()
        assert without(read, *own) == without(alone, *own)
    assert await store.pool.fetchval("select count(*) from audit where action = 'run.sent'") == 305 + 8


async def test_lines_are_read_as_items_and_ids_are_enough(api: httpx2.AsyncClient, store: Store) -> None:
    body = "\n".join(json.dumps(item(n)) for n in range(20)) + "\n\n"
    made = await api.post(BULK, content=body, headers={**NDJSON, **BRIEF})
    assert made.status_code == 202, made.text
    assert len(set(made.json()["run_ids"])) == 20
    assert "items" not in made.json()
    broken = await api.post(BULK, content='{"task": "a"}\n{"task": }', headers=NDJSON)
    assert (broken.status_code, broken.json()["code"]) == (400, "json_invalid")
    assert broken.json()["errors"][0]["pointer"] == "/items/1"
    assert await count(store) == 20


async def test_one_that_is_wrong_refuses_all_and_each_is_pointed_at(api: httpx2.AsyncClient, store: Store) -> None:
    wrong: list[Any] = [item(n) for n in range(12)]
    wrong[1]["priority"] = 12
    wrong[2] = {"task": "demo", "at": "2020-01-01T00:00:00Z"}
    wrong[3]["tenant_id"] = 7
    wrong[4] = "what"
    wrong[5]["at"] = "tomorrow"
    wrong[6]["delay"] = "5x"
    wrong[7]["key"] = "k" * 256
    wrong[8] |= {"at": "2030-01-01T00:00:00Z", "delay": 1}
    wrong[9] = {"task": "workflow"}
    wrong[10] = {}
    wrong[11]["pool"] = "nowhere"
    refused = await api.post(BULK, json={"items": wrong})
    assert refused.status_code == 422
    assert [(e["pointer"], e["code"]) for e in refused.json()["errors"]] == [
        ("/items/1/priority", "limit"),
        ("/items/2/at", "run_at_in_past"),
        ("/items/3/tenant_id", "unknown_field"),
        ("/items/4", "type"),
        ("/items/5/at", "datetime_invalid"),
        ("/items/6/delay", "duration_invalid"),
        ("/items/7/key", "limit"),
        ("/items/8/delay", "conflicting_fields"),
        ("/items/9/task", "name_reserved"),
        ("/items/10/task", "missing_field"),
        ("/items/11/pool", "pool_unknown"),
    ]
    assert await count(store) == 0, "nothing was stored"
    done = await api.post(BULK, json={"items": wrong, "atomic": False})
    assert done.status_code == 207
    answer = done.json()
    assert [told["status"] for told in answer["items"]] == [202] + [422] * 11
    assert (answer["created"], answer["failed"], await count(store)) == (1, 11, 1)
    assert answer["items"][5]["errors"][0]["pointer"] == "/at"


async def test_keys_are_exact_in_a_request_and_between_requests(api: httpx2.AsyncClient, store: Store) -> None:
    first = (await api.post(EXECUTE, json=item(0, key="a"))).json()
    done = await api.post(BULK, json={"items": [item(1, key="a"), item(2, key="b"), item(3, key="b"), item(4)]})
    answer = done.json()
    assert [told["status"] for told in answer["items"]] == [200, 202, 200, 202]
    assert (answer["created"], answer["existing"]) == (2, 2)
    assert answer["items"][0]["run_id"] == first["run_id"]
    assert answer["items"][1]["run_id"] == answer["items"][2]["run_id"]
    assert await count(store) == 3


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b'{"items": [{"task": "a\\u0000"}]}', 422, "nul_character"),
        (b'{"items": [{"task": "t", "args": ["\\u0000"]}]}', 422, "nul_character"),
        (b'{"items": [{"task": "t", "args": ["\\ud800"]}]}', 400, "encoding"),
        (b'{"items": [{"task": "t", "kwargs": {"a": ' + b"[" * 40 + b"]" * 40 + b"}}]}", 400, "json_too_deep"),
        (b'{"items": [{"task": "t", "args": [NaN]}]}', 400, "number_invalid"),
        (b'{"items": [{"task": "t", "task": "b"}]}', 400, "duplicate_key"),
        (b'{"items": []}', 422, "limit"),
        (b'{"items": {}}', 422, "type"),
        (b'{"sends": []}', 422, "unknown_field"),
        (b"[]", 400, "body_not_object"),
    ],
)
async def test_the_rules_of_a_body_hold(
    api: httpx2.AsyncClient, store: Store, body: bytes, status: int, code: str
) -> None:
    refused = await api.post(BULK, content=body, headers={"Content-Type": "application/json"})
    assert (refused.status_code, refused.json()["code"]) == (status, code)
    assert await count(store) == 0


async def test_the_limits_hold(api: httpx2.AsyncClient, store: Store) -> None:
    refused = await api.post(BULK, json={"items": [{"task": "t"}] * 10_001})
    assert (refused.status_code, refused.json()["code"]) == (422, "limit")
    lines = "\n".join(['{"task": "t"}'] * 10_001)
    refused = await api.post(BULK, content=lines, headers=NDJSON)
    assert (refused.status_code, refused.json()["code"]) == (422, "limit")
    large = [item(0), item(1, kwargs={"x": "y" * (300 << 10)})]
    refused = await api.post(BULK, json={"items": large})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/items/1")
    assert refused.json()["code"] == "payload_too_large"
    accepted = await api.post(BULK, json={"items": [{"task": "t"}] * 10_000}, headers=BRIEF)
    assert (accepted.status_code, len(set(accepted.json()["run_ids"]))) == (202, 10_000)
    assert await count(store) == 10_000


async def test_a_repeated_request_with_a_key_has_one_effect(api: httpx2.AsyncClient, store: Store) -> None:
    headers = {"Idempotency-Key": "once"}
    body = {"items": [item(n, delay="1h" if n % 2 else None) for n in range(2_500)]}
    first = await api.post(BULK, json=body, headers=headers)
    assert first.status_code == 202, first.text
    again = await api.post(BULK, json=body, headers=headers)
    assert again.headers["Idempotency-Replayed"] == "true"
    assert again.json() == first.json()
    assert await count(store) == 2_500
    other = await api.post(BULK, json={"items": [item(1)]}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    wrong = {"items": [item(n) for n in range(1_500)] + [{"task": "demo", "at": "2020-01-01T00:00:00Z"}]}
    for _ in range(2):  # a refusal stores neither runs nor a response
        refused = await api.post(BULK, json=wrong, headers={"Idempotency-Key": "wrong"})
        assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/items/1500/at")
    assert await count(store) == 2_500


async def test_sends_of_a_bulk_count_against_the_rate_of_the_tenant(api: httpx2.AsyncClient, store: Store) -> None:
    await store.pool.execute("""update tenants set quotas = '{"fires_per_minute": 10}'""")
    never = await api.post(BULK, json={"items": [item(n) for n in range(11)]})
    assert (never.status_code, never.json()["code"], never.json()["retryable"]) == (429, "quota_exceeded", False)
    assert (await api.post(BULK, json={"items": [item(n) for n in range(8)]})).status_code == 202
    later = await api.post(BULK, json={"items": [item(n) for n in range(3)]})
    assert (later.status_code, later.json()["retryable"]) == (429, True)
    assert int(later.headers["Retry-After"]) > 0
    done = await api.post(BULK, json={"items": [item(0), {"task": "demo", "priority": 99}], "atomic": False})
    assert [told["status"] for told in done.json()["items"]] == [202, 422]
    assert (await api.post(EXECUTE, json=item(0))).status_code == 202, "the invalid item was not counted"
    assert (await api.post(EXECUTE, json=item(0))).status_code == 429
    assert await count(store) == 10


async def test_tasks_that_no_worker_knows_are_told_once(api: httpx2.AsyncClient, store: Store) -> None:
    await store.pool.execute("insert into tasks (name) values ('known')")
    await store.pool.execute(
        "insert into workers (name, host, pid, version, pools, task_ids, state, started_at, seen_at) "
        """select 'w', 'h', 1, '1', '{"short": 1}', array[task_id], 'live', now(), now() from tasks """
        "where name = 'known'"
    )
    body = {"items": [{"task": "known"}, {"task": "knwon", "args": [1]}, {"task": "knwon", "args": [2]}]}
    done = await api.post(BULK, json=body)
    assert done.status_code == 202
    [warning] = done.json()["warnings"]
    assert (warning["code"], warning["pointer"]) == ("task_unknown", "/items/1/task")
    assert "did you mean known" in warning["hint"]


async def test_urls_are_called_too(api: httpx2.AsyncClient, store: Store) -> None:
    items = [{"http": {"url": f"https://example.com/{n}"}} for n in range(2)] + [{"http": {"url": "ftp://x"}}]
    done = await api.post(BULK, json={"items": items, "atomic": False})
    assert [told["status"] for told in done.json()["items"]] == [202, 202, 422], done.text
    urls = await store.pool.fetch("select spec -> 'kwargs' ->> 'url' as url from queue order by 1")
    assert [row["url"] for row in urls] == ["https://example.com/0", "https://example.com/1"]
