"""The payload of a wake-up carries many instants in one notification."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from bellringer.store.wakeups import MAX_INSTANTS_PER_WAKEUP, WorkHint, format_instants, parse_work_hint

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def after(milliseconds: float) -> datetime:
    return NOW + timedelta(milliseconds=milliseconds)


def test_instants_survive_the_payload_in_order() -> None:
    assert parse_work_hint(format_instants({after(250), NOW, after(10)})).instants == [NOW, after(10), after(250)]


def test_a_payload_may_name_a_pool() -> None:
    assert parse_work_hint(f"{NOW.isoformat()};10,250,-7") == WorkHint([NOW, after(10), after(250)], pool_id=7)
    assert parse_work_hint(f"{NOW.isoformat()};-7") == WorkHint([NOW], pool_id=7)
    assert parse_work_hint(NOW.isoformat()) == WorkHint([NOW], pool_id=None)


def test_one_instant_is_exact() -> None:
    assert parse_work_hint(format_instants([after(0.123)])).instants == [after(0.123)]


def test_later_instants_are_rounded_up_so_that_nobody_wakes_too_early() -> None:
    assert parse_work_hint(format_instants([NOW, after(10.001), after(10.9)])).instants == [NOW, after(11)]


def test_a_payload_fits_into_a_notification() -> None:
    payload = format_instants([after(9_000_000 + n * 1000) for n in range(5 * MAX_INSTANTS_PER_WAKEUP)])
    assert len(payload) < 8_000
    assert len(parse_work_hint(payload).instants) == MAX_INSTANTS_PER_WAKEUP


@pytest.mark.parametrize(
    "payload", ["", "shards", "2026-13-01;1", "2026-03-01T12:00:00+00:00;x", "2026-03-01T12:00:00+00:00;;x"]
)
def test_an_invalid_payload_has_no_instants(payload: str) -> None:
    assert parse_work_hint(payload) == WorkHint([])
