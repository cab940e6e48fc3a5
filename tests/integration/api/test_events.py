"""Events, baselines and moved hands, over HTTP and on the command line."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx2
import pytest
import uvicorn

from bellringer.api.app import create_app
from bellringer.client import AsyncClient
from bellringer.clock import SystemClock
from bellringer.core.runs import RunKey
from bellringer.schedule.time_zones import tz_version
from bellringer.store import events, tzdata
from bellringer.store.connection_pool import Store
from bellringer.store.events import EventKind, NewEvent
from bellringer.store.interned_names import Catalog

DUE = datetime(2026, 11, 16, 2, 30, tzinfo=UTC)
DATA: dict[EventKind, dict[str, Any]] = {
    EventKind.FAILED: {"outcome": "failed", "error": "Boom", "retry_in": 7.5},
    EventKind.DEAD: {"error": "Boom", "reason": "no retries left"},
    EventKind.RECOVERED: {"after": "dead", "since": DUE.isoformat()},
    EventKind.LATE: {"due": "2026-11-16T02:30:00+00:00", "late_after": 90, "blocked": 5},
    EventKind.MISSED: {"from": DUE.isoformat(), "to": DUE.isoformat(), "count": 3, "misfire": "skip"},
    EventKind.EXPIRED: {"count": 3},
    EventKind.SLOW: {"running_for": 125.0, "usual": 10.0004, "longest": 20.5},
    EventKind.OUTGROWN: {"usual": 70.0, "interval": 60.0},
    EventKind.BLOCKED_LOOP: {
        "task": "nap",
        "blocked_for": 12.4,
        "over": True,
        "beside": ["run_x", "run_y"],
        "stack": "",
    },
    EventKind.STRANDED: {"reason": "unconfirmed", "since": DUE.isoformat()},
    EventKind.SKIPPING: {"skipped": 10, "running_for": 700.0},
    EventKind.PAUSED: {"reason": "the last 5 runs died", "failures": 5, "by": "system"},
    EventKind.UNKNOWN_TASK: {"task": "demo", "pool": "short", "since": DUE.isoformat()},
    EventKind.UNSTARTED: {"reason": "no_worker", "pool": "short", "task": "demo", "since": DUE.isoformat()},
    EventKind.TASK_PAUSED: {"task": "demo", "who": "me", "reason": "bank down"},
    EventKind.TASK_RESUMED: {"task": "demo", "who": "me"},
    EventKind.ORPHANED: {"app": "shop", "version": "2", "last_version": "1", "policy": "keep"},
    EventKind.ADOPTED: {"app": "shop", "version": "3", "from_app": "shop", "orphaned_at": DUE.isoformat()},
    EventKind.OVERRIDDEN: {
        "app": "shop",
        "version": "3",
        "changed_by": "ada",
        "changed_at": DUE.isoformat(),
        "fields": [{"field": "priority", "before": 9, "after": 5}],
    },
    EventKind.CHECKIN_MISSED: {"checkin": "backup", "reason": "no ping since 02:30"},
    EventKind.CHECKIN_FAILED: {"checkin": "backup", "error": "exit code 1"},
    EventKind.CHECKIN_RECOVERED: {"checkin": "backup"},
}


WITHOUT_RUN = {
    *("missed", "outgrown", "task_paused", "task_resumed", "orphaned", "adopted", "overridden"),
    *("checkin_missed", "checkin_failed", "checkin_recovered"),
}
WORDS = {
    EventKind.FAILED: "attempt 0 failed: Boom, retries in 7s500ms",
    EventKind.DEAD: "failed for good: Boom (no retries left)",
    EventKind.RECOVERED: "recovered, after dead at 2026-11-16T02:30:00Z",
    EventKind.LATE: "not started 1m30s after its scheduled time; blocked by job_paused, task_unknown",
    EventKind.MISSED: "3 missed since 2026-11-16T02:30:00Z; misfire policy skip",
    EventKind.EXPIRED: "3 runs had not started by the deadline, and will not run",
    EventKind.SLOW: "running for 2m5s; usually 10s, at most 20s500ms",
    EventKind.OUTGROWN: "usually takes 1m10s, longer than its interval of 1m",
    EventKind.BLOCKED_LOOP: "task nap blocked the event loop shared with 2 other runs for 12s400ms",
    EventKind.STRANDED: "no worker is known to execute it: unconfirmed",
    EventKind.SKIPPING: "10 or more skipped, while a run has not ended for 11m40s",
    EventKind.PAUSED: "paused by system: the last 5 runs died",
    EventKind.UNKNOWN_TASK: "no live worker of pool short knows the task demo, so its runs wait",
    EventKind.UNSTARTED: "no live worker serves pool short: runs have waited since 2026-11-16T02:30:00Z",
    EventKind.TASK_PAUSED: "task demo was paused by me: bank down",
    EventKind.TASK_RESUMED: "task demo was resumed by me",
    EventKind.ORPHANED: "app shop 2 no longer declares the job; last declared by 1; policy keep",
    EventKind.ADOPTED: "app shop 3 declares the job again",
    EventKind.OVERRIDDEN: "app shop 3 changed back what ada had changed: priority",
    EventKind.CHECKIN_MISSED: "check-in backup: no ping since 02:30",
    EventKind.CHECKIN_FAILED: "check-in backup: exit code 1",
    EventKind.CHECKIN_RECOVERED: "check-in backup: recovered",
}


async def _create(api: httpx2.AsyncClient, name: str = "nightly", **fields: Any) -> UUID:
    response = await api.post("/api/v1/jobs", json={"name": name, "task": "demo", **fields})
    assert response.status_code == 202, response.text
    return UUID(response.json()["job_id"])


async def _happen(store: Store, job: UUID, *kinds: EventKind, at: datetime = DUE, tenant_id: int = 1) -> None:
    for kind in kinds:
        news = NewEvent(tenant_id=tenant_id, kind=kind, key=RunKey(job, at), data=DATA[kind])
        assert (await events.record(store, DUE, [news]))[kind] == 1


async def _list(api: httpx2.AsyncClient, **query: Any) -> list[dict[str, Any]]:
    response = await api.get("/api/v1/events", params=query)
    assert response.status_code == 200, response.text
    items: list[dict[str, Any]] = response.json()["items"]
    return items


async def test_events_come_newest_first_and_say_what_happened(api: httpx2.AsyncClient, store: Store) -> None:
    job = await _create(api)
    await _happen(store, job, *EventKind)
    found = await _list(api)
    kinds = [
        "checkin_recovered",
        "checkin_failed",
        "checkin_missed",
        "overridden",
        "adopted",
        "orphaned",
        "task_resumed",
        "task_paused",
        "unstarted",
        "unknown_task",
        "paused",
        "skipping",
        "stranded",
        "blocked_loop",
        "outgrown",
        "slow",
        "expired",
        "missed",
        "late",
        "recovered",
        "dead",
        "failed",
    ]
    assert [event["kind"] for event in found] == kinds
    assert found[-1]["data"] == {"outcome": "failed", "error": "Boom", "retry_in": "7s500ms"}
    by_kind = {event["kind"]: event for event in found}
    late = by_kind["late"]
    assert (late["job"], late["job_id"], late["run_id"]) == ("nightly", str(job), RunKey(job, DUE).id)
    assert (late["at"], late["scheduled_for"], late["attempt"]) == ("2026-11-16T02:30:00Z", "2026-11-16T02:30:00Z", 0)
    assert late["data"] == {
        "due": "2026-11-16T02:30:00Z",
        "late_after": "1m30s",
        "blocked": ["job_paused", "task_unknown"],
    }
    assert by_kind["slow"]["data"] == {"running_for": "2m5s", "usual": "10s", "longest": "20s500ms"}
    assert {kind for kind, event in by_kind.items() if event["run_id"] is None} == WITHOUT_RUN
    assert {event["run_id"] for event in found} == {None, RunKey(job, DUE).id}
    assert (
        by_kind["adopted"]["data"]["orphaned_at"]
        == by_kind["overridden"]["data"]["changed_at"]
        == "2026-11-16T02:30:00Z"
    )


async def test_what_is_late_before_its_creation_has_no_run(api: httpx2.AsyncClient, store: Store) -> None:
    key = RunKey(await _create(api), DUE)
    news = NewEvent(tenant_id=1, kind=EventKind.LATE, key=key, data={"late_after": 90, "not_created": True})
    await events.record(store, DUE, [news])
    [event] = await _list(api)
    assert (event["run_id"], event["scheduled_for"]) == (None, "2026-11-16T02:30:00Z")


async def test_events_are_filtered_by_kind_and_job(api: httpx2.AsyncClient, store: Store) -> None:
    one, other = await _create(api), await _create(api, "other")
    await _happen(store, one, EventKind.LATE, EventKind.SLOW)
    await _happen(store, other, EventKind.LATE)
    assert [event["job"] for event in await _list(api, kind="late")] == ["other", "nightly"]
    assert [event["kind"] for event in await _list(api, job="nightly")] == ["slow", "late"]
    assert [event["kind"] for event in await _list(api, job=str(one), kind="late")] == ["late"]


@pytest.mark.parametrize("query", [{}, {"kind": "late"}, {"job": "nightly"}, {"job": "nightly", "kind": "late"}])
async def test_events_come_in_pages(api: httpx2.AsyncClient, store: Store, query: dict[str, str]) -> None:
    job = await _create(api)
    for n in range(5):
        await _happen(store, job, EventKind.LATE, at=DUE + timedelta(minutes=n))
    seen: list[int] = []
    page: dict[str, Any] = {"next_cursor": None}
    for expected in (2, 2, 1):
        cursor = {"cursor": page["next_cursor"]} if seen else {}
        page = (await api.get("/api/v1/events", params={"limit": 2, **query, **cursor})).json()
        assert len(page["items"]) == expected
        seen += [event["event_id"] for event in page["items"]]
    assert page["next_cursor"] is None
    assert seen == sorted(seen, reverse=True)
    assert len(set(seen)) == 5


async def test_an_event_is_reported_once(api: httpx2.AsyncClient, store: Store) -> None:
    job = await _create(api)
    await _happen(store, job, EventKind.LATE)
    news = NewEvent(tenant_id=1, kind=EventKind.LATE, key=RunKey(job, DUE), data={})
    assert not await events.record(store, DUE, [news, news])
    assert len(await _list(api)) == 1


async def test_events_are_a_tenants_own(api: httpx2.AsyncClient, store: Store) -> None:
    job = await _create(api)
    tenant = await store.pool.fetchval("insert into tenants (name) values ('other') returning tenant_id")
    await _happen(store, job, EventKind.LATE, tenant_id=tenant)
    for query in ({}, {"kind": "late"}, {"job": "nightly"}):
        assert await _list(api, **query) == []


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("kind=lat", 422, "kind_unknown"),
        ("kinds=late", 422, "unknown_parameter"),
        ("limit=0", 422, "limit_range"),
        ("job=nobody", 404, "not_found"),
        ("cursor=x", 400, "cursor_invalid"),
    ],
)
async def test_what_cannot_be_asked_is_refused(api: httpx2.AsyncClient, query: str, status: int, code: str) -> None:
    response = await api.get(f"/api/v1/events?{query}")
    assert (response.status_code, response.json()["code"]) == (status, code)


async def test_a_cursor_belongs_to_its_filter(api: httpx2.AsyncClient, store: Store) -> None:
    job = await _create(api)
    await _happen(store, job, EventKind.LATE, EventKind.SLOW)
    cursor = (await api.get("/api/v1/events?limit=1")).json()["next_cursor"]
    assert (await api.get(f"/api/v1/events?kind=late&cursor={cursor}")).status_code == 400


async def test_a_job_shows_what_is_usual(api: httpx2.AsyncClient, store: Store) -> None:
    job = await _create(api, schedule={"every": "1m"})
    bare = (await api.get("/api/v1/jobs/nightly/baseline")).json()
    assert bare == {
        "runs": 0,
        "median": None,
        "longest": None,
        "slow_after": None,
        "interval": "1m",
        "outgrown": False,
    }
    await store.pool.execute(
        "insert into attempts (job_id, scheduled_for, slot, started_at, finished_at, tenant_id, attempt, ends_as)"
        " select $1, now() - n * interval '1 min', 0, now() - n * interval '10 s', now(), 1, 1, 'succeeded'"
        " from generate_series(5, 9) n",
        job,
    )
    assert (await api.get("/api/v1/jobs/nightly/baseline")).json() == {
        "runs": 5,
        "median": "1m10s",
        "longest": "1m30s",
        "slow_after": "3m30s",
        "interval": "1m",
        "outgrown": True,
    }
    assert (await api.get("/api/v1/jobs/nobody/baseline")).status_code == 404
    assert (await api.get(f"/api/v1/jobs/{UUID(int=1)}/baseline")).status_code == 404


async def _move(api: httpx2.AsyncClient, store: Store) -> None:
    """New rules have moved the one hand of two jobs."""
    cron = {"cron": "30 2 * * *", "tz": "Europe/Paris"}
    for name in ("a", "b"):
        await _create(api, name, schedule=cron)
    number = await tzdata.local_tz_id(store)
    await store.pool.execute("insert into tz_applied select shard, $1, 1 from leases where shard < 60", number)
    await store.pool.execute(
        "insert into tz_moves select $1, schedule_id, shard, $2, $2, $2::timestamptz + interval '1 hour' from cohorts",
        number,
        DUE,
    )


async def test_moves_of_the_time_zones_rules_are_listed(api: httpx2.AsyncClient, store: Store) -> None:
    empty = (await api.get("/api/v1/cluster/tz-moves")).json()
    assert empty == {"version": tz_version(), "applied": {}, "shards": 64, "items": []}
    await _move(api, store)
    found = (await api.get("/api/v1/cluster/tz-moves")).json()
    assert (found["applied"], found["shards"]) == ({tz_version(): 60}, 64)
    [move] = found["items"]
    assert move["schedule"] == {"cron": "30 2 * * *", "tz": "Europe/Paris"}
    assert "Europe/Paris" in move["description"]
    assert (move["version"], move["jobs"]) == (tz_version(), 2)
    assert (move["old_next"], move["new_next"]) == ("2026-11-16T02:30:00Z", "2026-11-16T03:30:00Z")


async def test_the_client_knows_the_same_words(api: httpx2.AsyncClient, store: Store, url: str) -> None:
    job = await _create(api)
    await _happen(store, job, EventKind.LATE)
    async with AsyncClient(url) as client:
        [event] = (await client.events(kind="late", job="nightly")).items
        assert (event.kind, event.scheduled_for) == ("late", DUE)
        assert (await client.baseline("nightly")).runs == 0
        assert (await client.tz_moves()).version == tz_version()


@pytest.fixture
async def url(store: Store, catalog: Catalog, tenants: Store) -> AsyncIterator[str]:
    """A real server on a free port, in this test's own loop."""
    app = create_app(store, catalog, tenants, version="1.2.3", clock=SystemClock())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        await serving


def _start(*arguments: str) -> Any:
    command = (sys.executable, "-m", "bellringer", *arguments)
    return asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)


async def _call(*arguments: str) -> str:
    """In a process of its own: the server logs to this one's output."""
    called = await _start(*arguments)
    told, complaints = await called.communicate()
    assert (called.returncode, complaints) == (0, b"")
    return str(told.decode())


async def _beside(*arguments: str) -> str:
    told, said = await (await _start(*arguments)).communicate()
    assert told == b""
    return str(said.decode())


async def test_the_command_line_prints_events_in_words(api: httpx2.AsyncClient, store: Store, url: str) -> None:
    await _happen(store, await _create(api), *EventKind)
    lines = (await _call("events", "list", "--url", url)).splitlines()
    head, *described = lines
    assert head.split() == ["KIND", "JOB", "WHEN", "DUE", "WHAT", "RUN"]
    by_kind = {line.split()[0]: line for line in described}
    assert by_kind.keys() == WORDS.keys() == set(EventKind)
    for kind, words in WORDS.items():
        assert words in by_kind[kind]
    missed = by_kind["missed"]
    [only] = json.loads(await _call("events", "list", "--kind", "slow", "--url", url, "-o", "json"))
    assert only["kind"] == "slow"
    assert missed.split()[-1] == "–"
    await store.pool.execute("delete from events where kind = 'slow'")
    assert await _beside("events", "list", "--kind", "slow", "--url", url) == "no events of kind slow\n"
    await store.pool.execute("delete from events")
    assert await _beside("events", "list", "--url", url) == "no events\n"


async def test_the_command_line_follows_events(api: httpx2.AsyncClient, store: Store, url: str) -> None:
    job = await _create(api)
    await _happen(store, job, EventKind.LATE, EventKind.MISSED)
    following = await _start("events", "list", "--follow", "--url", url)
    try:
        async with asyncio.timeout(30):
            assert b"  late  " in await following.stdout.readline()
            assert b"  missed  " in await following.stdout.readline()
            await _happen(store, job, EventKind.SLOW)
            assert b"  slow  " in await following.stdout.readline()
    finally:
        following.kill()
        await following.wait()


async def test_the_command_line_shows_what_new_rules_moved(api: httpx2.AsyncClient, store: Store, url: str) -> None:
    await _move(api, store)
    shown = await _call("cluster", "tz", "--url", url)
    assert f"{tz_version()} in 60 of 64 shards" in shown
    assert "Europe/Paris" in shown.splitlines()[-1]
