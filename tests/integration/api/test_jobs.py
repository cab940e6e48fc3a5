"""Jobs over HTTP: create, read, change, pause, resume, trigger, delete."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from urllib.parse import quote

import httpx2

from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog, TaskDescription

FULL = {
    "name": "nightly report",
    "task": "demo",
    "args": [1, "two", None],
    "kwargs": {"deep": {"a": [1.5, True]}, "big": 2**80},
    "schedule": {"cron": "30 2 * * *", "tz": "Europe/Paris"},
    "pool": "long",
    "priority": 7,
    "timeout": "PT1H30M",
    "heartbeat": 90,
    "retry": {"attempts": 5, "base": "10s", "never_on": ["ValueError"]},
    "delivery": "at_most_once",
    "starts_at": "2026-01-01T00:00:00+01:00",
    "ends_at": "2035-01-01T00:00:00Z",
    "tags": ["finance", "daily"],
}


async def _create(api: httpx2.AsyncClient, **fields: object) -> dict[str, object]:
    response = await api.post("/api/v1/jobs", json={"name": "a", "task": "demo", **fields})
    assert response.status_code == 202, response.text
    document: dict[str, object] = response.json()
    return document


async def test_a_job_is_accepted_and_can_be_read_back(api: httpx2.AsyncClient) -> None:
    response = await api.post("/api/v1/jobs", json=FULL)
    job = response.json()
    assert response.status_code == 202
    assert response.headers["location"] == f"/api/v1/jobs/{job['job_id']}"
    assert response.headers["etag"] == '"1"'
    expected = {
        **{key: FULL[key] for key in ("name", "task", "args", "kwargs", "pool", "priority", "retry", "delivery")},
        "schedules": [{"cron": "30 2 * * *", "tz": "Europe/Paris"}],
        "description": "At 02:30 every day (Europe/Paris)",
        "timeout": "1h30m",
        "heartbeat": "1m30s",
        "misfire": "fire_once",
        "overlap": "skip",
        "starts_at": "2025-12-31T23:00:00Z",
        "ends_at": "2035-01-01T00:00:00Z",
        "enabled": True,
        "paused": None,
        "owner": "api",
        "tags": ["finance", "daily"],
        "revision": 1,
    }
    assert {key: job[key] for key in expected} == expected
    assert job["next_at"].endswith("Z")
    by_id = await api.get(response.headers["location"])
    by_name = await api.get("/api/v1/jobs/nightly%20report")
    assert by_id.json() == by_name.json() == job
    assert (await api.get(response.headers["location"], headers={"If-None-Match": '"1"'})).status_code == 304


async def test_any_visible_name_is_a_name(api: httpx2.AsyncClient) -> None:
    for name in ("a/b", "50%", "<script>", "'; drop table jobs", "läuft 🎉", "x/runs", "?&#"):
        await _create(api, name=name)
        found = await api.get(f"/api/v1/jobs/{quote(name, safe='')}")
        assert (found.status_code, found.json()["name"]) == (200, name)
        listed = await api.get("/api/v1/jobs", params={"name": name})
        assert [job["name"] for job in listed.json()["items"]] == [name]
    assert (await api.get("/api/v1/jobs", params={"name": "absent"})).json() == {
        "items": [],
        "next_cursor": None,
    }


async def test_leap_day_and_payload_alias_are_accepted(api: httpx2.AsyncClient) -> None:
    job = await _create(api, schedules=[{"cron": "0 0 29 2 *"}, {"every": "90m"}], payload={"x": 1})
    assert job["kwargs"] == {"x": 1}
    assert job["schedules"] == [{"cron": "0 0 29 2 *"}, {"every": "1h30m"}]
    assert job["description"] == "At 00:00 on the 29th of February (UTC); Every 1 hour 30 minutes"


async def test_a_name_can_be_taken_once(api: httpx2.AsyncClient) -> None:
    answers = await asyncio.gather(
        *(api.post("/api/v1/jobs", json={"name": name, "task": "demo"}) for name in ("Caf\u00e9", "cafe\u0301"))
    )
    assert sorted(a.status_code for a in answers) == [202, 409]
    [refused] = [a.json() for a in answers if a.status_code == 409]
    assert refused["code"] == "name_taken"


async def test_a_patch_leaves_out_what_it_does_not_name(api: httpx2.AsyncClient) -> None:
    job = (await api.post("/api/v1/jobs", json=FULL)).json()
    path = f"/api/v1/jobs/{job['job_id']}"
    patch = {"priority": 2, "kwargs": {"big": None, "new": 1}, "timeout": None}
    response = await api.patch(path, json=patch, headers={"Content-Type": "application/merge-patch+json"})
    changed = response.json()
    assert (response.status_code, response.headers["etag"]) == (200, '"2"')
    assert changed["kwargs"] == {"deep": {"a": [1.5, True]}, "new": 1}
    assert (changed["priority"], changed["timeout"], changed["revision"]) == (2, None, 2)
    touched = {"kwargs", "priority", "timeout", "revision", "updated_at"}
    assert {k: v for k, v in changed.items() if k not in touched} == {k: v for k, v in job.items() if k not in touched}


async def test_a_patched_schedule_keeps_its_zone_or_changes_its_kind(api: httpx2.AsyncClient) -> None:
    job = (await api.post("/api/v1/jobs", json=FULL)).json()
    path = f"/api/v1/jobs/{job['job_id']}"
    for patch, expected in (
        ({"schedule": {"cron": "0 4 * * *"}}, [{"cron": "0 4 * * *", "tz": "Europe/Paris"}]),
        ({"schedule": {"tz": "Asia/Tokyo"}}, [{"cron": "0 4 * * *", "tz": "Asia/Tokyo"}]),
        ({"schedule": {"every": "5m"}}, [{"every": "5m"}]),
        ({"schedules": [{"every": "1m"}, {"every": "2m"}]}, [{"every": "1m"}, {"every": "2m"}]),
        ({"schedule": {"delay": "1m"}}, [{"delay": "1m"}]),
        ({"schedule": None}, []),
    ):
        assert (await api.patch(path, json=patch)).json()["schedules"] == expected


async def test_a_bad_patch_changes_nothing(api: httpx2.AsyncClient) -> None:
    await _create(api, name="taken")
    job = await _create(api, name="b", schedule={"every": "5m"})
    path = f"/api/v1/jobs/{job['job_id']}"
    for patch, headers, status, code in (
        ({"prioritty": None}, {}, 422, "unknown_field"),
        ({"revision": 9}, {}, 422, "unknown_field"),
        ({"name": None}, {}, 422, "missing_field"),
        ({"schedule": {"cron": "x"}}, {}, 422, "cron_invalid"),
        ({"priority": 1}, {"If-Match": '"7"'}, 412, "revision_mismatch"),
        ({"priority": 1}, {"If-Match": 'W/"1"'}, 412, "revision_mismatch"),
        ({"name": "taken"}, {}, 409, "name_taken"),
    ):
        refused = await api.patch(path, json=patch, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (status, code)
    assert (await api.get(path)).json() == job
    for priority, tag in enumerate(('"1"', '"9", "2"', "*")):
        changed = await api.patch(path, json={"priority": priority}, headers={"If-Match": tag})
        assert (changed.status_code, changed.json()["revision"]) == (200, priority + 2)
    nothing = await api.patch(path, json={"priority": 2}, headers={"If-Match": '"4"'})
    assert (nothing.status_code, nothing.headers["etag"]) == (200, '"4"')


async def test_one_of_two_concurrent_changes_gets_a_conflict(api: httpx2.AsyncClient) -> None:
    job = await _create(api)
    path = f"/api/v1/jobs/{job['job_id']}"
    for headers, refusal in (({"If-Match": '"1"'}, {412}), ({}, {200, 409})):
        answers = await asyncio.gather(*(api.patch(path, json={"priority": n}, headers=headers) for n in range(4)))
        statuses = [a.status_code for a in answers]
        assert statuses.count(200) >= 1
        assert set(statuses) - {200} <= refusal


async def test_pause_and_resume(api: httpx2.AsyncClient, store: Store) -> None:
    job = await _create(api, schedule={"every": "1h"})
    path = f"/api/v1/jobs/{job['job_id']}"
    paused = await api.post(f"{path}/pause", json={"reason": "INC-42", "until": "2h"})
    assert paused.status_code == 200
    document = paused.json()
    assert document["paused"]["reason"] == "INC-42"
    assert document["paused"]["by"] == "local"
    left = datetime.fromisoformat(document["paused"]["until"]) - await store.now()
    assert timedelta(minutes=119) < left <= timedelta(hours=2)
    assert document["next_at"] is None
    held = (await api.post(f"{path}/run")).json()
    resumed = await api.post(f"{path}/resume")
    assert (resumed.status_code, resumed.json()["job"]["paused"]) == (200, None)
    assert (resumed.json()["missed"], resumed.json()["what"]) == (0, "skip")
    assert resumed.json()["job"]["next_at"] == job["next_at"]
    assert held["state"] == "queued"
    refused = await api.post(f"{path}/resume", json={"missed": "some"})
    assert refused.status_code == 422
    assert [error["pointer"] for error in refused.json()["errors"]] == ["/missed"]
    for until in ("2001-01-01T00:00:00Z", "0s", "x", -1, "2030-01-01", "9999d"):
        assert (await api.post(f"{path}/pause", json={"until": until})).status_code == 422


async def test_trigger_runs_a_job_with_other_arguments(api: httpx2.AsyncClient) -> None:
    job = await _create(api, args=[1], kwargs={"a": 1, "b": 2})
    response = await api.post(f"/api/v1/jobs/{job['job_id']}/run", json={"kwargs": {"b": 3}})
    run = response.json()
    assert response.status_code == 202
    assert response.headers["location"] == f"/api/v1/runs/{run['run_id']}"
    assert (run["cause"], run["state"], run["job"], run["args"]) == ("manual", "queued", "a", [1])
    assert run["kwargs"] == {"a": 1, "b": 3}
    assert "created" not in run
    listed = (await api.get("/api/v1/jobs/a/runs")).json()["items"]
    assert [item["run_id"] for item in listed] == [run["run_id"]]
    assert not {"args", "kwargs", "result", "attempts"} & listed[0].keys()


async def test_a_deleted_job_is_gone_and_its_name_is_free(api: httpx2.AsyncClient) -> None:
    job = await _create(api)
    path = f"/api/v1/jobs/{job['job_id']}"
    assert (await api.delete(path, headers={"If-Match": '"2"'})).status_code == 412
    deleted = await api.delete(path)
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert (await api.get(path)).status_code == 404
    assert (await api.delete(path)).status_code == 404
    await _create(api)


async def test_pages_meet_without_gap_or_overlap(api: httpx2.AsyncClient) -> None:
    made = [(await _create(api, name=f"job {n}"))["job_id"] for n in range(7)]
    seen: list[object] = []
    cursor = None
    while True:
        query = {"limit": 3, **({"cursor": cursor} if cursor else {})}
        page = (await api.get("/api/v1/jobs", params=query)).json()
        seen += [job["job_id"] for job in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == sorted(made, key=str)
    assert (await api.get("/api/v1/runs", params={"cursor": "WyJqb2JzIixbIngiXV0"})).status_code == 400


async def test_the_next_fire_respects_the_jobs_own_bounds(api: httpx2.AsyncClient) -> None:
    early = await _create(api, name="early", schedule={"every": "1h"})
    late = await _create(api, name="late", schedule={"every": "1h"}, starts_at="2034-05-05T10:30:00Z")
    over = await _create(api, name="over", schedule={"every": "1h"}, ends_at="2020-01-01T00:00:00Z")
    assert early["next_at"]
    assert late["next_at"] == "2034-05-05T11:00:00Z"
    assert over["next_at"] is None


async def test_a_job_is_treated_as_its_task_wants_where_its_author_says_nothing(
    api: httpx2.AsyncClient, catalog: Catalog
) -> None:
    await catalog.task_ids(["charge"])
    wants = '{"pool": "io", "retry": {"attempts": 7}, "timeout": 90.0, "priority": 8}'
    await catalog.describe_tasks([TaskDescription(name="charge", schema="{}", doc="", defaults=wants)])
    plain = await _create(api, name="plain", task="charge")
    assert (plain["pool"], plain["retry"], plain["timeout"], plain["priority"]) == ("io", {"attempts": 7}, "1m30s", 8)
    own = await _create(api, name="own", task="charge", pool="long", retry=2, priority=0)
    assert (own["pool"], own["retry"], own["timeout"], own["priority"]) == ("long", {"attempts": 2}, "1m30s", 0)
