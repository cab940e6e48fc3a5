"""Jobs from code and by hand: upsert, pause, resume, trigger, delete."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from bellringer import App, Conflict, InvalidInput, NotFound, at, cron, every
from bellringer.core.runs import State
from bellringer.testing import Engine, TestEngine

Testing = Callable[..., TestEngine]

app = App(name="shop")


@app.schedule(cron("30 2 * * *", tz="Europe/Paris"), tags=["nightly"])
@app.task
def cleanup(days: int = 30) -> int:
    return days


@app.schedule(at("2020-01-01T00:00:00Z"), name="long ago")
@app.task
def remind(who: str = "me") -> str:
    return who


def test_declared_jobs_are_registered_once(bellringer_test: Testing) -> None:
    bellringer_test(app)

    job = app.jobs["cleanup"].get()
    assert job.name == cleanup.name
    assert (job.owner, job.tags, job.revision) == ("code", ("nightly",), 1)
    assert app.declare() == 0
    assert app.jobs[cleanup.name].get().revision == 1


def test_a_declared_one_shot_whose_time_is_over_is_left_alone(bellringer_test: Testing) -> None:
    bellringer_test(app)

    assert [job.name for job in app.jobs.list()] == [cleanup.name]


def test_a_named_job_is_made_and_then_changed(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    moment = t.clock.now() + timedelta(hours=1)

    job = remind.schedule(at(moment), "her", id="dun-7")
    assert job.get().spec.args == ["her"]
    remind.options(priority=9).schedule(at(moment + timedelta(hours=1)), who="him", id="dun-7")
    assert (job.get().revision, job.get().priority, job.get().once_at) == (2, 9, moment + timedelta(hours=1))

    t.advance("3h").drain()
    (run,) = t.runs("dun-7")
    assert (run.key.scheduled_for, run.state) == (moment + timedelta(hours=1), State.SUCCEEDED)
    assert run.result == "him"


def test_a_paused_job_does_not_fire_until_it_is_resumed(bellringer_test: Testing) -> None:
    t = bellringer_test(app, at="2026-03-01T12:00:00Z")
    job = app.jobs["cleanup"]

    job.pause(reason="INC-42")
    assert job.get().paused_reason == "INC-42"
    t.advance("2d").drain()
    assert t.fires("cleanup") == []

    job.resume()
    t.advance("1d").drain()
    missed, fired = t.fires("cleanup")
    assert (missed.outcome, missed.scheduled_for.day) == ("missed", 1), "the pause is recorded"
    assert (fired.outcome, fired.scheduled_for.day) == ("fired", 4)


def test_a_pause_with_an_end_ends_by_itself(bellringer_test: Testing) -> None:
    t = bellringer_test(app, at="2026-03-01T12:00:00Z")
    app.jobs["cleanup"].pause(until="36h")
    t.advance("1d")
    assert app.jobs["cleanup"].get().paused_until == datetime(2026, 3, 3, tzinfo=UTC)

    t.advance("1d").drain()
    assert [(f.outcome, f.scheduled_for.day) for f in t.fires("cleanup")] == [("missed", 1), ("fired", 3)]


@pytest.mark.parametrize("until", ["2026-03-03T00:00:00Z", datetime(2026, 3, 3, tzinfo=UTC)])
def test_a_pause_may_name_its_end(bellringer_test: Testing, until: datetime | str) -> None:
    bellringer_test(app, at="2026-03-01T12:00:00Z")
    app.jobs["cleanup"].pause(until=until)

    assert app.jobs["cleanup"].get().paused_until == datetime(2026, 3, 3, tzinfo=UTC)


def test_a_trigger_runs_a_job_now_with_other_arguments(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    run = app.jobs["cleanup"].trigger(days=7)
    plain = app.jobs["cleanup"].trigger()
    t.drain()

    assert (run.result(), plain.result()) == (7, 30)
    assert [r.cause for r in app.jobs["cleanup"].runs(limit=5)] == ["manual", "manual"]
    assert t.fires("cleanup") == []


def test_a_trigger_with_wrong_arguments_is_refused(bellringer_test: Testing) -> None:
    bellringer_test(app)

    with pytest.raises(InvalidInput, match=r"has no argument 'dayz'; did you mean 'days'\?"):
        app.jobs["cleanup"].trigger(dayz=7)


def test_a_deleted_job_is_gone_and_its_name_free(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    remind.schedule(every("1h"), id="hourly")
    app.jobs["hourly"].delete()
    t.advance("3h").drain()

    assert t.runs("hourly") == []
    with pytest.raises(NotFound, match="there is no job 'hourly'"):
        app.jobs["hourly"].get()
    remind.schedule(every("1h"), id="hourly")


def test_an_ambiguous_short_name_is_refused(bellringer_test: Testing) -> None:
    two = App()
    two.schedule(every("1h"))(two.task(name="a.sync")(lambda: None))
    two.schedule(every("1h"))(two.task(name="b.sync")(lambda: None))
    bellringer_test(two)

    with pytest.raises(Conflict, match=r"'sync' is ambiguous: a\.sync, b\.sync"):
        two.jobs["sync"].get()


def test_options_of_a_send_are_refused_for_a_job() -> None:
    with pytest.raises(InvalidInput, match="delay is an option of a send"):
        remind.options(delay="5m").schedule(every("1h"), id="x")
    with pytest.raises(InvalidInput, match="the id of a job is its key"):
        remind.options(key="x").schedule(every("1h"), id="x")


def test_a_job_of_wrong_arguments_is_refused_without_a_database() -> None:
    with pytest.raises(InvalidInput, match="has no argument 'whom'"):
        remind.schedule(every("1h"), id="x", whom="you")


async def test_every_act_has_an_async_twin(bellringer_dsn: str) -> None:
    async with Engine(app, bellringer_dsn) as t:
        job = await remind.aschedule(every("1h"), id="hourly")
        assert await app.adeclare() == 0
        assert [j.name for j in await app.jobs.alist()] == [cleanup.name, "hourly"]
        await job.apause(reason="why not")
        assert (await job.aget()).paused_by == "shop"
        await job.aresume()
        run = await job.atrigger(who="you")
        await t.drain()
        assert await run.aresult() == "you"
        assert len(await job.aruns()) == 1
        await job.adelete()
        with pytest.raises(NotFound):
            await job.aget()
