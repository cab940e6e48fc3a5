"""Rows of many jobs, read a page at a time; no transaction stays open, so nothing is kept from being vacuumed."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import asyncpg

PAGE: Final = 5000


class Feed:
    """The rows of some jobs, job by job, in the order of a key: as many columns after the job's as `first` has."""

    def __init__(
        self, connection: asyncpg.Connection[Any], statement: str, jobs: Sequence[UUID], first: tuple[Any, ...],
        start: datetime, end: datetime,
    ) -> None:  # fmt: skip
        self._connection = connection
        self._statement = statement
        self._jobs = jobs
        self._first = first
        self._window = (start, end)
        self._page: deque[asyncpg.Record] = deque()
        self._key = first  # how far the first of the jobs has been read
        self._more = True

    async def head(self, job_id: UUID) -> asyncpg.Record | None:
        """The next row, if it is this job's."""
        if not self._page and self._more:
            await self._read()
        return self._page[0] if self._page and self._page[0][0] == job_id else None

    def drop(self) -> None:
        self._page.popleft()

    async def close(self) -> None:
        """All rows should have been taken by now."""
        if self._page or (self._more and await self._read()):
            raise RuntimeError(f"rows of {self._page[0][0]} came out of order")

    async def _read(self) -> int:
        rest = [self._first] * (len(self._jobs) - 1)
        keys = zip(self._key, *rest, strict=True)
        rows = await self._connection.fetch(self._statement, self._jobs, *keys, *self._window, PAGE)
        self._page.extend(rows)
        self._more = len(rows) == PAGE
        if rows:
            job_id, *key = rows[-1][: len(self._first) + 1]
            self._jobs = self._jobs[self._jobs.index(job_id) :]
            self._key = tuple(key)
        return len(rows)
