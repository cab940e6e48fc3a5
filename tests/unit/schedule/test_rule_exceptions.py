"""EXDATE, RDATE, BYSECOND and BYSETPOS of recurrence rules, compared with dateutil."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest
from dateutil import rrule as dateutil
from hypothesis import given, settings
from hypothesis import strategies as st

from bellringer.errors import InvalidSchedule
from bellringer.schedule import (
    HolidayCalendar,
    bind_calendar,
    excluded_fires,
    explain_exclusion,
    from_row,
    parse_schedule,
    rrule,
    to_document,
    to_row,
)

START = datetime(2026, 1, 5, 9)  # noqa: DTZ001 - a local time; a Monday
END = datetime(2027, 6, 1)  # noqa: DTZ001
RULES = [
    "FREQ=DAILY",
    "FREQ=DAILY;BYHOUR=9,13;COUNT=60",
    "FREQ=WEEKLY;BYDAY=MO,WE,FR;UNTIL=20260701T120000Z",
    "FREQ=MONTHLY;BYDAY=-1FR",
    "FREQ=DAILY;INTERVAL=3;BYSECOND=0,30",
    "FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1",
    "FREQ=WEEKLY;BYDAY=SA,SU,MO;BYSETPOS=1,2",
    "FREQ=WEEKLY;BYDAY=MO,TU,TH;BYSETPOS=2,-1;BYMONTH=1,12",
]


def utc(at: datetime) -> datetime:
    return at.replace(tzinfo=UTC)


moments = st.integers(-20, 500 * 2).map(lambda n: START + timedelta(hours=n * 12 + (n % 3) * 4, seconds=n % 2 * 30))


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(RULES), st.lists(moments, max_size=8), st.lists(moments, max_size=5))
def test_exceptions_are_those_of_dateutil(rule: str, excluded: list[datetime], added: list[datetime]) -> None:
    theirs = dateutil.rruleset()
    aware = "Z" in rule
    begin = START.replace(tzinfo=UTC) if aware else START
    theirs.rrule(dateutil.rrulestr(rule, dtstart=begin))  # type: ignore[arg-type]
    for at in excluded:
        theirs.exdate(at.replace(tzinfo=UTC) if aware else at)
    for at in added:
        theirs.rdate(at.replace(tzinfo=UTC) if aware else at)
    since, until = datetime(2025, 1, 1), END  # noqa: DTZ001
    first, last = (at.replace(tzinfo=UTC) if aware else at for at in (since, until))
    expected = [at.replace(tzinfo=UTC) for at in theirs.between(first, last, inc=True)]
    ours = rrule(rule, start=START, exdate=excluded, rdate=added)
    found = list(ours.between(utc(since), utc(until)))
    assert found == expected
    assert ours.count_between(utc(since), utc(until)) == len([at for at in expected if at < utc(until)])
    assert [ours.last_at_or_before(at, not_before=at) for at in expected] == expected
    assert from_row(*to_row(ours)) == ours
    assert parse_schedule(to_document(ours)) == ours


def test_positions_are_counted_in_weeks_that_begin_on_wkst() -> None:
    rule = rrule("FREQ=WEEKLY;BYDAY=SA,SU,MO;BYSETPOS=1,-1;WKST=SU", start="2026-01-04T09:00")
    found = rule.between(datetime(2025, 12, 20, tzinfo=UTC), datetime(2026, 1, 19, tzinfo=UTC))
    assert [f"{at:%a %d}" for at in found] == ["Sun 04", "Sat 10", "Sun 11", "Sat 17", "Sun 18"]


def test_a_whole_day_is_excluded() -> None:
    rule = rrule("FREQ=DAILY;BYHOUR=9,17", start=START, exdate=[date(2026, 1, 6), "2026-01-07T17:00"])
    found = [f"{at:%d %H}" for at in rule.between(utc(START) - timedelta(1), utc(START) + timedelta(days=3))]
    assert found == ["05 09", "05 17", "07 09", "08 09"]
    assert rule.describe() == (
        "Every day at 09:00 and 17:00 from 2026-01-05 on, except 2026-01-06 and 2026-01-07 17:00 (UTC)"
    )
    assert to_document(rule)["exdate"] == ["2026-01-06", "2026-01-07T17:00"]


def test_exceptions_are_local_times() -> None:
    rule = rrule(
        "FREQ=DAILY", start=START, tz="America/New_York", exdate=["2026-01-06T09:00"], rdate=["2026-01-06T10:30"]
    )
    found = list(rule.between(utc(START), datetime(2026, 1, 8, tzinfo=UTC)))
    assert [f"{at:%d %H:%M}" for at in found] == ["05 14:00", "06 15:30", "07 14:00"]


def test_the_lines_of_an_icalendar_event() -> None:
    text = (
        "DTSTART;TZID=Europe/Berlin:20260105T090000\r\nRRULE:FREQ=WEEKLY;BYDAY=MO\r\n"
        "EXDATE;TZID=Europe/Berlin:20260112T090000,\r\n 20260119T090000\r\nRDATE;TZID=Europe/Berlin:20260113T090000\r\n"
    )
    rule = rrule(text)
    assert to_document(rule) == {
        "rrule": "FREQ=WEEKLY;BYDAY=MO",
        "start": "2026-01-05T09:00",
        "tz": "Europe/Berlin",
        "exdate": ["2026-01-12T09:00", "2026-01-19T09:00"],
        "rdate": ["2026-01-13T09:00"],
    }
    assert parse_schedule({"rrule": text}) == rule
    assert rrule("FREQ=DAILY\nEXDATE:20260106", start=START) == rrule("FREQ=DAILY", start=START, exdate=["2026-01-06"])
    assert rrule("DTSTART:20260105T090000Z\nRRULE:FREQ=DAILY") == rrule("FREQ=DAILY", start=START)
    with pytest.raises(InvalidSchedule, match="names the time zone Europe/Berlin, but tz is UTC"):
        rrule(text, tz="UTC")


def test_seconds_of_a_rule() -> None:
    assert rrule("FREQ=DAILY;BYSECOND=0", start=START) == rrule("FREQ=DAILY", start=START)
    rule = rrule("FREQ=DAILY;BYSECOND=15,45", start=START)
    assert rule.describe() == "Every day at 09:00:15 and 09:00:45 from 2026-01-05 on (UTC)"


@pytest.mark.parametrize(
    ("options", "pointer", "message"),
    [
        ({"exdate": ["soon"]}, "/exdate", "exdate 'soon' is not a local time"),
        ({"exdate": ["2026-02-30"]}, "/exdate", "is not a local time"),
        ({"exdate": ["2026-01-06T09:00:00Z"]}, "/exdate", "is not a local time"),
        ({"exdate": 5}, "/exdate", "exdate must be a list of local times"),
        ({"rdate": ["2026-01-06"]}, "/rdate", "rdate 2026-01-06 has no time of day"),
        ({"exdate": [date(2026, 1, 1) + timedelta(n) for n in range(101)]}, "/exdate", "the maximum is 100"),
    ],
)
def test_wrong_exceptions_are_refused(options: dict[str, object], pointer: str, message: str) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        rrule("FREQ=DAILY", start=START, **options)  # type: ignore[arg-type]
    assert caught.value.pointer == pointer
    assert message in caught.value.message


def test_a_rule_whose_occurrences_are_all_excluded_never_fires() -> None:
    with pytest.raises(InvalidSchedule, match="never fires"):
        rrule("FREQ=DAILY;COUNT=2", start=START, exdate=["2026-01-05", "2026-01-06"])


def test_exclusions_are_explained() -> None:
    calendar = HolidayCalendar(name="de", dates=frozenset({date(2026, 1, 8)}), weekend=frozenset())
    rule = rrule("FREQ=DAILY", start=START, exdate=["2026-01-06"], calendar="de")
    bound = bind_calendar(rule, {"de": calendar})
    reason = explain_exclusion(bound, datetime(2026, 1, 6, 9, tzinfo=UTC))
    assert reason is not None
    assert (reason.code, reason.text) == ("exdate", "2026-01-06 09:00 is excluded by an EXDATE of the schedule")
    excluded = excluded_fires(bound, utc(START), datetime(2026, 1, 10, tzinfo=UTC), 20)
    assert [(f"{one.at:%d}", one.reason.code) for one in excluded] == [("06", "exdate"), ("08", "calendar")]
    assert excluded_fires(bound, utc(START), datetime(2026, 1, 10, tzinfo=UTC), 1) == excluded[:1]
