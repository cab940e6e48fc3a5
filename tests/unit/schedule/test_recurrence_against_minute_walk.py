"""Bounds of recurrence rules near clock changes, against an oracle that walks every minute of UTC."""

from __future__ import annotations

import time
from bisect import bisect_left
from datetime import UTC, datetime, timedelta
from itertools import accumulate, islice
from zoneinfo import ZoneInfo

import pytest
from dateutil.rrule import rrulestr
from hypothesis import given, settings
from hypothesis import strategies as st

from bellringer.errors import InvalidSchedule
from bellringer.schedule import next_fires, rrule, summarize_schedule, time_zones
from bellringer.schedule.dst import first_occurrence

MINUTE = timedelta(minutes=1)
NEW_YORK = "America/New_York"
# A change of the clock in each zone, in UTC: spring, autumn; half an hour, a whole day.
CHANGES = [
    (NEW_YORK, "2026-03-08T07:00"),
    (NEW_YORK, "2026-11-01T06:00"),
    ("Europe/Berlin", "2026-03-29T01:00"),
    ("Europe/Berlin", "2026-10-25T01:00"),
    ("Australia/Lord_Howe", "2026-04-04T15:00"),
    ("Australia/Lord_Howe", "2026-10-03T15:30"),
    ("America/Sao_Paulo", "2017-10-15T03:00"),
    ("America/Sao_Paulo", "2018-02-18T02:00"),
    ("Pacific/Apia", "2011-12-30T10:00"),
    ("Africa/Casablanca", "2026-02-15T02:00"),
]
AROUND = timedelta(days=4)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


class Clock:
    """What a zone's wall clock shows at each minute of UTC, a few days around one of its changes."""

    def __init__(self, zone: str, change: datetime) -> None:
        self.start, self.end = change - AROUND, change + AROUND
        minutes = range(int((self.end - self.start) / MINUTE))
        where = ZoneInfo(zone)
        self.shown = [(self.start + n * MINUTE).astimezone(where).replace(tzinfo=None, fold=0) for n in minutes]
        self.latest = list(accumulate(self.shown, max))

    def instants(self, named: datetime, gap: str, fold: str) -> list[datetime]:
        """When a local time happens."""
        found = [n for n, shown in enumerate(self.shown) if shown == named]
        if not found:
            after = bisect_left(self.latest, named)
            found = [after] if gap == "next" and 0 < after < len(self.latest) else []
        elif fold != "both":
            found = [found[0] if fold == "first" else found[-1]]
        return [self.start + n * MINUTE for n in found]


_clocks: dict[tuple[str, str], Clock] = {}


def clock_of(place: tuple[str, str]) -> Clock:
    if place not in _clocks:
        _clocks[place] = Clock(place[0], utc(place[1]))
    return _clocks[place]


hours = st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True).map(lambda all_: ",".join(map(str, all_)))
minutes = st.lists(st.sampled_from([0, 15, 30, 45]), min_size=1, max_size=2, unique=True).map(
    lambda all_: ",".join(map(str, all_))
)
ends = st.one_of(
    st.integers(1, 12).map(lambda n: ("COUNT", n)),
    st.integers(-36 * 4, 36 * 4).map(lambda n: ("UTC", n)),
    st.integers(-36 * 4, 36 * 4).map(lambda n: ("LOCAL", n)),
)


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(CHANGES),
    st.integers(0, 1),
    hours,
    minutes,
    ends,
    st.sampled_from(["next", "skip"]),
    st.sampled_from(["first", "second", "both"]),
)
def test_any_bound_near_a_change_of_the_clock_is_read_as_the_walker_reads_it(
    place: tuple[str, str], before: int, hour: str, minute: str, end: tuple[str, int], gap: str, fold: str
) -> None:
    zone, change = place[0], utc(place[1])
    clock = clock_of(place)
    local = change.astimezone(ZoneInfo(zone)).replace(tzinfo=None, fold=0)
    start = local.replace(hour=0, minute=0) - timedelta(days=1 + before)
    text = f"FREQ=DAILY;BYHOUR={hour};BYMINUTE={minute}"
    named = list(islice(rrulestr(text, dtstart=start), 60))
    kind, n = end
    if kind == "UTC":
        until = change + n * 15 * MINUTE
        bound = f";UNTIL={until:%Y%m%dT%H%M%SZ}"
    elif kind == "LOCAL":
        last = local + n * 15 * MINUTE
        named = [moment for moment in named if moment <= last]
        bound = f";UNTIL={last:%Y%m%dT%H%M%S}"
    else:
        bound = f";COUNT={n}"
    found = sorted({instant for moment in named for instant in clock.instants(moment, gap, fold)})
    if kind == "UTC":
        found = [instant for instant in found if instant <= until]
    elif kind == "COUNT":
        found = found[:n]
    ends_inside = [instant for instant in found if instant < clock.end - timedelta(days=1)]
    try:
        schedule = rrule(text + bound, start=start, tz=zone, gap=gap, fold=fold)
    except InvalidSchedule:
        assert found == []
        return
    stop = clock.end - timedelta(days=1) - MINUTE
    assert list(schedule.between(clock.start, stop)) == ends_inside
    second = timedelta(seconds=1)
    assert schedule.count_between(clock.start, stop + second) == len(ends_inside)
    for index, instant in enumerate(ends_inside):
        assert schedule.last_at_or_before(instant, not_before=clock.start) == instant
        assert schedule.next_after(instant - second) == instant
        assert schedule.count_between(clock.start, instant) == index
    if ends_inside and len(found) == len(ends_inside):
        assert schedule.next_after(found[-1]) is None or kind != "COUNT" or len(found) < n
        assert schedule.last_at_or_before(stop, not_before=clock.start) == found[-1]


@pytest.mark.parametrize(
    ("zone", "until", "start", "last"),
    [
        (NEW_YORK, "20261101T060000Z", "2026-10-30T01:30", "2026-11-01T05:30"),
        (NEW_YORK, "20261101T062959Z", "2026-10-30T01:30", "2026-11-01T05:30"),
        ("Europe/Berlin", "20261025T010000Z", "2026-10-23T02:30", "2026-10-25T00:30"),
    ],
)
def test_until_in_utc_keeps_an_occurrence_of_the_first_pass(zone: str, until: str, start: str, last: str) -> None:
    schedule = rrule(f"FREQ=DAILY;UNTIL={until}", start=start, tz=zone)
    assert list(schedule.between(utc("2026-01-01"), utc("2027-01-01")))[-1] == utc(last)


@pytest.mark.parametrize("fold", ["second", "both"])
def test_nothing_happens_after_until_in_utc(fold: str) -> None:
    schedule = rrule("FREQ=DAILY;UNTIL=20261101T053000Z", start="2026-10-30T01:30", tz=NEW_YORK, fold=fold)
    assert max(schedule.between(utc("2026-01-01"), utc("2027-01-01"))) <= utc("2026-11-01T05:30")


@pytest.mark.parametrize(
    ("start", "count", "choices", "found"),
    [
        ("2026-03-07T02:30", 3, {"gap": "skip"}, ["03-07T07:30", "03-09T06:30", "03-10T06:30"]),
        ("2026-03-08T02:30", 1, {"gap": "skip"}, ["03-09T06:30"]),
        ("2026-03-08T02:30", 1, {"gap": "next"}, ["03-08T07:00"]),
        ("2026-10-31T01:30", 3, {"fold": "both"}, ["10-31T05:30", "11-01T05:30", "11-01T06:30"]),
        ("2026-11-01T01:30", 1, {"fold": "both"}, ["11-01T05:30"]),
        ("2026-03-07T02:30", 3, {}, ["03-07T07:30", "03-08T07:00", "03-09T06:30"]),
    ],
)
def test_a_rule_with_count_fires_that_often(start: str, count: int, choices: dict[str, str], found: list[str]) -> None:
    schedule = rrule(f"FREQ=DAILY;COUNT={count}", start=start, tz=NEW_YORK, **choices)
    assert [f"{t:%m-%dT%H:%M}" for t in schedule.between(utc("2026-01-01"), utc("2099-01-01"))] == found


@pytest.mark.parametrize("zone", ["UTC", NEW_YORK])
def test_a_start_far_ahead_costs_no_walk(zone: str) -> None:
    time_zones._periods_of_block.cache_clear()
    schedule = rrule("FREQ=DAILY", start="8999-01-01T09:00", tz=zone)
    now, began = utc("2026-01-01"), time.process_time()
    assert schedule.next_after(now) is not None
    assert summarize_schedule(schedule, now).fires_per_day == 0
    assert len(next_fires(schedule, now, 5)) == 5
    assert schedule.last_at_or_before(now, not_before=utc("1970-01-01")) is None
    assert schedule.count_between(utc("1970-01-01"), utc("8998-01-01")) == 0
    assert time_zones._periods_of_block.cache_info().currsize < 20
    assert time.process_time() - began < 0.5  # a walk over 7,000 years takes seconds


def test_a_rule_that_has_ended_long_ago_costs_no_walk() -> None:
    time_zones._periods_of_block.cache_clear()
    ended = rrule("FREQ=DAILY;UNTIL=19800101T000000Z", start="1979-01-01T09:00", tz=NEW_YORK)
    assert ended.next_after(utc("8000-01-01")) is None
    assert ended.last_at_or_before(utc("8000-01-01"), not_before=utc("1970-01-01")) == utc("1979-12-31T14:00")
    assert ended.count_between(utc("1970-01-01"), utc("8998-01-01")) == 365
    assert time_zones._periods_of_block.cache_info().currsize < 20


def test_a_search_steps_over_years_without_a_match() -> None:
    time_zones._periods_of_block.cache_clear()
    rare = rrule("FREQ=YEARLY;INTERVAL=99", start="2026-06-01T09:00", tz=NEW_YORK)
    assert rare.next_after(utc("2026-07-01")) == utc("2125-06-01T13:00")
    assert rare.last_at_or_before(utc("2125-01-01"), not_before=utc("1970-01-01")) == utc("2026-06-01T13:00")
    assert time_zones._periods_of_block.cache_info().currsize < 20


def test_an_impossible_rule_with_a_count_is_reported_as_impossible() -> None:
    with pytest.raises(InvalidSchedule) as caught:
        rrule("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30;COUNT=1", start="2026-01-01T09:00")
    assert caught.value.code == "rrule_never_fires"


def test_steps_over_stretches_lose_no_occurrence() -> None:
    """Sparse rules in a zone that changes its clock four times a year, against a search from every stretch."""
    for day in (1, 60, 74, 80, 200, 300, 366):
        schedule = rrule(f"FREQ=YEARLY;BYYEARDAY={day}", start="2020-01-01T02:30", tz="Africa/Casablanca")
        plan, found = schedule.pattern(), set[int]()
        for n in range(20 * 52):
            at = int((utc("2020-01-01") + n * timedelta(weeks=1)).timestamp())
            if (instant := first_occurrence(plan, schedule.timezone, at, schedule.gap, schedule.fold)) is not None:
                found.add(instant)
        between = {int(t.timestamp()) for t in schedule.between(utc("2019-12-01"), utc("2080-01-01"))}
        assert found <= between
        assert sorted(found) == sorted(between)[: len(found)]
