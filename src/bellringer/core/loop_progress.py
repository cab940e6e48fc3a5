"""Progress of background loops: when each one last completed an iteration, and which ones have stalled.

Health is judged by iterations that ended, successfully or not: restarting a process does not repair its database.
Metrics and readiness count only iterations that succeeded. Processes that share their metrics write their loops to a
file in the shared folder, so that a process that hangs is reported by the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from bellringer.clock import SystemClock
from bellringer.core.process_sums import ProcessSums

METRICS_FOLDER_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"
STALL_SECONDS: Final = 60.0  # longer than a statement can take, so that a silent database does not count as a stall
READY_SECONDS: Final = 15.0
READY_LOOPS: Final[Mapping[str, str]] = {"scheduler": "keep", "worker": "heartbeat"}  # the loop that proves readiness
_FILE_PREFIX: Final = "loops_"

loop_role: ContextVar[str] = ContextVar("loop_role", default="server")  # the role of the loops that a task starts
_clock: Final = SystemClock()


class LoopState(msgspec.Struct, eq=False):
    """One loop. Times are those of the monotonic clock, which all processes of a host share."""

    role: str
    name: str
    limit_seconds: float  # a loop without an iteration for this long has stalled
    ended_at: float
    succeeded_at: float

    def note_end(self, *, succeeded: bool) -> None:
        """Records the end of an iteration."""
        self.ended_at = _clock.monotonic()
        if succeeded:
            self.succeeded_at = self.ended_at

    @property
    def silent_seconds(self) -> float:
        """The time since an iteration ended."""
        return max(_clock.monotonic() - self.ended_at, 0.0)

    @property
    def age_seconds(self) -> float:
        """The time since an iteration succeeded, or since the loop started."""
        return max(_clock.monotonic() - self.succeeded_at, 0.0)


_loops: set[LoopState] = set()
ReadLoops = Callable[[], Iterable[LoopState]]
Health = tuple[bool, dict[str, Any]]


@contextmanager
def track_loop(name: str, limit_seconds: float) -> Iterator[LoopState]:
    """Registers a loop while it runs."""
    now = _clock.monotonic()
    state = LoopState(loop_role.get(), name, limit_seconds, now, now)
    _loops.add(state)
    try:
        yield state
    finally:
        _loops.discard(state)


def loops_of_process() -> list[LoopState]:
    return list(_loops)


def check_health(loops: Iterable[LoopState]) -> Health:
    """Returns whether all loops make progress, and the document for /healthz, which names those that do not."""
    stalled = {
        f"{loop.role} {loop.name}": f"no progress for {loop.silent_seconds:.0f} s"
        for loop in loops
        if loop.silent_seconds > loop.limit_seconds
    }
    return not stalled, {"status": "stalled", "checks": stalled} if stalled else {"status": "ok"}


def check_readiness(loops: Iterable[LoopState], role: str) -> Health:
    """Returns whether a scheduler or worker has joined and reached its database lately."""
    ages = [loop.age_seconds for loop in loops if (loop.role, loop.name) == (role, READY_LOOPS[role])]
    if not ages:
        return False, {"status": "not_ready", "checks": {"process": "starting or stopping"}}
    if max(ages) > READY_SECONDS:
        return False, {"status": "not_ready", "checks": {"database": f"no answer for {max(ages):.0f} s"}}
    return True, {"status": "ready", "checks": {"process": "ok", "database": "ok"}}


class LoopCollector(Collector):
    """Collects the age of each loop when it is scraped. Of several loops with the same name, the oldest counts."""

    def __init__(self, read: ReadLoops = loops_of_process) -> None:
        self._read = read

    def describe(self) -> list[GaugeMetricFamily]:
        return list(self._families())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        ages, limits = self._families()
        oldest: dict[tuple[str, str], LoopState] = {}
        for loop in sorted(self._read(), key=lambda loop: -loop.succeeded_at):
            oldest[loop.role, loop.name] = loop
        for labels, loop in sorted(oldest.items()):
            ages.add_metric(labels, loop.age_seconds)
            limits.add_metric(labels, loop.limit_seconds)
        yield ages
        yield limits

    def _families(self) -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
        labels = ["role", "loop"]
        return (
            GaugeMetricFamily(
                "bellringer_loop_age_seconds", "Time since a background loop last completed an iteration", labels=labels
            ),
            GaugeMetricFamily(
                "bellringer_loop_limit_seconds", "Age from which a background loop counts as stalled", labels=labels
            ),
        )


REGISTRY.register(LoopCollector())


def create_registry() -> CollectorRegistry:
    """Returns the registry to scrape: that of this process or, with several processes, one that merges their files."""
    folder = shared_folder()
    if folder is None:
        return REGISTRY
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(folder))  # type: ignore[no-untyped-call]
    registry.register(LoopCollector(loops_of_all_processes))
    registry.register(_process_sums(folder))
    return registry


@lru_cache(maxsize=1)
def _process_sums(folder: Path) -> ProcessSums:
    """Returns the collector of the processes that share their metrics. Cached, because it remembers earlier scrapes."""
    return ProcessSums(os.getppid(), lambda: {os.getpid(), *_pids_of_shared(folder)})


def shared_folder() -> Path | None:
    """Returns the folder in which several processes share their metrics, if this process does."""
    return Path(os.environ[METRICS_FOLDER_VARIABLE]) if METRICS_FOLDER_VARIABLE in os.environ else None


def loops_of_all_processes() -> list[LoopState]:
    """Returns the loops of this process, and those of the processes that share their metrics with it."""
    folder = shared_folder()
    return loops_of_process() + (read_shared(folder, without=os.getpid()) if folder else [])


def write_shared() -> None:
    """Writes the loops of this process for other processes, if they share their metrics."""
    folder = shared_folder()
    if folder is None:
        return
    path = folder / f"{_FILE_PREFIX}{os.getpid()}.json"
    unnamed = path.with_suffix(".new")
    with suppress(OSError):  # the folder is deleted when its owner ends
        unnamed.write_bytes(msgspec.json.encode(loops_of_process()))
        unnamed.replace(path)


def read_shared(folder: Path, *, without: int = 0) -> list[LoopState]:
    """Reads the loops of the other live processes, and deletes the files of processes that have ended."""
    found: list[LoopState] = []
    for path in folder.glob(f"{_FILE_PREFIX}*.json"):
        pid = int(path.stem.removeprefix(_FILE_PREFIX))
        if not is_process_alive(pid):
            path.unlink(missing_ok=True)
        elif pid != without:
            with suppress(OSError, msgspec.DecodeError):
                found += msgspec.json.decode(path.read_bytes(), type=list[LoopState])
    return found


def _pids_of_shared(folder: Path) -> list[int]:
    pids = (int(path.stem.removeprefix(_FILE_PREFIX)) for path in folder.glob(f"{_FILE_PREFIX}*.json"))
    return [pid for pid in pids if is_process_alive(pid)]


def is_process_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
