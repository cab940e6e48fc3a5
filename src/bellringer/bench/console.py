"""What the console asks for, page by page, of a database with many jobs and runs: how long each answer takes."""

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
from bellringer.jobs import shard_of
from bellringer.store import forecast, history, workers
from bellringer.store.names import Names
from bellringer.store.pool import Store
from bellringer.store.queries import load
from bellringer.store.workers import Introduction
from bellringer.wire.asks import PREFIX

_SQL: Final = load("console", "bellringer.bench")
BAR_MS: Final = 300.0
MODELS: Final = 60  # jobs that are made through the API; all others are copies of them
BATCH: Final = 50_000
SLICE: Final = 250_000  # runs that are written at once
WAITING: Final = 1_000  # of the runs
DAYS: Final = 30
LONG: Final = 3600  # seconds that one statement of the filling may take
SHOWN: Final = 50  # jobs of a page

# The requests of each page, as its modules make them.
PAGES: Final[Mapping[str, Sequence[str]]] = {
    "everywhere": ("whoami", "pulse", "jobs?q=job+777&limit=10"),
    "overview": ("overview?range=1h", "overview?range=6h", "overview?range=24h"),
    "jobs": (
        *(f"jobs?sort={order}&count=bounded&limit={SHOWN}" for order in ("name", "id")),
        f"jobs?q=777&sort=name&count=bounded&limit={SHOWN}",
        *(f"jobs?state={state}&count=bounded&limit=1" for state in ("late", "failing", "paused")),
        "jobs/strips?ids={ids}&limit=30",
        "pools?limit=200",
        "tasks?limit=200",
    ),
    "job": (
        "jobs/{job}",
        "jobs/strips?ids={job}&limit=60",
        *(
            f"jobs/{{job}}/{part}"
            for part in ("runs", "ledger", "skip", "days", "stats", "baseline", "revisions", "why")
        ),
        "events?job={job}",
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
        "operations?limit=5",
    ),
    "calendar": ("forecast?to=1h&bucket=1m", "forecast?to=24h&bucket=1m", "forecast?to=7d&bucket=10m"),
    "workers": ("pools?limit=200", "workers"),
    "cluster": ("cluster", "cluster/tz-moves?limit=20", "version"),
    "tenants": ("tenants?limit=25", "tenants/default/usage", "limits"),
    "audit": ("audit?limit=50", "audit/seals?limit=1"),
    "settings": ("api-keys?limit=200", "webhook-endpoints?limit=200", "settings"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Console:
    """What was seen; times are of one reader, over a connection that is open, from the request to the whole answer."""

    jobs: int
    runs: int
    rounds: int
    filled_seconds: float
    bar_ms: float
    slowest_ms: float
    slowest: str
    over_bar: list[str]
    pages: dict[str, dict[str, dict[str, float]]]


async def console(dsn: str, jobs: int, runs: int, rounds: int) -> Console:
    """Fill a database, and ask for all that the pages ask for, one after the other."""
    clock = SystemClock()
    store = await Store.open(dsn, size=2, settings={"statement_timeout": "0"})  # filling takes its time
    try:
        with served(dsn) as (port, _):
            async with httpx2.AsyncClient(base_url=f"http://{HOST}:{port}{PREFIX}/", timeout=120) as client:
                started = clock.monotonic()
                await fill(store, client, jobs, runs)
                filled = clock.monotonic() - started
                named = await _named(client)
                seen = {page: await _timed(client, paths, named, rounds, clock) for page, paths in PAGES.items()}
    finally:
        await store.close()
    worst = {f"{page}: {path}": times["max_ms"] for page, told in seen.items() for path, times in told.items()}
    slowest = max(worst, key=lambda name: worst[name])
    return Console(
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
    """Jobs, of which some rest or are in trouble, and 30 days of runs: most succeeded, some died, the newest wait."""
    names = Names(store)
    models = [document(f"model {n}", n) for n in range(MODELS)]
    _ok(await client.post("jobs/bulk", json={"items": models}), 201)
    shards = await names.shards()
    for start in range(0, max(jobs - MODELS, 0), BATCH):
        ids = [uuid7() for _ in range(min(BATCH, jobs - MODELS - start))]
        await store.pool.execute(_SQL.jobs, ids, [shard_of(i, shards) for i in ids], start, timeout=LONG)
    await store.pool.execute(_SQL.states, timeout=LONG)
    await store.pool.execute(_SQL.members, timeout=LONG)
    await store.pool.execute(_SQL.cohorts, timeout=LONG)
    await store.pool.execute(_SQL.places, timeout=LONG)
    for shard in range(shards):  # as a scheduler does every minute
        await forecast.recount(store, [shard])
    now = await store.now()
    await _runs(store, runs, now)
    task_ids = await names.task_ids(["bench.noop"])
    who = Introduction(name="w", host="h", pid=1, version="1", pools={"short": 20}, task_ids=list(task_ids.values()))
    await workers.join(store, who)
    await store.pool.execute("vacuum analyze", timeout=LONG)


async def _runs(store: Store, runs: int, now: datetime) -> None:
    first = now - timedelta(days=DAYS)
    await history.ensure_days(store, {(first + timedelta(days=n)).date() for n in range(DAYS + 1)})
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
    """What the requests are about: the first jobs of the list, the job with most runs of late, one of them, a group."""
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


async def _timed(
    client: httpx2.AsyncClient, paths: Sequence[str], named: Mapping[str, str], rounds: int, clock: SystemClock
) -> dict[str, dict[str, float]]:
    """Each request so many times, after one that is not counted."""
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
