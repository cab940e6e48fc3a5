"""The dry run of a change: what it would do, fire by fire, with nothing done."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner

from bellringer.cli import cli
from bellringer.client import Client
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog

PATH = "/api/v1/jobs/a"


async def _create(api: httpx2.AsyncClient, name: str = "a", **fields: Any) -> dict[str, Any]:
    response = await api.post("/api/v1/jobs", json={"name": name, "task": "demo", **fields})
    assert response.status_code == 202, response.text
    document: dict[str, Any] = response.json()
    return document


async def _dry(api: httpx2.AsyncClient, patch: dict[str, Any], **query: str) -> dict[str, Any]:
    response = await api.patch(PATH, json=patch, params={"dry_run": "true", **query})
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.json()
    return document


def _codes(found: dict[str, Any]) -> list[str]:
    return [warning["code"] for warning in found["warnings"]]


async def test_a_change_is_reported_and_not_made(api: httpx2.AsyncClient, store: Store, catalog: Catalog) -> None:
    await catalog.pool_ids(["new"])
    job = await _create(api, schedule={"cron": "0 2 * * *", "tz": "Europe/Paris"}, tags=["x"])
    tables = (
        "select (select revision from jobs), (select count(*) from job_revisions), (select count(*) from schedules),"
        " (select count(*) from pools)"
    )
    before = await store.pool.fetchrow(tables)
    found = await _dry(api, {"schedule": {"tz": "UTC"}, "priority": 9, "pool": "new", "retry": {"attempts": 4}})
    assert found["revision"] == 1
    assert {c["field"]: (c["before"], c["after"]) for c in found["changes"]} == {
        "schedules": ([{"cron": "0 2 * * *", "tz": "Europe/Paris"}], [{"cron": "0 2 * * *"}]),
        "priority": (5, 9),
        "pool": ("short", "new"),
        "retry": ({"attempts": 3}, {"attempts": 4}),
    }
    fires = found["fires"]
    assert (fires["before"], fires["after"], fires["kept"], fires["truncated"]) == (7, 7, 0, False)
    assert {instant[11:] for instant in fires["added"]} == {"02:00:00Z"}
    assert {instant[11:] for instant in fires["removed"]} <= {"00:00:00Z", "01:00:00Z"}
    start, end = (datetime.fromisoformat(fires[key]) for key in ("from", "to"))
    assert end - start == timedelta(days=7)
    assert (found["next_before"], found["next_after"]) == (fires["removed"][0], fires["added"][0])
    assert found["warnings"] == []
    assert (await api.get(PATH)).json() == job
    assert await store.pool.fetchrow(tables) == before


async def test_what_stays_is_kept(api: httpx2.AsyncClient) -> None:
    await _create(api, schedule={"every": "6h"})
    found = await _dry(api, {"schedules": [{"every": "6h"}, {"every": "4h"}]}, days="1")
    fires = found["fires"]
    assert (fires["before"], fires["after"], fires["kept"]) == (4, 8, 4)
    assert fires["removed"] == []
    assert len(fires["added"]) == 4
    same = await _dry(api, {})
    assert (same["changes"], same["fires"]["kept"], same["next_before"]) == ([], 28, same["next_after"])


async def test_a_job_of_many_fires_is_compared_as_far_as_it_goes(api: httpx2.AsyncClient) -> None:
    await _create(api, schedule={"every": "1s"})
    fires = (await _dry(api, {"schedule": {"every": "2s"}}))["fires"]
    assert fires["truncated"]
    assert len(fires["removed"]) == 200
    assert fires["kept"] == fires["after"] > 10_000
    start, end = (datetime.fromisoformat(fires[key]) for key in ("from", "to"))
    assert fires["before"] == pytest.approx((end - start).total_seconds(), abs=1)


async def test_bounds_and_a_switch_take_fires_away(api: httpx2.AsyncClient) -> None:
    await _create(api, schedule={"every": "1h"})
    off = await _dry(api, {"enabled": False})
    assert (off["fires"]["before"], off["fires"]["after"], off["next_after"]) == (168, 0, None)
    assert _codes(off) == ["job_disabled"]
    soon = (datetime.now(UTC) + timedelta(hours=3)).isoformat()
    ends = await _dry(api, {"ends_at": soon}, days="1")
    assert (ends["fires"]["after"], _codes(ends)) == (3, [])
    over = await _dry(api, {"ends_at": "2020-01-01T00:00:00Z"}, days="1")
    assert (over["fires"]["after"], _codes(over)) == (0, ["never_again"])


async def test_surprises_are_reported(api: httpx2.AsyncClient) -> None:
    await _create(api, schedule={"delay": "1h"})
    delayed = await _dry(api, {"schedule": {"delay": "2h"}})
    assert _codes(delayed) == ["delay"]
    assert (delayed["fires"]["before"], delayed["fires"]["after"]) == (1, 1)
    known = (await api.get(PATH)).json()["next_at"]
    assert delayed["next_before"] == known
    assert _codes(await _dry(api, {"schedule": {"every": "1h"}, "jitter": "5m"})) == ["jitter"]
    await api.post(f"{PATH}/pause", json={})
    paused = await _dry(api, {"schedule": {"every": "1h"}})
    assert (_codes(paused), paused["fires"]["after"]) == (["job_paused"], 168)


@pytest.mark.parametrize(
    "patch",
    [
        {"schedule": {"cron": "17 3 * * *", "tz": "Asia/Tokyo"}},
        {"schedule": {"cron": "H H * * *"}},
        {"schedules": [{"every": "7h"}, {"cron": "0 0 1 * *"}]},
        {"starts_at": "2099-01-01T00:30:00Z"},
        {"enabled": False},
    ],
    ids=str,
)
async def test_a_dry_run_foresees_what_the_change_does(api: httpx2.AsyncClient, patch: dict[str, Any]) -> None:
    await _create(api, schedule={"every": "1h"})
    foreseen = await _dry(api, patch)
    changed = (await api.patch(PATH, json=patch)).json()
    assert foreseen["next_after"] == changed["next_at"]
    assert foreseen["changes"]
    for change in foreseen["changes"]:
        assert change["after"] == changed[change["field"]]


async def test_what_may_surprise_about_a_new_schedule_is_reported(api: httpx2.AsyncClient) -> None:
    await _create(api, schedule={"cron": "0 0 31 * *"})
    found = await _dry(api, {"schedule": {"cron": "0 0 30 * MON"}})
    assert _codes(found) == ["dom_and_dow", "day_missing_in_some_months"]
    assert _codes(await _dry(api, {"priority": 1})) == [], "not about what stays"


@pytest.mark.parametrize(
    "patch",
    [
        {"prioritty": 1},
        {"priority": 99},
        {"schedule": {"cron": "x"}},
        {"schedule": {"at": "2020-01-01T00:00:00Z"}},
        {"schedules": [{"delay": "1s"}, {"every": "1s"}]},
        {"name": None},
        {"name": "taken"},
        {"name": " a "},
        {"kwargs": {"x": "y" * 300_000}},
        {"misfire": "never"},
        {"max_concurrency": 0},
    ],
    ids=lambda patch: str(patch)[:40],
)
async def test_a_dry_run_refuses_what_the_change_refuses(api: httpx2.AsyncClient, patch: dict[str, Any]) -> None:
    await _create(api, "taken")
    await _create(api, schedule={"every": "1h"})
    dry = await api.patch(PATH, json=patch, params={"dry_run": "true"})
    real = await api.patch(PATH, json=patch)
    assert dry.status_code == real.status_code >= 400
    told = ("code", "detail", "hint", "errors")
    assert {key: dry.json().get(key) for key in told} == {key: real.json().get(key) for key in told}


async def test_a_condition_holds_for_a_dry_run_too(api: httpx2.AsyncClient) -> None:
    await _create(api, schedule={"every": "1h"})
    for tag, status in (('"1"', 200), ('"7"', 412)):
        response = await api.patch(PATH, json={"priority": 1}, params={"dry_run": "true"}, headers={"If-Match": tag})
        assert response.status_code == status
    assert (await api.patch("/api/v1/jobs/none", json={}, params={"dry_run": "true"})).status_code == 404


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"dry_run": "yes"}, "type"),
        ({"dry_run": "true", "days": "0"}, "limit_range"),
        ({"dry_run": "true", "days": "367"}, "limit_range"),
        ({"days": "7"}, "conflicting_fields"),
        ({"dryrun": "true"}, "unknown_parameter"),
    ],
    ids=str,
)
async def test_a_wrong_question_changes_nothing(api: httpx2.AsyncClient, query: dict[str, str], code: str) -> None:
    job = await _create(api, schedule={"every": "1h"})
    response = await api.patch(PATH, json={"priority": 1}, params=query)
    assert (response.status_code, response.json()["code"]) == (422, code)
    assert (await api.get(PATH)).json() == job


# The command line


class Server:
    """Notes what is asked, and answers the same to all."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.asked: list[httpx2.Request] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(request)
        return httpx2.Response(200, content=self.answer)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        transport = httpx2.MockTransport(self)
        monkeypatch.setattr("bellringer.client.Client", lambda url, **_: Client("http://x", transport=transport))


async def test_the_command_line_shows_what_goes_and_what_comes(
    api: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _create(api, schedule={"every": "12h"})
    patch = {"schedule": {"every": "8h"}}
    answer = (await api.patch(PATH, json=patch, params={"dry_run": "true", "days": "1"})).content
    server = Server(answer)
    server.install(monkeypatch)
    shown = CliRunner().invoke(cli, ["jobs", "update", "a", "--every", "8h", "--dry-run", "--days", "1"])
    assert shown.exit_code == 0, shown.output
    [asked] = server.asked
    assert (asked.method, asked.url.path) == ("PATCH", "/api/v1/jobs/a")
    assert dict(asked.url.params) == {"dry_run": "true", "days": "1"}
    assert json.loads(asked.content) == patch
    first, second, *fires, following = shown.output.splitlines()
    assert first == 'schedules: [{"every":"12h"}] → [{"every":"8h"}]'
    assert second.startswith("fires up to ")
    assert second.endswith(": 2 → 3, 1 unchanged")
    assert sorted(line[0] for line in fires) == ["+", "+", "-"]
    assert [line[2:] for line in fires] == sorted((line[2:] for line in fires), key=lambda text: text[4:])
    assert following.startswith("next: ")


@pytest.mark.parametrize(
    ("words", "patch"),
    [
        (["--cron", "0 4 * * *", "--tz", "Asia/Tokyo"], {"schedule": {"cron": "0 4 * * *", "tz": "Asia/Tokyo"}}),
        (["--tz", "Asia/Tokyo"], {"schedule": {"tz": "Asia/Tokyo"}}),
        (["--attempts", "5", "--tag", "x", "--tag", "y"], {"retry": {"attempts": 5}, "tags": ["x", "y"]}),
        (["--jitter", "none", "--timeout", "5m"], {"jitter": None, "timeout": "5m"}),
        (["--disable", "--priority", "0"], {"enabled": False, "priority": 0}),
        (["--misfire", "skip", "--overlap", "queue"], {"misfire": "skip", "overlap": "queue"}),
        (["--arg", "days=7"], {"kwargs": {"days": 7}}),
    ],
    ids=str,
)
async def test_the_options_stand_for_a_patch(
    api: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch, words: list[str], patch: dict[str, Any]
) -> None:
    await _create(api)
    server = Server((await api.get(PATH)).content)
    server.install(monkeypatch)
    done = CliRunner().invoke(cli, ["jobs", "update", "a", *words, "-o", "name"])
    assert (done.exit_code, done.output) == (0, "a\n")
    assert json.loads(server.asked[0].content) == patch


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([], "no options are given"),
        (["--every", "1h", "--cron", "* * * * *"], "--cron and --every are both given"),
        (["--priority", "3", "--days", "3"], "--days needs --dry-run"),
    ],
    ids=str,
)
def test_a_wrong_call_says_so(words: list[str], error: str) -> None:
    done = CliRunner().invoke(cli, ["jobs", "update", "a", *words])
    assert done.exit_code == 2
    assert error in done.output
