"""Fires counted into buckets, herds and how to spread them, and what a change would do."""

from __future__ import annotations

import hashlib
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest

from bellringer.core.jobs import Definition
from bellringer.errors import InvalidInput
from bellringer.forecast import (
    ForecastWindow,
    JobGroup,
    count_fires,
    diff_fires,
    list_fires,
    propose_spreading,
    spread_fires,
)
from bellringer.forecast.fire_counts import MAX_EVALUATIONS
from bellringer.forecast.fire_diff import MAX_FIRES_COMPARED, MAX_FIRES_LISTED
from bellringer.schedule import Schedule, at, cron, every

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
DAY, HOUR, MINUTE, SECOND = (timedelta(**{unit: 1}) for unit in ("days", "hours", "minutes", "seconds"))


def crowd(schedule: Schedule, jitter: timedelta = timedelta(0), **pools: int) -> JobGroup:
    return JobGroup(schedule=schedule, pools=pools or {"short": 1}, jitter=jitter)


@pytest.mark.parametrize(
    ("span", "bucket"),
    [
        (10 * MINUTE, SECOND),
        (3 * HOUR, 10 * SECOND),
        (DAY, MINUTE),
        (3 * DAY, 5 * MINUTE),
        (14 * DAY, 15 * MINUTE),
        (30 * DAY, HOUR),
        (366 * DAY, 6 * HOUR),
    ],
)
def test_a_bucket_fits_its_span(span: timedelta, bucket: timedelta) -> None:
    assert ForecastWindow.of(NOON, NOON + span).bucket == bucket


@pytest.mark.parametrize(
    ("span", "bucket"),
    [(-HOUR, None), (0 * HOUR, None), (367 * DAY, None), (DAY, SECOND), (MINUTE, SECOND / 2), (DAY, 0 * HOUR)],
)
def test_a_window_has_bounds(span: timedelta, bucket: timedelta | None) -> None:
    with pytest.raises(InvalidInput) as caught:
        ForecastWindow.of(NOON, NOON + span, bucket)
    assert (caught.value.code, bool(caught.value.hint)) == ("limit", True)


def test_the_hint_for_a_bucket_can_be_taken() -> None:
    with pytest.raises(InvalidInput, match="give at least 44s"):
        ForecastWindow.of(NOON + 7 * SECOND, NOON + DAY, SECOND)
    assert ForecastWindow.of(NOON + 7 * SECOND, NOON + DAY, 44 * SECOND).size <= 2_000


SCHEDULES = [
    cron("*/7 * * * *"),
    cron("30 2 * * *", tz="Europe/Berlin"),
    cron("0 * * * *", tz="America/New_York"),
    cron("*/20 * * * * *", seconds=True),
    every("90s"),
    every("7m", offset="13s"),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.describe())
@pytest.mark.parametrize("bucket", [MINUTE, 11 * MINUTE, HOUR], ids=str)
@pytest.mark.parametrize("start", [NOON, datetime(2026, 3, 28, 20, 17, 5, 123, tzinfo=UTC)], ids=str)
def test_every_fire_is_counted_in_its_bucket(schedule: Schedule, bucket: timedelta, start: datetime) -> None:
    window = ForecastWindow.of(start, start + DAY, bucket)
    counted = count_fires([crowd(schedule, short=3, long=2)], window)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    moment = timedelta(microseconds=1)
    wanted = Counter(t - (t - epoch) % bucket for t in schedule.between(start - moment, start + DAY - moment))
    for pool, jobs in (("short", 3), ("long", 2)):
        found = {window.at(i): n for i, n in enumerate(counted.pools[pool]) if n}
        assert found == {t: n * jobs for t, n in wanted.items()}


def test_a_window_has_its_start_and_not_its_end() -> None:
    counted = count_fires([crowd(every("1h"))], ForecastWindow.of(NOON, NOON + 2 * HOUR, MINUTE))
    assert [i for i, n in enumerate(counted.totals()) if n] == [0, 60]


def test_timers_count_when_they_are_due() -> None:
    window = ForecastWindow.of(NOON + SECOND / 2, NOON + HOUR, MINUTE)
    due = {("short", NOON): 2, ("long", NOON + 59 * MINUTE): 1}  # by the second: the first is due after the start
    counted = count_fires([], window, due)
    assert (counted.pools["short"][0], counted.pools["long"][59], sum(counted.totals())) == (2, 1, 3)


def test_nothing_is_nothing() -> None:
    counted = count_fires([], ForecastWindow.of(NOON, NOON + HOUR, MINUTE))
    assert counted.totals() == [0] * 60
    assert propose_spreading(counted) == []


def test_work_is_bounded_and_the_largest_go_first() -> None:
    window = ForecastWindow.of(NOON, NOON + DAY)
    wanted = MAX_EVALUATIONS // 1440 + 20
    crowds = [crowd(every("1m", offset=f"{n}ms"), short=n) for n in range(1, wanted + 1)]
    counted = count_fires([crowd(cron("0 3 * * *"), short=1), *crowds], window)
    smallest = min(share.crowd.jobs for share in counted.shares if share.fires.get(0))
    assert counted.left_out == sum(range(1, smallest))
    assert 18 <= smallest <= 22
    assert any(share.crowd.schedule == cron("0 3 * * *") for share in counted.shares), "what is cheap still fits in"


def test_a_spread_loses_and_makes_no_fire() -> None:
    for jobs, width in ((1, 7), (100, 7), (999, 60), (60, 60), (5, 1)):
        found = spread_fires({0: 1, 100: 2, 101: 3}, jobs, width, 1_000)
        assert sum(found.values()) == 6 * jobs
        assert max(found.values()) <= (3 if width == 1 else 5) * jobs / width + 1
    assert spread_fires({-30: 1, 50: 1}, 60, 60, 60) == {
        **dict.fromkeys(range(30), 1),
        **dict.fromkeys(range(50, 60), 1),
    }


def test_jobs_with_a_jitter_are_spread_over_it() -> None:
    window = ForecastWindow.of(NOON, NOON + 3 * HOUR, MINUTE)
    counted = count_fires([crowd(cron("50 * * * *"), jitter=20 * MINUTE, short=2_000)], window)
    totals = counted.totals()
    assert totals[:10] == [100] * 10, "those that were due before the window start in it"
    assert totals[10:50] == [0] * 40
    assert totals[50:70] == [100] * 20
    assert propose_spreading(counted) == []


def test_a_herd_gets_a_minute_by_hash() -> None:
    window = ForecastWindow.of(NOON, NOON + DAY)
    counted = count_fires(
        [crowd(cron("30 2 * * *", tz="Europe/Berlin"), short=6_000), crowd(every("1m"), long=5)], window
    )
    [found] = propose_spreading(counted)
    assert found.at == datetime(2026, 3, 3, 1, 30, tzinfo=UTC)
    assert found.suggestion == {"schedule": {"cron": "H 2 * * *"}}, "a patch: the zone stays"
    assert (found.jobs, found.fires, found.before) == (6_000, 6_000, 6_005)
    assert 105 < found.after == found.peak < 150


def test_the_peak_that_is_promised_is_the_one_that_a_hash_gives() -> None:
    window = ForecastWindow.of(NOON, NOON + DAY)
    for jobs in (300, 5_000, 50_000):
        [found] = propose_spreading(count_fires([crowd(cron("0 2 * * *"), short=jobs)], window))
        minutes = Counter(int.from_bytes(hashlib.sha256(f"1:job {n}".encode()).digest()[:8]) % 60 for n in range(jobs))
        assert max(minutes.values()) == pytest.approx(found.peak, rel=0.2)


def test_herds_are_proposed_one_after_another() -> None:
    window = ForecastWindow.of(NOON, NOON + DAY)
    herds = [
        crowd(cron("0 2 * * *"), short=5_000),
        crowd(cron("0 3 * * *"), short=3_000),
        crowd(cron("0 * * * *"), long=1_000),
        crowd(cron("0 3 1 * *"), short=1),
    ]
    found = propose_spreading(count_fires(herds, window))
    assert [p.suggestion["schedule"]["cron"] for p in found] == ["H 2 * * *", "H * * * *", "H 3 * * *"]
    first, second, third = found
    assert (first.before, second.before) == (6_000, first.after), "each goes on from those before it"
    assert 3_001 < third.before < 3_100
    assert [p.peak for p in found] == sorted((p.peak for p in found), reverse=True)
    assert found[-1].peak < 250


@pytest.mark.parametrize(
    ("schedule", "suggestion"),
    [
        (cron("*/15 * * * *"), {"schedule": {"cron": "H/15 * * * *"}}),
        (cron("30 0 2 * * *", seconds=True), {"schedule": {"cron": "30 H 2 * * *"}}),
        (cron("0,30 * * * *"), {"jitter": "30m"}),
        (cron("10-12 5 * * *"), None),
        (every("10m"), {"jitter": "10m"}),
        (every("1d"), {"jitter": "1h"}),
        (every("30s"), None),
        (cron("* * * * *"), None),
    ],
    ids=str,
)
def test_each_schedule_has_its_remedy(schedule: Schedule, suggestion: object) -> None:
    found = propose_spreading(
        count_fires([crowd(schedule, short=1_000)], ForecastWindow.of(NOON, NOON + 25 * HOUR, MINUTE))
    )
    assert [p.suggestion for p in found] == ([suggestion] if suggestion else [])


def test_what_is_even_needs_no_proposal() -> None:
    window = ForecastWindow.of(NOON, NOON + DAY)
    assert propose_spreading(count_fires([crowd(cron(f"{m} * * * *"), short=100) for m in range(60)], window)) == []
    assert propose_spreading(count_fires([crowd(cron("0 2 * * *"), short=9)], window)) == [], "nine jobs are no herd"
    coarse = ForecastWindow.of(NOON, NOON + 30 * DAY)
    assert propose_spreading(count_fires([crowd(cron("0 2 * * *"), short=900)], coarse)) == [], (
        "an hour cannot show its minutes"
    )


# Changes


def test_a_difference_shows_fire_by_fire() -> None:
    before, after = cron("0 */6 * * *"), cron("0 */8 * * *")
    end = NOON + DAY
    found = diff_fires(before.between(NOON, end), after.between(NOON, end), NOON, end)
    assert (found.before, found.after, found.kept) == (4, 3, 1)
    assert [t.hour for t in found.removed] == [18, 6, 12]
    assert [t.hour for t in found.added] == [16, 8]
    assert (found.start, found.end, found.truncated) == (NOON, end, False)


def test_a_difference_is_bounded() -> None:
    end = NOON + 7 * DAY
    found = diff_fires(every("1s").between(NOON, end), every("2s").between(NOON, end), NOON, end)
    assert found.truncated
    assert found.before + found.after <= MAX_FIRES_COMPARED + 1
    assert found.end - NOON == found.before * SECOND, "what is told is true up to there"
    assert found.after == found.kept == found.before // 2
    assert len(found.removed) == MAX_FIRES_LISTED
    assert found.added == []


def test_long_lists_are_cut_and_counted() -> None:
    end = NOON + DAY
    found = diff_fires([], every("5m").between(NOON, end), NOON, end)
    assert (found.after, len(found.added), found.truncated, found.end) == (288, MAX_FIRES_LISTED, True, end)


def test_a_job_fires_within_its_bounds_and_once_where_schedules_meet() -> None:
    job = Definition(
        name="a",
        task="t",
        schedules=(every("2h"), every("3h")),
        starts_at=NOON + 4 * HOUR,
        ends_at=NOON + 9 * HOUR,
    )
    assert [(t - NOON) / HOUR for t in list_fires(job, NOON, NOON + DAY)] == [4, 6, 8, 9]
    once = Definition(name="a", task="t", schedules=(at(NOON + HOUR),))
    assert list(list_fires(once, NOON, NOON + DAY)) == [NOON + HOUR]
    off = Definition(name="a", task="t", schedules=(every("2h"),), enabled=False)
    assert list(islice(list_fires(off, NOON, NOON + DAY), 1)) == []
