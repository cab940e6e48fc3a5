"""The test engine: time that a test moves, and work that it drains, by the real steps on a real database."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bellringer import App, Conflict, Context, Discard, InvalidInput, Retry, Snooze, at, cron, delay, every
from bellringer.core.runs import State
from bellringer.testing import Engine, TestEngine

Testing = Callable[..., TestEngine]

app = App()
seen: list[Any] = []


@app.task(
    pool="io",
    timeout="10m",
    heartbeat="30s",
    priority=3,
    tags=["billing"],
    retry=Retry(5, base="10s", cap="15m", never_on=(ValueError,)),
)
async def charge(ctx: Context, invoice_id: int) -> dict[str, Any]:
    ctx.log.info("charging", attempt=ctx.attempt, due=ctx.scheduled_for, late=ctx.lateness)
    await ctx.progress(1, 1, note="charged")
    return {"receipt": invoice_id, "attempt": ctx.attempt}


@app.schedule(cron("30 2 * * *", tz="Europe/Paris"), misfire="fire_once", tags=["nightly"])
@app.task
def cleanup(days: int = 30) -> int:
    return days


@app.task(retry=Retry(delays=["30s", "2m", "1h"], jitter=0))
def flaky(ctx: Context, fails: int) -> int:
    seen.append((ctx.attempt, ctx.idempotency_key))
    if ctx.attempt <= fails:
        raise RuntimeError(f"attempt {ctx.attempt} failed")
    return ctx.attempt


@pytest.fixture(autouse=True)
def _forget() -> None:
    seen.clear()


def test_nightly(bellringer_test: Testing) -> None:
    t = bellringer_test(app, at="2026-03-28T12:00:00+01:00")
    t.advance("3d", drain=True)

    fires = t.fires("cleanup")
    assert [fire.outcome for fire in fires] == ["fired"] * 3
    assert [fire.state for fire in fires] == [State.SUCCEEDED] * 3
    assert [fire.scheduled_for for fire in fires] == [
        datetime(2026, 3, 29, 1, 0, tzinfo=UTC),  # 02:30 does not exist that night; 03:00 summer time does
        datetime(2026, 3, 30, 0, 30, tzinfo=UTC),
        datetime(2026, 3, 31, 0, 30, tzinfo=UTC),
    ]
    charge.send(7)
    t.assert_enqueued(charge, invoice_id=7, within="1m")
    assert t.perform(charge, 7, attempt=3).ok


def test_every_occurrence_fires_at_its_own_time(bellringer_test: Testing) -> None:
    t = bellringer_test(app, at="2026-03-01T12:00:00Z").advance("2d")

    assert [fire.run.fired_at for fire in t.fires("cleanup") if fire.run] == [
        datetime(2026, 3, 2, 1, 30, tzinfo=UTC),
        datetime(2026, 3, 3, 1, 30, tzinfo=UTC),
    ]
    assert t.clock.now() == datetime(2026, 3, 3, 12, tzinfo=UTC)


def test_a_year_takes_seconds(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    began = time.monotonic()
    t.advance("365d").drain()

    assert len(t.fires("cleanup")) == 365
    assert time.monotonic() - began < 20


def test_an_outage_is_a_misfire_and_leaves_a_gap(bellringer_test: Testing) -> None:
    t = bellringer_test(app, at="2026-03-01T12:00:00Z")
    t.outage("3d").advance("1m").drain()

    assert [(f.scheduled_for.day, f.outcome, f.reason, f.count) for f in t.fires(cleanup)] == [
        (2, "missed", "misfire", 2),
        (4, "fired", "", 1),
    ]


def test_a_history_with_an_outage_and_a_crash_can_be_verified(bellringer_test: Testing) -> None:
    t = bellringer_test(app, at="2026-03-01T12:00:00Z")
    t.crash_worker().advance("2d", drain=True).outage("3d").advance("1d", drain=True)

    summary = t.verify()
    assert (summary.expected, summary.created, summary.gaps) == (6, 4, 2)


def test_what_falls_due_right_now_is_verified_too(bellringer_test: Testing) -> None:
    t = bellringer_test(app, at="2026-03-01T12:00:00Z").advance("13h30m")

    assert (t.verify().expected, t.clock.now()) == (1, datetime(2026, 3, 2, 1, 30, tzinfo=UTC))


def test_verify_shows_what_no_one_has_accounted_for(bellringer_test: Testing) -> None:
    t = bellringer_test(app, at="2026-03-01T12:00:00Z").outage("1d")

    with pytest.raises(AssertionError, match=r"missing 2026-03-02T01:30:00\+00:00 .*cleanup: neither a run nor a gap"):
        t.verify()
    t.advance("0s").verify()


def test_what_was_missed_is_caught_up_behind_live_work(bellringer_test: Testing) -> None:
    diligent = App()

    @diligent.schedule(every("1h"), misfire="fire_all", overlap="queue")
    @diligent.task
    def count() -> None:
        pass

    t = bellringer_test(diligent).outage("5h10m").advance("1h", drain=True)

    assert [run.cause for run in t.runs(count)] == ["catchup"] * 4 + ["schedule"] * 2
    assert t.verify().gaps == 0


def test_retries_wait_for_their_backoff(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    run = flaky.send(3)

    t.drain()
    assert run.state() is State.RETRYING
    t.advance("30s").drain()  # a near retry waits in the queue
    t.advance("2m").drain()  # a far one among the timers
    assert [attempt for attempt, _ in seen] == [1, 2, 3]
    t.advance("59m").drain()
    assert run.state() is State.RETRYING
    t.advance("1m").drain()

    assert run.result() == 4
    assert len({key for _, key in seen}) == 1
    assert [a.outcome for a in t.attempts(run.get())] == ["failed", "failed", "failed", "ok"]


def test_drain_can_go_through_the_retries(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    run = flaky.send(3)
    began = t.clock.now()
    t.drain(with_retries=True)

    assert run.result() == 4
    assert t.clock.now() - began == timedelta(hours=1, minutes=2, seconds=30)


def test_a_run_that_gives_up_is_a_dead_letter(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    run = flaky.send(99)
    t.drain(with_retries=True)

    assert run.state() is State.DEAD
    (letter,) = t.dead()
    assert (letter.key, letter.attempt, letter.reason) == (run.key, 4, "no retries left")
    assert letter.error["type"] == "RuntimeError"


def test_an_error_that_is_never_retried_ends_the_run(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    t.fail_next(charge, ValueError("no such customer"))
    run = charge.send(7)
    t.drain()

    assert run.state() is State.DEAD
    assert t.dead()[0].reason == "ValueError is never retried"


def test_fail_next_fails_one_attempt(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    t.fail_next(charge, OSError("the network is down"))
    run = charge.send(7)
    t.drain().advance("15m").drain()

    assert run.result()["attempt"] == 2
    assert [a.outcome for a in t.attempts(run.get())] == ["failed", "ok"]


@pytest.mark.parametrize(("when", "calls"), [("before", 1), ("after", 2)])
def test_what_a_crashed_worker_held_is_tried_again(bellringer_test: Testing, when: Any, calls: int) -> None:
    t = bellringer_test(app).crash_worker(when)
    t.drain()  # with nothing to lose it lives on
    run = flaky.send(0)
    t.drain()

    assert run.result() == 2
    assert len(seen) == calls
    assert [a.outcome for a in t.attempts(run.get())] == ["lost", "ok"]


def test_a_lost_attempt_of_at_most_once_is_never_repeated(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    run = flaky.options(delivery="at_most_once").send(0)
    t.crash_worker().drain()

    assert (run.state(), seen) == (State.DEAD, [])


def test_a_snooze_is_not_a_failure(bellringer_test: Testing) -> None:
    sleepy = App()

    @sleepy.task(retry=1)
    def wait(ctx: Context) -> Snooze | int:
        return Snooze("10m") if ctx.attempt < 3 else ctx.attempt

    t = bellringer_test(sleepy)
    run = wait.send()
    t.drain().advance("5m").drain()
    assert run.state() is State.RETRYING
    t.advance("15m", drain=True)

    assert run.result() == 3
    assert t.perform(wait).ending.snooze == timedelta(minutes=10)
    assert not t.perform(wait).ok


def test_a_discard_ends_as_cancelled_with_its_reason(bellringer_test: Testing) -> None:
    picky = App()

    @picky.task
    async def offer() -> Discard:
        return Discard("sold out")

    t = bellringer_test(picky)
    run = offer.send()
    t.drain()

    assert run.state() is State.CANCELLED
    assert run.get().error == {"reason": "sold out"}


def test_a_one_shot_fires_once(bellringer_test: Testing) -> None:
    once = App()

    @once.schedule(at("2026-01-06T08:00:00Z"))
    @once.task
    def open_shop() -> None: ...

    t = bellringer_test(once)
    t.advance("10d").drain()

    assert [f.scheduled_for for f in t.fires(open_shop)] == [datetime(2026, 1, 6, 8, tzinfo=UTC)]


def test_a_fixed_delay_counts_from_the_end_of_each_run(bellringer_test: Testing) -> None:
    poller = App()

    @poller.schedule(delay("10m"))
    @poller.task
    def poll() -> None: ...

    t = bellringer_test(poller)
    t.advance("1h")
    assert len(t.fires(poll)) == 1  # nobody worked, so nothing ended
    t.advance("1h", drain=True)

    times = [f.scheduled_for for f in t.fires(poll)]
    assert len(times) == 7
    assert times[1] == datetime(2026, 1, 5, 13, 10, tzinfo=UTC)


def test_an_interval_fires_on_its_marks(bellringer_test: Testing) -> None:
    steady = App()

    @steady.schedule(every("20m", offset="5m"), starts_at="2026-01-05T12:30:00Z", ends_at="2026-01-05T13:30:00Z")
    def tick() -> None: ...

    t = bellringer_test(steady).advance("3h")

    assert [f"{f.scheduled_for:%H:%M}" for f in t.fires(tick)] == ["12:45", "13:05", "13:25"]


def test_a_run_can_be_cancelled_while_it_runs(bellringer_test: Testing) -> None:
    stubborn = App()

    @stubborn.task
    def work(ctx: Context) -> None:
        stubborn.runs[ctx.run_id].cancel("enough")
        while True:
            time.sleep(0.01)
            ctx.check()

    t = bellringer_test(stubborn)
    run = work.send()
    t.drain()

    assert run.state() is State.CANCELLED


def test_perform_gives_the_context_of_a_worker(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    done = t.perform(charge, invoice_id=7, attempt=3)

    assert (done.ok, done.result) == (True, {"receipt": 7, "attempt": 3})
    assert done.progress == {"done": 1, "total": 1, "note": "charged"}
    assert [(line.level, line.message) for line in done.logs] == [("info", "charging")]
    failed = t.perform(flaky, 1)
    assert failed.error is not None
    assert (failed.ok, failed.error["message"]) == (False, "attempt 1 failed")
    assert t.enqueued() == []


def test_logs_of_handlers_are_kept(bellringer_test: Testing, bellringer_dsn: str) -> None:
    t = bellringer_test(app)
    run = charge.send(7)
    t.drain()
    kept = app.connection.run(
        lambda service: service._store.pool.fetch("select message from logs where job_id = $1", run.key.job_id),
        instead="",
    )

    assert [row["message"] for row in kept] == ["charging"]


def test_a_task_that_asks_for_a_process_runs_here(bellringer_test: Testing) -> None:
    heavy = App()

    @heavy.task(isolation="process")
    def crunch(n: int) -> int:
        return n * n

    t = bellringer_test(heavy)
    run = crunch.send(12)
    t.drain()

    assert run.result() == 144


def test_assertions_match_arguments_however_given(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    cleanup.options(delay="10m").send()
    cleanup.send(7)

    assert t.assert_enqueued(cleanup, days=7).args == [7]
    t.assert_enqueued(cleanup, days=30)  # left out, so its default
    t.assert_enqueued("cleanup", within="10m", days=30)
    t.refute_enqueued(cleanup, days=30, within="9m")
    t.refute_enqueued(cleanup, days=8)
    t.refute_enqueued(charge)
    with pytest.raises(AssertionError, match=r"no .*cleanup\(days=8\) is enqueued; waiting are \n.*args=\[7\]"):
        t.assert_enqueued(cleanup, days=8)
    with pytest.raises(AssertionError, match=r"cleanup\(\) within 1m is enqueued"):
        t.refute_enqueued(cleanup, within="1m")
    with pytest.raises(InvalidInput, match=r"has no argument 'day'; did you mean 'days'\?"):
        t.refute_enqueued(cleanup, day=7)


def test_work_without_end_is_reported(bellringer_test: Testing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bellringer.testing.engine.MAX_DRAIN_ATTEMPTS", 20)
    endless = App()

    @endless.task
    def again() -> None:
        again.send()

    t = bellringer_test(endless)
    again.send()
    with pytest.raises(Conflict, match="the queue is not empty after 20 attempts; a handler sends itself"):
        t.drain()


def test_time_never_goes_back(bellringer_test: Testing) -> None:
    t = bellringer_test(app)

    with pytest.raises(InvalidInput, match="is before the test's now"):
        t.clock.set("2020-01-01T00:00:00Z")


def test_another_tenant_is_made_for_the_test(bellringer_test: Testing) -> None:
    other = App(tenant="acme")

    @other.task
    def who(ctx: Context) -> str:
        return ctx.tenant

    t = bellringer_test(other)
    run = who.send()
    t.drain()

    assert run.result() == "acme"


def test_the_app_goes_back_to_its_own_database(bellringer_dsn: str) -> None:
    mine = App("postgresql://mine/x")
    with TestEngine(mine, bellringer_dsn):
        assert mine.dsn == bellringer_dsn

    assert mine.dsn == "postgresql://mine/x"


async def test_the_async_engine_serves_async_tests(bellringer_dsn: str) -> None:
    async with Engine(app, bellringer_dsn, at="2026-03-28T12:00:00+01:00") as t:
        await (await t.advance("3d")).drain()
        assert len(await t.fires(cleanup)) == 3
        with pytest.raises(Conflict, match="use `async with Engine"):
            TestEngine(app, bellringer_dsn)
