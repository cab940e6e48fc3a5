"""Declaring tasks and schedules; whatever is wrong is told when the module is imported."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from bellringer import App, Conflict, Context, InvalidInput, Retry, at, cron, delay, every
from bellringer.core.policies import Delivery, Misfire, Overlap
from bellringer.core.runs import RunKey, Spec
from bellringer.worker.attempt import Control, Work


@pytest.fixture
def app() -> App:
    return App()


def test_a_plain_call_runs_locally(app: App) -> None:
    @app.task
    def add(a: int, b: int = 1) -> int:
        """Add two numbers."""
        return a + b

    assert add(2) == 3
    assert add.__name__ == "add"
    assert add.__doc__ == "Add two numbers."
    assert repr(add).startswith("<task ")


async def test_a_plain_call_of_a_coroutine_function_gives_its_coroutine(app: App) -> None:
    @app.task
    async def double(n: int) -> int:
        await asyncio.sleep(0)
        return 2 * n

    assert await double(21) == 42


def test_a_local_call_makes_a_context(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(pool="io")
    def look(ctx: Context, what: str) -> tuple[str, int, str, timedelta]:
        ctx.log.info("looking", at=what)
        ctx.progress(1, 2)
        return what, ctx.attempt, ctx.pool, ctx.lateness

    with caplog.at_level(logging.INFO):
        assert look("up") == ("up", 1, "io", timedelta(0))
    assert "looking at='up'" in caplog.text


def test_a_local_call_takes_a_context_that_is_given(app: App) -> None:
    @app.task
    def look(ctx: Context, n: int = 0) -> int:
        return ctx.attempt + n

    now = datetime(2026, 1, 1, tzinfo=UTC)
    work = Work(key=RunKey(uuid4(), now), attempt=7, spent=7, task="x", spec=Spec(), claimed_at=now)
    given: Any = Context(
        work, Control(work, lambda: 0.0), lateness=timedelta(0), sink=lambda level, message, fields: None
    )
    assert look(given) == 7
    assert look(ctx=given, n=1) == 8  # type: ignore[call-arg]


def test_options_of_a_task_become_those_of_its_jobs(app: App) -> None:
    @app.schedule(cron("30 2 * * *", tz="Europe/Paris"), every("1h"), name="nightly", tags=["night"], args=[7])
    @app.task(
        name="clean",
        pool="io",
        priority=3,
        timeout="10m",
        retry=Retry(5),
        delivery="at_most_once",
        tags=["disk"],
    )
    def cleanup(days: int = 30) -> None: ...

    (definition,) = app.definitions()
    assert definition.name == "nightly"
    assert definition.task == "clean"
    assert definition.schedules == (cron("30 2 * * *", tz="Europe/Paris"), every("1h"))
    assert (definition.pool, definition.priority, definition.timeout) == ("io", 3, timedelta(minutes=10))
    assert (definition.retry, definition.delivery) == (Retry(5), Delivery.AT_MOST_ONCE)
    assert definition.tags == ("disk", "night")
    assert (definition.misfire, definition.overlap) == (Misfire.FIRE_ONCE, Overlap.SKIP)
    assert (list(definition.args), definition.owner) == ([7], "code")


def test_a_job_is_named_after_its_task_unless_requested_otherwise(app: App) -> None:
    @app.schedule(every("1h"))
    @app.task(name="billing.clean")
    def cleanup() -> None: ...

    assert [d.name for d in app.definitions()] == ["billing.clean"]


def test_the_order_of_the_decorators_is_free(app: App) -> None:
    @app.task(name="clean", pool="io")
    @app.schedule(every("1h"))
    def cleanup(days: int = 30) -> int:
        return days

    (definition,) = app.definitions()
    assert (definition.name, definition.task, definition.pool) == ("clean", "clean", "io")
    assert cleanup(3) == 3


def test_a_schedule_alone_makes_a_task(app: App) -> None:
    @app.schedule(every("1h"))
    def cleanup(days: int = 30) -> int:
        return days

    assert app.registry.get(cleanup.name) is cleanup.task
    assert cleanup() == 30


def test_schedules_can_be_stacked_under_different_names(app: App) -> None:
    @app.schedule(every("1h"), kwargs={"region": "eu"}, name="eu")
    @app.schedule(every("2h"), kwargs={"region": "us"}, name="us")
    @app.task
    def report(region: str) -> None: ...

    assert sorted((d.name, dict(d.kwargs)["region"]) for d in app.definitions()) == [
        ("eu", "eu"),
        ("us", "us"),
    ]


def test_two_schedules_of_one_name_are_refused(app: App) -> None:
    with pytest.raises(Conflict, match=r"two schedules declare the job .*cleanup'; give one of them a different name="):

        @app.schedule(every("1h"))
        @app.schedule(every("2h"))
        @app.task
        def cleanup() -> None: ...


def test_a_schedule_that_leaves_out_an_argument_is_refused_by_name(app: App) -> None:
    with pytest.raises(InvalidInput, match=r"is missing the argument 'region'; pass it with args= or kwargs="):

        @app.schedule(every("1h"))
        def report(region: str) -> None: ...


def test_a_one_shot_in_the_past_is_not_a_mistake_of_the_code_that_still_names_it(app: App) -> None:
    @app.schedule(at("2020-01-01T00:00:00Z"))
    def migrate() -> None: ...

    assert len(app.definitions()) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"misfire": "run_once"}, r"misfire cannot be 'run_once'; did you mean 'fire_once'\?"),
        ({"overlap": "skp"}, r"overlap cannot be 'skp'; did you mean 'skip'\?"),
        ({"mis_fire": "fire_once"}, r"@app.schedule has no option 'mis_fire'; did you mean 'misfire'\?"),
        ({"starts_at": "2026-01-01T00:00:00"}, r"starts_at .* has no UTC offset"),
        ({"name": ""}, r"name is empty"),
    ],
)
def test_a_wrong_option_of_a_schedule_is_reported(app: App, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        app.schedule(every("1h"), **options)


def test_an_invalid_schedule_is_refused(app: App) -> None:
    with pytest.raises(InvalidInput, match=r"not '0 3 \* \* \*'; write cron\('0 3 \* \* \*'\)"):
        app.schedule("0 3 * * *")  # type: ignore[arg-type]


def test_schedules_that_cannot_be_combined_are_refused(app: App) -> None:
    with pytest.raises(InvalidInput, match="`delay` cannot be combined"):

        @app.schedule(every("1h"), delay("5m"))
        def report() -> None: ...


def test_a_wrong_option_of_a_task_is_reported(app: App) -> None:
    with pytest.raises(InvalidInput, match=r"@app.task has no option 'time_out'; did you mean 'timeout'\?"):
        app.task(time_out="5m")  # type: ignore[call-overload]


def test_an_invalid_function_is_refused(app: App) -> None:
    with pytest.raises(InvalidInput, match="function must be a function, not 'clean'"):
        app.task("clean")  # type: ignore[call-overload]


def test_the_name_of_the_built_in_task_is_refused(app: App) -> None:
    with pytest.raises(InvalidInput, match="http is a built-in task"):
        app.task(name="http")(lambda: None)


def test_two_tasks_of_one_name_are_refused(app: App) -> None:
    app.task(name="clean")(lambda: None)

    with pytest.raises(Conflict, match="two tasks named 'clean'"):
        app.task(name="clean")(lambda: 1)


@pytest.mark.parametrize(
    ("options", "pool", "routed"),
    [
        ({}, "short", True),
        ({"expected_duration": "5m"}, "long", True),
        ({"expected_duration": "5m", "pool": "io"}, "io", False),
    ],
)
def test_a_task_without_a_pool_goes_by_how_long_it_is_expected_to_take(
    app: App, options: dict[str, Any], pool: str, routed: bool
) -> None:
    @app.schedule(every("1h"))
    @app.task(**options)
    def report() -> None: ...

    [definition] = app.definitions()
    assert (definition.pool, definition.routed) == (pool, routed)
    assert report.options(expected_duration="1s").task.effective_pool == ("io" if "pool" in options else "short")


def test_an_expected_duration_is_longer_than_nothing(app: App) -> None:
    with pytest.raises(InvalidInput, match="expected_duration must be longer than 0"):
        app.task(name="clean", expected_duration="0s")(lambda: None)
