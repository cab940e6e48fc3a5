"""Processor time, memory and open files of several processes that present as one.

prometheus_client exports the `process_…` metrics of a single process only: in its multiprocess mode, none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Final

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

_CPU: Final = "process_cpu_seconds"
_MEMORY: Final = "process_resident_memory_bytes"
_FILES: Final = "process_open_fds"
_START: Final = "process_start_time_seconds"
_CHILDREN_TIMES: Final = slice(13, 15)  # cutime and cstime, counted from the field after the name


class ProcessSums(Collector):
    """Collects the sums over a supervisor and its processes. Exports nothing where there is no /proc."""

    def __init__(self, supervisor: int, pids: Callable[[], Iterable[int]]) -> None:
        self._supervisor = supervisor
        self._pids = pids
        self._lock = Lock()  # metrics servers have several threads
        self._cpu_seconds = 0.0

    def describe(self) -> list[Metric]:
        return list(self._families(dict.fromkeys((_CPU, _MEMORY, _FILES, _START), 0.0)))

    def collect(self) -> Iterator[Metric]:
        started = _read_process(self._supervisor).get(_START)
        if started is None:
            return
        sums = {_CPU: _processor_time_of_ended(self._supervisor), _MEMORY: 0.0, _FILES: 0.0}
        for pid in {self._supervisor, *self._pids()}:
            found = _read_process(pid)
            for name in sums:
                sums[name] += found.get(name, 0.0)
        with self._lock:
            # A process that ended between the two reads is in neither of them, and a counter must not decrease.
            self._cpu_seconds = sums[_CPU] = max(self._cpu_seconds, sums[_CPU])
        yield from self._families({**sums, _START: started})

    def _families(self, values: dict[str, float]) -> Iterator[Metric]:
        yield CounterMetricFamily(_CPU, "Processor time of the supervisor and its processes", values[_CPU])
        yield GaugeMetricFamily(_MEMORY, "Resident memory of the supervisor and its processes", values[_MEMORY])
        yield GaugeMetricFamily(_FILES, "Open files of the supervisor and its processes", values[_FILES])
        yield GaugeMetricFamily(_START, "Start time of the supervisor", values[_START])


def _read_process(pid: int) -> dict[str, float]:
    """Returns the metrics of a process by name; none if it has ended."""
    metrics = ProcessCollector(registry=None, pid=partial(str, pid)).collect()
    return {metric.name: sum(sample.value for sample in metric.samples) for metric in metrics}


def _processor_time_of_ended(pid: int) -> float:
    """Returns the processor time of the children of a process that have ended, and of theirs."""
    with suppress(OSError, ValueError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(float, fields[_CHILDREN_TIMES])) / os.sysconf("SC_CLK_TCK")
    return 0.0
