"""`bellringer server --procs N`: processes that share a port, are restarted, and count as one server."""

from __future__ import annotations

import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from bellringer.store.connection_pool import Store

from .test_worker_processes import Supervised, free_port, get, metric, wait_until

pytestmark = pytest.mark.cluster

ROOT_KEY = "br_root_0123456789abcdef0123456789abcdef"


@pytest.fixture
def server(tmp_path: Path, dsn: str) -> Iterator[Supervised]:
    supervised = Supervised(tmp_path, dsn, "server")
    yield supervised
    supervised.end()


def read_metrics(port: int) -> str:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/metrics", headers={"Authorization": f"Bearer {ROOT_KEY}"}
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        text: str = response.read().decode()
        return text


def ready_responses(port: int) -> float:
    """The number of responses of all processes to `GET /readyz`, as any of them reports it."""
    lines = [line for line in read_metrics(port).splitlines() if 'route="/readyz"' in line]
    return sum(metric(line, "bellringer_api_requests_total") for line in lines if "api_requests_total" in line)


async def test_processes_share_a_port_and_their_metrics_add_up(server: Supervised, store: Store) -> None:
    port = free_port()
    process = server.start("--procs", "3", "--port", str(port), BELLRINGER_ROOT_KEY=ROOT_KEY, BELLRINGER_NAME="web")
    (started,) = server.wait_for("server started")
    assert started["processes"] == 3
    wait_until(lambda: get(port, "/readyz")[0] == 200, 20, "the server is ready", server.log)

    schedulers = {row["name"] for row in await store.pool.fetch("select name from nodes")}
    assert schedulers == {"web-1"}  # only the first process runs a scheduler
    before = ready_responses(port)
    for _ in range(60):
        assert get(port, "/readyz")[0] == 200
    assert ready_responses(port) == before + 60

    text = read_metrics(port)  # as all processes together
    memory, used = metric(text, "process_resident_memory_bytes"), metric(text, "process_cpu_seconds_total")
    assert memory > 4 * 30 << 20
    assert used > 1
    assert metric(text, "process_start_time_seconds") == pytest.approx(time.time(), abs=300)
    victim = server.children()[0]
    os.kill(victim, signal.SIGKILL)
    for _ in range(60):  # the others accept requests meanwhile
        assert get(port, "/readyz")[0] == 200
    (line,) = server.wait_for("server process ended and is restarted")
    assert (line["pid"], line["exit"]) == (victim, "was ended by SIGKILL")
    wait_until(lambda: len(server.children()) == 3, 20, "the killed process is replaced", server.log)
    assert ready_responses(port) == before + 120  # the counters of the killed process still count
    assert metric(read_metrics(port), "process_cpu_seconds_total") >= used  # and so does its processor time

    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0
    assert server.children() == []
    assert server.metrics_folders() == []
    (stopped,) = server.lines("server stopped")
    assert stopped["exit_code"] == 0


async def test_a_port_in_use_is_one_message_and_not_one_per_process(server: Supervised) -> None:
    port = free_port()
    first = server.start("--procs", "2", "--port", str(port), BELLRINGER_ROOT_KEY=ROOT_KEY)
    server.wait_for("server started")
    second = Supervised(server.log.parent, "postgresql://nowhere", "server")
    second.log = server.log.parent / "second.log"
    assert second.start("--procs", "2", "--port", str(port)).wait(timeout=30) != 0
    said = second.log.read_text()
    assert said.count(f"cannot listen on port {port}") == 1
    first.send_signal(signal.SIGTERM)
    assert first.wait(timeout=30) == 0
