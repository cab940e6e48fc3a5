"""Seats: a claim is neither too small to pay nor a hoard."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bellringer.worker.slots import CLAIM_AHEAD_SECONDS, MAX_CLAIM_ROWS, PoolSlots


def seats(slots: int = 10, busy: int = 0) -> PoolSlots:
    made = PoolSlots("short", 1, slots)
    made.busy = busy
    return made


def finish(pool: PoolSlots, count: int, seconds: float, since: float = 0.0) -> None:
    """So many attempts finish within so many seconds."""
    for _ in range(count):
        pool.busy += 1
        pool.finished()
    pool.measure(since + seconds)


def test_free_seats_are_claimed_for() -> None:
    assert seats(10).wanted() == 10
    assert seats(10, busy=7).wanted() == 3
    assert seats(10, busy=10).wanted() == 0


def test_a_fast_pool_claims_what_it_finishes_in_the_next_moments() -> None:
    pool = seats(10)
    for n in range(20):
        finish(pool, 1000, 1.0, since=float(n))
    assert 10 + int(900 * CLAIM_AHEAD_SECONDS) <= pool.wanted() <= 10 + int(1000 * CLAIM_AHEAD_SECONDS)


def test_a_pool_that_went_quiet_claims_ahead_no_more() -> None:
    pool = seats(10)
    finish(pool, 1000, 1.0)
    for n in range(1, 30):
        pool.measure(1.0 + n)
    assert pool.wanted() == 10


def test_a_full_pool_is_not_worth_a_claim() -> None:
    assert seats(10).worth_claiming()
    assert not seats(10, busy=10).worth_claiming()


@given(st.integers(1, 5000), st.integers(0, 5000), st.integers(0, 100_000))
def test_a_claim_is_never_negative_nor_too_large(slots: int, busy: int, finished: int) -> None:
    pool = seats(slots, busy=min(busy, slots))
    finish(pool, finished, 1.0)
    assert 0 <= pool.wanted() <= MAX_CLAIM_ROWS
