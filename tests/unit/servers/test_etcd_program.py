"""Which etcd is used: a sound one, from the path or from Debian's package."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.servers import etcd_program

from bellringer.errors import ConfigError


@pytest.mark.parametrize(
    ("version", "is_sound"),
    [
        ("3.4.23", True),
        ("3.5.0", False),
        ("3.5.1", False),
        ("3.5.5", False),
        ("3.5.6", True),
        ("3.5.16", True),
        ("3.6.0", True),
    ],
)
def test_versions_that_their_maintainers_advise_against_are_refused(version: str, *, is_sound: bool) -> None:
    assert etcd_program.is_sound(version) is is_sound


def test_an_unsound_etcd_in_the_path_is_named_where_there_is_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "etcd"
    program.write_text("#!/bin/sh\necho 'etcd Version: 3.5.1'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        ConfigError, match=r"etcd is 3\.5\.1, which may lose or mix up data; no etcd was found"
    ) as refused:
        etcd_program.get(tmp_path / "downloads")
    assert "3.5.6 or newer" in refused.value.hint
    assert not (tmp_path / "downloads" / "debian").exists()
