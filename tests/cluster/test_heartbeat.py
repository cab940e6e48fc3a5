"""The dead man's switch of real scheduler processes: one of them calls, and none while the cluster is not healthy."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from tests.cluster.roles import Roles

from bellringer.core.advisory_locks import AdvisoryLock
from bellringer.core.jobs import Definition
from bellringer.engine.register import create
from bellringer.schedule import every
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog

from .conftest import until
from .test_worker_processes import free_port, get, metric

pytestmark = pytest.mark.cluster


class Receiver:
    """Counts the calls of each path."""

    def __init__(self) -> None:
        calls = self.calls = Counter[str]()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                calls[self.path] += 1
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Do not log requests."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    running = Receiver()
    yield running
    running.close()


async def test_one_scheduler_calls_while_the_cluster_is_healthy(
    store: Store, catalog: Catalog, dsn: str, tmp_path: Path, receiver: Receiver
) -> None:
    await create(store, catalog, [Definition(name="j", task="demo", schedules=(every("1h"),))], tenant_id=1, who="me")
    roles, ports = Roles(tmp_path, dsn), {name: free_port() for name in ("a", "b")}

    def outcomes(outcome: str) -> float:
        """What both schedulers have counted."""
        total = 0.0
        for port in ports.values():
            text = get(port, "/metrics")[1]
            if f'bellringer_heartbeats_total{{outcome="{outcome}"}}' in text:
                [line] = [line for line in text.splitlines() if f'heartbeats_total{{outcome="{outcome}"}}' in line]
                total += metric(line, "bellringer_heartbeats_total")
        return total

    try:
        for name, port in ports.items():
            url = f"{receiver.url}/{name}"
            roles.scheduler(heartbeat_url=url, heartbeat_interval="1s", metrics_port=str(port), name=name)

        async def calls() -> bool:
            return receiver.calls.total() >= 4

        await until(calls, 60, "heartbeats are sent")
        holder = await store.pool.fetchval(
            "select node.name from leases join nodes node on node_id = holder where shard = 0"
        )
        receiver.calls.clear()
        await until(calls, 30, "heartbeats are sent by the holder of shard 0")
        assert set(receiver.calls) == {f"/{holder}"}
        assert outcomes("sent") >= 4
        withheld = outcomes("withheld")  # while the shards had no scheduler yet

        # A lock on the shard keeps its job from firing, so the job is overdue.
        async with store.pool.acquire() as connection, connection.transaction():
            shard = await connection.fetchval("select shard from cohorts")
            await connection.execute("select pg_advisory_xact_lock($1, $2)", AdvisoryLock.SHARD, shard)
            await store.pool.execute("update cohorts set next_at = next_at - interval '2 hours'")

            async def is_withheld() -> bool:
                return outcomes("withheld") >= withheld + 2

            await until(is_withheld, 30, "heartbeats are withheld")
            receiver.calls.clear()
            await asyncio.sleep(2.5)
            assert receiver.calls.total() == 0
        assert "1 jobs and timers are overdue" in "".join(roles.said(process) for process in roles.processes)
        await until(calls, 60, "heartbeats are sent again")
    finally:
        roles.end()
