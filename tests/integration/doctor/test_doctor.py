"""`bellringer doctor` on real servers whose settings and conditions are made bad on purpose."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from tests.support.stock_server import find_programs

from bellringer.backends.embedded_postgres.server import EmbeddedPostgres
from bellringer.clock import SystemClock
from bellringer.doctor import CHECKS, CheckResult, examine, facts, judge
from bellringer.store.connection_pool import Store, connect
from bellringer.store.migrate import migrate
from bellringer.testing.postgres import TestServer, at_database

BELLRINGER = Path(sys.executable).with_name("bellringer")
NODE = """
insert into bellringer.nodes (node_id, name, host, pid, version, started_at, seen_at, skew)
values (gen_random_uuid(), $1, 'here', 1, '1', now(), clock_timestamp() + interval '10 min', $2)
"""
WORKER = """
insert into bellringer.workers (name, host, pid, version, pools, task_ids, started_at, seen_at)
values ('w', 'here', 2, '1', '{}', '{}', now(), clock_timestamp() + interval '10 min')
"""


@pytest.fixture
async def stock_dsn(stock_server: TestServer) -> AsyncIterator[str]:
    """A migrated database on a stock server."""
    async with stock_server.database() as dsn:
        async with session(dsn) as connection:
            await migrate(connection)
        yield dsn


async def check(dsn: str, name: str, clock: Any = None) -> list[CheckResult]:
    """The results of one check."""
    (wanted,) = [check for check in CHECKS if check.name == name]
    return await examine(dsn, clock or SystemClock(), [wanted])


async def severities(dsn: str, name: str) -> list[str]:
    return [result.severity.value for result in await check(dsn, name)]


async def apply(dsn: str, results: list[CheckResult]) -> None:
    """Run the statements that the results propose, as the owner."""
    async with session(dsn) as connection:
        for result in results:
            await connection.execute("\n".join(result.fix))


@asynccontextmanager
async def session(dsn: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


def call(folder: Path, dsn: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("BELLRINGER_")}
    return subprocess.run(
        [BELLRINGER, "doctor", *arguments],
        cwd=folder,
        env={**environ, "BELLRINGER_DSN": dsn},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def test_every_check_can_be_read_by_the_owner(dsn: str) -> None:
    results = await examine(dsn, SystemClock())
    assert {result.check for result in results} == {check.name for check in CHECKS}
    assert [result.found for result in results if "could not be checked" in result.found] == []
    order = [result.severity.value for result in results]
    assert order == sorted(order, key=["problem", "warn", "ok"].index)
    calm = {"server version", "schema", "row security", "partitions", "session settings", "autovacuum", "bloat"}
    assert {result.severity.value for result in results if result.check in calm} == {"ok"}


@pytest.mark.parametrize(
    ("name", "setting", "bad", "severity"),
    [("synchronous_commit", "synchronous_commit", "off", "problem"), ("jit", "jit", "on", "warn")],
)
@pytest.mark.parametrize("where", ["database {database}", "role {role} in database {database}"])
async def test_a_setting_of_the_database_or_role_is_found_and_its_fix_works(
    dsn: str, name: str, setting: str, bad: str, severity: str, where: str
) -> None:
    async with session(dsn) as connection:
        database, role = await connection.fetchrow("select current_database(), current_user")  # type: ignore[misc]
        place = where.format(database=database, role=role)
        await connection.execute(f"alter {place} set {setting} = {bad}")
    results = await check(dsn, name)
    assert [result.severity.value for result in results] == [severity]
    await apply(dsn, results)
    assert await severities(dsn, name) == ["ok"]


async def test_settings_that_do_not_reach_the_server_are_a_problem(dsn: str) -> None:
    ours, plain = await connect(dsn), await facts.open_plain(dsn)
    try:
        await ours.execute("set plan_cache_mode = auto")  # as if a pooler had dropped what the session was opened with
        read = await facts.read_server(facts.Connections(dsn, ours, plain, SystemClock()))
        (result,) = judge.judge_session_settings(read)
        assert (result.severity.value, result.found) == ("problem", "plan_cache_mode is auto")
    finally:
        await ours.close()
        await plain.close()


async def test_autovacuum_settings_of_tables(dsn: str) -> None:
    async with session(dsn) as connection:
        await connection.execute("alter table bellringer.jobs set (autovacuum_enabled = false)")
        await connection.execute("alter table bellringer.queue reset (autovacuum_vacuum_scale_factor)")
    results = await check(dsn, "autovacuum")
    assert [(r.severity.value, r.found) for r in results] == [
        ("problem", "autovacuum is disabled for bellringer.jobs"),
        ("warn", "bellringer.queue has lost the autovacuum settings of the schema"),
    ]
    await apply(dsn, results)
    assert await severities(dsn, "autovacuum") == ["ok"]


async def test_dead_rows_of_a_table_that_is_not_vacuumed(dsn: str) -> None:
    async with session(dsn) as connection:
        await connection.execute("alter table bellringer.timers set (autovacuum_enabled = false)")
        await connection.execute(
            "insert into bellringer.timers (job_id, scheduled_for, slot, due_at, shard, pool_id, priority, tenant_id,"
            " task_id, cause) select gen_random_uuid(), now(), 0, now(), 0, 1, 0, 1, 1,"
            " (enum_range(null::bellringer.cause))[1] from generate_series(1, 70000)"
        )
        await connection.execute("delete from bellringer.timers")
    results: list[CheckResult] = []
    for _ in range(100):  # the server publishes its counts a moment later
        results = await check(dsn, "bloat")
        if results[0].severity.value != "ok":
            break
        await asyncio.sleep(0.1)
    (result,) = results
    assert (result.severity.value, result.found) == (
        "warn",
        "bellringer.timers has 70,000 dead and 0 live rows, vacuumed never",
    )
    await apply(dsn, results)
    for _ in range(100):
        if await severities(dsn, "bloat") == ["ok"]:
            return
        await asyncio.sleep(0.1)
    raise AssertionError("the proposed vacuum did not help")


async def test_a_session_that_is_idle_in_its_transaction(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "IDLE_TRANSACTION_SECONDS", 0.2)
    async with session(dsn) as idle:
        await idle.execute("set application_name = 'report'; begin; select 1")
        pid = idle.get_server_pid()
        await asyncio.sleep(0.3)
        (result,) = await check(dsn, "transactions")
        assert result.severity.value == "warn"
        assert result.found.startswith(f"pid {pid} (report) is idle in its transaction for 0.")
        await apply(dsn, [result])
        for _ in range(100):
            if await severities(dsn, "transactions") == ["ok"]:
                return
            await asyncio.sleep(0.1)
    raise AssertionError("the session was not ended")


async def test_stock_sessions_of_other_roles_are_hidden_and_that_is_said(stock_server: TestServer) -> None:
    async with stock_server.database() as dsn:
        name = dsn.partition("?")[0].rpartition("/")[2]
        async with session(at_database(stock_server.dsn, name)) as administrator:
            await administrator.execute("begin; select 1")
            (result,) = await check(dsn, "transactions")
            assert result.severity.value == "ok"
            assert "1 session of other roles is hidden from plain" in result.found
            assert result.fix == ("grant pg_read_all_stats to plain;",)


@pytest.mark.parametrize(
    ("statement", "lock"),
    [
        ("lock table bellringer.queue", "relation bellringer.queue"),
        ("update bellringer.cluster set made_at = made_at", "transactionid"),
    ],
)
async def test_a_session_that_waits_for_a_lock(dsn: str, statement: str, lock: str) -> None:
    async with session(dsn) as holder, session(dsn) as waiter:
        await holder.execute(f"begin; {statement}")
        waiting = asyncio.create_task(waiter.execute(f"begin; {statement}"))
        try:
            await asyncio.sleep(1.2)
            (result,) = await check(dsn, "lock waits")
        finally:
            await holder.execute("rollback")
            await waiting
        assert result.severity.value == "warn"
        assert result.found.startswith(f"pid {waiter.get_server_pid()} waits for a lock ({lock})")
        assert f"held by pid {holder.get_server_pid()} (" in result.found
        assert "idle in transaction" in result.found
        assert result.found.count(statement) == 2, "the statements of both are shown"
        assert result.fix == (f"select pg_terminate_backend({holder.get_server_pid()});",)
    assert await severities(dsn, "lock waits") == ["ok"]


async def test_of_a_chain_of_lock_waits_only_the_first_holder_is_ended(stock_dsn: str) -> None:
    async with session(stock_dsn) as first, session(stock_dsn) as second, session(stock_dsn) as third:
        await first.execute("begin; lock table bellringer.cluster in row exclusive mode")
        waiting = [asyncio.create_task(second.execute("begin; lock table bellringer.cluster in exclusive mode"))]
        await asyncio.sleep(0.3)
        waiting.append(asyncio.create_task(third.execute("begin; lock table bellringer.cluster in share mode")))
        await asyncio.sleep(1.3)
        results = await check(stock_dsn, "lock waits")
        assert len(results) == 2
        ends = f"select pg_terminate_backend({first.get_server_pid()});"
        assert {result.fix for result in results} == {(ends,)}
        assert any("which waits for a lock itself" in result.found for result in results)
        await apply(stock_dsn, results[:1])
        await waiting[0]
        await second.execute("rollback")
        await waiting[1]
        await third.execute("rollback")


async def test_what_holds_back_vacuum_is_named(stock_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "OLD_XMIN_TRANSACTIONS", 5)
    async with session(stock_dsn) as reader, session(stock_dsn) as writer:
        await reader.execute("set application_name = 'export'; begin isolation level repeatable read; select 1")
        for _ in range(10):
            await writer.execute("update bellringer.cluster set made_at = made_at")
        result = (await check(stock_dsn, "vacuum horizon"))[0]
        pid = reader.get_server_pid()
        assert result.severity.value == "problem"
        assert result.found.startswith(f"pid {pid} (export) holds back vacuum by 10 transactions")
        assert result.fix == (f"select pg_terminate_backend({pid});",)
        await apply(stock_dsn, [result])
        for _ in range(100):
            if await severities(stock_dsn, "vacuum horizon") == ["ok"]:
                return
            await asyncio.sleep(0.1)
    raise AssertionError("the session was not ended")


async def test_processes_that_are_missing(dsn: str, store: Store) -> None:
    assert await severities(dsn, "processes") == ["warn", "warn"]
    await store.pool.execute(
        "insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, shard, pool_id, priority,"
        " cause) values ($1, now(), 0, now(), 1, 1, 0, 1, 0, (enum_range(null::cause))[1])",
        uuid4(),
    )
    assert await severities(dsn, "processes") == ["problem", "warn"]
    await store.pool.execute(WORKER)
    await store.pool.execute(NODE, "n", 0.0)
    assert await severities(dsn, "processes") == ["ok"]
    (result,) = await check(dsn, "connections")
    assert "1 scheduler and 1 worker need at most 14" in result.found
    await store.pool.execute("update workers set seen_at = seen_at - interval '1 hour'")
    await store.pool.execute("update nodes set seen_at = seen_at - interval '1 hour'")
    assert await severities(dsn, "processes") == ["problem", "warn"]


async def test_partitions_that_are_missing(dsn: str, store: Store) -> None:
    today = (await store.now()).astimezone(UTC).date()
    await store.pool.execute("select ensure_days($1)", [today + timedelta(days=n) for n in range(3)])
    assert await severities(dsn, "partitions") == ["ok"]
    await store.pool.execute(f"drop table logs_{today + timedelta(days=2):%Y%m%d}")
    assert await severities(dsn, "partitions") == ["warn"]
    await store.pool.execute(f"drop table logs_{today:%Y%m%d}")
    results = await check(dsn, "partitions")
    assert [result.severity.value for result in results] == ["problem"]
    await apply(dsn, results)
    assert await severities(dsn, "partitions") == ["ok"]


class ShiftedClock(SystemClock):
    def now(self) -> datetime:
        return super().now() + timedelta(seconds=5)


async def test_clocks_that_differ(dsn: str, store: Store) -> None:
    assert await severities(dsn, "clock") == ["ok"]
    (result,) = await check(dsn, "clock", ShiftedClock())
    assert result.severity.value == "warn"
    assert result.found == "the clock of this machine is 5.0 s ahead of the database's"
    await store.pool.execute(NODE, "far", -3.0)
    (result,) = await check(dsn, "clock")
    assert result.found == "the clock of node far is 3.0 s behind the database's"


async def test_a_database_without_schema_and_one_with_other_functions(
    bellringer_server: TestServer, dsn: str, store: Store
) -> None:
    empty = await bellringer_server.create_empty()
    try:
        results = await examine(empty, SystemClock())
        assert {result.check for result in results} == {check.name for check in CHECKS if not check.needs_schema}
        (schema,) = [result for result in results if result.check == "schema"]
        assert (schema.severity.value, schema.fix) == ("problem", ("bellringer migrate",))
        assert "schema 0" in schema.found
    finally:
        await bellringer_server.drop(empty)
    await store.pool.execute("update applied_functions set checksum = 'other'")
    (result,) = await check(dsn, "schema")
    assert (result.severity.value, result.fix) == ("problem", ("bellringer migrate",))


async def test_stock_row_security_that_is_off(stock_server: TestServer) -> None:
    dsn = await stock_server.create_empty()
    try:
        async with session(dsn) as owner:
            await migrate(owner)
        results = await check(dsn, "row security")
        assert [result.severity.value for result in results] == ["warn"]
        *statements, last = results[0].fix
        assert last == "bellringer migrate"
        async with session(stock_server.dsn) as administrator:
            for statement in statements:
                await administrator.execute(statement)
        async with session(dsn) as owner:
            await migrate(owner)
        assert await severities(dsn, "row security") == ["ok"]
    finally:
        await stock_server.drop(dsn)


# Servers of their own


@pytest.fixture(params=["embedded", "stock"])
def bad_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The DSN of a server whose settings are all bad."""
    settings = {
        "autovacuum": "off",
        "fsync": "off",
        "full_page_writes": "off",
        "max_connections": "14",
        "max_prepared_transactions": "2",
        "max_wal_size": "64MB",
        "shared_buffers": "16MB",
    }
    if request.param == "stock":
        request.getfixturevalue("stock_server")  # skips or fails if there is none
        server = EmbeddedPostgres(tmp_path / "bad", settings=settings, binaries=find_programs(), defaults={})
    else:
        server = EmbeddedPostgres(tmp_path / "bad", settings=settings)
    with server as running:
        yield running.dsn


async def test_bad_server_settings_and_conditions_are_found(bad_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "OLD_PREPARED_SECONDS", 0.0)
    async with session(bad_server) as administrator:
        await migrate(administrator)
        await administrator.execute("begin; create table t (); prepare transaction 'left'")
        await administrator.execute("select pg_create_physical_replication_slot('gone', true)")
        for _ in range(12):
            await administrator.execute("checkpoint")
        others = [await asyncpg.connect(bad_server) for _ in range(7)]
        try:
            results = await examine(bad_server, SystemClock())
        finally:
            for other in others:
                await other.close()
    found = {(result.check, result.severity.value, result.found.partition(";")[0]) for result in results}
    assert {
        ("crash safety", "problem", "fsync is off"),
        ("crash safety", "problem", "full_page_writes is off"),
        ("autovacuum", "problem", "autovacuum is off"),
        ("connections", "problem", "10 of 11 connections are in use"),
        ("checkpoints", "warn", "max_wal_size is 64MB"),
        ("shared_buffers", "warn", "shared_buffers is 16MB"),
    } <= found
    (checkpoints,) = [result for result in results if result.check == "checkpoints"]
    assert "checkpoints were requested early" in checkpoints.found
    (prepared,) = [result for result in results if result.check == "prepared"]
    assert (prepared.severity.value, prepared.fix) == ("problem", ("rollback prepared 'left';",))
    (slot,) = [result for result in results if result.check == "replication slots"]
    assert (slot.severity.value, slot.fix) == ("warn", ("select pg_drop_replication_slot('gone');",))


def test_the_command_prints_for_people_and_programs(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "good") as running:

        async def prepare() -> None:
            async with session(running.dsn) as owner:
                await migrate(owner)
                await owner.execute("set search_path to bellringer")
                await owner.execute(WORKER)
                await owner.execute(NODE, "n", 0.0)

        async def execute(statement: str) -> None:
            async with session(running.dsn) as owner:
                await owner.execute(statement)

        asyncio.run(prepare())
        good = call(tmp_path, running.dsn, "--strict")
        assert good.returncode == 0, good.stdout
        assert good.stdout.splitlines()[-1] == f"0 problems, 0 warnings, {len(CHECKS)} ok"
        asyncio.run(execute("alter database bellringer set jit = on"))
        assert call(tmp_path, running.dsn).returncode == 0
        assert call(tmp_path, running.dsn, "--strict").returncode == 1
        asyncio.run(execute("alter database bellringer set synchronous_commit = off"))
        bad = call(tmp_path, running.dsn)
        assert bad.returncode == 1
        lines = bad.stdout.splitlines()
        assert lines[0] == "problem  synchronous_commit is off"
        assert [line for line in lines if len(line) > 80] == []
        assert "           alter database bellringer set synchronous_commit = on;" in lines
        assert [line.split()[0] for line in lines if not line.startswith(" ")][:3] == ["problem", "warn", "ok"]
        document = json.loads(call(tmp_path, running.dsn, "--json").stdout)
        assert document["summary"] == {"problem": 1, "warn": 1, "ok": len(CHECKS) - 2}
        assert document["results"][0] == {
            "check": "synchronous_commit",
            "severity": "problem",
            "found": "synchronous_commit is off",
            "why": "A crash of the server loses work that was acknowledged: sends, results and fired occurrences.",
            "fix": ["alter database bellringer set synchronous_commit = on;"],
        }
    away = call(tmp_path, "postgresql://127.0.0.1:9/x")
    assert (away.returncode, away.stdout) == (6, "")
