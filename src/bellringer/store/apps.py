"""Apps: the programs whose code declares jobs, their versions and their orphans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import asyncpg
import msgspec

from bellringer.core.apps import AppVersion
from bellringer.store import jobs
from bellringer.store.connection_pool import Store
from bellringer.store.jobs import ScheduleInstants
from bellringer.store.queries import load

_SQL = load("apps")
DECLARED_AT_PRECISION: Final = timedelta(minutes=1)  # processes that start within it write no new time
MAX_JOBS_COUNTED: Final = 10_000
MAX_VERSIONS: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class AppRow:
    """An app before a declaration. `version` is the current one, "" if it has none."""

    app_id: int
    version: str
    orphans: str
    is_old: bool  # the latest declaration is older than DECLARED_AT_PRECISION
    is_superseded: bool  # the version that asks is older than the current one
    has_more_jobs: bool  # beside those that the declaration names


async def look(store: Store, tenant_id: int, app: AppVersion, declared: Sequence[UUID]) -> AppRow | None:
    """Returns the app as it is; None: nothing has declared it yet."""
    asked = (tenant_id, app.name, app.version, declared, DECLARED_AT_PRECISION)
    row = await store.pool.fetchrow(_SQL.look, *asked)
    return None if row is None else AppRow(**dict(row))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredState:
    """A declared job: the revision that has the declared definition, and `enabled` as the code says."""

    job_id: UUID
    revision: int
    enabled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChanges:
    """Jobs to create and to change, as `jobs.register` takes them."""

    document: bytes
    shards: Sequence[int]
    instants: ScheduleInstants

    def arguments(self) -> tuple[Any, ...]:
        return (self.document.decode(), self.shards, self.instants.asof, *self.instants.arguments())


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclarationResult:
    """The outcome of a declaration. If `superseded_by` is set, nothing was written."""

    since: datetime | None
    superseded_by: str | None
    adopted: Sequence[str]
    orphaned: Sequence[str]


_NO_CHANGES: Final[tuple[Any, ...]] = (None, [], None, [], [], [], [])


async def declare(
    store: Store,
    tenant_id: int,
    app: AppVersion,
    declared: Sequence[DeclaredState],
    *,
    left: Sequence[UUID],
    overridden: Mapping[UUID, Any],
    changes: JobChanges | None,
) -> DeclarationResult:
    """Applies the declaration of an app in one call; see the SQL function `declare_app`."""
    asked = (
        tenant_id,
        app.name,
        app.version,
        app.orphans,
        app.who,
        [state.job_id for state in declared],
        [state.revision for state in declared],
        [state.enabled for state in declared],
        left,
        app.is_named,
        msgspec.json.encode(overridden).decode(),
        *(_NO_CHANGES if changes is None else changes.arguments()),
    )
    try:
        row = await store.pool.fetchrow(_SQL.declare, *asked)
    except asyncpg.UniqueViolationError as error:
        raise jobs.name_taken() from error
    except asyncpg.PostgresError as error:
        raise jobs.translate(error) from error
    assert row is not None, "a function with out parameters returns one row"
    return DeclarationResult(
        since=row["since"],
        superseded_by=row["superseded_by"],
        adopted=row["adopted"] or (),
        orphaned=row["orphaned"] or (),
    )


async def forget_orphan_pause(store: Store, tenant_id: int, job_id: UUID) -> None:
    """Notes that the pause by the orphan policy has ended."""
    await store.pool.execute(_SQL.resumed, job_id, tenant_id)


async def activate(store: Store, tenant_id: int, app: str, version: str, who: str) -> bool:
    """Makes an earlier version current again. Returns False if the app has no such version."""
    done: bool = await store.pool.fetchval(_SQL.activate, tenant_id, app, version, who)
    return done


@dataclass(frozen=True, slots=True, kw_only=True)
class AppSummary:
    """An app in a list; jobs and orphans are counted up to MAX_JOBS_COUNTED + 1."""

    name: str
    version: str | None
    policy: str
    created_at: datetime
    declared_at: datetime
    jobs: int
    orphans: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppVersionRow:
    """A version of an app; `is_current`: its declaration applies."""

    version: str | None
    first_seen_at: datetime
    activated_at: datetime | None
    activated_by: str | None
    is_current: bool


async def page(
    store: Store, tenant_id: int, after: str | None, most: int, *, name: str | None = None
) -> list[AppSummary]:
    """Returns apps in the order of their names."""
    rows = await store.pool.fetch(_SQL.page, tenant_id, after, most, MAX_JOBS_COUNTED + 1, name)
    return [AppSummary(**dict(row)) for row in rows]


async def versions(store: Store, tenant_id: int, app: str) -> list[AppVersionRow]:
    """Returns the latest versions of an app, the current one first."""
    return [AppVersionRow(**dict(row)) for row in await store.pool.fetch(_SQL.versions, tenant_id, app, MAX_VERSIONS)]


async def firing_orphans(store: Store, tenant_id: int, app: str, most: int) -> list[str]:
    """Returns the names of an app's orphans that are neither paused, disabled nor done."""
    return [row["name"] for row in await store.pool.fetch(_SQL.firing_orphans, tenant_id, app, most)]


async def count_orphans(store: Store) -> int:
    """Returns the number of orphaned jobs of all tenants."""
    counted: int = await store.pool.fetchval(_SQL.count_orphans)
    return counted
