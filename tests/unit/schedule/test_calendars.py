"""Days off: what a calendar leaves out and moves, against a walk over every day; and how it is known."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bellringer.errors import InvalidInput, InvalidSchedule
from bellringer.schedule import (
    Cron,
    DaysOff,
    HolidayCalendar,
    Rrule,
    Schedule,
    Shift,
    apply_seed,
    bind_calendar,
    cache_calendar,
    cached_calendar,
    cron,
    every,
    explain_day_off,
    from_row,
    missing_calendar_digests,
    parse_schedule,
    rrule,
    to_document,
    to_row,
)

CHRISTMAS = frozenset(date(2026, 12, day) for day in (24, 25, 26)) | {date(2027, 1, 1)}
GERMAN = HolidayCalendar(name="de", dates=CHRISTMAS)
BERLIN = ZoneInfo("Europe/Berlin")


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def heeding(schedule: Schedule, calendar: HolidayCalendar = GERMAN) -> Cron | Rrule:
    found = bind_calendar(schedule, {calendar.name: calendar})
    assert isinstance(found, Cron | Rrule)
    return found


def days(schedule: Schedule, start: str, end: str) -> list[str]:
    return [f"{t.astimezone(BERLIN):%m-%d}" for t in schedule.between(utc(start), utc(end))]


@pytest.mark.parametrize(
    ("shift", "found"),
    [
        (None, ["12-22", "12-23", "12-28", "12-29", "12-30", "12-31", "01-04"]),
        ("skip", ["12-22", "12-23", "12-28", "12-29", "12-30", "12-31", "01-04"]),
        ("next", ["12-22", "12-23", "12-28", "12-29", "12-30", "12-31", "01-04"]),
        ("previous", ["12-22", "12-23", "12-28", "12-29", "12-30", "12-31", "01-04"]),
    ],
)
def test_two_occurrences_that_meet_are_one(shift: str | None, found: list[str]) -> None:
    schedule = heeding(cron("0 9 * * *", tz="Europe/Berlin", calendar="de", shift=shift))
    assert days(schedule, "2026-12-22", "2027-01-05T00:00") == found


@pytest.mark.parametrize(
    ("shift", "found"),
    [
        ("skip", ["10-01", "12-01"]),
        ("next", ["10-01", "11-02", "12-01", "01-04", "02-01"]),
        ("previous", ["10-01", "10-30", "12-01", "12-31"]),
    ],
)
def test_the_first_of_the_month_moves_across_its_end(shift: str, found: list[str]) -> None:
    schedule = heeding(cron("0 9 1 * *", tz="Europe/Berlin", calendar="de", shift=shift))
    assert days(schedule, "2026-09-15", "2027-02-01T12:00")[: len(found)] == found


def test_the_time_of_day_stays() -> None:
    schedule = heeding(cron("30 6,18 25 12 *", tz="Europe/Berlin", calendar="de", shift="next"))
    found = [t.astimezone(BERLIN) for t in schedule.between(utc("2026-01-01"), utc("2027-01-01"))]
    assert [f"{t:%m-%d %H:%M}" for t in found] == ["12-28 06:30", "12-28 18:30"]


def test_a_rule_moves_too_and_its_last_occurrence_beyond_its_end() -> None:
    rule = rrule("FREQ=DAILY;INTERVAL=5;COUNT=2", start="2026-12-20T09:00", calendar="de", shift="next")
    assert days(heeding(rule), "2026-01-01", "2028-01-01") == ["12-21", "12-28"]
    before = rrule("FREQ=DAILY;INTERVAL=5;COUNT=2", start="2026-12-20T09:00", calendar="de", shift="previous")
    assert days(heeding(before), "2026-01-01", "2028-01-01") == ["12-18", "12-23"]
    left_out = rrule("FREQ=DAILY;COUNT=7", start="2026-12-23T09:00", calendar="de")
    assert days(heeding(left_out), "2026-01-01", "2028-01-01") == ["12-23", "12-28", "12-29"]
    assert heeding(left_out).count_between(utc("2026-01-01"), utc("2028-01-01")) == 3


def walked(schedule: Cron | Rrule, calendar: HolidayCalendar, shift: str, a: datetime, b: datetime) -> list[datetime]:
    """Each occurrence without the calendar, moved by hand, day by day; in UTC, where no clock changes."""
    bare, found = replace(schedule, days_off=None), set()
    for at in bare.between(a - timedelta(days=40), b + timedelta(days=40)):
        moved = at
        while moved.weekday() in calendar.weekend or moved.date() in calendar.dates:
            if shift == "skip":
                break
            moved += timedelta(days=1 if shift == "next" else -1)
        else:
            found.add(moved)
    return sorted(at for at in found if a < at <= b)


offs = st.builds(
    lambda dates, weekend: HolidayCalendar(name="any", dates=frozenset(dates), weekend=frozenset(weekend)),
    st.sets(st.dates(date(2026, 1, 1), date(2026, 6, 30)), max_size=40),
    st.sets(st.integers(0, 6), max_size=5),
)
EXPRESSIONS = [
    "0 9 * * *",
    "0 9,17 1,15 * *",
    "30 8 L * *",
    "0 0 * * MON",
    "0 12 31 * *",
    "*/30 9 */3 * *",
    "0 9 1 2-4 FRI",
]
RULES = ["FREQ=WEEKLY;INTERVAL=2", "FREQ=MONTHLY;BYMONTHDAY=-1", "FREQ=DAILY;INTERVAL=3;BYHOUR=8,20"]
named = st.sampled_from([*EXPRESSIONS, *RULES])


@settings(max_examples=200, deadline=None)
@given(named, offs, st.sampled_from([*Shift]), st.integers(0, 150), st.integers(1, 60))
def test_days_off_are_those_of_a_walk_over_every_day(
    text: str, calendar: HolidayCalendar, shift: Shift, first: int, length: int
) -> None:
    unresolved: Schedule = (
        rrule(text, start="2025-11-03T09:00", calendar="any", shift=shift)
        if text.startswith("FREQ")
        else cron(text, calendar="any", shift=shift)
    )
    schedule = heeding(unresolved, calendar)
    a = utc("2026-01-01") + timedelta(days=first)
    b = a + timedelta(days=length)
    expected = walked(schedule, calendar, shift, a, b)
    assert list(schedule.between(a, b)) == expected
    second = timedelta(seconds=1)
    assert schedule.count_between(a + second, b + second) == len(expected)
    assert schedule.last_at_or_before(b, not_before=a + second) == (expected[-1] if expected else None)
    if expected:
        assert schedule.next_after(a) == expected[0]


def test_a_digest_stands_for_the_content_and_not_for_the_name() -> None:
    assert len(GERMAN.digest) == 32
    assert replace(GERMAN, name="at").digest == GERMAN.digest
    assert replace(GERMAN, weekend=frozenset({4, 5})).digest != GERMAN.digest
    assert replace(GERMAN, dates=CHRISTMAS - {date(2027, 1, 1)}).digest != GERMAN.digest
    # Written down once: rows in the database hold it.
    assert HolidayCalendar(name="x", dates=frozenset({date(2026, 12, 25)})).digest == "cb988a99e734638d6eaa5b2a5ff103e4"


def test_what_is_known_here_and_what_is_missing() -> None:
    calendar = HolidayCalendar(name="new", dates=frozenset({date(2031, 5, 5)}))
    unbound = cron("0 9 * * *", calendar="new")
    strange = replace(unbound, days_off=DaysOff(name="new", digest=calendar.digest))
    assert cached_calendar(calendar.digest) is None
    assert missing_calendar_digests([unbound, every("1h"), strange, cron("0 0 * * *")]) == {calendar.digest}
    with pytest.raises(InvalidSchedule) as caught:
        strange.next_after(utc("2026-01-01"))
    assert caught.value.code == "calendar_unknown"
    cache_calendar(calendar)
    assert cached_calendar(calendar.digest) == calendar
    assert missing_calendar_digests([strange]) == set()
    assert strange.next_after(utc("2026-01-01")) == utc("2026-01-01T09:00")


def test_a_schedule_that_was_not_resolved_is_not_evaluated_but_can_be_shown() -> None:
    schedule = cron("0 9 * * *", calendar="de")
    with pytest.raises(InvalidSchedule) as caught:
        schedule.next_after(utc("2026-01-01"))
    assert caught.value.code == "calendar_unknown"
    with pytest.raises(InvalidSchedule, match="was not looked up"):
        to_row(schedule)
    assert to_document(schedule) == {"cron": "0 9 * * *", "calendar": "de"}
    assert schedule.describe() == "At 09:00 every day (UTC), not on days off of calendar de"


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(InvalidSchedule, match="did you mean germany") as caught:
        bind_calendar(cron("0 9 * * *", calendar="germny"), {"germany": GERMAN, "austria": GERMAN})
    assert (caught.value.code, caught.value.pointer) == ("calendar_unknown", "/calendar")


def test_resolving_binds_to_the_present_content_whatever_was_bound_before() -> None:
    old = heeding(cron("0 9 * * *", calendar="de"))
    newer = replace(GERMAN, dates=CHRISTMAS | {date(2026, 5, 1)})
    again = heeding(old, newer)
    assert again.days_off == DaysOff(name="de", digest=newer.digest)
    forged = parse_schedule({"cron": "0 9 * * *", "calendar": "de", "calendar_digest": "0" * 32})
    assert heeding(forged) == old
    plain = every("1h")
    assert bind_calendar(plain, {}) is plain


@pytest.mark.parametrize("shift", [*Shift])
def test_a_schedule_with_days_off_survives_its_row_and_its_document(shift: Shift) -> None:
    for schedule in (
        heeding(cron("H 9 * * *", seed="x", tz="Europe/Berlin", calendar="de", shift=shift)),
        heeding(rrule("FREQ=DAILY", start="2026-01-01T09:00", calendar="de", shift=shift)),
    ):
        assert parse_schedule(to_document(schedule)) == schedule
        row = to_row(schedule)
        assert row.calendar == f"{GERMAN.digest} {shift}"
        again = from_row(*row)
        assert to_row(again) == row
        a, b = utc("2026-12-01"), utc("2027-01-31")
        assert list(again.between(a, b)) == list(schedule.between(a, b))


def test_a_calendar_by_another_name_gives_the_same_row() -> None:
    one = heeding(cron("0 9 * * *", calendar="de"))
    other = heeding(cron("0 9 * * *", calendar="holidays"), replace(GERMAN, name="holidays"))
    assert to_row(one) == to_row(other)


def test_a_seed_keeps_the_calendar() -> None:
    schedule = apply_seed(heeding(cron("H 9 * * *", calendar="de", shift="next")), "x")
    assert isinstance(schedule, Cron)
    assert schedule.days_off == DaysOff(name="de", digest=GERMAN.digest, shift=Shift.NEXT)


@pytest.mark.parametrize(
    ("shift", "text"),
    [
        ("skip", "2026-12-25 is a day off in calendar de; the occurrence is skipped"),
        ("next", "2026-12-25 is a day off in calendar de; the occurrence moved to 2026-12-28"),
        ("previous", "2026-12-25 is a day off in calendar de; the occurrence moved to 2026-12-23"),
    ],
)
def test_why_an_occurrence_was_moved(shift: str, text: str) -> None:
    schedule = heeding(cron("0 9 25 * *", tz="Europe/Berlin", calendar="de", shift=shift))
    assert explain_day_off(schedule, utc("2026-12-25T08:00")) == text
    assert explain_day_off(schedule, utc("2026-12-25T09:00")) is None
    assert explain_day_off(schedule, utc("2026-11-25T08:00")) is None
    assert explain_day_off(replace(schedule, days_off=None), utc("2026-12-25T08:00")) is None
    assert explain_day_off(every("1h"), utc("2026-12-25T08:00")) is None


def test_an_occurrence_out_of_a_skipped_day_is_judged_by_that_day() -> None:
    friday = HolidayCalendar(name="de", dates=frozenset({date(2011, 12, 30)}), weekend=frozenset())
    schedule = heeding(cron("30 9 * * *", tz="Pacific/Apia", calendar="de"), friday)
    assert list(schedule.between(utc("2011-12-29T10:00"), utc("2011-12-31T10:00"))) == [
        utc("2011-12-29T19:30"),
        utc("2011-12-30T19:30"),
    ]
    explained = explain_day_off(schedule, utc("2011-12-30T10:00"))
    assert explained == "2011-12-30 is a day off in calendar de; the occurrence is skipped"


@pytest.mark.parametrize(
    ("calendar", "says"),
    [
        (HolidayCalendar(name="x", weekend=frozenset(range(7))), "weekend contains all seven days"),
        (HolidayCalendar(name="x", weekend=frozenset({7})), "weekend must contain days from 0 to 6, not 7"),
        (
            HolidayCalendar(name="x", dates=frozenset(date(2026, 1, 1) + timedelta(days=n) for n in range(366))),
            "no working day for 366 days",
        ),
        (
            HolidayCalendar(name="x", dates=frozenset(date(2026, 1, 1) + timedelta(days=n) for n in range(10_001))),
            "the maximum is 10000",
        ),
    ],
)
def test_a_calendar_that_cannot_be_used_is_refused(calendar: HolidayCalendar, says: str) -> None:
    with pytest.raises(InvalidInput, match=says) as caught:
        calendar.validate()
    assert caught.value.code == "calendar_invalid"


def test_a_long_rest_is_allowed() -> None:
    rest = HolidayCalendar(name="de", dates=frozenset(date(2026, 1, 5) + timedelta(days=n) for n in range(300)))
    assert rest.validate() is rest
    schedule = heeding(cron("0 9 6 1 *", calendar="de", shift="next"), rest)
    assert schedule.next_after(utc("2026-01-01")) == utc("2026-11-02T09:00")


def test_a_schedule_without_any_working_day_says_never_soon_enough() -> None:
    schedule = heeding(cron("0 9 * * SAT,SUN", tz="Europe/Berlin", calendar="de"))
    began = time.perf_counter()
    assert schedule.next_after(utc("2026-01-01")) is None
    assert schedule.last_at_or_before(utc("2026-01-01"), not_before=utc("2000-01-01")) is None
    assert time.perf_counter() - began < 1


def test_ten_thousand_next_occurrences_with_days_off_take_less_than_a_second() -> None:
    schedule, now = heeding(cron("0 9 * * *", tz="America/New_York", calendar="de", shift="next")), utc("2026-01-01")
    began = time.perf_counter()
    for _ in range(10_000):
        now = schedule.next_after(now) or now
    assert time.perf_counter() - began < 1
