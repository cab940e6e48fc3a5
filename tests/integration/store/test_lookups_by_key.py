"""Connections for look-ups are held, replaced when they break, and never left in an unknown state."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from bellringer.store.connection_pool import RETRYABLE_ERRORS, Store
from bellringer.store.keyed_read_connections import KEPT_PLANS, KeyedReads

WHO = "select pg_backend_pid() as pid, current_setting('bellringer.tenant') as tenant"


@pytest.fixture
async def lookups(tenants: Store) -> AsyncIterator[KeyedReads]:
    opened = KeyedReads(tenants, size=2)
    yield opened
    await opened.close()


async def pid(lookups: KeyedReads, tenant_id: int = 1) -> int:
    [row] = await lookups.of(tenant_id).pool.fetch(WHO)
    assert row["tenant"] == str(tenant_id)
    found: int = row["pid"]
    return found


async def test_a_connection_is_held_and_limited_to_the_rows_of_a_tenant(lookups: KeyedReads) -> None:
    assert await pid(lookups, 1) == await pid(lookups, 2) == await pid(lookups, 1)
    [row] = await lookups.of(1).pool.fetch("show plan_cache_mode")
    assert row[0] == KEPT_PLANS["plan_cache_mode"]


async def test_one_that_breaks_is_replaced(lookups: KeyedReads, store: Store) -> None:
    first = await pid(lookups)
    await store.pool.execute("select pg_terminate_backend($1, 5000)", first)
    found = None
    while found is None:
        with suppress(*RETRYABLE_ERRORS):  # a read that comes before the news of it fails, as on any connection
            found = await pid(lookups)
    assert found != first


async def test_a_read_that_is_cut_off_leaves_nothing_behind(lookups: KeyedReads) -> None:
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await lookups.of(1).pool.fetch("select pg_sleep(5)")
    async with asyncio.timeout(5):
        assert await pid(lookups)


async def test_one_whose_server_is_silent_is_given_up(lookups: KeyedReads, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it is not the read that waits, but what a connection is told before it."""
    monkeypatch.setattr("bellringer.store.keyed_read_connections.STATEMENT_TIMEOUT_SECONDS", 0.5)
    first = await pid(lookups, 1)
    os.kill(first, signal.SIGSTOP)
    try:
        async with asyncio.timeout(5):
            with pytest.raises(TimeoutError):
                await pid(lookups, 2)
            assert await pid(lookups, 2) != first
    finally:
        os.kill(first, signal.SIGCONT)


async def test_an_error_costs_no_line(lookups: KeyedReads) -> None:
    for _ in range(3):
        with pytest.raises(Exception, match="division by zero"):
            await lookups.of(1).pool.fetch("select 1 / 0")
    async with asyncio.timeout(5):
        assert await pid(lookups)


async def test_who_finds_all_lines_busy_waits(lookups: KeyedReads) -> None:
    asked = [lookups.of(n).pool.fetch(f"{WHO}, pg_sleep(0.02)") for n in range(1, 21)]
    found = await asyncio.gather(*asked)
    assert [row["tenant"] for [row] in found] == [str(n) for n in range(1, 21)]
    assert len({row["pid"] for [row] in found}) == 2


async def test_its_connections_have_the_role_of_the_tenants(lookups: KeyedReads, tenants: Store) -> None:
    [row] = await lookups.of(1).pool.fetch("select current_user")
    assert tenants.role is not None
    assert row[0] == tenants.role


async def test_a_database_that_is_away_is_said_so_and_found_again(lookups: KeyedReads, tenants: Store) -> None:
    elsewhere = KeyedReads(Store(tenants.pool, "postgresql://nobody@127.0.0.1:9/none"), size=1)
    for _ in range(2):  # and the line is not lost
        with pytest.raises(OSError):  # noqa: PT011 - of one kind or another
            await elsewhere.of(1).pool.fetch(WHO)
    assert await pid(lookups)
