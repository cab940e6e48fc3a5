"""Captured output of handlers in the coroutine and thread lanes, without a database."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import io
import logging
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from bellringer.core.runs import Ending, Outcome
from bellringer.core.tasks import make_task
from bellringer.worker.attempt import LogLine, Work
from bellringer.worker.output import capture
from bellringer.worker.output.attempt_output import (
    DROPPED_MESSAGE,
    MAX_CAPTURED_BYTES,
    MAX_CAPTURED_LINES,
    MAX_LINE_CHARACTERS,
)
from bellringer.worker.output.echo import CaptureSettings

from .conftest import ExecutorHarness

Make = Callable[..., ExecutorHarness]
Shown = tuple[str, str, str]


@pytest.fixture
def echoed() -> list[str]:
    return []


@pytest.fixture
def harness(make_executor_harness: Make, echoed: list[str]) -> ExecutorHarness:
    return make_executor_harness(
        capture=CaptureSettings(), threads=64, echo=lambda _work, line: echoed.append(line.message)
    )


def shown(lines: list[LogLine]) -> list[Shown]:
    return [(line.source or "ctx", line.level, line.message) for line in lines]


def as_lane(lane: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The same handler as a coroutine or in a thread."""
    if lane == "thread":
        return function

    async def coroutine(*args: Any) -> Any:
        await asyncio.sleep(0)
        return function(*args)

    return coroutine


both_lanes = pytest.mark.parametrize("lane", ["coroutine", "thread"])


def writes_everywhere() -> None:
    print("one", 1)
    print("problem", file=sys.stderr)
    logging.getLogger("shop.orders").info("order %d", 7)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", UserWarning, stacklevel=1)
    sys.stdout.buffer.write(b"bytes \xff\n")
    sys.stdout.write("no end")


@both_lanes
async def test_every_source_is_stored_in_order_with_its_level(lane: str, harness: ExecutorHarness) -> None:
    ending = await harness.run(as_lane(lane, writes_everywhere))
    assert ending.outcome is Outcome.OK
    *lines, warned, raw, last = shown(harness.lines)
    assert lines == [
        ("stdout", "info", "one 1"),
        ("stderr", "warning", "problem"),
        ("logging:shop.orders", "info", "order 7"),
    ]
    assert warned[:2] == ("warnings", "warning")
    assert warned[2].startswith("UserWarning: old  (")
    assert raw == ("stdout", "info", "bytes \ufffd")
    assert last == ("stdout", "info", "no end")


async def test_ctx_log_and_print_keep_their_order(harness: ExecutorHarness) -> None:
    from bellringer import Context

    def handler(ctx: Context) -> None:
        for number in range(3):
            print("print", number)
            ctx.log.info("log", number=number)

    await harness.run(handler)
    assert [line.source for line in harness.lines] == ["stdout", None] * 3


@both_lanes
async def test_concurrent_attempts_never_get_a_line_of_another(lane: str, harness: ExecutorHarness) -> None:
    def say(number: int) -> None:
        print("run", end=" ")
        print(number)
        logging.getLogger("say").warning("run %d", number)

    async def coroutine(number: int) -> None:
        for _ in range(20):
            say(number)
            await asyncio.sleep(0.001)
        await asyncio.to_thread(say, number)
        await asyncio.gather(*(asyncio.create_task(asyncio.to_thread(say, number)) for _ in range(3)))

    def thread(number: int) -> None:
        for _ in range(20):
            say(number)
        helper = threading.Thread(target=say, args=(number,))
        helper.start()
        helper.join()

    works = [harness.work(coroutine if lane == "coroutine" else thread, number) for number in range(50)]
    endings = await asyncio.gather(*(harness.executor.execute(work) for work in works))
    assert {ending.outcome for ending in endings} == {Outcome.OK}
    number_of = {work.key: work.spec.args[0] for work in works}
    assert all(line.message.endswith(f" {number_of[line.key]}") for line in harness.lines if line.source != "stdout")
    times = 24 if lane == "coroutine" else 21
    assert sum(line.source != "stdout" for line in harness.lines) == 50 * times
    assert not [line for line in harness.lines if line.source == "stdout" and not _is_own(line, number_of[line.key])]


def _is_own(line: LogLine, number: int) -> bool:
    """Parts of a line written by two threads of one attempt may be mixed; those of other attempts never are."""
    return set(line.message.split()) <= {"run", str(number)}


async def test_a_shared_thread_pool_attributes_each_call_to_the_attempt_that_submits_it(
    harness: ExecutorHarness,
) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:

        def handler(number: int) -> None:
            pool.submit(print, f"call {number}").result()

        first, second = harness.work(handler, 1), harness.work(handler, 2)
        await harness.executor.execute(first)
        await harness.executor.execute(second)
        pool.submit(print, "outside").result()
    assert [(line.key, line.message) for line in harness.lines] == [(first.key, "call 1"), (second.key, "call 2")]


async def test_threads_and_tasks_that_a_handler_starts_belong_to_its_attempt(harness: ExecutorHarness) -> None:
    class Helper(threading.Thread):
        def run(self) -> None:
            print("subclass")

    async def handler() -> None:
        for helper in (Helper(), threading.Timer(0, print, ("timer",))):
            helper.start()
            await asyncio.to_thread(helper.join)
        await asyncio.get_running_loop().run_in_executor(None, print, "executor")
        await asyncio.create_task(asyncio.to_thread(print, "to_thread"))

    await harness.run(handler)
    assert [line.message for line in harness.lines] == ["subclass", "timer", "executor", "to_thread"]


async def test_output_after_the_end_and_outside_of_handlers_passes_through(
    harness: ExecutorHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    go = threading.Event()
    left: list[threading.Thread] = []

    def linger() -> None:
        go.wait(10)
        print("too late")

    def handler() -> None:
        print("in time")
        left.append(threading.Thread(target=linger))
        left[0].start()

    await harness.run(handler)
    print("outside")
    go.set()
    await asyncio.to_thread(left[0].join)
    assert [line.message for line in harness.lines] == ["in time"]
    assert capsys.readouterr().out == "outside\ntoo late\n"


@both_lanes
async def test_lines_and_bytes_are_bounded(lane: str, harness: ExecutorHarness) -> None:
    def many() -> None:
        for number in range(MAX_CAPTURED_LINES + 500):
            print(number)

    def big() -> None:
        for _ in range(400):
            print("é" * MAX_LINE_CHARACTERS)

    def endless() -> None:
        for _ in range(200):
            sys.stdout.write("x" * 100_000)

    await harness.run(as_lane(lane, many))
    assert [line.message for line in harness.lines[-2:]] == [str(MAX_CAPTURED_LINES - 1), DROPPED_MESSAGE]
    for handler in (big, endless):
        harness.lines.clear()
        await harness.run(as_lane(lane, handler))
        assert sum(len(line.message.encode()) for line in harness.lines) <= MAX_CAPTURED_BYTES + len(DROPPED_MESSAGE)
        assert [line.message for line in harness.lines if "dropped" in line.message] == [DROPPED_MESSAGE]
        assert max(len(line.message) for line in harness.lines) <= MAX_LINE_CHARACTERS


async def test_a_long_line_is_split_and_a_progress_bar_keeps_its_last_state(harness: ExecutorHarness) -> None:
    def handler() -> None:
        print("a" * (MAX_LINE_CHARACTERS + 1))
        for percent in range(0, 101, 10):
            sys.stderr.write(f"\r{percent} %")
        sys.stderr.write("\n")
        print("dos\r\nline")

    await harness.run(handler)
    assert [line.message for line in harness.lines] == ["a" * MAX_LINE_CHARACTERS, "a", "100 %", "dos", "line"]


async def test_the_level_applies_where_the_app_has_set_none(make_executor_harness: Make) -> None:
    harness = make_executor_harness(capture=CaptureSettings(level="debug"))
    quiet = logging.getLogger("captured.quiet")
    quiet.setLevel(logging.ERROR)

    def handler() -> None:
        logging.getLogger("captured.free").debug("detail")
        quiet.info("silenced")
        logging.getLogger("captured.quiet.child").warning("silenced too")
        quiet.critical("loud")

    await harness.run(handler)
    assert shown(harness.lines) == [
        ("logging:captured.free", "debug", "detail"),
        ("logging:captured.quiet", "error", "loud"),
    ]
    assert not logging.getLogger("captured.free").isEnabledFor(logging.DEBUG)


async def test_a_logged_exception_keeps_its_traceback_and_extra_fields(harness: ExecutorHarness) -> None:
    def handler() -> None:
        try:
            raise ValueError("bad order")
        except ValueError:
            logging.getLogger("shop").exception("failed", extra={"order": 7, "object": object})

    await harness.run(handler)
    (line,) = harness.lines
    assert line.level == "error"
    assert line.fields is not None
    assert line.fields["order"] == 7
    assert line.fields["traceback"].endswith("ValueError: bad order\n")


async def test_the_apps_logging_handlers_get_the_record_with_the_fields_of_the_attempt(
    harness: ExecutorHarness, echoed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger("captured.configured")
    logger.propagate = False
    logger.setLevel(logging.INFO)
    stream = logging.StreamHandler(sys.stderr)
    stream.setFormatter(logging.Formatter("%(run_id)s %(job)s %(task)s %(attempt)s %(tenant)s %(message)s"))
    logger.addHandler(stream)
    try:

        def handler() -> None:
            logger.info("hello")
            print("beside")

        work = harness.work(handler)
        await harness.executor.execute(work)
    finally:
        logger.removeHandler(stream)
    assert capsys.readouterr().err == f"{work.key.id} dunning {work.task} 2 acme hello\n"
    assert [line.message for line in harness.lines] == ["hello", "beside"]
    assert echoed == ["beside"]  # the app's own handler has written the record


async def test_a_logging_handler_that_prints_or_logs_is_harmless(
    harness: ExecutorHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger("captured.recursive")
    logger.propagate = False

    class Recursive(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            print("handler saw", record.getMessage())
            logger.error("again")

    handler = Recursive()
    logger.addHandler(handler)
    try:
        ending = await harness.run(lambda: logger.error("first"))
    finally:
        logger.removeHandler(handler)
    assert ending.outcome is Outcome.OK
    assert [line.message for line in harness.lines] == ["first", *["again"] * (capture.MAX_NESTED_RECORDS - 1)]
    assert capsys.readouterr().out.startswith("handler saw first\n")


def closes() -> None:
    sys.stdout.close()
    sys.stderr.close()
    print("after close")


def prints_surrogates() -> None:
    print("\ud800 \x00 \x1b[31mred")


def detaches() -> None:
    with pytest.raises(io.UnsupportedOperation):
        sys.stdout.detach()  # type: ignore[union-attr]
    print("after detach")


def prints_in_a_finalizer() -> None:
    class Chatty:
        def __str__(self) -> str:
            print("inside str")
            return "message"

    logging.getLogger("captured").info(Chatty())
    print("after")


def writes_what_is_no_text() -> None:
    with pytest.raises(TypeError):
        sys.stdout.write(b"bytes")  # type: ignore[arg-type]
    logging.Logger("captured.alone").error("%d", "not a number")  # noqa: LOG001 - pytest's own handler raises
    print("after error")


@both_lanes
@pytest.mark.parametrize(
    ("handler", "last"),
    [
        (closes, "after close"),
        (prints_surrogates, "\\ud800 \\x00 \x1b[31mred"),
        (detaches, "after detach"),
        (prints_in_a_finalizer, "after"),
        (writes_what_is_no_text, "after error"),
    ],
)
async def test_capture_never_breaks_a_handler(
    lane: str, handler: Callable[[], None], last: str, harness: ExecutorHarness
) -> None:
    ending = await harness.run(as_lane(lane, handler))
    assert ending.outcome is Outcome.OK, ending.error
    assert harness.lines[-1].message == last
    await harness.run(as_lane(lane, lambda: print("next")))
    assert harness.lines[-1].message == "next"


async def test_a_handler_redirects_only_its_own_output(harness: ExecutorHarness) -> None:
    both = threading.Barrier(2, timeout=20)

    def redirects() -> list[str]:
        outer, inner = io.StringIO(), io.StringIO()
        print("before")
        with contextlib.redirect_stdout(outer):
            print("outer")
            both.wait()  # the other handler prints now
            both.wait()
            with contextlib.redirect_stdout(inner):
                print("inner")
            print("outer again")
            assert sys.stdout.getvalue() == outer.getvalue()  # type: ignore[union-attr]
        sys.stdout = None
        print("nowhere")
        return [outer.getvalue(), inner.getvalue()]

    def beside() -> None:
        both.wait()
        print("beside")
        both.wait()

    first, second = harness.work(redirects), harness.work(beside)
    ending, _ = await asyncio.gather(harness.executor.execute(first), harness.executor.execute(second))
    assert ending.result == ["outer\nouter again\n", "inner\n"], ending.error
    assert [(line.key, line.message) for line in harness.lines] == [(first.key, "before"), (second.key, "beside")]
    assert isinstance(sys.stdout, capture.CapturedStream)


@both_lanes
async def test_a_replaced_stdout_is_restored_for_the_next_attempt(lane: str, harness: ExecutorHarness) -> None:
    mine = io.StringIO()

    def replaces() -> None:
        sys.stdout = mine
        print("mine")

    await harness.run(as_lane(lane, replaces))
    await harness.run(as_lane(lane, lambda: print("captured")))
    assert mine.getvalue() == "mine\n"
    assert [line.message for line in harness.lines] == ["captured"]


async def test_forked_copies_of_a_handler_do_not_write_into_the_log(harness: ExecutorHarness) -> None:
    def forks() -> None:
        print("before")
        pid = os.fork()
        if pid == 0:
            print("copy")
            os._exit(0)
        os.waitpid(pid, 0)
        print("after")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork with threads
        await harness.run(forks)
    assert [line.message for line in harness.lines] == ["before", "after"]


async def test_a_task_without_capture_writes_to_the_real_stream(
    harness: ExecutorHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    harness.registry.add(make_task(lambda: print("plain"), name="plain", capture_output=False))
    await harness.run("plain")
    assert harness.lines == []
    assert capsys.readouterr().out == "plain\n"


async def test_the_echo_receives_captured_lines_and_may_fail(make_executor_harness: Make) -> None:
    def broken(_work: Work, _line: LogLine) -> None:
        raise OSError("the terminal is gone")

    harness = make_executor_harness(capture=CaptureSettings(), echo=broken)
    ending: Ending = await harness.run(lambda: print("kept"))
    assert ending.outcome is Outcome.OK
    assert [line.message for line in harness.lines] == ["kept"]


async def test_an_echo_that_prints_or_logs_is_not_captured(
    make_executor_harness: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    def echo(_work: Work, line: LogLine) -> None:
        print("echo", line.message)
        logging.getLogger("captured.echo").error("echo %s", line.message)

    harness = make_executor_harness(capture=CaptureSettings(), echo=echo)
    await harness.run(lambda: print("once"))
    assert [line.message for line in harness.lines] == ["once"]
    assert capsys.readouterr().out == "echo once\n"


async def test_the_streams_are_restored_when_the_worker_stops(make_executor_harness: Make) -> None:
    before = (sys.stdout, sys.stderr)
    harness = make_executor_harness(capture=CaptureSettings())
    await harness.run(lambda: print("captured"))
    assert isinstance(sys.stdout, capture.CapturedStream)
    assert not isinstance(sys.stdout.uncaptured, capture.CapturedStream)
    await harness.executor.close()
    assert (sys.stdout, sys.stderr) == before


def starts_programs() -> None:
    print("before")
    subprocess.run(["sh", "-c", "echo out; echo err >&2; printf unfinished"], check=True)
    print("after")
    subprocess.check_call(["sh", "-c", "echo to sys.stdout"], stdout=sys.stdout)
    found = subprocess.run(["echo", "kept"], capture_output=True, text=True, check=True).stdout
    subprocess.run(["sh", "-c", "echo both; echo streams >&2"], stderr=subprocess.STDOUT, check=True)
    with subprocess.Popen("echo shell", shell=True) as program:
        program.wait()
    print(f"captured by the handler: {found.strip()}")


@both_lanes
async def test_output_of_programs_is_stored_in_order(
    lane: str, harness: ExecutorHarness, capfd: pytest.CaptureFixture[str]
) -> None:
    ending = await harness.run(as_lane(lane, starts_programs))
    assert ending.outcome is Outcome.OK, ending.error
    lines = shown(harness.lines)
    assert [message for source, _, message in lines if source == "stdout"] == [
        *("before", "out", "unfinishedafter", "to sys.stdout", "both", "streams", "shell"),
        "captured by the handler: kept",
    ]
    assert ("stderr", "warning", "err") in lines
    assert capfd.readouterr().out == ""


async def test_output_of_asyncio_programs_is_stored(harness: ExecutorHarness) -> None:
    async def handler() -> int | None:
        program = await asyncio.create_subprocess_exec("sh", "-c", "echo one; echo two >&2; exit 3")
        return await program.wait()

    ending = await harness.run(handler)
    assert ending.result == 3
    assert sorted(shown(harness.lines)) == [("stderr", "warning", "two"), ("stdout", "info", "one")]


@both_lanes
async def test_programs_of_concurrent_attempts_write_only_to_their_own(lane: str, harness: ExecutorHarness) -> None:
    def handler(number: int) -> None:
        command = f"for i in 1 2 3 4 5; do echo {number}; sleep 0.02; done"
        subprocess.run(["sh", "-c", command], check=True)

    works = [harness.work(as_lane(lane, handler), number) for number in range(8)]
    await asyncio.gather(*(harness.executor.execute(work) for work in works))
    for number, work in enumerate(works):
        lines = [line.message for line in harness.lines if line.key == work.key]
        assert lines == [str(number)] * 5


async def test_a_program_that_outlives_its_attempt_passes_through(
    harness: ExecutorHarness, capfd: pytest.CaptureFixture[str]
) -> None:
    programs: list[subprocess.Popen[bytes]] = []

    def handler() -> None:
        programs.append(subprocess.Popen(["sh", "-c", "echo early; sleep 0.6; echo late"]))
        while not harness.lines:
            time.sleep(0.01)

    await harness.run(handler)
    assert [line.message for line in harness.lines] == ["early"]
    await harness.until(lambda: "late" in capfd.readouterr().out)
    assert programs[0].wait() == 0
    assert [line.message for line in harness.lines] == ["early"]


async def test_a_program_that_cannot_be_started_leaves_no_descriptors(harness: ExecutorHarness) -> None:
    def handler() -> tuple[int, int]:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            with contextlib.suppress(FileNotFoundError):
                subprocess.run(["/no/such/program"], check=False)
        with contextlib.suppress(TypeError):
            subprocess.Popen()  # type: ignore[call-overload]
        return before, len(os.listdir("/proc/self/fd"))

    before, after = (await harness.run(handler)).result
    assert after == before


async def test_a_flood_of_a_program_is_bounded_and_does_not_block_it(harness: ExecutorHarness) -> None:
    def handler() -> None:
        subprocess.run(["sh", "-c", "yes | head -n 300000"], check=True)

    ending = await harness.run(handler)
    assert ending.outcome is Outcome.OK, ending.error
    assert harness.lines[-1].message == DROPPED_MESSAGE
    assert len(harness.lines) == MAX_CAPTURED_LINES + 1
