"""A DSN with two hosts: the standby is promoted and the primary killed; processes continue there, and nothing that was
acknowledged is lost.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from tests.cluster.roles import Roles
from tests.support.failover_pair import Pair, start_pair

from bellringer import App
from bellringer.errors import BellringerError, ConfigError
from bellringer.sdk.task_handle import TaskHandle
from bellringer.store.connection_pool import connect
from bellringer.store.migrate import migrate

TIMEOUT_SECONDS = 60.0
SENDS_BEFORE, SENDS_AFTER = 20, 10
APP = """
from bellringer import App

app = App()


@app.task
async def remind(number: int) -> int:
    return number
"""


@pytest.fixture
def pair() -> Iterator[Pair]:
    try:
        with start_pair() as started:
            yield started
    except ConfigError as error:
        give_up = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        give_up(f"THERE IS NO STOCK POSTGRESQL FOR THIS TEST: {error}")


async def test_processes_follow_a_failover_and_lose_nothing(pair: Pair, tmp_path: Path) -> None:
    connection = await connect(pair.dsn)
    await migrate(connection)
    await connection.close()
    roles = Roles(tmp_path, pair.dsn)
    (tmp_path / "app.py").write_text(APP)
    app = App(pair.dsn)

    @app.task(name="app.remind")
    async def remind(number: int) -> int:
        return number

    try:
        scheduler, worker = roles.scheduler(), roles.worker()
        keys = [await send(remind, number) for number in range(SENDS_BEFORE)]
        await pair.fail_over()  # at once: some runs are under way
        keys += [await send(remind, number) for number in range(SENDS_BEFORE, SENDS_BEFORE + SENDS_AFTER)]
        promoted = await asyncpg.connect(pair.dsn_of(1))
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while await promoted.fetchval(  # noqa: ASYNC110
                    "select count(distinct job_id) from bellringer.attempts where ends_as = 'succeeded'"
                ) < len(keys):
                    await asyncio.sleep(0.2)
            assert await promoted.fetchval("select count(*) from bellringer.send_keys") == len(keys)
        finally:
            await promoted.close()
        assert (scheduler.poll(), worker.poll()) == (None, None)
    finally:
        roles.end()
        await app.aclose()


async def send(remind: TaskHandle[[int], Any], number: int) -> str:
    """Sends with a key until it is acknowledged, as a client that cannot lose it would."""
    key = f"{number}-{uuid4().hex[:8]}"
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            with suppress(BellringerError):
                await remind.options(key=key).asend(number)
                return key
            await asyncio.sleep(0.1)
