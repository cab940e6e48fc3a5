"""The bench of the lifecycle's tests, and short ways to verify what was done on it."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from bellringer.store.pool import connect
from bellringer.verify import Asked, Finding, Summary, verify

if TYPE_CHECKING:
    from tests.lifecycle.conftest import Bench

_spec = spec_from_file_location("verify_bench", Path(__file__).parents[1] / "lifecycle" / "conftest.py")
assert _spec is not None
assert _spec.loader is not None
_module = module_from_spec(_spec)
sys.modules[_spec.name] = _module
_spec.loader.exec_module(_module)
bench = _module.bench


@dataclass
class Verified:
    """What verify said."""

    summary: Summary
    findings: list[Finding]
    noon: datetime

    @property
    def told(self) -> list[tuple[str, float]]:
        """Each finding, with its instant in seconds after noon."""
        return [(f.kind.value, (f.scheduled_for - self.noon).total_seconds()) for f in self.findings]


Check = Callable[..., Awaitable[Verified]]


@pytest.fixture
def check(bench: Bench, dsn: str) -> Check:
    """Verify the minutes around noon, so that all that was done counts, the latest included."""

    async def check(*, until: float | None = None, **asked: Any) -> Verified:
        end = bench.after(until) if until is not None else await bench.now() + timedelta(microseconds=1)
        before = await bench.now()
        await bench.set_clock(max(before, end + timedelta(seconds=70)))
        connection = await connect(dsn)
        findings: list[Finding] = []
        try:
            wanted = Asked(**{"start": bench.after(-3600), "end": end, **asked})
            summary = await verify(connection, wanted, findings.append)
        finally:
            await connection.close()
            await bench.set_clock(before)
        return Verified(summary, findings, bench.noon)

    return check


async def add_run(bench: Bench, job_id: UUID, at: datetime, slot: int = 0) -> None:
    """A run that no tick made."""
    await bench.sql(
        "insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, revision, shard, pool_id,"
        " priority, cause, born_as) select job_id, $2::timestamptz, $3, $2, 0, tenant_id, task_id, revision, shard,"
        " pool_id, priority, 'schedule', 'queued' from jobs where job_id = $1",
        job_id,
        at,
        slot,
    )


async def add_gap(bench: Bench, job_id: UUID, start: datetime, end: datetime, schedule_id: int = 0) -> None:
    await bench.sql(
        "insert into gaps (job_id, from_at, to_at, schedule_id, reason, recorded_at)"
        " values ($1, $2, $3, $4, 'made up', $3)",
        job_id,
        start,
        end,
        schedule_id,
    )


@pytest.fixture
def forge() -> Any:
    """Ways to falsify history."""

    class Forge:
        run = staticmethod(add_run)
        gap = staticmethod(add_gap)

    return Forge
