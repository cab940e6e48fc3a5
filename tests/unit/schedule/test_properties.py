"""What holds for every schedule, whatever it says."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import islice

from hypothesis import given, reject, settings
from hypothesis import strategies as st

from bellringer.errors import InvalidSchedule
from bellringer.schedule import (
    Cron,
    Delay,
    DstFold,
    DstGap,
    Every,
    Rrule,
    Schedule,
    at,
    cron,
    delay,
    every,
    from_row,
    next_fires,
    parse_schedule,
    rrule,
    to_document,
    to_row,
)

ZONES = [
    "UTC",
    "America/New_York",
    "Europe/Dublin",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "Africa/Casablanca",
]


def field(low: int, high: int, *others: str) -> st.SearchStrategy[str]:
    values = st.lists(st.integers(low, high).map(str), min_size=1, max_size=3).map(",".join)
    steps = st.integers(1, high - low).map(lambda step: f"*/{step}")
    return st.one_of(st.just("*"), values, steps, *(st.just(other) for other in others))


def refusal_of(make: Callable[[], object]) -> InvalidSchedule | None:
    try:
        make()
    except InvalidSchedule as refusal:
        return refusal
    return None


def make_cron(fields: tuple[str, ...], tz: str, gap: DstGap | None, fold: DstFold | None) -> Cron:
    try:
        return cron(" ".join(fields), tz=tz, seconds=True, gap=gap, fold=fold)
    except InvalidSchedule:
        # Such as the last working day if it is a Sunday.
        reject()


crons = st.builds(
    make_cron,
    st.tuples(
        st.one_of(st.just("0"), field(0, 59)),
        field(0, 59, "10-50/7"),
        field(0, 23, "1-3"),
        field(1, 28, "L", "LW", "15W", "L-2"),
        field(1, 12, "JAN-JUN"),
        field(0, 6, "MON-FRI", "SUN#1", "FRIL"),
    ),
    st.sampled_from(ZONES),
    st.sampled_from([None, *DstGap]),
    st.sampled_from([None, *DstFold]),
)
rules = st.builds(
    lambda rule, start, tz, gap, fold: rrule(rule, start=start, tz=tz, gap=gap, fold=fold),
    st.sampled_from(
        [
            "FREQ=DAILY",
            "FREQ=DAILY;INTERVAL=3;BYHOUR=1,2;BYMINUTE=0,30",
            "FREQ=WEEKLY;INTERVAL=2;BYDAY=SU,WE",
            "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1",
            "FREQ=MONTHLY;BYMONTHDAY=31",
            "FREQ=YEARLY;BYMONTH=3,11;BYDAY=1SU,2SU",
        ]
    ),
    st.sampled_from(["2023-11-05T01:30", "2020-02-29T02:30", "1999-12-31T23:59:59"]),
    st.sampled_from(ZONES),
    st.sampled_from([None, *DstGap]),
    st.sampled_from([None, *DstFold]),
)
seconds = st.integers(1, 40 * 86_400)
everies = st.builds(lambda length, shift: every(length, offset=shift), seconds, seconds)
delays = st.builds(delay, seconds)
start_of_2024 = datetime(2024, 1, 1, tzinfo=UTC)
instants = st.timedeltas(timedelta(0), timedelta(days=1800)).map(lambda length: start_of_2024 + length)
ats = st.builds(at, instants)
schedules: st.SearchStrategy[Schedule] = st.one_of(crons, rules, everies, delays, ats)
timetables: st.SearchStrategy[Cron | Rrule | Every] = st.one_of(crons, rules, everies)
spans = st.timedeltas(timedelta(0), timedelta(days=3))
quick = settings(max_examples=120, deadline=None)


@quick
@given(schedules, instants)
def test_the_next_occurrence_is_later_in_utc_and_on_its_own_timetable(schedule: Schedule, t: datetime) -> None:
    found = schedule.next_after(t)
    if found is None:
        assert schedule.kind == "at"
        return
    assert found > t
    assert found.tzinfo is UTC
    if not isinstance(schedule, Delay):
        assert schedule.last_at_or_before(found, not_before=found) == found
        just_before = found - timedelta(microseconds=1)
        assert schedule.last_at_or_before(just_before, not_before=t + timedelta(microseconds=1)) is None


@quick
@given(timetables, instants)
def test_between_repeats_next_after(schedule: Cron | Rrule | Every, a: datetime) -> None:
    found = list(islice(schedule.between(a, a + timedelta(days=800)), 20))
    t: datetime | None = a
    for instant in found:
        assert t is not None
        t = schedule.next_after(t)
        assert t == instant


@quick
@given(schedules, instants, spans)
def test_a_count_is_the_length_of_the_list(schedule: Schedule, a: datetime, span: timedelta) -> None:
    if isinstance(schedule, Cron) and schedule.expression.startswith("*"):
        span /= 36
    found = list(schedule.between(a, a + span))
    assert found == sorted(set(found))
    tick = timedelta(microseconds=1)
    if isinstance(schedule, Delay):
        assert schedule.count_between(a, a + span + tick) == len(found)
    else:
        assert schedule.count_between(a + tick, a + span + tick) == len(found)


@quick
@given(timetables, instants, spans, spans)
def test_counts_of_neighbouring_spans_add_up(
    schedule: Cron | Rrule | Every, a: datetime, one: timedelta, two: timedelta
) -> None:
    b, c = a + 60 * one, a + 60 * one + 60 * two
    assert schedule.count_between(a, b) + schedule.count_between(b, c) == schedule.count_between(a, c)


@quick
@given(timetables, instants, spans)
def test_the_latest_occurrence_is_the_last_of_the_list(
    schedule: Cron | Rrule | Every, a: datetime, span: timedelta
) -> None:
    if isinstance(schedule, Cron) and schedule.expression.startswith("*"):
        span /= 36
    found = list(schedule.between(a, a + span))
    latest = schedule.last_at_or_before(a + span, not_before=a + timedelta(microseconds=1))
    assert latest == (found[-1] if found else None)


@quick
@given(schedules)
def test_a_schedule_survives_every_transport(schedule: Schedule) -> None:
    row = to_row(schedule)
    assert from_row(*row) == schedule
    assert to_row(from_row(*row)) == row
    assert parse_schedule(to_document(schedule)) == schedule


@quick
@given(schedules, instants)
def test_every_schedule_can_be_described_and_previewed(schedule: Schedule, t: datetime) -> None:
    text = schedule.describe()
    assert text[0].isupper() or text[0].isdigit()
    assert "  " not in text
    assert all(fire.at == fire.local and fire.at > t for fire in next_fires(schedule, t, 3))


cron_like = st.text(st.sampled_from("0123456789*,/-#?LWHR @MONFRIJANmonfri:()\t٣é"), max_size=40)


@settings(max_examples=400, deadline=None)
@given(st.one_of(cron_like, st.text(max_size=300), cron_like.map(lambda text: f"0 0 {text} * *")), st.booleans())
def test_garbage_only_ever_raises_a_refusal_with_a_code_and_a_place(text: str, with_seconds: bool) -> None:
    refusal = refusal_of(lambda: cron(text, seconds=with_seconds))
    if refusal is None:
        assert cron(text, seconds=with_seconds).next_after(start_of_2024) is not None
        return
    assert refusal.code.startswith("cron_")
    assert refusal.position is not None
    assert 0 <= refusal.position <= len(text)
    assert refusal.message


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=30)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=5), inner, max_size=2)),
    max_leaves=4,
)
keys = st.sampled_from(
    ["cron", "every", "delay", "at", "tz", "seconds", "anchor", "offset", "gap", "fold", "rrule", "start", "crno"]
)


@settings(max_examples=250, deadline=None)
@given(st.one_of(st.dictionaries(keys, json_values, max_size=3), json_values))
def test_any_document_is_a_schedule_or_a_refusal_with_a_code_and_a_pointer(document: object) -> None:
    refusal = refusal_of(lambda: parse_schedule(document))  # type: ignore[arg-type]
    assert refusal is None or refusal.code
    assert refusal is None or refusal.pointer.startswith("/schedule")
