"""Events in the database: what is late, what takes longer than usual; each is told once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

import asyncpg
import msgspec

from bellringer.runs import RunKey
from bellringer.store.pool import Store
from bellringer.store.queries import load

_SQL = load("events")
_LATEST: Final = (1 << 63) - 1  # beyond every event


class Kind(StrEnum):
    """What may be told."""

    FAILED = "failed"  # an attempt, and another follows
    DEAD = "dead"
    RECOVERED = "recovered"  # a job that was late, missed or dead, and has since run well
    LATE = "late"
    MISSED = "missed"
    SLOW = "slow"
    OUTGROWN = "outgrown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event as it is stored; lengths of time in `data` are seconds."""

    event_id: int
    at: datetime
    kind: str
    job: str | None
    key: RunKey
    attempt: int
    data: Mapping[str, Any]

    @property
    def run(self) -> RunKey | None:
        """The run that it is about; what was missed, or is late before its birth, has none, nor has an outgrown job."""
        born = not (self.kind == Kind.LATE and self.data.get("unborn"))
        return self.key if born and self.kind not in (Kind.MISSED, Kind.OUTGROWN) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """An event to be told, unless it was told before."""

    tenant_id: int
    kind: Kind
    key: RunKey
    attempt: int = 0
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """An attempt under way."""

    key: RunKey
    attempt: int
    claimed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """How long a job's last attempts took that ended well, in seconds, newest first; and what it runs by."""

    job_id: UUID
    tenant_id: int
    schedule_ids: Sequence[int]
    took: Sequence[float]


async def tell_waiting(store: Store, now: datetime, most: int) -> tuple[int, int]:
    """Tell of runs that should have started; answers how many were looked at, and how many are told of."""
    row = await store.pool.fetchrow(_SQL.tell_waiting, now, most)
    assert row is not None
    return row["looked"], row["told"]


async def tell_unborn(store: Store, now: datetime, most: int) -> int:
    """Tell of occurrences whose hand is so far behind that they are late before they are born."""
    told: int = await store.pool.fetchval(_SQL.tell_unborn, now, most)
    return told


async def tell(store: Store, now: datetime, news: Sequence[News]) -> Counter[Kind]:
    """Tell what was not told before; answers how much of each kind."""
    if not news:
        return Counter()
    rows = await store.pool.fetch(
        _SQL.tell,
        now,
        [n.tenant_id for n in news],
        [n.kind.value for n in news],
        [n.key.job_id for n in news],
        [n.key.scheduled_for for n in news],
        [n.key.slot for n in news],
        [n.attempt for n in news],
        [msgspec.json.encode(n.data).decode() for n in news],
    )
    return Counter(Kind(row["kind"]) for row in rows)


async def recover(store: Store, most: int) -> tuple[int, int, int]:
    """Note which jobs are in trouble, and tell which have recovered; answers how many events were read, and of each."""
    row = await store.pool.fetchrow(_SQL.recover, most)
    assert row is not None
    return row["looked"], row["noted"], row["recovered"]


async def running(store: Store, before: datetime, most: int, silent: timedelta) -> list[Running]:
    """Attempts that were claimed before then and are not told to be slow; a sample, where there are more.

    Those of workers that have been silent for so long are left out.
    """
    rows = await store.pool.fetch(_SQL.running, before, most, silent)
    return [
        Running(key=RunKey(job_id, scheduled_for, slot), attempt=attempt, claimed_at=claimed_at)
        for job_id, scheduled_for, slot, attempt, claimed_at in rows
    ]


async def histories(store: Store, job_ids: Sequence[UUID], look: int, most: int) -> list[History]:
    """The last `most` durations of jobs, among their newest `look` attempts."""
    return [History(**dict(row)) for row in await store.pool.fetch(_SQL.histories, job_ids, look, most)]


async def newest(
    store: Store,
    tenant_id: int,
    before: int | None,
    most: int,
    *,
    kind: str | None = None,
    job_id: UUID | None = None,
) -> list[Event]:
    """A tenant's newest events, those before an event where one is given."""
    bounds = (tenant_id, _LATEST if before is None else before, most)
    if job_id is not None:
        rows = await store.pool.fetch(_SQL.newest_of_job, *bounds, job_id, kind)
    elif kind is not None:
        rows = await store.pool.fetch(_SQL.newest_of_kind, *bounds, kind)
    else:
        rows = await store.pool.fetch(_SQL.newest, *bounds)
    return [_event(row) for row in rows]


def _event(row: asyncpg.Record) -> Event:
    values = dict(row)
    key = RunKey(values.pop("job_id"), values.pop("scheduled_for"), values.pop("slot"))
    return Event(**{**values, "key": key, "data": msgspec.json.decode(row["data"])})
