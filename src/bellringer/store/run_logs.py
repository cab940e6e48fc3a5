"""Log lines of runs, filtered by level, attempt, source, time and text. Each scan is bounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import asyncpg
import msgspec

from bellringer.core.runs import RunKey
from bellringer.store.connection_pool import Store
from bellringer.store.queries import load
from bellringer.store.runs import LogRow

_SQL = load("run_logs")

LEVELS: Final = ("debug", "info", "warning", "error")
SOURCES: Final = ("ctx", "stdout", "stderr", "warnings", "logging")
MAX_LINES_SCANNED: Final = 10_000  # by one scan


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFilter:
    """Selects lines of at least this level, of one attempt, containing a text, from one of these sources, since a time;
    None selects all. The source `logging` stands for all loggers, `logging:a` also for loggers such as `a.b`.
    """

    level: str | None = None
    attempt: int | None = None
    q: str | None = None
    sources: Sequence[str] | None = None
    since: datetime | None = None

    def arguments(self) -> tuple[list[str] | None, int | None, str | None, list[str] | None, datetime | None]:
        levels = None if self.level is None else list(LEVELS[LEVELS.index(self.level) :])
        return levels, self.attempt, self.q, None if self.sources is None else list(self.sources), self.since


@dataclass(frozen=True, slots=True, kw_only=True)
class LinePage:
    """A page of lines; `stop` is the last scanned line if there may be more."""

    lines: Sequence[LogRow]
    stop: int | None


async def lines_after(store: Store, key: RunKey, f: LineFilter, line: int, limit: int) -> LinePage:
    """Returns the lines after one, oldest first."""
    where = (key.job_id, key.scheduled_for, key.slot)
    rows = await store.pool.fetch(_SQL.after, *where, line, limit + 1, MAX_LINES_SCANNED, *f.arguments())
    lines = [_line(row) for row in rows if row["line"] is not None]
    if len(lines) > limit:
        return LinePage(lines=lines[:limit], stop=lines[limit - 1].line)
    return LinePage(lines=lines, stop=rows[0]["stop"] if rows[0]["scanned"] == MAX_LINES_SCANNED else None)


async def last_lines(store: Store, key: RunKey, f: LineFilter, limit: int) -> list[LogRow]:
    """Returns the last matching lines, oldest first."""
    rows = await store.pool.fetch(
        _SQL.tail, key.job_id, key.scheduled_for, key.slot, limit, MAX_LINES_SCANNED, *f.arguments()
    )
    return [_line(row) for row in rows]


def _line(row: asyncpg.Record) -> LogRow:
    fields: Any = None if row["fields"] is None else msgspec.json.decode(row["fields"])
    values = {name: row[name] for name in ("attempt", "line", "at", "level", "message", "source")}
    return LogRow(**values, fields=fields)
