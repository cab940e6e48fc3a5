"""GET /calendar: named occurrences, holidays, freezes and clock changes, from the database."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import httpx2
import pytest
from tests.support.past_runs import INSERT_RUN

from bellringer.engine import agenda
from bellringer.store.connection_pool import Store

API = "/api/v1"


async def create(api: httpx2.AsyncClient, name: str, **fields: Any) -> dict[str, Any]:
    made = await api.post(f"{API}/jobs", json={"name": name, "task": "demo", **fields})
    assert made.is_success, made.text
    document: dict[str, Any] = made.json()
    return document


async def get(api: httpx2.AsyncClient, **query: str) -> dict[str, Any]:
    answer = await api.get(f"{API}/calendar", params=query)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def names(found: dict[str, Any]) -> dict[str, list[str]]:
    return {cell["from"]: [entry["job"] for entry in cell["entries"]] for cell in found["cells"]}


async def test_an_empty_week_begins_today(api: httpx2.AsyncClient, store: Store) -> None:
    found = await get(api, tz="Asia/Tokyo")
    today = (await store.now()).astimezone(ZoneInfo("Asia/Tokyo")).date()
    assert [day["date"] for day in found["days"]] == [str(today + timedelta(days=n)) for n in range(7)]
    assert (found["cells"], found["frequent"], found["freezes"], found["jobs"]) == ([], {"jobs": 0, "items": []}, [], 0)
    assert (found["cell"], found["tz"], found["truncated"], found["left_out"]) == ("hour", "Asia/Tokyo", False, 0)
    assert {day["fires"] for day in found["days"]} == {0}


async def test_jobs_are_named_at_their_times(api: httpx2.AsyncClient, store: Store) -> None:
    made = await create(api, "nightly", schedule={"cron": "30 2 * * *", "tz": "Europe/Berlin"})
    await create(api, "pulse", schedule={"every": "10s"})
    await create(api, "paused", schedule={"cron": "30 2 * * *"})
    await api.post(f"{API}/jobs/paused/pause", json={})
    await create(api, "disabled", schedule={"cron": "30 2 * * *"}, enabled=False)
    day = (await store.now()).date() + timedelta(days=2)
    found = await get(api, tz="Europe/Berlin", **{"from": str(day), "to": str(day + timedelta(days=3))})
    assert names(found) == {cell["from"]: ["nightly"] for cell in found["cells"]}
    [first, *_] = found["cells"]
    assert (first["fires"], first["jobs"], len(found["cells"])) == (1, 1, 3)
    [entry] = first["entries"]
    at = datetime.fromisoformat(entry.pop("at")).astimezone(ZoneInfo("Europe/Berlin"))
    assert (at.date(), f"{at:%H:%M}") == (day, "02:30")
    assert entry == {"job_id": made["job_id"], "job": "nightly", "times": 1, "runs": None, "failed": None}
    assert found["frequent"]["items"] == [{"job_id": found["frequent"]["items"][0]["job_id"], "job": "pulse"}]
    assert [one["fires"] for one in found["days"]] == [1, 1, 1]


async def test_jobs_that_repeat_all_day_are_listed_by_day(api: httpx2.AsyncClient, store: Store) -> None:
    await create(api, "sync", schedule={"every": "5m"})
    await create(api, "rotate", schedule={"every": "30m"})
    await create(api, "nightly", schedule={"cron": "30 2 * * *"})
    day = (await store.now()).date() + timedelta(days=2)
    found = await get(api, limit="1", **{"from": str(day), "to": "2d"})
    assert [names for cell in found["cells"] for names in cell["entries"] if names["job"] != "nightly"] == []
    for repeats in (one["repeats"] for one in found["days"]):
        assert (repeats["jobs"], repeats["fires"]) == (2, 288 + 48)
        assert [(item["job"], item["times"], item["failed"]) for item in repeats["items"]] == [
            ("rotate", 48, None),
            ("sync", 288, None),
        ]
    assert [one["fires"] for one in found["days"]] == [288 + 48 + 1] * 2


async def test_a_day_that_changes_the_clocks_says_so(api: httpx2.AsyncClient, store: Store) -> None:
    year = (await store.now()).year + 1
    october = date(year, 10, 31)
    sunday = october - timedelta(days=(october.weekday() + 1) % 7)
    found = await get(api, tz="Europe/Berlin", to="7d", **{"from": str(sunday - timedelta(days=2))})
    changes = {
        day["date"]: [one["text"] for one in day["clock_changes"]] for day in found["days"] if day["clock_changes"]
    }
    assert changes == {str(sunday): ["clocks go back 1 h at 03:00"]}
    [change] = next(day for day in found["days"] if day["clock_changes"])["clock_changes"]
    assert (change["seconds"], change["at"]) == (-3600, f"{sunday}T01:00:00Z")


async def test_holidays_and_freezes_are_part_of_the_calendar(api: httpx2.AsyncClient, store: Store) -> None:
    day = (await store.now()).date() + timedelta(days=3)
    for name in ("bank", "school"):
        await api.put(f"{API}/calendars/{name}", json={"dates": [str(day)]})
    await create(api, "payroll", schedule={"cron": "0 9 * * *", "calendar": "bank"})
    freeze = {"name": "sale", "from": f"{day}T06:00:00Z", "to": f"{day}T18:00:00Z", "tags": ["shop"]}
    made = await api.post(f"{API}/freezes", json=freeze)
    assert made.is_success, made.text
    found = await get(api, cell="day", **{"from": str(day), "to": str(day + timedelta(days=7))})
    assert [one["holidays"] for one in found["days"]] == [["bank", "school"], *[[]] * 6]
    assert str(day) not in {cell["from"][:10] for cell in found["cells"]}
    [band] = found["freezes"]
    expected = {**freeze, "freeze_id": made.json()["freeze_id"], "policy": "defer"}
    assert {name: band[name] for name in expected} == expected
    assert (await get(api, **{"from": str(day + timedelta(days=1))}))["freezes"] == []


async def test_filters_choose_the_jobs(api: httpx2.AsyncClient) -> None:
    await create(api, "a", schedule={"cron": "0 9 * * *"}, pool="long", tags=["x"])
    await create(api, "b", schedule={"cron": "0 9 * * *"}, task="other")
    for filters, expected in (({"pool": "long"}, "a"), ({"tag": "x"}, "a"), ({"task": "other"}, "b")):
        assert {name for listed in names(await get(api, **filters)).values() for name in listed} == {expected}
    assert (await get(api, tag="none"))["cells"] == []


async def test_one_shots_and_delays_have_one_time(api: httpx2.AsyncClient, store: Store) -> None:
    at = (await store.now() + timedelta(days=1)).replace(microsecond=0)
    await create(api, "once", schedule={"at": at.isoformat()})
    await create(api, "delay", schedule={"delay": "30m"})
    found = await get(api)
    listed = [(entry["job"], entry["times"]) for cell in found["cells"] for entry in cell["entries"]]
    assert sorted(listed) == [("delay", 1), ("once", 1)]


async def test_past_entries_have_the_number_of_runs_and_of_failures(api: httpx2.AsyncClient, store: Store) -> None:
    ids = [(await create(api, name, schedule={"cron": "0 */6 * * *"}))["job_id"] for name in ("a", "b")]
    today = datetime.combine((await store.now()).date(), time(), UTC)
    await store.pool.execute("update bellringer.jobs set created_at = created_at - interval '2 days'")
    await store.pool.execute(INSERT_RUN, ids[0], today, "dead")
    await store.pool.execute(INSERT_RUN, ids[1], today - timedelta(hours=6), "succeeded")
    found = await get(api, **{"from": str(today.date() - timedelta(days=1)), "to": "3d"})
    seen = {
        (cell["from"], one["job"]): (one["runs"], one["failed"]) for cell in found["cells"] for one in cell["entries"]
    }
    midnight, evening = f"{today:%Y-%m-%dT%H:%M:%SZ}", f"{today - timedelta(hours=6):%Y-%m-%dT%H:%M:%SZ}"
    assert seen[midnight, "a"] == (1, 1)
    assert seen[midnight, "b"] == (0, 0)
    assert (seen[evening, "a"], seen[evening, "b"]) == ((0, 0), (1, 0))
    assert {seen[place] for place in seen if place[0][:10] == str(today.date() + timedelta(days=1))} == {(None, None)}


async def test_nothing_is_shown_before_a_job_was_created(api: httpx2.AsyncClient, store: Store) -> None:
    await create(api, "a", schedule={"cron": "* * * * *"})
    now = await store.now()
    found = await get(api, **{"from": str(now.date() - timedelta(days=2)), "to": str(now.date())})
    assert found["cells"] == []


async def test_more_jobs_than_are_named_are_counted_by_day(
    api: httpx2.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agenda, "MAX_JOBS", 3)
    for number in range(5):
        await create(api, f"job {number}", schedule={"cron": "0 9 * * *"}, tags=["all"])
    await create(api, "other pool", schedule={"cron": "0 9 * * *"}, pool="long")
    day = (await store.now()).date() + timedelta(days=1)
    span = {"from": str(day), "to": str(day + timedelta(days=2)), "cell": "day"}
    found = await get(api, **span)
    assert (found["jobs"], found["truncated"], found["left_out"]) == (3, True, 0)
    assert [cell["jobs"] for cell in found["cells"]] == [3, 3]
    assert [one["fires"] for one in found["days"]] == [6, 6]
    assert [one["fires"] for one in (await get(api, pool="short", **span))["days"]] == [5, 5]
    hidden = await get(api, tag="all", **span)
    assert ([one["fires"] for one in hidden["days"]], hidden["truncated"]) == ([None, None], True)


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"tz": "Mars/Base"}, "timezone_unknown"),
        ({"from": "2026-13-01"}, "date_invalid"),
        ({"from": "9998-12-31"}, "limit"),
        ({"from": "9999-12-31"}, "datetime_invalid"),
        ({"from": "soon"}, "datetime_invalid"),
        ({"to": "43d"}, "limit"),
        ({"to": "9d", "cell": "hour"}, "limit"),
        ({"cell": "minute"}, "choice"),
        ({"limit": "0"}, "limit_range"),
        ({"limit": "201"}, "limit_range"),
    ],
)
async def test_requests_that_make_no_sense_are_refused(
    api: httpx2.AsyncClient, query: dict[str, str], code: str
) -> None:
    refused = await api.get(f"{API}/calendar", params=query)
    assert (refused.status_code, refused.json()["code"]) == (422, code)


async def test_the_forecast_omits_jobs_more_frequent_than_every_minute(api: httpx2.AsyncClient) -> None:
    await create(api, "pulse", schedule={"every": "10s"})
    await create(api, "minutely", schedule={"every": "1m"})
    whole = (await api.get(f"{API}/forecast", params={"to": "1h", "bucket": "1m"})).json()
    part = (await api.get(f"{API}/forecast", params={"to": "1h", "bucket": "1m", "sub_minute": "false"})).json()
    assert (whole["total"], whole["omitted"]) == (420, 0)
    assert (part["total"], part["omitted"]) == (60, 1)
    refused = await api.get(f"{API}/forecast", params={"sub_minute": "maybe"})
    assert (refused.status_code, refused.json()["code"]) == (422, "choice")
