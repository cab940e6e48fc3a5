"""Ten thousand jobs, and nobody ticks for a year: the hands go on at once, and every occurrence is accounted for."""

from __future__ import annotations

import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bellringer.core.policies import Catchup, Misfire
from bellringer.engine.backfill import BackfillCursor, run_backfills
from bellringer.schedule import Schedule, cron, every

if TYPE_CHECKING:
    from tests.integration.verify.conftest import Check
    from tests.support.engine_harness import EngineHarness

JOBS: Final = 10_000
YEAR: Final = timedelta(days=365)
MOMENT: Final = timedelta(microseconds=1)
SCHEDULES: Final[tuple[Schedule, ...]] = (
    *(every(f"{n}s") for n in (1, 5, 7, 10, 13, 17, 20, 30, 45, 50)),
    *(every(f"{n}m") for n in range(1, 61)),
    *(cron(f"*/{n} * * * *") for n in range(2, 31)),
    *(cron(f"{n % 60} {n % 24} * * *", tz=zone) for n in range(100) for zone in ("UTC", "Europe/Berlin")),
)
MISFIRES: Final = (Misfire.SKIP, Misfire.FIRE_ONCE, Misfire.FIRE_ALL)


async def test_a_year_without_a_scheduler_is_accounted_for(harness: EngineHarness, check: Check) -> None:
    chosen = {f"job {n}": SCHEDULES[n % len(SCHEDULES)] for n in range(JOBS)}
    definitions = [
        harness.definition(name, schedule, misfire=MISFIRES[n % 3], catchup=Catchup(3, window=YEAR))
        for n, (name, schedule) in enumerate(chosen.items())
    ]
    for first in range(0, JOBS, 1000):
        await harness.register(*definitions[first : first + 1000])
    now = harness.noon + YEAR
    await harness.set_clock(now)
    await harness.hold()

    _forget_peak()
    before, started = _peak(), time.perf_counter()
    await harness.tick_all()
    took, grown = time.perf_counter() - started, _peak() - before
    print(f"\n{await harness.value('select count(*) from cohorts'):,} hands in {took:.1f} s, {grown / 1e6:.0f} MB")
    assert took < 10
    assert grown < 200_000_000

    turn = BackfillCursor()
    for _ in range(5):  # some catch-ups are measured and begun, the others wait
        await run_backfills(harness.store, harness.catalog, harness.holding, now, turn)
    accounted = await _ledger(harness)
    assert len(accounted) == JOBS
    counts = {schedule: schedule.count_between(harness.noon + MOMENT, now + MOMENT) for schedule in SCHEDULES}
    assert {name: counts[schedule] for name, schedule in chosen.items()} == accounted

    for start in (now - YEAR / 2, now - timedelta(minutes=30)):
        verified = await check(start=start, end=start + timedelta(minutes=30, seconds=1))
        assert verified.told == []
        assert verified.summary.jobs == JOBS
        assert verified.summary.gaps > 0
        assert verified.summary.pending > 0
    assert verified.summary.created > JOBS / 10


async def _ledger(harness: EngineHarness) -> Counter[str]:
    """How many occurrences of each job have a run, are in a gap, or are left to a catch-up."""
    found = Counter[str]()
    for name, count in await harness.sql(
        "select j.name, r.runs + coalesce(g.passed, 0) from jobs j"
        " cross join lateral (select count(*) as runs from runs where job_id = j.job_id) r"
        " cross join lateral (select sum(count)::bigint as passed from gaps where job_id = j.job_id) g"
    ):
        found[name] += count
    rows = await harness.sql(
        "select j.name, b.schedule_id, b.total - b.made - b.passed, b.from_at, b.to_at"
        " from backfills b join jobs j using (job_id)"
    )
    schedules = await harness.catalog.schedules({row[1] for row in rows})
    for name, number, left, start, end in rows:
        found[name] += schedules[number].count_between(start, end) if left is None else left
    return found


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    """The most memory that this process had at a time, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [peak] = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(peak) * 1024
