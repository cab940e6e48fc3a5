"""Times the requests of each console page against a database with many jobs and runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Any, Final

import httpx2
from uuid_utils.compat import uuid7

from bellringer.bench.api import HOST, document, served
from bellringer.clock import SystemClock
from bellringer.core.jobs import shard_of
from bellringer.store import forecast, partitions, workers
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.queries import load
from bellringer.store.workers import WorkerRegistration
from bellringer.wire.routes import PREFIX

_SQL: Final = load("console", "bench")
BAR_MS: Final = 300.0
MODELS: Final = 60  # jobs created through the API; all others are copies
BATCH: Final = 50_000
SLICE: Final = 250_000  # runs per statement
WAITING: Final = 1_000  # queued runs
DAYS: Final = 30
LONG: Final = 3600  # timeout in seconds of statements that fill the database
SHOWN: Final = 50  # jobs of a page

# The requests of each page.
PAGES: Final[Mapping[str, Sequence[str]]] = {
    "everywhere": ("whoami", "pulse", "jobs?q=job+777&limit=10"),
    "overview": ("overview?range=1h", "overview?range=6h", "overview?range=24h"),
    "jobs": (
        *(f"jobs?sort={order}&count=bounded&limit={SHOWN}" for order in ("name", "id")),
        f"jobs?q=777&sort=name&count=bounded&limit={SHOWN}",
        *(f"jobs?state={state}&count=bounded&limit=10" for state in ("late", "failing", "paused")),
        "jobs/strips?ids={ids}&limit=30",
        "pools?limit=200",
        "tasks?limit=200",
    ),
    "job": (
        "jobs/{job}",
        "jobs/strips?ids={job}&limit=60",
        *(
            f"jobs/{{job}}/{part}"
            for part in (
                "runs",
                "ledger",
                "skip",
                "days",
                "stats?range=1h",
                "stats?range=90d",
                "baseline",
                "revisions",
                "why",
            )
        ),
        "jobs/{job}/ledger?limit=200",
        "runs/counts?job={job}",
        "events?job={job}",
        "events?job={job}&limit=200",
        "backfills?job={job}&limit=10",
    ),
    "runs": (
        f"runs?limit={SHOWN}",
        "runs/counts",
        *(f"runs?state={state}&limit={SHOWN}" for state in ("queued", "running", "succeeded", "dead")),
        f"runs?task=bench.noop&pool=short&limit={SHOWN}",
        "runs/counts?task=bench.noop",
        "runs?job={job}&state=dead&limit=50",
        f"runs?q=shelf&limit={SHOWN}",
    ),
    "run": ("runs/{run}", "runs/{run}/logs?tail=200", "runs/{run}/explain"),
    "dead letters": (
        "dead-letters?group_by=fingerprint&limit=200",
        "dead-letters?fingerprint={group}&limit=50",
        "dead-letters/discarded?limit=50",
        "operations?limit=5",
    ),
    "workflows": (
        "workflows?count=bounded&limit=50",
        "workflows?state=dead,running&limit=50",
        "jobs?task=workflow&sort=name&limit=50",
    ),
    "calendar": (
        *(f"calendar?tz=Europe/Berlin&to={span}&limit=8" for span in ("24h", "7d", "42d")),
        "calendar?tz=Europe/Berlin&from={yesterday}&to=1d&limit=40",
        "calendar?tz=Europe/Berlin&from={week}&to=7d&limit=3",
        "calendar?tz=Europe/Berlin&from={month}&to=42d&cell=day&limit=3",
        "runs?job={job}&state=dead&from={week}&limit=200",
        "calendar?to=7d&pool=short",
        "calendar?to=7d&tag=none",
        "forecast?to=24h&bucket=1m&sub_minute=false",
        "forecast?to=1h&bucket=1m",
        "forecast?to=24h&bucket=1m",
        "forecast?to=7d&bucket=10m",
    ),
    "workers": ("pools?limit=200", "workers", "tasks?limit=200", "runs?state=running&limit=200"),
    "cluster": (
        "cluster",
        "cluster/moves?hours=6&limit=200",
        "cluster/database",
        "cluster/tz-moves?limit=20",
        "version",
    ),
    "tenants": ("tenants?limit=25", "tenants/default/usage", "limits"),
    "audit": ("audit?limit=50", "audit/seals?limit=1"),
    "settings": ("api-keys?limit=200", "webhook-endpoints?limit=200", "settings"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleFigures:
    """The figures; times are from the request to the complete response, of one client with an open connection."""

    jobs: int
    runs: int
    rounds: int
    filled_seconds: float
    bar_ms: float
    slowest_ms: float
    slowest: str
    over_bar: list[str]
    pages: dict[str, dict[str, dict[str, float]]]


async def console(dsn: str, jobs: int, runs: int, rounds: int) -> ConsoleFigures:
    """Fill a database, and make the requests of all pages, one after the other."""
    clock = SystemClock()
    store = await Store.open(
        dsn, size=2, settings={"statement_timeout": "0"}
    )  # statements that fill the database are slow
    try:
        with served(dsn) as (port, _):
            async with httpx2.AsyncClient(base_url=f"http://{HOST}:{port}{PREFIX}/", timeout=120) as client:
                started = clock.monotonic()
                await fill(store, client, jobs, runs)
                filled = clock.monotonic() - started
                named = {**await _named(client), **_days(await store.now())}
                seen = {page: await _timed(client, paths, named, rounds, clock) for page, paths in PAGES.items()}
    finally:
        await store.close()
    worst = {f"{page}: {path}": times["max_ms"] for page, told in seen.items() for path, times in told.items()}
    slowest = max(worst, key=lambda name: worst[name])
    return ConsoleFigures(
        jobs=jobs,
        runs=runs,
        rounds=rounds,
        filled_seconds=round(filled, 1),
        bar_ms=BAR_MS,
        slowest_ms=worst[slowest],
        slowest=slowest,
        over_bar=[name for name, worst_ms in worst.items() if worst_ms > BAR_MS],
        pages=seen,
    )


async def fill(store: Store, client: httpx2.AsyncClient, jobs: int, runs: int) -> None:
    """Create jobs, some paused or failing, and runs of 30 days: most succeeded, some dead, the newest queued."""
    catalog = Catalog(store)
    models = [document(f"model {n}", n) for n in range(MODELS)]
    _ok(await client.post("jobs/bulk", json={"items": models}), 201)
    await store.pool.execute(_SQL.age, DAYS)
    shards = await catalog.shard_count()
    for start in range(0, max(jobs - MODELS, 0), BATCH):
        ids = [uuid7() for _ in range(min(BATCH, jobs - MODELS - start))]
        await store.pool.execute(_SQL.jobs, ids, [shard_of(i, shards) for i in ids], start, timeout=LONG)
    await store.pool.execute(_SQL.states, timeout=LONG)
    await store.pool.execute(_SQL.members, timeout=LONG)
    await store.pool.execute(_SQL.cohorts, timeout=LONG)
    await store.pool.execute(_SQL.places, timeout=LONG)
    for shard in range(shards):  # as a scheduler does every minute
        await forecast.recount_oldest_shard(store, [shard])
    now = await store.now()
    await _runs(store, runs, now)
    task_ids = await catalog.task_ids(["bench.noop"])
    who = WorkerRegistration(
        name="w", host="h", pid=1, version="1", pools={"short": 20}, task_ids=list(task_ids.values())
    )
    await workers.join(store, who)
    await store.pool.execute("vacuum analyze", timeout=LONG)


async def _runs(store: Store, runs: int, now: datetime) -> None:
    first = now - timedelta(days=DAYS)
    await partitions.ensure_days(store, {(first + timedelta(days=n)).date() for n in range(DAYS + 1)})
    step = timedelta(days=DAYS) / max(runs, 1)
    waits_from = now - step * min(WAITING, runs)
    for start in range(0, runs, SLICE):
        stop = min(start + SLICE, runs)
        await store.pool.execute(_SQL.runs, start, stop, runs, now, timeout=LONG)
        part = (first + step * start, first + step * stop)
        await store.pool.execute(_SQL.attempts, *part, waits_from, timeout=LONG)
    await store.pool.execute(_SQL.letters, now, timeout=LONG)
    await store.pool.execute(_SQL.queue, waits_from, timeout=LONG)
    await store.pool.execute(_SQL.usage, now, runs, timeout=LONG)


async def _named(client: httpx2.AsyncClient) -> Mapping[str, str]:
    """Choose the objects of the requests: the first jobs, the job with most recent runs, one of its runs, a group."""
    found = _ok(await client.get("jobs", params={"sort": "name", "limit": SHOWN}), 200)["items"]
    runs = _ok(await client.get("runs", params={"limit": 200, "state": "succeeded"}), 200)["items"]
    job, _ = Counter(run["job_id"] for run in runs).most_common(1)[0]
    groups = _ok(await client.get("dead-letters", params={"group_by": "fingerprint"}), 200)["items"]
    return {
        "ids": ",".join(one["job_id"] for one in found),
        "job": job,
        "run": next(run["run_id"] for run in runs if run["job_id"] == job),
        "group": groups[0]["fingerprint"] if groups else "none",
    }


def _days(now: datetime) -> Mapping[str, str]:
    """The beginnings of a day, a week and a month of the calendar that have past entries."""
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    spans = {"yesterday": 1, "week": 6, "month": 28}
    return {name: f"{today - timedelta(days=days):%Y-%m-%dT%H:%M:%SZ}" for name, days in spans.items()}


async def _timed(
    client: httpx2.AsyncClient, paths: Sequence[str], named: Mapping[str, str], rounds: int, clock: SystemClock
) -> dict[str, dict[str, float]]:
    """Time each request `rounds` times, after one that is not counted."""
    seen: dict[str, list[float]] = {path: [] for path in paths}
    for count in range(rounds + 1):
        for path in paths:
            started = clock.monotonic()
            _ok(await client.get(path.format_map(named)), 200)
            if count:
                seen[path].append((clock.monotonic() - started) * 1000)
    return {path: {"p50_ms": round(median(times), 1), "max_ms": round(max(times), 1)} for path, times in seen.items()}


def _ok(answer: httpx2.Response, status: int) -> Any:
    if answer.status_code != status:
        raise AssertionError(f"{answer.request.url} answered {answer.status_code}: {answer.text[:300]}")
    return json.loads(answer.content)
