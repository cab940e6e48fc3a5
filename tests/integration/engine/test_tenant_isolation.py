"""Reads and locks of one tenant disclose nothing about another tenant."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import uuid4

from bellringer.store import run_lists
from bellringer.store.run_lists import RunFilter

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness


async def test_what_was_looked_at_shows_nothing_of_other_tenants(harness: EngineHarness) -> None:
    [other] = await harness.tenants(1)
    for _ in range(7):
        await harness.send()
    page = await run_lists.find_runs(harness.store, other, RunFilter(states=("queued",)), None, 10)
    assert (page.positions, page.scanned) == ([], 0)


async def test_another_tenants_job_answers_as_none_while_it_is_locked(harness: EngineHarness) -> None:
    [other] = await harness.tenants(1)
    job = await harness.job()
    async with harness.store.pool.acquire() as connection, connection.transaction():
        await connection.execute("select 1 from jobs where job_id = $1 for update", job)
        async with asyncio.timeout(3):
            assert await harness.value("select bellringer.pause($1, $2, 'x', null, null)", uuid4(), other) is None
            assert await harness.value("select bellringer.pause($1, $2, 'x', null, null)", job, other) is None
            assert (
                await harness.value(
                    "select bellringer.redrive($2, array[$1::uuid], array[bellringer.now()], array[0::bigint])",
                    job,
                    other,
                )
                == 0
            )
