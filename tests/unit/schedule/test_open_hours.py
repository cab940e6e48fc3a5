"""Calendars with working hours, compared with a walk over every minute."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

from bellringer.errors import InvalidInput, InvalidSchedule
from bellringer.schedule import (
    Cron,
    HolidayCalendar,
    Rrule,
    bind_calendar,
    cron,
    explain_day_off,
    fires_per_minute,
    format_hours,
    from_row,
    parse_hours,
    rrule,
    to_row,
)

OFFICE = ["MON-THU 09:00-12:00", "MON-THU 13:00-17:30", "FRI 09:00-15:00"]
HOLIDAYS = frozenset({date(2026, 4, 3), date(2026, 4, 6), date(2026, 5, 1)})
START, END = datetime(2026, 3, 20, tzinfo=UTC), datetime(2026, 5, 5, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def office(hours: list[str] | None = None, dates: frozenset[date] = HOLIDAYS) -> HolidayCalendar:
    return HolidayCalendar(name="office", dates=dates, hours=parse_hours(OFFICE if hours is None else hours)).validate()


def is_open(at: datetime, calendar: HolidayCalendar) -> bool:
    minute = at.hour * 60 + at.minute
    return not calendar.is_off(at.date()) and any(
        one.weekday == at.weekday() and one.start <= minute < one.end for one in calendar.hours
    )


def walk(named: list[datetime], calendar: HolidayCalendar, shift: str) -> list[datetime]:
    """Moves each occurrence day by day to a working day, and then minute by minute into the hours."""
    found: set[datetime] = set()
    step = {"skip": 0, "next": 1, "previous": -1}[shift]
    for occurrence in named:
        at = occurrence
        while step and calendar.is_off(at.date()):
            at += timedelta(days=step)
        if step and not is_open(at, calendar):
            at = at.replace(second=0)
        while step and not is_open(at, calendar):
            at += step * MINUTE
        if is_open(at, calendar):
            found.add(at)
    return sorted(found)


EXPRESSIONS = [
    "0 * * * *",
    "30 7 * * *",
    "*/17 8-18 * * *",
    "0 12 * * *",
    "0 23 1,15,L * *",
    "15 3 * * SAT",
    "59 17 * * FRI",
]


@pytest.mark.parametrize("shift", ["skip", "next", "previous"])
@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.parametrize("hours", [OFFICE, ["MON-SUN 00:00-24:00"], ["TUE 22:00-24:00", "WED 00:00-02:00"]])
def test_occurrences_are_those_of_a_walk_over_every_minute(expression: str, shift: str, hours: list[str]) -> None:
    calendar = office(hours)
    bare = cron(expression)
    margin = timedelta(days=12)
    named = list(bare.between(START - margin, END + margin))
    expected = [at for at in walk(named, calendar, shift) if START < at <= END]
    schedule = bind_calendar(cron(expression, calendar="office", shift=shift), {"office": calendar})
    assert list(schedule.between(START, END)) == expected
    assert schedule.count_between(START + MINUTE, END + MINUTE) == len(expected)
    behind, at = [], END
    while (found := schedule.last_at_or_before(at, not_before=START + MINUTE)) is not None:
        behind.append(found)
        at = found - timedelta(seconds=1)
    assert behind[::-1] == expected
    assert fires_per_minute(schedule) >= 0


@pytest.mark.parametrize("shift", ["skip", "next", "previous"])
@pytest.mark.parametrize("rule", ["FREQ=DAILY;COUNT=40", "FREQ=DAILY;UNTIL=20260415T000000", "FREQ=WEEKLY;BYDAY=FR,SA"])
def test_rules_with_hours(rule: str, shift: str) -> None:
    calendar = office()
    for start in ("2026-03-04T08:00", "2026-03-04T17:45", "2026-03-04T10:00"):
        bare = rrule(rule, start=start)
        named = list(bare.between(START - timedelta(days=12), END + timedelta(days=12)))
        expected = [at for at in walk(named, calendar, shift) if START < at <= END]
        schedule = bind_calendar(rrule(rule, start=start, calendar="office", shift=shift), {"office": calendar})
        assert list(schedule.between(START, END)) == expected
        assert schedule.count_between(START, END) == len(expected)


def test_hours_are_local_times() -> None:
    made = cron("0 * * * *", tz="America/New_York", calendar="office", times=2, start="2026-03-23T00:00:00Z")
    schedule = bind_calendar(made, {"office": office()})
    found = list(schedule.between(START, END))
    assert found == [datetime(2026, 3, 23, 13, tzinfo=UTC), datetime(2026, 3, 23, 14, tzinfo=UTC)]


def test_the_row_of_a_calendar_with_hours_is_refused_by_programs_that_do_not_know_hours() -> None:
    schedule = bind_calendar(cron("0 * * * *", calendar="office", shift="next"), {"office": office()})
    row = to_row(schedule)
    assert row.calendar == f"{office().digest} next"
    assert office().digest.startswith("h")  # earlier versions accept hexadecimal digits only
    assert len(office().digest) == 32
    read = from_row(*row)
    assert isinstance(read, Cron | Rrule)
    assert list(read.between(START, END)) == list(schedule.between(START, END))


def test_the_digest_of_a_calendar_without_hours_is_that_of_earlier_versions() -> None:
    calendar = HolidayCalendar(name="de", dates=frozenset({date(2026, 12, 25)}))
    assert calendar.digest == "cb988a99e734638d6eaa5b2a5ff103e4"
    assert office([], frozenset()).digest == HolidayCalendar(name="x").digest
    assert office().digest != office(dates=HOLIDAYS, hours=[]).digest


OUTSIDE = "12:00 on 2026-03-04 is outside of the hours of calendar office; the occurrence "
NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
HOLIDAY = datetime(2026, 4, 3, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    ("at", "shift", "text"),
    [
        (NOON, "skip", f"{OUTSIDE}is skipped"),
        (NOON, "next", f"{OUTSIDE}moved to the beginning of the next hours"),
        (NOON, "previous", f"{OUTSIDE}moved to the last minute of the hours before"),
        (HOLIDAY, "skip", "2026-04-03 is a day off in calendar office; the occurrence is skipped"),
    ],
)
def test_occurrences_outside_of_the_hours_are_explained(at: datetime, shift: str, text: str) -> None:
    schedule = bind_calendar(cron("0 * * * *", calendar="office", shift=shift), {"office": office()})
    assert explain_day_off(schedule, at) == text
    assert explain_day_off(schedule, datetime(2026, 3, 4, 9, tzinfo=UTC)) is None


def test_hours_are_written_as_they_are_read() -> None:
    assert format_hours(parse_hours(OFFICE)) == OFFICE
    assert format_hours(parse_hours(["sat,sun 10:00 - 14:00"])) == ["SAT,SUN 10:00-14:00"]
    assert format_hours(parse_hours(["FRI-MON 8:00-9:00"])) == ["MON,FRI,SAT,SUN 08:00-09:00"]
    assert parse_hours(format_hours(parse_hours(OFFICE))) == parse_hours(OFFICE)


@pytest.mark.parametrize(
    ("hours", "message"),
    [
        (["9 to 5"], "is not a range of hours"),
        (["MON 09:00-25:00"], "25:00 is not a time of day"),
        (["MON 22:00-06:00"], "end before they begin"),
        (["XYZ 09:00-10:00"], "XYZ is not a day of the week"),
        (["MON 09:00-12:00", "MON 11:00-13:00"], "overlap or touch"),
        ([5], "is not a range of hours"),
    ],
)
def test_wrong_hours_are_refused(hours: list[str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        parse_hours(hours)
    assert caught.value.pointer.startswith("/hours")


def test_hours_on_the_weekend_only_are_refused() -> None:
    with pytest.raises(InvalidInput, match="all hours are on days of the weekend"):
        office(["SAT 09:00-10:00"])


def test_a_calendar_that_is_not_loaded_is_refused() -> None:
    with pytest.raises(InvalidSchedule, match="is not loaded"):
        cron("0 9 * * *", calendar="office").next_after(START)
