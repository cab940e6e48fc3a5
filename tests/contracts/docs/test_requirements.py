"""docs/requirements.md lists every requirement once, and names only files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ROW = re.compile(r"^\| (\d+) \| (.+?) \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
ROWS = ROW.findall((ROOT / "docs" / "requirements.md").read_text())
REQUIREMENTS = 206


def paths(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_requirement_is_listed_once() -> None:
    assert [int(number) for number, *_ in ROWS] == list(range(1, REQUIREMENTS + 1))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_row_has_a_status_and_names_files_that_exist(row: tuple[str, ...]) -> None:
    _, _, status, implemented, covered = row
    assert re.fullmatch(r"yes|model|(?:partly|no): .{10,}", status)
    for path in paths(implemented):
        assert (ROOT / "src" / "bellringer" / path).exists() or (ROOT / path).exists(), path
    for path in paths(covered):
        assert (ROOT / "tests" / path).is_file(), path
    if status == "yes":
        assert paths(implemented)
        assert paths(covered) or "](" in covered
