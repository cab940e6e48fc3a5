"""The contract of a shared index of the times at which cohorts and timers become due."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Protocol


class TimeIndex(Protocol):
    """An index shared by schedulers that tells which shards have cohorts or timers due soon.

    The index may be out of date. Its methods never raise.
    """

    async def near(self, tokens: Mapping[int, int], since: datetime, until: datetime) -> frozenset[int]:
        """Return the shards to read from the database: shards with something due before `until`, and shards that were
        not filled under their current token after `since`."""
        ...

    async def fill(
        self, tokens: Mapping[int, int], at: datetime, due_times: Iterable[tuple[int, str, datetime]]
    ) -> None:
        """Replace the entries of these shards with (shard, entry name, due time), as read from the database at `at`."""
        ...

    async def close(self) -> None: ...
