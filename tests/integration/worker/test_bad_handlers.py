"""Handlers that misbehave, each in all three modes, beside others in a real worker.

After each, the runs beside it are right, the worker is alive, and the reason can be read. `os._exit` and closed file
descriptors end the process that they happen in: in a process of its own that is the attempt's failure; otherwise it is
the worker's end, and whatever it held is tried again by another.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from bellringer.core.retry_policy import Retry
from bellringer.core.runs import FINAL_STATES, RunKey, State
from bellringer.engine.reap import reap
from bellringer.engine.send import SendSpec, send
from bellringer.store import runs
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.runs import RunRow
from bellringer.worker.output.attempt_output import MAX_CAPTURED_BYTES, MAX_CAPTURED_LINES

APP = Path(__file__).with_name("bad_app.py")
OK = "ok"

# What becomes of each deed: OK and a result, or the type of the error; by mode where modes differ.
TABLE: dict[str, Any] = {
    "blocks": {"coroutine": "BlockedEventLoop", "thread": "TimedOut", "process": "TimedOut"},
    "spins": {"coroutine": "BlockedEventLoop", "thread": "TimedOut", "process": "TimedOut"},
    "forks": OK,
    "exits": {"coroutine": "SystemExit", "thread": "SystemExit", "process": "ProcessCrashed"},
    "interrupts": "KeyboardInterrupt",
    "recurses": "RecursionError",
    "signals": {"coroutine": "ValueError", "thread": "ValueError", "process": OK},
    "leaks": OK,
    "eats": "MemoryError",
    "swells": "ResultNotStorable",
    "returns_anything": "ResultNotStorable",
    "chatters": OK,
    "prints_endlessly": OK,
    "closes_streams": OK,
    "logs_in_a_circle": OK,
    "replaces_stdout": OK,
}
FATAL = ("dies", "closes")


class Crew:
    """Workers as people start them, and what is sent to them."""

    def __init__(self, store: Store, catalog: Catalog, app: Path) -> None:
        self.store = store
        self.catalog = catalog
        self.app = app
        self.workers: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("BELLRINGER_")}
        worker = subprocess.Popen(
            [sys.executable, "-m", "bellringer", "worker", str(self.app), *("--block-limit", "2s", "--grace", "1s")],
            env={**environ, "BELLRINGER_DSN": self.store.dsn, "BELLRINGER_LOG_LEVEL": "error"},
            cwd=self.app.parent,
            stdout=subprocess.DEVNULL,
        )
        self.workers.append(worker)
        return worker

    async def send(self, task: str, *args: Any, attempts: int = 1, timeout: float | None = None) -> RunKey:
        order = SendSpec(
            task=task,
            args=list(args),
            timeout=timedelta(seconds=timeout) if timeout else None,
            retry=Retry(delays=("0s",) * (attempts - 1)) if attempts > 1 else Retry(attempts=1),
        )
        return (await send(self.store, self.catalog, order, tenant_id=1)).key

    async def ended(self, key: RunKey, seconds: float = 60) -> RunRow:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            run = await runs.get(self.store, key, 1)
            assert run is not None
            if run.state in FINAL_STATES:
                return run
            await asyncio.sleep(0.05)
        raise AssertionError(f"it never ended: {run}")

    async def check_neighbours(self, mode: str) -> None:
        keys = [await self.send(f"quick-{mode}", number, attempts=3) for number in range(5)]
        found = [await self.ended(key) for key in keys]
        assert [(run.state, run.attempt, run.result) for run in found] == [
            (State.SUCCEEDED, 1, 2 * n) for n in range(5)
        ]


@pytest.fixture
async def crew(store: Store, catalog: Catalog, tmp_path: Path) -> AsyncIterator[Crew]:
    app = tmp_path / "bad_app.py"
    app.write_text(APP.read_text())
    made = Crew(store, catalog, app)
    yield made
    for worker in made.workers:
        if worker.poll() is None:
            worker.kill()
        worker.wait()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def until(is_so: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it never came to pass"
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("mode", ["coroutine", "thread", "process"])
async def test_a_bad_handler_harms_no_one_beside_it(crew: Crew, mode: str) -> None:
    worker = crew.start()
    limited = {"blocks", "spins"} if mode != "coroutine" else set()
    sent = {deed: await crew.send(f"{deed}-{mode}", timeout=2 if deed in limited else None) for deed in TABLE}
    await crew.check_neighbours(mode)
    for deed, key in sent.items():
        expected = TABLE[deed] if isinstance(TABLE[deed], str) else TABLE[deed][mode]
        run = await crew.ended(key)
        seen = OK if run.state is State.SUCCEEDED else run.error["type"]
        assert (deed, seen) == (deed, expected), run
        assert run.attempt == 1
    assert (await crew.ended(sent["chatters"])).result == "said it all"
    lines = await crew.store.pool.fetchval(
        """select count(*) from logs where job_id = $1 and scheduled_for = $2
             and message not like 'the event loop of this run is blocked%'""",
        sent["chatters"].job_id,
        sent["chatters"].scheduled_for,
    )
    assert lines == 1001
    printed = await crew.store.pool.fetchrow(
        """select count(*) as lines, sum(octet_length(message)) as bytes,
                  count(*) filter (where message like 'further output dropped%') as dropped
           from logs where job_id = $1 and scheduled_for = $2 and source in ('stdout', 'stderr')""",
        sent["prints_endlessly"].job_id,
        sent["prints_endlessly"].scheduled_for,
    )
    assert printed is not None
    assert printed["dropped"] == 1
    assert printed["lines"] <= MAX_CAPTURED_LINES + 1
    assert printed["bytes"] <= MAX_CAPTURED_BYTES + 1000
    forked = (await crew.ended(sent["forks"])).result
    assert forked > 0
    await until(lambda: not is_running(forked))
    await crew.check_neighbours(mode)
    assert await crew.store.pool.fetchval("select count(*) from attempts where outcome = 'lost'") == 0
    assert worker.poll() is None
    worker.send_signal(signal.SIGTERM)  # nobody has made it deaf, and nobody's thread keeps it
    await until(lambda: worker.poll() is not None)
    assert worker.returncode == 0


@pytest.mark.parametrize("deed", FATAL)
async def test_a_child_process_that_ends_fails_its_attempt_alone(crew: Crew, deed: str) -> None:
    worker = crew.start()
    key = await crew.send(f"{deed}-process", attempts=2)
    beside = await crew.send("patient-thread")
    run = await crew.ended(key)
    assert (run.state, run.attempt, run.result) == (State.SUCCEEDED, 2, "tried again")
    error = await crew.store.pool.fetchval(
        "select error->>'message' from attempts where attempt = 1 and outcome = 'failed'"
    )
    says = {"dies": "the process exited with code 3", "closes": "the process closed its pipe to the worker"}
    assert error == says[deed]
    assert ((await crew.ended(beside)).result, worker.poll()) == ("finished", None)


@pytest.mark.parametrize("mode", ["coroutine", "thread"])
@pytest.mark.parametrize("deed", FATAL)
async def test_a_worker_that_a_handler_ends_loses_nothing_for_good(crew: Crew, deed: str, mode: str) -> None:
    worker = crew.start()
    beside = [await crew.send(f"patient-{kind}", attempts=3) for kind in ("coroutine", "thread")]
    key = await crew.send(f"{deed}-{mode}", attempts=3)
    await until(lambda: worker.poll() is not None, 30)
    assert worker.returncode != 0
    await reap(crew.store, crew.catalog, silence=timedelta(0))
    crew.start()
    run = await crew.ended(key)
    assert (run.state, run.attempt, run.result) == (State.SUCCEEDED, 2, "tried again")
    lost = await crew.store.pool.fetchval(
        "select error->>'type' from attempts where job_id = $1 and scheduled_for = $2 and attempt = 1",
        key.job_id,
        key.scheduled_for,
    )
    assert lost == "WorkerLost"
    for one in beside:
        assert (await crew.ended(one)).result == "finished"


@pytest.mark.parametrize("mode", ["coroutine", "thread", "process"])
async def test_what_a_handler_forks_does_not_outlive_its_worker(crew: Crew, mode: str) -> None:
    worker = crew.start()
    copy = (await crew.ended(await crew.send(f"forks_and_stays-{mode}"))).result
    assert is_running(copy)
    peers = crew.app.with_name(f"peers-{copy}")
    await until(lambda: peers.is_file() and peers.read_text().endswith("."))
    assert "PGSQL" not in peers.read_text()
    assert f"{urlsplit(crew.store.dsn).port or 5432})" not in peers.read_text()
    await crew.check_neighbours(mode)
    worker.kill()
    worker.wait()
    await until(lambda: not is_running(copy))
