"""Every role serves metrics, health and readiness on a port of its own, alone and with several processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from .test_worker_processes import Supervised, free_port, get, metric, wait_until

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("role", ["server", "scheduler", "worker"])
def test_a_process_serves_its_health_until_it_stops(dsn: str, tmp_path: Path, role: str) -> None:
    port = free_port()
    options = {"server": ["--port", str(free_port())], "scheduler": [], "worker": ["app.py"]}
    started = Supervised(tmp_path, dsn, role, *options[role])
    process = started.start(BELLRINGER_METRICS_PORT=str(port), BELLRINGER_METRICS_HOST="127.0.0.1")
    try:

        def is_ready() -> bool:
            assert process.poll() is None, started.log.read_text()
            try:
                return get(port, "/readyz")[0] == 200
            except OSError:
                return False

        wait_until(is_ready, 40, "it is ready", started.log)
        assert get(port, "/healthz") == (200, '{"status": "ok"}')
        assert get(port, "/other")[0] == 404
        text = get(port, "/metrics")[1]
        loops = {"server": "fire", "scheduler": "fire", "worker": "heartbeat"}
        assert f'loop="{loops[role]}"' in text
        assert f'bellringer_db_connections{{purpose="{role}",state="max"}}' in text
        if role == "server":  # gauges from the database, without a key
            assert metric(text, "bellringer_database_up") == 1
            assert 'bellringer_server_connections{state="used"}' in text
            assert metric(text, "bellringer_partitions_missing") == 0
    finally:
        started.end()


def test_a_suspended_process_is_reported_by_the_others(dsn: str, tmp_path: Path) -> None:
    port = free_port()
    server = Supervised(tmp_path, dsn, "server")
    process = server.start(
        *("--procs", "2", "--port", str(free_port()), "--metrics-port", str(port)), BELLRINGER_AUTH="none"
    )
    try:
        server.wait_for("server started")
        wait_until(lambda: get(port, "/readyz")[0] == 200, 20, "ready", server.log)
        assert metric(get(port, "/metrics")[1], "bellringer_database_up") == 1
        victim = server.children()[0]
        os.kill(victim, signal.SIGSTOP)
        wait_until(lambda: get_if_accepted(port, "/healthz")[0] == 503, 60, "it is reported", server.log)
        wait_until(lambda: "server measure" in get_if_accepted(port, "/healthz")[1], 30, "it is named", server.log)
        os.kill(victim, signal.SIGCONT)
        wait_until(lambda: get(port, "/healthz")[0] == 200, 20, "healthy again", server.log)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        server.end()


def get_if_accepted(port: int, path: str) -> tuple[int, str]:
    """Both processes accept connections of the port, and the suspended one does not respond to those that it gets."""
    try:
        return get(port, path)
    except TimeoutError:
        return 0, ""
