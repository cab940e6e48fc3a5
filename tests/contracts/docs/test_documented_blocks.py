"""Every shell and Python block of the README and the guides runs as it stands there.

A comment in the line above a block says otherwise:

    <!-- run in the background -->      a server in the foreground: started before all others, and left running
    <!-- run until ready -->            a server in the foreground: started, stopped when it is ready, exits with 0
    <!-- not run: the reason -->        only read: its commands and options have to exist, its Python has to compile

A block of text directly below a block of shell shows its output: durations may differ, `…` stands for any text.
All blocks of shell run in one folder, next to one `bellringer dev`. Addresses that are examples lead to loopback.
Blocks of JSON, YAML, TOML, INI and SQL have to parse. `test_tutorials.py` runs the tutorials.
"""

from __future__ import annotations

import asyncio
import configparser
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import asyncpg
import click
import pytest
import yaml
from bench.__main__ import bench as internal_benchmarks
from bench.peers.report import BEGIN, END
from tests.contracts.docs.shown_output import DURATIONS, find_difference

from bellringer import App
from bellringer.cli import cli
from bellringer.testing.postgres import TestServer

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
# The blocks run in this order: these pages create the jobs that the other pages use.
FIRST = [ROOT / "README.md", DOCS / "api.md", DOCS / "workflows.md"]
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))
GENERATED = {*(DOCS / "reference").rglob("*.md")}
DOCUMENTS = [*FIRST, *sorted({*DOCS.rglob("*.md")} - {*FIRST, *GENERATED})]
# Their blocks of Python are files of the folder in which the shell runs.
WITH_FILES = ("README.md", "docs/workflows.md", "docs/simulate.md")
SHOP = """
from bellringer import App

app = App()


@app.task(name="shop.pack")
def pack() -> None: ...
"""
BENCHMARKS = (ROOT / "docs" / "benchmarks.md").read_text()
BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*?) -->\n)?(?P<indent> *)```(?P<kind>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)```",
    re.MULTILINE | re.DOTALL,
)
COMMENT = re.compile(r"<!-- (.*?) -->", re.DOTALL)
BACKGROUND = "run in the background"
UNTIL_READY = "run until ready"
NOT_RUN = "not run: "
READY = re.compile(r"ready on (http://\S+)|worker joined|server listens")
READY_SECONDS = 60.0
BLOCK_SECONDS = 240.0  # on a machine that others keep busy; all blocks together take less than 90 s on an idle one
# Curl itself takes a refusal for a success. An option that is missing, or a variable that is not set, ends a block.
PRELUDE = 'set -euo pipefail; curl() { command curl --fail-with-body "$@"; }\n'


@dataclass(frozen=True)
class Block:
    """One block: where it stands, what the comment above it says, and its text."""

    where: str
    mark: str
    kind: str
    code: str
    shown: str | None = None  # the output that the page shows below the block

    @property
    def runs(self) -> bool:
        return not self.mark

    @property
    def is_tutorial(self) -> bool:
        """Tutorials run from the first block to the last, each in a folder of its own."""
        return self.where.startswith("docs/tutorials/")

    @property
    def file_name(self) -> str | None:
        """Of a block that begins with `# hello.py`."""
        named = re.match(r"# (\w+\.py)\n", self.code)
        return named[1] if named else None


def blocks() -> list[Block]:
    found: list[Block] = []
    for path in DOCUMENTS:
        text, end_of_shell = path.read_text(), None
        for match in BLOCK.finditer(text):
            if match["kind"] == "text" and end_of_shell is not None and not text[end_of_shell : match.start()].strip():
                found[-1] = replace(found[-1], shown=match["code"])
            end_of_shell = match.end() if match["kind"] == "sh" else None
            line = text.count("\n", 0, match.start("code"))
            where = f"{path.relative_to(ROOT)}:{line}"
            found.append(Block(where, match["mark"] or "", match["kind"], textwrap.dedent(match["code"])))
    return found


BLOCKS = blocks()
SHELL = [block for block in BLOCKS if block.kind == "sh"]
ON_STAGE = [block for block in SHELL if not block.is_tutorial]
PYTHON = [block for block in BLOCKS if block.kind == "python"]
DATA = [block for block in BLOCKS if block.kind in {"json", "yaml", "toml", "ini", "sql"}]


def ids(block: Block) -> str:
    return block.where


class Stage:
    """A folder with the files that the pages show, and the servers that they start."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self.folder = folder
        self.dsn = dsn
        self._started: list[subprocess.Popen[bytes]] = []  # each leads a group of its own
        kept = {name: value for name, value in os.environ.items() if not name.startswith("BELLRINGER_")}
        path = f"{Path(sys.executable).parent}:{kept['PATH']}"
        self.environ = {**kept, "PATH": path, "NO_COLOR": "1"}
        for block in PYTHON:
            if block.where.startswith(WITH_FILES) and block.file_name:
                (folder / block.file_name).write_text(block.code)
        (folder / "shop").mkdir()
        for name in ("__init__.py", "jobs.py", "tasks.py"):
            (folder / "shop" / name).write_text(SHOP)
        self.url = ""

    def start(self, block: Block) -> None:
        """Run a block whose last command is a server; the port is any that is free."""
        self.url = self._start(block)[1] or self.url

    def start_and_stop(self, block: Block) -> str:
        """Run a block whose last command is a server until it is ready. Its exit code must be 0."""
        process, _, output = self._start(block)
        for entry in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            os.kill(int(entry), signal.SIGTERM)
        assert process.wait(READY_SECONDS) == 0, output.read_text()
        return output.read_text()

    def _start(self, block: Block) -> tuple[subprocess.Popen[bytes], str | None, Path]:
        output = self.folder / f"background-{len(self._started)}.log"
        code = self.real(block.code).replace("--metrics-port 9100", "--metrics-port 0")
        with output.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", f"{PRELUDE}{code}\nexit $?"], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=file,
                stderr=file, env={**self.environ, "BELLRINGER_PORT": "0"}, start_new_session=True,
            )  # fmt: skip
        self._started.append(process)
        end = time.monotonic() + READY_SECONDS
        while (ready := READY.search(output.read_text())) is None:
            assert process.poll() is None, output.read_text()
            assert time.monotonic() < end, output.read_text()
            time.sleep(0.1)
        return process, ready[1], output

    def run(self, block: Block, **environ: str) -> str:
        """Run a block to its end; what it leaves in the background runs on. Answers what it said."""
        said = self.folder / f"block-{len(self._started)}.log"
        with said.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", PRELUDE + self.real(block.code)], cwd=self.folder, stdin=subprocess.DEVNULL,
                stdout=file, stderr=file, env={**self.environ, **environ}, start_new_session=True,
            )  # fmt: skip
        self._started.append(process)
        code = process.wait(BLOCK_SECONDS)
        assert code == 0, f"{block.where} ended with {code}:\n{said.read_text()}"
        return said.read_text()

    def real(self, code: str) -> str:
        """The block with what is an example in it replaced by what is here."""
        address = self.url.removeprefix("http://")
        code = code.replace("localhost:8700", address).replace("127.0.0.1:8700", address)
        code = re.sub(r"postgresql://(…|app@db/bellringer)", lambda _: shlex.quote(self.dsn), code)
        code = code.replace("https://example.com/", "http://127.0.0.1:65530/")  # nobody is called outside
        if "run_…" in code and "--wait" not in code and "bellringer workflows" not in code:
            return code.replace("run_…", self.newest_run())
        # The run of the line before: a person copies its id.
        return code.replace("run_…", '"$(bellringer runs list --job etl.etl --limit 1 -o name)"')

    def newest_run(self) -> str:
        found: str = self.get("/api/v1/runs?limit=1")["items"][0]["run_id"]
        return found

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=30) as answer:
            return json.loads(answer.read())

    def stop(self) -> None:
        groups = [process.pid for process in self._started]
        for number in (signal.SIGTERM, signal.SIGKILL):
            for group in groups:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, number)
            end = time.monotonic() + 20
            while any(map(_lives, groups)) and time.monotonic() < end:
                time.sleep(0.1)
        for process in self._started:
            process.wait(10)


def _lives(group: int) -> bool:
    """Whether a process of the group is left that is more than a remembrance."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, number = entry.read_text().rpartition(")")[2].split()[:3]
            if number == str(group) and state != "Z":
                return True
    return False


@pytest.fixture(scope="module")
def stage(bellringer_server: TestServer) -> Iterator[Stage]:
    folder = Path(tempfile.mkdtemp(prefix="bellringer-docs-")).resolve()
    with bellringer_server.plain_database() as dsn:
        made = Stage(folder, dsn)
        try:
            for block in ON_STAGE:
                if block.mark == BACKGROUND:
                    made.start(block)
            yield made
        finally:
            made.stop()
            shutil.rmtree(folder, ignore_errors=True)


def test_blocks_are_found_and_every_mark_is_known() -> None:
    assert len(SHELL) > 20
    assert len(PYTHON) > 8
    marks = [block.mark for block in BLOCKS if block.mark]
    unknown = {mark for mark in marks if not re.match(rf"{NOT_RUN}[\w` ]{{9}}", mark)} - {BACKGROUND, UNTIL_READY}
    assert unknown == set()
    named = re.findall(r"tests/[\w/]+\.py", "\n".join(marks))
    assert len(named) > 10
    assert [name for name in named if not (ROOT / name).is_file()] == []
    text = "".join(path.read_text() for path in DOCUMENTS).replace(BEGIN, "").replace(END, "")
    assert sorted(COMMENT.findall(text)) == sorted(marks)  # a comment further up would mark nothing
    not_run = [block.where for block in SHELL if block.mark.startswith(NOT_RUN)]
    assert len(not_run) <= len(SHELL) / 4, not_run


@pytest.mark.parametrize("block", [block for block in ON_STAGE if block.mark == UNTIL_READY], ids=ids)
def test_the_server_of_the_block_becomes_ready_and_stops(stage: Stage, block: Block) -> None:
    assert "Traceback" not in stage.start_and_stop(block)


@pytest.mark.parametrize("block", [block for block in ON_STAGE if block.runs], ids=ids)
def test_the_shell_block_runs(stage: Stage, block: Block) -> None:
    if "bellringer server" not in block.code:
        printed = stage.run(block)
        assert printed.strip()
        missing = find_difference(block.shown or "", printed, DURATIONS)
        assert missing is None, f"{missing!r} is not in\n{printed}"
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # The key that the block exports opens the server that it starts; without one nobody gets in.
    after = "\nuntil curl -s 127.0.0.1:$BELLRINGER_PORT/readyz; do sleep 0.2; done"
    after += "\nbellringer jobs list --url http://127.0.0.1:$BELLRINGER_PORT"
    code = Block(block.where, block.mark, block.kind, f"{block.code}{after}")
    assert "hello.hello" in stage.run(code, BELLRINGER_PORT=str(port))
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/jobs", timeout=10)


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.kind in {"sh", ""}], ids=ids)
def test_every_command_and_option_of_the_block_exists(block: Block) -> None:
    code = block.code.replace("\\\n", " ")
    inner = re.findall(r"\$\((bellringer [^)]*)\)", code)
    for line in [*inner, *re.findall(r"^bellringer [a-z].*$", code, re.MULTILINE)]:
        words = list(takewhile(lambda word: word not in {"&", ">", "|"}, shlex.split(line, comments=True)))
        _parse(cli, words[1:], line)


def _parse(command: click.Command, words: list[str], whole: str) -> None:
    """Read a command line as click does, without running it."""
    context: click.Context | None = None
    while isinstance(command, click.Group):
        context = click.Context(command, parent=context, info_name=words[0] if words else "")
        assert words, f"{whole}: no command"
        inner = command.get_command(context, words[0])
        assert inner is not None, f"{whole}: there is no command {words[0]!r}"
        command, words = inner, words[1:]
    try:
        command.make_context(whole, list(words), parent=context)
    except click.ClickException as error:
        if "No such file" in error.message:
            return  # the option exists; its file is an example
        raise AssertionError(f"{whole}: {error.format_message()}") from None


@pytest.mark.parametrize("block", [block for block in PYTHON if not block.is_tutorial], ids=ids)
def test_the_python_block_runs(block: Block) -> None:
    code = compile(block.code, block.where, "exec")
    if block.runs:
        name = (block.file_name or "shown.py").removesuffix(".py")
        exec(code, {"__name__": name, "app": App()})


def test_the_tests_that_pages_show_pass(bellringer_test: Callable[..., Any]) -> None:
    ran = []
    for block in PYTHON:
        if block.is_tutorial or "(bellringer_test)" not in block.code:
            continue
        shown: dict[str, Any] = {"__name__": (block.file_name or "shown.py").removesuffix(".py")}
        exec(compile(block.code, block.where, "exec"), shown)
        for name in [name for name in shown if name.startswith("test_")]:
            shown[name](bellringer_test)
            ran.append(name)
    assert "test_the_latest_days_are_caught_up" in ran


@pytest.mark.parametrize("block", [block for block in DATA if block.kind != "sql"], ids=ids)
def test_the_data_of_the_block_parses(block: Block) -> None:
    if block.kind == "json":
        json.loads(block.code)
    elif block.kind == "yaml":
        assert yaml.safe_load(block.code)
    elif block.kind == "toml":
        assert tomllib.loads(block.code)
    else:
        parser = configparser.ConfigParser(strict=False, interpolation=None)
        parser.read_string(f"[settings]\n{block.code}")
        assert any(parser.items(section) for section in parser.sections())


@pytest.mark.parametrize("block", [block for block in DATA if block.kind == "sql"], ids=ids)
async def test_the_sql_of_the_block_parses(bellringer_server: TestServer, block: Block) -> None:
    shown = block.code.replace(", …", "").replace("…", "0")
    statements = re.sub(r"(?m)^(begin|commit);$|--.*", "", shown).strip().rstrip(";")
    connection = await asyncpg.connect(bellringer_server.dsn)
    try:
        # PL/pgSQL checks the syntax of statements that it does not execute, and needs none of their tables.
        await connection.execute(f"do $doc$ begin if false then {statements}; end if; end $doc$")
    finally:
        await connection.close()


def test_the_output_of_a_simulation_is_compared() -> None:
    compared = [block.where for block in ON_STAGE if block.runs and block.shown]
    assert [where.partition(":")[0] for where in compared] == ["docs/simulate.md"]


def test_wrong_sql_is_found(bellringer_server: TestServer) -> None:
    wrong = Block("shown:1", "", "sql", "select from from jobs")
    with pytest.raises(asyncpg.PostgresSyntaxError):
        asyncio.run(test_the_sql_of_the_block_parses(bellringer_server, wrong))


@pytest.mark.parametrize("command", sorted(set(re.findall(r"`(bellringer bench [^`]+)`", BENCHMARKS))))
def test_every_command_of_the_benchmarks_exists(command: str) -> None:
    _parse(cli, shlex.split(command)[1:], command)


@pytest.mark.parametrize("command", sorted(set(re.findall(r"`python -m bench ([^`]+)`", BENCHMARKS))))
def test_every_internal_benchmark_of_the_benchmarks_exists(command: str) -> None:
    _parse(internal_benchmarks, shlex.split(command), command)


def test_the_reference_of_the_api_is_named_for_what_it_is() -> None:
    assert (ROOT / "docs" / "api.md").read_text().startswith("# REST API\n")
