"""Sessions and functions do not depend on what a server, a database or a role sets by default."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from bellringer.store.connection_pool import SETTINGS, Store, connect
from bellringer.store.keyed_read_connections import KEPT_PLANS, KeyedReads
from bellringer.store.tenant_scope import ScopedStore, open_tenants
from bellringer.testing.postgres import TestServer

# All of these are allowed, and each of them has broken or slowed something somewhere.
ODD = {
    "bytea_output": "escape",
    "constraint_exclusion": "off",
    "cpu_index_tuple_cost": "1",
    "cpu_operator_cost": "1",
    "cpu_tuple_cost": "1",
    "datestyle": "German, DMY",
    "default_transaction_deferrable": "on",
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "effective_cache_size": "8kB",
    "extra_float_digits": "-15",
    "from_collapse_limit": "1",
    "geqo": "off",
    "geqo_threshold": "2",
    "hash_mem_multiplier": "1000",
    "idle_in_transaction_session_timeout": "1h",
    "idle_session_timeout": "1h",
    "intervalstyle": "iso_8601",
    "jit": "on",
    "jit_above_cost": "0",
    "join_collapse_limit": "1",
    "lock_timeout": "1h",
    "max_parallel_workers_per_gather": "8",
    "plan_cache_mode": "force_generic_plan",
    "random_page_cost": "40",
    "row_security": "off",
    "search_path": "pg_catalog",
    "seq_page_cost": "0",
    "standard_conforming_strings": "off",
    "statement_timeout": "1h",
    "tcp_keepalives_count": "9",
    "tcp_keepalives_idle": "7200",
    "tcp_keepalives_interval": "75",
    "tcp_user_timeout": "7200000",
    "timezone": "Asia/Kathmandu",
    "transform_null_equals": "on",
    "work_mem": "64kB",
    **{name: "off" for name in SETTINGS if name.startswith("enable_")},
}
VALUES = "select name, current_setting(name) as value from unnest($1::text[]) name"


@pytest.fixture
async def odd(stock_server: TestServer) -> AsyncIterator[str]:
    """A database whose owner has set everything that a session may depend on to something else."""
    async with stock_server.database() as dsn:
        connection = await asyncpg.connect(dsn)
        name = await connection.fetchval("select current_database()")
        for setting, value in ODD.items():
            await connection.execute(f"alter database {name} set {setting} = '{value}'")
        await connection.close()
        yield dsn


def told(rows: list[asyncpg.Record]) -> dict[str, str]:
    return {row["name"]: row["value"] for row in rows}


async def test_no_default_of_a_database_reaches_a_session(odd: str) -> None:
    assert set(ODD) - {"jit_above_cost"} == set(SETTINGS)  # whoever adds a setting adds an odd value
    bare = await asyncpg.connect(odd)
    pool, tenants = await Store.open(odd), await open_tenants(odd)
    line, lookups = await connect(odd), KeyedReads(tenants)
    wanted = list(SETTINGS)
    try:
        # A session by the socket has no keepalives to show.
        without = {name for name in wanted if name.startswith("tcp_")}
        differ = told(await bare.fetch(VALUES, wanted))
        ours = told(await pool.pool.fetch(VALUES, wanted))
        assert {name for name in wanted if differ[name] == ours[name]} <= without
        for name, value in SETTINGS.items():
            if name not in without:
                assert ours[name] in (value, f"{value}.0", value.removesuffix("s") + "s"), name
        assert told(await line.fetch(VALUES, wanted)) == ours
        assert told(await ScopedStore(tenants, 1, None).pool.fetch(VALUES, wanted)) == ours
        assert told(await lookups.of(1).pool.fetch(VALUES, wanted)) == {**ours, **KEPT_PLANS}
    finally:
        await lookups.close()
        await tenants.close()
        await pool.close()
        await line.close()
        await bare.close()


async def test_functions_that_pin_their_plans_are_never_compiled(stock_server: TestServer) -> None:
    async with stock_server.database() as dsn:
        connection = await asyncpg.connect(dsn)
        rows = await connection.fetch(
            "select proname, proconfig from pg_proc"
            " where pronamespace = 'bellringer'::regnamespace and proconfig is not null"
        )
        await connection.close()
    pinned = {row["proname"]: row["proconfig"] for row in rows if any("enable_" in item for item in row["proconfig"])}
    assert {"claim", "settle", "tick", "fire_timers", "list_runs"} <= set(pinned)
    assert [name for name, config in pinned.items() if "jit=off" not in config] == []
