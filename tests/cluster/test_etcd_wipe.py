"""etcd grants the shards, and loses its data under load: tokens grow on, nothing is doubled, no stale write passes."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import httpx2
import pytest
from tools.servers import Etcd

from bellringer.store import leases
from bellringer.store.connection_pool import Store

from .conftest import Processes, every_second, fired_once_each, held_by, is_stopped, until

JOBS = 100
SHARDS = 64
PUT = {"key": "eA==", "value": "eA=="}

# A token that goes back, or does not grow with a new holder, is noted, whoever writes it.
WATCHED = """
create table bellringer.trespasses (shard smallint, was bigint, is_now bigint);
create function bellringer.watch_tokens() returns trigger language plpgsql as $$
begin
  if new.token < old.token or (new.holder <> old.holder and new.token = old.token) then
    insert into bellringer.trespasses values (old.shard, old.token, new.token);
  end if;
  return null;
end $$;
create trigger watch_tokens after update on bellringer.leases for each row execute function bellringer.watch_tokens();
"""


class Reaped(Etcd):
    """Waits for its process before it forgets it: one that has just died and was not waited for is a leak to Python."""

    def _forget(self) -> None:
        if self._process is not None:
            self._process.wait()
        super()._forget()


@pytest.fixture
def etcd(tmp_path: Path, pytestconfig: pytest.Config) -> Iterator[Etcd]:
    with Reaped(tmp_path / "etcd", downloads=pytestconfig.rootpath / ".services" / "etcd") as server:
        yield server


def wipe(etcd: Etcd, _: Path) -> None:
    etcd.wipe()
    etcd.start()


def restore(etcd: Etcd, snapshot: Path) -> None:
    """All is as it was when the snapshot was made."""
    etcd.wipe()
    member = f"http://127.0.0.1:{etcd.state.ports[1]}"
    asked: list[str | Path] = ["--data-dir", etcd.data, "--name", "bellringer", "--initial-advertise-peer-urls", member]
    run(etcd, "snapshot", "restore", snapshot, *asked, "--initial-cluster", f"bellringer={member}")
    etcd.start()


def run(etcd: Etcd, *arguments: str | Path) -> None:
    """Call etcd's tool, which since 3.6 restores by a program of its own."""
    name = "etcdutl" if etcd.state.version >= "3.6" and "restore" in arguments else "etcdctl"
    subprocess.run(
        [etcd.program.with_name(name), *arguments],
        check=True,
        capture_output=True,
        env={**os.environ, "ETCDCTL_API": "3"},
    )


def write(etcd: Etcd, times: int) -> int:
    """Let the revisions grow; answers the last."""
    url = f"http://{etcd.address.removeprefix('etcd://')}/v3/kv/put"
    with httpx2.Client(trust_env=False) as client:
        answers = [client.post(url, json=PUT).json() for _ in range(times)]
    return int(answers[-1]["header"]["revision"])


async def shared(store: Store, *names: str) -> bool:
    parts = [len(await held_by(store, name)) for name in names]
    return sum(parts) == SHARDS and max(parts) - min(parts) <= 1


async def fired(store: Store, at: datetime) -> bool:
    return bool(await store.pool.fetchval("select count(*) from runs where scheduled_for = $1", at) == JOBS)


async def soon(store: Store, seconds: float) -> datetime:
    return (await store.now()).replace(microsecond=0) + timedelta(seconds=seconds)


@pytest.mark.cluster
@pytest.mark.timeout(400)
@pytest.mark.parametrize("lose", [wipe, restore])
async def test_tokens_grow_on_and_nothing_is_doubled_though_etcd_loses_its_data_under_load(
    store: Store, processes: Processes, etcd: Etcd, tmp_path: Path, lose: Callable[[Etcd, Path], None]
) -> None:
    await store.pool.execute(WATCHED)
    first = write(etcd, 300)
    processes.scheduler("a", coordination=etcd.address)
    stale = processes.scheduler("stale", coordination=etcd.address, fault="tick.checked:stop:6")
    await until(lambda: shared(store, "a", "stale"), 60, "two nodes share the shards")
    run(etcd, "--endpoints", etcd.address.removeprefix("etcd://"), "snapshot", "save", tmp_path / "old")
    write(etcd, 100)  # so that the tokens granted from now on are clearly above the snapshot's revision
    processes.scheduler("b", coordination=etcd.address)
    await until(lambda: shared(store, "a", "b", "stale"), 60, "three nodes share the shards")
    before = {row.shard: row.token for row in await leases.list_leases(store)}
    assert min(before.values()) > first, "the revisions are candidates for the tokens"

    began = await every_second(store, JOBS)

    async def stopped() -> bool:
        return is_stopped(stale)

    await until(stopped, 60, "one node is stopped between its look at its leases and its write")
    latest = write(etcd, 300)
    lose(etcd, tmp_path / "old")
    assert write(etcd, 1) < min(latest, max(before.values())), "etcd counts from far behind"

    async def taken_over() -> bool:
        return len(await held_by(store, "a", "b")) == SHARDS

    await until(taken_over, 60, "the others hold all shards")
    later = await soon(store, 2)
    await until(lambda: fired(store, later), 60, "they fire, and have caught up")
    stale.send_signal(signal.SIGCONT)

    async def refused() -> bool:
        return bool(await store.pool.fetchval("select refused > 0 from nodes where name = 'stale'"))

    await until(refused, 30, "the stale write is tried and refused")
    await until(lambda: shared(store, "a", "b", "stale"), 60, "all three share the shards again")
    last = await soon(store, 2)
    await until(lambda: fired(store, last), 60, "all fire")
    await fired_once_each(store, JOBS, began, last)
    assert await store.pool.fetch("select * from trespasses") == [], "no token has gone back"
    after = {row.shard: row.token for row in await leases.list_leases(store)}
    assert all(after[shard] >= token for shard, token in before.items())
    assert after != before


@pytest.mark.cluster
@pytest.mark.timeout(300)
@pytest.mark.parametrize("silence", [Etcd.kill, Etcd.pause])
async def test_without_etcd_nodes_say_what_they_wait_for_and_catch_up_when_it_is_back(
    store: Store, processes: Processes, etcd: Etcd, silence: Callable[[Etcd], None]
) -> None:
    for name in ("a", "b"):
        processes.scheduler(name, coordination=etcd.address)
    await until(lambda: shared(store, "a", "b"), 60, "two nodes share the shards")
    began = await every_second(store, JOBS)
    await until(lambda: fired(store, began + timedelta(seconds=1)), 30, "they fire")

    silence(etcd)
    gone = await soon(store, 0)
    await until(lambda: fired(store, gone + timedelta(seconds=1)), 30, "they go on until their leases end")

    async def told() -> bool:
        nodes = await leases.list_nodes(store)
        return all(node.age < 5 and node.waits_for is not None for node in nodes) and len(nodes) == 2

    await until(told, 30, "they live, and say what they wait for")
    text = str((await leases.list_nodes(store))[0].waits_for)
    assert text.startswith(f"etcd at {etcd.address.removeprefix('etcd://')} does not respond since 20"), text

    async def nobody_holds() -> bool:
        return not await held_by(store, "a", "b")

    await until(nobody_holds, 30, "the leases have ended")
    quiet = await store.pool.fetchval("select count(*) from runs")
    await until(told, 10, "they still live")
    assert await store.pool.fetchval("select count(*) from runs") == quiet, "nobody fires without a lease"

    etcd.resume()
    etcd.start()
    await until(lambda: shared(store, "a", "b"), 60, "they share the shards again")
    last = await soon(store, 2)
    await until(lambda: fired(store, last), 90, "they have caught up")
    await fired_once_each(store, JOBS, began, last)

    async def content() -> bool:
        return all(node.waits_for is None for node in await leases.list_nodes(store))

    await until(content, 20, "they wait for nothing")
