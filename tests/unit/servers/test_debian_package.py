"""Programs of Debian packages are used from the path, or unpacked without an installation."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.servers import debian_package

from bellringer.errors import ConfigError


def test_an_installed_program_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "pgbouncer"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = debian_package.find_program("pgbouncer", ("pgbouncer",), tmp_path / "downloads")
    assert found == debian_package.UnpackedProgram(program, {})
    assert not (tmp_path / "downloads").exists()


def test_a_program_that_cannot_be_downloaded_is_named_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="prometheus is not installed") as refused:
        debian_package.find_program("promtool", ("prometheus",), tmp_path / "downloads")
    assert "apt-get install prometheus" in refused.value.hint


def test_an_unpacked_program_comes_with_the_libraries_beside_it(tmp_path: Path) -> None:
    root = tmp_path / "debian"
    for file in ("usr/sbin/not-installed", "usr/lib/x86_64/libevent-2.1.so.7"):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    found = debian_package.find_program("not-installed", ("not-installed",), tmp_path)
    assert found.path == root / "usr/sbin/not-installed"
    assert found.environ == {"LD_LIBRARY_PATH": str(root / "usr/lib/x86_64")}
