"""The history of jobs: strips, the ledger, a year by days, and how attempts went."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest
from tests.integration.api.conftest import Work

from bellringer.api.endpoints.job_history import MAX_STRIPS, STATS_RANGES
from bellringer.core.runs import BACKFILL_SLOT_BASE, Ending, Outcome
from bellringer.engine.monitor import BASELINE_ATTEMPTS
from bellringer.store.connection_pool import Store
from bellringer.store.job_history import MAX_ATTEMPTS_PER_SPAN

API = "/api/v1"
OK = Ending(outcome=Outcome.OK)
FAILED = Ending(outcome=Outcome.FAILED, error={"type": "E", "message": "m"}, final="no")
RUN = """
insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, revision, shard, pool_id, priority,
                  cause, initial_state)
values ($1, $2, $3, $2, 1, 1, 1, 1, 0, 1, 5,
        case $3::bigint when 0 then 'schedule'::cause else 'backfill'::cause end, 'queued')
"""
TRY = """
insert into attempts (job_id, scheduled_for, slot, started_at, finished_at, tenant_id, attempt, outcome, ends_as, error)
values ($1, $2, $9, $2::timestamptz + $3::interval, $2::timestamptz + $3::interval + $4::interval, 1, $5, $6, $7, $8)
"""
GAP = """
insert into gaps (job_id, from_at, to_at, schedule_id, count, reason, into_at, recorded_at)
values ($1, $2, $3, $4, $5, $6, $7, $3)
"""


async def create(api: httpx2.AsyncClient, name: str = "a", **fields: Any) -> UUID:
    made = await api.post(f"{API}/jobs", json={"name": name, "task": "demo", **fields})
    assert made.is_success, made.text
    return UUID(made.json()["job_id"])


class Past:
    """Writes what a scheduler and a worker would have written."""

    def __init__(self, store: Store, job_id: UUID, noon: datetime) -> None:
        self._store = store
        self.job_id = job_id
        self.noon = noon

    def at(self, minutes: float) -> datetime:
        return self.noon + timedelta(minutes=minutes)

    async def run(
        self,
        minutes: float,
        ends_as: str | None = "succeeded",
        *,
        late: float = 0,
        took: float = 1,
        why: str = "",
        slot: int = 0,
    ) -> None:
        at = self.at(minutes)
        await self._store.pool.execute("select bellringer.ensure_days(array[$1::date])", at.date())
        await self._store.pool.execute(RUN, self.job_id, at, slot)
        if ends_as is not None:
            tried = ends_as in {"succeeded", "dead"}
            outcome = {"succeeded": "ok", "dead": "failed"}.get(ends_as)
            lengths = (timedelta(seconds=late), timedelta(seconds=took))
            error = f'{{"reason": "{why}"}}' if why else None
            await self._store.pool.execute(TRY, self.job_id, at, *lengths, int(tried), outcome, ends_as, error, slot)

    async def retry(self, minutes: float, *, attempt: int, took: float) -> None:
        lengths = (timedelta(minutes=1), timedelta(seconds=took))
        values = (self.job_id, self.at(minutes), *lengths, attempt, "ok", "succeeded", None, 0)
        await self._store.pool.execute(TRY, *values)

    async def gap(
        self, start: float, end: float, count: int | None, reason: str, into: float | None = None, schedule: int = 0
    ) -> None:
        into_at = None if into is None else self.at(into)
        await self._store.pool.execute(GAP, self.job_id, self.at(start), self.at(end), schedule, count, reason, into_at)


@pytest.fixture
async def past(api: httpx2.AsyncClient, store: Store) -> Past:
    job_id = await create(api, schedule={"cron": "0 12 * * *"})
    today = (await store.now()).date()
    return Past(store, job_id, datetime(today.year, today.month, today.day, 12, tzinfo=UTC) - timedelta(days=2))


async def test_strips_hold_the_newest_runs_and_the_last_success(api: httpx2.AsyncClient, past: Past) -> None:
    for minute in range(5):
        await past.run(minute, "succeeded" if minute < 3 else "dead", took=minute)
    other = await create(api, "b")
    ids = f"{past.job_id},{uuid4()},{other}"
    items = (await api.get(f"{API}/jobs/strips", params={"ids": ids, "limit": 3})).json()["items"]
    assert [item["job_id"] for item in items] == [str(past.job_id), str(other)]
    assert [(run["state"], run["seconds"]) for run in items[0]["runs"]] == [("dead", 4), ("dead", 3), ("succeeded", 2)]
    assert datetime.fromisoformat(items[0]["last_success"]) == past.at(2)
    assert items[1] == {"job_id": str(other), "runs": [], "last_success": None}


async def test_strips_report_what_is_under_way(api: httpx2.AsyncClient, work: Work) -> None:
    job_id = await create(api)
    await api.post(f"{API}/jobs/a/run", json={})
    [strip] = (await api.get(f"{API}/jobs/strips", params={"ids": str(job_id)})).json()["items"]
    assert [(run["state"], run["seconds"]) for run in strip["runs"]] == [("queued", None)]
    assert await work(None) == 1
    [strip] = (await api.get(f"{API}/jobs/strips", params={"ids": str(job_id)})).json()["items"]
    assert strip["runs"][0]["state"] == "running"


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"ids": "a"}, "id_invalid"),
        ({"ids": ",".join(str(uuid4()) for _ in range(MAX_STRIPS + 1))}, "limit"),
        ({"limit": "61"}, "limit_range"),
        ({"limit": "0"}, "limit_range"),
        ({"limit": "x"}, "limit_range"),
        ({"id": "a"}, "unknown_parameter"),
    ],
)
async def test_what_strips_refuse(api: httpx2.AsyncClient, query: dict[str, str], code: str) -> None:
    refused = await api.get(f"{API}/jobs/strips", params=query)
    assert (refused.status_code, refused.json()["code"]) == (422, code)


async def test_no_ids_are_no_strips(api: httpx2.AsyncClient) -> None:
    assert (await api.get(f"{API}/jobs/strips")).json() == {"items": []}


async def fill(past: Past, api: httpx2.AsyncClient) -> None:
    await past.run(0)
    await past.run(1, late=6)
    await past.run(2, "dead")
    await past.run(3, "cancelled")
    await past.run(4, "skipped", why="its predecessor was unfinished")
    await past.run(5, "skipped", why="coalesced by freeze f")
    await past.run(6, None)
    await past.gap(10, 20, 10, "misfire")
    await past.gap(10, 20, 2, "misfire", schedule=1)
    await past.gap(30, 40, 10, "misfire", into=40)
    await past.run(40)
    await past.gap(50, 60, None, "paused")
    await past.run(50)  # two things at one instant
    coming = (await api.get(f"{API}/jobs/{past.job_id}")).json()["next_at"]
    made = await api.post(f"{API}/jobs/{past.job_id}/skip", json={"at": coming, "reason": "not then"})
    assert made.is_success, made.text


EXPECTED = [
    ("skip", "planned"),
    ("gap", "paused"),
    ("run", "ran"),
    ("run", "ran"),
    ("gap", "coalesced"),
    ("gap", "missed"),
    ("gap", "missed"),
    ("run", "pending"),
    ("run", "coalesced"),
    ("run", "skipped"),
    ("run", "cancelled"),
    ("run", "failed"),
    ("run", "late"),
    ("run", "ran"),
]


async def test_the_ledger_has_a_word_for_every_occurrence(api: httpx2.AsyncClient, past: Past) -> None:
    await fill(past, api)
    items = (await api.get(f"{API}/jobs/a/ledger")).json()["items"]
    assert [(item["kind"], item["outcome"]) for item in items] == EXPECTED
    assert [item["at"] for item in items] == sorted((item["at"] for item in items), reverse=True)
    by = {item["outcome"]: item for item in items}
    assert by["planned"]["reason"] == "not then"
    assert (by["paused"]["from"], by["paused"]["count"]) == (by["paused"]["at"], None)
    assert datetime.fromisoformat(items[4]["into"]) == past.at(40)
    assert (by["late"]["lateness_ms"], by["late"]["seconds"], by["late"]["cause"]) == (6000, 1, "schedule")
    assert by["skipped"]["reason"] == "its predecessor was unfinished"
    assert by["failed"]["run_id"].startswith("run_")


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_the_ledger_goes_on_page_by_page(api: httpx2.AsyncClient, past: Past, limit: int) -> None:
    await fill(past, api)
    found: list[tuple[str, str]] = []
    cursor: str | None = ""
    while cursor is not None:
        query = {"limit": str(limit), **({"cursor": cursor} if cursor else {})}
        page = (await api.get(f"{API}/jobs/a/ledger", params=query)).json()
        found += [(item["kind"], item["outcome"]) for item in page["items"]]
        cursor = page["next_cursor"]
        assert len(found) <= len(EXPECTED)
    assert found == EXPECTED


async def test_the_ledger_of_a_time(api: httpx2.AsyncClient, past: Past) -> None:
    await fill(past, api)
    bounds = {"from": past.at(3).isoformat(), "to": past.at(30).isoformat()}
    items = (await api.get(f"{API}/jobs/a/ledger", params=bounds)).json()["items"]
    assert [(item["kind"], item["outcome"]) for item in items] == EXPECTED[5:11]
    refused = await api.get(f"{API}/jobs/a/ledger", params={"from": "soon"})
    assert refused.status_code == 422


async def test_what_may_be_late_longer_is_not_late(api: httpx2.AsyncClient, past: Past) -> None:
    await api.patch(f"{API}/jobs/a", json={"late_after": "10s"})
    await past.run(0, late=9)
    await past.run(1, late=11)
    items = (await api.get(f"{API}/jobs/a/ledger")).json()["items"]
    assert [item["outcome"] for item in items] == ["late", "ran"]


async def test_the_days_of_a_year(api: httpx2.AsyncClient, past: Past, store: Store) -> None:
    await past.run(0)
    await past.run(1, "dead")
    await past.run(24 * 60)
    await past.gap(10, 20, 7, "misfire")
    found = (await api.get(f"{API}/jobs/a/days", params={"year": past.noon.year})).json()
    days = {day["day"]: day for day in found["days"]}
    first = days[past.noon.date().isoformat()]
    assert (first["runs"], first["failed"], first["gaps"], first["more"]) == (2, 1, 7, False)
    assert found["coming_known"] is True
    now = await store.now()
    coming = sum(day["coming"] for day in days.values())
    assert coming in {(date(now.year, 12, 31) - now.date()).days + more for more in (0, 1)}
    assert date.fromisoformat(found["kept_from"]) <= now.date()


async def test_a_coming_year_is_counted_and_not_enumerated(api: httpx2.AsyncClient, store: Store) -> None:
    year = (await store.now()).year + 1
    await create(api, schedule={"every": "1s"})
    found = (await api.get(f"{API}/jobs/a/days", params={"year": year})).json()
    assert len(found["days"]) in {365, 366}
    assert {day["coming"] for day in found["days"]} == {86_400}


async def test_what_two_schedules_name_comes_once(api: httpx2.AsyncClient, store: Store) -> None:
    year = (await store.now()).year + 1
    await create(api, schedules=[{"cron": "0 12 * * *"}, {"cron": "0 */12 * * *"}])
    found = (await api.get(f"{API}/jobs/a/days", params={"year": year})).json()
    assert {day["coming"] for day in found["days"]} == {2}


async def test_what_is_to_come_of_a_pause_a_delay_and_an_end(api: httpx2.AsyncClient, store: Store) -> None:
    year = (await store.now()).year + 1
    await create(api, "paused", schedule={"every": "1h"})
    await api.post(f"{API}/jobs/paused/pause", json={})
    await create(api, "delay", schedule={"delay": "1h"})
    await create(api, "ends", schedule={"cron": "0 0 * * *"}, ends_at=f"{year}-01-02T00:00:00Z")
    told = {
        name: (await api.get(f"{API}/jobs/{name}/days", params={"year": year})).json()
        for name in ("paused", "delay", "ends")
    }
    assert [told[name]["coming_known"] for name in told] == [True, False, True]
    assert told["paused"]["days"] == told["delay"]["days"] == []
    assert [day["day"] for day in told["ends"]["days"]] == [f"{year}-01-01", f"{year}-01-02"]


@pytest.mark.parametrize("year", ["x", "1969", "9999", "-1"])
async def test_a_year_that_cannot_be_is_refused(api: httpx2.AsyncClient, year: str) -> None:
    await create(api)
    refused = await api.get(f"{API}/jobs/a/days", params={"year": year})
    assert (refused.status_code, refused.json()["code"]) == (422, "limit_range")


async def test_how_the_attempts_went(api: httpx2.AsyncClient, past: Past) -> None:
    for minute in range(100):
        await past.run(minute, "dead" if minute >= 90 else "succeeded", late=minute / 10, took=minute)
    await past.run(24 * 60, took=7)
    await past.run(24 * 60 + 1, "skipped")  # no try
    found = (await api.get(f"{API}/jobs/a/stats")).json()
    assert (found["attempts"], found["succeeded"], found["failed"]) == (101, 91, 10)
    assert found["success_rate"] == round(91 / 101, 4)
    assert found["run"] == {"p50": 49, "p95": 94, "p99": 98}
    assert found["wait"]["p50"] == pytest.approx(4.9, abs=0.11)
    assert [(day["attempts"], day["failed"]) for day in found["days"]] == [(100, 10), (1, 0)]
    assert datetime.fromisoformat(found["since"]) == past.noon


async def test_a_job_without_attempts_has_no_figures(api: httpx2.AsyncClient) -> None:
    await create(api)
    found = (await api.get(f"{API}/jobs/a/stats")).json()
    assert found.pop("missed")["rate"] is None
    series = found.pop("series")
    assert (series["range"], series["step"], len(series["buckets"])) == ("7d", 10_800, 56)
    assert all(
        (one["attempts"], one["duration"], one["lateness"], one["more"]) == (0, None, None, False)
        for one in series["buckets"]
    )
    assert found == {
        "attempts": 0,
        "since": None,
        "succeeded": 0,
        "failed": 0,
        "success_rate": None,
        "wait": None,
        "run": None,
        "days": [],
        "baseline": {
            "runs": 0,
            "median": None,
            "longest": None,
            "slow_after": None,
            "interval": None,
            "outgrown": False,
        },
    }


async def test_the_series_has_percentiles_retries_and_failures_by_time(api: httpx2.AsyncClient, past: Past) -> None:
    for minute in range(100):
        await past.run(minute, "dead" if minute >= 90 else "succeeded", late=minute / 10, took=minute)
    await past.retry(95, attempt=2, took=200)
    await past.run(24 * 60, took=7, slot=BACKFILL_SLOT_BASE + 1, late=9_000)  # lateness has no meaning for a backfill
    found = (await api.get(f"{API}/jobs/a/stats", params={"range": "30d"})).json()
    filled = [one for one in found["series"]["buckets"] if one["attempts"]]
    assert [(one["attempts"], one["retries"], one["failed"], one["more"]) for one in filled] == [
        (101, 1, 10, False),
        (1, 0, 0, False),
    ]
    assert [datetime.fromisoformat(one["at"]) for one in filled] == [past.noon, past.noon + timedelta(days=1)]
    assert filled[0]["duration"] == {"p50": 50, "p95": 95, "p99": 99}
    assert filled[0]["lateness"] == {"p50": 4.9, "p99": 9.8}
    assert filled[1] == {**filled[1], "duration": {"p50": 7, "p95": 7, "p99": 7}, "lateness": None}
    assert found["baseline"] == (await api.get(f"{API}/jobs/a/baseline")).json()
    assert found["baseline"]["runs"] == BASELINE_ATTEMPTS


async def test_a_full_bucket_of_the_series_says_that_there_is_more(api: httpx2.AsyncClient, past: Past) -> None:
    for second in range(MAX_ATTEMPTS_PER_SPAN + 20):
        await past.run(second / 60, took=second)
    [bucket] = [one for one in (await api.get(f"{API}/jobs/a/stats")).json()["series"]["buckets"] if one["attempts"]]
    assert (bucket["attempts"], bucket["more"]) == (MAX_ATTEMPTS_PER_SPAN, True)
    assert bucket["duration"]["p99"] == MAX_ATTEMPTS_PER_SPAN + 20 - 3  # of the newest ones


@pytest.mark.parametrize("length", STATS_RANGES)
async def test_the_series_covers_its_range_until_now(api: httpx2.AsyncClient, store: Store, length: str) -> None:
    await create(api)
    series = (await api.get(f"{API}/jobs/a/stats", params={"range": length})).json()["series"]
    times = [datetime.fromisoformat(one["at"]) for one in series["buckets"]]
    step, now = timedelta(seconds=series["step"]), await store.now()
    assert 0 < len(times) <= 90
    assert all(after - before == step for before, after in pairwise(times))
    assert times[-1] <= now < times[-1] + 2 * step
    assert times[0] - step <= now - STATS_RANGES[length][0] <= times[0]


async def test_a_range_of_statistics_that_is_not_offered_is_refused(api: httpx2.AsyncClient) -> None:
    await create(api)
    refused = await api.get(f"{API}/jobs/a/stats", params={"range": "2h"})
    assert (refused.status_code, refused.json()["code"]) == (422, "choice")


async def test_a_job_that_is_not_there_has_no_history(api: httpx2.AsyncClient) -> None:
    for part in ("ledger", "days", "stats"):
        for name in ("nowhere", str(uuid4())):
            assert (await api.get(f"{API}/jobs/{name}/{part}")).status_code == 404
