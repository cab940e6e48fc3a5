"""Each tutorial works as it is written, from the first block to the last, and prints what it shows.

A tutorial runs in an empty folder, as a reader would do it: a Python block is written to the file that its first line
names, a shell block continues in the shell of the block before it, and a text block shows output of the shell block
before it. In shown output, times, durations, ids and numbers may differ, and `…` stands for any text.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contracts.docs.shown_output import find_difference

from bellringer.testing.postgres import TEST_DSN_VARIABLE, TestServer

ROOT = Path(__file__).parents[3]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*?) -->\n)?```(?P<kind>sh|python|text)\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL
)
BACKGROUND = "run in the background"
# The shell of a reader remembers variables, functions and its folder from block to block.
RECALL = "set -euo pipefail -o allexport; if [ -f .shell ]; then source ./.shell; fi\n"
REMEMBER = "trap '{ export -p; declare -f; } >.shell' EXIT\n"
READY_SECONDS = 60
BLOCK_SECONDS = 120
STOP_SECONDS = 20
PORTS = ("8700", "8899")  # in the text; the test uses ports that are free


class Reader:
    """Someone who does what a tutorial says, in a folder of their own."""

    def __init__(self, folder: Path, dsn: str, server_dsn: str) -> None:
        self.folder = folder
        self._dsn = dsn
        kept = {name: value for name, value in os.environ.items() if not name.startswith("BELLRINGER_")}
        path = f"{Path(sys.executable).parent}:{kept['PATH']}"
        self._environ = {**kept, "PATH": path, "NO_COLOR": "1", TEST_DSN_VARIABLE: server_dsn}
        self._ports = {port: str(_free_port()) for port in PORTS}
        self._shells: list[subprocess.Popen[bytes]] = []  # each leads a process group of its own
        self._servers: dict[str, subprocess.Popen[bytes]] = {}

    def write(self, code: str) -> None:
        named = re.match(r"# (\w+\.py)\n", code)
        assert named, f"no file name in the first line of:\n{code}"
        (self.folder / named[1]).write_text(self._here(code))

    def start(self, code: str) -> str:
        """Runs a block that stays in the foreground of a terminal. A second start of it is a restart with Ctrl-C."""
        if (earlier := self._servers.pop(code, None)) is not None:
            os.killpg(earlier.pid, signal.SIGINT)
            earlier.wait(STOP_SECONDS)
        output = self.folder / f"terminal-{len(self._shells)}.log"
        shell = self._spawn(RECALL + self._here(code), output, BELLRINGER_PORT=self._ports["8700"])
        self._servers[code] = shell
        end = time.monotonic() + READY_SECONDS
        while "ready on http" not in output.read_text():
            assert shell.poll() is None, output.read_text()
            assert time.monotonic() < end, output.read_text()
            time.sleep(0.1)
        return output.read_text()

    def run(self, code: str) -> str:
        """Runs a block to its end. What it leaves in the background runs on."""
        output = self.folder / f"block-{len(self._shells)}.log"
        status = self._spawn(RECALL + REMEMBER + self._here(code), output).wait(BLOCK_SECONDS)
        assert status == 0, f"exit code {status} of\n{code}\n{output.read_text()}"
        return output.read_text()

    def shown(self, text: str) -> str:
        return self._here(text)

    def _spawn(self, code: str, output: Path, **environ: str) -> subprocess.Popen[bytes]:
        with output.open("wb") as file:
            shell = subprocess.Popen(
                ["bash", "-c", code], cwd=self.folder, stdin=subprocess.DEVNULL,
                stdout=file, stderr=file, env={**self._environ, **environ}, start_new_session=True,
            )  # fmt: skip
        self._shells.append(shell)
        return shell

    def _here(self, code: str) -> str:
        for port, free in self._ports.items():
            code = code.replace(port, free)
        code = re.sub(r"postgresql://bellringer:change-me@localhost/bellringer", lambda _: f"'{self._dsn}'", code)
        # A person copies the id that the last command has printed.
        return code.replace(" run_…", ' "$(bellringer runs list --limit 1 --job pipeline.nightly -o name)"')

    def leave(self) -> None:
        groups = [shell.pid for shell in self._shells]
        for number in (signal.SIGTERM, signal.SIGKILL):
            for group in groups:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGCONT)
                    os.killpg(group, number)
            end = time.monotonic() + STOP_SECONDS
            while any(map(_exists, groups)) and time.monotonic() < end:
                time.sleep(0.1)
        for shell in self._shells:
            shell.wait(10)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _exists(group: int) -> bool:
    """Whether a process of the group is left that is no zombie."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, number = entry.read_text().rpartition(")")[2].split()[:3]
            if number == str(group) and state != "Z":
                return True
    return False


@pytest.fixture
def reader(bellringer_server: TestServer) -> Iterator[Reader]:
    dsn = asyncio.run(bellringer_server.create_empty())
    try:
        with tempfile.TemporaryDirectory(prefix="bellringer-tutorial-") as folder:
            made = Reader(Path(folder).resolve(), dsn, bellringer_server.dsn)
            try:
                yield made
            finally:
                made.leave()
    finally:
        asyncio.run(bellringer_server.drop(dsn))


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_the_tutorial_works_and_prints_what_it_shows(tutorial: Path, reader: Reader) -> None:
    printed: str | None = None
    compared = 0
    for block in BLOCK.finditer(tutorial.read_text()):
        mark, kind, code = block["mark"], block["kind"], block["code"]
        if mark and mark != BACKGROUND:
            assert mark.startswith("not run: "), mark
        elif kind == "python":
            reader.write(code)
        elif kind == "sh":
            printed = reader.start(code) if mark else reader.run(code)
        else:
            assert printed is not None, f"nothing was run before this output:\n{code}"
            missing = find_difference(reader.shown(code), printed)
            assert missing is None, f"{missing!r} is not in\n{printed}"
            compared += 1
    assert compared >= 4


def test_there_are_four_tutorials() -> None:
    assert {path.stem for path in TUTORIALS} == {"first-job", "nightly-pipeline", "three-nodes", "fake-clock"}
