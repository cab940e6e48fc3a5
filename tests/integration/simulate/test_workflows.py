"""Workflows in the simulator: nodes take their time, maps and branches go their way though no handler is called."""

from __future__ import annotations

from typing import Any

from bellringer import App, Workflow, every
from bellringer.simulate import asimulate
from bellringer.simulate.worker import stand_in_results


def _app() -> App:
    app = App()

    @app.task(name="list")
    def listed() -> dict[str, Any]:
        raise AssertionError("handlers are not called")

    @app.task(name="work")
    def work(item: object = None) -> None:
        raise AssertionError("handlers are not called")

    @app.workflow(name="inner")
    def inner(wf: Workflow, files: list[str]) -> None:
        wf.map(work, files, name="inside")

    @app.schedule(every("1h"), name="flow")
    @app.workflow(name="flow")
    def flow(wf: Workflow) -> None:
        found = wf.add(listed, name="found")
        every_one = wf.map(work, found["files"], name="each")
        wf.add(inner, found["deep"][1]["files"])
        wf.wait("5m", after=every_one)
        choice = wf.add(work, name="choice", after=every_one)
        wf.add(work, name="left", after=choice.is_("left"))
        wf.add(work, name="right", after=choice.is_("right"))

    return app


def test_results_are_stood_in_for() -> None:
    documents = [job.workflow for job in _app().definitions() if job.workflow is not None]
    assert stand_in_results(documents) == {
        "found": {"files": [None], "deep": [{"files": [None]}, {"files": [None]}]},
        "choice": "left",
    }


async def test_days_of_a_workflow_are_clean_though_workers_die(bellringer_dsn: str) -> None:
    report = await asimulate(
        _app(), "2026-01-01", "2026-01-02", bellringer_dsn, outages=0, crashes=3, seed=5, durations={"each": "10m"}
    )
    [flow] = [job for job in report.jobs if job.job == "flow"]
    assert report.clean
    assert (flow.occurrences, flow.ran, flow.dead, flow.unfinished) == (24, 24, 0, 0)
    assert sum(crash.lost for crash in report.crashes) >= 3
    # Opened, found, one element, the inner one with one element, the wait, the choice and its left arm.
    assert report.attempts == 24 * 8 + sum(crash.lost for crash in report.crashes)
