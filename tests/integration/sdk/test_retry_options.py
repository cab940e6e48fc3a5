"""Retry policies, deadlines, automatic pauses and state between runs, as an app declares them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from bellringer import App, Context, InvalidInput, Retry, every
from bellringer.core.runs import State
from bellringer.testing import TestEngine

Testing = Callable[..., TestEngine]
MINUTE = timedelta(minutes=1)


def test_task_options_are_the_defaults_of_jobs_and_sends(bellringer_dsn: str) -> None:
    with App(bellringer_dsn) as app:

        @app.schedule(every("1h"), pause_after_failures=3)
        @app.task(name="report", retry=Retry(only_on=[OSError], max_elapsed="1h"), expires_in="1m", keep_result=True)
        def report(ctx: Context) -> None: ...

        assert app.declare() == 1
        job = app.jobs["report"].get()
        assert (job.expires_in, job.pause_after_failures, job.spec.keep_result) == (MINUTE, 3, True)
        assert Retry.parse(job.spec.retry) == Retry(only_on=["OSError"], max_elapsed="1h")
        assert app.declare() == 0
        assert report.message().kind.expires_in == MINUTE
        assert report.options(expires_in="5m").message().kind.expires_in == 5 * MINUTE
        report.options(expires_in="9m", pause_after_failures=4).schedule(every("1h"), id="report")
        job = app.jobs["report"].get()
        assert (job.expires_in, job.pause_after_failures) == (9 * MINUTE, 4)


def test_a_schedule_can_have_its_own_deadline(bellringer_dsn: str) -> None:
    with App(bellringer_dsn) as app:
        app.schedule(every("1h"), name="own", expires_in="2m")(app.task(name="t", expires_in="1m")(lambda: None))
        app.declare()
        assert app.jobs["own"].get().expires_in == 2 * MINUTE


def test_wrong_options_are_refused_at_import() -> None:
    app = App()
    with pytest.raises(InvalidInput, match="keep_result requires a handler that takes a context"):
        app.task(name="s", keep_result=True)(lambda: None)
    with pytest.raises(InvalidInput, match="pause_after_failures must be a whole number from 1"):
        app.schedule(every("1h"), pause_after_failures=0)(app.task(name="t")(lambda: None))
    with pytest.raises(InvalidInput, match="pause_after_failures is an option of a job"):
        app.task(name="u")(lambda: None).options(pause_after_failures=1).message()


def test_a_day_in_the_life_of_a_fragile_job(bellringer_test: Testing) -> None:
    app = App()
    fails = {2, 4, 5, 6}
    seen: list[Any] = []

    @app.schedule(every("1h"), pause_after_failures=3, name="fragile")
    @app.task(name="fragile", retry=Retry(1), keep_result=True)
    def fragile(ctx: Context) -> int:
        seen.append(ctx.last_result)
        if len(seen) in fails:
            raise ValueError("no")
        return len(seen)

    t = bellringer_test(app, at="2026-03-28T12:00:00Z")
    t.advance("24h", drain=True)
    assert seen == [None, 1, 1, 3, 3, 3]
    assert app.jobs["fragile"].get().paused_reason == "the last 3 runs died"


def test_work_that_nobody_does_in_time_is_skipped(bellringer_test: Testing) -> None:
    app = App()

    @app.schedule(every("1h"), name="urgent", overlap="allow")
    @app.task(name="urgent", expires_in="10m")
    def urgent() -> None: ...

    t = bellringer_test(app, at="2026-03-28T12:00:00Z")
    t.advance("90m")
    assert [fire.state for fire in t.fires("urgent")] == [State.SKIPPED]
    t.advance("35m")
    t.drain()
    assert [fire.state for fire in t.fires("urgent")] == [State.SKIPPED, State.SUCCEEDED]


def test_an_attempt_resumes_where_the_last_one_stopped(bellringer_test: Testing) -> None:
    app = App()
    pages: list[int] = []

    @app.task(name="export", retry=Retry(delays=["10s", "10m"], jitter=0))
    def export(ctx: Context) -> int:
        for page in range(ctx.resume_from or 0, 6):
            pages.append(page)
            ctx.progress(page + 1, 6, details=page + 1)
            if page in (1, 3):
                raise ConnectionError("lost")
        return len(pages)

    t = bellringer_test(app, at="2026-03-28T12:00:00Z")
    run = export.send()
    t.advance("1h", drain=True)
    assert run.result() == 6
    assert pages == [0, 1, 2, 3, 4, 5]
