"""Folders in which the processes of a worker count."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from bellringer.supervise.role_processes import open_metrics_folder


def test_folders_of_killed_supervisors_are_deleted_and_others_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / "bellringer-worker-metrics-left"
    left.mkdir()
    (left / "lock").touch()
    (left / "counter_1.db").touch()
    with open_metrics_folder() as first, open_metrics_folder() as second:
        assert not left.exists()
        assert first.path.exists()
        assert second.path.exists()
    assert list(tmp_path.iterdir()) == []
