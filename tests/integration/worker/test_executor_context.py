"""What a handler knows of itself, and how it speaks and listens."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from bellringer.core.payload import check_payload
from bellringer.core.runs import Outcome
from bellringer.errors import Cancelled, InvalidInput
from bellringer.worker.context import MAX_LOG_FIELDS, MAX_LOG_LINES_PER_ATTEMPT, Context

if TYPE_CHECKING:
    from tests.integration.worker.conftest import ExecutorHarness


async def test_a_handler_knows_which_attempt_of_what_it_is(executor_harness: ExecutorHarness) -> None:
    async def work(ctx: Context) -> list[Any]:
        return [
            ctx.attempt,
            ctx.token,
            ctx.run_id,
            ctx.idempotency_key,
            ctx.scheduled_for,
            ctx.lateness.total_seconds(),
            ctx.job,
            ctx.tenant,
            ctx.pool,
            ctx.task,
            ctx.cancelled,
            repr(ctx),
        ]

    attempt = executor_harness.work(work)
    run_id = attempt.key.id
    ending = await executor_harness.start(attempt)
    assert ending.result == [
        2,
        2,
        run_id,
        run_id,
        "2026-03-01T11:58:30Z",
        90.0,
        "dunning",
        "acme",
        "io",
        attempt.task,
        False,
        f"<Context of {attempt.task} {run_id}, attempt 2>",
    ]


async def test_lateness_is_never_negative(executor_harness: ExecutorHarness) -> None:
    executor_harness.now -= timedelta(days=1)

    async def work(ctx: Context) -> float:
        return ctx.lateness.total_seconds()

    assert (await executor_harness.run(work)).result == 0.0


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_progress_is_reported_from_either_colour_and_collected_once(
    executor_harness: ExecutorHarness, colour: str
) -> None:
    async def async_work(ctx: Context) -> None:
        await ctx.progress(1, 10)
        await ctx.progress(2.5, 10, "halfway \0 there")

    def sync_work(ctx: Context) -> None:
        ctx.progress(1, 10)
        ctx.progress(2.5, 10, note="halfway \0 there")

    attempt = executor_harness.work(async_work if colour == "async" else sync_work)
    await executor_harness.start(attempt)
    report = {"done": 2.5, "total": 10, "note": "halfway \\x00 there"}
    assert executor_harness.executor.progress() == [(attempt.key, 2, report)]
    assert executor_harness.executor.progress() == []


async def test_details_are_kept_by_later_reports_without_details(executor_harness: ExecutorHarness) -> None:
    def work(ctx: Context) -> None:
        ctx.progress(1, details={"row": 1, "at": ctx.scheduled_for})
        ctx.progress(2)
        raise ValueError("no")

    ending = await executor_harness.run(work)
    assert ending.progress == {"done": 2, "details": {"row": 1, "at": "2026-03-01T11:58:30Z"}}


async def test_details_have_a_limit(executor_harness: ExecutorHarness) -> None:
    def work(ctx: Context) -> None:
        ctx.progress(1, details="x" * 65_000)
        with pytest.raises(InvalidInput, match="details"):
            ctx.progress(2, details="x" * 66_000)
        with pytest.raises(InvalidInput, match="details"):
            ctx.progress(2, details={"set": object()})

    ending = await executor_harness.run(work)
    assert ending.outcome is Outcome.OK
    assert ending.progress is not None
    assert ending.progress["done"] == 1


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_a_handler_is_not_called_after_the_deadline(executor_harness: ExecutorHarness, colour: str) -> None:
    calls: list[int] = []

    async def async_work() -> None:
        calls.append(1)

    def sync_work() -> None:
        calls.append(1)

    deadline = executor_harness.now.timestamp()
    work = async_work if colour == "async" else sync_work
    ending = await executor_harness.run(work, expires_at=deadline)
    assert (ending.expired, ending.started, calls) == (True, False, [])
    assert (await executor_harness.run(work, expires_at=deadline + 0.001)).outcome is Outcome.OK
    assert calls == [1]


async def test_awaiting_progress_lets_others_run(executor_harness: ExecutorHarness) -> None:
    async def work(ctx: Context) -> bool:
        others_ran = asyncio.Event()
        asyncio.get_running_loop().call_soon(others_ran.set)
        for turn in range(1000):
            await ctx.progress(turn)
            if others_ran.is_set():
                break
        return others_ran.is_set()

    assert (await executor_harness.run(work)).result is True


@pytest.mark.parametrize("wrong", [float("nan"), "1", None])
async def test_progress_must_be_a_number(executor_harness: ExecutorHarness, wrong: Any) -> None:
    async def work(ctx: Context) -> None:
        with pytest.raises(InvalidInput):
            ctx.progress(wrong)

    assert (await executor_harness.run(work)).outcome is Outcome.OK


@pytest.mark.parametrize("way", ["check", "heartbeat", "progress"])
async def test_every_safe_point_raises_once_a_cancel_was_asked_for(executor_harness: ExecutorHarness, way: str) -> None:
    ready, go_on = asyncio.Event(), asyncio.Event()
    heard: list[str] = []

    def safe_point(ctx: Context) -> None:
        try:
            ctx.progress(1) if way == "progress" else getattr(ctx, way)()
        except Cancelled as error:
            heard.append(str(error))
            raise

    def work(ctx: Context) -> None:
        loop.call_soon_threadsafe(ready.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()
        safe_point(ctx)

    loop = asyncio.get_running_loop()
    attempt = executor_harness.work(work)
    running = executor_harness.start(attempt)
    await ready.wait()
    assert executor_harness.cancel(attempt, "typo")
    go_on.set()
    assert (await running).outcome is Outcome.CANCELLED
    assert heard == ["typo"]


async def test_log_lines_carry_the_attempt_the_time_and_their_fields(executor_harness: ExecutorHarness) -> None:
    def work(ctx: Context) -> None:
        ctx.log.debug("a")
        ctx.log.info("charging", invoice=7, due=ctx.scheduled_for)
        ctx.log.warning("w", message="also a field")
        try:
            raise ValueError("oops")
        except ValueError:
            ctx.log.exception("it broke")

    attempt = executor_harness.work(work)
    await executor_harness.start(attempt)
    assert [(line.level, line.message) for line in executor_harness.lines] == [
        ("debug", "a"),
        ("info", "charging"),
        ("warning", "w"),
        ("error", "it broke"),
    ]
    line = executor_harness.lines[1]
    assert (line.key, line.attempt, line.at) == (attempt.key, 2, executor_harness.now)
    assert line.fields == {"invoice": 7, "due": "2026-03-01T11:58:30Z"}
    assert executor_harness.lines[3].fields is not None
    assert "ValueError: oops" in executor_harness.lines[3].fields["traceback"]


class Shy:
    def __repr__(self) -> str:
        raise RuntimeError("no")


async def test_a_log_line_never_fails_and_always_can_be_stored(executor_harness: ExecutorHarness) -> None:
    long = "x" * 20_000 + "\0\ud800"

    def work(ctx: Context) -> None:
        ctx.log.info(long, a={1, 2}, b=Shy(), c=float("nan"), d="y" * 100_000)
        ctx.log.info(Shy(), **{"k\0": object()})  # type: ignore[arg-type]
        ctx.log.info("wide", **{f"f{n}": n for n in range(100)})

    assert (await executor_harness.run(work)).outcome is Outcome.OK
    for line in executor_harness.lines:
        assert len(line.message.encode()) <= 8 * 1024
        check_payload([line.message, line.fields])
    assert executor_harness.lines[0].fields is not None
    assert executor_harness.lines[0].fields["a"] == "{1, 2}"
    assert len(executor_harness.lines[2].fields or ()) == MAX_LOG_FIELDS + 1


async def test_lines_beyond_the_limit_are_dropped_with_a_word(executor_harness: ExecutorHarness) -> None:
    def work(ctx: Context) -> None:
        for n in range(MAX_LOG_LINES_PER_ATTEMPT + 50):
            ctx.log.info(str(n))

    await executor_harness.run(work)
    assert len(executor_harness.lines) == MAX_LOG_LINES_PER_ATTEMPT + 1
    assert "further lines dropped" in executor_harness.lines[-1].message
