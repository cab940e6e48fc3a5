"""Attempts in processes of their own: whatever becomes of the process, it is one attempt's end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import uvloop

from bellringer.runs import Outcome
from bellringer.worker import pipe, process

if TYPE_CHECKING:
    from tests.worker.conftest import Bench


@pytest.fixture
def bench(isolated: Callable[..., Bench]) -> Bench:
    return isolated()


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


# --- ending by itself -------------------------------------------------------------------------------------


async def test_a_handler_runs_in_another_process_which_is_used_again(bench: Bench) -> None:
    first, second = await bench.run("pid"), await bench.run("pid")
    assert first.outcome is Outcome.OK
    assert first.result not in (None, os.getpid())
    assert second.result == first.result


async def test_arguments_and_context_reach_the_child(bench: Bench) -> None:
    ending = await bench.run("add", 1, "2026-03-01T00:00:00Z")
    assert ending.result == [2, "datetime", 2, 90.0, "dunning"]
    assert ending.ran >= 0


async def test_answers_come_back_as_what_they_are(bench: Bench) -> None:
    assert (await bench.run("snooze")).snooze == timedelta(seconds=30)
    assert (await bench.run("discard")).discard == "gone"
    assert bench.error(await bench.run("huge"))["type"] == "ResultNotStorable"
    assert (await bench.run("large")).result == "é" * 1900


async def test_a_failure_is_told_as_from_a_thread(bench: Bench) -> None:
    ending = await bench.run("fail")
    error = bench.error(ending)
    assert (ending.outcome, error["type"], error["message"]) == (
        Outcome.FAILED,
        "ValueError",
        "broken \\x00 \\ud800",
    )
    assert "isolated_app.py" in error["traceback"]
    assert bench.error(await bench.run("add", "x", "y"))["type"] == "InvalidInput"


async def test_what_a_handler_prints_does_not_come_between(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    assert (await bench.run("noisy")).result == "quiet"
    said = capfd.readouterr()
    assert "on stdout" in said.out
    assert "on stderr" in said.err


async def test_log_and_progress_reach_the_worker(bench: Bench) -> None:
    work = bench.work("chatty")
    assert (await bench.executor.execute(work)).result == "done"
    line = bench.lines[0]
    assert (line.key, line.attempt, line.at, line.level) == (work.key, 2, bench.now, "warning")
    assert (line.message, line.fields) == ("hello", {"n": 1})
    assert bench.executor.progress() == [(work.key, 2, {"done": 1000, "total": 1000})]


# --- crashing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "argument", "says"),
    [
        ("leave", 3, "exited with code 3"),
        ("leave", 0, "exited with code 0"),
        ("leave_politely", 4, "exited with code 4"),
        ("die", int(signal.SIGSEGV), "killed by SIGSEGV"),
        ("die", int(signal.SIGKILL), "killed by SIGKILL, as happens when memory runs out"),
    ],
)
async def test_a_crash_is_the_failure_of_its_attempt(bench: Bench, task: str, argument: int, says: str) -> None:
    ending = await bench.run(task, argument)
    assert ending.outcome is Outcome.FAILED
    assert bench.error(ending)["type"] == "ProcessCrashed"
    assert says in bench.error(ending)["message"]


async def test_a_crash_harms_nobody_else(isolated: Callable[..., Bench]) -> None:
    bench = isolated(processes=2)
    others = [bench.run("pid") for _ in range(5)]
    endings = await asyncio.gather(bench.run("leave", 1), *others, bench.run("leave", 2))
    assert [e.outcome for e in endings] == [Outcome.FAILED, *[Outcome.OK] * 5, Outcome.FAILED]


@pytest.mark.parametrize(("task", "deed"), [("babble", "garbled"), ("close_everything", "closed")])
async def test_a_handler_that_breaks_the_pipe_only_breaks_its_own(
    bench: Bench, task: str, deed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "KILL_AFTER", 0.2)
    error = bench.error(await bench.run(task))
    assert (error["type"], error["message"]) == (
        "ProcessCrashed",
        f"the process {deed} its pipe to the worker",
    )
    assert (await bench.run("pid")).outcome is Outcome.OK


async def test_a_child_that_died_idle_is_replaced_before_the_next_run(bench: Bench) -> None:
    pid = (await bench.run("pid")).result
    os.kill(pid, signal.SIGKILL)
    ending = await bench.run("pid")
    assert ending.outcome is Outcome.OK
    assert ending.result != pid


# --- being stopped ----------------------------------------------------------------------------------------


async def test_a_hanging_child_is_killed_at_its_timeout(bench: Bench, tmp_path: Path) -> None:
    note = tmp_path / "note"
    ending = await bench.run("hang", str(note), True, timeout=0.3)  # noqa: FBT003
    pid = (bench.lines[0].fields or {})["pid"]
    assert ending.outcome is Outcome.TIMED_OUT
    assert bench.error(ending)["message"] == "still running after 300ms, its timeout"
    assert not is_running(pid)
    assert note.read_text() == "cleaned up, cancelled=True"
    assert (await bench.run("pid")).result != pid


async def test_a_child_that_refuses_to_end_is_killed_all_the_same(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "KILL_AFTER", 0.1)
    running = asyncio.create_task(bench.run("hang", str(tmp_path / "note"), False, timeout=0.3))  # noqa: FBT003
    pid = ((await bench.line()).fields or {})["pid"]
    assert (await running).outcome is Outcome.TIMED_OUT
    assert not is_running(pid)


@pytest.mark.parametrize("task", ["hang", "hang_async"])
async def test_a_cancel_stops_the_handler_and_lets_it_clean_up(bench: Bench, tmp_path: Path, task: str) -> None:
    note = tmp_path / "note"
    work = bench.work(task, str(note), *([True] if task == "hang" else []))
    running = bench.start(work)
    pid = ((await bench.line()).fields or {})["pid"]
    assert bench.cancel(work, "typo")
    ending = await running
    assert ending.outcome is Outcome.CANCELLED
    assert bench.error(ending)["message"] == "typo"
    assert not is_running(pid)
    assert note.read_text().startswith("cleaned up")


async def test_an_attempt_that_waits_for_a_place_is_cancelled_at_once(bench: Bench, tmp_path: Path) -> None:
    held = asyncio.create_task(bench.run("hang", str(tmp_path / "note"), True))  # noqa: FBT003
    await bench.line()
    work = bench.work("leave", 1)
    waiting = bench.start(work)
    await asyncio.sleep(0)
    assert bench.cancel(work, "typo")
    assert (await waiting).outcome is Outcome.CANCELLED
    await bench.executor.close()
    assert (await held).outcome is Outcome.CANCELLED


async def test_a_child_without_a_sign_of_life_is_taken_for_hung(bench: Bench) -> None:
    ending = await bench.run("pulse", 12, heartbeat=0.4)
    assert ending.outcome is Outcome.TIMED_OUT
    assert bench.error(ending)["message"] == "no heartbeat for 400ms"
    assert ending.ran >= 0.9


async def test_what_a_handler_started_is_killed_with_it(bench: Bench) -> None:
    work = bench.work("breed")
    running = bench.start(work)
    grandchild = ((await bench.line()).fields or {})["pid"]
    bench.cancel(work, "stop")
    await running
    await bench.until(lambda: not is_running(grandchild))
    assert not is_running(grandchild)


# --- living and dying -------------------------------------------------------------------------------------


async def test_a_child_is_replaced_after_so_many_runs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "RECYCLE_AFTER", 2)
    pids = [(await bench.run("pid")).result for _ in range(4)]
    assert pids[0] == pids[1]
    assert pids[2] == pids[3]
    assert pids[0] != pids[2]
    await bench.until(lambda: not is_running(pids[0]))


async def test_closing_leaves_no_process_behind(bench: Bench) -> None:
    pid = (await bench.run("pid")).result
    await bench.executor.close()
    assert not is_running(pid)


async def test_a_child_dies_with_its_worker(isolated_app: Path, bench: Bench) -> None:
    """The worker here is a process that starts a child, says which, and is killed."""
    script = f"""
import asyncio
from bellringer.worker.process import Child

async def main():
    child = await Child.start({str(isolated_app)!r}, 1000)
    print(child._process.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
    worker = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=subprocess.PIPE)
    assert worker.stdout is not None
    child = int(await worker.stdout.readline())
    assert is_running(child)
    worker.kill()
    await worker.wait()
    await bench.until(lambda: not is_running(child))


async def test_a_child_whose_pipe_is_closed_ends_by_itself(isolated_app: Path) -> None:
    ours, theirs = socket.socketpair()
    child = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "bellringer.worker.child",
            str(isolated_app),
            str(theirs.fileno()),
            str(os.getpid()),
        ),
        pass_fds=(theirs.fileno(),),
        start_new_session=True,
    )
    theirs.close()
    ready = await asyncio.to_thread(ours.recv, 1000)
    assert isinstance(pipe.read_in_parent(ready), pipe.Ready)
    ours.close()
    assert await child.wait() == -signal.SIGKILL


async def test_without_a_target_the_error_says_how_to_start_the_worker(
    isolated: Callable[..., Bench],
) -> None:
    bench = isolated(target=None)
    error = bench.error(await bench.run("pid"))
    assert error["type"] == "ConfigError"
    assert "bellringer worker module:app" in error["message"]


async def test_an_app_that_breaks_on_import_fails_the_attempt_with_the_reason(
    isolated: Callable[..., Bench], tmp_path: Path
) -> None:
    broken = tmp_path / "broken_app.py"
    broken.write_text("import no_such_module_at_all\n")
    bench = isolated(target=str(broken))
    error = bench.error(await bench.run("pid"))
    assert error["type"] == "ConfigError"
    assert "No module named 'no_such_module_at_all'" in error["message"]
    broken.write_text("import os\nos._exit(9)\n")
    error = bench.error(await bench.run("pid"))
    assert error["message"] == "while it imported the app, the process exited with code 9"


async def test_a_task_that_only_the_worker_knows_fails_with_the_reason(
    isolated: Callable[..., Bench], tmp_path: Path
) -> None:
    other = tmp_path / "other_app.py"
    other.write_text("from bellringer.tasks import Registry\nclass app: registry = Registry()\napp = app()\n")
    bench = isolated(target=f"{other}:app")
    error = bench.error(await bench.run("pid"))
    assert error["type"] == "UnknownTask"


def test_children_serve_a_worker_on_uvloop_too(bench: Bench) -> None:
    async def main() -> list[Outcome]:
        endings = [
            await bench.run("pid"),
            await bench.run("leave", 1),
            await bench.run("pulse", 0, timeout=0.2),
        ]
        await bench.executor.close()
        return [ending.outcome for ending in endings]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == [Outcome.OK, Outcome.FAILED, Outcome.TIMED_OUT]
