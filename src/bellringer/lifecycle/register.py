"""Register: a definition becomes a job, and joins the cohorts of its schedules. Create, change and resume share it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec
from uuid_utils.compat import uuid7

from bellringer.errors import Conflict, InvalidInput, NotFound, Unavailable
from bellringer.jobs import OWN_KEY, Definition, check_name, shard_of
from bellringer.payload import check_payload
from bellringer.policies import Limit, Missed, jitter_by
from bellringer.runs import Spec
from bellringer.schedule import Calendar, Row, Schedule, resolved, seeded, to_document, to_row
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
    "task", "schedules", "pool", "priority", "starts_at", "ends_at", "enabled", "tags", "misfire", "catchup", "overlap",
    "limit", "jitter", "late_after", "owner",
)  # fmt: skip


async def register(
    store: Store, names: Names, definitions: Sequence[Definition], *, tenant_id: int, who: str
) -> list[Registered]:
    """Create jobs, all or none; answers in the order given."""
    fresh = [(uuid7(), 0, definition) for definition in definitions]
    return await _write(store, names, fresh, tenant_id, who)


async def change(
    store: Store,
    names: Names,
    job_id: UUID,
    revision: int,
    definition: Definition,
    *,
    tenant_id: int,
    who: str,
) -> Registered:
    """Change one job, if it still has the revision that the caller read."""
    job = await jobs.get(store, job_id, tenant_id)
    if job is None:
        raise NotFound("there is no such job")
    return (await _write(store, names, [(job_id, revision, definition)], tenant_id, who, job.schedules))[0]


async def change_all(
    store: Store, names: Names, changes: Sequence[tuple[Job, Definition]], *, tenant_id: int, who: str, why: str
) -> list[Registered]:
    """Change jobs, if each still is as it was read; all or none."""
    wanted = [(job.job_id, job.revision, definition) for job, definition in changes]
    known = {schedule for job, _ in changes for schedule in job.schedules}
    return await _write(store, names, wanted, tenant_id, who, known, why)


async def declare(
    store: Store, names: Names, definitions: Sequence[Definition], *, tenant_id: int, who: str
) -> list[Registered]:
    """Make jobs by their names what the definitions say: create the missing, change the different, leave the rest.

    Several processes of one program declare the same jobs when they start together; who comes second finds nothing
    left to do.
    """
    wanted = {check_name(d.name): d for d in await as_stored(store, definitions, tenant_id=tenant_id)}
    if len({name.casefold() for name in wanted}) < len(definitions):
        raise InvalidInput("two of the definitions have the same name", pointer="/name", code="name_taken")
    for _ in range(TRIES):
        known = await jobs.find_many(store, tenant_id, list(wanted))
        changes = []
        for name, definition in wanted.items():
            job_id, revision = known.get(name, (None, 0))
            if job_id is None or not await _same(store, job_id, tenant_id, definition):
                changes.append((job_id or uuid7(), revision, definition))
        try:
            return await _write(store, names, changes, tenant_id, who) if changes else []
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
    if job is None:
        return False
    same = all(getattr(job, name) == getattr(definition, name) for name in _COMPARED)
    same = same and job.cap == definition.max_concurrency
    wanted = msgspec.json.decode(_spec(definition), type=Spec)
    return same and job.name == check_name(definition.name) and job.spec == wanted


async def as_stored(store: Store, definitions: Sequence[Definition], *, tenant_id: int) -> list[Definition]:
    """Definitions with schedules as they are stored: a calendar by its present content, an `H` by the job's name."""
    known = await calendars.current(store, tenant_id, (s for d in definitions for s in d.schedules))
    return [_as_stored(d, known, f"{tenant_id}:{check_name(d.name)}") for d in definitions]


def _as_stored(d: Definition, known: Mapping[str, Calendar], seed: str) -> Definition:
    schedules = []
    for place, schedule in enumerate(d.schedules):
        try:
            schedules.append(seeded(resolved(schedule, known), seed))
        except InvalidInput as error:
            error.pointer = (f"/schedules/{place}" if len(d.schedules) > 1 else "/schedule") + error.pointer
            raise
    return replace(d, schedules=tuple(schedules))


def _spec(d: Definition) -> bytes:
    """A spec as it is stored: plain JSON, whatever types the arguments had."""
    return check_payload(msgspec.structs.asdict(d.spec()))


async def _write(
    store: Store,
    names: Names,
    wanted: Sequence[tuple[UUID, int, Definition]],
    tenant_id: int,
    who: str,
    known: Collection[Schedule] = (),
    why: str | None = None,
) -> list[Registered]:
    now = await store.now()
    definitions = await as_stored(store, [definition for _, _, definition in wanted], tenant_id=tenant_id)
    checked = [
        (job_id, revision, definition.checked(now, known))
        for (job_id, revision, _), definition in zip(wanted, definitions, strict=True)
    ]
    for _, _, definition in checked:
        check_payload({"args": list(definition.args), "kwargs": dict(definition.kwargs)}, pointer="")
    rows = await _rows(names, checked, tenant_id)
    schedule_ids = {number for row in rows for number in row["schedule_ids"]}
    for _ in range(TRIES):
        instants = await _instants(store, names, schedule_ids)
        try:
            taken = await jobs.register(store, rows, who, instants, why)
        except Stale:
            continue
        by_id = {registered.job_id: registered for registered in taken}
        return [by_id[job_id] for job_id, _, _ in checked]
    raise _busy()


async def _rows(
    names: Names, checked: Sequence[tuple[UUID, int, Definition]], tenant_id: int
) -> list[Mapping[str, Any]]:
    shards = await names.shards()
    tasks = await names.task_ids(d.task for _, _, d in checked)
    pools = await names.pool_ids(d.pool for _, _, d in checked)
    schedules = await names.schedule_ids(s for _, _, d in checked for s in d.recurring)
    limits = {job_id: limit for job_id, _, d in checked if (limit := _limit(job_id, d)) is not None}
    keys = await names.key_ids(tenant_id, limits.values())
    return [
        {
            "job_id": job_id,
            "expected": revision,
            "tenant_id": tenant_id,
            "shard": shard_of(job_id, shards),
            "task_id": tasks[d.task],
            "pool_id": pools[d.pool],
            "key_id": keys[limits[job_id].key] if job_id in limits else None,
            "key_most": limits[job_id].most if job_id in limits else None,
            "jitter_by": jitter_by(f"{tenant_id}:{d.name}", d.jitter).total_seconds(),
            **_columns(d, schedules),
        }
        for job_id, revision, d in checked
    ]


def _limit(job_id: UUID, d: Definition) -> Limit | None:
    """The limit that a job's runs are claimed under; a cap of its own is a key that no other job has."""
    if d.limit is not None or d.max_concurrency is None:
        return d.limit
    return Limit(f"{OWN_KEY}{job_id}", d.max_concurrency)


def _columns(d: Definition, schedules: Mapping[Row, int]) -> Mapping[str, Any]:
    return {
        "name": d.name,
        "spec": msgspec.Raw(_spec(d)),
        "schedules": [to_document(s) for s in d.schedules],
        "schedule_ids": sorted({schedules[to_row(s)] for s in d.recurring}),
        "once_at": d.once_at,
        "delay": d.delay.total_seconds() if d.delay else None,
        "priority": d.priority,
        "misfire": d.misfire,
        "catchup": d.catchup.to_document(),
        "overlap": d.overlap,
        "cap": d.max_concurrency,
        "jitter": d.jitter.total_seconds() if d.jitter else None,
        "late_after": d.late_after.total_seconds() if d.late_after else None,
        "starts_at": d.starts_at,
        "ends_at": d.ends_at,
        "enabled": d.enabled,
        "owner": d.owner,
        "tags": list(d.tags),
    }


async def _instants(store: Store, names: Names, schedule_ids: Iterable[int]) -> Instants:
    """What these schedules name right after now, by the database's clock."""
    wanted = sorted(set(schedule_ids))
    known = await names.schedules(wanted)
    asof = await store.now()
    await history.ensure_days(store, {asof.date(), (asof + SOON).date()})
    first: dict[int, datetime] = {}
    soon: list[tuple[int, datetime]] = []
    for number in wanted:
        following = known[number].next_after(asof)
        if following is not None:
            first[number] = following
            soon.extend((number, instant) for instant in known[number].between(asof, asof + SOON))
    return Instants(asof=asof, first=first, soon=soon)


def _busy() -> Unavailable:
    return Unavailable("the database is too busy to register a job right now", hint="try again in a moment")
