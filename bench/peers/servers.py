"""The servers of the benchmark: one stock PostgreSQL and one Redis-compatible server without persistence."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import asyncpg
from redis import Redis as RedisClient
from tools.servers.ports_and_pids import HOST, free_ports
from tools.servers.redis import Redis

from bellringer.backends.embedded_postgres.server import EmbeddedPostgres
from bellringer.errors import ConfigError

INSTALLED: Final = Path("/usr/lib/postgresql")
OWNER: Final = "owner"  # owns the databases of all systems; it has no other privilege

# Everything else is as shipped: durable, JIT on, autovacuum on.
SETTINGS: Final = {"listen_addresses": HOST, "max_connections": "200", "shared_buffers": "1GB"}


class VolatileRedis(Redis):
    """Keeps its data in memory only."""

    def _command(self, ports: tuple[int, ...]) -> list[str]:
        command = super()._command(ports)
        command[command.index("--appendonly") + 1] = "no"
        return command

    def flush(self) -> None:
        with RedisClient.from_url(self.address) as client:
            client.flushall()


@dataclass(frozen=True, slots=True, kw_only=True)
class Postgres:
    """A running server; each session of each system gets a new database."""

    pid: int
    programs: Path
    admin_dsn: str
    password: str
    port: int

    async def create_database(self, name: str) -> str:
        """Create an empty database, replacing one of that name; returns the DSN of its owner."""
        await self.execute(f'drop database if exists "{name}" with (force)', f'create database "{name}" owner {OWNER}')
        return f"postgresql://{OWNER}:{self.password}@{HOST}:{self.port}/{name}"

    async def drop_database(self, name: str) -> None:
        await self.execute(f'drop database if exists "{name}" with (force)')

    async def checkpoint(self) -> None:
        """Write all changed pages now, so that a system does not pay for those of the system before it."""
        await self.execute("checkpoint")

    async def execute(self, *statements: str) -> None:
        connection = await asyncpg.connect(self.admin_dsn)
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    async def version(self) -> str:
        connection = await asyncpg.connect(self.admin_dsn)
        try:
            return str(await connection.fetchval("show server_version")).split()[0]
        finally:
            await connection.close()


def find_programs() -> Path:
    """Returns the `bin` folder of the newest server of the distribution."""
    versions = [folder for folder in INSTALLED.glob("*") if folder.name.isdecimal()]
    for version in sorted(versions, key=lambda folder: -int(folder.name)):
        if (version / "bin" / "postgres").exists():
            return version / "bin"
    raise ConfigError(f"{INSTALLED} holds no PostgreSQL", hint="Debian: apt-get install postgresql, or `make postgres`")


@contextmanager
def serve_postgres(folder: Path) -> Iterator[Postgres]:
    """A server on loopback with a new data folder, which is deleted at the end."""
    programs, password, (port,) = find_programs(), secrets.token_hex(16), free_ports(1)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    settings = {**SETTINGS, "port": str(port)}
    try:
        with EmbeddedPostgres(folder, settings=settings, binaries=programs, defaults={}) as running:
            access = running.data / "pg_hba.conf"
            local = [line for line in access.read_text().splitlines() if line.startswith("local")]
            access.write_text("\n".join([*local, f"host all {OWNER} {HOST}/32 scram-sha-256", ""]))
            yield Postgres(pid=running.pid, programs=programs, admin_dsn=running.dsn, password=password, port=port)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def create_owner(postgres: Postgres) -> None:
    await postgres.execute(
        f"create role {OWNER} login nosuperuser nocreatedb nocreaterole password '{postgres.password}'",
        "select pg_reload_conf()",
    )
