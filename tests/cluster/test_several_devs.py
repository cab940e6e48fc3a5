"""Several of `bellringer dev` beside each other, and what processes without an API serve."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bellringer.cli.listening_socket import listen, listen_from
from bellringer.dev import state_dir
from bellringer.errors import ConfigError, Conflict
from bellringer.testing.postgres import TestServer

BELLRINGER = Path(sys.executable).with_name("bellringer")
APP = """
from bellringer import App

app = App()


@app.task(name="NAME")
def task() -> str:
    return "NAME"
"""
Start = Callable[..., tuple[subprocess.Popen[bytes], Path]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a command in the folder; answers its process, and the file that it writes to."""
    started: list[subprocess.Popen[bytes]] = []
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BELLRINGER_")}

    def begin(*arguments: str, **environ: str) -> tuple[subprocess.Popen[bytes], Path]:
        said = tmp_path / f"said-{len(started)}.log"
        with said.open("wb") as file:
            process = subprocess.Popen(
                [BELLRINGER, *arguments], cwd=tmp_path, env={**kept, **environ}, stdout=file, stderr=file
            )
        started.append(process)
        return process, said

    yield begin
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
    for process in started:
        process.wait(40)


def until(look: Callable[[], Any], what: str, seconds: float = 40) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds:g} s: {what}")


def ready(said: Path) -> str:
    """The address, once it is said."""
    found = until(lambda: re.search(r"ready on (http://\S+)", said.read_text()), f"ready: {said.read_text()}")
    return str(found[1])


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_second_one_takes_a_folder_and_a_port_of_its_own(
    start: Start, tmp_path: Path, bellringer_server: TestServer
) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(APP.replace("NAME", name))
    with bellringer_server.plain_database() as dsn, bellringer_server.plain_database() as other:
        first, said_first = start("dev", "one.py", "--port", "0", BELLRINGER_DSN=dsn)
        url = ready(said_first)
        _, said_second = start("dev", "two.py", "--port", "0", BELLRINGER_DSN=other)
        second = ready(said_second)
        assert second != url
        said = said_second.read_text()
        assert "another instance uses ./.bellringer; this one keeps its data in ./.bellringer-2" in said
        assert f"--url {second}" in said

        def settings(*arguments: str) -> dict[str, dict[str, Any]]:
            command = [str(BELLRINGER), "settings", "-o", "json", *arguments]
            shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=True)
            return {setting["name"]: setting for setting in json.loads(shown.stdout)}

        here, there = settings(), settings("--url", second)
        assert (here["port"]["value"], there["port"]["value"]) == (_port(url), _port(second))
        assert (here["port"]["where"], here["auth"]["source"], here["secret_keys"]["source"]) == (
            "--port",
            "dev",
            "dev",
        )
        assert here["dsn"]["source"] == "environment"

        refused, said_refused = start("dev", "two.py", "--port", "0", "--folder", ".bellringer", BELLRINGER_DSN=other)
        assert refused.wait(30) != 0
        assert "a `bellringer dev` runs in ./.bellringer already" in said_refused.read_text()
        first.send_signal(signal.SIGINT)
        assert first.wait(40) == 0
        found = state_dir.find(tmp_path, instead="")
        assert found is not None
        assert found.url == second  # other commands find the one that is left


def test_a_command_of_a_folder_whose_dev_is_stopped_does_not_reach_the_dev_of_another_folder(
    start: Start, tmp_path: Path, bellringer_server: TestServer
) -> None:
    own = tmp_path / "own"
    (own / "src").mkdir(parents=True)

    def call(
        folder: Path, *arguments: str, program: Path = BELLRINGER, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("BELLRINGER_")}
        command = [str(program), *arguments]
        return subprocess.run(
            command, cwd=folder, env={**kept, **environ}, capture_output=True, text=True, timeout=30, check=False
        )

    with bellringer_server.plain_database() as dsn, bellringer_server.plain_database() as other:
        _, said_parent = start("dev", "--port", "0", BELLRINGER_DSN=other)
        parent_url = ready(said_parent)
        created = call(tmp_path, "jobs", "create", "nightly", "t", "--cron", "0 2 * * *")
        assert created.returncode == 0, created.stderr
        assert "nightly" in call(own / "src", "jobs", "list").stdout  # a folder without an instance uses its parent's

        mine, said_mine = start("dev", "--port", "0", "--folder", str(own / ".bellringer"), BELLRINGER_DSN=dsn)
        own_url = ready(said_mine)
        assert "other commands need" in said_mine.read_text()  # of the folder where it was started
        assert json.loads(call(own, "settings", "-o", "json").stdout)
        assert "nightly" not in call(own, "jobs", "list").stdout
        mine.send_signal(signal.SIGINT)
        assert mine.wait(40) == 0

        stopped = "error: the dev server of this folder is not running\n"
        for arguments in (("jobs", "delete", "nightly", "--yes"), ("why", "nightly")):
            refused = call(own, *arguments)
            assert refused.returncode != 0
            assert refused.stderr.startswith(stopped), refused.stderr
            assert "start it with `bellringer dev`, or name a server with --url" in refused.stderr
        below = call(own / "src", "jobs", "list")
        assert f"the dev server of the folder {own} is not running" in below.stderr
        status = call(own, "migrate", "status")
        assert status.stderr.startswith(stopped)
        assert "or name a database with BELLRINGER_DSN" in status.stderr
        (own / "app.py").write_text(APP + "print(app.dsn)\n")
        sent = subprocess.run(
            [sys.executable, "app.py"], cwd=own, capture_output=True, text=True, timeout=30, check=False
        )
        assert "or set BELLRINGER_DSN" in sent.stderr

        assert "nightly" in call(own, "jobs", "list", "--url", parent_url).stdout
        assert "nightly" in call(own, "jobs", "list", BELLRINGER_URL=parent_url).stdout
        assert call(own, "verify", "--url", parent_url).returncode == 0
        assert call(own, "verify", BELLRINGER_URL=parent_url).returncode == 0
        assert call(own, "migrate", "status", BELLRINGER_DSN=dsn).returncode == 0
        gone = call(own, "jobs", "list", "--url", own_url)
        assert "not running" not in gone.stderr
        assert gone.returncode != 0


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])


def test_a_port_in_use_is_passed_over() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match="in use"):
            listen("127.0.0.1", port)
        with listen_from("127.0.0.1", port) as free:
            assert port < free.getsockname()[1] <= port + 50


def test_a_folder_is_free_again_when_its_holder_is_gone(tmp_path: Path) -> None:
    base = tmp_path / ".bellringer"
    folder, held = state_dir.claim(base, exact=True)
    assert folder == base
    with pytest.raises(Conflict):
        state_dir.claim(base, exact=True)
    beside, other = state_dir.claim(base, exact=False)
    assert beside.name == ".bellringer-2"
    os.close(held)
    again, third = state_dir.claim(base, exact=False)
    assert again == base
    for lock in (other, third):
        os.close(lock)


@pytest.mark.parametrize("what", ["scheduler", "worker"])
def test_processes_without_an_api_serve_metrics_and_health(
    start: Start, tmp_path: Path, bellringer_server: TestServer, what: str
) -> None:
    (tmp_path / "one.py").write_text(APP.replace("NAME", "one"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with bellringer_server.plain_database() as dsn:
        arguments = ["scheduler"] if what == "scheduler" else ["worker", "one.py"]
        process, said = start(
            *arguments, "--metrics-port", str(port), "--metrics-host", "127.0.0.2", BELLRINGER_DSN=dsn
        )

        def answers() -> bool:
            assert process.poll() is None, said.read_text()
            try:
                return get(f"http://127.0.0.2:{port}/healthz")[0] == 200
            except OSError:
                return False

        until(answers, "it answers")
        status, body = get(f"http://127.0.0.2:{port}/metrics")
        assert status == 200
        assert "bellringer_" in body
        assert json.loads(get(f"http://127.0.0.2:{port}/healthz")[1]) == {"status": "ok"}
        for path in ("/", "/metricsx", "/nothing"):
            assert get(f"http://127.0.0.2:{port}{path}")[0] == 404
        with pytest.raises(OSError, match="refused"):
            get(f"http://127.0.0.1:{port}/metrics")
        process.send_signal(signal.SIGINT)
        process.wait(40)
