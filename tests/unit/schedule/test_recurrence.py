"""Recurrence rules: dates written by hand, dateutil as a second opinion, and cron as a third."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile

import pytest
from dateutil.rrule import rrulestr
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from bellringer.errors import InvalidSchedule
from bellringer.schedule import DstFold, DstGap, Rrule, cron, from_row, next_fires, rrule, to_row

WORKDAYS = "MO,TU,WE,TH,FR"
NAMES = "Monday, Tuesday, Wednesday, Thursday and Friday"


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def days(schedule: Rrule, start: str, end: str) -> list[str]:
    return [f"{instant:%m-%d}" for instant in schedule.between(utc(start), utc(end))]


def test_every_second_friday() -> None:
    schedule = rrule("FREQ=WEEKLY;INTERVAL=2;BYDAY=FR", start="2026-01-02T09:00", tz="Europe/Berlin")
    found = next_fires(schedule, utc("2026-03-01"), 5)
    assert [f"{fire.local:%a %m-%d %H:%M %Z}" for fire in found] == [
        "Fri 03-13 09:00 CET",
        "Fri 03-27 09:00 CET",
        "Fri 04-10 09:00 CEST",
        "Fri 04-24 09:00 CEST",
        "Fri 05-08 09:00 CEST",
    ]
    assert days(schedule, "2026-12-15", "2027-02-01") == ["12-18", "01-01", "01-15", "01-29"]


def test_the_last_workday_of_the_month() -> None:
    schedule = rrule(f"FREQ=MONTHLY;BYDAY={WORKDAYS};BYSETPOS=-1", start="2026-01-02T17:30")
    assert days(schedule, "2026-01-01", "2027-01-01") == [
        *("01-30", "02-27", "03-31", "04-30", "05-29", "06-30"),
        *("07-31", "08-31", "09-30", "10-30", "11-30", "12-31"),
    ]


@pytest.mark.parametrize(
    ("rule", "found"),
    [
        ("FREQ=DAILY;INTERVAL=10", ["01-05", "01-15", "01-25", "02-04"]),
        ("FREQ=DAILY;BYMONTH=2;BYDAY=SU", ["02-01", "02-08", "02-15", "02-22"]),
        ("FREQ=WEEKLY", ["01-05", "01-12", "01-19", "01-26"]),
        ("FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,SU", ["01-05", "01-11", "01-19", "01-25"]),
        ("FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,SU;WKST=SU", ["01-05", "01-18", "01-19", "02-01"]),
        ("FREQ=MONTHLY", ["01-05", "02-05", "03-05", "04-05"]),
        ("FREQ=MONTHLY;BYMONTHDAY=-1", ["01-31", "02-28", "03-31", "04-30"]),
        ("FREQ=MONTHLY;BYDAY=2TU", ["01-13", "02-10", "03-10", "04-14"]),
        ("FREQ=MONTHLY;BYDAY=-1FR", ["01-30", "02-27", "03-27", "04-24"]),
        ("FREQ=MONTHLY;INTERVAL=5;BYMONTHDAY=31", ["01-31", "07-31", "12-31", "05-31"]),
        ("FREQ=MONTHLY;BYMONTHDAY=13;BYDAY=FR", ["02-13", "03-13", "11-13", "08-13"]),
        ("FREQ=YEARLY", ["01-05", "01-05", "01-05", "01-05"]),
        ("FREQ=YEARLY;BYMONTH=11;BYDAY=4TH", ["11-26", "11-25", "11-23", "11-22"]),
        ("FREQ=YEARLY;BYYEARDAY=100", ["04-10", "04-10", "04-09", "04-10"]),
        ("FREQ=YEARLY;BYWEEKNO=20;BYDAY=MO", ["05-11", "05-17", "05-15", "05-14"]),
        ("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29", ["02-29", "02-29", "02-29", "02-29"]),
        ("FREQ=DAILY;COUNT=3", ["01-05", "01-06", "01-07"]),
        ("FREQ=DAILY;UNTIL=20260107", ["01-05", "01-06", "01-07"]),
        ("FREQ=DAILY;UNTIL=20260107T085959", ["01-05", "01-06"]),
        ("FREQ=DAILY;UNTIL=20260107T090000Z", ["01-05", "01-06", "01-07"]),
    ],
)
def test_rules_against_handwritten_dates(rule: str, found: list[str]) -> None:
    schedule = rrule(rule, start="2026-01-05T09:00")
    assert [f"{t:%m-%d}" for t in islice(schedule.between(utc("2000-01-01"), utc("2060-01-01")), 4)] == found


def test_several_times_a_day_begin_at_the_start_and_end_with_the_count() -> None:
    schedule = rrule("FREQ=DAILY;BYHOUR=8,12;BYMINUTE=0,30;COUNT=5", start="2026-01-05T12:00")
    assert [f"{t:%d %H:%M}" for t in schedule.between(utc("2026-01-01"), utc("2027-01-01"))] == [
        *("05 12:00", "05 12:30", "06 08:00", "06 08:30", "06 12:00")
    ]
    assert schedule.count_between(utc("2026-01-01"), utc("2099-01-01")) == 5
    last = utc("2026-01-06T12:00")
    assert schedule.last_at_or_before(utc("2030-01-01"), not_before=utc("2026-01-01")) == last
    assert schedule.next_after(last) is None


def test_until_in_utc_is_read_in_the_zone() -> None:
    schedule = rrule("FREQ=DAILY;UNTIL=20260107T140000Z", start="2026-01-05T09:00", tz="America/New_York")
    assert [t.day for t in schedule.between(utc("2026-01-01"), utc("2026-02-01"))] == [5, 6, 7]
    shorter = rrule("FREQ=DAILY;UNTIL=20260107T135959Z", start="2026-01-05T09:00", tz="America/New_York")
    assert [t.day for t in shorter.between(utc("2026-01-01"), utc("2026-02-01"))] == [5, 6]


@pytest.mark.parametrize("gap", [None, *DstGap])
@pytest.mark.parametrize("fold", [None, *DstFold])
@pytest.mark.parametrize("zone", ["America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo", "Pacific/Apia"])
@pytest.mark.parametrize(("hour", "minute"), [(0, 0), (1, 30), (2, 30), (9, 30)])
def test_a_daily_rule_meets_clock_changes_as_a_fixed_time_of_cron_does(
    hour: int, minute: int, zone: str, fold: DstFold | None, gap: DstGap | None
) -> None:
    rule = rrule("FREQ=DAILY", start=f"2010-01-01T{hour:02}:{minute:02}", tz=zone, gap=gap, fold=fold)
    same = cron(f"{minute} {hour} * * *", tz=zone, gap=gap, fold=fold)
    a, b = utc("2011-01-01"), utc("2013-01-01")
    expected = list(same.between(a, b))
    assert list(rule.between(a, b)) == expected
    assert [rule.flags_of(t) for t in expected] == [same.flags_of(t) for t in expected]
    assert rule.count_between(a, b) == same.count_between(a, b)
    moment = a
    while moment < b:
        assert rule.last_at_or_before(moment, not_before=a) == same.last_at_or_before(moment, not_before=a)
        moment += timedelta(hours=25, minutes=35)


def test_a_rule_that_begins_or_ends_in_the_fold_is_asked_between_its_two_passes() -> None:
    first, second = utc("2026-11-01T05:30"), utc("2026-11-01T06:30")
    ends = rrule("FREQ=DAILY;COUNT=2", start="2026-11-01T01:30", tz="America/New_York", fold="both")
    for asked in (utc("2026-11-01T05:45"), utc("2026-11-01T06:15")):
        assert ends.next_after(asked) == second
        assert ends.last_at_or_before(asked, not_before=utc("2026-01-01")) == first
    assert list(ends.between(utc("2026-01-01"), utc("2027-01-01"))) == [first, second]
    late = rrule("FREQ=DAILY;COUNT=1", start="2026-11-01T01:30", tz="America/New_York", fold="second")
    assert late.next_after(utc("2026-11-01T05:45")) == second
    assert late.last_at_or_before(utc("2026-11-01T06:15"), not_before=utc("2026-01-01")) is None


def numbers(*values: int) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(values), min_size=1, max_size=4, unique=True).map(
        lambda chosen: ",".join(map(str, chosen))
    )


def part(name: str, values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(st.just(""), values.map(lambda value: f";{name}={value}"))


weekdays = st.lists(st.sampled_from(["MO", "TU", "WE", "TH", "FR", "SA", "SU"]), min_size=1, max_size=4, unique=True)
counted = st.lists(st.sampled_from(["1MO", "2TU", "-1FR", "-2SU", "5WE", "3SA"]), min_size=1, max_size=3, unique=True)
byday = part("BYDAY", weekdays.map(",".join))
common = [
    part("INTERVAL", st.integers(1, 5).map(str)),
    part("BYMONTH", numbers(1, 2, 6, 9, 12)),
    part("BYHOUR", numbers(0, 8, 23)),
]
parts = st.one_of(
    st.tuples(st.just("FREQ=DAILY"), *common, byday, part("BYMONTHDAY", numbers(1, 2, 15, 30, -1))),
    st.tuples(st.just("FREQ=WEEKLY"), *common, byday, part("WKST", st.sampled_from(["SU", "WE"]))),
    st.tuples(st.just("FREQ=MONTHLY"), *common[:2], byday, part("BYSETPOS", numbers(1, 2, -1, -2))),
    st.tuples(st.just("FREQ=MONTHLY"), *common, part("BYDAY", counted.map(",".join))),
    st.tuples(st.just("FREQ=MONTHLY"), *common, part("BYMONTHDAY", numbers(1, 13, 29, 31, -1, -31))),
    st.tuples(st.just("FREQ=YEARLY"), *common, part("BYDAY", counted.map(",".join))),
    st.tuples(st.just("FREQ=YEARLY"), *common[:2], byday, part("BYSETPOS", numbers(1, 3, -1))),
    st.tuples(st.just("FREQ=YEARLY"), *common[::2], part("BYYEARDAY", numbers(1, 60, 200, 366, -1, -300)), byday),
    st.tuples(st.just("FREQ=YEARLY"), *common[::2], part("BYWEEKNO", numbers(1, 2, 20, 53, -1)), byday),
)
starts = st.integers(0, 10 * 366 * 1440).map(lambda n: datetime.fromisoformat("2020-01-01") + timedelta(minutes=n))


def refusal_of(text: str, start: datetime) -> InvalidSchedule | None:
    try:
        rrule(text, start=start)
    except InvalidSchedule as refusal:
        return refusal
    return None


@settings(max_examples=300, deadline=None)
@given(parts.map("".join), starts)
def test_dateutil_agrees(text: str, start: datetime) -> None:
    if refusal := refusal_of(text, start):
        assert refusal.code in ("rrule_never_fires", "rrule_unsupported")
        reject()
    schedule = rrule(text, start=start)
    end = start + timedelta(days=3700)
    # Some rules have a day in no year of these ten, and dateutil would walk on; a day off the rule stops it.
    theirs = rrulestr(text + f";UNTIL={end:%Y%m%dT%H%M%S}", dtstart=start)
    expected = [t.replace(tzinfo=UTC) for t in takewhile(lambda t: t <= end, islice(theirs, 400))]
    before = start.replace(tzinfo=UTC) - timedelta(seconds=1)
    assert list(islice(schedule.between(before, end.replace(tzinfo=UTC)), 400)) == expected
    if expected:
        half = expected[len(expected) // 2]
        assert schedule.count_between(expected[0], half) == len(expected) // 2
        assert schedule.last_at_or_before(half, not_before=before) == half
        counted = rrule(f"{text};COUNT={len(expected)}", start=start)
        assert list(counted.between(before, end.replace(tzinfo=UTC))) == expected
        assert counted.next_after(expected[-1]) is None


@pytest.mark.parametrize(
    ("rule", "code", "position", "says"),
    [
        ("", "rrule_invalid", 0, "empty part"),
        ("FREQ", "rrule_invalid", 0, "NAME=value"),
        ("INTERVAL=2", "rrule_invalid", 10, "add FREQ= with one of"),
        ("FREQ=WEEKLEY", "rrule_invalid", 5, "did you mean WEEKLY?"),
        ("FREQ=HOURLY", "rrule_unsupported", 5, 'use a fixed interval: every("1h", anchor='),
        ("FREQ=MINUTELY;INTERVAL=15;COUNT=4", "rrule_unsupported", 5, 'every("15m", anchor=…, times=4'),
        ("FREQ=HOURLY;BYDAY=MO,FR;BYHOUR=9,10", "rrule_unsupported", 5, 'use cron("0 9,10 * * MON,FRI")'),
        ("FREQ=MINUTELY;BYMONTH=5;BYHOUR=9", "rrule_unsupported", 5, 'use cron("* 9 * 5 *")'),
        ("FREQ=HOURLY;BYSETPOS=1", "rrule_unsupported", 5, "use cron for several times a day, or every"),
        ("FREQ=SECONDLY", "rrule_unsupported", 5, 'every("1s"'),
        ("FREQ=DAILY;FREQ=DAILY", "rrule_invalid", 11, "FREQ occurs twice"),
        ("FREQ=DAILY;BYDAYS=MO", "rrule_invalid", 11, "did you mean BYDAY?"),
        ("FREQ=DAILY;BYSECOND=60", "rrule_range", 20, "BYSECOND=60 is out of range 0 to 59"),
        ("FREQ=DAILY;INTERVAL=0", "rrule_range", 20, "1 to 1000"),
        ("FREQ=DAILY;COUNT=x", "rrule_range", 17, "COUNT=X"),
        ("FREQ=DAILY;COUNT=1;UNTIL=20270101", "rrule_unsupported", 17, "COUNT and UNTIL exclude each other"),
        ("FREQ=DAILY;UNTIL=tomorrow", "rrule_invalid", 17, "20261231"),
        ("FREQ=DAILY;UNTIL=20261332", "rrule_invalid", 17, "is not a date or time"),
        ("FREQ=DAILY;BYHOUR=24", "rrule_range", 18, "0 to 23"),
        ("FREQ=MONTHLY;BYMONTHDAY=0", "rrule_range", 24, "1 to 31 or -31 to -1"),
        ("FREQ=MONTHLY;BYDAY=MON", "rrule_invalid", 19, "is not a weekday"),
        ("FREQ=WEEKLY;BYDAY=1MO", "rrule_unsupported", 18, "is not allowed with FREQ=WEEKLY"),
        ("FREQ=MONTHLY;BYDAY=MO,1TU", "rrule_unsupported", 19, "mixes days"),
        ("FREQ=MONTHLY;BYWEEKNO=5", "rrule_unsupported", 22, "requires FREQ=YEARLY"),
        ("FREQ=DAILY;BYDAY=MO;BYSETPOS=1", "rrule_unsupported", 29, "BYSETPOS is not allowed with FREQ=DAILY"),
        ("FREQ=MONTHLY;BYSETPOS=1", "rrule_unsupported", 22, "requires another BY part"),
        ("FREQ=MONTHLY;BYDAY=MO;BYHOUR=1,2;BYSETPOS=1", "rrule_unsupported", 42, "several times of day"),
        ("DTSTART:20260101T000000\nRRULE:FREQ=DAILY", "rrule_invalid", 0, "the start is given as DTSTART and as start"),
        ("RRULE:FREQ=DAILY\nSUMMARY:x", "rrule_charset", 16, "is not allowed in a rule"),
        ("EXDATE:20260101\nRRULE:FREQ=DAILY\nDTEND:20260101", "rrule_unsupported", 33, "remove the line"),
        ("FREQ=DAILY;EXDATE=20260101", "rrule_unsupported", 11, "on a line of its own"),
        ("RDATE:20260101T000000", "rrule_invalid", 21, "the text has no RRULE"),
        ("FREQ=DAILY\n", "rrule_charset", 10, "one line of ASCII"),
        ("FREQ=DAILY;" + "X" * 600, "rrule_too_long", 512, "the maximum is 512"),
        ("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", "rrule_never_fires", 0, "never fires"),
        ("FREQ=DAILY;UNTIL=20250101", "rrule_never_fires", 0, "never fires"),
        ("FREQ=YEARLY;COUNT=102", "rrule_range", 0, "not reached within 100 years"),
        ("FREQ=YEARLY;INTERVAL=500;BYMONTH=2;BYMONTHDAY=29", "rrule_never_fires", 0, "never fires"),
    ],
)
def test_a_rule_is_refused_where_it_is_wrong(rule: str, code: str, position: int, says: str) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        rrule(rule, start="2026-01-05T09:00")
    assert (caught.value.code, caught.value.position) == (code, position)
    assert says in str(caught.value)


@pytest.mark.parametrize("start", ["2026-01-01", "2026-01-01T09:00Z", "2026-02-30T09:00", "soon", 5, utc("2026-01-01")])
def test_a_start_is_a_local_time(start: object) -> None:
    with pytest.raises(InvalidSchedule, match="without an offset") as caught:
        rrule("FREQ=DAILY", start=start)  # type: ignore[arg-type]
    assert (caught.value.code, caught.value.pointer) == ("start_invalid", "/start")


rule_like = st.text(st.sampled_from("FREQ=DAILYWEKMONTH;BYSP,0123456789-+UTCZ: \n"), max_size=60)


@settings(max_examples=300, deadline=None)
@given(st.one_of(rule_like, rule_like.map(lambda text: f"FREQ=MONTHLY;{text}"), st.text(max_size=50)))
def test_garbage_only_ever_raises_a_refusal(text: str) -> None:
    start = datetime.fromisoformat("2026-01-01")
    refusal = refusal_of(text, start)
    if refusal is None:
        assert rrule(text, start=start).next_after(utc("2025-01-01")) is not None
        return
    assert refusal.code.startswith("rrule_")
    assert refusal.position is not None
    assert 0 <= refusal.position <= len(text)


def test_equal_rules_have_equal_rows() -> None:
    one = rrule("RRULE:freq=monthly;bymonthday=15,1;interval=1;", start="2026-01-01T09:00")
    other = rrule("FREQ=MONTHLY;BYMONTHDAY=1,15", start=datetime.fromisoformat("2026-01-01T09:00"))
    assert one == other
    assert to_row(one) == to_row(other)
    row = to_row(one)
    assert (row.anchor, row.dst, row.seconds) == ("2026-01-01T09:00", "next first", False)
    assert from_row(row.kind, row.expression, row.timezone, row.anchor, row.seconds, row.dst, row.calendar) == one


def test_every_question_is_answered_in_bounded_time() -> None:
    began = time.perf_counter()
    minutes = ",".join(map(str, range(60)))
    dense = rrule(
        f"FREQ=DAILY;BYHOUR={','.join(map(str, range(24)))};BYMINUTE={minutes}",
        start="2026-01-01T00:00",
        tz="Europe/Berlin",
    )
    # Ten times the clock goes back, and a fixed time does not come again.
    assert dense.count_between(utc("2026-06-01"), utc("2036-06-01")) == 3653 * 1440 - 10 * 60
    ended = rrule("FREQ=DAILY;COUNT=3", start="2026-01-01T00:00", tz="Europe/Berlin")
    assert ended.next_after(utc("2027-01-01")) is None
    assert ended.last_at_or_before(utc("9000-01-01"), not_before=utc("8000-01-01")) is None
    far = rrule("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29", start="2026-01-01T00:00")
    assert far.next_after(utc("9000-01-01")) == utc("9004-02-29")
    with pytest.raises(InvalidSchedule):
        rrule("FREQ=MONTHLY;BYDAY=SU;BYSETPOS=6", start="2026-01-01T00:00")
    assert time.perf_counter() - began < 2


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("FREQ=DAILY", "Every day at 09:00 from 2026-01-05 on (UTC)"),
        ("FREQ=WEEKLY;INTERVAL=2;BYDAY=FR", "Every 2 weeks on Friday at 09:00 from 2026-01-05 on (UTC)"),
        (
            f"FREQ=MONTHLY;BYDAY={WORKDAYS};BYSETPOS=-1",
            f"Every month on the last of {NAMES} at 09:00 from 2026-01-05 on (UTC)",
        ),
        (
            "FREQ=MONTHLY;BYDAY=-1FR,2TU",
            "Every month on the 2nd Tuesday and the last Friday at 09:00 from 2026-01-05 on (UTC)",
        ),
        ("FREQ=MONTHLY;BYMONTHDAY=-1", "Every month on the last day of the month at 09:00 from 2026-01-05 on (UTC)"),
        ("FREQ=YEARLY", "Every year on the 5th of January at 09:00 from 2026-01-05 on (UTC)"),
        (
            "FREQ=YEARLY;BYMONTH=11;BYDAY=4TH",
            "Every year on the 4th Thursday in November at 09:00 from 2026-01-05 on (UTC)",
        ),
        ("FREQ=DAILY;BYHOUR=8,20;COUNT=4", "Every day at 08:00 and 20:00 from 2026-01-05 on, 4 times (UTC)"),
        (
            "FREQ=WEEKLY;UNTIL=20261231",
            "Every week on Monday at 09:00 from 2026-01-05 on, until 2026-12-31 23:59 (UTC)",
        ),
    ],
)
def test_a_rule_reads(rule: str, text: str) -> None:
    assert rrule(rule, start="2026-01-05T09:00").describe() == text
