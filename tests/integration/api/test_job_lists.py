"""Lists of jobs by their state: in both orders, with other filters, page by page, however few are in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from bellringer.store import jobs
from bellringer.store.connection_pool import Store

JOBS = "/api/v1/jobs"
STATES = ("enabled", "paused", "disabled", "late", "failing")
MANY = 24
IN_TROUBLE = """
insert into troubles (job_id, tenant_id, kind, scheduled_for, since, looked_at)
select job_id, tenant_id, $2, now(), now(), now() from jobs where name = any ($1::text[])
"""
Fits = Callable[[int], bool]


def name_of(n: int) -> str:
    """Not in the order in which they are made, and some in capitals."""
    word = f"job {(n * 7) % MANY:02}"
    return word.upper() if n % 4 == 0 else word


FITS: dict[str, Fits] = {
    "enabled": lambda n: n % 5 not in (1, 2),
    "paused": lambda n: n % 5 == 1,
    "disabled": lambda n: n % 5 == 2,
    "late": lambda n: n % 3 == 0,
    "failing": lambda n: n % 3 == 1,
}


@pytest.fixture
async def crowd(api: httpx2.AsyncClient, store: Store) -> dict[int, dict[str, Any]]:
    """Jobs in all states, by their numbers; beside them one that was deleted in trouble."""
    every = {"task": "demo", "schedule": {"every": "1h"}}
    items = [
        {**every, "name": name_of(n), "enabled": n % 5 != 2, "tags": ["even"] if n % 2 == 0 else []}
        for n in range(MANY)
    ]
    gone = {**every, "name": "job 00 gone"}
    made = await api.post(f"{JOBS}/bulk", json={"items": [*items, gone]})
    assert made.status_code == 201, made.text
    for n in range(MANY):
        if FITS["paused"](n):
            assert (await api.post(f"{JOBS}/{name_of(n)}/pause")).status_code == 200
    late = [name_of(n) for n in range(MANY) if FITS["late"](n)]
    await store.pool.execute(IN_TROUBLE, late[::2], "late")
    await store.pool.execute(IN_TROUBLE, [*late[1::2], "job 00 gone"], "missed")
    await store.pool.execute(IN_TROUBLE, [name_of(n) for n in range(MANY) if FITS["failing"](n)], "dead")
    assert (await api.delete(f"{JOBS}/job 00 gone")).status_code == 204
    found = (await api.get(JOBS, params={"limit": "200"})).json()["items"]
    numbers = {name_of(n): n for n in range(MANY)}
    assert {item["name"] for item in found} == set(numbers)
    return {numbers[item["name"]]: item for item in found}


async def walk(api: httpx2.AsyncClient, query: dict[str, str], limit: int) -> list[str]:
    """The names of all pages."""
    found: list[str] = []
    cursor, pages = None, 0
    while pages == 0 or cursor:
        asked = {**query, "limit": str(limit), **({"cursor": cursor} if cursor else {})}
        answer = await api.get(JOBS, params=asked)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert len(page["items"]) <= limit
        found += [item["name"] for item in page["items"]]
        cursor, pages = page["next_cursor"], pages + 1
        assert pages <= 2 * MANY + 2, "the pages come to an end"
    return found


# Looked at so many: all that there are; fewer than are in a state, so that those in trouble are many; one at a time.
@pytest.mark.parametrize("scanned", [jobs.MAX_JOBS_SCANNED, 20, 3, 1])
@pytest.mark.parametrize("sort", ["id", "name"])
async def test_every_job_of_a_state_is_listed_once_and_in_order(
    api: httpx2.AsyncClient,
    crowd: dict[int, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    sort: str,
    scanned: int,
) -> None:
    monkeypatch.setattr(jobs, "MAX_JOBS_SCANNED", scanned)
    for state in STATES:
        for more in ({}, {"tag": "even"}, {"q": "JOB 1"}):
            wanted = [
                item["name"]
                for n, item in sorted(crowd.items(), key=lambda one: _place(one[1], sort))
                if FITS[state](n)
                and ("tag" not in more or n % 2 == 0)
                and ("q" not in more or "job 1" in item["name"].lower())
            ]
            assert wanted
            for limit in (2, 50):
                assert await walk(api, {"state": state, "sort": sort, **more}, limit) == wanted, (state, more, limit)


def _place(item: dict[str, Any], sort: str) -> str:
    return str(item["name"].lower() if sort == "name" else item["job_id"])


async def test_jobs_of_a_state_are_counted(
    api: httpx2.AsyncClient, crowd: dict[int, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def count(**query: str) -> Any:
        return (await api.get(JOBS, params={**query, "count": "bounded", "limit": "1"})).json()["count"]

    for state in STATES:
        fitting = sum(map(FITS[state], crowd))
        assert await count(state=state) == {"value": fitting, "relation": "eq"}
    monkeypatch.setattr(jobs, "MAX_JOBS_SCANNED", 4)
    assert await count(state="paused") == {"value": 4, "relation": "gte"}


async def test_a_page_goes_on_where_it_was_though_states_change(
    api: httpx2.AsyncClient, store: Store, crowd: dict[int, dict[str, Any]]
) -> None:
    """What has left the state is not shown again, and nothing else is passed over."""
    assert crowd
    for sort in ("id", "name"):
        whole = await walk(api, {"state": "late", "sort": sort}, 50)
        first = (await api.get(JOBS, params={"state": "late", "sort": sort, "limit": "2"})).json()
        assert [item["name"] for item in first["items"]] == whole[:2]
        await store.pool.execute(
            "delete from troubles where job_id = any ($1::uuid[])", [item["job_id"] for item in first["items"]]
        )
        asked = {"state": "late", "sort": sort, "limit": "50", "cursor": first["next_cursor"]}
        rest = (await api.get(JOBS, params=asked)).json()
        assert [item["name"] for item in rest["items"]] == whole[2:]


async def test_jobs_in_trouble_of_another_tenant_are_not_listed(
    api: httpx2.AsyncClient, store: Store, crowd: dict[int, dict[str, Any]]
) -> None:
    assert crowd
    other = await store.pool.fetchval("insert into tenants (name) values ('other') returning tenant_id")
    await store.pool.execute("update jobs set tenant_id = $1", other)
    await store.pool.execute("update troubles set tenant_id = $1", other)
    for state in STATES:
        for sort in ("id", "name"):
            assert await walk(api, {"state": state, "sort": sort}, 50) == []
