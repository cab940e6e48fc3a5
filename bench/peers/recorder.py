"""Records executions in memory-mapped files: the handlers of all systems write them, the benchmark reads them.

Each process that executes jobs writes its own file of fixed-size slots. This module uses only the standard library,
because it runs in the environments of the peers too. `node/recorder.js` writes the same format.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

FOLDER_VARIABLE: Final = "BENCH_RECORDS"
SLOT: Final = struct.Struct("<IIQQ")  # batch, number, due and start in nanoseconds since the epoch
SLOTS_PER_FILE: Final = 65_536


class Execution(NamedTuple):
    batch: int
    number: int
    due_ns: int
    start_ns: int


class Recorder:
    """The writer of this process. Its file is created at the first execution, so after a fork each child has its own.

    Several threads may write: `next` on a counter is atomic, and each thread then writes only its own slot.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / f"{os.getpid()}-{time.monotonic_ns()}.records"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.ftruncate(descriptor, SLOT.size * SLOTS_PER_FILE)
            self._slots = mmap.mmap(descriptor, SLOT.size * SLOTS_PER_FILE)
        finally:
            os.close(descriptor)
        self._offsets = count(0, SLOT.size)

    def record(self, batch: int, number: int, due_us: int) -> None:
        start_ns = time.time_ns()
        SLOT.pack_into(self._slots, next(self._offsets), batch, number, due_us * 1000, start_ns)


_recorder: Recorder | None = None


def record(batch: int, number: int, due_us: int) -> None:
    """Record that a job starts now. The first thing that each handler calls."""
    global _recorder  # noqa: PLW0603 - one per process
    if _recorder is None:
        _recorder = Recorder(Path(os.environ[FOLDER_VARIABLE]))
    _recorder.record(batch, number, due_us)


def _forget() -> None:
    global _recorder  # noqa: PLW0603
    _recorder = None


os.register_at_fork(after_in_child=_forget)


@dataclass(slots=True)
class Recordings:
    """Reads the files of a folder while they are written. `poll` reads only what was added since the last call."""

    folder: Path
    by_batch: dict[int, list[Execution]] = field(default_factory=dict)
    _offsets: dict[Path, int] = field(default_factory=dict)

    def poll(self, batch: int) -> int:
        """Read new executions; returns the number of executions of this batch."""
        for path in self.folder.glob("*.records"):
            self._read(path)
        return len(self.by_batch.get(batch, ()))

    def of(self, batch: int) -> list[Execution]:
        return self.by_batch.get(batch, [])

    def _read(self, path: Path) -> None:
        offset = self._offsets.get(path, 0)
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read()
        for slot in SLOT.iter_unpack(data[: len(data) // SLOT.size * SLOT.size]):
            execution = Execution(*slot)
            if not execution.start_ns:  # not written yet; the next poll continues here
                break
            self.by_batch.setdefault(execution.batch, []).append(execution)
            offset += SLOT.size
        self._offsets[path] = offset
