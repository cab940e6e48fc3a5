"""Databases for measurements, on a temporary embedded server or on the server that BELLRINGER_DSN names."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import asyncpg

from bellringer.backends.embedded_postgres.server import EmbeddedPostgres
from bellringer.store.connection_pool import connect
from bellringer.store.migrate import migrate


@contextmanager
def server() -> Iterator[str]:
    """Yields the DSN of a server on which measurements may create and drop databases."""
    if given := os.environ.get("BELLRINGER_DSN"):
        yield given
        return
    folder = Path(tempfile.mkdtemp(prefix="bellringer-bench-"))
    try:
        with EmbeddedPostgres(folder) as running:
            yield running.dsn
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def create(dsn: str) -> str:
    """Create and migrate a database; returns its DSN."""
    made = await create_empty(dsn)
    fresh = await connect(made)
    try:
        await migrate(fresh)
    finally:
        await fresh.close()
    return made


async def create_empty(dsn: str) -> str:
    """Create a database without tables; returns its DSN."""
    name = f"bellringer_bench_{uuid4().hex[:8]}"
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(f"create database {name}")
    finally:
        await connection.close()
    return urlunsplit(urlsplit(dsn)._replace(path=f"/{name}"))


async def drop(dsn: str, made: str) -> None:
    name = urlsplit(made).path.strip("/")
    connection = await asyncpg.connect(dsn)
    try:
        number = await connection.fetchval("select oid from pg_database where datname = $1", name)
        await connection.execute(f"drop database if exists {name} with (force)")
        if number is not None:
            await connection.execute(f"drop role if exists bellringer_tenant_{number}")
    finally:
        await connection.close()
