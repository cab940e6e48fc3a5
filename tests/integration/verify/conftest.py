"""Short ways to verify the history that a test made with the engine harness."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from bellringer.store.connection_pool import connect
from bellringer.verify import Finding, VerifyScope, VerifySummary, verify

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness


@dataclass
class Verified:
    """The summary and findings of verify."""

    summary: VerifySummary
    findings: list[Finding]
    noon: datetime

    @property
    def told(self) -> list[tuple[str, float]]:
        """The kind of each finding, with its scheduled time in seconds after noon."""
        return [(f.kind.value, (f.scheduled_for - self.noon).total_seconds()) for f in self.findings]


Check = Callable[..., Awaitable[Verified]]


@pytest.fixture
def check(harness: EngineHarness, dsn: str) -> Check:
    """Verify the period around noon, including everything up to now."""

    async def check(*, until: float | None = None, **asked: Any) -> Verified:
        end = harness.after(until) if until is not None else await harness.now() + timedelta(microseconds=1)
        before = await harness.now()
        await harness.set_clock(max(before, end + timedelta(seconds=70)))
        connection = await connect(dsn)
        findings: list[Finding] = []
        try:
            wanted = VerifyScope(**{"start": harness.after(-3600), "end": end, "unstarted_after": None, **asked})
            summary = await verify(connection, wanted, findings.append)
        finally:
            await connection.close()
            await harness.set_clock(before)
        return Verified(summary, findings, harness.noon)

    return check


async def add_run(harness: EngineHarness, job_id: UUID, at: datetime, slot: int = 0) -> None:
    """Insert a run that no tick created."""
    await harness.sql(
        "insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, revision, shard, pool_id,"
        " priority, cause, initial_state) select job_id, $2::timestamptz, $3, $2, 0, tenant_id, task_id,"
        " revision, shard,"
        " pool_id, priority, 'schedule', 'queued' from jobs where job_id = $1",
        job_id,
        at,
        slot,
    )


async def add_gap(harness: EngineHarness, job_id: UUID, start: datetime, end: datetime, schedule_id: int = 0) -> None:
    await harness.sql(
        "insert into gaps (job_id, from_at, to_at, schedule_id, reason, recorded_at)"
        " values ($1, $2, $3, $4, 'made up', $3)",
        job_id,
        start,
        end,
        schedule_id,
    )


@pytest.fixture
def forge() -> Any:
    """Functions that falsify the history."""

    class Forge:
        run = staticmethod(add_run)
        gap = staticmethod(add_gap)

    return Forge
