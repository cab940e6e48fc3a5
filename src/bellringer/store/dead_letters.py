"""Dead letters: filtered lists, and groups of dead letters with the same error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import asyncpg
import msgspec

from bellringer.core.runs import RunKey
from bellringer.store.connection_pool import Store
from bellringer.store.queries import load
from bellringer.store.runs import DeadLetterRow

_SQL = load("dead_letters")

DISCARDS_KEPT: Final = timedelta(days=1)  # how long discarded dead letters can be restored
MAX_LETTERS_SCANNED: Final = 10_000  # by one scan
MAX_LETTERS_COUNTED: Final = 40_000  # for one page of groups


class DeadLetterFilter(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Selects dead letters; None selects all."""

    fingerprint: str | None = None
    job: UUID | None = None
    task: str | None = None


@dataclass(frozen=True, slots=True)
class DeadLetterPosition:
    """The position after a page."""

    key: RunKey
    died_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterRows:
    """A page of dead letters, newest first; `stop` is None at the end of the list."""

    positions: Sequence[DeadLetterPosition]
    stop: DeadLetterPosition | None

    @property
    def keys(self) -> list[RunKey]:
        return [place.key for place in self.positions]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterGroup:
    """Dead letters with the same error fingerprint; reason and error are those of the newest."""

    fingerprint: str
    count: int
    is_whole: bool  # False: the group has more than were counted
    first_died: datetime
    last_died: datetime
    reason: str
    error: Any
    keys: Sequence[RunKey]  # some of the newest
    jobs: Sequence[str]  # names of their jobs


class DiscardFilter(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Selects discarded dead letters; None selects all."""

    fingerprint: str | None = None
    operation: int | None = None  # discarded by this operation


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardedRow:
    """A discarded dead letter."""

    letter: DeadLetterRow
    discarded_at: datetime
    discarded_by: str | None
    operation_id: int | None


async def find_dead_letters(
    store: Store, tenant_id: int, f: DeadLetterFilter, after: DeadLetterPosition | None, limit: int
) -> DeadLetterRows:
    """Returns the next page of a filtered list."""
    key = after.key if after else None
    position_values = (
        (after.died_at, key.job_id, key.scheduled_for, key.slot) if after and key else (None, None, None, None)
    )
    scan = MAX_LETTERS_SCANNED if f.job or f.task else limit + 1
    rows = await store.pool.fetch(_SQL.page, tenant_id, f.fingerprint, f.job, f.task, *position_values, scan, limit + 1)
    positions = [DeadLetterPosition(_key(row), row["died_at"]) for row in rows if row["job_id"] is not None]
    if len(positions) > limit:
        return DeadLetterRows(positions=positions[:limit], stop=positions[limit - 1])
    return DeadLetterRows(positions=positions, stop=_stop(rows[0]))


def _key(row: asyncpg.Record) -> RunKey:
    return RunKey(row["job_id"], row["scheduled_for"], row["slot"])


def _stop(row: asyncpg.Record) -> DeadLetterPosition | None:
    if row["stop_at"] is None:
        return None
    return DeadLetterPosition(RunKey(row["stop_job"], row["stop_at"], row["stop_slot"]), row["stop_died"])


async def load_dead_letters(store: Store, tenant_id: int, keys: Sequence[RunKey]) -> list[DeadLetterRow]:
    """Returns these dead letters in the given order."""
    columns = ([k.job_id for k in keys], [k.scheduled_for for k in keys], [k.slot for k in keys])
    return [_letter(row) for row in await store.pool.fetch(_SQL.items, tenant_id, *columns)]


def _letter(row: asyncpg.Record) -> DeadLetterRow:
    return DeadLetterRow(
        key=_key(row),
        **{name: row[name] for name in ("job", "task", "attempt", "died_at", "reason", "fingerprint")},
        error=_json(row["error"]),
    )


async def list_groups(store: Store, tenant_id: int, after: str | None, limit: int) -> list[DeadLetterGroup]:
    """Returns groups ordered by fingerprint, after a given one."""
    counted = MAX_LETTERS_COUNTED // limit
    rows = await store.pool.fetch(_SQL.groups, tenant_id, after, limit, counted + 1)
    wanted = {job_id for row in rows for job_id in row["job_ids"]}
    names = {row["job_id"]: row["name"] for row in await store.pool.fetch(_SQL.job_names, tenant_id, list(wanted))}
    return [_group(row, counted, names) for row in rows]


def _group(row: asyncpg.Record, counted: int, names: Mapping[UUID, str]) -> DeadLetterGroup:
    keys = [RunKey(*parts) for parts in zip(row["job_ids"], row["ats"], row["slots"], strict=True)]
    return DeadLetterGroup(
        **{name: row[name] for name in ("fingerprint", "first_died", "last_died", "reason")},
        count=min(row["count"], counted),
        is_whole=row["count"] <= counted,
        error=_json(row["error"]),
        keys=keys,
        jobs=list(dict.fromkeys(names[key.job_id] for key in keys if key.job_id in names)),
    )


def _json(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)


async def list_discarded(
    store: Store, tenant_id: int, f: DiscardFilter, since: datetime, after: DeadLetterPosition | None, limit: int
) -> list[DiscardedRow]:
    """Returns dead letters that were discarded after `since`, the latest first; `died_at` of the position is the time
    of the discard.
    """
    key = after.key if after else None
    place = (after.died_at, key.job_id, key.scheduled_for, key.slot) if after and key else (None, None, None, None)
    rows = await store.pool.fetch(_SQL.discarded, tenant_id, since, f.fingerprint, f.operation, *place, limit)
    return [
        DiscardedRow(
            letter=_letter(row), **{name: row[name] for name in ("discarded_at", "discarded_by", "operation_id")}
        )
        for row in rows
    ]


async def discarded_keys(store: Store, tenant_id: int, f: DiscardFilter, since: datetime, limit: int) -> list[RunKey]:
    """Returns keys of dead letters that were discarded after `since`, in no particular order."""
    rows = await store.pool.fetch(_SQL.discarded_keys, tenant_id, since, f.fingerprint, f.operation, limit)
    return [_key(row) for row in rows]
