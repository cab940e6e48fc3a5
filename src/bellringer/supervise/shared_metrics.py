"""Metrics of several processes in one folder: files that prometheus_client maps into memory and sums (multiprocess
mode). A process finds the folder in PROMETHEUS_MULTIPROC_DIR.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from prometheus_client.mmap_dict import MmapedDict

from bellringer.core.loop_progress import is_process_alive

_FILE: Final = re.compile(r"(?P<kind>\w+?)_(?P<pid>\d+)\.db")
_ENDED: Final = 0  # in place of a pid: the sums of processes that have ended


def clear(folder: Path) -> None:
    """Creates the folder, or deletes the metrics of earlier processes in it."""
    folder.mkdir(exist_ok=True)
    for left in (*folder.glob("*.db"), *folder.glob("loops_*.json")):
        left.unlink(missing_ok=True)


def delete_gauges(folder: Path, pid: int) -> None:
    """Deletes the gauges of a process that has ended. Its counters and histograms still count."""
    for left in folder.glob(f"gauge_*_{pid}.db"):
        left.unlink(missing_ok=True)


def merge_ended(folder: Path) -> None:
    """Adds the counters and histograms of all processes that have ended to one file per kind, and deletes their gauges.

    So the number of files stays bounded however often processes are replaced. Must not run during a scrape.
    """
    for kind, path in _ended(folder):
        if not kind.startswith("gauge"):
            _add(path, folder / f"{kind}_{_ENDED}.db")
        path.unlink()


def _ended(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.glob("*.db")):
        named = _FILE.fullmatch(path.name)
        if named and int(named["pid"]) != _ENDED and not is_process_alive(int(named["pid"])):
            yield named["kind"], path


def _add(source: Path, target: Path) -> None:
    sums = MmapedDict(str(target))  # type: ignore[no-untyped-call]
    try:
        for key, value, _, _ in MmapedDict.read_all_values_from_file(str(source)):  # type: ignore[no-untyped-call]
            sums.write_value(key, sums.read_value(key)[0] + value, 0.0)  # type: ignore[no-untyped-call]
    finally:
        sums.close()  # type: ignore[no-untyped-call]
