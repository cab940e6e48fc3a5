"""Connections to PostgreSQL whose other end is gone without having closed them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from tests.support.silent_proxy import SilentProxy

from bellringer.clock import SystemClock
from bellringer.store import dead_connections
from bellringer.store.connection_pool import RETRYABLE_ERRORS, Store, connect
from bellringer.store.wakeups import WORK_CHANNEL, Wakeups, listen

LIMIT = 10.0  # seconds in which a dead peer is found


@pytest.fixture
async def proxy(dsn: str) -> AsyncIterator[SilentProxy]:
    async with SilentProxy(dsn) as running:
        yield running


@pytest.fixture
async def through(proxy: SilentProxy) -> AsyncIterator[Store]:
    opened = await Store.open(proxy.address, size=4)
    yield opened
    await opened.close()


async def test_a_statement_on_a_silent_connection_fails_soon_and_the_next_one_succeeds(
    proxy: SilentProxy, through: Store
) -> None:
    assert await through.pool.fetchval("select 1") == 1
    proxy.silence()
    async with asyncio.timeout(LIMIT):
        with pytest.raises(RETRYABLE_ERRORS):
            await through.pool.fetchval("select 1")
    async with asyncio.timeout(1):
        assert await through.pool.fetchval("select 2") == 2


async def test_idle_connections_are_replaced_together_with_the_one_that_was_found_dead(
    proxy: SilentProxy, through: Store
) -> None:
    await asyncio.gather(*(through.pool.fetchval("select pg_sleep(0.2)") for _ in range(4)))
    assert proxy.silence() == 4
    async with asyncio.timeout(LIMIT):
        with pytest.raises(RETRYABLE_ERRORS):
            await through.pool.execute("select 1")
    async with asyncio.timeout(2):
        for _ in range(4):
            assert await asyncio.gather(*(through.pool.fetchval("select 3") for _ in range(4))) == [3] * 4


async def test_a_server_that_is_silent_to_everyone_is_given_up(proxy: SilentProxy, through: Store) -> None:
    await through.pool.fetchval("select 1")
    proxy.silence()
    proxy.silent_to_new = True
    async with asyncio.timeout(LIMIT):
        with pytest.raises(RETRYABLE_ERRORS):
            await through.pool.fetchval("select 1")
    async with asyncio.timeout(LIMIT):  # nor does connecting take the driver's 60 s
        with pytest.raises(RETRYABLE_ERRORS):
            await through.pool.fetchval("select 1")
    proxy.silent_to_new = False
    async with asyncio.timeout(LIMIT):
        assert await through.pool.fetchval("select 4") == 4


async def test_a_transaction_on_a_silent_connection_fails_soon(proxy: SilentProxy, through: Store) -> None:
    async def transact() -> None:
        async with through.pool.acquire() as connection, connection.transaction():
            await connection.execute("select 1")
            proxy.silence()
            await connection.execute("select 2")

    async with asyncio.timeout(LIMIT):
        with pytest.raises(RETRYABLE_ERRORS):
            await transact()


async def test_a_long_statement_is_left_alone(through: Store) -> None:
    assert await through.pool.fetchval("select 5 from pg_sleep(6)") == 5


async def test_a_statement_that_waits_for_a_lock_is_left_alone(through: Store) -> None:
    async with through.pool.acquire() as holder, holder.transaction():
        await holder.execute("select pg_advisory_xact_lock(4711)")
        waiting = asyncio.create_task(through.pool.fetchval("select 6 from pg_advisory_lock(4711)"))
        await asyncio.sleep(6)
        assert not waiting.done()
    assert await waiting == 6


async def test_a_cancelled_statement_does_not_keep_its_connection(proxy: SilentProxy, through: Store) -> None:
    """Whoever gives up after 1 s gets the connection's place back, although no answer to the cancel will come."""
    await through.pool.fetchval("select 1")
    proxy.silence()
    proxy.silent_to_new = True
    loop = asyncio.get_running_loop()
    started = loop.time()
    with pytest.raises(TimeoutError):
        await through.pool.fetchval("select 1", timeout=1)
    assert loop.time() - started < 6


async def test_a_listener_comes_back(proxy: SilentProxy, through: Store, store: Store) -> None:
    heard: list[str] = []
    listening = asyncio.create_task(listen(through, SystemClock(), {WORK_CHANNEL: heard.append}))
    try:
        await _told(store, heard, "before")
        proxy.silence()
        async with asyncio.timeout(LIMIT):
            await _told(store, heard, "after")
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


async def _told(store: Store, heard: list[str], text: str) -> None:
    async with asyncio.timeout(15):
        while text not in heard:
            await Wakeups(store, SystemClock()).send(WORK_CHANNEL, text)
            await asyncio.sleep(0.1)


async def test_the_client_s_socket_has_keepalives_and_a_user_timeout(proxy: SilentProxy, through: Store) -> None:
    async with through.pool.acquire() as pooled:
        lone = await connect(proxy.address)
        try:
            found: list[Any] = [pooled, lone]
            for connection in found:
                end: socket.socket = connection._transport.get_extra_info("socket")
                assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == dead_connections.USER_TIMEOUT_MS
                idle, interval, count = (
                    end.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in dead_connections.KEEPALIVE
                )
                assert idle + interval * count <= LIMIT
        finally:
            await lone.close()


async def test_a_server_without_free_slots_condemns_no_one(dsn: str, store: Store) -> None:
    """Nothing is known of a statement that cannot be asked for: it goes on."""
    await store.pool.execute("create role crowded login connection limit 1")
    crowded = dsn.replace("bellringer@", "crowded@")
    try:
        opened = await Store.open(crowded, size=1)
        try:
            with pytest.raises(asyncpg.TooManyConnectionsError):
                await asyncpg.connect(crowded)
            assert await opened.pool.fetchval("select 7 from pg_sleep(6)") == 7
        finally:
            await opened.close()
    finally:
        await store.pool.execute("drop role crowded")
