"""Which rules of the time zones are in use: what zoneinfo would read, told by its version."""

from __future__ import annotations

import zoneinfo
from collections.abc import Iterator
from pathlib import Path

import pytest
import tzdata  # type: ignore[import-untyped]

from bellringer.schedule.time_zones import TzRules, installed_tz_version

SYSTEM = zoneinfo.TZPATH


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where zoneinfo looks first; one zone is in it."""
    (tmp_path / "Europe").mkdir()
    (tmp_path / "Europe" / "Paris").write_bytes(b"TZif one")
    zoneinfo.reset_tzpath(to=[str(tmp_path), *SYSTEM])
    yield tmp_path
    zoneinfo.reset_tzpath(to=SYSTEM)


@pytest.mark.parametrize(
    ("name", "text"),
    [("tzdata.zi", "# version 2031b\n# more\n"), ("+VERSION", "2031b"), ("version", "2031b\n")],
)
def test_the_folder_that_zones_are_read_from_says_its_version(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    assert installed_tz_version() == "2031b"


def test_a_folder_without_zones_is_passed_over(tmp_path: Path, folder: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "version").write_text("1999a")
    (folder / "version").write_text("2031b")
    zoneinfo.reset_tzpath(to=[str(empty), str(folder)])
    assert installed_tz_version() == "2031b"


@pytest.mark.parametrize("text", [None, "# version unknown\n", ""])
def test_zones_without_a_version_are_reported_by_their_content(folder: Path, text: str | None) -> None:
    if text is not None:
        (folder / "tzdata.zi").write_text(text)
    before = installed_tz_version()
    assert before.startswith("sha256:")
    assert installed_tz_version() == before
    (folder / "Europe" / "Paris").write_bytes(b"TZif two")
    assert installed_tz_version() != before


def test_without_such_a_folder_it_is_the_package(tmp_path: Path) -> None:
    zoneinfo.reset_tzpath(to=[str(tmp_path)])
    try:
        assert installed_tz_version() == tzdata.IANA_VERSION
    finally:
        zoneinfo.reset_tzpath(to=SYSTEM)


def test_versions_are_ordered_by_name_or_else_by_when_they_were_seen() -> None:
    assert TzRules(1, "2026b").newer_than(TzRules(2, "2026a"))
    assert TzRules(1, "2026za").newer_than(TzRules(2, "2026z"))
    assert not TzRules(2, "2025z").newer_than(TzRules(1, "2026a"))
    assert TzRules(2, "sha256:0").newer_than(TzRules(1, "2026a"))
    assert not TzRules(1, "2026a").newer_than(TzRules(2, "sha256:0"))
    assert not TzRules(1, "2026a").newer_than(TzRules(1, "2026a"))
