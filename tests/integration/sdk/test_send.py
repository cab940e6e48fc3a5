"""Sending tasks and following their runs, on a real database."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bellringer import App, ConfigError, Conflict, Context, InvalidInput, NotFound, RunFailed, at
from bellringer.core.runs import State
from bellringer.testing import Engine, TestEngine

Testing = Callable[..., TestEngine]

app = App()


@app.task(retry=1)
async def charge(ctx: Context, invoice_id: int, note: str = "") -> dict[str, Any]:
    if invoice_id < 0:
        raise ValueError(f"no such invoice {invoice_id}")
    await ctx.progress(1, 1)
    return {"receipt": invoice_id, "note": note}


@app.task
def parent(n: int) -> str:
    return charge.send(n).id


def test_a_sent_task_is_run_by_a_worker(bellringer_test: Testing) -> None:
    t = bellringer_test(app)

    run = charge.send(7, note="thanks")
    assert (run.created, run.state()) == (True, State.QUEUED)

    t.drain()
    assert run.state() is State.SUCCEEDED
    assert run.result(timeout=1) == {"receipt": 7, "note": "thanks"}
    assert run.wait() is State.SUCCEEDED


def test_a_failed_run_gives_its_remote_traceback(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    run = charge.send(-1)
    t.drain()

    with pytest.raises(RunFailed, match="ended as dead: ValueError: no such invoice -1") as caught:
        run.result(timeout=1)
    assert caught.value.state == "dead"
    assert 'raise ValueError(f"no such invoice {invoice_id}")' in str(caught.value.error["traceback"])


def test_waiting_for_a_result_has_an_end(bellringer_test: Testing) -> None:
    bellringer_test(app)
    run = charge.send(7)

    with pytest.raises(TimeoutError, match=r"has not ended after 0\.05 s"):
        run.result(timeout="50ms")


def test_a_second_send_with_the_same_key_answers_the_first_run(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    first = charge.options(key="charge-7").send(7)
    second = charge.options(key="charge-7").send(7)

    assert (first.created, second.created) == (True, False)
    assert first.id == second.id
    assert len(t.enqueued(charge)) == 1

    t.advance("25h")
    assert charge.options(key="charge-7").send(7).created


def test_a_delayed_send_waits_for_its_time(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    run = charge.options(delay="5m").send(7)

    assert run.key.scheduled_for == t.clock.now() + timedelta(minutes=5)
    t.advance("4m").drain()
    assert run.state() is State.QUEUED
    t.advance("1m").drain()
    assert run.state() is State.SUCCEEDED


@pytest.mark.parametrize(
    "moment", [datetime(2026, 2, 1, tzinfo=UTC), "2026-02-01T00:00:00Z", at("2026-02-01T00:00:00Z")]
)
def test_a_send_can_name_its_instant(bellringer_test: Testing, moment: Any) -> None:
    bellringer_test(app)

    assert charge.options(at=moment).send(7).key.scheduled_for == datetime(2026, 2, 1, tzinfo=UTC)


def test_options_hold_for_one_send(bellringer_test: Testing) -> None:
    bellringer_test(app)
    run = charge.options(priority=9, pool="vip", timeout="3s", retry=2, delivery="at_most_once").send(7)

    stored = run.get()
    assert stored.spec is not None
    assert (stored.priority, stored.pool, stored.spec.timeout) == (9, "vip", 3.0)
    assert (stored.spec.retry["attempts"], stored.spec.delivery) == (2, "at_most_once")
    assert (charge.task.priority, charge.task.pool) == (5, None)


def test_a_waiting_run_is_cancelled_at_once(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    run = charge.send(7)

    assert run.cancel(reason="typo") is State.CANCELLED
    assert run.cancel() is State.CANCELLED
    t.drain()
    with pytest.raises(RunFailed, match="ended as cancelled: typo"):
        run.result()


def test_a_run_that_has_ended_cannot_be_cancelled(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    run = charge.send(7)
    t.drain()

    with pytest.raises(Conflict, match="has ended as succeeded already"):
        run.cancel()


def test_a_run_is_found_by_its_id(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    run = charge.send(7)
    t.drain()

    assert app.runs[run.id].result()["receipt"] == 7
    with pytest.raises(NotFound):
        app.runs["run_0"]


def test_a_plain_handler_may_send(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    run = parent.send(7)
    t.drain()

    assert app.runs[run.result()].result() == {"receipt": 7, "note": ""}


def test_many_threads_may_send_at_once(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    threads = [threading.Thread(target=charge.send, args=(n,)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(entry.args[0] for entry in t.enqueued(charge)) == list(range(20))


async def test_every_act_has_an_async_twin(bellringer_dsn: str) -> None:
    async with Engine(app, bellringer_dsn) as t:
        run, other = await asyncio.gather(charge.asend(7), charge.options(priority=1).asend(8))
        await other.acancel("typo")
        await t.drain()

        assert await run.astate() is State.SUCCEEDED
        assert (await run.aget()).result == {"receipt": 7, "note": ""}
        assert await run.aresult(timeout=1) == {"receipt": 7, "note": ""}
        assert await other.await_end(timeout=1) is State.CANCELLED


async def test_a_plain_send_in_a_running_loop_is_refused() -> None:
    with pytest.raises(Conflict, match=r"would stop the running event loop; use `await ….asend\(…\)`"):
        charge.send(7)


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((), {}, "is missing the argument 'invoice_id'"),
        ((7,), {"nota": ""}, r"has no argument 'nota'; did you mean 'note'\?"),
        (("seven",), {}, "got an invalid argument 'invoice_id'"),
        ((7, {1, 2}), {}, "argument 'note' of .* is of type set"),
        ((7, "", 1), {}, "takes at most 2 positional arguments"),
    ],
)
def test_wrong_arguments_are_named_without_a_database(args: Any, kwargs: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        charge.send(*args, **kwargs)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prioroty": 3}, r"options has no option 'prioroty'; did you mean 'priority'\?"),
        ({"priority": 11}, "priority must be a whole number from 0 to 9"),
        ({"delay": "5x"}, "delay '5x' has the unknown unit"),
        ({"at": "tomorrow"}, "at 'tomorrow' is not an RFC 3339 date"),
        ({"delay": "5m", "at": "2026-01-01T00:00:00Z"}, "at and delay are both given"),
        ({"delivery": "once"}, "delivery must be one of"),
    ],
)
def test_wrong_options_are_named_without_a_database(options: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        charge.options(**options)


def test_without_a_database_the_first_use_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.delenv("BELLRINGER_DSN", raising=False)
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError, match="no database is configured; run `bellringer dev`, or set BELLRINGER_DSN"):
        charge.send(7)
