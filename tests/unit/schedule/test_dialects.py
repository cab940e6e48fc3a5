"""Expressions from the documentation of other schedulers, in their dialect: accepted with the expected instants, or
refused with the expected explanation.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from bellringer.errors import InvalidSchedule
from bellringer.schedule import (
    Cron,
    cron,
    from_row,
    next_fires,
    parse_schedule,
    summarize_schedule,
    to_document,
    to_row,
)

START = datetime(2026, 1, 1, tzinfo=UTC)  # a Thursday


def first(schedule: Cron, count: int = 3, after: datetime = START) -> list[str]:
    return [f"{fire.local:%Y-%m-%dT%H:%M:%S}".removesuffix(":00") for fire in next_fires(schedule, after, count)]


# The table of the CronTrigger tutorial of Quartz.
QUARTZ = [
    ("0 0 12 * * ?", ["2026-01-01T12:00", "2026-01-02T12:00", "2026-01-03T12:00"]),
    ("0 15 10 ? * *", ["2026-01-01T10:15", "2026-01-02T10:15", "2026-01-03T10:15"]),
    ("0 15 10 * * ?", ["2026-01-01T10:15", "2026-01-02T10:15", "2026-01-03T10:15"]),
    ("0 15 10 * * ? *", ["2026-01-01T10:15", "2026-01-02T10:15", "2026-01-03T10:15"]),
    ("0 * 14 * * ?", ["2026-01-01T14:00", "2026-01-01T14:01", "2026-01-01T14:02"]),
    ("0 0/5 14 * * ?", ["2026-01-01T14:00", "2026-01-01T14:05", "2026-01-01T14:10"]),
    ("0 0/5 14,18 * * ?", ["2026-01-01T14:00", "2026-01-01T14:05", "2026-01-01T14:10"]),
    ("0 0-5 14 * * ?", ["2026-01-01T14:00", "2026-01-01T14:01", "2026-01-01T14:02"]),
    ("0 10,44 14 ? 3 WED", ["2026-03-04T14:10", "2026-03-04T14:44", "2026-03-11T14:10"]),
    ("0 15 10 ? * MON-FRI", ["2026-01-01T10:15", "2026-01-02T10:15", "2026-01-05T10:15"]),
    ("0 15 10 15 * ?", ["2026-01-15T10:15", "2026-02-15T10:15", "2026-03-15T10:15"]),
    ("0 15 10 L * ?", ["2026-01-31T10:15", "2026-02-28T10:15", "2026-03-31T10:15"]),
    ("0 15 10 L-2 * ?", ["2026-01-29T10:15", "2026-02-26T10:15", "2026-03-29T10:15"]),
    ("0 15 10 ? * 6L", ["2026-01-30T10:15", "2026-02-27T10:15", "2026-03-27T10:15"]),  # the last Friday
    ("0 15 10 ? * 6L 2026-2027", ["2026-01-30T10:15", "2026-02-27T10:15", "2026-03-27T10:15"]),
    ("0 15 10 ? * 6#3", ["2026-01-16T10:15", "2026-02-20T10:15", "2026-03-20T10:15"]),  # the third Friday
    ("0 0 12 1/5 * ?", ["2026-01-01T12:00", "2026-01-06T12:00", "2026-01-11T12:00"]),
    ("0 11 11 11 11 ?", ["2026-11-11T11:11", "2027-11-11T11:11", "2028-11-11T11:11"]),
    # more of its text
    ("0 0 12 ? * L", ["2026-01-03T12:00", "2026-01-10T12:00", "2026-01-17T12:00"]),  # Saturday
    ("0 0 12 LW * ?", ["2026-01-30T12:00", "2026-02-27T12:00", "2026-03-31T12:00"]),
    ("0 0 12 15W * ?", ["2026-01-15T12:00", "2026-02-16T12:00", "2026-03-16T12:00"]),
    ("0 0 12 L-3W * ?", ["2026-01-28T12:00", "2026-02-25T12:00", "2026-03-27T12:00"]),
    ("0 0 12 ? * 2-6", ["2026-01-01T12:00", "2026-01-02T12:00", "2026-01-05T12:00"]),
    ("0 0 12 ? * 2/2", ["2026-01-02T12:00", "2026-01-05T12:00", "2026-01-07T12:00"]),  # MON, WED, FRI
    ("0 0 12 ? * FRI-MON", ["2026-01-02T12:00", "2026-01-03T12:00", "2026-01-04T12:00"]),
    ("0 0 22-2 * * ?", ["2026-01-01T01:00", "2026-01-01T02:00", "2026-01-01T22:00"]),
    ("/30 0 12 * * ?", ["2026-01-01T12:00", "2026-01-01T12:00:30", "2026-01-02T12:00"]),
    ("5/20 * * * * ?", ["2026-01-01T00:00:05", "2026-01-01T00:00:25", "2026-01-01T00:00:45"]),
    ("0 0 0 29 2 ? 2026-2032", ["2028-02-29T00:00", "2032-02-29T00:00"]),
    ("0 0 0 1 1 ? 2027,2030", ["2027-01-01T00:00", "2030-01-01T00:00"]),
    ("0 0 0 1 1 ? 2027/2", ["2027-01-01T00:00", "2029-01-01T00:00", "2031-01-01T00:00"]),
    ("0 0 0 1 1 ? 2199", ["2199-01-01T00:00"]),
]
# The documentation of AWS EventBridge.
AWS = [
    ("cron(0 10 * * ? *)", ["2026-01-01T10:00", "2026-01-02T10:00", "2026-01-03T10:00"]),
    ("cron(15 12 * * ? *)", ["2026-01-01T12:15", "2026-01-02T12:15", "2026-01-03T12:15"]),
    ("cron(0 18 ? * MON-FRI *)", ["2026-01-01T18:00", "2026-01-02T18:00", "2026-01-05T18:00"]),
    ("cron(0 8 1 * ? *)", ["2026-01-01T08:00", "2026-02-01T08:00", "2026-03-01T08:00"]),
    ("cron(0/15 * * * ? *)", ["2026-01-01T00:15", "2026-01-01T00:30", "2026-01-01T00:45"]),
    ("cron(0/10 * ? * MON-FRI *)", ["2026-01-01T00:10", "2026-01-01T00:20", "2026-01-01T00:30"]),
    ("cron(0/5 8-17 ? * MON-FRI *)", ["2026-01-01T08:00", "2026-01-01T08:05", "2026-01-01T08:10"]),
    ("0 10 * * ? *", ["2026-01-01T10:00", "2026-01-02T10:00", "2026-01-03T10:00"]),
    ("0 9 ? * 2-6 *", ["2026-01-01T09:00", "2026-01-02T09:00", "2026-01-05T09:00"]),
    ("0 9 ? * 3#2 *", ["2026-01-13T09:00", "2026-02-10T09:00", "2026-03-10T09:00"]),  # the second Tuesday
    ("0 9 ? * 5L *", ["2026-01-29T09:00", "2026-02-26T09:00", "2026-03-26T09:00"]),  # the last Thursday
    ("0 9 3W * ? 2026-2026", ["2026-01-02T09:00", "2026-02-03T09:00", "2026-03-03T09:00"]),
]
# The README of croniter and the documentation of robfig/cron, in the default dialect.
UNIX = [
    ("*/5 * * * *", {}, ["2026-01-01T00:05", "2026-01-01T00:10", "2026-01-01T00:15"]),
    ("2 4 * * mon,fri", {}, ["2026-01-02T04:02", "2026-01-05T04:02", "2026-01-09T04:02"]),
    ("2 4 1 * wed", {}, ["2026-01-01T04:02", "2026-01-07T04:02", "2026-01-14T04:02"]),
    ("2 4 1 * wed", {"day_match": "both"}, ["2026-04-01T04:02", "2026-07-01T04:02", "2027-09-01T04:02"]),
    ("0 0 * * sat#1,sun#2", {}, ["2026-01-03T00:00", "2026-01-11T00:00", "2026-02-07T00:00"]),
    ("0 0 * * 5#3,L5", {}, "L comes after the weekday: write 5L"),
    ("0 0 * * 5#3,5L", {}, ["2026-01-16T00:00", "2026-01-30T00:00", "2026-02-20T00:00"]),
    ("H H * * *", {"seed": "hello"}, None),
    ("R R * * *", {}, "write H for a fixed time"),
    ("0~30 9 * * *", {}, "write H(0-30) for a fixed time"),
    ("~ 9 * * *", {}, "write H(0-59) for a fixed time"),
    ("0 0 1 1 * 0 2026", {}, 'for croniter, write "0 0 0 1 1 ? 2026" in that dialect'),
    ("0 0 0 1 1 ? 2027", {"dialect": "quartz"}, ["2027-01-01T00:00"]),
    ("0 0 1 1 MON 0 2026", {}, "croniter has the second before the year"),
    ("* * * * 1 15,25", {}, 'croniter has it last: move it to the front ("15,25 * * * * 1")'),
    ("15,25 * * * * 1", {"seconds": True}, ["2026-01-05T00:00:15", "2026-01-05T00:00:25", "2026-01-05T00:01:15"]),
    ("30 * * * *", {}, ["2026-01-01T00:30", "2026-01-01T01:30", "2026-01-01T02:30"]),
    ("30 3-6,20-23 * * *", {}, ["2026-01-01T03:30", "2026-01-01T04:30", "2026-01-01T05:30"]),
    ("CRON_TZ=Asia/Tokyo 30 04 * * *", {}, ["2026-01-02T04:30", "2026-01-03T04:30", "2026-01-04T04:30"]),
    ("TZ=America/New_York 0 6 * * ?", {}, ["2026-01-01T06:00", "2026-01-02T06:00", "2026-01-03T06:00"]),
    ("@hourly", {}, ["2026-01-01T01:00", "2026-01-01T02:00", "2026-01-01T03:00"]),
    ("@every 1h30m", {}, 'every("1h30m")'),
    ("0 0 1,15 * 3", {}, ["2026-01-07T00:00", "2026-01-14T00:00", "2026-01-15T00:00"]),
    ("0 0 */2 * MON", {"day_match": "either"}, ["2026-01-03T00:00", "2026-01-05T00:00", "2026-01-07T00:00"]),
    ("0 0 */2 * MON", {}, ["2026-01-05T00:00", "2026-01-19T00:00", "2026-02-09T00:00"]),
    ("0 0 * * MON", {"day_match": "either"}, ["2026-01-05T00:00", "2026-01-12T00:00", "2026-01-19T00:00"]),
    ("*/15 10-14 1 3 ?", {"seconds": False}, ["2026-03-01T10:00", "2026-03-01T10:15", "2026-03-01T10:30"]),
    ("30 0 9 ? * MON", {"seconds": True}, ["2026-01-05T09:00:30", "2026-01-12T09:00:30", "2026-01-19T09:00:30"]),
    ("0 0 9 ? * 2", {"seconds": True}, 'pass dialect="quartz"'),
]


@pytest.mark.parametrize(("expression", "expected"), QUARTZ)
def test_the_examples_of_quartz(expression: str, expected: list[str]) -> None:
    schedule = cron(expression, dialect="quartz")
    assert first(schedule) == expected
    assert first(from_row(*to_row(schedule))) == expected  # type: ignore[arg-type]
    assert parse_schedule(to_document(schedule)) == schedule


@pytest.mark.parametrize(("expression", "expected"), AWS)
def test_the_examples_of_aws(expression: str, expected: list[str]) -> None:
    schedule = cron(expression, dialect="aws")
    assert first(schedule) == expected
    assert first(from_row(*to_row(schedule))) == expected  # type: ignore[arg-type]
    assert parse_schedule(to_document(schedule)) == schedule


@pytest.mark.parametrize(("expression", "options", "expected"), UNIX)
def test_the_examples_of_croniter_and_robfig(
    expression: str, options: dict[str, object], expected: list[str] | str | None
) -> None:
    if isinstance(expected, str):
        with pytest.raises(InvalidSchedule) as caught:
            cron(expression, **options)  # type: ignore[arg-type]
        assert expected in caught.value.hint
        return
    schedule = cron(expression, **options)  # type: ignore[arg-type]
    if expected is not None:
        assert first(schedule) == expected
    assert first(from_row(*to_row(schedule))) == first(schedule)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("dialect", "expression", "message", "hint"),
    [
        ("quartz", "0 15 10 * * *", "Quartz requires ? in exactly one", "write ? in the field that should not matter"),
        ("quartz", "0 15 10 1 * MON", "Quartz requires ? in exactly one", "write ? in the field"),
        ("quartz", "0 15 10 ? * ?", "Quartz requires ? in exactly one", "write * in one of them"),
        ("quartz", "15 10 * * ?", "an expression for crontab", 'dialect="unix"'),
        ("quartz", "@daily", "an expression for crontab", 'dialect="unix"'),
        ("quartz", "0 12 * * ? *", "an expression for AWS EventBridge", 'dialect="aws"'),
        ("quartz", "cron(0 12 * * ? *)", "an expression for AWS EventBridge", 'dialect="aws"'),
        ("quartz", "0 0 12 ? * 0", "day of week 0 is out of range 1 to 7", ""),
        ("quartz", "0 0 12 ? * 8", "day of week 8 is out of range 1 to 7", ""),
        ("quartz", "0 0 12 1 1 ? 1969", "year 1969 is out of range 1970 to 2199", ""),
        ("quartz", "0 0 12 1 1 ? 2030-2026", "the range ends before it starts", "write 2026-2030"),
        ("quartz", "0 0 12 30 2 ?", "never fires", "check that the day of month exists"),
        ("quartz", "0 0 12 29 2 ? 2027", "never fires", "check that the day of month exists"),
        ("quartz", "0 H 12 * * ?", "H is not part of the quartz dialect", "use H in the default dialect"),
        ("quartz", "0 0 12 * * ? * *", "6 or 7 fields, not 8", "optionally year"),
        (
            "quartz",
            "CRON_TZ=UTC 0 0 12 * * ?",
            "CRON_TZ= is not part of the quartz dialect",
            "pass the time zone as tz=",
        ),
        ("aws", "0 12 * * *", "an expression for crontab", 'dialect="unix"'),
        ("aws", "0 15 10 ? * 6L", "an expression for Quartz", 'dialect="quartz"'),
        ("aws", "0 15 10 ? * 6L 2026", "an expression for Quartz", 'dialect="quartz"'),
        ("aws", "rate(5 minutes)", "rate(…) is not a cron expression", 'every("5m")'),
        ("aws", "rate(1 day)", "rate(…) is not a cron expression", 'every("1d")'),
        ("aws", "at(2026-12-01T09:00:00)", "at(…) is not a cron expression", 'at("2026-12-01T09:00:00Z")'),
        ("aws", "cron()", "cron() has no fields", "write"),
        ("aws", "0 10 * * * *", "AWS requires ? in exactly one", "write ? in the field"),
    ],
)
def test_a_foreign_expression_is_refused_with_the_right_dialect(
    dialect: str, expression: str, message: str, hint: str
) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        cron(expression, dialect=dialect)
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.position is not None


def test_options_that_do_not_fit_the_dialect_are_refused() -> None:
    with pytest.raises(InvalidSchedule, match="dialect must be one of unix, quartz, aws") as caught:
        cron("0 9 * * *", dialect="spring")
    assert caught.value.pointer == "/dialect"
    with pytest.raises(InvalidSchedule, match="seconds=True is not allowed"):
        cron("0 0 9 * * ?", dialect="quartz", seconds=True)
    with pytest.raises(InvalidSchedule, match="day_match is not allowed"):
        cron("0 0 9 * * ?", dialect="quartz", day_match="both")
    with pytest.raises(InvalidSchedule, match="day_match must be one of either, both"):
        cron("0 9 1 * MON", day_match="and")


def test_equal_schedules_of_different_dialects_share_a_row() -> None:
    row = to_row(cron("0 9 * * 1-5"))
    assert to_row(cron("0 0 9 ? * 2-6", dialect="quartz")) == row
    assert to_row(cron("cron(0 9 ? * 2-6 *)", dialect="aws")) == row
    year = to_row(cron("0 0 9 ? * 2-6 2026", dialect="quartz"))
    assert to_row(cron("cron(0 9 ? * 2-6 2026)", dialect="aws")) == year != row


def test_a_choice_of_days_without_effect_does_not_change_the_row() -> None:
    assert to_row(cron("0 9 * * MON", day_match="either")) == to_row(cron("0 9 * * MON"))
    assert to_row(cron("0 9 1 * MON", day_match="either")) == to_row(cron("0 9 1 * MON"))
    both = to_row(cron("0 9 1 * MON", day_match="both"))
    assert both.dst == "next first day_match=both"
    assert from_row(*both) == cron("0 9 1 * MON", day_match="both")


@pytest.mark.parametrize(
    ("expression", "options", "text"),
    [
        (
            "0 15 10 ? * 6L 2026-2028",
            {"dialect": "quartz"},
            "At 10:15 on the last Friday of the month, only in 2026 to 2028 (UTC)",
        ),
        ("0 9 ? * 2-6 *", {"dialect": "aws"}, "At 09:00 on Monday to Friday (UTC)"),
        ("0 0 13 * FRI", {"day_match": "both"}, "At 00:00 on the 13th of every month, if also on Friday (UTC)"),
        ("0 0 */2 * MON", {"day_match": "either"}, "At 00:00 on every 2nd day of every month or on Monday (UTC)"),
        ("*/90 * * * *", {}, "Every hour"),
        ("0 22-4 * * *", {}, "At minute 0 of hours 22 to 4 (UTC)"),
        ("*/10 22-4 * * *", {}, "Every 10 minutes from 22:00 to 04:59 (UTC)"),
        ("0 0 L-3W * *", {}, "At 00:00 on the weekday nearest the day 3 days before the last of every month (UTC)"),
        ("0 0 29-L * *", {}, "At 00:00 on the 29th to the last day of every month (UTC)"),
        ("0 0 1 NOV-FEB *", {}, "At 00:00 on the 1st of November to February (UTC)"),
    ],
)
def test_descriptions(expression: str, options: dict[str, str], text: str) -> None:
    assert cron(expression, **options).describe() == text  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("expression", "options", "codes"),
    [
        ("0 0 */2 * MON", {}, ["dom_with_dow"]),
        ("0 0 */2 * MON", {"day_match": "both"}, []),
        ("0 0 13 * FRI", {}, ["dom_and_dow"]),
        ("0 0 13 * FRI", {"day_match": "either"}, []),
        ("*/90 * * * *", {}, ["step_exceeds_range"]),
        ("55/10 * * * *", {}, ["step_exceeds_range"]),
        ("0 9 * * *", {}, []),
    ],
)
def test_ambiguous_expressions_are_warned_about(expression: str, options: dict[str, str], codes: list[str]) -> None:
    ahead = summarize_schedule(cron(expression, **options), START)  # type: ignore[arg-type]
    assert [warning.code for warning in ahead.warnings] == codes


def test_the_warning_about_a_wide_step_names_the_interval() -> None:
    [warning] = summarize_schedule(cron("*/90 * * * *"), START).warnings
    assert warning.text == (
        "minute */90: the step is wider than the range, so only minute 0 matches, once per hour;"
        ' for an interval use every("90m")'
    )


def test_a_time_zone_in_the_expression() -> None:
    assert cron("CRON_TZ=Europe/Berlin 0 9 * * *") == cron("0 9 * * *", tz="Europe/Berlin")
    assert cron("TZ=Europe/Berlin 0 9 * * *", tz="Europe/Berlin") == cron("0 9 * * *", tz="Europe/Berlin")
    for tz in ("Europe/Paris", "UTC"):
        with pytest.raises(InvalidSchedule, match="names the time zone Europe/Berlin") as caught:
            cron("CRON_TZ=Europe/Berlin 0 9 * * *", tz=tz)
        assert caught.value.code == "timezone_conflict"


def test_a_schedule_ends_with_its_last_year() -> None:
    schedule = cron("0 0 12 1 * ? 2026", dialect="quartz", tz="Pacific/Kiritimati")
    assert schedule.next_after(datetime(2026, 12, 15, tzinfo=UTC)) is None
    last = schedule.last_at_or_before(datetime(2040, 1, 1, tzinfo=UTC), not_before=datetime(1970, 1, 1, tzinfo=UTC))
    assert last == datetime(2026, 11, 30, 22, tzinfo=UTC)
    assert schedule.count_between(datetime(1970, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)) == 12
