"""Schedules that end after a number of occurrences."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bellringer.errors import InvalidSchedule
from bellringer.schedule import (
    Cron,
    Every,
    Schedule,
    bind_repeat,
    cron,
    every,
    explain_exclusion,
    from_row,
    parse_schedule,
    to_document,
    to_row,
)

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FAR = datetime(2100, 1, 1, tzinfo=UTC)


def schedules() -> st.SearchStrategy[tuple[Cron | Every, int]]:
    times = st.integers(1, 40)
    expressions = st.sampled_from(["*/7 * * * *", "30 2 * * *", "0 0 29 6 *", "0 */5 * * SUN", "30 1 1,15 * *"])
    zones = st.sampled_from(["UTC", "America/New_York", "Australia/Lord_Howe"])
    folds = st.sampled_from([None, "first", "second", "both"])
    by_cron = st.builds(
        lambda text, zone, fold, n: (cron(text, tz=zone, fold=fold, times=n, start=START), n),
        expressions,
        zones,
        folds,
        times,
    )
    lengths = st.sampled_from(["5m", "1h30m", "17s", "2d"])
    return st.one_of(by_cron, st.builds(lambda text, n: (every(text, times=n, start=START), n), lengths, times))


@settings(max_examples=150, deadline=None)
@given(schedules())
def test_a_schedule_has_exactly_the_counted_occurrences(made: tuple[Cron | Every, int]) -> None:
    schedule, times = made
    unlimited = replace(schedule, repeat=None)
    expected: list[datetime] = []
    at = START - timedelta(microseconds=1)
    while len(expected) < times:
        found = unlimited.next_after(at)
        assert found is not None
        expected.append(at := found)
    assert list(schedule.between(EPOCH, FAR)) == expected
    assert schedule.count_between(EPOCH, FAR) == times
    assert schedule.next_after(EPOCH) == expected[0]
    assert schedule.next_after(expected[-1]) is None
    assert schedule.last_at_or_before(FAR, not_before=EPOCH) == expected[-1]
    assert schedule.last_at_or_before(expected[0] - timedelta(seconds=1), not_before=EPOCH) is None
    read = from_row(*to_row(schedule))
    assert list(read.between(EPOCH, FAR)) == expected
    assert to_row(read) == to_row(schedule)
    assert parse_schedule(to_document(schedule)) == schedule


def test_registration_sets_the_start_to_the_first_occurrence() -> None:
    now = datetime(2026, 3, 1, 12, 2, tzinfo=UTC)
    assert to_document(bind_repeat(every("5m", times=3), START))["start"] == "2026-03-01T12:05:00Z"
    bound = bind_repeat(every("5m", times=3), now)
    assert to_document(bound) == {"every": "5m", "times": 3, "start": "2026-03-01T12:05:00Z"}
    later = bind_repeat(every("5m", times=3), now + timedelta(minutes=2))
    assert to_row(later) == to_row(bound)  # jobs that are registered between two occurrences share a row
    assert bind_repeat(bound, FAR) is bound


def test_a_repeated_registration_keeps_the_start() -> None:
    declared: Schedule = cron("0 9 * * *", times=5)
    stored = bind_repeat(declared, START)
    later = START + timedelta(days=3)
    assert bind_repeat(declared, later, [every("1h"), stored]) == stored
    changed = bind_repeat(cron("0 9 * * *", times=6), later, [stored])
    assert changed != stored
    assert to_document(changed)["start"] == "2026-03-05T09:00:00Z"


def test_without_a_start_the_schedule_has_no_end_and_no_row() -> None:
    schedule = every("1h", times=2)
    assert schedule.next_after(FAR) is not None
    with pytest.raises(InvalidSchedule, match="the repeat count has no start"):
        to_row(schedule)
    assert schedule.describe() == "Every hour, 2 times"
    assert bind_repeat(schedule, START).describe() == "Every hour, 2 times from 2026-03-01 13:00 UTC on"


@pytest.mark.parametrize(
    ("text", "document"),
    [
        ("R10/2026-01-01T00:00:00Z/PT5M", {"every": "5m", "times": 10, "start": "2026-01-01T00:00:00Z"}),
        ("R1/2026-01-01T00:02:00Z/PT1H", {"every": "1h", "offset": "2m", "times": 1, "start": "2026-01-01T00:02:00Z"}),
        ("R/2026-01-01T00:00:00Z/P1D", {"every": "1d"}),
        ("R-1/2026-01-01T01:00:00+01:00/P1D", {"every": "1d"}),
    ],
)
def test_a_repeating_interval_of_iso_8601(text: str, document: dict[str, object]) -> None:
    assert to_document(every(text)) == document
    assert to_document(parse_schedule({"every": text})) == document


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("R5/2026-01-01T00:00:00Z/P1M", "FREQ=MONTHLY"),
        ("R5/2026-01-01T00:00:00Z/P1Y", "FREQ=YEARLY"),
        ("R0/2026-01-01T00:00:00Z/PT5M", "write R1/"),
        ("R5/2026-01-01T00:00:00/PT5M", "add Z, or an offset"),
    ],
)
def test_a_repeating_interval_that_is_refused(text: str, hint: str) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        every(text)
    assert hint in caught.value.hint


@pytest.mark.parametrize("times", [0, -1, 1.5, "3", True, 1_000_001])
def test_the_number_of_times_is_a_positive_whole_number(times: object) -> None:
    with pytest.raises(InvalidSchedule, match="times must be a whole number") as caught:
        every("5m", times=times)  # type: ignore[arg-type]
    assert caught.value.pointer == "/times"


def test_options_that_do_not_fit() -> None:
    with pytest.raises(InvalidSchedule, match="'start' requires a number of times"):
        cron("0 9 * * *", start="2026-01-01T00:00:00Z")
    with pytest.raises(InvalidSchedule, match="write COUNT= in the rule"):
        parse_schedule({"rrule": "FREQ=DAILY", "start": "2026-01-01T09:00", "times": 3})
    with pytest.raises(InvalidSchedule, match="is not reached within 100 years"):
        bind_repeat(cron("0 0 29 2 *", times=1000), START)
    with pytest.raises(InvalidSchedule, match="is not reached within 100 years"):
        cron("0 0 29 2 *", times=1000, start=START)
    ends = cron("0 0 0 1 1 ? 2027-2029", dialect="quartz", times=10, start=START)
    assert ends.count_between(EPOCH, FAR) == 3


def test_the_reason_after_the_last_occurrence() -> None:
    schedule = every("5m", times=3, start=START)
    reason = explain_exclusion(schedule, START + timedelta(minutes=15))
    assert reason is not None
    assert (reason.code, reason.text) == ("count_reached", "the schedule ends after 3 occurrences")
    before = explain_exclusion(schedule, START - timedelta(minutes=5))
    assert before is not None
    assert before.code == "before_start"
    assert explain_exclusion(schedule, START) is None
    assert explain_exclusion(schedule, START + timedelta(minutes=1)) is None
