"""Creates that arrive together share calls to the database; each has its own answer and entry in the audit."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest

from bellringer.lifecycle import register
from bellringer.store.pool import Store


def _job(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "task": "demo", "schedule": {"cron": "0 3 * * *"}, **more}


async def _create(api: httpx2.AsyncClient, name: str, request_id: str, **more: Any) -> httpx2.Response:
    return await api.post("/api/v1/jobs", json=_job(name, **more), headers={"X-Request-Id": request_id})


async def test_each_is_answered_for_itself(
    api: httpx2.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    enroll = register.enroll

    async def counted(*args: Any, **terms: Any) -> Any:
        sizes.append(len(args[2]))
        return await enroll(*args, **terms)

    monkeypatch.setattr(register, "enroll", counted)
    assert (await _create(api, "taken", "r-taken")).status_code == 202
    answers = await asyncio.gather(
        *(_create(api, f"job {n}", f"r-{n}") for n in range(40)),
        _create(api, "TAKEN", "r-again"),
        _create(api, "late", "r-late", starts_at="2026-02-01T00:00:00Z", ends_at="2026-01-01T00:00:00Z"),
        *(_create(api, "job twin", f"r-twin-{n}") for n in range(3)),
    )
    good, again, late, twins = answers[:40], answers[40], answers[41], answers[42:]
    assert [a.status_code for a in good] == [202] * 40
    assert [a.json()["name"] for a in good] == [f"job {n}" for n in range(40)]
    assert (again.status_code, again.json()["code"]) == (409, "name_taken")
    assert late.status_code == 422
    assert sorted(a.status_code for a in twins) == [202, 409, 409]
    assert max(sizes) > 5, "they went one by one"
    for answer in good:
        read = await api.get(answer.headers["location"])
        assert read.content == answer.content

    rows = await store.pool.fetch(
        "select j.name, a.request_id, a.who, a.action from audit a join jobs j on j.job_id::text = a.target"
    )
    told = {row["name"]: row["request_id"] for row in rows}
    assert len(rows) == 42
    assert {name: told[name] for name in told if name != "job twin"} == {
        "taken": "r-taken",
        **{f"job {n}": f"r-{n}" for n in range(40)},
    }
    assert {(row["who"], row["action"]) for row in rows} == {("local", "job.created")}


async def test_with_an_idempotency_key_it_goes_alone(api: httpx2.AsyncClient, store: Store) -> None:
    """Its answer is kept in its own transaction."""
    headers = {"Idempotency-Key": "k"}
    first, second = [await api.post("/api/v1/jobs", json=_job("once"), headers=headers) for _ in range(2)]
    assert (first.status_code, second.status_code, second.headers["idempotency-replayed"]) == (202, 202, "true")
    assert await store.pool.fetchval("select count(*) from audit where action = 'job.created'") == 1


async def test_a_database_that_fails_is_told_to_all(
    api: httpx2.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any, **__: Any) -> None:
        raise ConnectionResetError("the database went away")

    monkeypatch.setattr(register, "enroll", away)
    answers = await asyncio.gather(*(_create(api, f"job {n}", f"r-{n}") for n in range(8)))
    assert {(a.status_code, a.json()["code"]) for a in answers} == {(503, "unavailable")}
    assert {a.json()["request_id"] for a in answers} == {f"r-{n}" for n in range(8)}
    assert await store.pool.fetchval("select count(*) from jobs") == 0
