"""Captured output of handlers that run in child processes: of Python, of C, and of the programs that they start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from bellringer.core.runs import Outcome
from bellringer.worker.app_loader import load_target
from bellringer.worker.output.attempt_output import DROPPED_MESSAGE, MAX_CAPTURED_LINES
from bellringer.worker.output.echo import CaptureSettings

from .conftest import ExecutorHarness


@pytest.fixture
def echoed() -> list[str]:
    return []


@pytest.fixture(scope="session")
def printing_app(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A copy outside of the test folders, so that the app is not part of a package."""
    path = tmp_path_factory.mktemp("app") / "printing_app.py"
    path.write_text(Path(__file__).with_name("printing_app.py").read_text())
    return str(path)


@pytest.fixture
def harness(
    printing_app: str, make_executor_harness: Callable[..., ExecutorHarness], echoed: list[str]
) -> ExecutorHarness:
    return make_executor_harness(
        load_target(printing_app).registry,
        target=printing_app,
        capture=CaptureSettings(),
        echo=lambda _work, line: echoed.append(line.message),
    )


def shown(harness: ExecutorHarness) -> list[tuple[str | None, str]]:
    return [(line.source, line.message) for line in harness.lines]


async def test_output_of_python_is_stored_in_order(harness: ExecutorHarness) -> None:
    ending = await harness.run("everywhere")
    assert ending.outcome is Outcome.OK, ending.error
    found = shown(harness)
    assert found[4][0] == "warnings"
    assert found[4][1].startswith("UserWarning: five")
    assert [*found[:4], *found[5:]] == [
        ("stdout", "one 1"),
        (None, "two"),
        ("stderr", "three"),
        ("logging:shop", "four"),
        ("stdout", "six"),
        ("stdout", "seven"),
    ]
    harness.lines.clear()
    await harness.run("coroutine")
    assert sorted(line.message for line in harness.lines) == ["call 0", "call 1", "call 2"]


async def test_output_of_programs_and_of_c_is_stored(harness: ExecutorHarness) -> None:
    ending = await harness.run("programs")
    assert ending.outcome is Outcome.OK, ending.error
    found = shown(harness)
    assert [message for source, message in found if source == "stdout"] == [
        "echoed",
        "raw \ufffd",
        "from C",
        "copied",
    ]
    assert [message for source, message in found if source == "stderr"] == ["failed"]


async def test_output_of_programs_stands_between_the_lines_around_it(harness: ExecutorHarness) -> None:
    for _ in range(5):
        harness.lines.clear()
        await harness.run("in_turn")
        assert [line.message for line in harness.lines] == [f"{who} {n}" for n in range(3) for who in ("print", "echo")]


async def test_the_last_words_of_a_crashed_process_are_stored(harness: ExecutorHarness) -> None:
    ending = await harness.run("crash")
    assert harness.error(ending)["type"] == "ProcessCrashed"
    found = shown(harness)
    assert ("stdout", "before the crash") in found
    assert ("stdout", "unfinished") in found
    assert ("stderr", "Fatal Python error: Segmentation fault") in found


async def test_output_of_a_program_that_outlives_its_attempt_is_not_stored_with_the_next(
    harness: ExecutorHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    await harness.run("leaves_a_program")
    first = shown(harness)
    harness.lines.clear()
    await harness.run("say", "next")
    await asyncio.sleep(1.2)
    await harness.run("say", "last")
    assert first == [("stdout", "early")]
    assert shown(harness) == [("stdout", "next"), ("stdout", "last")]
    assert capsys.readouterr().out == "late\n"


async def test_lines_of_the_apps_logging_handler_are_not_stored_twice(
    harness: ExecutorHarness, echoed: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    work = harness.work("warn", "careful")
    await harness.executor.execute(work)
    assert shown(harness) == [("logging:shop", "careful")]
    assert echoed == []
    assert f"app: {work.key.id} careful\n" in capfd.readouterr().err


async def test_a_flood_is_bounded_and_does_not_stop_the_handler(harness: ExecutorHarness) -> None:
    ending = await harness.run("floods")
    assert ending.outcome is Outcome.OK, ending.error
    assert harness.lines[-1].message == DROPPED_MESSAGE
    assert len(harness.lines) == MAX_CAPTURED_LINES + 1


async def test_closed_streams_and_descriptors_harm_only_their_attempt(harness: ExecutorHarness) -> None:
    ending = await harness.run("breaks_streams")
    assert ending.outcome is Outcome.OK, ending.error
    await harness.run("say", "next")
    assert shown(harness) == [("stdout", "before"), ("stdout", "next")]


async def test_lines_arrive_while_the_handler_runs(harness: ExecutorHarness) -> None:
    running = harness.start(harness.work("slow", timeout=3.0))
    assert (await harness.line()).message == "first"
    assert not running.done()
    assert (await running).outcome is Outcome.TIMED_OUT


async def test_a_task_without_capture_writes_to_the_workers_streams(
    harness: ExecutorHarness, capfd: pytest.CaptureFixture[str]
) -> None:
    await harness.run("plain")
    assert harness.lines == []
    assert "not captured\n" in capfd.readouterr().out
