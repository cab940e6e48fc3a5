"""Backfills over HTTP: a plan first, then the runs, behind live work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from bellringer.clock import SystemClock
from bellringer.core.leases import Holding
from bellringer.core.runs import Ending, Outcome
from bellringer.engine import backfill as step
from bellringer.engine.backfill import run_backfills
from bellringer.scheduler.service import Scheduler, SchedulerSettings
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.leases import PostgresLeases

Work = Callable[[Ending | None], Awaitable[int]]
Pass = Callable[[], Awaitable[int]]
HOUR = {"from": "2026-01-05T10:00:00Z", "to": "2026-01-05T11:00:00Z"}


@pytest.fixture
async def fill(store: Store, catalog: Catalog) -> Pass:
    """A scheduler by hand: one pass over the backfills."""
    holder = uuid4()
    holding = Holding(holder, await PostgresLeases(store, timedelta(minutes=5)).acquire(holder, 64))

    async def once() -> int:
        return await run_backfills(store, catalog, holding, await store.now())

    return once


async def create(api: httpx2.AsyncClient, **fields: Any) -> Any:
    job = {"name": "nightly", "task": "demo", "overlap": "allow", "schedule": {"cron": "*/10 * * * *"}, **fields}
    response = await api.post("/api/v1/jobs", json=job)
    assert response.status_code == 202, response.text
    return response.json()


async def ask(api: httpx2.AsyncClient, status: int = 202, **fields: Any) -> Any:
    response = await api.post("/api/v1/backfills", json={"job": "nightly", **HOUR, **fields})
    assert response.status_code == status, response.text
    return response.json()


async def steer(api: httpx2.AsyncClient, what: str, **body: Any) -> httpx2.Response:
    return await api.post(f"/api/v1/backfills/{what}", json=body)


async def test_a_dry_run_shows_and_makes_nothing(api: httpx2.AsyncClient, fill: Pass) -> None:
    job = await create(api)
    found = await ask(api, 200, dry_run=True)
    plan = found.pop("plan")
    assert len(plan) == 16
    assert found == {
        "job_id": job["job_id"],
        "job": "nightly",
        "from": "2026-01-05T10:00:00Z",
        "to": "2026-01-05T11:00:00Z",
        "count": 6,
        "already_ran": 0,
        "to_run": 6,
        "exact": True,
        "first": "2026-01-05T10:00:00Z",
        "last": "2026-01-05T10:50:00Z",
    }
    assert await fill() == 0
    assert (await api.get("/api/v1/backfills")).json() == {"items": [], "next_cursor": None}
    assert (await ask(api, 200, dry_run=True))["plan"] == plan


async def test_a_backfill_is_worked_off(api: httpx2.AsyncClient, fill: Pass, work: Work) -> None:
    await create(api)
    made = await ask(api, parallelism=4, order="newest", rate=None)
    assert made["backfill_id"].startswith("bf_")
    shown = {key: made[key] for key in ("job", "cause", "state", "order", "reprocess", "parallelism", "rate", "who")}
    assert shown == {
        "job": "nightly",
        "cause": "backfill",
        "state": "running",
        "order": "newest",
        "reprocess": "none",
        "parallelism": 4,
        "rate": None,
        "who": "local",
    }
    assert (made["total"], made["made"], made["running"], made["cursor"]) == (6, 0, 0, None)
    assert await fill() == 4
    here = f"/api/v1/backfills/{made['backfill_id']}"
    found = (await api.get(here)).json()
    assert (found["made"], found["running"], found["cursor"]) == (4, 4, "2026-01-05T10:20:00Z")
    assert await work(Ending(outcome=Outcome.OK)) == 4
    assert await fill() == 2
    found = (await api.get(here)).json()
    assert (found["state"], found["made"], found["succeeded"], found["running"]) == ("done", 6, 4, 2)
    assert found["ended_at"] is not None
    died = Ending(outcome=Outcome.FAILED, error={"type": "E", "message": "", "lineage": ["ResultNotStorable"]})
    assert await work(died) == 2
    found = (await api.get(here)).json()
    assert (found["succeeded"], found["dead"], found["running"], found["cancelled"]) == (4, 2, 0, 0)
    runs = (await api.get("/api/v1/runs", params={"job": "nightly"})).json()["items"]
    assert {(run["cause"], run["priority"]) for run in runs} == {("backfill", -5)}


@pytest.mark.parametrize(("reprocess", "to_run"), [("none", 5), ("failed", 1), ("all", 6)])
async def test_a_dry_run_knows_what_ran(
    api: httpx2.AsyncClient, fill: Pass, work: Work, reprocess: str, to_run: int
) -> None:
    """One succeeded and one died; a run by hand is no occurrence."""
    await create(api)
    for minute, how in (("10", Outcome.OK), ("20", Outcome.FAILED)):
        start = f"2026-01-05T10:{minute}:00Z"
        await ask(api, 202, **{"from": start, "to": start.replace(":00Z", ":01Z")})
        await fill()
        error = {"type": "E", "message": "", "lineage": ["ResultNotStorable"]} if how is Outcome.FAILED else None
        assert await work(Ending(outcome=how, error=error)) == 1
    found = await ask(api, 200, dry_run=True, reprocess=reprocess)
    assert (found["count"], found["already_ran"], found["to_run"]) == (6, 1, to_run)
    made = await ask(api, reprocess=reprocess, plan=found["plan"], parallelism=10)
    assert await fill() == to_run
    done = (await api.get(f"/api/v1/backfills/{made['backfill_id']}")).json()
    assert (done["state"], done["made"], done["passed"]) == ("done", to_run, 6 - to_run)


async def test_runs_that_the_schedule_does_not_name_are_not_counted(api: httpx2.AsyncClient, fill: Pass) -> None:
    """The job struck every five minutes before: half of those runs are no occurrences any more."""
    await create(api, schedule={"cron": "*/5 * * * *"})
    await ask(api, parallelism=100)
    assert await fill() == 12
    patch = {"schedules": [{"cron": "*/10 * * * *"}]}
    headers = {"content-type": "application/merge-patch+json"}
    assert (await api.patch("/api/v1/jobs/nightly", json=patch, headers=headers)).status_code == 200
    found = await ask(api, 200, dry_run=True)
    assert (found["count"], found["already_ran"], found["to_run"]) == (6, 6, 0)


async def test_what_is_counted_is_bounded(api: httpx2.AsyncClient, fill: Pass, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "COMPARE_CHUNK_RUNS", 2)
    await create(api)
    await ask(api, parallelism=100)
    await fill()
    found = await ask(api, 200, dry_run=True)  # in chunks, and to the end
    assert (found["already_ran"], found["exact"]) == (6, True)
    monkeypatch.setattr(step, "MAX_COMPARED_INSTANTS", 4)
    found = await ask(api, 200, dry_run=True)
    assert (found["already_ran"], found["exact"]) == (4, False)


async def test_a_plan_that_no_longer_holds_is_refused(api: httpx2.AsyncClient, fill: Pass) -> None:
    await create(api)
    plan = (await ask(api, 200, dry_run=True))["plan"]
    await ask(api, plan=plan, **{"from": "2026-01-05T10:00:00Z", "to": "2026-01-05T10:30:00Z"}, status=409)
    headers = {"content-type": "application/merge-patch+json"}
    await api.patch("/api/v1/jobs/nightly", json={"priority": 9}, headers=headers)
    problem = await ask(api, 409, plan=plan)
    assert (problem["code"], "hint" in problem) == ("plan_stale", True)
    plan = (await ask(api, 200, dry_run=True))["plan"]
    await ask(api, plan=plan)
    await fill()
    assert (await ask(api, 409, plan=plan))["code"] == "plan_stale"  # it has runs now


async def test_times_without_an_offset_are_of_the_job_s_zone(api: httpx2.AsyncClient) -> None:
    await create(api, schedule={"cron": "0 0 * * *", "tz": "Europe/Paris"})
    days = await ask(api, 200, dry_run=True, **{"from": "2026-03-28", "to": "2026-03-31"})
    assert (days["from"], days["to"], days["count"]) == ("2026-03-27T23:00:00Z", "2026-03-30T22:00:00Z", 3)
    local = await ask(api, 200, dry_run=True, **{"from": "2026-03-28T00:00", "to": "2026-03-30T00:00:00+02:00"})
    assert (local["from"], local["to"], local["count"]) == ("2026-03-27T23:00:00Z", "2026-03-29T22:00:00Z", 2)


async def test_several_schedules_are_counted_together(api: httpx2.AsyncClient) -> None:
    schedules = [{"cron": "*/10 * * * *"}, {"every": "15m"}, {"cron": "0 * * * *"}, {"cron": "59 * * * *"}]
    await create(api, schedule=None, schedules=schedules)
    found = await ask(api, 200, dry_run=True)
    assert found["count"] == 6 + 2 + 0 + 1
    assert (found["first"], found["last"]) == ("2026-01-05T10:00:00Z", "2026-01-05T10:59:00Z")


async def test_an_empty_range_is_done_at_once(api: httpx2.AsyncClient) -> None:
    await create(api)
    made = await ask(api, 202, **{"from": "2026-01-05T10:01:00Z", "to": "2026-01-05T10:02:00Z"})
    assert (made["state"], made["total"], made["made"]) == ("done", 0, 0)
    found = await ask(api, 200, dry_run=True, **{"from": "2026-01-05T10:01:00Z", "to": "2026-01-05T10:02:00Z"})
    assert (found["count"], found["first"], found["last"]) == (0, None, None)


@pytest.mark.parametrize(
    ("fields", "pointer", "code"),
    [
        ({"to": "2999-01-01T00:00:00Z"}, "/to", "in_future"),
        ({"from": "2026-01-05T11:00:00Z"}, "/from", "range_empty"),
        ({"from": "yesterday"}, "/from", "datetime_invalid"),
        ({"to": "2026-02-30"}, "/to", "datetime_invalid"),
        ({"parallelism": 0}, "/parallelism", "limit"),
        ({"parallelism": 1001}, "/parallelism", "limit"),
        ({"rate": 0}, "/rate", "limit"),
        ({"rate": 1e9}, "/rate", "limit"),
        ({"order": "random"}, "/order", "choice"),
        ({"reprocess": "some"}, "/reprocess", "choice"),
        ({"dry": True}, "/dry", "unknown_field"),
        ({"from": 7}, "/from", "type"),
    ],
)
async def test_what_cannot_be_done_is_refused_with_the_place(
    api: httpx2.AsyncClient, fields: dict[str, Any], pointer: str, code: str
) -> None:
    await create(api)
    problem = await ask(api, 422, **fields)
    assert problem["code"] == code
    assert problem["errors"][0]["pointer"] == pointer
    assert (await api.get("/api/v1/backfills")).json()["items"] == []


async def test_too_many_occurrences_are_refused(api: httpx2.AsyncClient) -> None:
    await create(api, schedule={"every": "1s"})
    problem = await ask(api, 422, dry_run=True, **{"from": "2025-12-01", "to": "2026-01-05"})
    assert (problem["code"], problem["errors"][0]["pointer"]) == ("limit", "/from")
    assert "1,000,000" in problem["detail"]
    assert (await ask(api, 200, dry_run=True, **{"from": "2025-12-25", "to": "2026-01-05"}))["count"] == 11 * 86_400


async def test_a_job_without_occurrences_cannot_be_backfilled(api: httpx2.AsyncClient) -> None:
    await create(api, schedule={"delay": "1h"})
    assert (await ask(api, 422))["code"] == "not_recurring"
    assert (await ask(api, 404, job="nobody"))["code"] == "not_found"


async def test_it_can_be_paused_resumed_and_cancelled(api: httpx2.AsyncClient, fill: Pass) -> None:
    await create(api)
    number = (await ask(api, parallelism=2))["backfill_id"]
    for _ in range(2):  # repeating it changes nothing more
        assert (await steer(api, f"{number}/pause")).json()["state"] == "paused"
    assert await fill() == 0
    for _ in range(2):
        assert (await steer(api, f"{number}/resume")).json()["state"] == "running"
    assert await fill() == 2
    for reason in ("wrong day", "again"):
        found = (await steer(api, f"{number}/cancel", reason=reason)).json()
        assert (found["state"], found["why"], found["cancelled"], found["running"]) == ("cancelled", "wrong day", 2, 0)
    refused = await steer(api, f"{number}/resume")
    assert (refused.status_code, refused.json()["detail"]) == (409, "the backfill is cancelled already")
    done = (await ask(api, parallelism=100))["backfill_id"]
    await fill()
    assert (await steer(api, f"{done}/cancel")).status_code == 409
    assert (await steer(api, f"{done}/pause")).status_code == 409


@pytest.mark.parametrize("text", ["bf_999", "bf_", "bf_01", "7", "bf_-1", "bf_99999999999999999999", "bf_%C2%B2"])
async def test_an_unknown_backfill_is_not_found(api: httpx2.AsyncClient, text: str) -> None:
    assert (await api.get(f"/api/v1/backfills/{text}")).status_code == 404
    for verb in ("pause", "resume", "cancel"):
        assert (await steer(api, f"{text}/{verb}")).status_code == 404


async def test_they_are_listed_in_pages_the_newest_first(api: httpx2.AsyncClient) -> None:
    await create(api)
    await create(api, name="other")
    made = [(await ask(api, job=job))["backfill_id"] for job in ("nightly", "other", "nightly", "nightly")]
    first = (await api.get("/api/v1/backfills", params={"limit": 3})).json()
    assert [item["backfill_id"] for item in first["items"]] == made[:0:-1]
    assert "running" not in first["items"][0]
    rest = (await api.get("/api/v1/backfills", params={"limit": 3, "cursor": first["next_cursor"]})).json()
    assert ([item["backfill_id"] for item in rest["items"]], rest["next_cursor"]) == (made[:1], None)
    mine = (await api.get("/api/v1/backfills", params={"job": "nightly", "limit": 2})).json()
    assert [item["backfill_id"] for item in mine["items"]] == [made[3], made[2]]
    params = {"limit": 2, "cursor": mine["next_cursor"]}
    assert (await api.get("/api/v1/backfills", params=params)).status_code == 400  # the cursor of another list
    found = (await api.get("/api/v1/backfills", params={**params, "job": "nightly"})).json()
    assert [item["backfill_id"] for item in found["items"]] == [made[0]]


async def test_to_may_be_now(api: httpx2.AsyncClient, store: Store) -> None:
    await create(api)
    now = await store.now()
    assert now > datetime(2026, 1, 1, tzinfo=UTC)
    await ask(api, 200, dry_run=True, to=now.isoformat())


async def test_a_scheduler_works_it_off(api: httpx2.AsyncClient, store: Store) -> None:
    await create(api)
    made = await ask(api, parallelism=100)
    stop = asyncio.Event()
    scheduler = Scheduler(store, PostgresLeases(store), SystemClock(), SchedulerSettings())
    running = asyncio.create_task(scheduler.run(stop))
    async with asyncio.timeout(30):
        while (await api.get(f"/api/v1/backfills/{made['backfill_id']}")).json()["state"] != "done":  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    stop.set()
    await running
    assert await store.pool.fetchval("select count(*) from runs where cause = 'backfill'") == 6
    assert scheduler.fired >= 6
