"""Steady intervals and delays."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from bellringer.errors import InvalidSchedule
from bellringer.schedule import Every, delay, every

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)


def test_an_interval_is_aligned_to_1970() -> None:
    assert every("15m").next_after(NOON + timedelta(minutes=7)) == NOON + timedelta(minutes=15)
    assert every("15m").next_after(NOON) == NOON + timedelta(minutes=15)
    assert every("15m").anchor == datetime(1970, 1, 1, tzinfo=UTC)


def test_an_anchor_and_an_offset_shift_the_interval() -> None:
    schedule = every("1h", anchor=datetime(2030, 1, 1, 0, 20, tzinfo=UTC), offset="5m")
    assert schedule.next_after(NOON) == NOON + timedelta(minutes=25)


def test_anchors_whole_intervals_apart_are_the_same_schedule() -> None:
    one = every("15m", anchor=datetime(2026, 1, 1, 0, 5, tzinfo=UTC))
    assert one == every("15m", offset="5m") == every(900, offset="20m") == every(900.0, anchor="2020-02-02T02:20:00Z")


def test_every_asks_its_questions_by_arithmetic() -> None:
    schedule, year = every("1s"), timedelta(days=365)
    began = time.perf_counter()
    assert schedule.count_between(NOON, NOON + year) == 31_536_000
    assert schedule.last_at_or_before(NOON + year, not_before=NOON) == NOON + year
    assert time.perf_counter() - began < 0.01


def test_the_bounds_of_each_question_are_as_promised() -> None:
    schedule, hour = every("1h"), timedelta(hours=1)
    assert list(schedule.between(NOON, NOON + 2 * hour)) == [NOON + hour, NOON + 2 * hour]
    assert schedule.count_between(NOON, NOON + 2 * hour) == 2
    assert schedule.count_between(NOON + hour, NOON) == 0
    assert schedule.last_at_or_before(NOON, not_before=NOON) == NOON
    assert schedule.last_at_or_before(NOON + hour / 2, not_before=NOON + hour / 4) is None


def test_no_occurrence_lies_beyond_the_last_datetime() -> None:
    assert every("366d").next_after(datetime.max.replace(tzinfo=UTC)) is None
    assert delay("1s").next_after(datetime.max.replace(tzinfo=UTC)) is None


def test_a_delay_counts_from_the_end_of_the_run() -> None:
    schedule = delay("10s")
    due = NOON + timedelta(seconds=10)
    assert schedule.next_after(NOON) == due
    assert list(schedule.between(NOON, NOON + timedelta(days=1))) == [due]
    assert schedule.count_between(NOON, due) == 0
    assert schedule.count_between(NOON, due + timedelta(seconds=1)) == 1
    assert schedule.last_at_or_before(due, not_before=NOON) == due
    assert schedule.last_at_or_before(NOON, not_before=NOON) is None


@pytest.mark.parametrize("value", [0, -5, 1e-9, 0.5, 1e308, float("inf"), float("nan"), "0s", "999ms", "367d"])
def test_an_interval_is_a_second_to_a_year(value: str | float) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        every(value)
    assert caught.value.code == "duration_out_of_range"


@pytest.mark.parametrize("value", [0, "0s", -1, "9000h"])
def test_a_delay_is_more_than_nothing_and_at_most_a_year(value: str | float) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        delay(value)
    assert caught.value.code == "duration_out_of_range"


@pytest.mark.parametrize("value", ["5", "PT-5S", "-5s", "soon", "", None, True, [1]])
def test_an_invalid_duration_is_refused_as_a_schedule(value: object) -> None:
    for make in (every, delay):
        with pytest.raises(InvalidSchedule) as caught:
            make(value)  # type: ignore[arg-type]
        assert caught.value.code == "duration_invalid"


def test_an_anchor_needs_its_offset_from_utc() -> None:
    with pytest.raises(InvalidSchedule) as caught:
        every("1h", anchor=NOON.replace(tzinfo=None))
    assert (caught.value.code, caught.value.pointer) == ("offset_required", "/anchor")


def test_a_delay_may_be_shorter_than_a_second() -> None:
    assert delay("250ms").interval == timedelta(milliseconds=250)
    assert isinstance(every("1s"), Every)
