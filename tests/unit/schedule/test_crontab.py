"""Cron schedules: clock changes, rare days, searching backwards and counting."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from bellringer.errors import InvalidSchedule
from bellringer.schedule import DstFold, DstGap, cron
from bellringer.schedule.time_zones import MAX_INSTANT, MIN_INSTANT

NEW_YORK = "America/New_York"


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def fires(
    expression: str, start: str, end: str, *, tz: str = "UTC", gap: str | None = None, fold: str | None = None
) -> list[str]:
    schedule = cron(expression, tz=tz, gap=gap, fold=fold, seconds=len(expression.split()) == 6)
    return [f"{instant:%m-%dT%H:%M:%S}".removesuffix(":00") for instant in schedule.between(utc(start), utc(end))]


def test_a_fixed_time_in_the_gap_fires_once_at_the_first_valid_instant() -> None:
    found = fires("30 2 * * *", "2026-03-07T08:00", "2026-03-09T08:00", tz=NEW_YORK)
    assert found == ["03-08T07:00", "03-09T06:30"]


def test_several_fixed_times_in_the_gap_fire_once_together() -> None:
    found = fires("0,20,40 2,3 * * *", "2026-03-08T00:00", "2026-03-08T12:00", tz=NEW_YORK)
    assert found == ["03-08T07:00", "03-08T07:20", "03-08T07:40"]


def test_a_fixed_time_in_the_fold_fires_once_the_first_time() -> None:
    found = fires("30 1 * * *", "2026-11-01T00:00", "2026-11-02T12:00", tz=NEW_YORK)
    assert found == ["11-01T05:30", "11-02T06:30"]


def test_asked_in_the_second_pass_of_the_fold_a_fixed_time_is_due_the_next_day() -> None:
    schedule = cron("30 1 * * *", tz=NEW_YORK)
    assert schedule.next_after(utc("2026-11-01T06:15")) == utc("2026-11-02T06:30")


def test_a_rhythm_leaves_the_gap_out() -> None:
    found = fires("*/30 2 * * *", "2026-03-08T00:00", "2026-03-08T12:00", tz=NEW_YORK)
    assert found == []


def test_a_rhythm_fires_in_both_hours_of_the_fold() -> None:
    found = fires("0 * * * *", "2026-11-01T04:00", "2026-11-01T07:00", tz=NEW_YORK)
    assert found == ["11-01T05:00", "11-01T06:00", "11-01T07:00"]


def test_seconds_change_nothing_about_the_gap_and_the_fold() -> None:
    assert fires("0 30 2 * * *", "2026-03-08T00:00", "2026-03-08T12:00", tz=NEW_YORK) == ["03-08T07:00"]
    assert fires("5 30 1 * * *", "2026-11-01T00:00", "2026-11-01T12:00", tz=NEW_YORK) == ["11-01T05:30:05"]


def test_where_midnight_is_skipped_a_rhythm_of_that_hour_does_not_invent_one() -> None:
    found = fires("*/30 0 * * SUN", "2018-11-04T00:00", "2018-11-04T12:00", tz="America/Sao_Paulo")
    assert found == []


def test_where_midnight_is_skipped_a_fixed_midnight_fires_at_one() -> None:
    found = fires("0 0 * * *", "2018-11-03T12:00", "2018-11-05T00:00", tz="America/Sao_Paulo")
    assert found == ["11-04T03:00"]


def test_after_a_repeated_half_hour_nothing_is_lost() -> None:
    found = fires("*/10 2 * * *", "2026-04-04T12:00", "2026-04-04T18:00", tz="Australia/Lord_Howe")
    assert found == [f"04-04T{hhmm}" for hhmm in ("15:30", "15:40", "15:50", "16:00", "16:10", "16:20")]


def test_a_skipped_day_fires_once_when_it_is_over() -> None:
    found = fires("30 9 * * *", "2011-12-29T10:00", "2011-12-31T10:00", tz="Pacific/Apia")
    assert found == ["12-29T19:30", "12-30T10:00", "12-30T19:30"]


@pytest.mark.parametrize(("gap", "found"), [(None, ["03-08T07:00"]), ("next", ["03-08T07:00"]), ("skip", [])])
def test_a_schedule_may_choose_what_becomes_of_a_time_in_the_gap(gap: str | None, found: list[str]) -> None:
    assert fires("30 2 * * *", "2026-03-08T00:00", "2026-03-08T12:00", tz=NEW_YORK, gap=gap) == found


@pytest.mark.parametrize(
    ("fold", "found"),
    [
        (None, ["11-01T05:30"]),
        ("first", ["11-01T05:30"]),
        ("second", ["11-01T06:30"]),
        ("both", ["11-01T05:30", "11-01T06:30"]),
    ],
)
def test_a_schedule_may_choose_which_time_of_the_fold_counts(fold: str | None, found: list[str]) -> None:
    assert fires("30 1 * * *", "2026-11-01T00:00", "2026-11-01T12:00", tz=NEW_YORK, fold=fold) == found


def test_a_rhythm_may_fire_each_time_of_day_once() -> None:
    assert fires("0 * * * *", "2026-11-01T04:00", "2026-11-01T07:00", tz=NEW_YORK, fold="first") == [
        "11-01T05:00",
        "11-01T07:00",
    ]


def test_the_choices_are_always_resolved() -> None:
    fixed, rhythm = cron("0 0 * * *"), cron("0 * * * *", gap="next")
    assert (fixed.gap, fixed.fold) == (DstGap.NEXT, DstFold.FIRST)
    assert (rhythm.gap, rhythm.fold) == (DstGap.NEXT, DstFold.BOTH)


def test_an_unknown_choice_for_clock_changes_is_refused() -> None:
    with pytest.raises(InvalidSchedule, match="must be one of next, skip, not 'sometimes'"):
        cron("0 0 * * *", gap="sometimes")
    with pytest.raises(InvalidSchedule, match="must be one of first, second, both, not 'last'"):
        cron("0 0 * * *", fold="last")


def test_the_29th_of_february_is_found_across_a_century_without_one() -> None:
    schedule = cron("0 0 29 2 *")
    assert schedule.next_after(utc("2026-12-01")) == utc("2028-02-29")
    assert schedule.next_after(utc("2096-03-01")) == utc("2104-02-29")
    assert schedule.last_at_or_before(utc("2104-02-28"), not_before=utc("2000-01-01")) == utc("2096-02-29")


def test_a_day_that_comes_once_in_a_generation_is_found_both_ways() -> None:
    schedule = cron("0 0 */7 2 MON#5")
    assert schedule.next_after(utc("2026-12-01")) == utc("2044-02-29")
    assert schedule.last_at_or_before(utc("2026-12-01"), not_before=utc("1970-01-01")) == utc("2016-02-29")


@pytest.mark.parametrize(
    ("expression", "days"),
    [
        ("0 0 1W * *", ["01-01", "02-02", "03-02", "04-01", "05-01", "06-01", "07-01", "08-03"]),
        ("0 0 31W * *", ["01-30", "03-31", "05-29", "07-31", "08-31"]),
        ("0 0 LW * *", ["01-30", "02-27", "03-31", "04-30", "05-29", "06-30", "07-31", "08-31"]),
        ("0 0 L-3 * *", ["01-28", "02-25", "03-28", "04-27", "05-28", "06-27", "07-28", "08-28"]),
        ("0 0 * * FRIL", ["01-30", "02-27", "03-27", "04-24", "05-29", "06-26", "07-31", "08-28"]),
        ("0 0 * * MON#5", ["03-30", "06-29", "08-31"]),
        ("0 0 13 * FRI#2", ["01-09", "01-13", "02-13", "03-13", "04-10", "04-13", "05-08", "05-13"]),
    ],
)
def test_days_counted_from_the_calendar(expression: str, days: list[str]) -> None:
    found = cron(expression).between(utc("2025-12-31T12:00"), utc("2026-08-31T12:00"))
    assert [f"{instant:%m-%d}" for instant in found][: len(days)] == days


def test_next_after_is_strict_and_takes_fractions_and_other_zones() -> None:
    schedule = cron("0 9 * * *")
    nine = utc("2026-12-01T09:00")
    assert schedule.next_after(nine) == nine + timedelta(days=1)
    assert schedule.next_after(nine - timedelta(microseconds=1)) == nine
    assert schedule.next_after(nine + timedelta(microseconds=1)) == nine + timedelta(days=1)
    found = schedule.next_after(datetime.fromisoformat("2026-12-01T09:30:00+01:00"))
    assert found == nine
    assert found is not None
    assert found.tzinfo is UTC


def test_the_bounds_of_each_question_are_as_promised() -> None:
    schedule = cron("0 * * * *")
    one, three = utc("2026-12-01T01:00"), utc("2026-12-01T03:00")
    assert [instant.hour for instant in schedule.between(one, three)] == [2, 3]
    assert schedule.count_between(one, three) == 2
    assert schedule.count_between(three, one) == 0
    assert schedule.count_between(one, one) == 0
    assert schedule.count_between(one, one + timedelta(microseconds=1)) == 1
    assert schedule.last_at_or_before(three, not_before=three) == three
    assert schedule.last_at_or_before(three - timedelta(seconds=1), not_before=utc("2026-12-01T02:30")) is None


def test_beyond_what_can_be_computed_there_is_nothing() -> None:
    schedule = cron("* * * * * *", seconds=True, tz=NEW_YORK)
    assert schedule.next_after(datetime.max.replace(tzinfo=UTC)) is None
    assert schedule.next_after(utc("9998-12-31T23:59:59")) is None
    assert schedule.count_between(utc("9999-01-01"), datetime.max.replace(tzinfo=UTC)) == 0
    assert schedule.last_at_or_before(utc("0001-06-01"), not_before=utc("0001-01-01")) is None
    latest = schedule.last_at_or_before(datetime.max.replace(tzinfo=UTC), not_before=utc("9990-01-01"))
    assert latest == utc("9998-12-31T23:59:59")
    first = schedule.next_after(utc("0001-01-01"))
    assert first is not None
    assert int(first.timestamp()) == MIN_INSTANT
    assert int(latest.timestamp()) == MAX_INSTANT


def test_long_spans_are_counted_not_walked() -> None:
    start = utc("2026-01-01")
    began = time.perf_counter()
    assert cron("* * * * * *", seconds=True, tz=NEW_YORK).count_between(start, utc("2027-01-01")) == 31_536_000
    assert cron("* * * * *", tz="Europe/Berlin").count_between(start, utc("2036-01-01")) == 5_258_880
    assert time.perf_counter() - began < 0.5


def test_the_latest_of_a_years_seconds_is_found_at_once() -> None:
    schedule = cron("*/7 * * * * *", seconds=True, tz="Australia/Lord_Howe")
    began = time.perf_counter()
    for _ in range(100):
        found = schedule.last_at_or_before(utc("2026-12-31T23:59:59"), not_before=utc("2026-01-01"))
    assert found == utc("2026-12-31T23:59:56")
    assert time.perf_counter() - began < 0.5


def test_ten_thousand_next_occurrences_take_less_than_a_second() -> None:
    schedule, now = cron("0 9 * * MON-FRI", tz=NEW_YORK), utc("2026-01-01")
    began = time.perf_counter()
    for _ in range(10_000):
        now = schedule.next_after(now) or now
    assert time.perf_counter() - began < 1
