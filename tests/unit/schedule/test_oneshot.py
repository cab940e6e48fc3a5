"""A schedule of one instant."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from bellringer.errors import InvalidSchedule
from bellringer.schedule import at

NINE = datetime(2026, 12, 1, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    "value",
    [
        NINE,
        datetime(2026, 12, 1, 10, tzinfo=timezone(timedelta(hours=1))),
        "2026-12-01T09:00:00Z",
        "2026-12-01t09:00:00z",
        "2026-12-01 10:00:00+01:00",
        "2026-12-01T09:00Z",
        "2026-12-01T03:30:00.000-05:30",
    ],
)
def test_an_instant_may_be_written_in_many_ways(value: datetime | str) -> None:
    assert at(value).instant == NINE
    assert at(value).instant.tzinfo is UTC


@pytest.mark.parametrize("value", [NINE.replace(tzinfo=None), "2026-12-01T09:00:00"])
def test_an_instant_without_its_offset_is_refused(value: datetime | str) -> None:
    with pytest.raises(InvalidSchedule, match="add Z, or an offset") as caught:
        at(value)
    assert caught.value.code == "offset_required"


@pytest.mark.parametrize(
    "value",
    [
        "2026-02-30T09:00:00Z",
        "2026-12-01T24:00:01Z",
        "2026-12-01T09:00:60Z",
        "2026-12-01T09:00:00+25:00",
        "2026-12-01",
        "infinity",
        "",
        "٢٠٢٦-12-01T09:00:00Z",
        "10000-01-01T00:00:00Z",
        "0001-01-01T00:00:00Z",
        "0001-01-01T00:00:00+05:00",
        "1969-12-31T23:59:59Z",
        "9999-12-31T23:59:59Z",
        "9999-12-31T23:59:59-12:00",
        "x" * 10_000,
        None,
        1_764_579_600,
    ],
)
def test_an_invalid_instant_is_refused(value: object) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        at(value)  # type: ignore[arg-type]
    assert caught.value.code == "datetime_invalid"
    assert len(str(caught.value)) < 250


def test_an_instant_comes_once_and_never_again() -> None:
    schedule, second = at(NINE), timedelta(seconds=1)
    assert schedule.next_after(NINE - second) == NINE
    assert schedule.next_after(NINE) is None
    assert list(schedule.between(NINE - second, NINE)) == [NINE]
    assert list(schedule.between(NINE, NINE + second)) == []
    assert schedule.count_between(NINE, NINE + second) == 1
    assert schedule.count_between(NINE - second, NINE) == 0
    assert schedule.last_at_or_before(NINE, not_before=NINE) == NINE
    assert schedule.last_at_or_before(NINE + second, not_before=NINE + second) is None
