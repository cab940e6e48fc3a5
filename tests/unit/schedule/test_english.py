"""Schedules in plain English."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from bellringer.schedule import Schedule, at, cron, delay, every


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("* * * * *", "Every minute"),
        ("*/15 * * * *", "Every 15 minutes"),
        ("*/7 * * * *", "Every 7 minutes of each hour"),
        ("0 * * * *", "Every hour"),
        ("5,35 * * * *", "At minutes 5 and 35 of every hour"),
        ("5/15 * * * *", "At minutes 5, 20, 35 and 50 of every hour"),
        ("0 */2 * * *", "Every 2 hours (UTC)"),
        ("30 */2 * * *", "At minute 30 of every 2nd hour (UTC)"),
        ("30 2 * * *", "At 02:30 every day (UTC)"),
        ("0 9,17 * * *", "At 09:00 and 17:00 every day (UTC)"),
        ("*/15 9-17 * * MON-FRI", "Every 15 minutes from 09:00 to 17:59 on Monday to Friday (UTC)"),
        ("0,30 9-17 * * *", "At minutes 0 and 30 of hours 9 to 17 (UTC)"),
        ("0-40/5 9 * * *", "At minutes 0 to 40 in steps of 5 of hour 9 (UTC)"),
        ("0 0 1 1 *", "At 00:00 on the 1st of January (UTC)"),
        ("0 0 1,22 * *", "At 00:00 on the 1st and the 22nd of every month (UTC)"),
        ("0 0 1-11 * *", "At 00:00 on the 1st to the 11th of every month (UTC)"),
        ("0 0 L * *", "At 00:00 on the last day of every month (UTC)"),
        ("0 0 L-3 * *", "At 00:00 on the day 3 days before the last of every month (UTC)"),
        ("0 0 L-1 * *", "At 00:00 on the day 1 day before the last of every month (UTC)"),
        ("0 0 15W * *", "At 00:00 on the weekday nearest the 15th of every month (UTC)"),
        ("0 0 LW 6 *", "At 00:00 on the last weekday of June (UTC)"),
        ("0 0 * * FRIL", "At 00:00 on the last Friday of the month (UTC)"),
        ("0 0 * 3 MON#2", "At 00:00 on the second Monday of the month in March (UTC)"),
        ("0 0 * * 1/2", "At 00:00 on Monday, Wednesday, Friday and Sunday (UTC)"),
        ("0 0 13 * FRI", "At 00:00 on the 13th of every month or on Friday (UTC)"),
        ("0 0 */2 * MON", "At 00:00 on every 2nd day of every month, if also on Monday (UTC)"),
        ("0 0 * */4 *", "At 00:00 every day in January, May and September (UTC)"),
        ("* * * * MON", "Every minute on Monday (UTC)"),
        ("0 0 1,* * MON", "At 00:00 every day (UTC)"),
        ("0 0 13 * 1,*,4", "At 00:00 every day (UTC)"),
        ("0 0 1,* 6 MON", "At 00:00 every day in June (UTC)"),
        ("*/5 * 13 * 1,*", "Every 5 minutes"),
        ("0 0 *,1 * MON", "At 00:00 on Monday (UTC)"),
        ("0 0 13 * *,4", "At 00:00 on the 13th of every month (UTC)"),
        ("0 0 1,* * *", "At 00:00 every day (UTC)"),
    ],
)
def test_a_cron_expression_reads(expression: str, text: str) -> None:
    assert cron(expression).describe() == text


DAYS = ["*", "*/2", "13", "1,*", "*,1", "*/2,*", "1-31", "L,*"]
WEEKDAYS = ["*", "*/2", "MON", "1,*", "*,1", "1,*,4", "0-6", "FRIL,*"]


@pytest.mark.parametrize("weekday", WEEKDAYS)
@pytest.mark.parametrize("day", DAYS)
def test_a_description_says_every_day_only_if_it_fires_every_day(day: str, weekday: str) -> None:
    schedule = cron(f"0 0 {day} * {weekday}")
    fires = schedule.count_between(datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC))
    text = schedule.describe()
    if "every day" in text:
        assert fires == 365
    elif not any(words in text for words in ("1st to the 31st", "Sunday to Saturday")):
        assert fires < 365


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("* * * * * *", "Every second"),
        ("*/10 * * * * *", "Every 10 seconds"),
        ("30 * * * * *", "At second 30 of every minute"),
        ("0 */5 * * * *", "Every 5 minutes"),
        ("15 30 2 * * *", "At 02:30:15 every day (UTC)"),
        ("*/10 30 2 * * *", "Every 10 seconds of minute 30 of hour 2 (UTC)"),
        ("*/10 */5 * * * *", "Every 10 seconds of every 5th minute of every hour"),
    ],
)
def test_a_cron_expression_with_seconds_reads(expression: str, text: str) -> None:
    assert cron(expression, seconds=True).describe() == text


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        (cron("30 2 * * *", tz="Europe/Paris"), "At 02:30 every day (Europe/Paris)"),
        (cron("*/15 * * * *", tz="Europe/Paris"), "Every 15 minutes (Europe/Paris)"),
        (every("15m"), "Every 15 minutes"),
        (every("1d"), "Every day"),
        (every("90m", offset="5m"), "Every 1 hour 30 minutes, shifted by 5 minutes"),
        (delay("10s"), "10 seconds after the previous run ends"),
        (at("2026-12-01T10:00:00+01:00"), "Once at 2026-12-01 09:00:00 UTC"),
    ],
)
def test_a_schedule_reads(schedule: Schedule, text: str) -> None:
    assert schedule.describe() == text
