"""The forecast over HTTP and on the command line: exact where installations are small, counted ahead where not."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from click.testing import CliRunner

from bellringer.cli import cli
from bellringer.cli.forecast import bar, lines
from bellringer.client import Client
from bellringer.clock import SystemClock
from bellringer.durations import parse_duration
from bellringer.schedule import cron
from bellringer.schedule.instants import EPOCH
from bellringer.scheduler.service import Scheduler, SchedulerSettings
from bellringer.store import forecast
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.leases import PostgresLeases
from bellringer.wire.schedules import Bucket, Forecast

PATH = "/api/v1/forecast"
START = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=2)
DAY = {"from": START.isoformat().replace("+00:00", "Z"), "to": "24h"}


async def _create(api: httpx2.AsyncClient, name: str, **fields: Any) -> None:
    response = await api.post("/api/v1/jobs", json={"name": name, "task": "demo", **fields})
    assert response.status_code == 202, response.text


async def _get(api: httpx2.AsyncClient, **query: str) -> dict[str, Any]:
    response = await api.get(PATH, params=query)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def test_fires_are_reported_by_bucket_and_pool(api: httpx2.AsyncClient) -> None:
    await _create(api, "a", schedule={"cron": "30 2 * * *"})
    await _create(api, "b", schedule={"cron": "30 2 * * *"}, pool="long")
    await _create(api, "c", schedules=[{"cron": "30 2 * * *"}, {"cron": "0 5,6 * * *"}])
    found = await _get(api, **DAY)
    assert (found["from"], found["bucket"], found["pools"]) == (DAY["from"], "1m", ["long", "short"])
    assert [(b["at"][11:16], b["fires"]) for b in found["buckets"]] == [
        ("02:30", {"long": 1, "short": 2}),
        ("05:00", {"short": 1}),
        ("06:00", {"short": 1}),
    ]
    assert (found["total"], found["left_out"], found["timers_until"], found["proposals"]) == (5, 0, None, [])
    assert (found["peak"]["at"][11:16], found["peak"]["fires"], found["peak"]["pool"]) == ("02:30", 3, "short")


async def test_the_next_day_is_reported_where_nothing_is_asked_for(api: httpx2.AsyncClient) -> None:
    assert (await _get(api))["peak"] is None
    await _create(api, "a", schedule={"every": "1h"})
    found = await _get(api)
    assert (found["total"], len(found["buckets"])) == (24, 24)
    start, end = (datetime.fromisoformat(found[key]) for key in ("from", "to"))
    assert end - start == timedelta(days=1)
    assert abs(start - datetime.now(UTC)) < timedelta(minutes=1)


async def test_a_paused_a_disabled_and_a_deleted_job_fire_nothing(api: httpx2.AsyncClient) -> None:
    for name in "abc":
        await _create(api, name, schedule={"every": "1h"}, enabled=name != "c")
    assert (await _get(api, **DAY))["total"] == 48
    await api.post("/api/v1/jobs/a/pause", json={})
    assert (await _get(api, **DAY))["total"] == 24
    await api.delete("/api/v1/jobs/b")
    assert (await _get(api, **DAY))["total"] == 0
    await api.post("/api/v1/jobs/a/resume", json={})
    assert (await _get(api, **DAY))["total"] == 24


async def test_one_shots_delays_and_delayed_runs_count_once(api: httpx2.AsyncClient) -> None:
    when = (START + timedelta(hours=3, minutes=7, seconds=30)).isoformat()
    await _create(api, "once", schedule={"at": when}, pool="long")
    await _create(api, "again", schedule={"delay": "1h"})
    assert (await api.post("/api/v1/jobs/execute", json={"task": "demo", "at": when})).status_code == 202
    found = await _get(api, **DAY)
    assert [(b["at"][11:16], b["fires"]) for b in found["buckets"]] == [("03:07", {"long": 1, "short": 1})]
    assert (await _get(api))["total"] == 1, "of a delay the next is known"


async def test_timers_beyond_the_bound_are_reported(api: httpx2.AsyncClient, store: Store, catalog: Catalog) -> None:
    tasks = await catalog.task_ids(["demo"])
    await store.pool.execute(
        """insert into timers (job_id, scheduled_for, slot, due_at, shard, pool_id, priority, tenant_id, task_id, cause)
        select gen_random_uuid(), t, 0, t, 7, 1, 5, 1, $1, 'send'
        from generate_series(1, 2500) n cross join lateral (select $2::timestamptz + n * interval '1 s' as t) x""",
        tasks["demo"],
        START,
    )
    found = await _get(api, **DAY)
    assert found["total"] == forecast.MAX_TIMERS_PER_SHARD - 1
    assert found["timers_until"] == (START + timedelta(seconds=forecast.MAX_TIMERS_PER_SHARD)).isoformat().replace(
        "+00:00", "Z"
    )


async def test_others_jobs_are_not_reported(api: httpx2.AsyncClient, store: Store) -> None:
    await _create(api, "a", schedule={"every": "1h"})
    await store.pool.execute("insert into tenants (name) values ('other')")
    await store.pool.execute("update members set tenant_id = 2")
    assert (await _get(api, **DAY))["total"] == 0


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"from": "soon"}, "datetime_invalid"),
        ({"from": "2030-01-01T00:00:00"}, "offset_required"),
        ({"from": "2900-01-01T00:00:00Z"}, "limit"),
        ({"to": "yesterday"}, "duration_invalid"),
        ({"to": "2020-01-01T00:00:00Z"}, "limit"),
        ({"to": "0s"}, "limit"),
        ({"to": "9000d"}, "limit"),
        ({"bucket": "1s"}, "limit"),
        ({"bucket": "x"}, "duration_invalid"),
        ({"until": "1d"}, "unknown_parameter"),
    ],
    ids=str,
)
async def test_a_wrong_window_is_refused(api: httpx2.AsyncClient, query: dict[str, str], code: str) -> None:
    response = await api.get(PATH, params=query)
    assert (response.status_code, response.json()["code"]) == (422, code)


# Counts


async def _recount(store: Store) -> list[int | None]:
    return [await forecast.recount_oldest_shard(store, range(64)) for _ in range(65)]


async def test_shards_are_counted_one_at_a_time_and_only_what_changed_is_written(
    api: httpx2.AsyncClient, store: Store
) -> None:
    for name in "abcde":
        await _create(api, name, schedule={"cron": "30 2 * * *"}, jitter="10m" if name == "a" else None)
    assert await forecast.recount_oldest_shard(store, []) is None
    changed = await _recount(store)
    assert changed.pop() is None, "all are fresh"
    shards = await store.pool.fetchval("select count(*) from (select distinct shard from members) x")
    assert sum(n or 0 for n in changed) == shards
    sizes = "select sum(members), sum(jittered), max(jitter_ms) > 0 from cohort_sizes"
    assert tuple(await store.pool.fetchrow(sizes) or ()) == (5, 1, True)

    rows = "select shard, schedule_id, xmin from cohort_sizes order by 1, 2"
    before = await store.pool.fetch(rows)
    await store.pool.execute("update recounts set counted_at = counted_at - interval '61 s'")
    assert await _recount(store) == [0] * 64 + [None]
    assert await store.pool.fetch(rows) == before, "nothing was written"

    shard = await store.pool.fetchval("select shard from jobs where name = 'b'")
    await api.delete("/api/v1/jobs/b")
    assert await store.pool.fetchval("select bellringer.recount($1::smallint)", shard) == 1
    assert await store.pool.fetchval("select sum(members) from cohort_sizes") == 4


async def test_a_large_installation_is_reported_as_it_was_counted(
    api: httpx2.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _create(api, "a", schedule={"every": "1h"})
    exact = await _get(api, **DAY)
    monkeypatch.setattr(forecast, "SMALL_TABLE_BYTES", 0)
    assert (await _get(api, **DAY))["total"] == 24, "what was never counted is counted now"
    await _recount(store)
    await _create(api, "b", schedule={"every": "1h"})
    kept = await _get(api, **DAY)
    assert kept["total"] == 24
    assert kept["buckets"] == exact["buckets"]
    assert exact["counted_at"] < kept["counted_at"] < datetime.now(UTC).isoformat()
    monkeypatch.undo()
    assert (await _get(api, **DAY))["total"] == 48


async def test_a_large_installation_that_was_never_counted_is_reported_by_its_first_jobs(
    api: httpx2.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abcde":
        await _create(api, name, schedule={"every": "1h"}, jitter="10m" if name == "b" else None)
    assert (await api.post("/api/v1/jobs/a/pause")).status_code == 200
    exact = await _get(api, **DAY)
    monkeypatch.setattr(forecast, "SMALL_TABLE_BYTES", 0)
    assert {**await _get(api, **DAY), "counted_at": ""} == {**exact, "counted_at": ""}
    monkeypatch.setattr(forecast, "MAX_FIRST_JOBS", 3)
    some = await _get(api, **DAY)
    assert (some["total"], some["left_out"]) == (48, 2), "of the first three jobs one is paused"
    monkeypatch.setattr(forecast, "MAX_LEFT_OUT_COUNTED", 1)
    assert (await _get(api, **DAY))["left_out"] == 1, "and that is not counted to the end either"


async def test_a_scheduler_counts_the_shards_that_it_holds(api: httpx2.AsyncClient, store: Store) -> None:
    await _create(api, "a", schedule={"every": "1h"})
    stop = asyncio.Event()
    node = asyncio.create_task(Scheduler(store, PostgresLeases(store), SystemClock(), SchedulerSettings()).run(stop))
    async with asyncio.timeout(30):
        while not await store.pool.fetchval("select exists (select 1 from recounts)"):
            assert not node.done()
            await asyncio.sleep(0.05)
    stop.set()
    await node


FILL = """
insert into members (shard, schedule_id, job_id, tenant_id, task_id, revision, pool_id, priority, misfire, overlap,
                     active_since)
select n % 64, ($1::integer[])[1 + n / 64 % cardinality($1)], gen_random_uuid(), 1, 1, 1, 1 + n % 2, 5, 0, 1, now()
from generate_series(1, $2) n
"""


async def test_a_forecast_of_many_jobs_takes_the_time_of_their_schedules(
    api: httpx2.AsyncClient, store: Store, catalog: Catalog
) -> None:
    """The bound is generous: it takes a few hundredths of a second, and one evaluation a job would take many."""
    many = 200_000
    schedules = await catalog.schedule_ids(cron(f"{n % 60} {n % 24} * * *") for n in range(120))
    await store.pool.execute(FILL, list(schedules.values()), many)
    await _recount(store)
    seconds = []
    for _ in range(3):
        started = time.monotonic()
        found = await _get(api, **DAY)
        seconds.append(time.monotonic() - started)
    assert (found["total"], found["left_out"]) == (many, 0)
    assert min(seconds) < 0.5


# Herds, and the command line


async def _herd(store: Store, api: httpx2.AsyncClient, jobs: int) -> None:
    """Many members beside the one of a real job."""
    await _create(api, "first", schedule={"cron": "0 2 * * *"})
    await store.pool.executemany(
        """insert into members (shard, schedule_id, job_id, tenant_id, task_id, revision, pool_id, priority, misfire,
             overlap, active_since)
           select shard, schedule_id, $1, tenant_id, task_id, revision, pool_id, priority, misfire,
             overlap, active_since from members limit 1""",
        [(uuid4(),) for _ in range(jobs - 1)],
    )


async def test_a_herd_is_proposed_to_be_spread(api: httpx2.AsyncClient, store: Store) -> None:
    await _herd(store, api, 600)
    await _create(api, "other", schedule={"every": "1m"})
    found = await _get(api, **DAY)
    [proposal] = found["proposals"]
    assert proposal["schedule"] == {"cron": "0 2 * * *"}
    assert proposal["suggestion"] == {"schedule": {"cron": "H 2 * * *"}}
    assert (proposal["jobs"], proposal["fires"], proposal["before"]) == (600, 600, found["peak"]["fires"])
    assert proposal["peak"] < 30


async def test_the_command_line_draws_the_forecast(
    api: httpx2.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _herd(store, api, 600)
    await _create(api, "other", schedule={"every": "15m"})
    answer = (await api.get(PATH, params=DAY)).content
    transport = httpx2.MockTransport(lambda request: httpx2.Response(200, content=answer))
    monkeypatch.setattr("bellringer.client.Client", lambda url, **_: Client("http://x", transport=transport))
    drawn = CliRunner().invoke(cli, ["forecast", "--to", "24h"])
    assert drawn.exit_code == 0, drawn.output
    told = drawn.output.splitlines()
    assert told[0] == f"{START:%a} 00:00    4  ▎"
    assert told[2] == f"{START:%a} 02:00  604  {'█' * 40}  601 at 02:00"
    assert told[24].startswith("696 fires from ")
    assert told[25].startswith(f"peak: 601 in 1m at {START:%Y-%m-%d} 02:00:00Z, mostly in pool short")
    assert told[27] == f"  {START:%a} 02:00  600 jobs  At 02:00 every day (UTC)   " + '{"cron":"0 2 * * *"}'
    assert told[28].startswith('    try {"schedule":{"cron":"H 2 * * *"}}: 601 → ')
    document = json.loads(CliRunner().invoke(cli, ["forecast", "-o", "json"]).output)
    assert document["total"] == 696


@pytest.mark.parametrize(
    ("span", "bucket", "row"), [("1h", "10m", "10m"), ("1h", "1m", "5m"), ("1d", "20m", "1h"), ("1d", "7m", "35m")]
)
def test_every_row_holds_as_many_buckets(span: str, bucket: str, row: str) -> None:
    length, end = parse_duration(bucket), START + parse_duration(span)
    first = START - (START - EPOCH) % length
    buckets = [Bucket(at=first + n * length, fires={"short": 1}) for n in range((end - first) // length)]
    found = Forecast(
        start=START,
        end=end,
        bucket=bucket,
        pools=["short"],
        buckets=buckets,
        total=len(buckets),
        peak=None,
        counted_at=START,
        left_out=0,
        timers_until=None,
        proposals=[],
    )
    drawn = lines(found)
    assert {after.at - before.at for before, after in pairwise(drawn)} == {parse_duration(row)}
    whole = parse_duration(row) // length
    assert {line.fires for line in drawn[1:-1]} == {whole}


def test_a_bar_shows_what_is_there() -> None:
    assert bar(1.0) == "█" * 40
    assert bar(0.5) == "█" * 20
    assert bar(1 / 320) == bar(0.00001) == "▏"
    assert bar(0.5 + 3 / 320) == "█" * 20 + "▍"


# Previews


async def _preview(api: httpx2.AsyncClient, **body: Any) -> dict[str, Any]:
    response = await api.post("/api/v1/schedules/preview", json=body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def test_a_preview_shows_how_often_it_fires_and_what_may_surprise(api: httpx2.AsyncClient) -> None:
    schedule = {"cron": "30 2 * * *", "tz": "Europe/Berlin"}
    found = await _preview(api, schedule=schedule, n=2, **{"from": "2026-03-28T12:00:00Z"})
    assert [(f["at"], f["local"], f["flags"]) for f in found["fires"]] == [
        ("2026-03-29T01:00:00Z", "2026-03-29T03:00:00+02:00", ["dst_gap"]),
        ("2026-03-30T00:30:00Z", "2026-03-30T02:30:00+02:00", []),
    ]
    assert found["fires_per_day"] == 1
    assert [warning["code"] for warning in found["warnings"]] == ["dst_gap"]
    plain = await _preview(api, schedule={"every": "6h"})
    assert (plain["fires_per_day"], plain["warnings"]) == (4, [])
    assert (await _preview(api, schedule={"delay": "1h"}))["fires_per_day"] is None


async def test_a_preview_for_a_job_has_the_times_of_that_job(api: httpx2.AsyncClient) -> None:
    schedule = {"cron": "H H * * *"}
    unknown = await _preview(api, schedule=schedule, n=1)
    assert [warning["code"] for warning in unknown["warnings"]] == ["hash_unseeded"]
    one, again, other = [await _preview(api, schedule=schedule, n=1, job=job) for job in ("a", "a", "b")]
    assert one["fires"] == again["fires"] != other["fires"]
    assert one["warnings"] == []
    refused = await api.post("/api/v1/schedules/preview", json={"schedule": schedule, "job": "\n"})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/job")
