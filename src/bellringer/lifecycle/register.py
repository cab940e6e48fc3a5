"""Register: a definition becomes a job, and joins the cohorts of its schedules. Create, change and resume share it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import msgspec

from bellringer.errors import Conflict, InvalidInput, NotFound, Unavailable
from bellringer.jobs import Definition, check_name
from bellringer.lifecycle import versions
from bellringer.lifecycle.homes import check_homes, new_id, new_ids
from bellringer.lifecycle.judging import stored_as, weigh
from bellringer.lifecycle.rows import Judged, Row, rows_of, shards_of, spec_of, written
from bellringer.policies import Missed
from bellringer.runs import Spec
from bellringer.schedule import Schedule
from bellringer.schedule.instants import EPOCH
from bellringer.store import calendars, history, jobs
from bellringer.store.jobs import Instants, Job, Registered, Stale
from bellringer.store.names import Names
from bellringer.store.pool import Store

# A hand runs at most 5 s ahead (config's bound for `lead`), and the database refuses instants that were computed more
# than 5 s ago; so within SOON lies everything that a hand may have passed.
MOMENT: Final = timedelta(microseconds=1)
SOON: Final = timedelta(seconds=12)
TRIES: Final = 5
_COMPARED: Final = (
    "task", "schedules", "priority", "starts_at", "ends_at", "enabled", "tags", "misfire", "catchup", "overlap",
    "limit", "jitter", "late_after", "owner", "expected_duration", "routed",
)  # fmt: skip
_ALIKE: Final = (
    "name", "task", "schedules", "pool", "priority", "catchup", "limit", "jitter", "late_after", "starts_at", "ends_at",
    "enabled", "owner", "tags", "once_at", "delay", "expected_duration", "routed", "nodes",
)  # fmt: skip


async def register(
    store: Store, names: Names, definitions: Sequence[Definition], *, tenant_id: int, who: str
) -> list[Registered]:
    """Create jobs, all or none; answers in the order given."""
    fresh = [(await new_id(names, definition), 0, definition) for definition in definitions]
    return [written.registered for written in await _write(store, names, fresh, tenant_id, who)]


async def create(
    store: Store, names: Names, definition: Definition, *, tenant_id: int, who: str, now: datetime | None = None
) -> Job:
    """Create one job; answers it as it is stored, without reading it again. `now` may have been read before."""
    [written] = await _write(store, names, [(await new_id(names, definition), 0, definition)], tenant_id, who, now=now)
    return written.job()


async def change(
    store: Store,
    names: Names,
    job_id: UUID,
    revision: int,
    definition: Definition,
    *,
    tenant_id: int,
    who: str,
    why: str | None = None,
) -> Registered:
    """Change one job, if it still has the revision that the caller read."""
    job = await jobs.get(store, job_id, tenant_id)
    if job is None:
        raise NotFound("there is no such job")
    [written] = await _write(store, names, [(job_id, revision, definition)], tenant_id, who, job.schedules, why)
    return written.registered


async def change_all(
    store: Store, names: Names, changes: Sequence[tuple[Job, Definition]], *, tenant_id: int, who: str, why: str
) -> list[Registered]:
    """Change jobs, if each still is as it was read; all or none."""
    wanted = [(job.job_id, job.revision, definition) for job, definition in changes]
    known = {schedule for job, _ in changes for schedule in job.schedules}
    return [written.registered for written in await _write(store, names, wanted, tenant_id, who, known, why)]


async def declare(
    store: Store, names: Names, definitions: Sequence[Definition], *, tenant_id: int, who: str
) -> list[Registered]:
    """Make jobs by their names what the definitions say: create the missing, change the different, leave the rest.

    Several processes of one program declare the same jobs when they start together; who comes second finds nothing
    left to do.
    """
    wanted = {check_name(d.name): d for d in await as_stored(store, names, definitions, tenant_id=tenant_id)}
    if len({name.casefold() for name in wanted}) < len(definitions):
        raise InvalidInput("two of the definitions have the same name", pointer="/name", code="name_taken")
    for _ in range(TRIES):
        known = await jobs.find_many(store, tenant_id, list(wanted))
        changes = []
        for name, definition in wanted.items():
            job_id, revision = known.get(name, (None, 0))
            if job_id is None or not await _same(store, job_id, tenant_id, definition):
                changes.append((job_id or await new_id(names, definition), revision, definition))
        try:
            written = await _write(store, names, changes, tenant_id, who) if changes else []
            return [w.registered for w in written]
        except Conflict:
            continue
    raise _busy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """A job that goes on: its revision, how many occurrences its pause covered, and since when."""

    revision: int
    missed: int = 0
    since: datetime | None = None


async def resume(
    store: Store, names: Names, job_id: UUID, *, tenant_id: int, who: str, missed: Missed = Missed.SKIP
) -> Resumed:
    """Let a paused job go on from now. What it missed stays missed, or runs behind live work: the latest, or all."""
    for _ in range(TRIES):
        job = await jobs.get(store, job_id, tenant_id)
        if job is None:
            raise NotFound("there is no such job")
        if job.paused_at is None:
            return Resumed(revision=job.revision)
        instants = await _instants(store, names, job.schedule_ids)
        schedules = await names.schedules(job.schedule_ids)
        recurring = {number: schedules[number] for number in job.schedule_ids}
        latest = _latest(recurring, job, instants.asof) if missed is Missed.LATEST else None
        try:
            revision = await jobs.resume(store, job_id, tenant_id, who, instants, missed, latest)
        except Stale:
            continue
        if revision is not None:
            start, end = _span(job, instants.asof)
            count = sum(s.count_between(start, end + MOMENT) for s in recurring.values() if start <= end)
            return Resumed(revision=revision, missed=count, since=job.paused_at)
    raise _busy()


def _latest(schedules: Mapping[int, Schedule], job: Job, now: datetime) -> tuple[int, datetime] | None:
    """The last occurrence that a pause has covered, and whose it is."""
    start, end = _span(job, now)
    found = [
        (at, number)
        for number, schedule in schedules.items()
        if (at := schedule.last_at_or_before(end, not_before=start)) is not None
    ]
    return max(found)[::-1] if found else None


def _span(job: Job, now: datetime) -> tuple[datetime, datetime]:
    """The first and the last moment of a pause in which the job would have fired."""
    assert job.paused_at is not None
    return max(job.paused_at + MOMENT, job.starts_at or EPOCH), min(now, job.ends_at or now)


async def _same(store: Store, job_id: UUID, tenant_id: int, definition: Definition) -> bool:
    job = await jobs.get(store, job_id, tenant_id)
    return job is not None and is_same(job, definition)


def is_same(job: Job, definition: Definition) -> bool:
    """Whether a job is what a definition, as it is stored, says."""
    same = all(getattr(job, name) == getattr(definition, name) for name in _COMPARED)
    same = same and job.cap == definition.max_concurrency and definition.region in {None, job.region}
    learns = definition.routed and definition.expected_duration is None  # where it belongs, its runs tell
    same = same and (learns or job.pool == definition.pool)
    wanted = msgspec.json.decode(spec_of(definition), type=Spec)
    return same and job.name == check_name(definition.name) and job.spec == wanted


async def as_stored(
    store: Store, names: Names, definitions: Sequence[Definition], *, tenant_id: int
) -> list[Definition]:
    """Definitions as they are stored: calendars by their present content, `H` by the job's name, graphs by number."""
    definitions = [await versions.versioned(store, names, d, tenant_id=tenant_id) for d in definitions]
    known = await calendars.current(store, tenant_id, (s for d in definitions for s in d.schedules))
    return [stored_as(d, known, f"{tenant_id}:{check_name(d.name)}") for d in definitions]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A definition that was taken, and what it was taken with."""

    registered: Registered
    definition: Definition
    row: Row
    first: Mapping[int, datetime]

    def job(self) -> Job:
        """A new job, as reading it would give it."""
        d, row, since = self.definition, self.row, self.registered.active_since
        schedule_ids = row.common["schedule_ids"]
        coming = [self.first[number] for number in schedule_ids if number in self.first]
        return Job(
            job_id=self.registered.job_id,
            spec=msgspec.json.decode(row.own.spec, type=Spec),
            schedule_ids=tuple(schedule_ids),
            misfire=d.misfire.value,
            overlap=d.overlap.value,
            cap=d.max_concurrency,
            jitter_by=timedelta(seconds=row.common["jitter_by"]),
            paused_at=None,
            paused_by=None,
            paused_reason=None,
            paused_until=None,
            revision=self.registered.revision,
            created_at=since,
            updated_at=since,
            next_at=min(coming, default=None) if d.enabled else None,
            timer_at=_timer(d, since),
            learned_at=None,
            region=row.region,
            **{name: getattr(d, name) for name in _ALIKE},
        )


def _timer(d: Definition, since: datetime) -> datetime | None:
    """When a one-shot, or the first run of a delay, is due."""
    at = d.once_at
    if d.delay is not None:
        at = max(since + d.delay, d.starts_at or EPOCH)
    return at if at is not None and d.enabled and (d.ends_at is None or at <= d.ends_at) else None


async def _write(
    store: Store,
    names: Names,
    wanted: Sequence[tuple[UUID, int, Definition]],
    tenant_id: int,
    who: str,
    known: Collection[Schedule] = (),
    why: str | None = None,
    now: datetime | None = None,
) -> list[Written]:
    now = now or await store.now()
    checked = []
    await check_homes(names, wanted)
    judged = await weigh(store, names, [d for _, _, d in wanted], tenant_id=tenant_id, now=now, known=known)
    for (job_id, revision, _), found in zip(wanted, judged, strict=True):
        if isinstance(found, InvalidInput):
            raise found
        checked.append((job_id, revision, found))
    return await _put(store, names, checked, tenant_id, who, why, now)


async def enroll(
    store: Store,
    names: Names,
    checked: Sequence[Judged],
    *,
    tenant_id: int,
    who: str,
    now: datetime,
    ids: Sequence[UUID] | None = None,
) -> list[Written]:
    """Create jobs of definitions that were judged together, all or none; under new ids where none are given."""
    ids = ids if ids is not None else await new_ids(names, (judged.definition for judged in checked))
    fresh = [(job_id, 0, judged) for job_id, judged in zip(ids, checked, strict=True)]
    return await _put(store, names, fresh, tenant_id, who, None, now)


async def _put(
    store: Store,
    names: Names,
    checked: Sequence[tuple[UUID, int, Judged]],
    tenant_id: int,
    who: str,
    why: str | None,
    asof: datetime | None,
) -> list[Written]:
    rows = await rows_of(names, checked, tenant_id)
    schedule_ids = {number for row in rows for number in row.common["schedule_ids"]}
    for _ in range(TRIES):
        instants = await _instants(store, names, schedule_ids, asof)
        ready = Readied(fresh=checked, rows=rows, document=written(rows), instants=instants)
        try:
            return ready.taken(await ready.written(store, who, why))
        except Stale:
            asof = None
    raise _busy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Readied:
    """Jobs that are to be written by `jobs.register`, and soon: else the instants are stale."""

    fresh: Sequence[tuple[UUID, int, Judged]]
    rows: Sequence[Row]
    document: bytes
    instants: Instants

    async def written(self, store: Store, who: str, why: str | None = None) -> datetime:
        """Write them; answers since when they count."""
        return await jobs.register(store, self.document, shards_of(self.rows), who, self.instants, why)

    def taken(self, since: datetime) -> list[Written]:
        return [
            Written(
                registered=Registered(job_id=job_id, revision=revision + 1, active_since=since),
                definition=judged.definition,
                row=row,
                first=self.instants.first,
            )
            for (job_id, revision, judged), row in zip(self.fresh, self.rows, strict=True)
        ]


async def readied(store: Store, names: Names, checked: Sequence[Judged], *, tenant_id: int, asof: datetime) -> Readied:
    """All that comes before jobs are created."""
    ids = await new_ids(names, (judged.definition for judged in checked))
    fresh = [(job_id, 0, judged) for job_id, judged in zip(ids, checked, strict=True)]
    rows = await rows_of(names, fresh, tenant_id)
    instants = await _instants(store, names, {n for row in rows for n in row.common["schedule_ids"]}, asof)
    return Readied(fresh=fresh, rows=rows, document=written(rows), instants=instants)


async def _instants(store: Store, names: Names, schedule_ids: Iterable[int], asof: datetime | None = None) -> Instants:
    """What these schedules name right after `asof`, which is now by the database's clock where it is not given."""
    wanted = sorted(set(schedule_ids))
    known = await names.schedules(wanted)
    asof = asof or await store.now()
    await history.ensure_days(store, {asof.date(), (asof + SOON).date()})
    first: dict[int, datetime] = {}
    soon: list[tuple[int, datetime]] = []
    for number in wanted:
        following = names.following(number, asof)
        if following is not None:
            first[number] = following
            if following <= asof + SOON:
                soon.extend((number, instant) for instant in known[number].between(asof, asof + SOON))
    return Instants(asof=asof, first=first, soon=soon)


def _busy() -> Unavailable:
    return Unavailable("the database is too busy to register a job right now", hint="try again in a moment")
