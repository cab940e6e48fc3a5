"""Lines that handlers logged, by level, attempt and words. One look is bounded, as for runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import asyncpg
import msgspec

from bellringer.runs import RunKey
from bellringer.store.pool import Store
from bellringer.store.queries import load
from bellringer.store.runs import LogRow

_SQL = load("logs")

LEVELS: Final = ("debug", "info", "warning", "error")
SCAN: Final = 10_000  # lines that one look passes by


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFilter:
    """Which lines: of this level or above it, of one attempt, with these words; None: all."""

    level: str | None = None
    attempt: int | None = None
    q: str | None = None

    def arguments(self) -> tuple[list[str] | None, int | None, str | None]:
        levels = None if self.level is None else list(LEVELS[LEVELS.index(self.level) :])
        return levels, self.attempt, self.q


@dataclass(frozen=True, slots=True, kw_only=True)
class LinePage:
    """Lines; `stop` is how far was looked where there may be more."""

    lines: Sequence[LogRow]
    stop: int | None


async def after(store: Store, key: RunKey, f: LineFilter, line: int, most: int) -> LinePage:
    """The lines after one, oldest first."""
    where = (key.job_id, key.scheduled_for, key.slot)
    rows = await store.pool.fetch(_SQL.after, *where, line, most + 1, SCAN, *f.arguments())
    lines = [_line(row) for row in rows if row["line"] is not None]
    if len(lines) > most:
        return LinePage(lines=lines[:most], stop=lines[most - 1].line)
    return LinePage(lines=lines, stop=rows[0]["stop"] if rows[0]["scanned"] == SCAN else None)


async def tail(store: Store, key: RunKey, f: LineFilter, most: int) -> list[LogRow]:
    """The last lines, oldest first."""
    rows = await store.pool.fetch(_SQL.tail, key.job_id, key.scheduled_for, key.slot, most, SCAN, *f.arguments())
    return [_line(row) for row in rows]


def _line(row: asyncpg.Record) -> LogRow:
    fields: Any = None if row["fields"] is None else msgspec.json.decode(row["fields"])
    values = {name: row[name] for name in ("attempt", "line", "at", "level", "message")}
    return LogRow(**values, fields=fields)
