"""One node holds all shards, and others stand by: kill it, stop it or cut it off, and one of them takes over."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

import pytest

from bellringer.core.advisory_locks import AdvisoryLock
from bellringer.store.connection_pool import Store

from .conftest import Processes, every_second, fired_once_each, held_by, until

JOBS = 100
SHARDS = 64
Trouble = Callable[[subprocess.Popen[bytes], Store], Awaitable[None]]


async def kill(leader: subprocess.Popen[bytes], _: Store) -> None:
    leader.kill()


async def stop(leader: subprocess.Popen[bytes], _: Store) -> None:
    """Its kernel keeps the connection, so the lock stays taken."""
    leader.send_signal(signal.SIGSTOP)


async def cut(leader: subprocess.Popen[bytes], store: Store) -> None:
    """Its connections are ended, and it cannot make new ones for a while."""
    leader.send_signal(signal.SIGSTOP)
    await store.pool.execute(
        "select pg_terminate_backend(l.pid) from pg_locks l where l.locktype = 'advisory' and l.classid = $1",
        AdvisoryLock.LEADER,
    )


async def leader_of(store: Store) -> str | None:
    """The name of who holds all shards by good leases."""
    names = await store.pool.fetch(
        "select n.name from leases l join nodes n on n.node_id = l.holder where l.expires_at > clock_timestamp()"
    )
    return names[0]["name"] if len(names) == SHARDS and len(set(names)) == 1 else None


@pytest.mark.cluster
@pytest.mark.parametrize("trouble", [kill, stop, cut])
async def test_a_standby_takes_over_within_ten_seconds_and_nothing_is_doubled(
    store: Store, processes: Processes, trouble: Trouble
) -> None:
    first = processes.scheduler("first", coordination="leader")

    async def leads(*names: str) -> bool:
        return await leader_of(store) in names

    await until(lambda: leads("first"), 30, "the first node leads")
    began = await every_second(store, JOBS)
    for name in ("second", "third"):
        processes.scheduler(name, coordination="leader")

    async def all_there() -> bool:
        return bool(await store.pool.fetchval("select count(*) from nodes") == 3)

    await until(all_there, 30, "two stand by")
    await until(lambda: fired(store, began + timedelta(seconds=2)), 30, "the leader fires")
    assert len(await held_by(store, "first")) == SHARDS
    before = await tokens(store)

    await trouble(first, store)
    took = await until(lambda: leads("second", "third"), 30, "a standby leads")
    assert took < 10, "a failover takes less than ten seconds"
    assert all(new > old for old, new in zip(before, await tokens(store), strict=True))
    later = (await store.now()).replace(microsecond=0) + timedelta(seconds=3)
    if first.poll() is None:
        first.send_signal(signal.SIGCONT)
    await until(lambda: fired(store, later), 60, "the new leader fires, and has caught up")
    assert await leads("second", "third"), "who comes back stands by"
    await fired_once_each(store, JOBS, began, later)
    print(f"{trouble.__name__}: a standby held all shards after {took:.1f} s")


@pytest.mark.cluster
async def test_a_leader_that_is_asked_to_stop_hands_over_at_once(store: Store, processes: Processes) -> None:
    first = processes.scheduler("first", coordination="leader")

    async def leads(name: str) -> bool:
        return await leader_of(store) == name

    await until(lambda: leads("first"), 30, "the first node leads")
    processes.scheduler("second", coordination="leader")

    async def stands_by() -> bool:
        return bool(await store.pool.fetchval("select count(*) from nodes") == 2)

    await until(stands_by, 30, "the second stands by")
    first.send_signal(signal.SIGTERM)
    assert first.wait(20) == 0
    await until(lambda: leads("second"), 10, "the second leads")
    assert await store.pool.fetchval(
        "select count(*) from pg_locks where locktype = 'advisory' and classid = $1", AdvisoryLock.LEADER
    )


async def fired(store: Store, at: datetime) -> bool:
    return bool(await store.pool.fetchval("select count(*) from runs where scheduled_for = $1", at) == JOBS)


async def tokens(store: Store) -> list[int]:
    return [row["token"] for row in await store.pool.fetch("select token from leases order by shard")]
