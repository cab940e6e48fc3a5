"""Revisions: a job is its latest one, and those before it are found by their key, however many they are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

import pytest
from tests.integration.store.test_query_plans_register import rows_read

from bellringer.core.jobs import Definition
from bellringer.engine import job_and_run_commands as commands
from bellringer.engine.register import change, create
from bellringer.schedule import every
from bellringer.store import audit, explain, revisions, workflows
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.tenant_scope import ScopedStore, open_tenants
from bellringer.testing.postgres import TestServer

MANY: Final = 20_000
FEW: Final = 200  # rows
BOTH: Final = "jobs|job_revisions"
OTHERS: Final = 500  # jobs, so that reading all of them would show
# What a job has beside what its definition tells.
NOT_TOLD: Final = {
    "done_at", "job_id", "name_key", "created_at", "updated_at", "revision", "what", "who", "why",
    "app_id", "declared_revision", "declared_enabled", "orphaned_at", "orphaned_version", "orphan_paused_by",
}  # fmt: skip
DOCUMENTS: Final = {"spec", "schedules", "catchup"}


def definition(name: str, priority: int = 5) -> Definition:
    return Definition(name=name, task="demo", schedules=(every("1h"),), priority=priority)


async def test_a_job_is_its_latest_revision(store: Store, catalog: Catalog) -> None:
    [made] = await create(store, catalog, [definition("bell")], tenant_id=1, who="ada")
    job_id = made.job_id
    assert await store.pool.fetchval("select count(*) from job_revisions") == 0
    await change(store, catalog, job_id, 1, definition("bell", 7), tenant_id=1, who="bob", why="louder")
    await commands.pause(store, job_id, tenant_id=1, who="cy", reason="rest", until=None)
    await commands.delete_job(store, job_id, tenant_id=1, who="dee")
    told = await revisions.newest(store, job_id, 10)
    assert [(r["revision"], r["what"], r["who"], r["why"]) for r in told] == [
        (4, "deleted", "dee", None),
        (3, "paused", "cy", "rest"),
        (2, "changed", "bob", "louder"),
        (1, "created", "ada", None),
    ]
    assert [r["definition"]["priority"] for r in told] == [7, 7, 7, 5]
    assert [("paused_at" in r["definition"], "deleted_at" in r["definition"]) for r in told] == [
        (True, True),
        (True, False),
        (False, False),
        (False, False),
    ]
    times = [r["effective_at"] for r in told]
    assert times == sorted(times, reverse=True)
    assert await store.pool.fetchval("select array_agg(revision order by 1) from job_revisions") == [1, 2, 3]
    found = await audit.oldest_after(store, 1, 0, audit.AuditFilter(kind="job"), 10)
    assert [(e.revision, e.who) for e in found.entries] == [(1, "ada"), (2, "bob"), (3, "cy"), (4, "dee")]


async def test_a_definition_shows_all_columns_of_a_job(store: Store) -> None:
    """One that is added later and forgotten here would be missing from revisions, rollbacks and seals."""
    rows = await store.pool.fetch(
        "select c.relname, a.attname from pg_attribute a join pg_class c on c.oid = a.attrelid"
        " where c.oid = any (array['bellringer.jobs'::regclass, 'bellringer.job_terms'::regclass])"
        " and a.attnum > 0 and not a.attisdropped"
    )
    columns = {name: {row["attname"] for row in rows if row["relname"] == name} for name in ("jobs", "job_terms")}
    assert columns["job_terms"] == columns["jobs"] - NOT_TOLD - DOCUMENTS


READS: Final[dict[str, Callable[[Store, object], Awaitable[object]]]] = {
    "newest": lambda store, job: revisions.newest(store, job, 10),  # type: ignore[arg-type]
    "before": lambda store, job: revisions.before(store, job, MANY // 2, 10),  # type: ignore[arg-type]
    "one": lambda store, job: revisions.one(store, job, 1, MANY // 2),  # type: ignore[arg-type]
    "then": lambda store, job: explain.load_instant_facts(store, job, datetime(2040, 1, 1, tzinfo=UTC), 1),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("analysed", [True, False])
async def test_a_few_of_very_many_are_found_by_their_key(bellringer_server: TestServer, *, analysed: bool) -> None:
    async with bellringer_server.database() as dsn:
        owner = await Store.open(dsn, size=1)
        tenants = await open_tenants(dsn, size=1)
        try:
            those = [definition(f"bell {n}") for n in range(OTHERS)]
            made = await create(owner, Catalog(owner), those, tenant_id=1, who="me")
            job_id = made[0].job_id
            await owner.pool.execute("alter table job_revisions set (autovacuum_enabled = off)")
            await owner.pool.execute("alter table jobs disable trigger kept")
            await owner.pool.execute("update jobs set revision = $2 where job_id = $1", job_id, MANY + 1)
            await owner.pool.execute(
                "insert into job_revisions select job_id, n, updated_at, 'changed', 'me', null, definition_of(j)"
                " from jobs j, generate_series(1, $2::int) n where job_id = $1",
                job_id,
                MANY,
            )
            if analysed:
                await owner.pool.execute("analyze")
            for store in (owner, ScopedStore(tenants, 1, None)):
                await store.pool.execute("set stats_fetch_consistency = none")
                for name, read in READS.items():
                    before = await rows_read(store, BOTH)
                    assert await read(store, job_id), name
                    assert await rows_read(store, BOTH) - before < FEW, name
            before = await rows_read(owner, BOTH)
            assert await workflows.list_graph_versions(owner, job_id) == []
            assert await rows_read(owner, BOTH) - before < 2 * workflows.MAX_REVISIONS_SCANNED
        finally:
            await tenants.close()
            await owner.close()
