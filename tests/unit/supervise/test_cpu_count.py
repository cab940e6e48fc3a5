"""The number of processors: affinity and limits of control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bellringer.supervise.cpu_count import available_cpus


@pytest.fixture(autouse=True)
def _eight_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))


def cgroup(folder: Path, own: str, files: dict[str, str]) -> tuple[Path, Path]:
    root = folder / "cgroup"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (folder / "own").write_text(own)
    return root, folder / "own"


@pytest.mark.parametrize(
    ("own", "files", "count"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n"}, 8),
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "10000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "1600000 100000\n"}, 8),
        ("0::/pod/app\n", {"pod/app/cpu.max": "max 100000\n", "pod/cpu.max": "300000 100000\n"}, 3),
        ("0::/not/seen/from/here\n", {"cpu.max": "400000 100000\n"}, 4),
        ("3:cpu,cpuacct:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ("3:cpu,cpuacct:/\n", {"cpu/cpu.cfs_quota_us": "250000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ("2:cpuset:/\n", {"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ("nonsense\n", {"cpu.max": "nonsense\n"}, 8),
    ],
)
def test_limits_of_control_groups_are_respected(tmp_path: Path, own: str, files: dict[str, str], count: int) -> None:
    assert available_cpus(*cgroup(tmp_path, own, files)) == count


def test_without_control_groups_the_affinity_decides(tmp_path: Path) -> None:
    assert available_cpus(tmp_path / "none", tmp_path / "nothing") == 8
