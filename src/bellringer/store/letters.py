"""Dead letters in the database: lists by a filter, and groups of those that died of the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import asyncpg
import msgspec

from bellringer.runs import RunKey
from bellringer.store.pool import Store
from bellringer.store.queries import load
from bellringer.store.runs import DeadLetter

_SQL = load("letters")

SCAN: Final = 10_000  # letters that one look passes by
MOST_COUNTED: Final = 40_000  # letters that are counted for one page of groups


class LetterFilter(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Which dead letters; None: all."""

    fingerprint: str | None = None
    job: UUID | None = None
    task: str | None = None


@dataclass(frozen=True, slots=True)
class LetterPlace:
    """Where a page ended."""

    key: RunKey
    died_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterPage:
    """Dead letters, the newest first; `stop` is None at the end of the list."""

    places: Sequence[LetterPlace]
    stop: LetterPlace | None

    @property
    def keys(self) -> list[RunKey]:
        return [place.key for place in self.places]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Dead letters that died of the same; what is told of them is that of the newest."""

    fingerprint: str
    count: int
    is_whole: bool  # False: there are more than were counted
    first_died: datetime
    last_died: datetime
    reason: str
    error: Any
    keys: Sequence[RunKey]  # a few of the newest
    jobs: Sequence[str]  # the names of theirs


async def page(store: Store, tenant_id: int, f: LetterFilter, after: LetterPlace | None, most: int) -> LetterPage:
    """The next of a list."""
    key = after.key if after else None
    mark = (after.died_at, key.job_id, key.scheduled_for, key.slot) if after and key else (None, None, None, None)
    scan = SCAN if f.job or f.task else most + 1
    rows = await store.pool.fetch(_SQL.page, tenant_id, f.fingerprint, f.job, f.task, *mark, scan, most + 1)
    places = [LetterPlace(_key(row), row["died_at"]) for row in rows if row["job_id"] is not None]
    if len(places) > most:
        return LetterPage(places=places[:most], stop=places[most - 1])
    return LetterPage(places=places, stop=_stop(rows[0]))


def _key(row: asyncpg.Record) -> RunKey:
    return RunKey(row["job_id"], row["scheduled_for"], row["slot"])


def _stop(row: asyncpg.Record) -> LetterPlace | None:
    if row["stop_at"] is None:
        return None
    return LetterPlace(RunKey(row["stop_job"], row["stop_at"], row["stop_slot"]), row["stop_died"])


async def items(store: Store, tenant_id: int, keys: Sequence[RunKey]) -> list[DeadLetter]:
    """These dead letters in their order."""
    columns = ([k.job_id for k in keys], [k.scheduled_for for k in keys], [k.slot for k in keys])
    return [
        DeadLetter(
            key=_key(row),
            **{name: row[name] for name in ("job", "task", "attempt", "died_at", "reason", "fingerprint")},
            error=_json(row["error"]),
        )
        for row in await store.pool.fetch(_SQL.items, tenant_id, *columns)
    ]


async def groups(store: Store, tenant_id: int, after: str | None, most: int) -> list[Group]:
    """Groups by their fingerprints, those after one."""
    counted = MOST_COUNTED // most
    rows = await store.pool.fetch(_SQL.groups, tenant_id, after, most, counted + 1)
    wanted = {job_id for row in rows for job_id in row["job_ids"]}
    names = {row["job_id"]: row["name"] for row in await store.pool.fetch(_SQL.job_names, tenant_id, list(wanted))}
    return [_group(row, counted, names) for row in rows]


def _group(row: asyncpg.Record, counted: int, names: Mapping[UUID, str]) -> Group:
    keys = [RunKey(*parts) for parts in zip(row["job_ids"], row["ats"], row["slots"], strict=True)]
    return Group(
        **{name: row[name] for name in ("fingerprint", "first_died", "last_died", "reason")},
        count=min(row["count"], counted),
        is_whole=row["count"] <= counted,
        error=_json(row["error"]),
        keys=keys,
        jobs=list(dict.fromkeys(names[key.job_id] for key in keys if key.job_id in names)),
    )


def _json(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)
