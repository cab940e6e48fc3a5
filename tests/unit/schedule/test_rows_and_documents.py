"""Schedules as rows and as documents, there and back."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest

from bellringer.errors import InvalidSchedule
from bellringer.schedule import (
    HolidayCalendar,
    Schedule,
    ScheduleRow,
    at,
    cache_calendar,
    cron,
    delay,
    every,
    from_row,
    parse_schedule,
    rrule,
    to_document,
    to_row,
)

SCHEDULES = [
    (cron("0  9 * * mon-fri", tz="Europe/Paris"), {"cron": "0 9 * * MON-FRI", "tz": "Europe/Paris"}),
    (cron("*/5 * * * * *", seconds=True), {"cron": "*/5 * * * * *", "seconds": True}),
    (cron("@daily", gap="skip", fold="both"), {"cron": "0 0 * * *", "gap": "skip", "fold": "both"}),
    (cron("@daily", gap="next", fold="first"), {"cron": "0 0 * * *"}),
    (cron("@hourly", gap="next"), {"cron": "0 * * * *", "gap": "next"}),
    (
        rrule("freq=weekly;byday=fr,MO;interval=02", start="2026-01-02T09:00:00", tz="Europe/Paris", fold="second"),
        {
            "rrule": "FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,FR",
            "start": "2026-01-02T09:00",
            "tz": "Europe/Paris",
            "fold": "second",
        },
    ),
    (every("90m"), {"every": "1h30m"}),
    (every("15m", offset="5m"), {"every": "15m", "offset": "5m"}),
    (every("7d", anchor="2026-12-07T09:00:00Z"), {"every": "7d", "offset": "4d9h"}),
    (delay("500ms"), {"delay": "500ms"}),
    (at("2026-12-01T10:00:00+01:00"), {"at": "2026-12-01T09:00:00Z"}),
    (at("2026-12-01T09:00:00.25Z"), {"at": "2026-12-01T09:00:00.250000Z"}),
]


@pytest.mark.parametrize(("schedule", "document"), SCHEDULES)
def test_a_schedule_survives_its_row_and_its_document(schedule: Schedule, document: dict[str, object]) -> None:
    assert to_document(schedule) == document
    assert parse_schedule(document) == schedule
    row = to_row(schedule)
    assert from_row(*row) == schedule
    assert [type(value) for value in row] == [str, str, str, str, bool, str, str]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (cron("*/15 * * * *"), cron(" */15  * * * * ")),
        (cron("0 9 * jan mon"), cron("00 09 * JAN MON")),
        (cron("@hourly"), cron("0 * * * *")),
        (every("60m"), every(3600)),
        (every("1h", anchor="2026-01-01T05:00:00Z"), every("PT1H")),
        (at("2026-12-01T09:00:00Z"), at(datetime(2026, 12, 1, 9, tzinfo=UTC))),
    ],
)
def test_equal_schedules_have_equal_rows(one: Schedule, other: Schedule) -> None:
    assert one == other
    assert to_row(one) == to_row(other)
    assert hash(to_row(one)) == hash(to_row(other))


def test_what_a_kind_does_not_use_is_empty_in_its_row() -> None:
    empty = ScheduleRow(kind="delay", expression="10s", timezone="", anchor="", seconds=False, dst="", calendar="")
    assert to_row(delay("10s")) == empty
    assert (to_row(cron("0 0 * * *")).dst, to_row(cron("0 * * * *")).dst) == ("next first", "skip both")


def test_rows_read_again_are_the_same_object() -> None:
    columns = ("cron", "0 9 * * *", "UTC", "", False, "next first", "")
    assert from_row(*columns) is from_row(*columns)


def test_a_row_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InvalidSchedule, match="unknown schedule kind 'moon'"):
        from_row("moon", "", "", "", seconds=False, dst="", calendar="")


@pytest.mark.parametrize(
    ("document", "code", "pointer", "says"),
    [
        ({"crno": "0 9 * * *"}, "unknown_field", "/schedule/crno", "did you mean cron?"),
        ({"cron": "0 9 * * *", "timezone": "UTC"}, "unknown_field", "/schedule/timezone", "did you mean tz?"),
        ({"every": "5m", "of/set": "1m"}, "unknown_field", "/schedule/of~1set", "did you mean offset?"),
        ({"every": "5m", "tz": "UTC"}, "unknown_field", "/schedule/tz", "it is an option of 'cron'"),
        ({"at": "2026-12-01T09:00:00Z", "offset": "5m"}, "unknown_field", "/schedule/offset", "'every'"),
        ({5: "5m"}, "unknown_field", "/schedule/5", "unknown field '5' in the schedule"),
        ({}, "schedule_invalid", "/schedule", "the schedule has no kind"),
        ({"tz": "UTC"}, "schedule_invalid", "/schedule", "the schedule has no kind"),
        (
            {"every": "5m", "cron": "* * * * *"},
            "schedule_invalid",
            "/schedule/every",
            "several kinds: cron and every",
        ),
        ({"cron": "60 * * * *"}, "cron_invalid", "/schedule/cron", "minute 60"),
        ({"cron": 5}, "cron_invalid", "/schedule/cron", "not int"),
        ({"cron": "* * * * *", "tz": "Mars"}, "timezone_unknown", "/schedule/tz", "unknown time zone 'Mars'"),
        ({"cron": "* * * * *", "seconds": 1}, "schedule_invalid", "/schedule/seconds", "must be true or false"),
        ({"cron": "* * * * *", "gap": "odd"}, "gap_unknown", "/schedule/gap", "must be one of"),
        ({"cron": "* * * * *", "fold": ["first"]}, "fold_unknown", "/schedule/fold", "must be one of"),
        ({"cron": "* * * * *", "seed": "x"}, "seed_invalid", "/schedule/seed", "write H in a field"),
        ({"cron": "H * * * *", "seed": ""}, "seed_invalid", "/schedule/seed", "1 to 256"),
        ({"cron": "* * * * *", "shift": "next"}, "schedule_invalid", "/schedule/shift", "requires a calendar"),
        (
            {"cron": "* * * * *", "calendar": 5},
            "calendar_invalid",
            "/schedule/calendar",
            "must be the name of a calendar",
        ),
        ({"cron": "* * * * *", "calendar": "de", "shift": "up"}, "shift_unknown", "/schedule/shift", "must be one of"),
        (
            {"cron": "* * * * *", "calendar": "de", "calendar_digest": "x"},
            "calendar_invalid",
            "/schedule/calendar_digest",
            "32 hex",
        ),
        (
            {"every": "5m", "calendar": "de"},
            "unknown_field",
            "/schedule/calendar",
            "calendars work with cron and rrule",
        ),
        ({"delay": "5m", "shift": "next"}, "unknown_field", "/schedule/shift", "calendars work with cron and rrule"),
        (
            {"at": "2026-12-01T09:00:00Z", "calendar": "de"},
            "unknown_field",
            "/schedule/calendar",
            "calendars work with cron and rrule",
        ),
        ({"rrule": "FREQ=DAILY"}, "start_invalid", "/schedule/start", "needs 'start'"),
        (
            {"rrule": "FREQ=DAILY", "start": "2026-01-01T00:00Z"},
            "start_invalid",
            "/schedule/start",
            "without an offset",
        ),
        ({"rrule": "FREQ=DAYLY", "start": "2026-01-01T00:00"}, "rrule_invalid", "/schedule/rrule", "DAILY"),
        ({"every": "5"}, "duration_invalid", "/schedule/every", 'add a unit: "5s"'),
        ({"every": 0}, "duration_out_of_range", "/schedule/every", "use a duration from 1s to 366d"),
        ({"every": "5m", "offset": "x"}, "duration_invalid", "/schedule/offset", "offset 'x'"),
        ({"every": "5m", "anchor": "2026-01-01T00:00:00"}, "offset_required", "/schedule/anchor", "anchor"),
        ({"delay": None}, "duration_invalid", "/schedule/delay", "NoneType"),
        ({"at": "tomorrow"}, "datetime_invalid", "/schedule/at", "RFC 3339"),
        ([], "schedule_invalid", "/schedule", "a schedule must be an object, not list"),
        ("0 9 * * *", "schedule_invalid", "/schedule", "a schedule must be an object, not str"),
    ],
)
def test_a_bad_document_is_refused_where_it_is_wrong(document: object, code: str, pointer: str, says: str) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        parse_schedule(document)  # type: ignore[arg-type]
    assert (caught.value.code, caught.value.pointer) == (code, pointer)
    assert says in str(caught.value)


def test_a_document_takes_numbers_of_seconds() -> None:
    assert parse_schedule({"every": 900}) == every("15m")
    assert parse_schedule({"delay": 1.5}) == delay("1500ms")


def test_what_is_exported_is_sorted_and_complete() -> None:
    import bellringer.schedule as package

    assert package.__all__ == sorted(package.__all__)
    assert all(hasattr(package, name) for name in package.__all__)


# The rows of the release before dialects and repeat counts. A row that changes moves jobs to another cohort.
RELEASED_ROWS = [
    (
        {"cron": "0 9 * * MON-FRI", "tz": "Europe/Paris"},
        ("cron", "0 9 * * MON-FRI", "Europe/Paris", "", False, "next first", ""),
    ),
    ({"cron": "H H * * *", "seed": "x"}, ("cron", "36 3 * * *", "UTC", "", False, "next first", "")),
    ({"cron": "H/15 H(1-5) H * H", "seed": "y"}, ("cron", "7-52/15 1 24 * 4", "UTC", "", False, "next first", "")),
    ({"cron": "*/5 * * * * *", "seconds": True}, ("cron", "*/5 * * * * *", "UTC", "", True, "skip both", "")),
    ({"cron": "0 0 L-3,15W,LW * *"}, ("cron", "0 0 L-3,15W,LW * *", "UTC", "", False, "next first", "")),
    ({"cron": "0 0 * * MON#2,5L"}, ("cron", "0 0 * * MON#2,5L", "UTC", "", False, "next first", "")),
    (
        {"rrule": "FREQ=WEEKLY;INTERVAL=2;BYDAY=FR", "start": "2026-01-02T09:00", "tz": "Europe/Berlin"},
        ("rrule", "FREQ=WEEKLY;INTERVAL=2;BYDAY=FR", "Europe/Berlin", "2026-01-02T09:00", False, "next first", ""),
    ),
    (
        {"rrule": "FREQ=DAILY;COUNT=5", "start": "2026-01-02T09:00:30"},
        ("rrule", "FREQ=DAILY;COUNT=5", "UTC", "2026-01-02T09:00:30", False, "next first", ""),
    ),
    ({"every": "15m", "offset": "1m"}, ("every", "15m", "", "1970-01-01T00:01:00Z", False, "", "")),
    ({"every": "1h"}, ("every", "1h", "", "", False, "", "")),
    ({"delay": "5m"}, ("delay", "5m", "", "", False, "", "")),
    ({"at": "2026-12-01T09:00:00Z"}, ("at", "2026-12-01T09:00:00Z", "", "", False, "", "")),
    (
        {"cron": "0 9 1 * *", "calendar": "de", "calendar_digest": "cb988a99e734638d6eaa5b2a5ff103e4", "shift": "next"},
        ("cron", "0 9 1 * *", "UTC", "", False, "next first", "cb988a99e734638d6eaa5b2a5ff103e4 next"),
    ),
    ({"cron": "@daily"}, ("cron", "0 0 * * *", "UTC", "", False, "next first", "")),
    (
        {"cron": "0 0 13 * FRI", "gap": "skip", "fold": "both"},
        ("cron", "0 0 13 * FRI", "UTC", "", False, "skip both", ""),
    ),
]


@pytest.mark.parametrize(("document", "row"), RELEASED_ROWS)
def test_the_stored_form_of_released_schedules_does_not_change(
    document: dict[str, object], row: tuple[Any, ...]
) -> None:
    cache_calendar(HolidayCalendar(name="de", dates=frozenset({date(2026, 12, 25)})))
    assert to_row(parse_schedule(document)) == row
    assert to_row(from_row(*row)) == row
