"""Verify at scale: memory is bounded by pages, whatever the number of runs.

`BELLRINGER_VERIFY_RUNS=10000000 pytest -s tests/integration/verify/test_scale.py -k stream` is the large form, with
a figure of its speed.
"""

from __future__ import annotations

import os
import resource
import time
import tracemalloc
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from bellringer.schedule import every

if TYPE_CHECKING:
    from tests.integration.verify.conftest import Check, Verified
    from tests.support.engine_harness import EngineHarness

EACH: Final = 40_000
RUNS: Final = int(os.environ.get("BELLRINGER_VERIFY_RUNS", "200000"))


async def fill(harness: EngineHarness, jobs: int, before: int = 0) -> None:
    """Jobs that ran every second; they ended well, without an attempt being kept."""
    definitions = [harness.definition(f"j{before + n}", every("1s")) for n in range(jobs)]
    await harness.register(*definitions)
    await harness.sql(
        "insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, revision, shard, pool_id,"
        " priority, cause, initial_state) select job_id, $2::timestamptz + n * interval '1 s', 0, $2 + n *"
        " interval '1 s',"
        " 0, tenant_id, task_id, revision, shard, pool_id, priority, 'schedule', 'queued' from jobs,"
        " generate_series(1, $3::int) n where name = any ($1)",
        [definition.name for definition in definitions],
        harness.noon,
        EACH,
    )


async def peak(check: Check) -> tuple[Verified, int]:
    tracemalloc.start()
    try:
        verified = await check()
        return verified, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


async def test_four_times_the_runs_stream_through_the_same_memory(harness: EngineHarness, check: Check) -> None:
    await fill(harness, 1)
    await harness.sql("analyze runs")
    await harness.set_clock(harness.noon + timedelta(seconds=EACH))
    few, small = await peak(check)
    await harness.set_clock(harness.noon)
    await fill(harness, 4, before=1)
    await harness.set_clock(harness.noon + timedelta(seconds=EACH))
    many, large = await peak(check)
    assert (few.told, few.summary.created) == ([], EACH)
    assert (many.told, many.summary.created) == ([], 5 * EACH)
    assert large < small + 5_000_000 < 40_000_000


async def test_many_runs_stream_fast(harness: EngineHarness, check: Check) -> None:
    jobs = RUNS // EACH
    for done in range(0, jobs, 25):
        await fill(harness, min(25, jobs - done), before=done)
    await harness.sql("analyze runs")
    await harness.set_clock(harness.noon + timedelta(seconds=EACH))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    verified = await check()
    took = time.perf_counter() - started
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    rate = verified.summary.created / took
    print(f"\n{verified.summary.created:,} runs in {took:.1f} s, {rate:,.0f} a second; {grown:,} KiB more")
    assert (verified.told, verified.summary.created) == ([], jobs * EACH)
    assert grown < 60_000
