"""Schedules over HTTP: dialects, repeat counts, exceptions, working hours, previews, and plain English."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

PREVIEW = "/api/v1/schedules/preview"
PARSE = "/api/v1/schedules/parse"


async def preview(api: httpx2.AsyncClient, schedule: dict[str, Any], since: str, n: int = 3) -> dict[str, Any]:
    response = await api.post(PREVIEW, json={"schedule": schedule, "from": since, "n": n})
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.json()
    return document


async def create(api: httpx2.AsyncClient, name: str, **schedule: Any) -> dict[str, Any]:
    response = await api.post("/api/v1/jobs", json={"name": name, "task": "demo", "schedule": schedule})
    assert response.status_code == 202, response.text
    document: dict[str, Any] = response.json()
    return document


@pytest.mark.parametrize(
    "schedule",
    [
        {"cron": "0 15 10 ? * 6L 2030-2032", "dialect": "quartz"},
        {"cron": "0 9 ? * 2-6 *", "dialect": "aws"},
        {"cron": "0 22-4/2 * * FRI-MON"},
        {"cron": "0 0 13 * FRI", "day_match": "both"},
        {"rrule": "FREQ=DAILY", "start": "2030-01-01T09:00", "exdate": ["2030-01-02"], "rdate": ["2030-01-02T10:00"]},
        {"every": "5m", "times": 10, "start": "2030-01-01T00:00:00Z"},
    ],
)
async def test_a_job_keeps_its_schedule_as_written(api: httpx2.AsyncClient, schedule: dict[str, Any]) -> None:
    made = await create(api, "job", **schedule)
    stored = (await api.get("/api/v1/jobs/job")).json()
    assert stored["schedules"] == [schedule]
    assert stored["next_at"] == made["next_at"] is not None
    fires = (await preview(api, schedule, "2026-01-01T00:00:00Z", n=1))["fires"]
    assert fires[0]["at"]


async def test_a_repeat_count_starts_with_the_job_and_survives_changes(api: httpx2.AsyncClient) -> None:
    made = await create(api, "job", cron="0 9 * * *", times=5)
    [stored] = made["schedules"]
    assert stored["start"] == made["next_at"]
    wanted = {"task": "demo", "schedule": {"cron": "0 9 * * *", "times": 5}}
    same = (await api.put("/api/v1/jobs/job", json=wanted)).json()
    assert (same["revision"], same["schedules"]) == (1, [stored])
    other = (await api.put("/api/v1/jobs/job", json={**wanted, "priority": 7})).json()
    assert (other["revision"], other["schedules"]) == (2, [stored])
    patched = (await api.patch("/api/v1/jobs/job", json={"schedule": {"times": 6}})).json()
    assert patched["schedules"] == [{**stored, "times": 6}]
    dry = await api.patch("/api/v1/jobs/job?dry_run=true", json={"schedule": {"cron": "0 10 * * *", "times": 2}})
    assert dry.status_code == 200, dry.text
    assert dry.json()["fires"]["after"] == 2


async def test_a_preview_shows_excluded_occurrences_with_their_reason(api: httpx2.AsyncClient) -> None:
    office = {"dates": ["2030-01-02"], "hours": ["MON-FRI 09:00-17:30"]}
    made = (await api.put("/api/v1/calendars/office", json=office)).json()
    assert made["hours"] == ["MON-FRI 09:00-17:30"]
    schedule = {"cron": "0 8,12 * * *", "calendar": "office"}
    shown = await preview(api, schedule, "2030-01-01T00:00:00Z", n=2)
    assert [fire["at"] for fire in shown["fires"]] == ["2030-01-01T12:00:00Z", "2030-01-03T12:00:00Z"]
    assert [(one["at"][5:16], one["code"]) for one in shown["excluded"]] == [
        ("01-01T08:00", "calendar"),
        ("01-02T08:00", "calendar"),
        ("01-02T12:00", "calendar"),
        ("01-03T08:00", "calendar"),
    ]
    assert shown["excluded"][0]["reason"].startswith("08:00 on 2030-01-01 is outside of the hours of calendar office")
    rule = {"rrule": "FREQ=DAILY", "start": "2030-01-01T09:00", "exdate": ["2030-01-02"]}
    [excluded] = (await preview(api, rule, "2030-01-01T00:00:00Z"))["excluded"]
    assert (excluded["at"], excluded["code"]) == ("2030-01-02T09:00:00Z", "exdate")


async def test_working_hours_are_stored_with_the_calendar(api: httpx2.AsyncClient) -> None:
    hours = ["MON-THU 09:00-17:30", "FRI 09:00-15:00"]
    first = (await api.put("/api/v1/calendars/office", json={"hours": hours})).json()
    again = (await api.put("/api/v1/calendars/office", json={"hours": hours})).json()
    assert (first["version"], again["version"], again["hours"]) == (1, 1, hours)
    assert (await api.get("/api/v1/calendars/office")).json() == again
    assert (await api.get("/api/v1/calendars")).json()["items"][0]["hours"] == hours
    job = await create(api, "job", cron="0 * * * *", calendar="office", shift="next")
    assert job["next_at"] is not None
    changed = (await api.put("/api/v1/calendars/office", json={"hours": []})).json()
    assert (changed["version"], changed["hours"], changed["outdated"]) == (2, [], 0)
    wrong = await api.put("/api/v1/calendars/office", json={"hours": ["9 to 5"]})
    assert (wrong.status_code, wrong.json()["code"]) == (422, "hours_invalid")
    assert wrong.json()["errors"][0]["pointer"] == "/hours/0"


async def test_a_schedule_in_plain_english(api: httpx2.AsyncClient) -> None:
    body = {"text": "every weekday at 9:30 in Berlin", "from": "2026-01-01T00:00:00Z", "n": 2}
    response = await api.post(PARSE, json=body)
    assert response.status_code == 200, response.text
    found = response.json()
    assert found["schedule"] == {"cron": "30 9 * * MON-FRI", "tz": "Europe/Berlin"}
    assert found["description"] == "At 09:30 on Monday to Friday (Europe/Berlin)"
    assert [fire["local"] for fire in found["fires"]] == ["2026-01-01T09:30:00+01:00", "2026-01-02T09:30:00+01:00"]
    assert {"text": "in Berlin", "meaning": "time zone Europe/Berlin"} in found["understood"]
    zone = (await api.post(PARSE, json={"text": "daily at noon", "tz": "Asia/Tokyo"})).json()
    assert zone["schedule"] == {"cron": "0 12 * * *", "tz": "Asia/Tokyo"}


@pytest.mark.parametrize(
    ("body", "code", "pointer"),
    [
        ({"text": "every blursday at 9:00"}, "text_not_understood", "/text"),
        ({"text": "every second friday at 9:00"}, "text_ambiguous", "/text"),
        ({"text": ""}, "text_ambiguous", "/text"),
        ({"text": "x" * 500}, "text_ambiguous", "/text"),
        ({"text": "daily at noon", "tz": "Nowhere"}, "timezone_unknown", "/tz"),
        ({"text": "daily at noon", "n": 0}, "limit", "/n"),
    ],
)
async def test_text_that_is_not_understood_is_refused(
    api: httpx2.AsyncClient, body: dict[str, Any], code: str, pointer: str
) -> None:
    response = await api.post(PARSE, json=body)
    assert response.status_code == 422, response.text
    problem = response.json()
    assert (problem["code"], problem["errors"][0]["pointer"]) == (code, pointer)
