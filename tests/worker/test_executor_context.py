"""What a handler knows of itself, and how it speaks and listens."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from bellringer.errors import Cancelled, InvalidInput
from bellringer.payload import check_payload
from bellringer.runs import Outcome
from bellringer.worker.context import FIELDS_LIMIT, LINES_LIMIT, Context

if TYPE_CHECKING:
    from tests.worker.conftest import Bench


async def test_a_handler_knows_which_attempt_of_what_it_is(bench: Bench) -> None:
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

    attempt = bench.work(work)
    run_id = attempt.key.id
    ending = await bench.start(attempt)
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


async def test_lateness_is_never_negative(bench: Bench) -> None:
    bench.now -= timedelta(days=1)

    async def work(ctx: Context) -> float:
        return ctx.lateness.total_seconds()

    assert (await bench.run(work)).result == 0.0


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_progress_is_reported_from_either_colour_and_collected_once(bench: Bench, colour: str) -> None:
    async def async_work(ctx: Context) -> None:
        await ctx.progress(1, 10)
        await ctx.progress(2.5, 10, "halfway \0 there")

    def sync_work(ctx: Context) -> None:
        ctx.progress(1, 10)
        ctx.progress(2.5, 10, note="halfway \0 there")

    attempt = bench.work(async_work if colour == "async" else sync_work)
    await bench.start(attempt)
    report = {"done": 2.5, "total": 10, "note": "halfway \\x00 there"}
    assert bench.executor.progress() == [(attempt.key, 2, report)]
    assert bench.executor.progress() == []


async def test_awaiting_progress_lets_others_run(bench: Bench) -> None:
    asked = asyncio.Event()

    async def work(ctx: Context) -> int:
        turns = 0
        while not asked.is_set():
            await ctx.progress(turns)
            turns += 1
        return turns

    running = asyncio.create_task(bench.run(work))
    await asyncio.sleep(0.01)
    asked.set()
    assert (await running).result > 1


@pytest.mark.parametrize("wrong", [float("nan"), "1", None])
async def test_progress_must_be_a_number(bench: Bench, wrong: Any) -> None:
    async def work(ctx: Context) -> None:
        with pytest.raises(InvalidInput):
            ctx.progress(wrong)

    assert (await bench.run(work)).outcome is Outcome.OK


@pytest.mark.parametrize("way", ["check", "heartbeat", "progress"])
async def test_every_safe_point_raises_once_a_cancel_was_asked_for(bench: Bench, way: str) -> None:
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
    attempt = bench.work(work)
    running = bench.start(attempt)
    await ready.wait()
    assert bench.cancel(attempt, "typo")
    go_on.set()
    assert (await running).outcome is Outcome.CANCELLED
    assert heard == ["typo"]


async def test_log_lines_carry_the_attempt_the_time_and_their_fields(bench: Bench) -> None:
    def work(ctx: Context) -> None:
        ctx.log.debug("a")
        ctx.log.info("charging", invoice=7, due=ctx.scheduled_for)
        ctx.log.warning("w", message="also a field")
        try:
            raise ValueError("oops")
        except ValueError:
            ctx.log.exception("it broke")

    attempt = bench.work(work)
    await bench.start(attempt)
    assert [(line.level, line.message) for line in bench.lines] == [
        ("debug", "a"),
        ("info", "charging"),
        ("warning", "w"),
        ("error", "it broke"),
    ]
    line = bench.lines[1]
    assert (line.key, line.attempt, line.at) == (attempt.key, 2, bench.now)
    assert line.fields == {"invoice": 7, "due": "2026-03-01T11:58:30Z"}
    assert bench.lines[3].fields is not None
    assert "ValueError: oops" in bench.lines[3].fields["traceback"]


class Shy:
    def __repr__(self) -> str:
        raise RuntimeError("no")


async def test_a_log_line_never_fails_and_always_can_be_stored(bench: Bench) -> None:
    long = "x" * 20_000 + "\0\ud800"

    def work(ctx: Context) -> None:
        ctx.log.info(long, a={1, 2}, b=Shy(), c=float("nan"), d="y" * 100_000)
        ctx.log.info(Shy(), **{"k\0": object()})  # type: ignore[arg-type]
        ctx.log.info("wide", **{f"f{n}": n for n in range(100)})

    assert (await bench.run(work)).outcome is Outcome.OK
    for line in bench.lines:
        assert len(line.message.encode()) <= 8 * 1024
        check_payload([line.message, line.fields])
    assert bench.lines[0].fields is not None
    assert bench.lines[0].fields["a"] == "{1, 2}"
    assert len(bench.lines[2].fields or ()) == FIELDS_LIMIT + 1


async def test_lines_beyond_the_limit_are_dropped_with_a_word(bench: Bench) -> None:
    def work(ctx: Context) -> None:
        for n in range(LINES_LIMIT + 50):
            ctx.log.info(str(n))

    await bench.run(work)
    assert len(bench.lines) == LINES_LIMIT + 1
    assert "further lines dropped" in bench.lines[-1].message
