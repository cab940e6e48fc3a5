"""A DSN with two hosts: the standby is promoted and the primary killed; processes continue there, and nothing that was
acknowledged is lost.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from tests.cluster.roles import Roles
from tests.support.stock_server import find_programs
from tools.servers import ports_and_pids

from bellringer import App
from bellringer.backends.embedded_postgres.programs import build_command, choose_programs, clean_environment
from bellringer.backends.embedded_postgres.server import EmbeddedPostgres
from bellringer.errors import BellringerError, ConfigError
from bellringer.sdk.task_handle import TaskHandle
from bellringer.store.connection_pool import connect
from bellringer.store.migrate import migrate
from bellringer.testing.postgres import find_memory_folder

TIMEOUT_SECONDS = 60.0
SENDS_BEFORE, SENDS_AFTER = 20, 10
APP = """
from bellringer import App

app = App()


@app.task
async def remind(number: int) -> int:
    return number
"""
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "fsync": "off",
    "wal_level": "replica",
    "hot_standby": "on",
    "synchronous_standby_names": "*",
    "synchronous_commit": "on",
}


@dataclass
class Pair:
    """A primary and its synchronous standby."""

    primary: EmbeddedPostgres
    standby: EmbeddedPostgres
    ports: tuple[int, int]
    primary_pid: int

    @property
    def dsn(self) -> str:
        first, second = self.ports
        query = "target_session_attrs=read-write&sslmode=disable"
        return f"postgresql://bellringer@127.0.0.1:{first},127.0.0.1:{second}/bellringer?{query}"

    def dsn_of(self, number: int) -> str:
        return f"postgresql://bellringer@127.0.0.1:{self.ports[number]}/bellringer?sslmode=disable"


@pytest.fixture
def pair() -> Iterator[Pair]:
    try:
        programs = find_programs()
    except ConfigError as error:
        give_up = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        give_up(f"THERE IS NO STOCK POSTGRESQL FOR THIS TEST: {error}")
    folder = Path(tempfile.mkdtemp(prefix="bellringer-failover-", dir=find_memory_folder()))
    first, second = ports_and_pids.free_ports(2)
    primary = EmbeddedPostgres(
        folder / "a",
        settings={**SETTINGS, "synchronous_standby_names": "", "port": str(first)},
        binaries=programs,
        defaults={},
    )
    standby = EmbeddedPostgres(
        folder / "b",
        settings={**SETTINGS, "synchronous_standby_names": "", "port": str(second)},
        binaries=programs,
        defaults={},
    )
    try:
        started = primary.start()
        hba = started.data / "pg_hba.conf"
        hba.write_text("local all all trust\nlocal replication all trust\nhost all all 127.0.0.1/32 trust\n")
        asyncio.run(execute(started.dsn, "select pg_reload_conf()"))
        copy_base(programs, started.dsn, folder)
        standby.start()
        asyncio.run(make_synchronous(started.dsn))
        yield Pair(primary, standby, (first, second), started.pid)
    finally:
        primary.stop()
        standby.stop()
        shutil.rmtree(folder, ignore_errors=True)


def copy_base(programs: Path, dsn: str, folder: Path) -> None:
    """Makes the data of the standby, which streams from the primary over its socket."""
    found = choose_programs(folder / "a", folder / "a" / "postgres", programs)
    (folder / "b").mkdir()
    os.chown(folder / "b", *((folder / "a" / "postgres").stat().st_uid, (folder / "a" / "postgres").stat().st_gid))
    command = build_command(
        found,
        "pg_basebackup",
        "-d",
        dsn,
        "-D",
        str(folder / "b" / "postgres"),
        "-R",
        "-X",
        "stream",
        "--checkpoint=fast",
    )
    subprocess.run(command, env=clean_environment(), check=True, capture_output=True, timeout=60)


async def execute(dsn: str, *statements: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def make_synchronous(dsn: str) -> None:
    """Waits until the standby streams; from then on, a commit waits for it."""
    connection = await asyncpg.connect(dsn)
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not await connection.fetchval("select count(*) from pg_stat_replication where state = 'streaming'"):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        await connection.execute("alter system set synchronous_standby_names = '*'")
        await connection.execute("select pg_reload_conf()")
    finally:
        await connection.close()


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
        os.kill(pair.primary_pid, 9)  # at once: some runs are under way
        await execute(pair.dsn_of(1), "alter system reset synchronous_standby_names", "select pg_promote()")
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
