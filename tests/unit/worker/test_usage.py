"""The meter: what a worker starts and what its time goes to, by minute, pool and tenant."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from bellringer.store.usage import WHOLE_POOL_TENANT_ID, UsageDelta
from bellringer.worker import usage
from bellringer.worker.usage import UsageMeter

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def of(used: list[UsageDelta], tenant: int) -> list[UsageDelta]:
    return [one for one in used if one.tenant_id == tenant]


def test_time_is_summed_over_attempts_that_run_at_once() -> None:
    made = UsageMeter()
    made.began(1, 7, 0.0)
    made.began(1, 7, 1.0)
    made.ended(1, 7, 3.0)
    assert of(made.take(4.0, NOON), 7) == [UsageDelta(NOON, 1, 7, busy_ms=6000)]  # one of 4 s and one of 2 s


def test_an_attempt_that_goes_on_counts_at_every_look() -> None:
    made = UsageMeter()
    made.began(1, 7, 0.0)
    looks = [of(made.take(moment, NOON), 7)[0].busy_ms for moment in (2.0, 4.0, 5.0)]
    assert looks == [2000, 2000, 1000]
    made.ended(1, 7, 5.5)
    assert of(made.take(6.0, NOON), 7)[0].busy_ms == 500
    assert made.take(8.0, NOON) == []


def test_a_pool_has_its_slots_all_the_time() -> None:
    made = UsageMeter()
    made.open(1, 10, 0.0)
    made.open(2, 5, 0.0)
    assert {(u.pool_id, u.slots_ms) for u in of(made.take(2.0, NOON), WHOLE_POOL_TENANT_ID)} == {
        (1, 20_000),
        (2, 10_000),
    }
    assert {(u.pool_id, u.slots_ms) for u in of(made.take(3.0, NOON), WHOLE_POOL_TENANT_ID)} == {
        (1, 10_000),
        (2, 5_000),
    }


def test_starts_count_for_the_minute_in_which_they_were_due() -> None:
    made = UsageMeter()
    made.started(1, 7, NOON - 10 * MINUTE, 600)
    made.started(1, 7, NOON + timedelta(seconds=59), 0.1)
    found = {u.minute: (u.started, u.late) for u in made.take(1.0, NOON)}
    assert found == {NOON - 10 * MINUTE: (1, 1), NOON: (1, 0)}


def test_what_is_late_is_what_the_tenant_says() -> None:
    made = UsageMeter()
    made.learn({7: 1.0, 8: 60.0})
    for tenant in (7, 8, 9):
        for late in (0.5, 3.0, 30.0):
            made.started(1, tenant, NOON, late)
    assert {u.tenant_id: u.late for u in made.take(1.0, NOON)} == {7: 2, 8: 0, 9: 1}
    made.learn({7: None})
    made.started(1, 7, NOON, 3.0)
    assert made.take(1.0, NOON)[0].late == 0


def test_what_could_not_be_stored_is_taken_again_once_and_in_one_row() -> None:
    made = UsageMeter()
    made.started(1, 7, NOON, 9.0)
    made.keep(made.take(1.0, NOON))
    made.started(1, 7, NOON, 0.0)
    assert made.take(2.0, NOON) == [UsageDelta(NOON, 1, 7, started=2, late=1)]
    assert made.take(3.0, NOON) == []


def test_one_heartbeat_brings_only_so_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "MAX_USAGE_ROWS", 10)
    made = UsageMeter()
    for tenant in range(1, 26):
        made.started(1, tenant, NOON, 0.0)
    taken = [made.take(1.0, NOON) for _ in range(4)]
    assert [len(some) for some in taken] == [10, 10, 5, 0]
    assert {u.tenant_id for some in taken for u in some} == set(range(1, 26))


def test_occurrences_and_retries_are_counted_by_the_minute_in_which_they_were_due() -> None:
    made = UsageMeter()
    made.started(1, 7, NOON, 0.0)
    made.occurred(1, 7, NOON)
    made.retried(1, 7, NOON)
    made.retried(1, 8, NOON)
    assert made.take(1.0, NOON) == [
        UsageDelta(NOON, 1, 7, started=1, occurrences=1, retried=1),
        UsageDelta(NOON, 1, 8, retried=1),
    ]
