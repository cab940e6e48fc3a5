"""The recovery step reads all events, including events without a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bellringer.engine.monitor import report_recoveries

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness


EVENTS = """
insert into events (at, tenant_id, kind, job_id, scheduled_for)
select bellringer.now(), $1, 'dead', gen_random_uuid(), bellringer.now() from generate_series(1, $2)
"""


async def test_troubles_are_read_on_though_they_are_of_no_jobs(harness: EngineHarness) -> None:
    await harness.sql(EVENTS, 1, 600)  # of sends
    assert (await report_recoveries(harness.store)).more
