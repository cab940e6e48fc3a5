"""The option `after_completion` in code, and code that still declares a job that was deleted when it was done."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from bellringer import App, InvalidInput, NotFound, at, cron, delay, every, rrule
from bellringer.core.jobs import Definition
from bellringer.core.policies import AfterCompletion
from bellringer.schedule import Schedule

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
ENDED = rrule("FREQ=DAILY;COUNT=1", start="2020-01-01T00:00")


def test_the_option_is_stored(bellringer_dsn: str) -> None:
    with App(bellringer_dsn) as app:

        @app.schedule(every("1h"), after_completion="delete")
        @app.task(name="report")
        def report() -> None: ...

        assert app.declare() == 1
        assert app.jobs["report"].get().after_completion is AfterCompletion.DELETE
        assert app.declare() == 0
        report.options(after_completion="keep").schedule(every("1h"), id="report")
        assert app.jobs["report"].get().after_completion is AfterCompletion.KEEP


def test_another_word_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"after_completion cannot be 'delet'; did you mean 'delete'\?"):
        App().schedule(every("1h"), after_completion="delet")


def test_a_job_whose_schedules_have_ended_is_not_created_at_every_start(bellringer_dsn: str) -> None:
    with App(bellringer_dsn) as app:
        app.schedule(ENDED, name="ended", after_completion="delete")(app.task(name="report")(lambda: None))
        assert app.declare() == 0
        with pytest.raises(NotFound):
            app.jobs["ended"].get()


def test_a_job_that_exists_is_changed_to_schedules_that_have_ended(bellringer_dsn: str) -> None:
    for schedule, changed in ((every("1h"), 1), (ENDED, 1), (ENDED, 0)):
        with App(bellringer_dsn) as app:
            app.schedule(schedule, name="ending")(app.task(name="report")(lambda: None))
            assert app.declare() == changed


@pytest.mark.parametrize(
    ("schedules", "ends_at", "ended"),
    [
        ((), None, False),
        ((), NOW - HOUR, False),
        ((at(NOW + HOUR),), None, False),
        ((at(NOW - HOUR),), None, True),
        ((delay("1h"),), None, False),
        ((delay("1h"),), NOW - HOUR, True),
        ((cron("0 3 * * *"),), None, False),
        ((cron("0 3 * * *"),), NOW + HOUR, True),
        ((cron("0 3 * * *"), every("1m")), NOW + HOUR, False),
        ((ENDED,), None, True),
        ((ENDED, every("1h")), None, False),
    ],
)
def test_when_a_definition_has_ended(schedules: tuple[Schedule, ...], ends_at: datetime | None, ended: bool) -> None:
    wanted = Definition(name="job", task="demo", schedules=schedules, ends_at=ends_at)
    assert wanted.has_ended(NOW) is ended
