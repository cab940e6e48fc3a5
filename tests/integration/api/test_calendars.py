"""Calendars and freezes over HTTP."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import msgspec
import pytest

from bellringer.store.connection_pool import Store
from bellringer.wire.calendars import CalendarRequest, FreezePatch, FreezeRequest

CALENDARS = "/api/v1/calendars"
FREEZES = "/api/v1/freezes"
ICS = """BEGIN:VCALENDAR
BEGIN:VEVENT
DTSTART;VALUE=DATE:20301224
DTEND;VALUE=DATE:20301227
SUMMARY:Christmas
END:VEVENT
END:VCALENDAR
"""
NASTY: list[Any] = [
    None, True, -1, 0, 1.5, 10**18, 10**30, 1e308, "", " ", "x", "0", "9" * 70, "\u202e", "x" * 5000, [], [[]], [None],
    ["x"], [{}], [5], {}, {"x": None}, ["2026-02-30"], ["2026-W01-1"], ["0001-01-01"], ["９999-01-01"], ["9999-12-31"],
    ["MON", "MON"], "9998-12-31T00:00:00Z", "0001-01-01T00:00:00Z", "2026-01-01T00:00:00", "P400D", "BEGIN:VCALENDAR",
]  # fmt: skip


async def put(api: httpx2.AsyncClient, name: str = "de", **body: Any) -> dict[str, Any]:
    response = await api.put(f"{CALENDARS}/{name}", json=body)
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.json()
    return document


async def job(api: httpx2.AsyncClient, name: str = "job", **schedule: Any) -> dict[str, Any]:
    body = {"name": name, "task": "demo", "schedule": {"cron": "0 9 1 * *", "calendar": "de", **schedule}}
    response = await api.post("/api/v1/jobs", json=body)
    assert response.status_code == 202, response.text
    document: dict[str, Any] = response.json()
    return document


def fault(response: httpx2.Response, status: int) -> tuple[str, list[str]]:
    assert response.status_code == status, response.text
    problem = response.json()
    return problem["code"], [error["pointer"] for error in problem["errors"]]


# Calendars


async def test_a_calendar_is_made_changed_and_read(api: httpx2.AsyncClient) -> None:
    made = await put(api, dates=["2031-01-01", "2030-12-25", "2020-12-25"])
    assert (made["version"], made["weekend"], made["days"], made["jobs"]) == (1, ["SAT", "SUN"], 3, 0)
    assert made["coming"] == ["2030-12-25", "2031-01-01"]
    assert made["dates"] == ["2020-12-25", "2030-12-25", "2031-01-01"]
    assert (await put(api, dates=["2020-12-25", "2030-12-25", "2031-01-01"]))["version"] == 1
    changed = await put(api, ics=ICS, weekend=["fri", "SAT"])
    assert (changed["version"], changed["weekend"]) == (2, ["FRI", "SAT"])
    assert changed["dates"] == ["2030-12-24", "2030-12-25", "2030-12-26"]
    assert (await api.get(f"{CALENDARS}/de")).json() == changed


async def test_only_the_next_ten_dates_are_reported_ahead(api: httpx2.AsyncClient) -> None:
    dates = [f"2040-01-{day:02}" for day in range(1, 21)]
    assert (await put(api, dates=dates))["coming"] == dates[:10]


async def test_calendars_are_listed_by_name_in_pages(api: httpx2.AsyncClient) -> None:
    for name in ("b", "c%2Fd", "a"):
        await put(api, name)
    first = (await api.get(CALENDARS, params={"limit": 2})).json()
    assert [c["name"] for c in first["items"]] == ["a", "b"]
    assert "dates" not in first["items"][0]
    rest = (await api.get(CALENDARS, params={"limit": 2, "cursor": first["next_cursor"]})).json()
    assert ([c["name"] for c in rest["items"]], rest["next_cursor"]) == (["c/d"], None)


async def test_a_job_names_a_calendar_and_follows_it(api: httpx2.AsyncClient) -> None:
    before = await put(api, dates=["2030-12-25"])
    made = await job(api, shift="next")
    assert made["schedules"][0]["calendar"] == "de"
    assert "calendar de" in made["description"]
    changed = await put(api, dates=["2030-12-26"])
    assert (changed["version"], changed["jobs"], changed["outdated"]) == (2, 1, 0)
    followed = (await api.get("/api/v1/jobs/job")).json()
    assert followed["revision"] == 2
    assert followed["schedules"][0]["calendar_digest"] != made["schedules"][0]["calendar_digest"]
    assert before["version"] == 1


async def test_what_does_not_follow_in_one_call_is_reported(
    api: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bellringer.api.endpoints import calendars

    monkeypatch.setattr(calendars, "MAX_JOBS_UPDATED", 2)
    await put(api)
    for n in range(3):
        await job(api, f"job {n}")
    changed = await put(api, dates=["2030-12-25"])
    assert (changed["version"], changed["jobs"], changed["outdated"]) == (2, 3, 1)
    again = await put(api, dates=["2030-12-25"])
    assert (again["version"], again["jobs"], again["outdated"]) == (2, 3, 0)


async def test_an_unknown_calendar_is_refused_with_the_nearest(api: httpx2.AsyncClient) -> None:
    await put(api, "germany")
    body = {"name": "job", "task": "demo", "schedule": {"cron": "0 9 * * *", "calendar": "germny"}}
    response = await api.post("/api/v1/jobs", json=body)
    assert fault(response, 422) == ("calendar_unknown", ["/schedule/calendar"])
    assert response.json()["hint"] == "did you mean germany?"
    preview = await api.post("/api/v1/schedules/preview", json={"schedule": body["schedule"]})
    assert fault(preview, 422) == ("calendar_unknown", ["/schedule/calendar"])


async def test_a_preview_heeds_the_calendar(api: httpx2.AsyncClient) -> None:
    await put(api, dates=["2030-12-25"], weekend=[])
    body = {"schedule": {"cron": "0 9 * * *", "calendar": "de"}, "n": 2, "from": "2030-12-24T00:00:00Z"}
    fires = (await api.post("/api/v1/schedules/preview", json=body)).json()["fires"]
    assert [fire["at"] for fire in fires] == ["2030-12-24T09:00:00Z", "2030-12-26T09:00:00Z"]


@pytest.mark.parametrize(
    ("patch", "left"),
    [
        ({"calendar": None}, {"cron": "0 9 1 * *"}),
        ({"calendar": "fr"}, {"cron": "0 9 1 * *", "calendar": "fr"}),
        ({"cron": "0 10 * * *"}, {"cron": "0 10 * * *", "calendar": "de"}),
        ({"shift": "next"}, {"cron": "0 9 1 * *", "calendar": "de", "shift": "next"}),
    ],
    ids=["none", "another", "cron", "shift"],
)
async def test_a_patch_touches_only_what_it_names(
    api: httpx2.AsyncClient, patch: dict[str, Any], left: dict[str, Any]
) -> None:
    for name in ("de", "fr"):
        await put(api, name, dates=["2030-12-25"])
    await job(api)
    tried = await api.patch("/api/v1/jobs/job", json={"schedule": patch}, params={"dry_run": "true"})
    assert tried.status_code == 200, tried.text
    changed = await api.patch("/api/v1/jobs/job", json={"schedule": patch})
    assert changed.status_code == 200, changed.text
    [document] = changed.json()["schedules"]
    document.pop("calendar_digest", None)
    assert document == left


async def test_an_h_that_is_patched_away_leaves_no_seed(api: httpx2.AsyncClient) -> None:
    body = {"name": "job", "task": "demo", "schedule": {"cron": "H 3 * * *"}}
    made = (await api.post("/api/v1/jobs", json=body)).json()
    assert made["schedules"] == [{"cron": "H 3 * * *", "seed": "1:job"}]
    changed = await api.patch("/api/v1/jobs/job", json={"schedule": {"cron": "0 3 * * *"}})
    assert changed.json()["schedules"] == [{"cron": "0 3 * * *"}]


async def test_a_calendar_in_use_is_not_deleted(api: httpx2.AsyncClient) -> None:
    await put(api)
    await job(api)
    response = await api.delete(f"{CALENDARS}/de")
    assert fault(response, 409)[0] == "calendar_in_use"
    assert "job" in response.json()["detail"]
    await api.delete("/api/v1/jobs/job")
    assert (await api.delete(f"{CALENDARS}/de")).status_code == 204
    assert (await api.delete(f"{CALENDARS}/de")).status_code == 404
    assert (await api.get(f"{CALENDARS}/de")).status_code == 404


@pytest.mark.parametrize(
    ("body", "code", "pointers"),
    [
        ({"dates": ["25.12.2026"]}, "date_invalid", ["/dates/0"]),
        ({"dates": ["2026-12-25", "2026-02-30"]}, "date_invalid", ["/dates/1"]),
        ({"dates": ["2026-W01-1"]}, "date_invalid", ["/dates/0"]),
        ({"dates": [], "ics": ICS}, "conflicting_fields", ["/ics"]),
        ({"ics": "BEGIN:VCALENDAR\nnonsense"}, "ics_invalid", ["/ics"]),
        ({"weekend": ["SAT", "SOON"]}, "unknown_word", ["/weekend/1"]),
        ({"weekend": ["MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN"]}, "calendar_invalid", ["/weekend"]),
        ({"day": ["2026-12-25"]}, "unknown_field", ["/day"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_a_calendar_that_cannot_be_is_refused(
    api: httpx2.AsyncClient, body: dict[str, Any], code: str, pointers: list[str]
) -> None:
    assert fault(await api.put(f"{CALENDARS}/de", json=body), 422) == (code, pointers)
    assert (await api.get(CALENDARS)).json()["items"] == []


@pytest.mark.parametrize("name", ["%00", "%E2%80%AE", "x" * 5000, "%20", "fz_99999999999999", "fz_-1"])
async def test_an_invalid_name_is_not_found(api: httpx2.AsyncClient, name: str) -> None:
    for path in (CALENDARS, FREEZES):
        assert (await api.get(f"{path}/{name}")).status_code == 404
        assert (await api.delete(f"{path}/{name}")).status_code == 404


# Freezes


def ahead(**length: float) -> str:
    return (datetime.now(UTC) + timedelta(**length)).isoformat()


async def freeze(api: httpx2.AsyncClient, name: str = "rest", **body: Any) -> dict[str, Any]:
    response = await api.post(FREEZES, json={"name": name, "to": "1h", **body})
    assert response.status_code == 201, response.text
    document: dict[str, Any] = response.json()
    assert response.headers["location"] == f"{FREEZES}/{document['freeze_id']}"
    return document


async def test_a_freeze_says_how_many_jobs_it_covers(api: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, tags in (("a", ["x"]), ("b", ["x", "y"]), ("c", [])):
        assert (await api.post("/api/v1/jobs", json={"name": name, "task": "t", "tags": tags})).status_code == 202
    counts = [(await freeze(api, f"f{n}", tags=tags))["jobs"] for n, tags in enumerate((["x"], ["y"], ["z"], []))]
    assert counts == [2, 1, 0, 3]
    monkeypatch.setattr("bellringer.store.freezes.MAX_JOBS_SCANNED", 2)
    assert (await freeze(api, "many", tags=["x"]))["jobs"] is None


async def test_a_freeze_is_made_changed_and_lifted(api: httpx2.AsyncClient) -> None:
    made = await freeze(api, "no deploys", policy="collapse", tags=["a"], reason="why")
    assert (made["state"], made["policy"], made["tags"], made["reason"]) == ("active", "collapse", ["a"], "why")
    start, end = (datetime.fromisoformat(made[key]) for key in ("from", "to"))
    assert end - start == timedelta(hours=1)
    for path in (made["freeze_id"], "No%20deploys"):
        assert (await api.get(f"{FREEZES}/{path}")).json() == made
    later = ahead(hours=5)
    changed = (await api.patch(f"{FREEZES}/{made['freeze_id']}", json={"to": later, "reason": None})).json()
    assert datetime.fromisoformat(changed["to"]) == datetime.fromisoformat(later)
    assert changed["reason"] is None
    kept = (await api.patch(f"{FREEZES}/{made['freeze_id']}", json={"reason": "still"})).json()
    assert (kept["to"], kept["reason"]) == (changed["to"], "still")
    lifted = await api.delete(f"{FREEZES}/{made['freeze_id']}")
    assert (lifted.status_code, lifted.json()) == (200, {"freed": 0, "was_over": False})
    assert (await api.get(f"{FREEZES}/{made['freeze_id']}")).json()["state"] == "over"
    again = await api.delete(f"{FREEZES}/{made['freeze_id']}")
    assert (again.status_code, again.json()) == (200, {"freed": 0, "was_over": True})
    assert fault(await api.patch(f"{FREEZES}/{made['freeze_id']}", json={"to": "1h"}), 409)[0] == "state_conflict"


async def test_what_comes_and_what_holds_is_listed_first(api: httpx2.AsyncClient) -> None:
    over = await freeze(api, "over")
    await api.delete(f"{FREEZES}/over")
    await freeze(api, "active")
    await freeze(api, "coming", **{"from": ahead(hours=2), "to": ahead(hours=3)})
    first = (await api.get(FREEZES, params={"limit": 2})).json()
    assert [(f["name"], f["state"]) for f in first["items"]] == [("coming", "coming"), ("active", "active")]
    rest = (await api.get(FREEZES, params={"limit": 2, "cursor": first["next_cursor"]})).json()
    assert [f["freeze_id"] for f in rest["items"]] == [over["freeze_id"]]


async def test_a_name_that_several_have_does_not_name_one(api: httpx2.AsyncClient) -> None:
    ids = [(await freeze(api))["freeze_id"] for _ in range(2)]
    assert fault(await api.delete(f"{FREEZES}/rest"), 409)[0] == "name_ambiguous"
    await api.delete(f"{FREEZES}/{ids[0]}")
    assert (await api.get(f"{FREEZES}/rest")).json()["freeze_id"] == ids[1]


@pytest.mark.parametrize(
    ("body", "code", "pointers"),
    [
        ({"to": ahead(days=400)}, "limit", ["/to"]),
        ({"to": "400d"}, "limit", ["/to"]),
        ({"to": ahead(hours=-1)}, "range_empty", ["/to"]),
        ({"from": ahead(hours=-1)}, "in_past", ["/from"]),
        ({"from": ahead(days=4000)}, "limit", ["/from"]),
        ({"from": "2026-01-01"}, "datetime_invalid", ["/from"]),
        ({"policy": "queue"}, "unknown_word", ["/policy"]),
        ({"reason": "x" * 1001}, "limit", ["/reason"]),
        ({"tags": [""]}, "name_charset", ["/tags"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
async def test_a_freeze_that_cannot_be_is_refused(
    api: httpx2.AsyncClient, body: dict[str, Any], code: str, pointers: list[str]
) -> None:
    response = await api.post(FREEZES, json={"name": "rest", "to": "1h", **body})
    assert fault(response, 422) == (code, pointers)
    assert (await api.get(FREEZES)).json()["items"] == []


async def test_other_tenants_see_neither(api: httpx2.AsyncClient, store: Store) -> None:
    await put(api)
    made = await freeze(api)
    await store.pool.execute("insert into tenants (name) values ('other')")
    for table in ("calendars", "freezes"):
        await store.pool.execute(f"update {table} set tenant_id = 2")
    for path in (f"{CALENDARS}/de", f"{FREEZES}/{made['freeze_id']}", f"{FREEZES}/rest"):
        assert (await api.get(path)).status_code == 404
        assert (await api.delete(path)).status_code == 404
    assert (await api.patch(f"{FREEZES}/rest", json={"to": "1h"})).status_code == 404
    assert [(await api.get(path)).json()["items"] for path in (CALENDARS, FREEZES)] == [[], []]


@pytest.mark.parametrize(
    ("method", "path", "shape", "base"),
    [
        ("PUT", f"{CALENDARS}/de", CalendarRequest, {}),
        ("POST", FREEZES, FreezeRequest, {"name": "x", "to": "1h"}),
        ("PATCH", f"{FREEZES}/rest", FreezePatch, {}),
    ],
)
async def test_whatever_a_field_holds_it_is_taken_or_refused(
    api: httpx2.AsyncClient, method: str, path: str, shape: type[msgspec.Struct], base: dict[str, Any]
) -> None:
    await freeze(api)
    for field in msgspec.structs.fields(shape):
        for value in NASTY:
            response = await api.request(method, path, json={**base, field.encode_name: value})
            assert response.status_code in {200, 201, 422}, (field.name, value, response.text)
