"""`bellringer runs send`, against a real server: one task, files, stdin, errors by line, and the progress bar."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from bellringer.store.connection_pool import Store

Ask = Callable[..., Awaitable[tuple[str, str]]]


def lines(count: int, **changes: Any) -> str:
    """A file of sends; `changes` replace the items at an index, such as `_3={…}`."""
    items: list[Any] = [{"task": "demo", "kwargs": {"n": n}} for n in range(count)]
    for place, item in changes.items():
        items[int(place[1:])] = item
    return "".join(f"{item if isinstance(item, str) else json.dumps(item)}\n" for item in items)


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        (tmp_path / "tasks.ndjson").write_text(text)
        return str(tmp_path / "tasks.ndjson")

    return write


async def count(store: Store) -> int:
    found: int = await store.pool.fetchval("select (select count(*) from queue) + (select count(*) from timers)")
    return found


async def test_one_task_with_its_options(ask: Ask) -> None:
    options = ("--arg", "photo=7", "--delay", "2h", "--send-key", "seven", "--priority", "9")
    run = json.loads((await ask("runs", "send", "shop.resize", *options, "-o", "json"))[0])
    assert (run["task"], run["kwargs"], run["priority"], run["created"]) == ("shop.resize", {"photo": 7}, 9, True)
    shown, beside = await ask("runs", "send", "shop.resize", *options, "-o", "name")
    assert (shown, beside) == (f"{run['run_id']}\n", "the key has a run already\n")
    by_position = json.loads((await ask("runs", "send", "a", "--args-json", "[1, 2]", "-o", "json"))[0])
    assert by_position["args"] == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give a task, or --file"),
        (("a", "--per-item"), "--atomic and --per-item are options of --file"),
        (("a", "--file", "x"), "with --file, the task and its options are in the lines of the file"),
        (("--file", "x", "--wait"), "with --file, the task and its options are in the lines of the file"),
        (("--file", "x", "--delay", "1h"), "with --file, the task and its options are in the lines of the file"),
        (("--file", "/nowhere/x"), "cannot read /nowhere/x: No such file or directory"),
    ],
)
async def test_wrong_usage(ask: Ask, arguments: tuple[str, ...], message: str) -> None:
    assert f"error: {message}\n" in (await ask("runs", "send", *arguments, code=2))[1]


async def test_a_file_is_sent_in_requests_and_counted(ask: Ask, store: Store, file: Callable[[str], str]) -> None:
    text = lines(20_500, _7={"task": "demo", "key": "k"}, _20_400={"task": "demo", "key": "k", "delay": "1h"})
    shown, beside = await ask("runs", "send", "--file", file(text + "\n  \n"))
    assert (shown, beside) == ("20,499 created, 1 existing\n", "")
    assert await count(store) == 20_499
    ids = (await ask("runs", "send", "--file", file(lines(3)), "-o", "name"))[0].split()
    assert len(set(ids)) == 3
    assert json.loads((await ask("runs", "get", ids[2], "-o", "json"))[0])["kwargs"] == {"n": 2}
    counts = json.loads((await ask("runs", "send", "--file", file(lines(2)), "-o", "json"))[0])
    assert counts == {"created": 2, "existing": 0, "failed": 0}
    assert await ask("runs", "send", "--file", file("\n")) == ("0 created\n", "")


async def test_an_atomic_request_is_refused_with_line_numbers(
    ask: Ask, store: Store, file: Callable[[str], str]
) -> None:
    wrong = lines(10_010, _10_002={"task": "demo", "priority": 12}, _10_005={"task": "demo", "kwargs": 3})
    shown, beside = await ask("runs", "send", "--file", file(wrong), code=2)
    assert shown == ""
    assert beside.splitlines()[0].startswith("error: line 10,006 (/kwargs): ")
    assert beside.splitlines()[1] == "lines 1 to 10,000 have been sent"
    assert beside.splitlines()[2].startswith("error: line 10,003 (/priority): priority must be 0 to 9")
    assert await count(store) == 10_000, "the request before is stored, the refused one is not"
    shown, beside = await ask("runs", "send", "--file", file(lines(5, _3="{oops")), code=2)
    assert beside.startswith("nothing has been sent\nerror: line 4: not JSON: ")
    assert await count(store) == 10_000


async def test_per_item_sends_the_valid_lines(ask: Ask, store: Store, file: Callable[[str], str]) -> None:
    text = lines(1_200, _3="{oops", _5={"task": "demo", "at": "2020-01-01T00:00:00Z"}, _1_100=7)
    shown, beside = await ask("runs", "send", "--file", file(text), "--per-item", code=2)
    assert shown == "1,197 created, 3 failed\n"
    assert [line.partition(":")[2].partition(":")[0] for line in beside.splitlines()] == [
        " line 4",
        " line 6",
        " line 1,101",
    ]
    assert await count(store) == 1_197


def read_terminal(end: int) -> bytes:
    screen = b""
    with suppress(OSError):  # raised when the other end is closed
        while data := os.read(end, 10_000):
            screen += data
    os.close(end)
    return screen


async def test_stdin_and_a_terminal(url: str, store: Store) -> None:
    """On a terminal, a bar shows the progress; the summary on stdout is the same."""
    main, side = pty.openpty()
    command = (sys.executable, "-m", "bellringer", "runs", "send", "--file", "-", "--url", url)
    process = await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, stderr=side, env={**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    )
    os.close(side)
    (shown, _), screen = await asyncio.gather(
        process.communicate(lines(10_100).encode()), asyncio.to_thread(read_terminal, main)
    )
    assert (process.returncode, shown) == (0, b"10,100 created\n")
    assert b"sending: 10,100 tasks" in screen
    assert await count(store) == 10_100


async def test_a_server_that_is_down_is_told_after_some_tries(file: Callable[[str], str]) -> None:
    command = (sys.executable, "-m", "bellringer", "runs", "send", "--file", file(lines(3)))
    process = await asyncio.create_subprocess_exec(
        *command, "--url", "http://127.0.0.1:9", stdin=DEVNULL, stdout=PIPE, stderr=PIPE
    )
    _, beside = await process.communicate()
    assert process.returncode == 6
    assert beside.decode().startswith("nothing has been sent\nerror: cannot connect")
