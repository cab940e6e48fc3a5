"""The number of processors that this process may use."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

CGROUP_ROOT: Final = Path("/sys/fs/cgroup")
OWN_CGROUP: Final = Path("/proc/self/cgroup")


def available_cpus(cgroup_root: Path = CGROUP_ROOT, own_cgroup: Path = OWN_CGROUP) -> int:
    """Returns the number of processors in the affinity mask, or the limit of the control group if that is lower.

    A fraction of a processor counts as a whole one: 1.5 processors keep two processes busy.
    """
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limits = [math.ceil(limit) for limit in _cgroup_limits(cgroup_root, own_cgroup)]
    return max(1, min([count, *limits]))


def _cgroup_limits(root: Path, own: Path) -> Iterator[float]:
    """Yields the limits of our control group and of all groups above it, of versions 2 and 1."""
    for line in _read(own).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            for folder in _upwards(root, path):
                quota, _, period = _read(folder / "cpu.max").partition(" ")
                yield from _limit(quota, period)
        elif "cpu" in controllers.split(","):
            for folder in _upwards(root / "cpu", path):
                yield from _limit(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))


def _upwards(root: Path, path: str) -> Iterator[Path]:
    """Yields the folder of a group and its parents up to the root. Inside a container the path may not exist there."""
    folder = root / path.lstrip("/")
    yield from (folder, *(parent for parent in folder.parents if parent.is_relative_to(root)))


def _limit(quota: str, period: str) -> Iterator[float]:
    with suppress(ValueError, ZeroDivisionError):  # "max", or no such file: no limit
        limit = int(quota) / int(period)
        if limit > 0:  # version 1 writes -1 for no limit
            yield limit


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
