"""`bellringer dev` as a person meets it: processes, signals, kills, and a folder that remembers."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bellringer.cli import cli

BELLRINGER = Path(sys.executable).with_name("bellringer")
APP = """
from bellringer import App, Context, every

app = App()

@app.task(name="break", retry=1)
def break_it(ctx: Context, what: str) -> None:
    ctx.log.info("about to break", what=what)
    raise RuntimeError(f"{what} is broken")

@app.schedule(every("1s"), name="tick")
@app.task(name="tick")
def tick() -> int:
    return 17
"""


def until(is_so: Callable[[], Any], seconds: float, what: str) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if answer := is_so():
            return answer
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds:g} s: {what}")


class Dev:
    """One folder and the `bellringer dev` in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self, *arguments: str, **environ: str) -> None:
        self.starts += 1
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("BELLRINGER_") and k != "HOME"}
        with self.said.open("wb") as said:
            self.process = subprocess.Popen(
                [BELLRINGER, "dev", *arguments, "--port", str(self.port)],
                cwd=self.folder,
                env={**inherited, **environ},
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        process = self.process
        until(lambda: "ready on" in self.text() or process.poll() is not None, 30, "ready")

    @property
    def said(self) -> Path:
        return self.folder / f"said-{self.starts}.log"

    def text(self) -> str:
        return self.said.read_text()

    def has_said(self, words: str) -> bool:
        return words in self.text()

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
            return json.loads(answer.read())

    def succeeded(self, job: str) -> int:
        runs = self.get(f"/api/v1/jobs/{job}/runs?limit=200")["items"]
        return sum(run["state"] == "succeeded" for run in runs)

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [BELLRINGER, *arguments], cwd=self.folder, capture_output=True, text=True, timeout=30, check=False
        )

    def call(self, *arguments: str) -> Result:
        """The same without a process of its own, which is most of its time."""
        with contextlib.chdir(self.folder):
            return CliRunner().invoke(cli, arguments, prog_name="bellringer")

    def stop(self, number: signal.Signals, *, group: bool = False) -> int:
        assert self.process is not None
        (os.killpg if group else os.kill)(self.pid, number)
        try:
            return self.process.wait(40)  # the database writes all to its disk, which others may keep busy
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still there: {self.left_behind()}; it said: {self.said.read_text()}") from None

    def left_behind(self) -> list[str]:
        """What still works in the folder, or was started for it."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                here = Path(os.readlink(entry / "cwd")).is_relative_to(self.folder)
            except OSError:
                continue
            if here or str(self.folder) in command:
                found.append(command)
        return found


@pytest.fixture
def dev() -> Iterator[Dev]:
    folder = Path(tempfile.mkdtemp(prefix="bellringer dev ")).resolve()  # with spaces, as people have them
    made = Dev(folder)
    yield made
    if made.process is not None and made.process.poll() is None:
        os.killpg(made.pid, signal.SIGKILL)
        made.process.wait()
    until(lambda: not made.left_behind(), 15, "everything of the folder has ended")
    shutil.rmtree(folder, ignore_errors=True)


def test_the_demo_runs_is_quiet_stops_cleanly_and_is_found_again(dev: Dev) -> None:
    dev.start("--demo")
    began = time.monotonic()
    until(lambda: dev.succeeded("heartbeat"), 30, "a heartbeat has succeeded")
    assert time.monotonic() - began < 30
    listed = dev.cli("jobs", "list", "-o", "json")
    assert (listed.returncode, listed.stderr) == (0, "")
    first = {job["name"]: job["job_id"] for job in json.loads(listed.stdout)}
    assert {"heartbeat", "sales-report", "rebuild-search", "sync-inventory", "welcome", "charge-card"} <= set(first)
    assert dev.cli("jobs", "trigger", "etl").returncode == 0  # its schedule may be a minute away
    until(lambda: dev.succeeded("etl"), 30, "the workflow has succeeded")
    until(lambda: dev.text().count("✓ transform") >= 5, 10, "a line for each element of the map")
    assert "its nodes begin" in dev.text()
    until(lambda: "✓ heartbeat" in dev.text(), 10, "a live line")
    metrics = urllib.request.urlopen(f"http://127.0.0.1:{dev.port}/metrics", timeout=5).read().decode()
    assert 'bellringer_attempts_total{outcome="ok",task="shop.heartbeat"}' in metrics
    assert dev.stop(signal.SIGINT) == 0
    assert dev.left_behind() == []
    assert not (dev.folder / ".bellringer" / "dev.json").exists()
    said = dev.text()
    for word in ("warning", "error", "Traceback", "\x1b", "  ! "):
        assert word.lower() not in said.lower(), said

    dev.start("--demo")
    again = {job["name"]: job["job_id"] for job in json.loads(dev.cli("jobs", "list", "-o", "json").stdout)}
    assert again == first
    assert dev.stop(signal.SIGTERM) == 0
    assert dev.left_behind() == []


@pytest.fixture
def hang_ups() -> Iterator[None]:
    """What a test starts heeds hang-ups, also where the tests run under nohup: to ignore them is inherited."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hang_ups")
def test_after_kill_9_of_everything_the_next_start_goes_on(dev: Dev) -> None:
    (dev.folder / "app.py").write_text(APP)
    dev.start("app.py")
    before = until(lambda: dev.succeeded("tick"), 15, "a tick has succeeded")
    dev.stop(signal.SIGKILL, group=True)
    dev.start("app.py")
    until(lambda: dev.succeeded("tick") > before, 20, "another tick has succeeded")
    assert dev.stop(signal.SIGHUP) == 0
    assert dev.left_behind() == []


def test_children_come_back_and_do_not_outlive_their_parent(dev: Dev) -> None:
    (dev.folder / "app.py").write_text(APP)
    dev.start("app.py")
    for name in ("worker", "server"):
        victim = next(int(p) for p in children(dev.pid) if f"bellringer {name}" in command(p))
        os.kill(victim, signal.SIGKILL)
        until(partial(dev.has_said, f"the {name} was ended by SIGKILL"), 5, f"the {name} is missed")
    before = until(lambda: ready(dev) and dev.succeeded("tick"), 15, "the server is back")
    until(lambda: dev.succeeded("tick") > before, 15, "the worker is back")
    os.kill(dev.pid, signal.SIGKILL)
    assert dev.process is not None
    dev.process.wait()
    until(lambda: not dev.left_behind(), 15, "the children have ended")


def test_the_command_line_steers_it(dev: Dev) -> None:
    (dev.folder / "app.py").write_text(APP)
    dev.start("app.py")
    made = dev.call(
        "jobs",
        "create",
        "mishap",
        "break",
        "--cron",
        "0 0 1 1 *",
        "--arg",
        "what=the bell",
        "--attempts",
        "1",
        "-o",
        "name",
    )
    assert (made.exit_code, made.stdout) == (0, "mishap\n"), made.stderr
    assert dev.call("jobs", "create", "mishap", "break").exit_code == 5
    assert dev.call("jobs", "get", "nothing").exit_code == 4
    failed = dev.call("jobs", "trigger", "mishap", "--wait", "--timeout", "15", "-o", "json")
    assert failed.exit_code == 3, failed.stderr
    run = json.loads(failed.stdout)
    assert run["state"] == "dead"
    assert "the bell is broken" in dev.call("runs", "get", run["run_id"]).stdout
    assert "about to break  what=" in dev.call("runs", "logs", run["run_id"], "-f").stdout
    assert dev.call("dead", "list", "-o", "name").stdout.split() == [run["run_id"]]
    redriven = dev.call("dead", "redrive", "--all")
    assert redriven.stdout == "redriven: 1\n", redriven.stderr
    until(lambda: dev.call("dead", "list", "-o", "name").stdout, 15, "it died again")
    assert dev.call("dead", "discard", "--all", "--yes").stdout == "discarded: 1\n"
    assert dev.call("jobs", "pause", "mishap", "--reason", "INC-42").stdout == "paused mishap\n"
    assert "INC-42" in dev.call("jobs", "get", "mishap").stdout
    assert dev.call("jobs", "resume", "mishap").stdout.startswith("resumed mishap, next in ")
    assert dev.call("jobs", "trigger", "tick", "--wait", "--timeout", "15").exit_code == 0
    assert "succeeded" in dev.call("runs", "list", "--job", "tick").stdout
    assert "short×50" in dev.call("workers", "list").stdout
    assert "64 of 64 held" in dev.call("cluster", "status").stdout
    assert "the schema is current" in dev.call("migrate").stdout
    assert dev.call("jobs", "delete", "mishap", "--yes").exit_code == 0
    assert dev.call("jobs", "list", "-o", "name").stdout == "tick\n"
    assert dev.stop(signal.SIGINT) == 0


def test_an_app_that_cannot_be_imported_ends_it_with_the_reason(dev: Dev) -> None:
    (dev.folder / "app.py").write_text("import nonsense_that_is_not_there\n")
    dev.start("app.py")
    assert dev.process is not None
    assert dev.process.wait(40) == 1
    assert "importing 'app.py' failed: ModuleNotFoundError" in dev.text()
    assert "Traceback" not in dev.text()


def ready(dev: Dev) -> bool:
    try:
        return bool(dev.get("/readyz"))
    except OSError:
        return False


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def command(pid: str) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
