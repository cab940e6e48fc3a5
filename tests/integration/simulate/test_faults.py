"""What goes wrong on purpose: drawn by the seed, inside the span, and apart."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bellringer.errors import InvalidInput
from bellringer.simulate.faults import MAX_OUTAGE, MIN_OUTAGE, FaultPlan, Outage, choose_faults, parse_time

START = datetime(2025, 1, 1, tzinfo=UTC)
END = datetime(2026, 1, 1, tzinfo=UTC)


def test_where_nothing_is_asked_for_there_are_two_outages_and_five_crashes() -> None:
    faults = choose_faults(START, END)

    assert (len(faults.outages), len(faults.crashes)) == (2, 5)
    short, long = sorted(outage.length for outage in faults.outages)
    assert MIN_OUTAGE <= short < long <= MAX_OUTAGE


@pytest.mark.parametrize(
    ("asked", "outages", "crashes"),
    [
        ({"crashes": 3}, 0, 3),
        ({"outages": 4}, 4, 0),
        ({"outages": 0}, 0, 0),
        ({"given": ["2025-03-01/3d"]}, 1, 0),
        ({"given": ["2025-03-01/3d"], "crashes": 2}, 1, 2),
    ],
)
def test_who_asks_for_something_gets_only_that(asked: dict[str, Any], outages: int, crashes: int) -> None:
    faults = choose_faults(START, END, **asked)

    assert (len(faults.outages), len(faults.crashes)) == (outages, crashes)


def test_the_same_seed_draws_the_same_faults() -> None:
    assert choose_faults(START, END, seed=7) == choose_faults(START, END, seed=7)
    assert choose_faults(START, END, seed=7) != choose_faults(START, END, seed=8)


@given(
    st.integers(), st.integers(0, 40), st.integers(0, 40), st.timedeltas(timedelta(minutes=30), timedelta(days=4000))
)
def test_faults_lie_inside_the_span_and_apart(seed: int, outages: int, crashes: int, length: timedelta) -> None:
    end = START + length
    faults = choose_faults(START, end, outages=outages, crashes=crashes, seed=seed)

    assert len(faults.outages) == outages
    assert all(START <= o.start < o.end < end and o.length <= MAX_OUTAGE for o in faults.outages)
    assert all(before.end < after.start for before, after in zip(faults.outages, faults.outages[1:], strict=False))
    assert all(START <= moment < end for moment in faults.crashes)
    assert list(faults.crashes) == sorted(faults.crashes)


def test_outages_that_meet_are_one() -> None:
    faults = choose_faults(START, END, given=["2025-03-03/1d", "2025-03-01/2d", "2025-06-01/1d"])

    assert [(o.start.month, o.length.days) for o in faults.outages] == [(3, 3), (6, 1)]


def test_schedulers_are_away_from_the_start_of_an_outage_and_back_at_its_end() -> None:
    outage = Outage.read("2025-03-01T00:00Z/2025-03-04T12:00Z")
    faults = FaultPlan(outages=[outage])
    second = timedelta(seconds=1)

    assert [faults.away(at) for at in (outage.start - second, outage.start, outage.end - second, outage.end)] == [
        False,
        True,
        True,
        False,
    ]
    assert [faults.next_turn(at) for at in (START, outage.start, outage.end)] == [outage.start, outage.end, None]


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2025-03-01", "2025-03-01T00:00:00+00:00"),
        ("2025-03-01T12:30", "2025-03-01T12:30:00+00:00"),
        ("2025-03-01T12:30+02:00", "2025-03-01T10:30:00+00:00"),
    ],
)
def test_a_time_without_a_zone_is_in_utc(text: str, instant: str) -> None:
    assert parse_time(text, what="from").isoformat() == instant


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"given": ["2025-03-01"]}, "has no end"),
        ({"given": ["yesterday/3d"]}, "is not an RFC 3339 date and time"),
        ({"given": ["2025-03-01/soon"]}, "cannot be read"),
        ({"given": ["2025-03-02/2025-03-01"]}, "does not begin and end between"),
        ({"given": ["2025-12-31/2026-01-01"]}, "let it end before the simulation does"),
        ({"given": ["2024-12-31/2025-01-02"]}, "does not begin and end between"),
        ({"crashes": -1}, "crashes must be from 0"),
        ({"outages": 1001}, "outages must be from 0"),
    ],
)
def test_what_cannot_be_is_refused(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        choose_faults(START, END, **asked)
