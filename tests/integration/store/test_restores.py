"""Restored databases: positions, tokens and ids continue above everything that the lost database may have given out."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
from click.testing import CliRunner
from tests.integration.engine.test_audit_seal import changes, seal_all
from tests.support.engine_harness import EngineHarness

from bellringer.backends.embedded_postgres.programs import find_binaries
from bellringer.backends.embedded_postgres.server import EmbeddedPostgres
from bellringer.cli.root import cli
from bellringer.core.runs import State
from bellringer.engine.audit_seal import verify_chain
from bellringer.engine.explain import load_run_explanation
from bellringer.errors import SchemaMismatch
from bellringer.store import events, restores
from bellringer.store.connection_pool import Store, connect
from bellringer.store.events import START_POSITION
from bellringer.store.interned_names import Catalog
from bellringer.store.migrate import migrate, require_current, row_security
from bellringer.store.tenant_scope import ScopedStore, open_tenants
from bellringer.testing.postgres import FAST_SETTINGS, TestServer, at_database

TENANT = 1
ADVANCE = "do $$ begin for n in 1..5000 loop perform pg_current_xact_id(); commit; end loop; end $$"
ADD_EVENT = """
insert into events (at, tenant_id, kind, job_id, scheduled_for)
select now(), $1, 'late', gen_random_uuid(), now() returning event_id
"""
NUMBERS = """
select (select min(token) from leases) as token, (select last_value from workers_worker_id_seq) as worker,
       (select last_value from events_event_id_seq) as event, position_offset() as offset,
       (select count(*) from restores) as restores
"""


async def finish(store: Store) -> restores.RestoreRow:
    async with store.pool.acquire() as connection:
        return await restores.finish(connection, None, who="test", note="a drill")  # type: ignore[arg-type]


async def positions(store: Store) -> list[tuple[int, ...]]:
    found = await events.events_after(store, {TENANT: START_POSITION})
    return [tuple(position) for position, _ in found[TENANT].events]


async def test_all_numbers_are_skipped_once(harness: EngineHarness) -> None:
    store = harness.store
    seat = await harness.join_worker("demo")
    await store.pool.execute(ADD_EVENT, TENANT)
    await changes(store, harness.catalog, 3)
    await seal_all(store)
    before, known = (await harness.sql(NUMBERS))[0], await positions(store)
    made = await finish(store)
    after = (await harness.sql(NUMBERS))[0]
    assert all(after[name] - before[name] >= 1_000_000 for name in ("token", "worker", "event", "offset"))
    again = await finish(store)
    assert again == made
    assert dict((await harness.sql(NUMBERS))[0]) == dict(after)

    event_id = await store.pool.fetchval(ADD_EVENT, TENANT)
    assert event_id == after["event"] + 1
    assert (await harness.join_worker("demo")).worker_id > seat.worker_id + 1_000_000
    assert [p for p in await positions(store) if p not in known] == [max(await positions(store))]
    await changes(store, harness.catalog, 3, "later")
    await seal_all(store)
    found = await verify_chain(store)
    assert (found.broken, found.unsealed) == (None, 0)
    assert await harness.value("select count(*) from audit where action = 'cluster.restored' and tenant_id = 0") == 1

    # The worker that joined is a sign of life, so the next call is another restore.
    assert (await finish(store)).restore_id == made.restore_id + 1


async def test_a_run_that_may_have_run_before_is_explained(harness: EngineHarness, dsn: str) -> None:
    await harness.store.pool.execute("create or replace function now() returns timestamptz language sql stable as"
                                     " 'select pg_catalog.now()'")  # fmt: skip
    seat = await harness.join_worker("demo")
    done = (await harness.send(task="demo")).key
    await harness.end(seat, await harness.claim(seat))
    held = (await harness.send(task="demo")).key
    claimed = await harness.claim(seat)
    await harness.store.pool.execute("update workers set seen_at = clock_timestamp()")
    await asyncio.sleep(0.05)
    made = await finish(harness.store)
    assert (made.unfinished, made.held, made.positions_were_ahead) == (1, 1, False)
    await harness.end(seat, claimed)
    later = (await harness.send(task="demo")).key
    await harness.end(seat, await harness.claim(seat))
    for key, is_marked in ((done, False), (held, True), (later, False)):
        reasons = (await load_run_explanation(harness.store, key, tenant_id=TENANT)).reasons
        assert ("restored" in [reason.code for reason in reasons]) is is_marked, key
        assert await harness.state(key) is State.SUCCEEDED
    shown = await asyncio.to_thread(CliRunner().invoke, cli, ["restore", "list", "--dsn", dsn, "-o", "json"])
    assert '"held":1' in shown.output
    refused = await asyncio.to_thread(CliRunner().invoke, cli, ["restore", "finish", "--dsn", dsn])
    assert refused.exit_code == 5
    assert "programs are connected" in refused.output


@pytest.fixture
async def source(stock_server: TestServer) -> AsyncIterator[str]:
    async with stock_server.database() as dsn:
        await connect_and_execute(dsn, ADVANCE)
        yield dsn


async def connect_and_execute(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def run(program: str, *arguments: str, fed: bytes | None = None) -> bytes:
    done = subprocess.run([str(find_binaries() / program), *arguments], input=fed, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


async def test_a_dump_of_an_older_major_version_continues_on_a_new_server(
    stock_server: TestServer, source: str
) -> None:
    """Jobs, sends, events, the audit chain and row-level security survive `pg_dump`, from 15 to 18."""
    store = await Store.open(source)
    await changes(store, Catalog(store), 20)
    await seal_all(store)
    await store.pool.execute(ADD_EVENT, TENANT)
    sealed, known = await verify_chain(store), await positions(store)
    job = await store.pool.fetchval("select job_id from jobs limit 1")
    await store.close()
    with (
        tempfile.TemporaryDirectory(prefix="bellringer-dump-") as folder,
        EmbeddedPostgres(Path(folder), settings=FAST_SETTINGS) as newer,
    ):
        dump = str(Path(folder) / "dump")
        roles = run("pg_dumpall", "--roles-only", "--dbname", stock_server.dsn)
        run("psql", "--quiet", "--dbname", newer.dsn, fed=roles)
        run("pg_dump", "--format=custom", f"--file={dump}", source)
        await connect_and_execute(newer.dsn, "create database restored owner plain")
        target = at_database(newer.dsn, "restored")
        run("pg_restore", "--exit-on-error", f"--dbname={target}", dump)
        target = at_database(target, "restored", user="plain")

        connection = await connect(target)
        assert connection.get_server_version().major > 15
        with pytest.raises(SchemaMismatch, match="restored from a dump"):
            await require_current(connection)
        await migrate(connection)
        row = await restores.finish(connection, None, who="test", note="")
        assert row.positions_were_ahead
        await require_current(connection)
        found = await row_security(connection)
        assert found is not None
        assert found.is_on
        await connection.close()

        store = await Store.open(target)
        assert await positions(store) == known  # they were below the horizon of the old server
        await changes(store, Catalog(store), 5, "later")
        await seal_all(store)
        after = await verify_chain(store)
        assert (after.broken, after.unsealed) == (None, 0)
        assert after.entries > sealed.entries
        await store.close()
        tenants = await open_tenants(target, size=2, name="bellringer test")
        assert tenants.role is not None
        for tenant, seen in ((TENANT, 1), (TENANT + 1, 0)):
            scoped = ScopedStore(tenants, tenant, None)
            assert await scoped.pool.fetchval("select count(*) from jobs where job_id = $1", job) == seen
        await tenants.close()
