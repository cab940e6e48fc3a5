"""Jobs in the database: the definitions, and the calls that change them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple
from uuid import UUID

import asyncpg
import msgspec

from bellringer.core.jobs import JOB_FIELDS, Definition, JobFields
from bellringer.core.policies import After, AfterCompletion, Catchup, Delivery, Limit, Misfire, Overlap
from bellringer.core.retry_policy import Retry
from bellringer.core.runs import Spec
from bellringer.errors import Conflict, InvalidInput, QuotaExceeded
from bellringer.schedule import Schedule, parse_schedule
from bellringer.schedule.instants import EPOCH
from bellringer.store import calendars
from bellringer.store.connection_pool import Store
from bellringer.store.queries import load

_SQL = load("jobs")
MAX_JOBS_SCANNED: Final = 20_000  # jobs of a state that one page of a list reads
_NO_JOB: Final = UUID(int=0)
_ESCAPED: Final = re.compile(r"[\\%_]")
_QUOTAS = {"jobs": "jobs", "fires_per_minute": "fires a minute, on average, by its schedules"}


class PrunedSchedules(Exception):
    """Nothing was done: a schedule was pruned after its id was read. It can be interned again."""


class StaleInstants(Exception):
    """Nothing was written; the caller computes the instants again and retries. Waiting for the locks took so long
    that a cohort may have fired past the given instants, or there was a deadlock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleInstants:
    """Instants of schedules after `asof`: the first of each, and all of the following seconds, which may have fired."""

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
class JobRow(JobFields):
    """A job as it is stored."""

    job_id: UUID
    name: str
    task: str
    spec: Spec
    schedules: tuple[Schedule, ...]
    schedule_ids: tuple[int, ...]
    pool: str
    misfire: str
    catchup: Catchup
    overlap: str
    cap: int | None
    limit: Limit | None
    jitter_by: timedelta
    paused_at: datetime | None
    paused_by: str | None
    paused_reason: str | None
    paused_until: datetime | None
    region: str | None
    revision: int
    created_at: datetime
    updated_at: datetime
    once_at: datetime | None
    delay: timedelta | None
    next_at: datetime | None
    timer_at: datetime | None
    learned_at: datetime | None  # when the durations of its runs moved it to the pool for long runs
    done_at: datetime | None  # when its schedules had no more occurrences
    nodes: int  # of a workflow
    app: str | None = None  # whose code declares it
    app_id: int | None = None
    app_version: str | None = None  # that declared it last
    declared_revision: int | None = None  # the revision that has the declared definition …
    declared_enabled: bool | None = None  # … except `enabled`, which operators may change
    orphaned_at: datetime | None = None  # since when the app no longer declares it
    orphan_paused_by: str | None = None  # `paused_by` of a pause by the app's orphan policy
    followers: tuple[str, ...] = ()  # the names of jobs that start after this one, at most 100

    @property
    def next_fire(self) -> datetime | None:
        """When the job is due next, as far as the database knows."""
        known = [moment for moment in (self.next_at, self.timer_at) if moment is not None]
        return min(known) if known and not self.paused_at and self.enabled else None

    @property
    def is_paused_as_orphan(self) -> bool:
        """Whether the orphan policy of its app paused the job, and no operator has paused it since."""
        return self.paused_at is not None and self.paused_by == self.orphan_paused_by is not None

    def definition(self) -> Definition:
        """Returns the definition from which a change of the job starts."""
        spec = self.spec
        return Definition(
            **{name: getattr(self, name) for name in (*SHARED_FIELDS, "region")},
            args=spec.args,
            kwargs=spec.kwargs,
            graph=spec.graph,
            timeout=_length(spec.timeout),
            heartbeat=_length(spec.heartbeat),
            retry=Retry.parse(spec.retry),
            delivery=Delivery(spec.delivery),
            keep_result=spec.keep_result,
            redact=tuple(spec.redact),
            misfire=Misfire(self.misfire),
            overlap=Overlap(self.overlap),
            max_concurrency=self.cap,
        )


# Fields that have the same name and the same value in `Definition` and in `JobRow`.
SHARED_FIELDS: Final = (*JOB_FIELDS, "name", "task", "schedules", "pool", "catchup", "limit", "nodes")


def stored_values(d: Definition) -> dict[str, Any]:
    """Returns the fields of `JobRow` that follow from a definition alone."""
    return {
        **{name: getattr(d, name) for name in SHARED_FIELDS},
        "misfire": d.misfire.value,
        "overlap": d.overlap.value,
        "cap": d.max_concurrency,
        "once_at": d.once_at,
        "delay": d.delay,
    }


def _length(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


async def register(
    store: Store,
    document: bytes,
    shards: Sequence[int],
    who: str,
    instants: ScheduleInstants,
    why: str | None = None,
    actors: Mapping[UUID, str] | None = None,
) -> datetime:
    """Creates or changes jobs of these shards in one call; returns the time from which they apply. If a name is taken
    or a revision has changed, nothing is written.

    `actors` are given if the jobs are those of several requests: the actor of each new job as JSON, in place of `who`.
    """
    by_job = None
    if actors is not None:
        by_job = msgspec.json.encode({job_id: msgspec.Raw(actor.encode()) for job_id, actor in actors.items()}).decode()
    asked = (document.decode(), shards, instants.asof, who, *instants.arguments(), why, by_job)
    try:
        since: datetime = await store.pool.fetchval(_SQL.register, *asked)
    except asyncpg.UniqueViolationError as error:
        raise name_taken() from error
    except asyncpg.PostgresError as error:
        raise translate(error) from error
    return since


def name_taken() -> Conflict:
    return Conflict(
        "a job with that name already exists",
        hint="choose another name, or change the existing job",
        code="name_taken",
    )


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
    instants: ScheduleInstants,
    missed: str,
    latest: tuple[int, datetime] | None,
    paused_by: str | None = None,
) -> int | None:
    asked = (missed, *(latest or (None, None)), paused_by)
    try:
        revision: int | None = await store.pool.fetchval(
            _SQL.resume, job_id, tenant_id, who, instants.asof, *instants.arguments(), *asked
        )
    except asyncpg.PostgresError as error:
        raise translate(error) from error
    return revision


async def delete(store: Store, job_id: UUID, tenant_id: int, who: str) -> int | None:
    revision: int | None = await store.pool.fetchval(_SQL.delete, job_id, tenant_id, who)
    return revision


async def get(store: Store, job_id: UUID, tenant_id: int) -> JobRow | None:
    return next(iter(await get_many(store, [job_id], tenant_id)), None)


async def get_many(store: Store, job_ids: Sequence[UUID], tenant_id: int) -> list[JobRow]:
    """Returns the jobs that exist, in the given order."""
    return await read(store, await store.pool.fetch(_SQL.get, job_ids, tenant_id))


async def find_idle(store: Store, job_ids: Sequence[UUID], tenant_id: int, length: timedelta) -> list[UUID]:
    """Returns the jobs that change within `length` only if someone writes to them: nothing is unfinished or due."""
    return [row["job_id"] for row in await store.pool.fetch(_SQL.idle, job_ids, tenant_id, length)]


async def find(store: Store, tenant_id: int, name: str) -> tuple[UUID, int] | None:
    """Returns the id and revision of the job with this name."""
    row = await store.pool.fetchrow(_SQL.find, tenant_id, name)
    return (row["job_id"], row["revision"]) if row else None


async def find_many(store: Store, tenant_id: int, names: Sequence[str]) -> Mapping[str, tuple[UUID, int]]:
    """Returns the ids and revisions of jobs by the given names."""
    rows = await store.pool.fetch(_SQL.find_many, tenant_id, names)
    return {row["given"]: (row["job_id"], row["revision"]) for row in rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """The filter of a list of jobs; None: no condition."""

    q: str | None = None  # a part of the name
    prefix: str | None = None  # the beginning of the name
    tag: str | None = None
    state: str | None = None
    pool: str | None = None
    task: str | None = None
    owner: str | None = None
    app: str | None = None
    orphaned: bool | None = None

    def arguments(self) -> tuple[str | bool | None, ...]:
        like = None if self.prefix is None else _ESCAPED.sub(r"\\\g<0>", self.prefix.lower()) + "%"
        q = None if self.q is None else self.q.lower()
        return (q, self.tag, self.state, self.pool, self.task, self.owner, like, self.app, self.orphaned)


Position = tuple[UUID, str]  # of a job in a list: its id and its sort key


async def list_by_id(store: Store, tenant_id: int, after: UUID | None, most: int) -> list[JobRow]:
    """Returns jobs in the order of their ids, after the given one."""
    found, _ = await page(store, tenant_id, JobFilter(), after=None if after is None else (after, ""), most=most)
    return found


async def page(
    store: Store, tenant_id: int, wanted: JobFilter, *, by_name: bool = False, after: Position | None = None, most: int
) -> tuple[list[JobRow], Position | None]:
    """Returns the next jobs of a list. A page reads at most MAX_JOBS_SCANNED jobs of the state; if that was too few to
    fill it, also returns the position that was reached."""
    asked = (tenant_id, by_name, *(after or (None, None)), *wanted.arguments(), most, MAX_JOBS_SCANNED)
    rows = await store.pool.fetch(_SQL.page, *asked)
    reached = next(((row["job_id"], row["name_key"]) for row in rows if row["is_stop"]), None)
    return await get_many(store, [row["job_id"] for row in rows if not row["is_stop"]], tenant_id), reached


async def list_ids(store: Store, tenant_id: int, wanted: JobFilter, most: int) -> tuple[list[UUID], bool]:
    """Returns the ids of the first matching jobs by name, and whether these are all."""
    asked = (tenant_id, True, None, None, *wanted.arguments(), most + 1, MAX_JOBS_SCANNED)
    rows = await store.pool.fetch(_SQL.page, *asked)
    is_all = len(rows) <= most and not any(row["is_stop"] for row in rows)
    return [row["job_id"] for row in rows if not row["is_stop"]][:most], is_all


async def count(store: Store, tenant_id: int, wanted: JobFilter, most: int) -> tuple[int, bool]:
    """Returns the number of matching jobs, counted up to `most`, and whether these are all."""
    asked = (tenant_id, False, None, None, *wanted.arguments(), most + 1, MAX_JOBS_SCANNED)
    rows = await store.pool.fetch(_SQL.page, *asked)
    is_all = len(rows) <= most and not any(row["is_stop"] for row in rows)
    return min(sum(not row["is_stop"] for row in rows), most), is_all


async def request_cancel(store: Store, job_id: UUID, tenant_id: int) -> None:
    """Asks the running runs of a job to stop."""
    await store.pool.execute(_SQL.request_cancel, job_id, tenant_id)


async def find_expired_pauses(store: Store, most: int) -> list[tuple[UUID, int]]:
    """Returns the jobs whose pause has expired."""
    return [(row["job_id"], row["tenant_id"]) for row in await store.pool.fetch(_SQL.expired_pauses, most)]


class DeclaredJob(NamedTuple):
    """A job that code has declared; `served`: a live worker knows its task."""

    job_id: UUID
    name: str
    task: str
    served: bool


async def list_declared(store: Store, tenant_id: int, app_id: int | None, most: int) -> list[DeclaredJob]:
    """Returns the jobs that code has declared, of no app or of the given one, and that can still fire."""
    return [DeclaredJob(*row) for row in await store.pool.fetch(_SQL.of_code, tenant_id, most, app_id)]


class Finished(NamedTuple):
    """The number of jobs that one pass marked as done, and the position for the next pass; None: the beginning."""

    jobs: int
    at: FinishCursor | None


class FinishCursor(NamedTuple):
    """The position of a pass in the jobs ordered by end time, and in the members of cohorts that have ended."""

    time: datetime | None = None
    job: UUID = _NO_JOB
    shard: int = -1
    schedule: int = 0
    member: UUID = _NO_JOB


async def finish(store: Store, after: FinishCursor | None, most: int) -> Finished:
    """Marks jobs as done that have nothing more to fire. Checks at most `most` candidates of each kind."""
    cursor = after or FinishCursor()
    row = await store.pool.fetchrow(_SQL.finish, cursor.time or EPOCH, *cursor[1:], most)
    assert row is not None, "a function with out parameters returns one row"
    reached = FinishCursor()
    if row["next_time"] is not None:
        reached = reached._replace(time=row["next_time"], job=row["next_job"])
    if row["next_shard"] is not None:
        reached = reached._replace(shard=row["next_shard"], schedule=row["next_schedule"], member=row["next_member"])
    return Finished(row["finished"], None if reached == FinishCursor() else reached)


class Deleted(NamedTuple):
    """How many `jobs` one pass deleted, and where the next one continues; None: from the beginning."""

    jobs: int
    at: tuple[datetime, UUID] | None


async def delete_done(store: Store, after: tuple[datetime, UUID] | None, most: int) -> Deleted:
    """Delete jobs that are done and are not to be kept; at most `most` candidates are examined."""
    row = await store.pool.fetchrow(_SQL.delete_done, *(after or (EPOCH, _NO_JOB)), most)
    assert row is not None, "a function with out parameters returns one row"
    return Deleted(row["deleted"], None if row["next_time"] is None else (row["next_time"], row["next_job"]))


def translate(error: asyncpg.PostgresError) -> Exception:
    """Translates the error codes that our SQL functions raise to exceptions."""
    if error.sqlstate == "BR001" or isinstance(error, asyncpg.DeadlockDetectedError):
        return StaleInstants()
    if error.sqlstate == "BR006":
        return PrunedSchedules()
    if error.sqlstate == "BR008":
        path = " → ".join(msgspec.json.decode(error.detail or "[]"))
        message, hint = f"the job would start after itself: {path}", "remove `after` of one of these jobs"
        return InvalidInput(message, hint=hint, pointer="/after/job", code="cycle")
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


async def read(store: Store, rows: Sequence[asyncpg.Record]) -> list[JobRow]:
    """Decodes rows, and loads the calendars that the schedules need."""
    found = [_job(row) for row in rows]
    await calendars.load_contents(store, (schedule for job in found for schedule in job.schedules))
    return found


def _job(row: asyncpg.Record) -> JobRow:
    values = {name: row[name] for name in _READ_COLUMNS}
    values["spec"] = msgspec.json.decode(row["spec"], type=Spec)
    values["schedules"] = _schedules(row["schedules"])
    values["schedule_ids"] = tuple(row["schedule_ids"])
    values["catchup"] = _catchup(row["catchup"])
    values["limit"] = None if row["limit_key"] is None else Limit(row["limit_key"], row["limit_most"])
    values["tags"] = tuple(row["tags"])
    values["routed"] = bool(row["routed"])  # null in old revisions
    values["followers"] = tuple(row["followers"] or ())
    values["after_completion"] = AfterCompletion(row["after_completion"])
    values["after"] = None if row["after"] is None else After.parse(msgspec.json.decode(row["after"]))
    return JobRow(**values)


_READ_COLUMNS: Final = tuple(f.name for f in fields(JobRow) if f.name != "limit")


@lru_cache(maxsize=4096)
def _schedules(text: str) -> tuple[Schedule, ...]:
    """Parses schedules. Cached, because many jobs have the same."""
    return tuple(parse_schedule(document) for document in msgspec.json.decode(text))


@lru_cache(maxsize=256)
def _catchup(text: str) -> Catchup:
    return Catchup.parse(msgspec.json.decode(text))
