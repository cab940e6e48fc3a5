"""The tool that takes the pictures of the console works, and the documentation shows all of its pictures."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import asyncpg
import pytest
from tools.screenshots.__main__ import FOLDER
from tools.screenshots.pictures import (
    HEIGHT,
    PAGES,
    THEMES,
    WIDTH,
    find_chromium,
    open_bookshop,
    picture_path,
    take_pictures,
)
from tools.screenshots.png import size_of

from bellringer.testing.postgres import TestServer

MAX_BYTES = 150_000
MAX_TOTAL_BYTES = 3_000_000
ALL = [(name, theme) for name in PAGES for theme in THEMES]


def test_the_tool_takes_pictures_of_a_bookshop_with_a_past(bellringer_server: TestServer, tmp_path: Path) -> None:
    chromium = find_chromium()
    if chromium is None:
        give_up = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        give_up("there is no Chromium; `make browser` as root installs it")
    with bellringer_server.plain_database() as dsn, open_bookshop(tmp_path, dsn) as bookshop:
        paths = take_pictures(bookshop, tmp_path / "images", ["overview", "run"], chromium=chromium)
        assert asyncio.run(count_dead_runs(dsn)) > 10
    assert [path.name for path in paths] == ["overview-light.png", "run-light.png", "overview-dark.png", "run-dark.png"]
    for path in paths:
        assert size_of(path.read_bytes()) == (WIDTH, HEIGHT)
        assert 10_000 < path.stat().st_size < MAX_BYTES


async def count_dead_runs(dsn: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        found: int = await connection.fetchval("select count(*) from bellringer.attempts where ends_as = 'dead'")
        return found
    finally:
        await connection.close()


@pytest.mark.parametrize(("name", "theme"), ALL)
def test_every_page_has_a_small_picture_of_the_right_size(name: str, theme: str) -> None:
    picture = picture_path(FOLDER, name, theme)
    assert size_of(picture.read_bytes()) == (WIDTH, HEIGHT)
    assert picture.stat().st_size < MAX_BYTES


def test_all_pictures_together_are_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*.png")) < MAX_TOTAL_BYTES


@pytest.mark.parametrize(("name", "theme"), ALL)
def test_the_documentation_shows_every_picture(name: str, theme: str) -> None:
    shown = f"images/{picture_path(FOLDER, name, theme).relative_to(FOLDER)}#gh-{theme}-mode-only"
    assert shown in (FOLDER.parent / "console.md").read_text()
