"""A primary and its synchronous standby, of the distribution's PostgreSQL, behind one DSN with two hosts."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg
from tests.support.stock_server import find_programs
from tools.servers import ports_and_pids

from bellringer.backends.embedded_postgres.programs import build_command, choose_programs, clean_environment
from bellringer.backends.embedded_postgres.server import EmbeddedPostgres
from bellringer.testing.postgres import find_memory_folder

TIMEOUT_SECONDS = 60.0
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

    async def fail_over(self) -> None:
        """Kills the primary and promotes the standby."""
        os.kill(self.primary_pid, 9)
        await execute(self.dsn_of(1), "alter system reset synchronous_standby_names", "select pg_promote()")

    def dsn_of(self, number: int) -> str:
        return f"postgresql://bellringer@127.0.0.1:{self.ports[number]}/bellringer?sslmode=disable"


@contextmanager
def start_pair() -> Iterator[Pair]:
    """Raises ConfigError if the distribution has no PostgreSQL. Call it outside of an event loop."""
    programs = find_programs()
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
