"""Creates, changes and resumes jobs.

Every function here ends in `_write`: validated definitions are encoded, sent to the SQL function `register` with the
next instants of their schedules, and join the cohorts of these schedules.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import msgspec

from bellringer.core.jobs import Definition, check_name
from bellringer.core.policies import Missed
from bellringer.core.runs import Spec
from bellringer.engine import graph_versions
from bellringer.engine.job_payload import JobPayload, encode_batches, encode_jobs, encode_spec
from bellringer.engine.shard_placement import check_region_unchanged, new_id
from bellringer.engine.validate import ValidDefinition, keep_repeats, resolve_schedules, validate_definitions
from bellringer.errors import Conflict, InvalidInput, NotFound, Unavailable
from bellringer.schedule import Schedule
from bellringer.schedule.instants import EPOCH
from bellringer.store import calendars, jobs, partitions
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.jobs import JobRow, PrunedSchedules, ScheduleInstants, StaleInstants

MICROSECOND: Final = timedelta(microseconds=1)
# A cohort fires at most 5 s ahead (the upper bound of the setting `lead`), and the database refuses instants that were
# computed more than 5 s ago. Every instant that a cohort may have passed already lies within this horizon.
SOON_HORIZON: Final = timedelta(seconds=12)
MAX_TRIES: Final = 5
_COMPARED: Final = frozenset(jobs.SHARED_FIELDS) - {"name", "pool", "nodes"} | {"misfire", "overlap"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredJob:
    """A job that was created or changed, and the values that were stored for it."""

    job_id: UUID
    revision: int
    active_since: datetime
    definition: Definition
    payload: JobPayload
    first_instants: Mapping[int, datetime]

    def new_job_row(self) -> JobRow:
        """Returns a job that was just created as a read would return it, without reading it."""
        d, since = self.definition, self.active_since
        schedule_ids = self.payload.template["schedule_ids"]
        coming = [self.first_instants[number] for number in schedule_ids if number in self.first_instants]
        return JobRow(
            job_id=self.job_id,
            spec=msgspec.json.decode(self.payload.row.spec, type=Spec),
            schedule_ids=tuple(schedule_ids),
            jitter_by=self.payload.jitter_by,
            paused_at=None,
            paused_by=None,
            paused_reason=None,
            paused_until=None,
            revision=self.revision,
            created_at=since,
            updated_at=since,
            next_at=min(coming, default=None) if d.enabled else None,
            timer_at=_timer_at(d, since),
            learned_at=None,
            done_at=None,
            region=self.payload.region,
            **jobs.stored_values(d),
        )


def _timer_at(d: Definition, since: datetime) -> datetime | None:
    """Returns when a one-shot, or the first run of a fixed delay, is due."""
    at = d.once_at
    if d.delay is not None:
        at = max(since + d.delay, d.starts_at or EPOCH)
    return at if at is not None and d.enabled and (d.ends_at is None or at <= d.ends_at) else None


async def create(
    store: Store,
    catalog: Catalog,
    definitions: Sequence[Definition],
    *,
    tenant_id: int,
    who: str,
    now: datetime | None = None,
    from_json: bool = False,
) -> list[RegisteredJob]:
    """Creates jobs, all or none, and returns them in the order given.

    `now` saves a query if the caller has just read the database's clock. `from_json`: the arguments were decoded from
    JSON, so they need no conversion to plain JSON types.
    """
    now = now or await store.now()
    new = [(await new_id(catalog, d), 0, d) for d in definitions]
    return await _validate_and_write(store, catalog, new, tenant_id, who, now=now, from_json=from_json)


# Writes encoded jobs of these shards, and returns the time from which they apply.
WriteJobs = Callable[[bytes, Sequence[int], ScheduleInstants], Awaitable[datetime]]
Outcomes = dict[int, RegisteredJob | InvalidInput]  # by the index of the definition


async def create_many(
    store: Store,
    catalog: Catalog,
    definitions: Mapping[int, Definition],
    *,
    tenant_id: int,
    who: str,
    now: datetime,
    atomic: bool,
    templates: Mapping[int, int] | None = None,
    actors: Mapping[int, str] | None = None,
) -> Outcomes:
    """Creates the valid jobs among definitions that were decoded from JSON, and returns an outcome for each index.

    With `atomic`, nothing is created if one definition is refused, and only the refusals are returned. For `templates`
    see `validate_definitions`, for `actors` see `jobs.register`.
    """
    shared = None if templates is None else [templates[index] for index in definitions]
    validated = await validate_definitions(
        store, catalog, list(definitions.values()), tenant_id=tenant_id, now=now, from_json=True, templates=shared
    )
    found = dict(zip(definitions, validated, strict=True))
    valid = {index: result for index, result in found.items() if isinstance(result, ValidDefinition)}
    outcomes: Outcomes = {index: result for index, result in found.items() if isinstance(result, InvalidInput)}
    outcomes |= _duplicate_names(valid)
    for _ in range(MAX_TRIES):
        accepted = {index: result for index, result in valid.items() if index not in outcomes}
        if not accepted or (atomic and outcomes):
            return outcomes
        new = [(await new_id(catalog, result.definition), 0, result) for result in accepted.values()]
        try:
            written = await _write(
                store, catalog, new, tenant_id, who, None, now, [actors[index] for index in accepted] if actors else ()
            )
        except Conflict:
            outcomes |= await _taken_names(store, accepted, tenant_id)
            continue
        return outcomes | dict(zip(accepted, written, strict=True))
    raise Unavailable("other requests take the names of these jobs at the same time", hint="try again in a moment")


def _duplicate_names(valid: Mapping[int, ValidDefinition]) -> dict[int, InvalidInput]:
    """Refuses definitions whose name an earlier one of the same request has."""
    seen: set[str] = set()
    refused: dict[int, InvalidInput] = {}
    for index, result in valid.items():
        name = result.definition.name.lower()
        if name in seen:
            refused[index] = _name_taken("another job of this request has that name")
        seen.add(name)
    return refused


async def _taken_names(
    store: Store, accepted: Mapping[int, ValidDefinition], tenant_id: int
) -> dict[int, InvalidInput]:
    """Refuses definitions whose name a stored job has. The result is empty if that job was deleted meanwhile."""
    stored = await jobs.find_many(store, tenant_id, [result.definition.name for result in accepted.values()])
    message = "a job with that name already exists"
    return {index: _name_taken(message) for index, result in accepted.items() if result.definition.name in stored}


def _name_taken(message: str) -> InvalidInput:
    return InvalidInput(message, hint="choose another name", pointer="/name", code="name_taken")


async def change(
    store: Store,
    catalog: Catalog,
    job_id: UUID,
    revision: int,
    definition: Definition,
    *,
    tenant_id: int,
    who: str,
    why: str | None = None,
) -> RegisteredJob:
    """Changes one job. Raises Conflict if its revision is no longer the given one."""
    job = await jobs.get(store, job_id, tenant_id)
    if job is None:
        raise NotFound("there is no such job")
    changes = [(job_id, revision, definition)]
    [changed] = await _validate_and_write(
        store, catalog, changes, tenant_id, who, known=job.schedules, known_upstreams=_upstreams([job]), why=why
    )
    return changed


async def change_all(
    store: Store, catalog: Catalog, changes: Sequence[tuple[JobRow, Definition]], *, tenant_id: int, who: str, why: str
) -> list[RegisteredJob]:
    """Changes jobs, all or none. Raises Conflict if one of them has changed since it was read."""
    wanted = [(job.job_id, job.revision, definition) for job, definition in changes]
    known = {schedule for job, _ in changes for schedule in job.schedules}
    upstreams = _upstreams([job for job, _ in changes])
    return await _validate_and_write(
        store, catalog, wanted, tenant_id, who, known=known, known_upstreams=upstreams, why=why
    )


def _upstreams(stored: Sequence[JobRow]) -> list[str]:
    """Returns the jobs after which these start already, even if they were deleted meanwhile."""
    return [job.after.job for job in stored if job.after is not None]


async def declare(
    store: Store,
    catalog: Catalog,
    definitions: Sequence[Definition],
    *,
    tenant_id: int,
    who: str,
    now: datetime | None = None,
) -> list[RegisteredJob]:
    """Creates jobs that are missing by name, changes those that differ, and leaves the rest alone.

    With `now`, no job is created whose schedules have ended by then: such a job was deleted after its completion, and
    the code that still declares it must not create it again at every start. Several processes of one program may
    declare the same jobs when they start together: the second finds nothing left to do.
    """
    wanted = {check_name(d.name): d for d in await as_stored(store, catalog, definitions, tenant_id=tenant_id)}
    if len({name.casefold() for name in wanted}) < len(definitions):
        raise InvalidInput("two of the definitions have the same name", pointer="/name", code="name_taken")
    for _ in range(MAX_TRIES):
        stored = await jobs.find_many(store, tenant_id, list(wanted))
        changes = []
        for name, definition in wanted.items():
            job_id, revision = stored.get(name, (None, 0))
            if job_id is None and now is not None and definition.has_ended(now):
                continue
            job = None if job_id is None else await jobs.get(store, job_id, tenant_id)
            if job is not None and is_same(job, definition):
                continue
            kept = definition if job is None else keep_repeats(definition, job.schedules)
            changes.append((job_id or await new_id(catalog, definition), revision, kept))
        try:
            if not changes:
                return []
            # another program may declare the upstream job later, so it need not exist
            return await _validate_and_write(store, catalog, changes, tenant_id, who, known_upstreams=None)
        except Conflict:
            continue
    raise _busy()


def is_same(job: JobRow, definition: Definition) -> bool:
    """Returns whether a change to this definition, in its stored form, would change nothing."""
    definition = keep_repeats(definition, job.schedules)
    same = all(getattr(job, name) == getattr(definition, name) for name in _COMPARED)
    same = same and job.cap == definition.max_concurrency and definition.region in {None, job.region}
    learns = definition.routed and definition.expected_duration is None  # the durations of its runs choose the pool
    same = same and (learns or job.pool == definition.pool)
    wanted = msgspec.json.decode(encode_spec(definition), type=Spec)
    return same and job.name == check_name(definition.name) and job.spec == wanted


async def as_stored(
    store: Store, catalog: Catalog, definitions: Sequence[Definition], *, tenant_id: int
) -> list[Definition]:
    """Returns definitions in their stored form: with the present content of their calendars, with `H` fields replaced
    by the hash of the job's name, and with the version of their graph."""
    definitions = [await graph_versions.intern_workflow(store, catalog, d, tenant_id=tenant_id) for d in definitions]
    current = await calendars.current(store, tenant_id, (s for d in definitions for s in d.schedules))
    return [resolve_schedules(d, current, f"{tenant_id}:{check_name(d.name)}") for d in definitions]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumedJob:
    """A job after its resume: its revision, how many occurrences its pause covered, and when the pause began."""

    revision: int
    missed: int = 0
    since: datetime | None = None


async def resume(
    store: Store,
    catalog: Catalog,
    job_id: UUID,
    *,
    tenant_id: int,
    who: str,
    missed: Missed = Missed.SKIP,
    paused_by: str | None = None,
) -> ResumedJob:
    """Resumes a paused job from now on. `missed` decides which occurrences of the pause run in the background. With
    `paused_by`, the pause of anyone else stays."""
    for _ in range(MAX_TRIES):
        job = await jobs.get(store, job_id, tenant_id)
        if job is None:
            raise NotFound("there is no such job")
        if job.paused_at is None or paused_by not in (None, job.paused_by):
            return ResumedJob(revision=job.revision)
        instants = await _schedule_instants(store, catalog, job.schedule_ids)
        schedules = await catalog.schedules(job.schedule_ids)
        recurring = {number: schedules[number] for number in job.schedule_ids}
        latest = _latest_occurrence(recurring, job, instants.asof) if missed is Missed.LATEST else None
        try:
            revision = await jobs.resume(store, job_id, tenant_id, who, instants, missed, latest, paused_by)
        except StaleInstants:
            continue
        if revision is not None:
            start, end = _paused_range(job, instants.asof)
            count = sum(s.count_between(start, end + MICROSECOND) for s in recurring.values() if start <= end)
            return ResumedJob(revision=revision, missed=count, since=job.paused_at)
    raise _busy()


def _latest_occurrence(schedules: Mapping[int, Schedule], job: JobRow, now: datetime) -> tuple[int, datetime] | None:
    """Returns the last occurrence within a job's pause, and the id of its schedule."""
    start, end = _paused_range(job, now)
    found = [
        (at, number)
        for number, schedule in schedules.items()
        if (at := schedule.last_at_or_before(end, not_before=start)) is not None
    ]
    return max(found)[::-1] if found else None


def _paused_range(job: JobRow, now: datetime) -> tuple[datetime, datetime]:
    """Returns the first and the last moment of a pause at which the job could have fired."""
    assert job.paused_at is not None
    return max(job.paused_at + MICROSECOND, job.starts_at or EPOCH), min(now, job.ends_at or now)


async def write_changes(
    store: Store,
    catalog: Catalog,
    changes: Sequence[tuple[UUID, int, Definition]],
    *,
    tenant_id: int,
    who: str,
    write: WriteJobs,
) -> list[RegisteredJob]:
    """Creates and changes jobs by id and expected revision (0: a new job), with a statement of the caller's choice.

    The jobs after which they start need not exist: another program may declare them later.
    """
    return await _validate_and_write(store, catalog, changes, tenant_id, who, write=write, known_upstreams=None)


async def _validate_and_write(
    store: Store,
    catalog: Catalog,
    wanted: Sequence[tuple[UUID, int, Definition]],
    tenant_id: int,
    who: str,
    *,
    known: Collection[Schedule] = (),
    known_upstreams: Collection[str] | None = (),
    why: str | None = None,
    now: datetime | None = None,
    from_json: bool = False,
    write: WriteJobs | None = None,
) -> list[RegisteredJob]:
    """Writes definitions by id and expected revision (0: a new job). Raises the first InvalidInput."""
    now = now or await store.now()
    await check_region_unchanged(catalog, wanted)
    definitions = [definition for _, _, definition in wanted]
    validated = await validate_definitions(
        store,
        catalog,
        definitions,
        tenant_id=tenant_id,
        now=now,
        known=known,
        from_json=from_json,
        known_upstreams=known_upstreams,
    )
    valid = []
    for (job_id, revision, _), result in zip(wanted, validated, strict=True):
        if isinstance(result, InvalidInput):
            raise result
        valid.append((job_id, revision, result))
    return await _write(store, catalog, valid, tenant_id, who, why, now, write=write)


async def _write(
    store: Store,
    catalog: Catalog,
    valid: Sequence[tuple[UUID, int, ValidDefinition]],
    tenant_id: int,
    who: str,
    why: str | None,
    asof: datetime | None,
    actors: Sequence[str] = (),
    write: WriteJobs | None = None,
) -> list[RegisteredJob]:
    """Creates or changes jobs in one statement; repeats it if the instants became stale while it waited for locks, or
    if a schedule was pruned after this process had read its id."""
    payloads: list[JobPayload] = []
    by_job = {job_id: actor for (job_id, _, _), actor in zip(valid, actors, strict=True)} if actors else None

    async def register(document: bytes, shards: Sequence[int], instants: ScheduleInstants) -> datetime:
        return await jobs.register(store, document, shards, who, instants, why, by_job)

    for _ in range(MAX_TRIES):
        payloads = payloads or await encode_jobs(catalog, valid, tenant_id)
        schedule_ids = {number for payload in payloads for number in payload.template["schedule_ids"]}
        shards = sorted({payload.row.shard for payload in payloads})
        try:
            instants = await _schedule_instants(store, catalog, schedule_ids, asof)
            since = await (write or register)(encode_batches(payloads), shards, instants)
        except StaleInstants:
            asof = None
            continue
        except PrunedSchedules:
            catalog.forget_schedules()
            payloads = []
            continue
        return [
            RegisteredJob(
                job_id=job_id,
                revision=revision + 1,
                active_since=since,
                definition=result.definition,
                payload=payload,
                first_instants=instants.first,
            )
            for (job_id, revision, result), payload in zip(valid, payloads, strict=True)
        ]
    raise _busy()


async def _schedule_instants(
    store: Store, catalog: Catalog, schedule_ids: Iterable[int], asof: datetime | None = None
) -> ScheduleInstants:
    """Computes the instants of schedules right after `asof`; without it, after the database's present time."""
    wanted = sorted(set(schedule_ids))
    known = await catalog.schedules(wanted)
    if not known.keys() >= set(wanted):
        raise PrunedSchedules
    asof = asof or await store.now()
    await partitions.ensure_days(store, {asof.date(), (asof + SOON_HORIZON).date()})
    first: dict[int, datetime] = {}
    soon: list[tuple[int, datetime]] = []
    for number in wanted:
        following = catalog.next_after(number, asof)
        if following is not None:
            first[number] = following
            if following <= asof + SOON_HORIZON:
                soon.extend((number, instant) for instant in known[number].between(asof, asof + SOON_HORIZON))
    return ScheduleInstants(asof=asof, first=first, soon=soon)


def _busy() -> Unavailable:
    return Unavailable("the database is too busy to register a job", hint="try again in a moment")
