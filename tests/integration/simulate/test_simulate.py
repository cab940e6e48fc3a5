"""The simulator: the real engine lives through days in seconds, with faults, and accounts for every occurrence."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from bellringer import App, Conflict, Discard, InvalidInput, cron, delay, every
from bellringer.simulate import Report, SimulatedJob, asimulate, simulate
from bellringer.simulate.report import collect_results
from bellringer.testing.environment import TestEnvironment

Simulate = Callable[..., Report]


@pytest.fixture
def live(bellringer_dsn: str) -> Simulate:
    """Ten days without faults, if nothing else is asked for."""

    def live(app: App, start: str = "2025-03-25", end: str = "2025-04-04", **how: Any) -> Report:
        return simulate(app, start, end, dsn=bellringer_dsn, **{"crashes": 0, **how})

    return live


def hourly(**policies: Any) -> App:
    app = App()

    @app.schedule(every("1h"), name="hourly", **policies)
    @app.task
    def work() -> None:
        raise AssertionError("handlers are not called")

    return app


def sums(report: Report, **wanted: int) -> dict[str, int]:
    (job,) = report.jobs
    return {name: getattr(job, name) for name in wanted}


def test_days_with_faults_are_clean_and_everything_is_accounted_for(live: Simulate) -> None:
    app = hourly()

    @app.schedule(cron("30 2 * * *", tz="Europe/Berlin"), name="nightly")
    @app.task
    def nightly() -> None:
        pass

    report = live(app, crashes=None)

    assert report.clean
    assert (len(report.outages), len(report.crashes)) == (2, 5)
    assert [(job.job, job.occurrences) for job in report.jobs] == [("hourly", 240), ("nightly", 10)]
    for job in report.jobs:
        assert job.ran + job.missed + job.dead + job.unfinished + sum(job.skipped.values()) == job.occurrences
    assert report.attempts == sum(job.ran for job in report.jobs) + sum(crash.lost for crash in report.crashes)
    assert str(report).startswith("clean: 250 occurrences of 2 jobs in 10 days, 2 outages, 5 crashes, simulated in ")


def test_the_first_instant_counts_and_the_last_does_not(live: Simulate) -> None:
    report = live(hourly(), "2025-01-01T10:00", "2025-01-01T12:00")

    assert report.occurrences == 2


def test_of_an_outage_the_latest_runs_late_and_the_others_are_a_gap(live: Simulate) -> None:
    wanted = {"ran": 205, "late": 1, "missed": 35, "caught_up": 0}
    report = live(hourly(), outage=["2025-03-27T00:00Z/2025-03-28T11:10Z"])

    assert sums(report, **wanted) == wanted
    assert report.clean


def test_what_an_outage_left_is_caught_up(live: Simulate) -> None:
    wanted = {"ran": 240, "missed": 0, "caught_up": 35}
    report = live(hourly(misfire="fire_all", overlap="queue"), outage=["2025-03-27T00:00Z/2025-03-28T11:10Z"])

    assert sums(report, **wanted) == wanted
    assert report.clean


def test_a_worker_dies_with_what_it_holds_and_another_goes_on(live: Simulate) -> None:
    report = live(hourly(overlap="allow"), duration="150m", crashes=3)

    assert [crash.lost for crash in report.crashes] == [3, 3, 3]
    assert report.clean
    assert report.attempts == 240 + 9
    assert sums(report, ran=240, dead=0) == {"ran": 240, "dead": 0}


def test_a_crash_without_ticks_is_noticed_after_the_outage(live: Simulate) -> None:
    at = "2025-03-26T00:01Z"
    report = live(hourly(), duration="20m", outage=[f"{at}/2025-03-26T06:00Z"], crashes=200, seed=3)

    within = [c for c in report.crashes if datetime(2025, 3, 26, 0, 1, tzinfo=UTC) <= c.at < report.outages[0].end]
    assert [f"{crash.at:%H:%M}" for crash in within] == ["00:10"]
    assert report.clean


@pytest.mark.parametrize(
    ("overlap", "ran", "skipped"),
    [
        ("allow", 240, {}),
        ("skip", 120, {"overlap": 120}),
        ("queue", 240, {}),  # one after the other, and on after the end
        ("replace", 1, {"cancelled while running": 239}),
    ],
)
def test_overlap_is_seen_at_work(live: Simulate, overlap: str, ran: int, skipped: dict[str, int]) -> None:
    report = live(hourly(overlap=overlap), durations={"hourly": "90m"})
    (job,) = report.jobs

    assert (job.ran, job.skipped, job.unfinished) == (ran, skipped, 0)
    assert report.clean


def test_a_run_waits_for_a_free_slot(live: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = started(monkeypatch)
    app = App()
    for name in ("a", "b", "c"):
        app.schedule(cron("0 * * * *"), name=name)(app.task(name=name)(print))
    report = live(app, "2025-01-01T10:00", "2025-01-01T11:00", slots=2, duration="10m")

    assert report.clean
    assert [f"{start:%H:%M}" for start in starts] == ["10:00", "10:00", "10:10"]


def test_a_delay_counts_from_the_end_of_a_run(live: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = started(monkeypatch)
    app = App()

    @app.schedule(delay("1h"))
    @app.task
    def steady() -> None:
        pass

    report = live(app, "2025-01-01", "2025-01-02", duration="20m")

    assert {after - before for before, after in pairwise(starts)} == {timedelta(minutes=80)}
    assert report.occurrences == len(starts) == 18


def test_handlers_are_called_only_if_asked_for(live: Simulate) -> None:
    app, calls = App(), list[int]()

    @app.schedule(every("1d"), kwargs={"number": 7})
    @app.task(retry=2)
    def work(number: int) -> Discard | None:
        calls.append(number)
        if len(calls) == 1:
            raise RuntimeError("once")
        return Discard("enough") if len(calls) == 3 else None

    report = live(app, "2025-01-01", "2025-01-04", execute=True)

    assert calls == [7, 7, 7, 7]
    (job,) = report.jobs
    assert (job.occurrences, job.ran, job.skipped) == (3, 2, {"enough": 1})
    assert report.attempts == 4


def test_the_same_seed_gives_the_same_report(bellringer_server: Any) -> None:
    def once() -> dict[str, Any]:
        with bellringer_server.plain_database() as dsn:
            report = simulate(hourly(), "2025-01-01", "2025-01-08", dsn=dsn, duration="50m", seed=11)
        return {key: value for key, value in report.document().items() if key not in {"seconds", "verdict"}}

    assert once() == once()


def test_an_occurrence_that_disappears_is_found(live: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    async def falsified(stage: TestEnvironment, *window: datetime) -> Any:
        await stage.store.pool.execute("delete from runs where scheduled_for = '2025-03-26T07:00:00Z'")
        return await collect_results(stage, *window)

    monkeypatch.setattr("bellringer.simulate.simulation.collect_results", falsified)
    report = live(hourly())

    assert not report.clean
    assert [(f.kind.value, f.scheduled_for.hour) for f in report.findings] == [("missing", 7)]
    assert "not clean, 1 finding: 240 occurrences of 1 job" in str(report)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"start": "2025-04-04"}, "there is no time"),
        ({"durations": {"hurly": "1m"}}, r"no job 'hurly'; did you mean 'hourly'\?"),
        ({"duration": "0s"}, "a run takes some time"),
        ({"slots": 0}, "slots must be from 1"),
    ],
)
def test_what_cannot_be_simulated_is_refused(live: Simulate, how: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        live(hourly(), **how)


def test_an_app_without_schedules_is_refused(live: Simulate) -> None:
    with pytest.raises(InvalidInput, match="declares no schedules"):
        live(App())


async def test_async_tests_have_a_call_of_their_own(dsn: str) -> None:
    report = await asimulate(hourly(), "2025-01-01", "2025-01-02", dsn, outages=0)
    assert report.occurrences == 24
    with pytest.raises(Conflict, match="use `await asimulate"):
        simulate(hourly(), "2025-01-01", "2025-01-02", dsn=dsn)


def started(monkeypatch: pytest.MonkeyPatch) -> list[datetime]:
    """When each attempt of a simulation started, read before it is judged."""
    starts: list[datetime] = []

    async def reading(stage: TestEnvironment, *window: datetime) -> tuple[list[SimulatedJob], Any, Any]:
        rows = await stage.store.pool.fetch("select started_at from attempts order by started_at")
        starts.extend(row["started_at"] for row in rows)
        return await collect_results(stage, *window)

    monkeypatch.setattr("bellringer.simulate.simulation.collect_results", reading)
    return starts
