"""Declares the jobs of an app: creates, changes and adopts them, and marks jobs that its code no longer has as orphans.

The declaration of a named app is complete: its code says which jobs it has. One SQL call applies it, under the lock of
the app. It is refused if a newer version of the app is current, so an old process that starts late changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from bellringer.core.apps import AppVersion
from bellringer.core.jobs import BUILT_IN_TASKS, Definition, check_name
from bellringer.engine import register
from bellringer.engine.drift import differing_fields, load_drifts, shorten
from bellringer.engine.register import MAX_TRIES
from bellringer.engine.shard_placement import new_id
from bellringer.engine.validate import keep_repeats
from bellringer.errors import Conflict, InvalidInput, Unavailable
from bellringer.store import apps, jobs
from bellringer.store.apps import AppRow, DeclarationResult, DeclaredState, JobChanges
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.jobs import DeclaredJob, JobRow, ScheduleInstants, StaleInstants

ONE_SHOT_GRACE: Final = timedelta(minutes=1)
MAX_DECLARED_JOBS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OverriddenJob:
    """A job whose drift the declaration undid: the name of the job, who had changed it, and the fields."""

    name: str
    by: str | None
    fields: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppDeclaration:
    """The outcome of a declaration. If `superseded_by` is set, a newer version is current and nothing was written."""

    changed: int = 0
    superseded_by: str | None = None
    adopted: Sequence[str] = ()
    orphaned: Sequence[str] = ()
    overridden: Sequence[OverriddenJob] = ()
    resumed: int = 0
    is_written: bool = False  # something was recorded, be it only a new version


async def declare_app(
    store: Store,
    catalog: Catalog,
    app: AppVersion,
    definitions: Sequence[Definition],
    tasks: Sequence[str],
    *,
    tenant_id: int,
) -> AppDeclaration:
    """Applies the declaration of an app. Writes nothing if everything is declared already.

    One-shots whose time has passed are left alone: the code may be older than the instant. Other jobs are not created
    if their schedules have ended: they were deleted after their completion.
    """
    wanted = {check_name(d.name): d for d in await register.as_stored(store, catalog, definitions, tenant_id=tenant_id)}
    if len({name.casefold() for name in wanted}) < len(definitions):
        raise InvalidInput("two of the definitions have the same name", pointer="/name", code="name_taken")
    for _ in range(MAX_TRIES):
        plan = await _make_plan(store, catalog, app, wanted, tasks, tenant_id)
        if plan.superseded_by is not None:
            return AppDeclaration(superseded_by=plan.superseded_by)
        try:
            result = await _apply(store, catalog, app, plan, tenant_id) if plan.needs_write else None
        except (Conflict, StaleInstants):
            continue  # another process changed one of the jobs, or there was a deadlock
        if result is not None and result.superseded_by is not None:
            return AppDeclaration(superseded_by=result.superseded_by)
        resumed = 0
        for job in plan.resumes:
            outcome = await register.resume(
                store, catalog, job.job_id, tenant_id=tenant_id, who=app.who, paused_by=job.orphan_paused_by
            )
            resumed += outcome.since is not None
            await apps.forget_orphan_pause(store, tenant_id, job.job_id)
        return AppDeclaration(
            changed=len(plan.changes),
            adopted=result.adopted if result else (),
            orphaned=result.orphaned if result else (),
            overridden=plan.overridden,
            resumed=resumed,
            is_written=plan.needs_write or resumed > 0,
        )
    raise Unavailable("the jobs of this app are changed too often", hint="try again in a moment")


@dataclass(slots=True, kw_only=True)
class _Plan:
    """The writes of one declaration."""

    needs_write: bool = False
    superseded_by: str | None = None
    changes: list[tuple[UUID, int, Definition]] = field(default_factory=list)
    declared: list[DeclaredState] = field(default_factory=list)
    resumes: list[JobRow] = field(default_factory=list)
    left: list[UUID] = field(default_factory=list)
    events: dict[UUID, Mapping[str, Any]] = field(default_factory=dict)
    overridden: list[OverriddenJob] = field(default_factory=list)


async def _make_plan(
    store: Store,
    catalog: Catalog,
    app: AppVersion,
    wanted: Mapping[str, Definition],
    tasks: Sequence[str],
    tenant_id: int,
) -> _Plan:
    now = await store.now()
    ids = await jobs.find_many(store, tenant_id, list(wanted))
    rows = {job.job_id: job for job in await jobs.get_many(store, [i for i, _ in ids.values()], tenant_id)}
    stored = {name: rows[job_id] for name, (job_id, _) in ids.items() if job_id in rows}
    known = await apps.look(store, tenant_id, app, [job.job_id for job in stored.values()])
    if known is not None and known.is_superseded:
        return _Plan(superseded_by=known.version)
    app_id = None if known is None or app.is_named else known.app_id
    plan = _Plan(left=await _jobs_left(store, app_id, wanted, tasks, tenant_id))
    for name, definition in wanted.items():
        job = stored.get(name)
        if job is None:
            if not _is_past(definition, now) and not definition.has_ended(now):
                job_id = await new_id(catalog, definition)
                plan.changes.append((job_id, 0, definition))
                plan.declared.append(DeclaredState(job_id=job_id, revision=1, enabled=definition.enabled))
            continue
        merged = keep_repeats(keep_enabled(job, definition), job.schedules)
        is_same = _is_past(definition, now) or register.is_same(job, merged)
        if not is_same:
            plan.changes.append((job.job_id, job.revision, merged))
        state = DeclaredState(job_id=job.job_id, revision=job.revision + (not is_same), enabled=definition.enabled)
        plan.declared.append(state)
        plan.needs_write |= not is_same or not _is_recorded(job, state, known)
        if job.is_paused_as_orphan:
            plan.resumes.append(job)
    plan.needs_write |= bool(plan.changes or plan.left) or not _is_current(known, app)
    await _note_overridden(store, app, plan, rows, tenant_id)
    return plan


def _is_past(definition: Definition, now: datetime) -> bool:
    return definition.once_at is not None and definition.once_at <= now - ONE_SHOT_GRACE


def _is_recorded(job: JobRow, state: DeclaredState, known: AppRow | None) -> bool:
    """Whether the database already says that the app declares this job."""
    recorded = (job.app_id, job.declared_revision, job.declared_enabled, job.orphaned_at)
    return known is not None and recorded == (known.app_id, state.revision, state.enabled, None)


def _is_current(known: AppRow | None, app: AppVersion) -> bool:
    if known is None or known.is_old or (known.has_more_jobs and app.is_named):
        return False
    return (known.version, known.orphans) == (app.version, app.orphans)


def keep_enabled(job: JobRow, definition: Definition) -> Definition:
    """Returns the definition with `enabled` as an operator set it, unless the code has changed its own value since its
    last declaration. The last declaration of a job from before apps were recorded is not known: it stays disabled."""
    if job.declared_enabled is None:
        return replace(definition, enabled=definition.enabled and job.enabled)
    return definition if job.declared_enabled != definition.enabled else replace(definition, enabled=job.enabled)


async def _jobs_left(
    store: Store, app_id: int | None, declared: Mapping[str, Definition], tasks: Sequence[str], tenant_id: int
) -> list[UUID]:
    """Returns active jobs that this program declared earlier, as far as that is known, and no longer declares.

    This concerns jobs that were declared before apps were recorded, and those of an app without a name of its own,
    because several programs may share its name. A job belongs to this program if the program has its task, or if the
    task is in one of its modules and no worker knows it.
    """
    known, mine = {name.lower() for name in declared}, set(tasks)
    modules = {module for name in (*declared, *tasks) if (module := name.rpartition(".")[0])}

    def is_mine(job: DeclaredJob) -> bool:
        if job.task in BUILT_IN_TASKS:  # workflow jobs are named like a task
            return job.name.rpartition(".")[0] in modules
        return job.task in mine or (not job.served and job.task.rpartition(".")[0] in modules)

    found = await jobs.list_declared(store, tenant_id, app_id, MAX_DECLARED_JOBS)
    return [job.job_id for job in found if job.name.lower() not in known and is_mine(job)]


async def _note_overridden(
    store: Store, app: AppVersion, plan: _Plan, rows: Mapping[UUID, JobRow], tenant_id: int
) -> None:
    """Adds the events of jobs whose drift the declaration undoes."""
    wanted = {job_id: definition for job_id, _, definition in plan.changes}
    drifts = await load_drifts(store, [rows[job_id] for job_id in wanted if job_id in rows], tenant_id)
    for job_id, drift in drifts.items():
        job = rows[job_id]
        drifted = {one.field for one in drift.fields}
        undone = [one for one in differing_fields(job.definition(), wanted[job_id]) if one.field in drifted]
        if not undone:
            continue
        plan.events[job_id] = {
            "app": app.name,
            "version": app.version or None,
            "by": app.who,
            "changed_by": drift.by,
            "changed_at": None if drift.at is None else drift.at.isoformat(),
            "fields": [
                {"field": one.field, "before": shorten(one.declared), "after": shorten(one.current)} for one in undone
            ],
        }
        plan.overridden.append(OverriddenJob(name=job.name, by=drift.by, fields=[one.field for one in undone]))


async def _apply(store: Store, catalog: Catalog, app: AppVersion, plan: _Plan, tenant_id: int) -> DeclarationResult:
    """Writes the plan in one call. Raises Conflict if a job has changed since it was read."""
    results: list[DeclarationResult] = []

    async def write(changes: JobChanges | None) -> DeclarationResult:
        result = await apps.declare(
            store, tenant_id, app, plan.declared, left=plan.left, overridden=plan.events, changes=changes
        )
        results.append(result)
        return result

    async def write_jobs(document: bytes, shards: Sequence[int], instants: ScheduleInstants) -> datetime:
        result = await write(JobChanges(document=document, shards=shards, instants=instants))
        return result.since or instants.asof  # without a time, nothing was written

    if plan.changes:
        await register.write_changes(store, catalog, plan.changes, tenant_id=tenant_id, who=app.who, write=write_jobs)
    else:
        await write(None)
    return results[-1]
