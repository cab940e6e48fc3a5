"""Schedules in plain English."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bellringer.errors import InvalidSchedule
from bellringer.schedule import parse_schedule, read_schedule

NOW = datetime(2026, 11, 18, 10, tzinfo=UTC)  # a Wednesday
BERLIN = {"tz": "Europe/Berlin"}

UNDERSTOOD = [
    ("every weekday at 9:30 in Berlin", {"cron": "30 9 * * MON-FRI", **BERLIN}),
    ("Every Weekday at 9:30 in Berlin.", {"cron": "30 9 * * MON-FRI", **BERLIN}),
    ("weekdays at 9:30 Europe/Berlin", {"cron": "30 9 * * MON-FRI", **BERLIN}),
    ("every business day at 9:30 in Munich time", {"cron": "30 9 * * MON-FRI", **BERLIN}),
    ("every 15 minutes", {"every": "15m"}),
    ("every 90 minutes", {"every": "90m"}),
    ("every hour", {"every": "1h"}),
    ("every 30 seconds", {"every": "30s"}),
    ("hourly at minute 15", {"cron": "15 * * * *"}),
    ("every minute on monday", {"cron": "* * * * MON"}),
    ("first monday of the month at 08:00", {"cron": "0 8 * * MON#1"}),
    ("the second and fourth tuesday of each month at 7pm", {"cron": "0 19 * * TUE#2,TUE#4"}),
    ("last friday of every month at 17:00", {"cron": "0 17 * * FRIL"}),
    ("every month on the last friday at 9:00", {"cron": "0 9 * * FRIL"}),
    ("last day of the month at 6pm", {"cron": "0 18 L * *"}),
    ("last weekday of the month at 18:00", {"cron": "0 18 LW * *"}),
    ("on the first weekday of the month at 9:00", {"cron": "0 9 1W * *"}),
    ("on the 1st and 15th at 6am", {"cron": "0 6 1,15 * *"}),
    ("monthly on the 15th at 00:00", {"cron": "0 0 15 * *"}),
    ("every day at noon", {"cron": "0 12 * * *"}),
    ("daily at 5pm", {"cron": "0 17 * * *"}),
    ("every day at 9:00 and 17:00", {"cron": "0 9,17 * * *"}),
    ("every monday and thursday at 9:00", {"cron": "0 9 * * MON,THU"}),
    ("mondays, wednesdays and fridays at 12am", {"cron": "0 0 * * MON,WED,FRI"}),
    ("monday to friday at 8:00", {"cron": "0 8 * * MON-FRI"}),
    ("friday through monday at 8:00", {"cron": "0 8 * * FRI-MON"}),
    ("weekly on sunday at 3:00", {"cron": "0 3 * * SUN"}),
    ("weekends at midnight", {"cron": "0 0 * * SAT,SUN"}),
    ("every year on 24 december at 09:00", {"cron": "0 9 24 DEC *"}),
    ("every year on december 24 at noon", {"cron": "0 12 24 DEC *"}),
    ("in january and july on the 1st at 00:00", {"cron": "0 0 1 JAN,JUL *"}),
    ("every weekday at 9:30 from March to May", {"cron": "30 9 * MAR-MAY MON-FRI"}),
    ("every 10 minutes between 9:00 and 17:00 on weekdays", {"cron": "*/10 9-16 * * MON-FRI"}),
    ("every 10 minutes from 9 to 17", {"cron": "*/10 9-16 * * *"}),
    ("every 2 hours between 8:00 and 20:00 in New York", {"cron": "0 8-19/2 * * *", "tz": "America/New_York"}),
    ("every 5 minutes between 22:00 and 4:00", {"cron": "*/5 22-3 * * *"}),
    ("every 20 seconds on saturday", {"cron": "*/20 * * * * SAT", "seconds": True}),
    ("every 5 minutes 10 times", {"every": "5m", "times": 10}),
    ("every day at 9:00 3 times", {"cron": "0 9 * * *", "times": 3}),
    ("every other friday at 15:00", {"rrule": "FREQ=WEEKLY;INTERVAL=2;BYDAY=FR", "start": "2026-11-18T15:00"}),
    (
        "every 2 weeks on mon-wed at 9:00",
        {"rrule": "FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,TU,WE", "start": "2026-11-19T09:00"},
    ),
    ("every 2 days at 7:15", {"rrule": "FREQ=DAILY;INTERVAL=2", "start": "2026-11-19T07:15"}),
    (
        "every 3 months on the 1st at 10:00",
        {"rrule": "FREQ=MONTHLY;INTERVAL=3;BYMONTHDAY=1", "start": "2026-11-19T10:00"},
    ),
    ("tomorrow at 17:00", {"at": "2026-11-19T17:00:00Z"}),
    ("tomorrow at 17:00 in Berlin", {"at": "2026-11-19T16:00:00Z"}),
    ("today at 11:00", {"at": "2026-11-18T11:00:00Z"}),
    ("next monday at 9:00", {"at": "2026-11-23T09:00:00Z"}),
    ("next wednesday at 9:00", {"at": "2026-11-25T09:00:00Z"}),
    ("in 10 minutes", {"at": "2026-11-18T10:10:00Z"}),
    ("in an hour", {"at": "2026-11-18T11:00:00Z"}),
    ("on 2026-12-24 at 18:00", {"at": "2026-12-24T18:00:00Z"}),
]  # fmt: skip
REFUSED = [
    ("", "the text is empty", "every 15 minutes"),
    ("every blursday at 9:00", "the part 'blursday' was not understood", "did you mean 'thursday'?"),
    ("every day at 9:00 unless it rains", "the part 'unless it rains' was not understood", "examples"),
    ("every second friday at 9:00", "has two meanings", "every other friday"),
    ("every day at 9", "may be in the morning or in the afternoon", "9:00 for the morning or 21:00"),
    ("every 5 minutes from 9 to 5", "may be in the morning or in the afternoon", "9am and 9pm"),
    ("every day", "names no time of day", "at 09:00"),
    ("weekly at 9:00", "every week needs a day", "on monday"),
    ("monthly at 9:00", "every month needs a day", "on the 1st"),
    ("at 17:00", "but no day", "every day at"),
    ("every day at 25:00", "'25:00' is not a time of day", "9:30"),
    ("on the 32nd at 9:00", "no month has a day 32", "last day of the month"),
    ("every day at 9:00 and 17:30", "different minutes", "several"),
    ("every 7 minutes on weekdays", "does not fit into fixed hours", "divides 60"),
    ("on the 13th on friday at 9:00", "days of the month and days of the week", "day_match"),
    ("every day at 9:00 in Springfield", "is not a place with a known time zone", "Europe/Berlin"),
    ("every day at 9:00 in Berln", "is not a place with a known time zone", "did you mean Berlin?"),
    ("every day at 9:00 in Louisville", "may be America/Kentucky/Louisville or America/Louisville", "time zone"),
    ("today at 9:00", "is in the past", "later"),
    ("tomorrow", "names no time of day", "tomorrow at 17:00"),
    ("tonight", "has no exact time", "today at 20:00"),
    ("in 2 months", "is not an exact length of time", "date"),
    ("tomorrow at 9:00 every week on monday", "both a single time and a repetition", "one of them"),
    ("on 2026-02-30 at 9:00", "does not exist", "check"),
]


@pytest.mark.parametrize(("text", "document"), UNDERSTOOD)
def test_a_text_that_is_understood(text: str, document: dict[str, object]) -> None:
    found = read_schedule(text, now=NOW)
    assert found.document == document
    assert parse_schedule(found.document).next_after(NOW) is not None
    assert found.understood


@pytest.mark.parametrize(("text", "message", "hint"), REFUSED)
def test_a_text_that_is_refused(text: str, message: str, hint: str) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        read_schedule(text, now=NOW)
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.pointer == "/text"


def test_the_time_zone_of_the_caller_applies_if_the_text_names_none() -> None:
    assert read_schedule("daily at noon", now=NOW, tz="Asia/Tokyo").document["tz"] == "Asia/Tokyo"
    assert read_schedule("daily at noon in Paris", now=NOW, tz="Asia/Tokyo").document["tz"] == "Europe/Paris"
    assert read_schedule("tomorrow at 1:00", now=NOW, tz="Asia/Tokyo").document == {"at": "2026-11-18T16:00:00Z"}


def test_each_part_is_explained() -> None:
    found = read_schedule("every 10 minutes between 9:00 and 17:00 on weekdays", now=NOW)
    assert [tuple(part) for part in found.understood] == [
        ("", "time zone UTC, because the text names none"),
        ("between 9:00 and 17:00", "from 09:00 to 16:59"),
        ("every 10 minutes", "every 10 minutes"),
        ("on weekdays", "Monday to Friday; a calendar can leave out holidays"),
    ]


words = st.lists(
    st.sampled_from(
        [
            *("every", "every", "other", "each", "day", "week", "month", "year", "minute", "hour", "at", "on", "in"),
            *("the", "of", "and", "to", "from", "between", "first", "second", "last", "1st", "15th", "31st", "5", "0"),
            *("9:30", "17:00", "5pm", "noon", "monday", "fridays", "weekday", "weekend", "january", "may", "tomorrow"),
            *("today", "next", "times", "utc", "berlin", "2", "15", ",", "-"),
        ]
    ),
    min_size=1,
    max_size=9,
).map(" ".join)


@settings(max_examples=600, deadline=None)
@given(st.one_of(words, st.text(max_size=40)))
def test_any_text_is_read_as_a_valid_schedule_or_refused(text: str) -> None:
    try:
        found = read_schedule(text, now=NOW)
        parse_schedule(found.document)
    except InvalidSchedule as error:
        assert error.hint or error.message  # noqa: PT017
