"""`bellringer top` in a real terminal: it draws, reacts to keys and sizes, and leaves the terminal as it was."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import signal
import struct
import sys
import termios
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import pytest

from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog, TaskDescription
from bellringer.store.workers import WorkerRegistration, join

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Ask

STYLE = re.compile(r"\x1b\[[0-9;]*m")
READY = """
insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, shard, pool_id, priority, cause, spec)
select gen_random_uuid(), now(), 0, now(), 1, $2, 0, 1, 5, 'send', '{}' from generate_series(1, $1)
"""


class Terminal:
    """A program in a pseudo terminal. A frame is what it has written since it last moved the cursor home."""

    def __init__(self, process: Process, descriptor: int) -> None:
        self.process = process
        self.descriptor = descriptor
        self.written = ""
        asyncio.get_running_loop().add_reader(descriptor, self._read)

    def _read(self) -> None:
        try:
            self.written += os.read(self.descriptor, 65536).decode()
        except OSError:  # the program has ended
            asyncio.get_running_loop().remove_reader(self.descriptor)

    @property
    def screen(self) -> list[str]:
        frame = self.written.rpartition("\x1b[H")[2].partition("\x1b[?1049l")[0]
        shown = STYLE.sub("", frame).replace("\x1b[K", "").replace("\x1b[J", "").replace("\r", "")
        return shown.split("\n")

    def press(self, keys: str) -> None:
        os.write(self.descriptor, keys.encode())

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    async def until(self, text: str) -> list[str]:
        return await self.until_true(lambda screen: any(text in line for line in screen))

    async def until_true(self, holds: Callable[[list[str]], bool]) -> list[str]:
        for _ in range(400):
            if holds(self.screen):
                return self.screen
            await asyncio.sleep(0.05)
        raise AssertionError("\n".join(self.screen))


@pytest.fixture
async def terminal(url: str, store: Store, catalog: Catalog) -> AsyncIterator[Terminal]:
    task_ids = await catalog.task_ids(["charge", "report"])
    described = [TaskDescription(name=name, schema='{"type": "object"}', doc="", defaults="{}") for name in task_ids]
    await catalog.describe_tasks(described)
    who = WorkerRegistration(name="w", host="h", pid=1, version="1", pools={"short": 4}, task_ids=[*task_ids.values()])
    await join(store, who)
    await store.pool.execute(READY, 7, task_ids["charge"])
    master, slave = pty.openpty()
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environ = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES", "NO_COLOR"}}
    command = (sys.executable, "-m", "bellringer", "top", "--interval", "0.5", "--url", url)
    process = await asyncio.create_subprocess_exec(*command, stdin=slave, stdout=slave, stderr=slave, env=environ)
    os.close(slave)
    yield Terminal(process, master)
    if process.returncode is None:
        process.kill()
        await process.wait()
    asyncio.get_running_loop().remove_reader(master)
    os.close(master)


async def test_the_views_follow_the_keys_and_the_size(terminal: Terminal) -> None:
    screen = await terminal.until("short")
    assert len(screen) == 24
    assert all(len(line) <= 80 for line in screen)
    [short] = [line for line in screen if line.startswith("short")]
    assert short.split()[:2] == ["short", "7"]
    assert "[1 pools]" in screen[3]
    terminal.press("\t")
    screen = await terminal.until("[2 tasks]")
    assert [line.split()[0] for line in screen if line.startswith(("charge", "report"))] == ["charge", "report"]
    terminal.press("sr")  # by READY, smallest backlog first
    await terminal.until("READY▲")
    names = [line.split()[0] for line in terminal.screen if line.startswith(("charge", "report"))]
    assert names == ["report", "charge"]
    terminal.resize(100, 12)
    await terminal.until_true(lambda screen: len(screen) == 12 and max(map(len, screen)) == 100)
    terminal.press("p")
    await terminal.until("PAUSED")
    terminal.press("p4")
    await terminal.until("[4 nodes]")
    terminal.press("q")
    async with asyncio.timeout(10):
        assert await terminal.process.wait() == 0
    await asyncio.sleep(0.1)
    assert terminal.written.rstrip().endswith("\x1b[?25h\x1b[?1049l"), "the screen and the cursor are restored"


async def test_a_refresh_shows_new_work(terminal: Terminal, store: Store, catalog: Catalog) -> None:
    await terminal.until("short")
    await store.pool.execute(READY, 20, (await catalog.task_ids(["charge"]))["charge"])
    await terminal.until("27")
    assert "\x1b[7m" in terminal.written, "the names of the columns are highlighted"
    terminal.process.send_signal(signal.SIGINT)
    async with asyncio.timeout(10):
        assert await terminal.process.wait() == 0


async def test_without_a_terminal_it_prints_once(ask: Ask, catalog: Catalog) -> None:
    await catalog.task_ids(["charge"])
    shown, _ = await ask("top")
    lines = shown.splitlines()
    assert lines[0].startswith("bellringer top")
    assert [line for line in lines if line.isupper() and line.isalpha()] == ["POOLS", "TASKS", "WORKERS", "NODES"]
    assert "\x1b" not in shown
    assert (await ask("top", "--once"))[0].startswith("bellringer top")


async def test_an_unreachable_server_is_an_error_without_a_terminal(ask: Ask) -> None:
    command = (sys.executable, "-m", "bellringer", "top", "--once", "--url", "http://127.0.0.1:9")
    called = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    _, beside = await called.communicate()
    assert called.returncode != 0
    assert b"error" in beside
