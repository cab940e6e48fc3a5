"""`bellringer worker --procs N`: processes that crash, stop and count as one worker."""

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
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from bellringer.engine.send import SendSpec, send
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog

from .conftest import Processes, until

pytestmark = pytest.mark.cluster

APP = """
import asyncio
import os
import threading
from pathlib import Path

from bellringer import App

app = App()
HERE = Path(__file__).parent
MODE = HERE / "mode"


@app.task(name="quick")
async def quick() -> int:
    return os.getpid()


@app.task(name="hold")
async def hold(seconds: float) -> None:
    with (HERE / "held").open("a") as file:
        file.write(f"{os.getpid()}\\n")
    await asyncio.sleep(seconds)


@app.task(name="leave")
async def leave() -> None:
    os._exit(0)


if MODE.exists() and MODE.read_text() == "crash":
    threading.Timer(1.0, os._exit, (33,)).start()
if MODE.exists() and MODE.read_text() == "broken":
    raise RuntimeError("the app is broken")
"""


class Supervised:
    """A worker or server with several processes, and the lines that it logs."""

    def __init__(self, folder: Path, dsn: str, *command: str) -> None:
        self._folder = folder
        self._dsn = dsn
        self._command = command or ("worker", "app.py")
        self.log = folder / "lines.log"
        self.process: subprocess.Popen[bytes] | None = None
        (folder / "app.py").write_text(APP)
        (folder / "held").write_text("")

    def start(self, *options: str, **settings: str) -> subprocess.Popen[bytes]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("BELLRINGER_")}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "bellringer", *self._command, *options],
                cwd=self._folder,
                env={**inherited, "BELLRINGER_DSN": self._dsn, "TMPDIR": str(self._folder), **settings},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self.process

    def lines(self, event: str = "") -> list[dict[str, Any]]:
        complete = self.log.read_text().rpartition("\n")[0]  # a process may be about to write the rest of a line
        found = [json.loads(line) for line in complete.splitlines() if line.startswith("{")]
        return [line for line in found if not event or line["event"] == event]

    def wait_for(self, event: str, count: int = 1, seconds: float = 60) -> list[dict[str, Any]]:
        wait_until(lambda: len(self.lines(event)) >= count, seconds, f"{count} × {event!r}", self.log)
        return self.lines(event)

    def metrics_folders(self) -> list[Path]:
        return list(self._folder.glob("bellringer-worker-metrics-*"))

    def children(self) -> list[int]:
        """The supervised processes, whether their supervisor lives or not: all are of its session."""
        assert self.process is not None
        return [pid for pid in session_of(self.process.pid) if pid != self.process.pid]

    def end(self) -> None:
        if self.process is not None:
            for pid in session_of(self.process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait()


def session_of(leader: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, _, _, session = (folder / "stat").read_text().rsplit(")", 1)[1].split()[:4]
            if int(session) == leader and state != "Z":
                found.append(int(folder.name))
    return found


def wait_until(holds: Callable[[], Any], seconds: float, what: str, log: Path | None = None) -> None:
    end = time.monotonic() + seconds
    while not holds():
        said = log.read_text() if log else ""
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}\n{said}"
        time.sleep(0.05)


@pytest.fixture
def worker(tmp_path: Path, dsn: str) -> Iterator[Supervised]:
    supervised = Supervised(tmp_path, dsn)
    yield supervised
    supervised.end()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def metric(text: str, name: str) -> float:
    """The sum over all labels of a metric."""
    values = re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
    assert values, name
    return sum(map(float, values))


async def send_many(store: Store, catalog: Catalog, task: str, count: int, *args: Any) -> None:
    for _ in range(count):
        await send(store, catalog, SendSpec(task=task, args=list(args)), tenant_id=1)


async def ended(store: Store, outcome: str = "ok") -> int:
    count: int = await store.pool.fetchval("select count(*) from attempts where outcome::text = $1", outcome)
    return count


async def test_a_killed_process_is_restarted_and_its_runs_run_again(
    worker: Supervised, store: Store, catalog: Catalog, processes: Processes
) -> None:
    processes.start("scheduler", "node")
    port = free_port()
    process = worker.start("--procs", "2", "--slots", "4", "--metrics-port", str(port), BELLRINGER_NAME="shop")
    (started,) = worker.wait_for("worker started")
    assert started["processes"] == 2
    assert started["slots_per_process"] == {"short": 4, "long": 4}
    assert started["slots_in_all"] == {"short": 8, "long": 8}
    assert {line["proc"] for line in worker.lines("worker joined")} == {1, 2}
    names = {row["name"] for row in await store.pool.fetch("select name from workers where state = 'live'")}
    assert names == {"shop-1", "shop-2"}

    await send_many(store, catalog, "quick", 20)

    async def twenty() -> bool:
        return await ended(store) == 20

    await until(twenty, 30, "twenty quick runs end")
    await send_many(store, catalog, "hold", 8, 6.0)

    async def all_held() -> bool:
        return bool(await store.pool.fetchval("select count(*) from queue where worker_id is not null") == 8)

    await until(all_held, 20, "the processes hold eight runs")
    held = "select pid, count(*) as runs from queue join workers using (worker_id) group by 1 order by 2 desc"
    victim, lost = (await store.pool.fetch(held))[0]
    os.kill(victim, signal.SIGKILL)
    (line,) = worker.wait_for("worker process ended and is restarted")
    assert (line["pid"], line["exit"]) == (victim, "was ended by SIGKILL")
    assert get(port, "/healthz")[0] == 200
    worker.wait_for("worker joined", 3)
    wait_until(lambda: json.loads(get(port, "/healthz")[1])["status"] == "ok", 10, "healthy again")
    assert json.loads(get(port, "/healthz")[1]) == {"status": "ok", "processes": 2, "running": 2}

    async def all_ended() -> bool:
        return await ended(store) == 28

    await until(all_ended, 60, "the runs of the killed process are executed again")
    assert await ended(store, "lost") == lost
    assert await store.pool.fetchval("select count(*) from queue") == 0

    def counts() -> tuple[float, float]:
        text = get(port, "/metrics")[1]
        claimed = metric(text, "bellringer_claims_total")
        return claimed, metric(text, "bellringer_attempts_total")

    wait_until(lambda: counts() == (28 + lost, 28), 10, f"the counters of three processes add up: {counts()}")
    text = get(port, "/metrics")[1]
    assert metric(text, "bellringer_run_seconds_count") == 28
    assert metric(text, "bellringer_worker_processes") == 2
    assert metric(text, "bellringer_worker_restarts_total") == 1
    assert metric(text, "bellringer_stalled_loops") == 0
    assert metric(text, "process_cpu_seconds_total") > 0.5
    assert metric(text, "process_resident_memory_bytes") > 50 << 20
    assert "pid=" not in text
    (folder,) = worker.metrics_folders()
    assert {int(re.findall(r"\d+", path.name)[-1]) for path in folder.glob("*.db")} == {0, *worker.children()}
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    assert worker.metrics_folders() == []


async def test_sigterm_drains_all_processes_and_exits_with_0(
    worker: Supervised, store: Store, catalog: Catalog, tmp_path: Path
) -> None:
    process = worker.start("--procs", "2", "--slots", "2")
    worker.wait_for("worker started")
    await send_many(store, catalog, "hold", 6, 2.0)
    wait_until(lambda: len((tmp_path / "held").read_text().split()) == 4, 20, "four runs have started", worker.log)
    assert len(set((tmp_path / "held").read_text().split())) == 2
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)  # repeated by some process managers; it changes nothing
    process.send_signal(signal.SIGHUP)
    assert process.wait(30) == 0, worker.log.read_text()
    assert worker.children() == []
    assert await ended(store) == 4
    rows = await store.pool.fetch("select worker_id, attempt, attempt_floor from queue")
    assert [(row["worker_id"], row["attempt"] - row["attempt_floor"]) for row in rows] == [(None, 0)] * 2
    assert len(worker.lines("worker started")) == len(worker.lines("worker stopped")) == 1
    states = {row["state"] for row in await store.pool.fetch("select state from workers")}
    assert states == {"stopped"}


async def test_a_second_ctrl_c_does_not_wait(worker: Supervised, store: Store, catalog: Catalog) -> None:
    process = worker.start("--procs", "2")
    worker.wait_for("worker started")
    await send_many(store, catalog, "hold", 2, 60.0)

    async def held() -> bool:
        return bool(await store.pool.fetchval("select count(*) from queue where worker_id is not null") == 2)

    await until(held, 20, "two runs are claimed")
    process.send_signal(signal.SIGINT)
    worker.wait_for("worker stopping")
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    assert worker.children() == []


async def test_processes_drain_and_end_when_their_supervisor_is_killed(
    worker: Supervised, store: Store, catalog: Catalog, tmp_path: Path
) -> None:
    process = worker.start("--procs", "2", "--slots", "1")
    worker.wait_for("worker started")
    for seconds in (2.0, 120.0):
        await send_many(store, catalog, "hold", 1, seconds)
    wait_until(lambda: len((tmp_path / "held").read_text().split()) == 2, 20, "both runs have started", worker.log)
    process.kill()
    process.wait()
    wait_until(lambda: worker.children() == [], 20, "no process is left", worker.log)
    assert len(worker.lines("the supervisor of this worker was killed; stopping")) == 2
    assert await ended(store) == 1, "a run that ends soon is settled"
    row = await store.pool.fetchrow("select worker_id, attempt, attempt_floor from queue")
    assert row is not None
    assert (row["worker_id"], row["attempt"] - row["attempt_floor"]) == (None, 0), "a long run is given back"


def test_a_process_that_is_asked_to_stop_is_not_restarted(worker: Supervised) -> None:
    process = worker.start("--procs", "2")
    worker.wait_for("worker started")
    first, second = worker.children()
    os.kill(first, signal.SIGTERM)
    worker.wait_for("worker process stopped on request")
    time.sleep(1.5)  # longer than the delay of a restart
    assert worker.children() == [second]
    os.kill(second, signal.SIGTERM)
    assert process.wait(20) == 0


async def test_a_handler_that_exits_with_0_does_not_count_as_a_stop(
    worker: Supervised, store: Store, catalog: Catalog
) -> None:
    worker.start("--procs", "2")
    worker.wait_for("worker started")
    await send_many(store, catalog, "leave", 1)
    (line,) = worker.wait_for("worker process ended and is restarted")
    assert line["exit"] == "ended with code 0"
    worker.wait_for("worker joined", 3)


def test_a_broken_app_ends_at_once_with_one_message(worker: Supervised, tmp_path: Path) -> None:
    (tmp_path / "mode").write_text("broken")
    process = worker.start("--procs", "3")
    assert process.wait(30) == 1
    said = worker.log.read_text()
    assert said.count("error: importing 'app.py' failed: RuntimeError: the app is broken") == 1
    assert worker.children() == []


def test_a_crash_loop_ends_with_one_message_and_the_code_of_the_process(worker: Supervised, tmp_path: Path) -> None:
    process = worker.start("--procs", "2")
    worker.wait_for("worker started")
    (tmp_path / "mode").write_text("crash")
    victim = worker.children()[0]
    os.kill(victim, signal.SIGKILL)
    assert process.wait(90) == 33, worker.log.read_text()
    (line,) = worker.lines("worker process is in a crash loop; all processes are stopped")
    assert (line["crashes"], line["exit"]) == (5, "ended with code 33")
    assert len(worker.lines("worker process ended and is restarted")) == 4
    assert worker.children() == []


def test_the_number_of_processes_follows_the_processors(worker: Supervised) -> None:
    worker.start("--procs", "auto")
    (started,) = worker.wait_for("worker started")
    assert started["processes"] == len(os.sched_getaffinity(0)) == len(worker.children())
