"""A start of a program reports the jobs that its code declared once and declares no more; they go on as they are."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from bellringer import App, at, every
from bellringer.sdk.workflows import Workflow

TASKS = ("shop.report", "shop.sync")


def program(dsn: str, *scheduled: str, tasks: tuple[str, ...] = TASKS) -> App:
    """A program that has these tasks and schedules some of them."""
    made = App(dsn)
    for name in tasks:
        task = made.task(name=name)(lambda: None)
        if name in scheduled:
            made.schedule(every("1h"))(task)
    return made


def left(made: App) -> list[str]:
    """What a start of this program reports."""
    with capture_logs() as lines:
        made.declare()
    made.close()
    found = [line for line in lines if "no longer declared" in line["event"]]
    assert all(line["log_level"] == "warning" for line in found)
    assert all(line["to_delete"] == f"bellringer jobs delete {line['jobs'][0]}" for line in found)
    return [name for line in found for name in line["jobs"]]


@pytest.fixture
def dsn(bellringer_dsn: str) -> str:
    assert left(program(bellringer_dsn, *TASKS)) == []
    return bellringer_dsn


def test_a_schedule_that_was_removed_is_reported_and_stays(dsn: str) -> None:
    again = program(dsn, "shop.report")
    assert left(again) == ["shop.sync"]
    assert again.jobs["shop.sync"].get().enabled
    again.close()


def test_a_task_that_was_removed_with_its_schedule_is_reported(dsn: str) -> None:
    assert left(program(dsn, "shop.report", tasks=("shop.report",))) == ["shop.sync"]


def test_jobs_that_are_paused_or_deleted_are_not_reported(dsn: str) -> None:
    paused = program(dsn, "shop.report")
    paused.jobs["shop.sync"].pause(reason="kept for later")
    assert left(paused) == []
    deleted = program(dsn)
    deleted.jobs["shop.sync"].delete()
    assert left(deleted) == ["shop.report"]


def test_jobs_of_another_program_are_not_reported(dsn: str) -> None:
    assert left(program(dsn, "mail.send", tasks=("mail.send",))) == []


def test_jobs_that_code_created_manually_are_not_reported(dsn: str) -> None:
    made = program(dsn, *TASKS)
    task = made.task(name="shop.remind")(lambda: None)
    task.schedule(at("2036-01-01T00:00:00Z"), id="shop.later")
    assert left(made) == []


def test_a_workflow_that_was_removed_is_reported(dsn: str) -> None:
    made = program(dsn, *TASKS)
    report = made.task(name="shop.count")(lambda: None)

    @made.schedule(every("1h"))
    @made.workflow(name="shop.nightly")
    def nightly(w: Workflow) -> None:
        w.add(report)

    assert left(made) == []
    assert left(program(dsn, *TASKS)) == ["shop.nightly"]
