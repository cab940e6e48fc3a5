"""Reads the CPU time of process trees from /proc."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


def cpu_seconds(groups: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Returns the CPU seconds of each group of processes, with their descendants, ended ones included."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and (fields := stat_fields(int(entry.name))):
            pid = int(entry.name)
            children.setdefault(int(fields[1]), []).append(pid)
            ticks[pid] = sum(map(int, fields[11:15]))  # own, and of children whose end the process has noticed
    return {name: _sum_tree(pids, children, ticks) / _TICKS_PER_SECOND for name, pids in groups.items()}


def _sum_tree(roots: Sequence[int], children: Mapping[int, Sequence[int]], ticks: Mapping[int, int]) -> int:
    left, total = list(roots), 0
    while left:
        pid = left.pop()
        total += ticks.get(pid, 0)
        left.extend(children.get(pid, ()))
    return total


def stat_fields(pid: int) -> list[str]:
    """Returns the fields of a process after its name, which may contain spaces and brackets: state, parent, …"""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
