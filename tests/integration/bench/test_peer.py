"""`python -m bench peer`: DBOS is installed once, has a time limit, and failures are reported with a reason."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import asyncpg
import pytest
from bench import peer
from bench.peer import cache, install, measure_peer

from bellringer.bench import database
from bellringer.errors import Unavailable


async def databases(dsn: str) -> set[str]:
    connection = await asyncpg.connect(dsn)
    try:
        return {row["datname"] for row in await connection.fetch("select datname from pg_database")}
    finally:
        await connection.close()


async def test_without_its_package_there_are_no_figures_but_a_reason(
    bellringer_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    figures = await measure_peer(bellringer_dsn, 5)
    assert figures.keys() == {"peer", "why"}
    assert figures["peer"] is None
    assert f"dbos=={peer.VERSION}" in figures["why"]
    assert not (cache() / "whole").exists(), "an environment without it does not count as installed"


def test_a_folder_that_cannot_be_written_is_a_reason_too(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match="could not be installed"):
        install(tmp_path / "file" / "folder")


def test_an_environment_that_is_whole_is_taken_as_it_is(tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    (tmp_path / "whole").touch()
    assert install(tmp_path) == python


def test_what_takes_too_long_is_ended(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="not done after 1 s"):
        peer._run([sys.executable, "-c", "import time; time.sleep(60)"], 1.0)


def test_what_says_no_figures_is_reported_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "says.py"
    script.write_text("print('nothing of use')")
    monkeypatch.setattr(peer, "SCRIPT", script)
    with pytest.raises(Unavailable, match="no figures"):
        peer._measure(Path(sys.executable), "postgres://nobody", 5)


@pytest.mark.cluster
async def test_it_measures_a_chain_in_a_database_of_its_own_and_leaves_nothing(
    bellringer_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []  # its own: others may use this server too

    async def create_empty(dsn: str) -> str:
        made.append(await database.create_empty(dsn))
        return made[-1]

    monkeypatch.setattr(peer, "database", SimpleNamespace(create_empty=create_empty, drop=database.drop))
    figures = await measure_peer(bellringer_dsn, 5)
    if figures["peer"] is None and "dbos==" in figures["why"]:
        give_up = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        give_up(figures["why"])
    assert figures["peer"] == f"dbos {peer.VERSION}", figures
    assert figures["chain"] == 5
    for way in ("steps", "queued", "relayed"):
        hops = figures[f"{way}_hop_ms"]
        assert 0 < hops["p50"] <= hops["p99"] <= hops["max"], way
    assert figures["queued_usual_poll_hop_ms"] > figures["poll_ms"]
    (address,) = made
    assert urlsplit(address).path.strip("/") not in await databases(bellringer_dsn)
