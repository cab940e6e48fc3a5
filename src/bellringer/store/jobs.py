"""Jobs in the database: the definitions, and the calls that change them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from bellringer.errors import Conflict
from bellringer.jobs import Definition
from bellringer.policies import Catchup, Delivery, Limit, Misfire, Overlap, Retry
from bellringer.runs import Spec
from bellringer.schedule import Schedule, parse
from bellringer.store import calendars
from bellringer.store.pool import Store
from bellringer.store.queries import load

_SQL = load("jobs")


class Stale(Exception):
    """The locks took so long that a hand may have passed beyond the instants that were sent along."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instants:
    """What schedules name right after `asof`: where a new hand starts, and what one may have passed already."""

    asof: datetime
    first: Mapping[int, datetime]
    soon: Sequence[tuple[int, datetime]]

    def arguments(self) -> tuple[list[int], list[datetime], list[int], list[datetime]]:
        return (
            list(self.first.keys()),
            list(self.first.values()),
            [schedule_id for schedule_id, _ in self.soon],
            [instant for _, instant in self.soon],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """A job as it was taken: its id, its revision, and since when it counts."""

    job_id: UUID
    revision: int
    active_since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as it is stored."""

    job_id: UUID
    name: str
    task: str
    spec: Spec
    schedules: tuple[Schedule, ...]
    schedule_ids: tuple[int, ...]
    pool: str
    priority: int
    misfire: str
    catchup: Catchup
    overlap: str
    cap: int | None
    limit: Limit | None
    jitter: timedelta | None
    jitter_by: timedelta
    late_after: timedelta | None
    starts_at: datetime | None
    ends_at: datetime | None
    enabled: bool
    paused_at: datetime | None
    paused_by: str | None
    paused_reason: str | None
    paused_until: datetime | None
    owner: str
    tags: tuple[str, ...]
    revision: int
    created_at: datetime
    updated_at: datetime
    once_at: datetime | None
    delay: timedelta | None
    next_at: datetime | None
    timer_at: datetime | None

    @property
    def next_fire(self) -> datetime | None:
        """When it is due next, as far as the database knows now."""
        known = [moment for moment in (self.next_at, self.timer_at) if moment is not None]
        return min(known) if known and not self.paused_at and self.enabled else None

    def definition(self) -> Definition:
        """In words, as a change starts from it."""
        spec = self.spec
        return Definition(
            name=self.name,
            task=self.task,
            schedules=self.schedules,
            args=spec.args,
            kwargs=spec.kwargs,
            pool=self.pool,
            priority=self.priority,
            timeout=_length(spec.timeout),
            heartbeat=_length(spec.heartbeat),
            retry=Retry.parse(spec.retry),
            delivery=Delivery(spec.delivery),
            misfire=Misfire(self.misfire),
            catchup=self.catchup,
            overlap=Overlap(self.overlap),
            max_concurrency=self.cap,
            limit=self.limit,
            jitter=self.jitter,
            late_after=self.late_after,
            starts_at=self.starts_at,
            ends_at=self.ends_at,
            enabled=self.enabled,
            owner=self.owner,
            tags=self.tags,
        )


def _length(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


async def register(
    store: Store, rows: Sequence[Mapping[str, Any]], who: str, instants: Instants, why: str | None = None
) -> list[Registered]:
    """Create or change jobs in one call. A name that is taken, or a revision that moved, refuses all of them."""
    document = msgspec.json.encode(rows).decode()
    try:
        answer = await store.pool.fetch(_SQL.register, document, instants.asof, who, *instants.arguments(), why)
    except asyncpg.UniqueViolationError as error:
        raise Conflict(
            "a job of that name exists already",
            hint="choose another name, or change the job that has it",
            code="name_taken",
        ) from error
    except asyncpg.PostgresError as error:
        raise translate(error) from error
    return [Registered(**dict(row)) for row in answer]


async def pause(
    store: Store, job_id: UUID, tenant_id: int, who: str, reason: str | None, until: datetime | None
) -> int | None:
    revision: int | None = await store.pool.fetchval(_SQL.pause, job_id, tenant_id, who, reason, until)
    return revision


async def resume(
    store: Store,
    job_id: UUID,
    tenant_id: int,
    who: str,
    instants: Instants,
    missed: str,
    latest: tuple[int, datetime] | None,
) -> int | None:
    asked = (missed, *(latest or (None, None)))
    try:
        revision: int | None = await store.pool.fetchval(
            _SQL.resume, job_id, tenant_id, who, instants.asof, *instants.arguments(), *asked
        )
    except asyncpg.PostgresError as error:
        raise translate(error) from error
    return revision


async def retire(store: Store, job_id: UUID, tenant_id: int, who: str) -> int | None:
    revision: int | None = await store.pool.fetchval(_SQL.retire, job_id, tenant_id, who)
    return revision


async def get(store: Store, job_id: UUID, tenant_id: int) -> Job | None:
    found = await some(store, [job_id], tenant_id)
    return found[0] if found else None


async def some(store: Store, job_ids: Sequence[UUID], tenant_id: int) -> list[Job]:
    """Those of these jobs that there are, in no order."""
    return await _read(store, await store.pool.fetch(_SQL.get, job_ids, tenant_id))


async def find(store: Store, tenant_id: int, name: str) -> tuple[UUID, int] | None:
    """The id and revision of the job of that name."""
    row = await store.pool.fetchrow(_SQL.find, tenant_id, name)
    return (row["job_id"], row["revision"]) if row else None


async def find_many(store: Store, tenant_id: int, names: Sequence[str]) -> Mapping[str, tuple[UUID, int]]:
    """The ids and revisions of jobs by the names as they are given."""
    rows = await store.pool.fetch(_SQL.find_many, tenant_id, names)
    return {row["given"]: (row["job_id"], row["revision"]) for row in rows}


async def listing(store: Store, tenant_id: int, after: UUID | None, most: int) -> list[Job]:
    return await _read(store, await store.pool.fetch(_SQL.list, tenant_id, after, most))


async def lapsed(store: Store, most: int) -> list[tuple[UUID, int]]:
    """Jobs whose pause is over."""
    return [(row["job_id"], row["tenant_id"]) for row in await store.pool.fetch(_SQL.lapsed, most)]


async def revisions(store: Store, job_id: UUID, most: int) -> list[Mapping[str, Any]]:
    rows = await store.pool.fetch(_SQL.revisions, job_id, most)
    return [{**dict(row), "definition": msgspec.json.decode(row["definition"])} for row in rows]


def translate(error: asyncpg.PostgresError) -> Exception:
    """Our own conditions, raised inside the database, as what they mean."""
    if error.sqlstate == "BR001":
        return Stale()
    if error.sqlstate == "BR002":
        return Conflict(
            "the job was changed by someone else meanwhile",
            hint="read it again and repeat the change",
            code="revision_conflict",
        )
    return error


async def _read(store: Store, rows: Sequence[asyncpg.Record]) -> list[Job]:
    """Jobs whose schedules can be evaluated: the calendars that they heed are known."""
    found = [_job(row) for row in rows]
    await calendars.load(store, (schedule for job in found for schedule in job.schedules))
    return found


def _job(row: asyncpg.Record) -> Job:
    values = dict(row)
    values["spec"] = msgspec.json.decode(row["spec"], type=Spec)
    values["schedules"] = tuple(parse(document) for document in msgspec.json.decode(row["schedules"]))
    values["schedule_ids"] = tuple(row["schedule_ids"])
    values["catchup"] = Catchup.parse(msgspec.json.decode(row["catchup"]))
    key, most = values.pop("limit_key"), values.pop("limit_most")
    values["limit"] = None if key is None else Limit(key, most)
    values["tags"] = tuple(row["tags"])
    return Job(**values)
