"""A scheduler and the only worker, when their connections to PostgreSQL go silent without being closed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.support.silent_proxy import SilentProxy

from bellringer.store.connection_pool import Store

from .conftest import until
from .roles import Roles


async def _executed(store: Store) -> int:
    count: int = await store.pool.fetchval("select count(*) from attempts where ends_as = 'succeeded'")
    return count


@pytest.mark.cluster
@pytest.mark.parametrize("coordination", ["postgresql", "leader"])
async def test_runs_fire_and_execute_again_within_seconds(
    store: Store, dsn: str, tmp_path: Path, coordination: str
) -> None:
    async with SilentProxy(dsn) as proxy:
        roles = Roles(tmp_path, proxy.address)
        try:
            roles.scheduler(coordination=coordination)
            roles.worker()

            async def works() -> bool:
                return await _executed(store) >= 3

            await until(works, 30, "the worker executes")
            assert proxy.silence() >= 4
            await asyncio.sleep(1.5)  # settles that were on their way have arrived
            silent_at, before = await store.now(), await _executed(store)

            async def works_again() -> bool:
                fired = await store.pool.fetchval("select count(*) from runs where fired_at > $1", silent_at)
                return fired >= 3 and await _executed(store) >= before + 3

            # Up to 10 s to notice the silence, then a new lease and three runs, next to other tests.
            await until(works_again, 20, "runs fire and execute again")
            assert all(process.poll() is None for process in roles.processes)
        finally:
            roles.end()
