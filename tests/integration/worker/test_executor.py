"""Attempts on the loop and in threads: however a handler behaves, there is one ending."""

from __future__ import annotations

import asyncio
import contextvars
import json
import threading
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from bellringer.core.runs import Outcome
from bellringer.core.tasks import Discard, Snooze
from bellringer.worker.attempt import Work

if TYPE_CHECKING:
    from tests.integration.worker.conftest import ExecutorHarness


# --- returning --------------------------------------------------------------------------------------------


async def test_a_coroutine_ends_ok_with_its_result(executor_harness: ExecutorHarness) -> None:
    async def add(a: int, b: int) -> dict[str, int]:
        await asyncio.sleep(0)
        return {"sum": a + b}

    ending = await executor_harness.run(add, 1, 2)
    assert (ending.outcome, ending.result, ending.error) == (Outcome.OK, {"sum": 3}, None)
    assert ending.ran > 0


async def test_a_function_runs_in_a_thread_with_the_callers_context_variables(
    executor_harness: ExecutorHarness,
) -> None:
    var = contextvars.ContextVar("var", default="unset")
    var.set("set")

    def work() -> list[Any]:
        return [threading.current_thread() is not threading.main_thread(), var.get()]

    ending = await executor_harness.run(work)
    assert ending.result == [True, "set"]


async def test_arguments_arrive_in_their_annotated_types(executor_harness: ExecutorHarness) -> None:
    def age(since: datetime, step: timedelta = timedelta(0)) -> str:
        return f"{type(since).__name__} {type(step).__name__}"

    ending = await executor_harness.run(age, "2026-03-01T00:00:00Z", kwargs={"step": "PT5M"})
    assert ending.result == "datetime timedelta"


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_snooze_and_discard_are_answers_and_not_failures(executor_harness: ExecutorHarness, colour: str) -> None:
    def later() -> Snooze:
        return Snooze("30s")

    async def gone() -> Discard:
        return Discard("the customer left")

    if colour == "async":
        ending = await executor_harness.run(gone)
        assert (ending.outcome, ending.discard) == (Outcome.OK, "the customer left")
    else:
        ending = await executor_harness.run(later)
        assert (ending.outcome, ending.snooze) == (Outcome.OK, timedelta(seconds=30))


@pytest.mark.parametrize(
    ("result", "says"),
    [("x" * 5000, "5,002 bytes"), ({1, 2}, "set"), (object(), "object"), ({"a": float("nan")}, "nan")],
)
async def test_a_result_that_cannot_be_stored_fails_the_attempt(
    executor_harness: ExecutorHarness, result: Any, says: str
) -> None:
    async def work() -> Any:
        return result

    ending = await executor_harness.run(work)
    assert ending.outcome is Outcome.FAILED
    assert executor_harness.error(ending)["type"] == "ResultNotStorable"
    assert "ResultNotStorable" in executor_harness.error(ending)["lineage"]
    assert says in executor_harness.error(ending)["message"]


async def test_a_coroutine_returned_by_a_plain_function_is_explained(executor_harness: ExecutorHarness) -> None:
    async def inner() -> None: ...

    def work() -> Any:
        return inner()

    assert "async def" in executor_harness.error(await executor_harness.run(work))["message"]


# --- failing ----------------------------------------------------------------------------------------------


class TestPaymentError(ConnectionError):
    __test__ = False


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_a_failure_says_what_where_and_of_which_kind(executor_harness: ExecutorHarness, colour: str) -> None:
    def sync_work() -> None:
        raise TestPaymentError("the card was refused")

    async def async_work() -> None:
        sync_work()

    ending = await executor_harness.run(async_work if colour == "async" else sync_work)
    error = executor_harness.error(ending)
    assert ending.outcome is Outcome.FAILED
    assert error["type"].endswith("test_executor.TestPaymentError")
    assert error["message"] == "the card was refused"
    assert {"TestPaymentError", "ConnectionError", "OSError", "Exception"} <= set(error["lineage"])
    assert error["type"] in error["lineage"]
    assert "raise TestPaymentError" in error["traceback"]
    assert "bellringer/worker" not in error["traceback"].replace("tests/integration/worker", "")


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_what_would_end_a_program_only_fails_the_attempt(
    executor_harness: ExecutorHarness, colour: str, kind: type[BaseException]
) -> None:
    async def async_work() -> None:
        raise kind

    def sync_work() -> None:
        raise kind

    ending = await executor_harness.run(async_work if colour == "async" else sync_work)
    assert ending.outcome is Outcome.FAILED
    assert kind.__name__ in executor_harness.error(ending)["lineage"]


async def test_a_group_is_of_the_kinds_that_all_its_members_are(executor_harness: ExecutorHarness) -> None:
    async def same() -> None:
        raise ExceptionGroup("two", [KeyError("a"), ExceptionGroup("inner", [IndexError("b")])])

    lineage = executor_harness.error(await executor_harness.run(same))["lineage"]
    assert {"ExceptionGroup", "LookupError"} <= set(lineage)
    assert "KeyError" not in lineage


class Hostile(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


class Secretive(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in ("__qualname__", "__name__"):
            raise RuntimeError("no")
        return super().__getattribute__(name)


class Nameless(Exception, metaclass=Secretive):
    pass


@pytest.mark.parametrize(
    "error",
    [
        Hostile(),
        ValueError("nul \0 and surrogate \ud800"),
        ValueError("é" * 1_000_000),
        type("Evil", (Exception,), {"__module__": None, "__qualname__": "Ev\0il\ud800"})("x"),
        ExceptionGroup("g", [Hostile()]),
        Nameless("x"),
    ],
    ids=["mute", "nul", "long", "name", "group", "nameless"],
)
async def test_no_exception_is_too_hostile_to_be_stored(executor_harness: ExecutorHarness, error: Exception) -> None:
    async def work() -> None:
        raise error

    told = executor_harness.error(await executor_harness.run(work))
    assert len(told["message"].encode()) <= 4096
    assert len(told["traceback"].encode()) <= 16 * 1024
    assert "\\u0000" not in json.dumps(told)


async def test_a_long_traceback_keeps_its_head_and_its_tail(executor_harness: ExecutorHarness) -> None:
    def deep(n: int) -> None:
        if n:
            other(n - 1)
        raise ValueError("at the bottom")

    def other(n: int) -> None:
        deep(n)

    told = executor_harness.error(await executor_harness.run(deep, 200))
    assert told["traceback"].startswith("Traceback")
    assert "left out" in told["traceback"]
    assert told["traceback"].endswith("ValueError: at the bottom\n")


async def test_wrong_arguments_fail_the_attempt_by_their_name(executor_harness: ExecutorHarness) -> None:
    async def work(days: int) -> None: ...

    error = executor_harness.error(await executor_harness.run(work, "many"))
    assert error["type"] == "InvalidInput"
    assert {"InvalidInput", "ValueError"} <= set(error["lineage"])
    assert "'days'" in error["message"]


async def test_an_unknown_task_fails_with_a_suggestion(executor_harness: ExecutorHarness) -> None:
    async def work() -> None: ...

    known = executor_harness.work(work)
    unknown = Work(
        key=known.key, attempt=1, spent=1, task=known.task + "x", spec=known.spec, claimed_at=known.claimed_at
    )
    error = executor_harness.error(await executor_harness.executor.execute(unknown))
    assert error["type"] == "UnknownTask"
    assert f"did you mean {known.task}" in error["message"]


# --- many -------------------------------------------------------------------------------------------------


async def test_many_attempts_share_few_threads(executor_harness: ExecutorHarness) -> None:
    def double(n: int) -> int:
        return 2 * n

    async def triple(n: int) -> int:
        await asyncio.sleep(0)
        return 3 * n

    works = [executor_harness.work(double, n) for n in range(200)] + [
        executor_harness.work(triple, n) for n in range(200)
    ]
    endings = await asyncio.gather(*map(executor_harness.executor.execute, works))
    assert [e.result for e in endings] == [2 * n for n in range(200)] + [3 * n for n in range(200)]
