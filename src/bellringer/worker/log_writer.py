"""Stores the log lines of handlers in batches."""

from __future__ import annotations

from collections import deque
from typing import Final

from bellringer.store import partitions, queue
from bellringer.store.connection_pool import DATABASE_ERRORS, Store
from bellringer.telemetry import log
from bellringer.worker.attempt import LogLine

MAX_LOG_LINES_PER_BATCH: Final = 5_000
MAX_WAITING_LOG_LINES: Final = 100_000  # while the database is slow or away; further lines are dropped


class LogWriter:
    """Collects lines from the threads of handlers, and stores them when the worker calls `write`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: deque[LogLine] = deque()
        self._dropped = 0

    def __bool__(self) -> bool:
        """Whether lines wait to be stored."""
        return bool(self._waiting)

    def add(self, line: LogLine) -> None:
        if len(self._waiting) < MAX_WAITING_LOG_LINES:
            self._waiting.append(line)
        else:
            self._dropped += 1

    async def write(self) -> None:
        """Store the waiting lines. If the database fails, they wait for the next call."""
        if self._dropped:
            log.warning("log lines of runs dropped: the database is too slow", lines=self._dropped)
            self._dropped = 0
        while lines := [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_LOG_LINES_PER_BATCH))]:
            try:
                await partitions.ensure_days(self._store, {line.key.scheduled_for.date() for line in lines})
                await queue.add_log_lines(self._store, [line.row for line in lines])
            except DATABASE_ERRORS:
                self._waiting.extendleft(reversed(lines))
                raise
