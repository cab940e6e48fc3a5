"""Processes that start while PostgreSQL is away, restarts, or has no connection left."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import asyncpg
import pytest
from tests.support.silent_proxy import SilentProxy

from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog

from .conftest import until
from .roles import Roles
from .test_worker_processes import free_port, get, metric

ROLES = ("scheduler", "worker", "server")
OF_DATABASE = (
    "bellringer_dead_letters_stored",
    "bellringer_overdue",
    "bellringer_partitions_missing",
    "bellringer_orphaned_jobs",
    "bellringer_shards_free",
    "bellringer_missed_ratio",
    "bellringer_expected_occurrences",
    "bellringer_paused_tasks",
    "bellringer_silent_claims",
)


@pytest.fixture
def roles(tmp_path: Path, dsn: str) -> Iterator[Roles]:
    running = Roles(tmp_path, dsn)
    yield running
    running.end()


async def _joined(store: Store, role: str) -> bool:
    """Whether a process of this role has come up."""
    if role == "server":  # the worker of HTTP targets that runs in it
        return bool(await store.pool.fetchval("select exists (select 1 from workers where name like 'server-%-http')"))
    table = {"scheduler": "nodes", "worker": "workers"}[role]
    return bool(await store.pool.fetchval(f"select exists (select 1 from {table} where name like $1)", f"{role}-%"))


@pytest.mark.cluster
async def test_roles_wait_for_a_database_that_is_down(store: Store, dsn: str, roles: Roles) -> None:
    async with SilentProxy(dsn) as proxy:
        proxy.refuses_new = True
        roles.dsn = proxy.address
        started = {role: roles.by_name(role) for role in ROLES}

        async def all_wait() -> bool:
            return all("waiting for the database" in roles.said(process) for process in started.values())

        await until(all_wait, 60, "all roles say what they wait for")
        assert all(process.poll() is None for process in started.values())
        proxy.refuses_new = False
        for role in ROLES:
            await until(partial(_joined, store, role), 15, f"the {role} comes up")


@pytest.mark.cluster
async def test_a_server_that_waits_exports_no_gauge_of_the_database(store: Store, dsn: str, roles: Roles) -> None:
    """A gauge that is 0 until the database responds would look like dead letters that disappear and come back."""
    task_id = (await Catalog(store).task_ids(["demo"]))["demo"]
    await store.pool.execute(
        "insert into dead_letters"
        " (job_id, scheduled_for, slot, tenant_id, task_id, attempt, died_at, reason, fingerprint)"
        " select gen_random_uuid(), now(), 0, 1, $1, 1, now(), 'no', 'f' from generate_series(1, 12)",
        task_id,
    )
    ports = {role: free_port() for role in ROLES}
    async with SilentProxy(dsn) as proxy:
        proxy.refuses_new = True
        roles.dsn = proxy.address
        for role in ROLES:
            getattr(roles, role)(metrics_port=str(ports[role]))

        async def scrape(role: str) -> str:
            with suppress(OSError):
                return (await asyncio.to_thread(get, ports[role], "/metrics"))[1]
            return ""

        async def all_serve_metrics() -> bool:
            return all([await scrape(role) for role in ROLES])

        await until(all_serve_metrics, 60, "all serve metrics")
        texts = {role: await scrape(role) for role in ROLES}
        exported = {role: {name for name in OF_DATABASE if f"\n{name} " in text} for role, text in texts.items()}
        assert exported == {"scheduler": set(), "worker": set(), "server": set()}
        assert metric(texts["server"], "bellringer_database_up") == 0
        assert "\nbellringer_database_up " not in texts["worker"] + texts["scheduler"]
        proxy.refuses_new = False

        async def server_reads() -> bool:
            return "\nbellringer_database_up 1.0" in await scrape("server")

        await until(server_reads, 30, "the server reads the database")
        text = await scrape("server")
        assert {name for name in OF_DATABASE if f"\n{name} " in text} == set(OF_DATABASE)
        assert metric(text, "bellringer_dead_letters_stored") == 12
        assert "\nbellringer_dead_letters_stored " not in await scrape("worker") + await scrape("scheduler")


@pytest.mark.cluster
@pytest.mark.parametrize("moment", [4, 12, 20, 34])
async def test_a_restart_at_any_moment_of_a_start_only_delays_it(
    store: Store, dsn: str, roles: Roles, moment: int
) -> None:
    """At the message of this number all connections end, and none comes about for a second."""
    for role in ROLES:
        async with SilentProxy(dsn) as proxy:
            proxy.cut_at = moment
            roles.dsn = proxy.address
            process = roles.by_name(role)

            async def is_cut(proxy: SilentProxy = proxy) -> bool:
                return proxy.refuses_new

            await until(is_cut, 20, f"the {role} has sent {moment} messages")
            await asyncio.sleep(1)
            proxy.refuses_new = False
            await until(partial(_joined, store, role), 20, f"the {role} comes up")
            assert process.poll() is None, roles.said(process)
            process.kill()
            process.wait()


@pytest.mark.cluster
def test_a_process_that_waits_stops_when_asked(tmp_path: Path) -> None:
    roles = Roles(tmp_path, "postgresql://bellringer@127.0.0.1:9/x")
    try:
        process = roles.scheduler()
        asyncio.run(until(lambda: _says(roles, process, "waiting for the database"), 20, "it waits"))
        process.terminate()
        assert process.wait(5) == 0
    finally:
        roles.end()


async def _says(roles: Roles, process: subprocess.Popen[bytes], words: str) -> bool:
    return words in roles.said(process)


@pytest.mark.cluster
@pytest.mark.parametrize("role", ROLES)
def test_a_database_that_does_not_exist_is_not_waited_for(roles: Roles, role: str) -> None:
    roles.dsn = roles.dsn.replace("/test_", "/none_")
    process = roles.by_name(role)
    assert process.wait(20) == 1
    assert "refuses the connection" in roles.said(process)


@pytest.mark.cluster
async def test_a_process_says_what_to_change_when_no_connection_is_left(store: Store, dsn: str, roles: Roles) -> None:
    await store.pool.execute("create role crowded login connection limit 1")
    crowded = dsn.replace("bellringer@", "crowded@")
    holder = await asyncpg.connect(crowded)
    try:
        roles.dsn = crowded
        process = roles.scheduler()
        assert await asyncio.to_thread(process.wait, 60) == 6
        said = roles.said(process)
        assert "has no connection left, and this process needs" in said
        assert "max_connections" in said
        assert "BELLRINGER_POOL_SIZE" in said
    finally:
        await holder.close()
        await store.pool.execute("drop role crowded")
