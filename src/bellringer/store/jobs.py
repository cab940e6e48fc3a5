"""Jobs in the database: the definitions, and the calls that change them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final
from uuid import UUID

import asyncpg
import msgspec

from bellringer.errors import Conflict, QuotaExceeded
from bellringer.jobs import Definition
from bellringer.policies import Catchup, Delivery, Limit, Misfire, Overlap, Retry
from bellringer.runs import Spec
from bellringer.schedule import Schedule, parse
from bellringer.store import calendars
from bellringer.store.pool import Store
from bellringer.store.queries import load

_SQL = load("jobs")
MOST_SCANNED: Final = 20_000  # jobs of a state that one page of a list looks at
_ESCAPED: Final = re.compile(r"[\\%_]")
_NOT_OF_A_JOB: Final = frozenset({"effective_at", "what", "who", "why"})
_QUOTAS = {"jobs": "jobs", "fires_per_minute": "fires a minute, on average, by its schedules"}


class Stale(Exception):
    """Nothing was done, and it can be tried again: the locks took so long that a hand may have passed beyond the
    instants that were sent along, or two waited for each other."""


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


class Job(msgspec.Struct, frozen=True, kw_only=True):
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
    region: str | None
    revision: int
    created_at: datetime
    updated_at: datetime
    once_at: datetime | None
    delay: timedelta | None
    next_at: datetime | None
    timer_at: datetime | None
    expected_duration: timedelta | None
    routed: bool  # nobody named its pool
    learned_at: datetime | None  # since when its own runs have brought it to the pool for long ones
    nodes: int  # of a workflow

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
            graph=spec.graph,
            nodes=self.nodes,
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
            region=self.region,
            expected_duration=self.expected_duration,
            routed=self.routed,
        )


def _length(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


async def register(
    store: Store, document: bytes, shards: Sequence[int], who: str, instants: Instants, why: str | None = None
) -> datetime:
    """Create or change jobs of these shards in one call; answers since when they count. A name that is taken, or a
    revision that moved, refuses all of them."""
    asked = (document.decode(), shards, instants.asof, who, *instants.arguments(), why)
    try:
        since: datetime = await store.pool.fetchval(_SQL.register, *asked)
    except asyncpg.UniqueViolationError as error:
        raise Conflict(
            "a job of that name exists already",
            hint="choose another name, or change the job that has it",
            code="name_taken",
        ) from error
    except asyncpg.PostgresError as error:
        raise translate(error) from error
    return since


async def lock_shards(store: Store, shards: int) -> None:
    """Before several calls of one transaction create jobs: all shards, in the order in which a tick takes them, so that
    the two never wait for each other."""
    await store.pool.execute(_SQL.lock_shards, list(range(shards)))


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
    return next(iter(await some(store, [job_id], tenant_id)), None)


async def some(store: Store, job_ids: Sequence[UUID], tenant_id: int) -> list[Job]:
    """Those of these jobs that there are, in the order given."""
    return await read(store, await store.pool.fetch(_SQL.get, job_ids, tenant_id))


async def find(store: Store, tenant_id: int, name: str) -> tuple[UUID, int] | None:
    """The id and revision of the job of that name."""
    row = await store.pool.fetchrow(_SQL.find, tenant_id, name)
    return (row["job_id"], row["revision"]) if row else None


async def find_many(store: Store, tenant_id: int, names: Sequence[str]) -> Mapping[str, tuple[UUID, int]]:
    """The ids and revisions of jobs by the names as they are given."""
    rows = await store.pool.fetch(_SQL.find_many, tenant_id, names)
    return {row["given"]: (row["job_id"], row["revision"]) for row in rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs a list shows; what is None shows all."""

    q: str | None = None  # in its name
    prefix: str | None = None  # its name begins so
    tag: str | None = None
    state: str | None = None
    pool: str | None = None
    task: str | None = None
    owner: str | None = None

    def arguments(self) -> tuple[str | None, ...]:
        like = None if self.prefix is None else _ESCAPED.sub(r"\\\g<0>", self.prefix.lower()) + "%"
        q = None if self.q is None else self.q.lower()
        return (q, self.tag, self.state, self.pool, self.task, self.owner, like)


Position = tuple[UUID, str]  # of a job in a list: its id, and its name as it is ordered by


async def listing(store: Store, tenant_id: int, after: UUID | None, most: int) -> list[Job]:
    """Jobs by their ids, those after the given one."""
    found, _ = await page(store, tenant_id, JobFilter(), after=None if after is None else (after, ""), most=most)
    return found


async def page(
    store: Store, tenant_id: int, wanted: JobFilter, *, by_name: bool = False, after: Position | None = None, most: int
) -> tuple[list[Job], Position | None]:
    """The next jobs of a list. A page looks at MOST_SCANNED jobs of its state; where it could not fill, answers where
    it came to."""
    asked = (tenant_id, by_name, *(after or (None, None)), *wanted.arguments(), most, MOST_SCANNED)
    rows = await store.pool.fetch(_SQL.page, *asked)
    reached = next(((row["job_id"], row["name_key"]) for row in rows if row["is_stop"]), None)
    return await some(store, [row["job_id"] for row in rows if not row["is_stop"]], tenant_id), reached


async def count(store: Store, tenant_id: int, wanted: JobFilter, most: int) -> tuple[int, bool]:
    """How many jobs a filter lets through, up to `most`, and whether these are all."""
    asked = (tenant_id, False, None, None, *wanted.arguments(), most + 1, MOST_SCANNED)
    rows = await store.pool.fetch(_SQL.page, *asked)
    is_all = len(rows) <= most and not any(row["is_stop"] for row in rows)
    return min(sum(not row["is_stop"] for row in rows), most), is_all


async def stop_runs(store: Store, job_id: UUID, tenant_id: int) -> None:
    """Ask what runs of a job to stop."""
    await store.pool.execute(_SQL.stop_runs, job_id, tenant_id)


async def lapsed(store: Store, most: int) -> list[tuple[UUID, int]]:
    """Jobs whose pause is over."""
    return [(row["job_id"], row["tenant_id"]) for row in await store.pool.fetch(_SQL.lapsed, most)]


def translate(error: asyncpg.PostgresError) -> Exception:
    """Our own conditions, raised inside the database, as what they mean."""
    if error.sqlstate == "BR001" or isinstance(error, asyncpg.DeadlockDetectedError):
        return Stale()
    if error.sqlstate == "BR002":
        return Conflict(
            "the job was changed by someone else meanwhile",
            hint="read it again and repeat the change",
            code="revision_conflict",
        )
    if error.sqlstate == "BR003":
        over = msgspec.json.decode(error.detail or "{}")
        return QuotaExceeded(
            f"the tenant may have {over.get('most', 0):,g} {_QUOTAS.get(over.get('quota'), 'of these')}",
            hint="pause or delete jobs that are not needed, or ask for a larger quota",
        )
    return error


async def read(store: Store, rows: Sequence[asyncpg.Record]) -> list[Job]:
    """Jobs whose schedules can be evaluated: the calendars that they heed are known."""
    found = [_job(row) for row in rows]
    await calendars.load(store, (schedule for job in found for schedule in job.schedules))
    return found


def _job(row: asyncpg.Record) -> Job:
    values = {name: row[name] for name in row.keys() if name not in _NOT_OF_A_JOB}  # noqa: SIM118 - a record's own
    values["spec"] = msgspec.json.decode(row["spec"], type=Spec)
    values["schedules"] = _schedules(row["schedules"])
    values["schedule_ids"] = tuple(row["schedule_ids"])
    values["catchup"] = _catchup(row["catchup"])
    key, most = values.pop("limit_key"), values.pop("limit_most")
    values["limit"] = None if key is None else Limit(key, most)
    values["tags"] = tuple(row["tags"])
    values["routed"] = bool(row["routed"])  # of an old revision it is not known
    return Job(**values)


@lru_cache(maxsize=4096)
def _schedules(text: str) -> tuple[Schedule, ...]:
    """Many jobs have the same, and it is read with each of them."""
    return tuple(parse(document) for document in msgspec.json.decode(text))


@lru_cache(maxsize=256)
def _catchup(text: str) -> Catchup:
    return Catchup.parse(msgspec.json.decode(text))
