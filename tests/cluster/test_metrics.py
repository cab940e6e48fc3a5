"""The figures and lines that a node tells about itself move when the thing happens that they name."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

import pytest
from prometheus_client import REGISTRY

from bellringer import telemetry
from bellringer.api.app import create_app
from bellringer.bench.commands import bench as bench_command
from bellringer.clock import SystemClock
from bellringer.core.jobs import Definition
from bellringer.core.retry_policy import Retry
from bellringer.core.tasks import Registry, make_task
from bellringer.engine.register import create
from bellringer.engine.send import SendSpec, send
from bellringer.schedule import every
from bellringer.scheduler.service import Scheduler, SchedulerSettings
from bellringer.store import workers
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.leases import PostgresLeases
from bellringer.store.workers import WorkerRegistration
from bellringer.worker.service import Worker, WorkerSettings

CLOCK = SystemClock()
COUNTED = {
    "bellringer_fires_total": {},
    "bellringer_missed_total": {},
    "bellringer_fire_lateness_seconds_count": {},
    "bellringer_tick_seconds_count": {},
    "bellringer_poll_seconds_count": {},
    "bellringer_starts_total": {},
    "bellringer_late_starts_total": {},
    "bellringer_lease_takeovers_total": {},
    "bellringer_reaped_total": {},
    "bellringer_claim_seconds_count": {},
    "bellringer_settle_seconds_count": {},
    "bellringer_start_lateness_seconds_count": {"pool": "short"},
    "bellringer_claims_total": {"pool": "short"},
    "bellringer_attempts_total": {"task": "good", "outcome": "ok"},
    "bellringer_run_seconds_count": {"task": "good"},
    "bellringer_retries_total": {"task": "bad"},
    "bellringer_dead_total": {"task": "bad"},
    "bellringer_duplicates_total": {"cause": "lost"},
}


async def good() -> None:
    """Succeeds."""


async def bad() -> None:
    raise RuntimeError("no")


def read() -> dict[str, float]:
    return {name: REGISTRY.get_sample_value(name, labels) or 0.0 for name, labels in COUNTED.items()}


@asynccontextmanager
async def running(store: Store) -> AsyncIterator[None]:
    """A scheduler that gives up silent workers soon, and a worker, in this process."""
    registry = Registry()
    for function in (good, bad):
        registry.add(make_task(function, name=function.__name__, retry=Retry(2, base="10ms")))
    stop = asyncio.Event()
    node = Scheduler(store, PostgresLeases(store), CLOCK, SchedulerSettings(silence=timedelta(seconds=3)))
    worker = Worker(store, registry, CLOCK, WorkerSettings(pools={"short": 5}))
    tasks = [asyncio.create_task(node.run(stop)), asyncio.create_task(worker.run(stop))]
    try:
        yield
    finally:
        stop.set()
        await asyncio.gather(*tasks)


async def lose_a_run(store: Store, catalog: Catalog) -> None:
    """A run that a worker holds who is not heard of any more."""
    task_ids = [(await catalog.task_ids(["good"]))["good"]]
    who = WorkerRegistration(name="gone", host="h", pid=1, version="", pools={"long": 1}, task_ids=task_ids)
    gone = await workers.join(store, who)
    await send(store, catalog, SendSpec(task="good"), tenant_id=1)
    await store.pool.execute("update queue set worker_id = $1, attempt = 1, claimed_at = now()", gone)
    await store.pool.execute("update workers set seen_at = now() - interval '1 hour' where worker_id = $1", gone)


async def test_every_figure_moves_when_what_it_names_happens(
    store: Store, catalog: Catalog, capsys: pytest.CaptureFixture[str]
) -> None:
    telemetry.configure("json", "debug")
    before = read()
    await lose_a_run(store, catalog)
    await send(store, catalog, SendSpec(task="good"), tenant_id=1)
    await store.pool.execute("update queue set available_at = now() - interval '20 s' where worker_id is null")  # late
    order = SendSpec(task="bad", retry=Retry(2, base="10ms"))
    await send(store, catalog, order, tenant_id=1)
    await create(store, catalog, [Definition(name="j", task="good", schedules=(every("1s"),))], tenant_id=1, who="me")
    await store.pool.execute("update cohorts set next_at = next_at - interval '1 hour'")
    await store.pool.execute("update members set active_since = now() - interval '2 hours'")
    async with running(store):
        for _ in range(300):
            await asyncio.sleep(0.1)
            still = [name for name, value in read().items() if value <= before[name]]
            if not still:
                break
    assert still == []
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    telemetry.configure()
    ended = [line for line in lines if line["event"] == "attempt finished"]
    assert {"ok", "failed", "lost"} <= {line["outcome"] for line in ended}
    ids = {"run_id", "job_id", "task", "tenant_id", "scheduled_for", "attempt", "worker_id", "duration_ms"}
    assert all(ids <= line.keys() for line in ended)


async def test_gauges_show_what_the_database_holds(store: Store, catalog: Catalog, tenants: Store) -> None:
    await lose_a_run(store, catalog)
    await send(store, catalog, SendSpec(task="good", pool="long"), tenant_id=1)
    await create(store, catalog, [Definition(name="j", task="good", schedules=(every("1s"),))], tenant_id=1, who="me")
    await store.pool.execute("update cohorts set next_at = next_at - interval '1 hour'")
    await store.pool.execute("update queue set available_at = now() - interval '20 s' where worker_id is null")
    from httpx2 import ASGITransport, AsyncClient

    app = create_app(store, catalog, tenants, version="1", clock=CLOCK)
    async with AsyncClient(transport=ASGITransport(app=app), base_url="http://test") as client:
        text = (await client.get("/metrics")).text

    def value(name: str) -> float:
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        assert found, name
        return float(found[1])

    assert value('bellringer_queue_depth{pool="long",state="ready"}') == 1
    assert value('bellringer_pool_oldest_waiting_seconds{pool="long"}') >= 20
    assert value("bellringer_overdue") >= 1
    assert value("bellringer_shards_free") == 64
    assert value('bellringer_heartbeat_age_seconds{kind="worker"}') >= 3600
    assert value('bellringer_pool_saturation{pool="long"}') == 0


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (["herd", "--jobs", "300", "--schedules", "3"], {"fires_per_second", "share_of_plain_insert"}),
        (["drain", "--runs", "300"], {"runs_per_second", "lateness_ms"}),
        (["tick", "--registered", "20000"], {"ratio"}),
        (["api", "--jobs", "60", "--seconds", "0.3", "--bulks", "1"], {"create", "read", "read_job", "bulk", "floor"}),
    ],
)
def test_the_benches_print_what_they_saw(bellringer_dsn: str, words: list[str], keys: set[str]) -> None:
    from click.testing import CliRunner

    done = CliRunner().invoke(bench_command, [*words, "--json"], env={"BELLRINGER_DSN": bellringer_dsn})
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout.strip().splitlines()[-1])
    assert keys <= figures.keys()
    if "lateness_ms" in figures:
        assert figures["lateness_ms"].keys() == {"p50", "p99", "max"}
    with suppress(KeyError):
        assert figures["ratio"] < 3, "a tick beside 20,000 registered jobs is about as fast as one beside 1,000"
