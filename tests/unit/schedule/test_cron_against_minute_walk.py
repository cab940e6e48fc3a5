"""The evaluator against a walker that looks at every minute, and shares no code with it.

The walker asks zoneinfo what the clock shows at each minute (or second) of UTC, and looks at each matching time
of each calendar day: shown never, it is in the gap, and happens at the first minute at which the clock has come
that far, or not at all; shown twice, it is in the fold. That is all there is to the choices.
"""

from __future__ import annotations

import calendar
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import accumulate
from unittest.mock import ANY
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bellringer.errors import InvalidSchedule
from bellringer.schedule import Cron, cron

SPANS = {
    "UTC": ("2026-11-01", "2028-04-01"),
    "America/New_York": ("2024-01-01", "2027-01-01"),
    "Europe/Berlin": ("2026-01-01", "2029-01-01"),
    "Europe/Dublin": ("2024-01-01", "2027-01-01"),
    "Australia/Lord_Howe": ("2024-01-01", "2027-01-01"),
    "America/Sao_Paulo": ("2017-06-01", "2020-06-01"),
    "Asia/Kathmandu": ("1985-01-01", "1987-01-01"),
    "Pacific/Apia": ("2010-06-01", "2013-06-01"),
    "Africa/Casablanca": ("2024-01-01", "2027-01-01"),
    "Asia/Kolkata": ("2025-01-01", "2027-01-01"),
    "Pacific/Chatham": ("2025-01-01", "2028-01-01"),
}
RHYTHMS = ["*/15 * * * *", "7-59/20 * * * *", "0 */2 * * *", "*/10 2 * * *", "5,50 * * * SUN"]
FIXED = ["30 2 * * *", "30 1 * * *", "0 0 * * *", "0-59/15 1-3 * * *", "15,45 0,2,23 * * *", "5/20 2/5 * * *"]
DAYS = [
    "0 9 * * mon-fri",
    "0 0 13 * FRI",
    "30 2 */2 * SUN",
    "0 3 29 2 *",
    "59 23 L * *",
    "30 2 L-3 JAN-JUN *",
    "0 12 15W,1W,31W * *",
    "0 0 LW * *",
    "30 1 * 3,10,11 SUN#1,SUN#2,0L",
    "0 2 30,31 12 7",
    "0 0 * * 1-7/2",
]
WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]


class Walk:
    """What a zone's clock shows at each step of UTC, in steps since the year 1."""

    def __init__(self, zone: str, start: datetime, end: datetime, step: int = 60) -> None:
        self.start, self.end, self.step, self.a_day = start, end, step, 86_400 // step
        self.shown = array("q")
        for second in range(int(start.timestamp()), int(end.timestamp()), 3600):
            self.shown.extend(self._hour(ZoneInfo(zone), range(second, min(second + 3600, int(end.timestamp())), step)))
        self.come = array("q", accumulate(self.shown, max))
        self.days = range(min(self.shown) // self.a_day, max(self.shown) // self.a_day + 1)
        steps = range(len(self.shown))
        self.first = dict(zip(reversed(self.shown), reversed(steps), strict=True))  # a later entry replaces the others
        self.last = dict(zip(self.shown, steps, strict=True))

    def _hour(self, where: ZoneInfo, hour: range) -> Iterable[int]:
        """What is shown in an hour; where its two ends show the same offset, the clock was not changed in it."""
        begins, ends = (self._show(datetime.fromtimestamp(second, where)) for second in (hour[0], hour[-1]))
        if ends - begins == len(hour) - 1:
            return range(begins, ends + 1)
        return (self._show(datetime.fromtimestamp(second, where)) for second in hour)

    def _show(self, at: datetime) -> int:
        seconds = at.toordinal() * 86_400 + at.hour * 3600 + at.minute * 60 + at.second
        assert seconds % self.step == 0, "the zone's offset is no whole number of steps"
        return seconds // self.step

    def occurrences(
        self,
        expression: str,
        gap: str | None = None,
        fold: str | None = None,
        *,
        day_match: str | None = None,
        years: set[int] | None = None,
    ) -> list[datetime]:
        fields = expression.upper().split()
        if len(fields) == 5:
            fields.insert(0, "0")
        seconds, minutes, hours = (numbers(fields[i], 0, top) for i, top in ((0, 59), (1, 59), (2, 23)))
        times = {(h * 3600 + m * 60 + s) // self.step for h in hours for m in minutes for s in seconds}
        is_day = day_test(fields[3], fields[4], fields[5], day_match)
        fixed = fields[1][0] != "*" and fields[2][0] != "*"
        usual = ("next", "first") if fixed else ("skip", "both")
        found: set[int] = set()
        for day in self.days:
            if is_day(date.fromordinal(day)) and (years is None or date.fromordinal(day).year in years):
                for time in times:
                    found.update(self._when(day * self.a_day + time, gap or usual[0], fold or usual[1]))
        # What the clock had already passed at the start, or has not reached at the end, is not ours to tell.
        return [self.start + timedelta(seconds=i * self.step) for i in sorted(found - {0, len(self.come)})]

    def _when(self, time: int, gap: str, fold: str) -> list[int]:
        if time not in self.first:
            return [bisect_left(self.come, time)] if gap == "next" else []
        first, last = self.first[time], self.last[time]
        return {"first": [first], "second": [last], "both": [first, last]}[fold]


def numbers(field: str, low: int, high: int, names: tuple[str, ...] | list[str] = ()) -> set[int]:
    for number, name in enumerate(names, start=low):
        field = field.replace(name, str(number))
    found: set[int] = set()
    for item in field.split(","):
        span, _, step = item.partition("/")
        first, _, last = (f"{low}-{high}" if span == "*" else span).partition("-")
        top = int(last) if last else high if step else int(first)
        if top >= int(first):
            found.update(n for n in range(int(first), top + 1) if (n - int(first)) % int(step or 1) == 0)
        else:  # counted upward, and from the lowest value after the highest
            size = high - low + 1 if high != 7 else 7
            at, walked = int(first), 0
            while True:
                if walked % int(step or 1) == 0:
                    found.add(at)
                if at == top:
                    break
                at, walked = (at + 1 if at < low + size - 1 else low), walked + 1
    return found


def day_test(dom: str, month: str, dow: str, day_match: str | None = None) -> Callable[[date], bool]:
    months = numbers(month, 1, 12, MONTHS)
    by_date = [date_test(item) for item in dom.split(",")]
    by_weekday = [weekday_test(item) for item in dow.split(",")]
    join = all if dom[0] == "*" or dow[0] == "*" else any
    if day_match is not None:
        join = all if day_match == "both" or {"*", "*/1"} & {*dom.split(","), *dow.split(",")} else any

    def matches(day: date) -> bool:
        return day.month in months and join([any(test(day) for test in by_date), any(test(day) for test in by_weekday)])

    return matches


def date_test(item: str) -> Callable[[date], bool]:
    def last(day: date) -> int:
        return calendar.monthrange(day.year, day.month)[1]

    def nearest(day: date, target: int) -> bool:
        workdays = [n for n in range(1, last(day) + 1) if day.replace(day=n).weekday() < 5]
        return target <= last(day) and day.day == min(workdays, key=lambda n: abs(n - target))

    if item == "LW":
        return lambda day: nearest(day, last(day))
    if item.startswith("L-") and item.endswith("W"):
        return lambda day: nearest(day, last(day) - int(item[2:-1]))
    if "-L" in item:
        first, _, step = item.replace("-L", "").partition("/")
        return lambda day: day.day >= int(first) and (day.day - int(first)) % int(step or 1) == 0
    if item.endswith("W"):
        return lambda day: nearest(day, int(item[:-1]))
    if item.startswith("L"):
        return lambda day: day.day == last(day) - int(item[2:] or 0)
    return lambda day: day.day in numbers(item, 1, 31)


def weekday_test(item: str) -> Callable[[date], bool]:
    for number, name in enumerate(WEEKDAYS):
        item = item.replace(name, str(number))
    if item.endswith("L"):
        return lambda day: day.isoweekday() % 7 == int(item[0]) % 7 and (day + timedelta(7)).month != day.month
    if "#" in item:
        return lambda day: day.isoweekday() % 7 == int(item[0]) % 7 and (day.day - 1) // 7 + 1 == int(item[2])
    wanted = {n % 7 for n in numbers(item, 0, 6 if item[0] == "*" else 7)}
    return lambda day: day.isoweekday() % 7 in wanted


def inside(walk: Walk, found: list[datetime], margin: timedelta) -> list[datetime]:
    return [instant for instant in found if walk.start + margin < instant <= walk.end - margin]


def evaluated(walk: Walk, schedule: Cron, margin: timedelta) -> Iterator[datetime]:
    return schedule.between(walk.start + margin, walk.end - margin)


@pytest.fixture(scope="module", params=list(SPANS))
def zone_walk(request: pytest.FixtureRequest) -> tuple[str, Walk]:
    start, end = (datetime.fromisoformat(text).replace(tzinfo=UTC) for text in SPANS[request.param])
    return request.param, Walk(request.param, start, end)


@pytest.mark.parametrize("expression", RHYTHMS + FIXED + DAYS)
def test_occurrences_over_years_are_those_of_the_minute_walker(zone_walk: tuple[str, Walk], expression: str) -> None:
    zone, walk = zone_walk
    margin = timedelta(days=2)
    expected = inside(walk, walk.occurrences(expression), margin)
    schedule = cron(expression, tz=zone)
    assert list(evaluated(walk, schedule, margin)) == expected
    second = timedelta(seconds=1)
    assert schedule.count_between(walk.start + margin + second, walk.end - margin + second) == len(expected)


CHOICES = [(gap, fold) for gap in ("next", "skip") for fold in ("first", "second", "both")]
CHANGES = {
    "America/New_York": ("2026-03-08T07:00", "2026-11-01T06:00"),
    "Europe/Berlin": ("2026-03-29T01:00", "2026-10-25T01:00"),
    "Australia/Lord_Howe": ("2026-04-04T15:00", "2026-10-03T15:30"),
    "America/Sao_Paulo": ("2017-10-15T03:00", "2018-02-18T02:00"),
}


@pytest.mark.parametrize("choice", [(None, None), *CHOICES], ids=str)
@pytest.mark.parametrize("expression", ["30 2 * * *", "30 1 * * *", "*/15 * * * *", "0 * * * *", "30 0,23 * * *"])
@pytest.mark.parametrize(("zone", "at"), [(zone, at) for zone, times in CHANGES.items() for at in times])
def test_every_choice_is_read_as_the_minute_walker_reads_it(
    zone: str, at: str, expression: str, choice: tuple[str | None, str | None]
) -> None:
    walk, margin = walk_near(zone, datetime.fromisoformat(at).replace(tzinfo=UTC), 60), timedelta(hours=27)
    a, b = walk.start + margin, walk.end - margin
    expected = inside(walk, walk.occurrences(expression, *choice), margin)
    schedule = cron(expression, tz=zone, gap=choice[0], fold=choice[1])
    assert list(schedule.between(a, b)) == expected
    second, moment = timedelta(seconds=1), a
    while moment < b:
        index = bisect_right(expected, moment)
        assert schedule.next_after(moment) == (expected[index] if index < len(expected) else ANY)
        assert schedule.last_at_or_before(moment, not_before=a + second) == (expected[index - 1] if index else None)
        assert schedule.count_between(a + second, moment + second) == index
        assert schedule.count_between(moment + second, b + second) == len(expected) - index
        moment += timedelta(minutes=10)


TRANSITIONS = {
    "America/New_York": ("2026-03-08T07:00", "2026-11-01T06:00"),
    "Australia/Lord_Howe": ("2026-04-04T15:00", "2026-10-03T15:30"),
    "Europe/Dublin": ("2026-03-29T01:00", "2026-10-25T01:00"),
    "America/Sao_Paulo": ("2018-11-04T03:00", "2019-02-17T02:00"),
    "Pacific/Apia": ("2011-12-30T10:00", "2012-03-31T14:00"),
    "Pacific/Chatham": ("2026-04-04T14:00", "2026-09-26T14:00"),
    "Africa/Casablanca": ("2026-02-15T02:00", "2026-03-22T02:00"),
    "Asia/Gaza": ("2011-08-31T21:00", "2011-03-31T22:01"),
    "America/St_Johns": ("2011-03-13T03:31", "2010-11-07T02:31"),
    "Asia/Pyongyang": ("2015-08-14T15:00", "2018-05-04T15:00"),
    "America/Caracas": ("2007-12-09T07:00", "2016-05-01T07:00"),
}


def field(low: int, high: int) -> st.SearchStrategy[str]:
    value = st.integers(low, high)
    span = st.tuples(value, value).map(sorted)
    item = st.one_of(
        st.just("*"),
        value.map(str),
        span.map(lambda ends: f"{ends[0]}-{ends[1]}"),
        st.integers(1, high - low).map(lambda step: f"*/{step}"),
        span.flatmap(lambda ends: st.integers(1, ends[1] - ends[0] + 1).map(lambda n: f"{ends[0]}-{ends[1]}/{n}")),
    )
    return st.lists(item, min_size=1, max_size=3).map(",".join)


day_fields = st.one_of(
    st.just("*"), field(1, 31), st.sampled_from(["L", "LW", "L-1", "L-3", "1W", "15W", "31W", "4,L"])
)
weekday_fields = st.one_of(
    st.just("*"), st.just("*"), field(0, 6), st.sampled_from(["SUN#1", "SAT#2", "SUNL", "5-7", "0,SAT", "7"])
)
near_transitions = st.sampled_from([(zone, at) for zone, times in TRANSITIONS.items() for at in times])


@settings(max_examples=250, deadline=None)
@given(
    near_transitions,
    field(0, 59),
    st.one_of(field(0, 23), field(0, 3)),
    day_fields,
    weekday_fields,
    st.sampled_from([(None, None), *CHOICES]),
)
def test_any_expression_near_a_change_of_the_clock_is_read_as_the_minute_walker_reads_it(
    place: tuple[str, str], minute: str, hour: str, day: str, weekday: str, choice: tuple[str | None, str | None]
) -> None:
    zone, at = place
    change = datetime.fromisoformat(at).replace(tzinfo=UTC)
    walk, margin = walk_near(zone, change, 60), timedelta(hours=27)
    expression = f"{minute} {hour} {day} * {weekday}"
    expected = inside(walk, walk.occurrences(expression, *choice), margin)
    try:
        schedule = cron(expression, tz=zone, gap=choice[0], fold=choice[1])
    except InvalidSchedule:
        # The first, 15th or 29th that is a second Saturday: refused, and rightly so.
        assert expected == []
    else:
        assert list(evaluated(walk, schedule, margin)) == expected


@pytest.mark.parametrize(
    "expression",
    [
        "*/7 * * * * *",
        "30 59 1 * * *",
        "*/20 0,30 2 * * *",
        "5 */30 1-3 * * *",
        "0 0 0 * * *",
        "59 59 23 * * *",
    ],
)
@pytest.mark.parametrize(("zone", "at"), [(zone, at) for zone in list(TRANSITIONS)[:5] for at in TRANSITIONS[zone]])
def test_seconds_follow_the_same_rules_as_minutes(zone: str, at: str, expression: str) -> None:
    change = datetime.fromisoformat(at).replace(tzinfo=UTC)
    walk, margin = walk_near(zone, change, 1), timedelta(hours=27)
    expected = inside(walk, walk.occurrences(expression), margin)
    assert list(evaluated(walk, cron(expression, tz=zone, seconds=True), margin)) == expected


_walks: dict[tuple[str, datetime, int], Walk] = {}


def walk_near(zone: str, change: datetime, step: int) -> Walk:
    """A window wide enough that a whole skipped day (Apia) lies well inside it."""
    key = (zone, change, step)
    if key not in _walks:
        around = timedelta(days=3) if step == 60 else timedelta(hours=33)
        _walks[key] = Walk(zone, change - around, change + around, step)
    return _walks[key]


def wrapping_field(low: int, high: int) -> st.SearchStrategy[str]:
    """Ranges whose end may be below their start, with steps that may be wider than the range."""
    value = st.integers(low, high)
    step = st.one_of(st.just(""), st.integers(1, 2 * high).map(lambda n: f"/{n}"))
    span = st.tuples(value, value, step).map(lambda ends: f"{ends[0]}-{ends[1]}{ends[2]}")
    star = step.map(lambda text: f"*{text}")
    return st.lists(st.one_of(value.map(str), span, span, star), min_size=1, max_size=2).map(",".join)


@settings(max_examples=200, deadline=None)
@given(
    near_transitions,
    wrapping_field(0, 59),
    wrapping_field(0, 23),
    st.one_of(wrapping_field(1, 31), st.sampled_from(["*", "L-3W", "L-1W,1", "29-L", "5-L/8"])),
    wrapping_field(1, 12),
    st.one_of(st.just("*"), wrapping_field(0, 6)),
    st.sampled_from([None, "either", "both"]),
)
def test_wrapped_ranges_and_both_days_are_read_as_the_minute_walker_reads_them(
    place: tuple[str, str], minute: str, hour: str, day: str, month: str, weekday: str, day_match: str | None
) -> None:
    zone, at = place
    walk, margin = walk_near(zone, datetime.fromisoformat(at).replace(tzinfo=UTC), 60), timedelta(hours=27)
    expression = f"{minute} {hour} {day} {month} {weekday}"
    expected = inside(walk, walk.occurrences(expression, day_match=day_match), margin)
    try:
        schedule = cron(expression, tz=zone, day_match=day_match)
    except InvalidSchedule:
        assert expected == []
        return
    assert list(evaluated(walk, schedule, margin)) == expected
    second = timedelta(seconds=1)
    assert schedule.count_between(walk.start + margin + second, walk.end - margin + second) == len(expected)


YEARS = [
    ("0 30 9 ? * 2-6 2026", "30 9 * * 1-5", {2026}),
    ("0 0 0 L * ? 2027-2028", "0 0 L * *", {2027, 2028}),
    ("0 30 2 ? * 1 2026/2", "30 2 * * 0", {2026, 2028}),
    ("0 59 23 31 12 ? 2026,2028", "59 23 31 12 *", {2026, 2028}),
    ("0 0 */6 29 2 ? 2025-2030", "0 */6 29 2 *", {2025, 2026, 2027, 2028, 2029, 2030}),
]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@pytest.mark.parametrize(("quartz", "expression", "years"), YEARS)
def test_years_are_read_as_the_minute_walker_reads_them(
    zone: str, quartz: str, expression: str, years: set[int]
) -> None:
    key, margin = ("years", zone), timedelta(days=2)
    if key not in _year_walks:
        start, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(2029, 1, 1, tzinfo=UTC)
        _year_walks[key] = Walk(zone, start, end)
    walk = _year_walks[key]
    expected = inside(walk, walk.occurrences(expression, years=years), margin)
    schedule = cron(quartz, tz=zone, dialect="quartz")
    assert list(evaluated(walk, schedule, margin)) == expected
    second = timedelta(seconds=1)
    assert schedule.count_between(walk.start + margin + second, walk.end - margin + second) == len(expected)
    assert [schedule.last_at_or_before(at, not_before=at) for at in expected] == expected


_year_walks: dict[tuple[str, str], Walk] = {}
