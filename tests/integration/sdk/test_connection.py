"""How an app finds its database, and keeps to itself after a fork."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncpg
import pytest

from bellringer import App, SchemaMismatch, Unavailable
from bellringer.errors import ConfigError
from bellringer.testing.postgres import TestServer, at_database


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.delenv("BELLRINGER_DSN", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _left_by_dev(folder: Path, pid: int) -> None:
    (folder / ".bellringer").mkdir()
    said = {"dsn": "postgresql://dev/x", "url": "http://localhost", "pid": pid}
    (folder / ".bellringer" / "dev.json").write_text(json.dumps(said))


def test_the_argument_wins_over_the_environment_and_that_over_dev(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _left_by_dev(nowhere, os.getpid())
    assert App().dsn == "postgresql://dev/x"

    monkeypatch.setenv("BELLRINGER_DSN", "postgresql://environment/x")
    assert App().dsn == "postgresql://environment/x"
    assert App("postgresql://argument/x").dsn == "postgresql://argument/x"


def test_dev_is_found_from_a_folder_below(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _left_by_dev(nowhere, os.getpid())
    (nowhere / "src" / "shop").mkdir(parents=True)
    monkeypatch.chdir(nowhere / "src" / "shop")

    assert App().dsn == "postgresql://dev/x"


def test_a_dev_that_has_ended_is_refused(nowhere: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    _left_by_dev(nowhere, ended.pid)

    with pytest.raises(ConfigError, match="not running; start it with `bellringer dev`, or set BELLRINGER_DSN"):
        App().dsn  # noqa: B018


def test_a_server_that_does_not_answer_is_named() -> None:
    with (
        App("postgresql://localhost:1/x") as app,
        pytest.raises(Unavailable, match="at localhost:1 does not"),
    ):
        app.declare()


def test_a_database_without_the_schema_is_refused(bellringer_server: TestServer) -> None:
    with App(at_database(bellringer_server.dsn, "postgres")) as app:
        with pytest.raises(SchemaMismatch, match="run `bellringer migrate`"):
            app.declare()
        with pytest.raises(SchemaMismatch):  # a failed opening is tried anew
            app.declare()


def test_an_app_can_be_closed_and_used_again(bellringer_dsn: str) -> None:
    app = App(bellringer_dsn)
    app.close()
    for _ in range(2):
        with app:
            assert app.jobs.list() == []


def test_one_app_serves_many_event_loops(bellringer_dsn: str) -> None:
    with App(bellringer_dsn) as app:
        for _ in range(3):
            assert asyncio.run(app.jobs.alist()) == []
        assert app.jobs.list() == []


COUNT_CONNECTIONS = "select count(*) from pg_stat_activity where application_name = $1"


async def _count_connections(dsn: str, name: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        for _ in range(200):  # the server notices the end of a connection a little later
            count: int = await connection.fetchval(COUNT_CONNECTIONS, name)
            if count == 0:
                break
            await asyncio.sleep(0.05)
        return count
    finally:
        await connection.close()


def test_connections_end_with_the_loop_that_used_them(bellringer_dsn: str) -> None:
    with App(bellringer_dsn, name="one loop") as app:
        assert asyncio.run(app.jobs.alist()) == []
        assert asyncio.run(_count_connections(bellringer_dsn, "one loop")) == 0
        assert asyncio.run(app.jobs.alist()) == []


def test_loops_of_several_threads_use_an_app_at_once(bellringer_dsn: str) -> None:
    with App(bellringer_dsn, name="two loops") as app, ThreadPoolExecutor(2) as threads:
        task = app.task(name="x")(lambda n: n)

        async def send() -> None:
            await asyncio.gather(*(task.asend(n) for n in range(20)))

        for done in [threads.submit(asyncio.run, send()) for _ in range(4)]:
            done.result(30)
        count = "select count(*) from queue"
        assert app.connection.run(lambda service: service._store.pool.fetchval(count), instead="") == 80


async def test_closing_an_app_closes_the_connections_of_other_loops(bellringer_dsn: str) -> None:
    app = App(bellringer_dsn, name="other loop")
    used, release = threading.Event(), threading.Event()

    async def use() -> None:
        await app.jobs.alist()
        used.set()
        while not release.is_set():  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(0.01)

    thread = threading.Thread(target=lambda: asyncio.run(use()))
    thread.start()
    await asyncio.to_thread(used.wait, 30)
    await app.jobs.alist()
    await app.aclose()
    assert await _count_connections(bellringer_dsn, "other loop") == 0
    release.set()
    await asyncio.to_thread(thread.join, 30)


def test_a_forked_child_reconnects(bellringer_dsn: str) -> None:
    code = """
        import os, sys
        from bellringer import App

        app = App(sys.argv[1])
        task = app.task(name="x")(lambda n: n)
        task.send(0)
        children = []
        for n in range(1, 4):
            child = os.fork()
            if child == 0:
                task.send(n)
                os._exit(0)
            children.append(child)
        task.send(4)
        assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
        task.send(5)
        count = "select count(*) from queue"
        print(app.connection.run(lambda service: service._store.pool.fetchval(count), instead=""))
    """
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            "-W",
            "ignore::DeprecationWarning",
            "-c",
            textwrap.dedent(code),
            bellringer_dsn,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )

    assert (done.stdout, done.stderr, done.returncode) == ("6\n", "", 0)
