"""Processes and their database: migrate, refuse a wrong schema, use any PostgreSQL."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bellringer.testing.postgres import TestServer

BELLRINGER = Path(sys.executable).with_name("bellringer")


@pytest.fixture
def empty(bellringer_server: TestServer) -> Iterator[str]:
    """A database in which nothing is."""
    dsn = asyncio.run(bellringer_server.create_empty())
    yield dsn
    asyncio.run(bellringer_server.drop(dsn))


def call(folder: Path, dsn: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("BELLRINGER_")}
    return subprocess.run(
        [BELLRINGER, *arguments],
        cwd=folder,
        env={**environ, "BELLRINGER_DSN": dsn},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize("process", [["server", "--port", "0"], ["scheduler"], ["worker", "bellringer.demo:app"]])
def test_a_process_refuses_a_database_without_its_schema(tmp_path: Path, empty: str, process: list[str]) -> None:
    done = call(tmp_path, empty, *process)
    assert done.returncode == 1
    assert done.stderr.startswith("error: the database is at schema 0, this program needs ")
    assert done.stderr.endswith("hint: run `bellringer migrate`\n")


def test_migrate_applies_all_once_and_status_shows(tmp_path: Path, empty: str) -> None:
    before = call(tmp_path, empty, "migrate", "status")
    assert before.returncode == 1
    assert "pending  001_" in before.stdout
    assert "applied 001_" in call(tmp_path, empty, "migrate").stdout
    said = call(tmp_path, empty, "migrate").stdout.splitlines()
    assert said[0] == "the schema is current"
    assert said[1].startswith("row-level security is o")
    after = call(tmp_path, empty, "migrate", "status")
    assert after.returncode == 0
    assert "pending" not in after.stdout


def test_dev_uses_the_database_that_it_is_given(tmp_path: Path, empty: str) -> None:
    said = tmp_path / "said.log"
    with said.open("wb") as output:
        dev = subprocess.Popen(
            [BELLRINGER, "dev", "--port", "0"],
            cwd=tmp_path,
            env={**os.environ, "BELLRINGER_DSN": empty},
            stdout=output,
            stderr=output,
        )
    try:
        end = time.monotonic() + 20
        while "ready on" not in said.read_text() and time.monotonic() < end:
            time.sleep(0.1)
        assert "no app was given" in said.read_text()
        assert not (tmp_path / ".bellringer" / "postgres").exists()
    finally:
        dev.send_signal(signal.SIGINT)
        assert dev.wait(40) == 0
