"""A database for one measurement: a throwaway one on an embedded server, or on the server that BELLRINGER_DSN names."""

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

from bellringer.engines.embedded import EmbeddedPostgres
from bellringer.store.migrate import migrate


@contextmanager
def server() -> Iterator[str]:
    """The DSN of a server that this measurement may use; what it makes there, it drops."""
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
    """Make and migrate a database of its own; answers its DSN."""
    made = await create_empty(dsn)
    fresh = await asyncpg.connect(made)
    try:
        await migrate(fresh)
    finally:
        await fresh.close()
    return made


async def create_empty(dsn: str) -> str:
    """Make a database without tables; answers its DSN."""
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
