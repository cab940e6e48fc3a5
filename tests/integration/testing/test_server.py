"""Servers and databases for tests."""

from __future__ import annotations

from pathlib import Path

import asyncpg
import pytest

from bellringer.testing import postgres
from bellringer.testing.postgres import TestServer, at_database


@pytest.mark.parametrize(
    ("dsn", "moved"),
    [
        ("postgresql://u:p@host:5433/a?sslmode=require", "postgresql://u:p@host:5433/b?sslmode=require"),
        ("postgresql://u@/a?host=/tmp/x", "postgresql://u@/b?host=/tmp/x"),
        ("postgresql:///a?host=/tmp/x", "postgresql:///b?host=/tmp/x"),
        ("postgresql://host/a", "postgresql://host/b"),
    ],
)
def test_another_database_of_the_same_server(dsn: str, moved: str) -> None:
    assert at_database(dsn, "b") == moved


async def test_each_database_is_fresh_and_goes_again(bellringer_server: TestServer) -> None:
    async with bellringer_server.database() as dsn:
        connection = await asyncpg.connect(dsn)  # still open when the database is dropped
        await connection.execute("insert into bellringer.tenants (name) values ('acme')")
    async with bellringer_server.database() as other:
        fresh = await asyncpg.connect(other)
        assert await fresh.fetchval("select count(*) from bellringer.tenants") == 1
        await fresh.close()
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        await asyncpg.connect(dsn)
    connection.terminate()


@pytest.mark.parametrize(("room", "is_taken"), [(0, True), (1 << 62, False)], ids=["room", "none"])
def test_data_is_kept_in_memory_only_where_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, *, is_taken: bool
) -> None:
    monkeypatch.setattr(postgres, "MEMORY_FOLDER", tmp_path)
    monkeypatch.setattr(postgres, "MIN_FREE_BYTES", room)
    assert postgres.find_memory_folder() == (tmp_path if is_taken else None)


def test_a_machine_without_such_a_place_uses_its_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "MEMORY_FOLDER", tmp_path / "not there")
    assert postgres.find_memory_folder() is None
