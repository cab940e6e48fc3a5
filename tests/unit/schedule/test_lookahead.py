"""What to expect of a schedule: its rate, and the surprises that it holds."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

from bellringer.schedule import (
    HolidayCalendar,
    Schedule,
    SchedulePreview,
    at,
    bind_calendar,
    cron,
    delay,
    every,
    rrule,
    summarize_schedule,
)

NEW_YORK = "America/New_York"
NOW = datetime(2026, 6, 15, 12, tzinfo=UTC)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def codes(schedule: Schedule, now: datetime = NOW) -> list[str]:
    return [code for code, _ in summarize_schedule(schedule, now).warnings]


@pytest.mark.parametrize(
    ("schedule", "average", "most"),
    [
        (cron("0 9 * * *"), 1, 1),
        (cron("*/15 * * * *"), 96, 96),
        (cron("0 9 * * MON-FRI"), 22 / 30, 1),
        (cron("0 9,17 15 * *"), 2 / 30, 2),  # the day that has begun is counted whole
        (every("1h"), 24, 24),
        (every("10s"), 8640, 8640),
        (rrule("FREQ=WEEKLY;BYHOUR=8,9,10", start="2026-06-16T00:00"), 15 / 30, 3),
        (at("2026-06-20T00:00:00Z"), 1 / 30, 1),
        (at("2020-06-20T00:00:00Z"), 0, 0),
        (at("2026-06-15T09:00:00Z"), 0, 0),  # this morning
    ],
)
def test_the_next_thirty_days(schedule: Schedule, average: float, most: int) -> None:
    found = summarize_schedule(schedule, NOW)
    assert found.fires_per_day == pytest.approx(average)
    assert found.busiest_day == most


def test_the_busiest_day_is_a_day_of_the_zone() -> None:
    found = summarize_schedule(cron("0 * * * *", tz=NEW_YORK), utc("2026-10-20T00:00"))
    assert found.busiest_day == 25


def test_no_average_is_above_the_busiest_day() -> None:
    found = summarize_schedule(
        cron("*/30 * * * *", tz="Europe/Paris"), utc("2026-10-24T23:30")
    )  # the day of 25 hours has begun
    assert found.fires_per_day == pytest.approx((50 + 29 * 48) / 30)
    assert found.busiest_day == 50


def test_of_a_delay_nothing_is_known() -> None:
    assert summarize_schedule(delay("5m"), NOW) == SchedulePreview(
        fires_per_day=None, busiest_day=None, clock_change=None, warnings=()
    )


@pytest.mark.parametrize(
    ("schedule", "found"),
    [
        (cron("0 9 * * *"), []),
        (cron("H 9 * * *"), ["hash_unseeded"]),
        (cron("H 9 * * *", seed="x"), []),
        (at("2020-06-20T00:00:00Z"), ["never_again"]),
        (at("2030-06-20T00:00:00Z"), []),
        (rrule("FREQ=DAILY;COUNT=2", start="2026-06-01T00:00"), ["never_again"]),
        (rrule("FREQ=DAILY;COUNT=2", start="2026-06-15T13:00"), []),
        (cron("0 0 29 2 *"), ["rare", "day_missing_in_some_months"]),
        (cron("0 0 1 1 *"), []),
        (rrule("FREQ=YEARLY;INTERVAL=2", start="2026-06-01T00:00"), ["rare"]),
        (cron("*/30 * * * * *", seconds=True), ["fires_often"]),
        (cron("30 * * * * *", seconds=True), []),
        (cron("* * * * *", tz=NEW_YORK), []),
        (every("59s"), ["fires_often"]),
        (every("60s"), []),
        (cron("0 0 13 * FRI"), ["dom_and_dow"]),
        (cron("0 0 */2 * MON"), ["dom_with_dow"]),
        (cron("0 0 13 * */2"), ["dom_with_dow"]),
        (cron("0 0 */2 * *"), []),
        (cron("0 0 * * */2"), []),
        (cron("0 0 *,13 * MON"), []),
        (cron("0 0 * * 1/2"), ["weekday_step_sunday"]),
        (cron("0 0 * * MON/3"), ["weekday_step_sunday"]),
        (cron("0 0 * * 1-7/2"), []),
        (cron("0 0 * * 2/2"), []),
        (cron("0 0 31 * *"), ["day_missing_in_some_months"]),
        (cron("0 0 31 1,3,5 *"), []),
        (cron("0 0 1-31 * *"), []),
        (cron("0 0 L * *"), []),
        (cron("0 0 30W * *"), ["day_missing_in_some_months"]),
        (rrule("FREQ=MONTHLY", start="2026-01-31T00:00"), ["day_missing_in_some_months"]),
        (rrule("FREQ=MONTHLY;BYMONTHDAY=-1", start="2026-01-31T00:00"), []),
        (rrule("FREQ=MONTHLY;BYDAY=1MO", start="2026-01-31T00:00"), []),
    ],
)
def test_warnings(schedule: Schedule, found: list[str]) -> None:
    assert codes(schedule) == found


@pytest.mark.parametrize(
    ("schedule", "change", "code", "says"),
    [
        (cron("30 1 * * *", tz=NEW_YORK), "2026-11-01T06:00", "dst_fold", "on 2026-11-01 .* only the first time"),
        (cron("30 1 * * *", tz=NEW_YORK, fold="second"), "2026-11-01T06:00", "dst_fold", "only the second time"),
        (cron("30 1 * * *", tz=NEW_YORK, fold="both"), "2026-11-01T06:00", "dst_fold", "fires both times"),
        (cron("30 2 * * *", tz=NEW_YORK), "2027-03-14T07:00", "dst_gap", "on 2027-03-14 .* runs right after"),
        (cron("30 2 * * *", tz=NEW_YORK, gap="skip"), "2027-03-14T07:00", "dst_gap", "does not run"),
        (cron("*/15 2 * * *", tz=NEW_YORK), "2027-03-14T07:00", "dst_gap", "2027-03-14 .* does not fire on that day"),
        (cron("0 * * * *", tz=NEW_YORK, fold="first"), "2026-11-01T06:00", "dst_fold", "only the first time"),
        (rrule("FREQ=DAILY", start="2026-01-01T02:30", tz=NEW_YORK), "2027-03-14T07:00", "dst_gap", "2027-03-14"),
    ],
)
def test_the_next_change_of_the_clock_that_touches_it(schedule: Schedule, change: str, code: str, says: str) -> None:
    import re

    found = summarize_schedule(schedule, NOW)
    assert found.clock_change == utc(change)
    assert [warning.code for warning in found.warnings] == [code]
    assert re.search(says, found.warnings[0].text)


def test_a_change_that_touches_nothing_is_not_reported() -> None:
    assert summarize_schedule(cron("0 9 * * *", tz=NEW_YORK), NOW).clock_change is None
    rhythm = summarize_schedule(cron("*/15 * * * *", tz=NEW_YORK), NOW)
    assert rhythm.clock_change == utc("2026-11-01T06:00")
    assert rhythm.warnings == ()


def test_a_schedule_of_days_off_only() -> None:
    calendars = {"de": HolidayCalendar(name="de", dates=frozenset({date(2026, 12, 25)}))}
    never = bind_calendar(cron("0 9 * * SAT", calendar="de"), calendars)
    assert codes(never) == ["no_working_day"]
    assert codes(bind_calendar(cron("0 9 * * SAT", calendar="de", shift="next"), calendars)) == []
    over = bind_calendar(rrule("FREQ=DAILY;COUNT=1", start="2026-01-05T09:00", calendar="de"), calendars)
    assert codes(over) == ["never_again"]
