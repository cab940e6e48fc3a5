"""Retention by tenant, job and state: runs with a shorter one are deleted before their day is dropped."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.support.engine_harness import EngineHarness

from bellringer.backends.object_store import ObstoreObjects
from bellringer.cli.root import cli
from bellringer.clock import SystemClock
from bellringer.core.runs import RunKey
from bellringer.engine import prune, retain
from bellringer.engine.archive import archive_slice
from bellringer.engine.prune import Retention
from bellringer.engine.read_archive import list_manifests, read_lines
from bellringer.engine.retain import trim_slice
from bellringer.schedule import every
from bellringer.store import partitions

DAY = timedelta(days=1)
KEPT = 10 * DAY
SECONDS = 86_400


async def left(harness: EngineHarness) -> set[RunKey]:
    rows = await harness.sql("select job_id, scheduled_for, slot from runs")
    return {RunKey(row["job_id"], row["scheduled_for"], row["slot"]) for row in rows}


async def age(harness: EngineHarness, days: float, *, archives: bool = False) -> int:
    await harness.set_clock(harness.noon + days * DAY)
    now = await harness.now()
    deleted = await trim_slice(harness.store, SystemClock(), now, KEPT, archives=archives, seconds=30)
    await prune.prune(harness.store, now, Retention(runs=KEPT, dead_letters=KEPT), archives=archives)
    return deleted


async def rules(harness: EngineHarness, tenant: int, document: dict[str, object]) -> None:
    await harness.sql("update tenants set retention = $1::jsonb where tenant_id = $2", json.dumps(document), tenant)


async def test_each_run_is_kept_as_long_as_its_state_job_and_tenant_say(
    harness: EngineHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retain, "RUNS_PER_STATEMENT", 2)
    other = harness.for_tenant((await harness.tenants(1))[0])
    await rules(
        harness, harness.tenant, {"succeeded": 3 * SECONDS, "jobs": {"nightly": {"runs": 30 * SECONDS}}}
    )  # all other runs of this tenant, and those of the other tenant: 10 days
    seat = await harness.join_worker("demo")
    nightly = await harness.trigger(await harness.job("nightly", every("1d"), task="demo"))
    plain = {(await harness.send(task="demo")).key for _ in range(5)}
    cancelled = (await harness.send(task="demo")).key
    await harness.cancel(cancelled)
    others = {(await other.send(task="demo")).key for _ in range(2)}
    await harness.end(seat, await harness.claim(seat))
    waiting = (await harness.send(task="demo")).key
    everything = {nightly, *plain, cancelled, *others, waiting}

    assert await age(harness, 2, archives=True) == 0
    assert await left(harness) == everything
    assert await age(harness, 4.5, archives=True) == len(plain)
    assert await left(harness) == everything - plain
    assert await age(harness, 5, archives=True) == 0
    assert await age(harness, 12, archives=True) == 1 + len(others)
    assert await left(harness) == {nightly, waiting}
    await harness.end(seat, await harness.claim(seat))
    day = waiting.scheduled_for.date()
    await harness.sql("update trimmed_days set rules = ''")  # a run that ended after the pass waits for the next one
    await age(harness, 13, archives=True)
    assert await left(harness) == {nightly}
    assert day in await partitions.list_days(harness.store)
    await age(harness, 33, archives=True)
    assert await left(harness) == set()
    assert day not in await partitions.list_days(harness.store)

    target = ObstoreObjects(f"file://{tmp_path}/archive")
    await archive_slice(harness.store, target, SystemClock(), 30)
    found = [
        json.loads(line)["run_id"] for manifest in await list_manifests(target)
        async for line in read_lines(target, manifest)
    ]  # fmt: skip
    assert sorted(found) == sorted(key.id for key in everything)


async def test_a_day_whose_runs_were_all_deleted_is_dropped_early(harness: EngineHarness) -> None:
    other = (await harness.tenants(1))[0]
    await rules(harness, other, {"runs": 300 * SECONDS})
    seat = await harness.join_worker("demo")
    sent = await harness.send(task="demo")
    await harness.end(seat, await harness.claim(seat))
    assert await age(harness, 12) == 1
    assert sent.key.scheduled_for.date() not in await partitions.list_days(harness.store)
    assert await harness.value("select count(*) from attempts") == 0


async def test_the_command_shows_and_replaces_the_rules(harness: EngineHarness, dsn: str) -> None:
    async def call(*words: str) -> tuple[int, str]:
        done = await asyncio.to_thread(CliRunner().invoke, cli, ["tenants", "retention", *words, "--dsn", dsn])
        return done.exit_code, done.output

    assert await call("default") == (0, "the retention of the installation applies\n")
    given = ("--keep", "runs=90d", "--keep", "succeeded=7d", "--keep-job", "nightly:runs=365d")
    assert await call("default", *given) == (0, "runs=90d\nsucceeded=7d\nnightly:runs=365d\n")
    assert await harness.value("select retention ->> 'succeeded' from tenants where tenant_id = 1") == str(7 * SECONDS)
    assert (await call("default", "--keep", "late=7d"))[0] == 2
    assert (await call("default", "--keep", "runs=1h"))[0] == 2
    assert await call("default", "--clear") == (0, "the retention of the installation applies\n")
