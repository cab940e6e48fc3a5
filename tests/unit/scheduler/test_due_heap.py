"""The wheel: hands in the order in which they strike, each by its newest reading."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from bellringer.scheduler.due_cohorts import DueHeap
from bellringer.store.cohorts import Cohort

START = datetime(2026, 3, 1, tzinfo=UTC)


def hand(seconds: int, shard: int = 0, schedule: int = 0) -> Cohort:
    return Cohort(START + timedelta(seconds=seconds), shard, schedule)


readings = st.lists(st.builds(hand, *[st.integers(0, 9)] * 3))


def until(seconds: int) -> datetime:
    return START + timedelta(seconds=seconds)


def test_cohorts_come_in_the_order_of_their_due_times_and_only_once() -> None:
    wheel = DueHeap()
    wheel.put([hand(3, 1), hand(1, 2), hand(2, 3), hand(9, 4)])
    assert wheel.next_due_at() == until(1)
    assert wheel.take(until(5), 10) == [hand(1, 2), hand(2, 3), hand(3, 1)]
    assert wheel.take(until(5), 10) == []
    assert len(wheel) == 1


def test_no_more_cohorts_come_than_were_asked_for() -> None:
    wheel = DueHeap()
    wheel.put(hand(n, n) for n in range(5))
    assert [len(wheel.take(until(9), 2)) for _ in range(4)] == [2, 2, 1, 0]


def test_an_empty_heap_has_no_next_due_time() -> None:
    assert DueHeap().next_due_at() is None


@given(readings)
def test_the_newest_reading_of_a_cohort_counts(hands: list[Cohort]) -> None:
    wheel = DueHeap()
    for one in hands:
        wheel.put([one])
    newest = {(one.shard, one.schedule_id): one for one in hands}
    assert len(wheel) == len(newest)
    assert wheel.take(until(10), 1000) == sorted(newest.values())


@given(readings, st.sets(st.integers(0, 9)))
def test_cohorts_of_shards_that_are_not_held_are_forgotten(hands: list[Cohort], shards: set[int]) -> None:
    wheel = DueHeap()
    newest = {(one.shard, one.schedule_id): one for one in hands}
    wheel.put(newest.values())
    wheel.keep(shards)
    assert wheel.take(until(10), 1000) == sorted(one for one in newest.values() if one.shard in shards)


def test_a_cohort_may_return_after_it_was_taken() -> None:
    wheel = DueHeap()
    wheel.put([hand(1)])
    wheel.take(until(1), 1)
    wheel.put([hand(1)])
    assert wheel.take(until(1), 1) == [hand(1)]
