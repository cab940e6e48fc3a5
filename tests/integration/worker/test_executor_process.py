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

from bellringer.core.runs import Outcome
from bellringer.worker.lanes import child_protocol, processes

if TYPE_CHECKING:
    from tests.integration.worker.conftest import ExecutorHarness


@pytest.fixture
def executor_harness(isolated: Callable[..., ExecutorHarness]) -> ExecutorHarness:
    return isolated()


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


# --- ending by itself -------------------------------------------------------------------------------------


async def test_a_handler_runs_in_another_process_which_is_used_again(executor_harness: ExecutorHarness) -> None:
    first, second = await executor_harness.run("pid"), await executor_harness.run("pid")
    assert first.outcome is Outcome.OK
    assert first.result not in (None, os.getpid())
    assert second.result == first.result


async def test_arguments_and_context_reach_the_child(executor_harness: ExecutorHarness) -> None:
    ending = await executor_harness.run("add", 1, "2026-03-01T00:00:00Z")
    assert ending.result == [2, "datetime", 2, 90.0, "dunning"]
    assert ending.ran >= 0


async def test_answers_come_back_as_what_they_are(executor_harness: ExecutorHarness) -> None:
    assert (await executor_harness.run("snooze")).snooze == timedelta(seconds=30)
    assert (await executor_harness.run("discard")).discard == "gone"
    assert executor_harness.error(await executor_harness.run("huge"))["type"] == "ResultNotStorable"
    assert (await executor_harness.run("large")).result == "é" * 1900


async def test_a_failure_is_reported_as_from_a_thread(executor_harness: ExecutorHarness) -> None:
    ending = await executor_harness.run("fail")
    error = executor_harness.error(ending)
    assert (ending.outcome, error["type"], error["message"]) == (
        Outcome.FAILED,
        "ValueError",
        "broken \\x00 \\ud800",
    )
    assert "isolated_app.py" in error["traceback"]
    assert executor_harness.error(await executor_harness.run("add", "x", "y"))["type"] == "InvalidInput"


async def test_what_a_handler_prints_does_not_come_between(
    executor_harness: ExecutorHarness, capfd: pytest.CaptureFixture[str]
) -> None:
    assert (await executor_harness.run("noisy")).result == "quiet"
    said = capfd.readouterr()
    assert "on stdout" in said.out
    assert "on stderr" in said.err


async def test_log_and_progress_reach_the_worker(executor_harness: ExecutorHarness) -> None:
    work = executor_harness.work("chatty")
    assert (await executor_harness.executor.execute(work)).result == "done"
    line = executor_harness.lines[0]
    assert (line.key, line.attempt, line.at, line.level) == (work.key, 2, executor_harness.now, "warning")
    assert (line.message, line.fields) == ("hello", {"n": 1})
    assert executor_harness.executor.progress() == [(work.key, 2, {"done": 1000, "total": 1000})]


# --- crashing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "argument", "says"),
    [
        ("leave", 3, "exited with code 3"),
        ("leave", 0, "exited with code 0"),
        ("leave_politely", 4, "exited with code 4"),
        ("die", int(signal.SIGSEGV), "killed by SIGSEGV"),
        ("die", int(signal.SIGKILL), "killed by SIGKILL, possibly because memory ran out"),
    ],
)
async def test_a_crash_is_the_failure_of_its_attempt(
    executor_harness: ExecutorHarness, task: str, argument: int, says: str
) -> None:
    ending = await executor_harness.run(task, argument)
    assert ending.outcome is Outcome.FAILED
    assert executor_harness.error(ending)["type"] == "ProcessCrashed"
    assert says in executor_harness.error(ending)["message"]


async def test_a_crash_harms_no_one_else(isolated: Callable[..., ExecutorHarness]) -> None:
    executor_harness = isolated(processes=2)
    others = [executor_harness.run("pid") for _ in range(5)]
    endings = await asyncio.gather(executor_harness.run("leave", 1), *others, executor_harness.run("leave", 2))
    assert [e.outcome for e in endings] == [Outcome.FAILED, *[Outcome.OK] * 5, Outcome.FAILED]


@pytest.mark.parametrize(("task", "deed"), [("babble", "garbled"), ("close_everything", "closed")])
async def test_a_handler_that_breaks_the_pipe_only_breaks_its_own(
    executor_harness: ExecutorHarness, task: str, deed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "KILL_AFTER_SECONDS", 0.2)
    error = executor_harness.error(await executor_harness.run(task))
    assert (error["type"], error["message"]) == (
        "ProcessCrashed",
        f"the process {deed} its pipe to the worker",
    )
    assert (await executor_harness.run("pid")).outcome is Outcome.OK


async def test_a_child_that_died_idle_is_replaced_before_the_next_run(executor_harness: ExecutorHarness) -> None:
    pid = (await executor_harness.run("pid")).result
    os.kill(pid, signal.SIGKILL)
    ending = await executor_harness.run("pid")
    assert ending.outcome is Outcome.OK
    assert ending.result != pid


# --- being stopped ----------------------------------------------------------------------------------------


async def test_a_hanging_child_is_killed_at_its_timeout(executor_harness: ExecutorHarness, tmp_path: Path) -> None:
    note = tmp_path / "note"
    ending = await executor_harness.run("hang", str(note), True, timeout=0.3)  # noqa: FBT003
    pid = (executor_harness.lines[0].fields or {})["pid"]
    assert ending.outcome is Outcome.TIMED_OUT
    assert executor_harness.error(ending)["message"] == "still running after its timeout of 300ms"
    assert not is_running(pid)
    assert note.read_text() == "cleaned up, cancelled=True"
    assert (await executor_harness.run("pid")).result != pid


async def test_a_child_that_refuses_to_end_is_killed_all_the_same(
    executor_harness: ExecutorHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "KILL_AFTER_SECONDS", 0.1)
    running = asyncio.create_task(executor_harness.run("hang", str(tmp_path / "note"), False, timeout=0.3))  # noqa: FBT003
    pid = ((await executor_harness.line()).fields or {})["pid"]
    assert (await running).outcome is Outcome.TIMED_OUT
    assert not is_running(pid)


@pytest.mark.parametrize("task", ["hang", "hang_async"])
async def test_a_cancel_stops_the_handler_and_lets_it_clean_up(
    executor_harness: ExecutorHarness, tmp_path: Path, task: str
) -> None:
    note = tmp_path / "note"
    work = executor_harness.work(task, str(note), *([True] if task == "hang" else []))
    running = executor_harness.start(work)
    pid = ((await executor_harness.line()).fields or {})["pid"]
    assert executor_harness.cancel(work, "typo")
    ending = await running
    assert ending.outcome is Outcome.CANCELLED
    assert executor_harness.error(ending)["message"] == "typo"
    assert not is_running(pid)
    assert note.read_text().startswith("cleaned up")


async def test_an_attempt_that_waits_for_a_place_is_cancelled_at_once(
    executor_harness: ExecutorHarness, tmp_path: Path
) -> None:
    held = asyncio.create_task(executor_harness.run("hang", str(tmp_path / "note"), True))  # noqa: FBT003
    await executor_harness.line()
    work = executor_harness.work("leave", 1)
    waiting = executor_harness.start(work)
    await asyncio.sleep(0)
    assert executor_harness.cancel(work, "typo")
    assert (await waiting).outcome is Outcome.CANCELLED
    await executor_harness.executor.close()
    assert (await held).outcome is Outcome.CANCELLED


async def test_a_child_without_a_sign_of_life_is_taken_for_hung(executor_harness: ExecutorHarness) -> None:
    ending = await executor_harness.run("pulse", 12, heartbeat=0.4)
    assert ending.outcome is Outcome.TIMED_OUT
    assert executor_harness.error(ending)["message"] == "no heartbeat for 400ms"
    assert ending.ran >= 0.9


async def test_what_a_handler_started_is_killed_with_it(executor_harness: ExecutorHarness) -> None:
    work = executor_harness.work("breed")
    running = executor_harness.start(work)
    grandchild = ((await executor_harness.line()).fields or {})["pid"]
    executor_harness.cancel(work, "stop")
    await running
    await executor_harness.until(lambda: not is_running(grandchild))
    assert not is_running(grandchild)


# --- living and dying -------------------------------------------------------------------------------------


async def test_a_child_is_replaced_after_so_many_runs(
    executor_harness: ExecutorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "MAX_RUNS_PER_CHILD", 2)
    pids = [(await executor_harness.run("pid")).result for _ in range(4)]
    assert pids[0] == pids[1]
    assert pids[2] == pids[3]
    assert pids[0] != pids[2]
    await executor_harness.until(lambda: not is_running(pids[0]))


async def test_closing_leaves_no_process_behind(executor_harness: ExecutorHarness) -> None:
    pid = (await executor_harness.run("pid")).result
    await executor_harness.executor.close()
    assert not is_running(pid)


async def test_a_child_dies_with_its_worker(isolated_app: Path, executor_harness: ExecutorHarness) -> None:
    """The worker here is a process that starts a child, says which, and is killed."""
    script = f"""
import asyncio
from bellringer.worker.lanes.processes import ChildProcess

async def main():
    child = await ChildProcess.start({str(isolated_app)!r}, 1000)
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
    await executor_harness.until(lambda: not is_running(child))


async def test_a_child_whose_pipe_is_closed_ends_by_itself(isolated_app: Path) -> None:
    ours, theirs = socket.socketpair()
    child = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "bellringer.worker.lanes.child",
            str(isolated_app),
            str(theirs.fileno()),
            str(os.getpid()),
            "0",
        ),
        pass_fds=(theirs.fileno(),),
        start_new_session=True,
    )
    theirs.close()
    ready = await asyncio.to_thread(ours.recv, 1000)
    assert child_protocol.decode_in_parent(ready) == child_protocol.ChildMessage(
        "", child.pid, child_protocol.ReadyMessage()
    )
    ours.close()
    assert await child.wait() == -signal.SIGKILL


async def test_without_a_target_the_error_says_how_to_start_the_worker(
    isolated: Callable[..., ExecutorHarness],
) -> None:
    executor_harness = isolated(target=None)
    error = executor_harness.error(await executor_harness.run("pid"))
    assert error["type"] == "ConfigError"
    assert "bellringer worker module:app" in error["message"]


async def test_an_app_that_breaks_on_import_fails_the_attempt_with_the_reason(
    isolated: Callable[..., ExecutorHarness], tmp_path: Path
) -> None:
    broken = tmp_path / "broken_app.py"
    broken.write_text("import no_such_module_at_all\n")
    executor_harness = isolated(target=str(broken))
    error = executor_harness.error(await executor_harness.run("pid"))
    assert error["type"] == "ConfigError"
    assert "No module named 'no_such_module_at_all'" in error["message"]
    broken.write_text("import os\nos._exit(9)\n")
    error = executor_harness.error(await executor_harness.run("pid"))
    assert error["message"] == "while importing the app, the process exited with code 9"


async def test_a_task_that_only_the_worker_knows_fails_with_the_reason(
    isolated: Callable[..., ExecutorHarness], tmp_path: Path
) -> None:
    other = tmp_path / "other_app.py"
    other.write_text("from bellringer.core.tasks import Registry\nclass app: registry = Registry()\napp = app()\n")
    executor_harness = isolated(target=f"{other}:app")
    error = executor_harness.error(await executor_harness.run("pid"))
    assert error["type"] == "UnknownTask"


def test_children_serve_a_worker_on_uvloop_too(executor_harness: ExecutorHarness) -> None:
    async def main() -> list[Outcome]:
        endings = [
            await executor_harness.run("pid"),
            await executor_harness.run("leave", 1),
            await executor_harness.run("pulse", 0, timeout=0.2),
        ]
        await executor_harness.executor.close()
        return [ending.outcome for ending in endings]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == [Outcome.OK, Outcome.FAILED, Outcome.TIMED_OUT]
