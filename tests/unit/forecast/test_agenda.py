"""The agenda: named occurrences by hour or day, compared with the schedules themselves."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime, timedelta
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from bellringer.errors import InvalidInput
from bellringer.forecast import AgendaJob, AgendaWindow, build_agenda, count_by_day, midnight
from bellringer.forecast.agenda import MAX_EVALUATIONS
from bellringer.schedule import Schedule, cron, every

BERLIN = ZoneInfo("Europe/Berlin")
MICROSECOND = timedelta(microseconds=1)


def job(name: str, *schedules: Schedule, key: int = 0, **bounds: datetime | None) -> AgendaJob:
    values = {"starts_at": None, "ends_at": None, "at": None, **bounds}
    return AgendaJob(job_id=UUID(int=hash(name) % 2**64), name=name, key=(key,), schedules=schedules, **values)


def berlin(first: date, days: int, *, by_hour: bool | None = None) -> AgendaWindow:
    return AgendaWindow.of(
        "Europe/Berlin", midnight(BERLIN, first), midnight(BERLIN, first + timedelta(days=days)), by_hour=by_hour
    )


def test_days_and_hours_follow_the_clocks_of_the_zone() -> None:
    week = berlin(date(2026, 10, 19), 7)
    assert [day.date.day for day in week.days] == list(range(19, 26))
    assert len(week.cells) == 7 * 24 + 1
    assert week.days[-1].end - week.days[-1].start == timedelta(hours=25)
    assert [change.describe() for change in week.clock_changes()] == ["clocks go back 1 h at 03:00"]
    month = berlin(date(2026, 3, 1), 42)
    assert len(month.cells) == len(month.days) == 42
    assert [(change.describe(), change.at) for change in month.clock_changes()] == [
        ("clocks go forward 1 h at 02:00", datetime(2026, 3, 29, 1, tzinfo=UTC))
    ]


def test_clocks_may_change_by_half_an_hour() -> None:
    zone = ZoneInfo("Australia/Lord_Howe")
    window = AgendaWindow.of(zone.key, midnight(zone, date(2026, 10, 1)), midnight(zone, date(2026, 10, 8)))
    assert [change.describe() for change in window.clock_changes()] == ["clocks go forward 30 min at 02:00"]


def test_a_zone_without_changes_has_none() -> None:
    assert (
        AgendaWindow.of("UTC", datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC)).clock_changes() == []
    )


@pytest.mark.parametrize(("days", "by_hour"), [(43, None), (0, None), (9, True)])
def test_a_span_that_is_too_long_is_refused(days: int, by_hour: bool | None) -> None:
    with pytest.raises(InvalidInput) as refused:
        berlin(date(2026, 3, 1), days, by_hour=by_hour)
    assert refused.value.code == "limit"


SCHEDULES = [
    cron("30 2 * * *", tz="Europe/Berlin"),
    cron("*/7 * * * *"),
    cron("0 9 * * MON-FRI", tz="America/New_York"),
    every("90s"),
    every("1m"),
    every("7h", offset="13s"),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.describe())
@pytest.mark.parametrize("window", [berlin(date(2026, 10, 19), 7), berlin(date(2026, 3, 9), 42)], ids=["hours", "days"])
def test_every_occurrence_is_in_its_cell(schedule: Schedule, window: AgendaWindow) -> None:
    found = build_agenda([job("a", schedule)], window, 5)
    times = list(schedule.between(window.start - MICROSECOND, window.end - MICROSECOND))
    if any(repeats.jobs for repeats in found.repeats):
        days = Counter(at.astimezone(BERLIN).date() for at in times)
        assert [repeats.fires for repeats in found.repeats] == [days[day.date] for day in window.days]
        assert found.cells == []
        return
    assert {cell.start: cell.fires for cell in found.cells} == Counter(window.cells[window.index(at)] for at in times)
    firsts = {window.cells[window.index(at)]: at for at in reversed(times)}
    assert {cell.start: cell.entries[0].at for cell in found.cells} == firsts
    assert all(cell.start <= cell.entries[0].at < cell.end for cell in found.cells)
    assert (found.left_out, found.frequent) == (0, [])


def test_an_instant_that_two_schedules_share_counts_once() -> None:
    both = job("a", cron("0 12 * * *"), cron("0 */12 * * *"))
    found = build_agenda([both], berlin(date(2026, 6, 1), 1), 5)
    assert [cell.fires for cell in found.cells] == [1, 1]


def test_jobs_that_repeat_all_day_are_listed_by_day_and_others_are_counted() -> None:
    often = [job(name, every(length), key=n) for n, (name, length) in enumerate((("b", "5m"), ("a", "1h")))]
    jobs = [*often, *(job(f"at noon {n}", cron("30 12 * * *"), key=2) for n in range(9))]
    found = build_agenda([*jobs, job("early", cron("10 12 * * *"), key=3)], berlin(date(2026, 6, 1), 1), 20)
    [noon] = found.cells
    assert [entry.job.name for entry in noon.entries] == ["early", *(f"at noon {n}" for n in range(9))]
    assert (noon.fires, noon.jobs, {entry.times for entry in noon.entries}) == (10, 10, {1})
    [repeats] = found.repeats
    assert (repeats.fires, repeats.jobs) == (288 + 24, 2)
    assert [(entry.job.name, entry.times) for entry in repeats.entries] == [("a", 24), ("b", 288)]
    few = build_agenda(jobs, berlin(date(2026, 6, 1), 1), 1)
    assert [len(cell.entries) for cell in few.cells] == [1]
    assert [len(day.entries) for day in few.repeats] == [2]


@pytest.mark.parametrize("by_hour", [True, False])
def test_a_job_repeats_only_on_the_days_on_which_it_occurs_often(by_hour: bool) -> None:
    weekdays = job("a", cron("*/10 * * * MON-FRI", tz="Europe/Berlin"), key=1)
    saturday = job("a", cron("0 7 * * SAT", tz="Europe/Berlin"), key=2)
    found = build_agenda([weekdays, saturday], berlin(date(2026, 6, 5), 3, by_hour=by_hour), 5)
    assert [repeats.fires for repeats in found.repeats] == [144, 0, 0]
    assert [cell.start.astimezone(BERLIN).date().day for cell in found.cells] == [6]


def test_jobs_more_frequent_than_every_minute_are_named_apart() -> None:
    jobs = [job("b", every("59s"), key=1), job("a", every("1s"), key=2), job("c", every("1m"), key=3)]
    found = build_agenda(jobs, berlin(date(2026, 6, 1), 7), 5)
    assert [one.name for one in found.frequent] == ["a", "b"]
    assert {entry.job.name for repeats in found.repeats for entry in repeats.entries} == {"c"}


def test_the_bounds_of_a_job_and_its_single_time_are_kept() -> None:
    start, end = datetime(2026, 6, 2, 6, tzinfo=UTC), datetime(2026, 6, 2, 9, tzinfo=UTC)
    jobs = [
        job("bound", cron("0 * * * *"), key=1, starts_at=start, ends_at=end),
        job("over", cron("0 * * * *"), key=1, ends_at=datetime(2026, 5, 1, tzinfo=UTC)),
        job("once", at=datetime(2026, 6, 3, 12, 30, tzinfo=UTC)),
        job("later", at=datetime(2027, 6, 3, 12, 30, tzinfo=UTC)),
    ]
    found = build_agenda(jobs, berlin(date(2026, 6, 1), 7), 5)
    seen = [(entry.job.name, entry.at) for cell in found.cells for entry in cell.entries]
    assert seen == [*(("bound", start + timedelta(hours=n)) for n in range(4)), ("once", jobs[2].at)]


def test_work_is_bounded_and_the_rarest_occurrences_are_kept() -> None:
    window = berlin(date(2026, 6, 1), 8)
    many = MAX_EVALUATIONS // (2 * len(window.cells)) + 10
    jobs = [job(f"often {n}", every("5m", offset=f"{n}s"), key=n) for n in range(many)]
    found = build_agenda([*jobs, job("rare", cron("0 3 * * *"), key=-1)], window, 200)
    assert 10 <= found.left_out <= 12
    assert sum(entry.job.name == "rare" for cell in found.cells for entry in cell.entries) == 8


def test_occurrences_are_counted_by_day_without_the_most_frequent() -> None:
    window = berlin(date(2026, 10, 24), 3)
    counts, left_out = count_by_day([(every("1h"), 10), (cron("0 12 * * *"), 3), (every("5s"), 7)], window)
    assert (counts, left_out) == ([243, 253, 243], 0)
    groups = [(every("1h", offset=f"{n}ms"), n + 1) for n in range(MAX_EVALUATIONS // 2 // 3 + 2)]
    assert count_by_day(groups, window)[1] == 3  # of the two smallest groups
