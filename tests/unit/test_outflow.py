"""How much of a pool may be with the broker: what its workers can start about now."""

from __future__ import annotations

from bellringer.scheduler.outflow import MOST, MOST_OUT, Outflow
from bellringer.store.dispatch import Load

NOTHING = Load(sent=0, fresh=0, held=0)


def test_as_much_goes_out_as_there_are_free_seats() -> None:
    flow = Outflow()
    assert flow.room(50, NOTHING) == 50
    assert flow.room(50, Load(sent=20, fresh=20, held=10)) == 20
    assert flow.room(50, Load(sent=0, fresh=0, held=50)) == 0
    assert flow.room(50, Load(sent=0, fresh=0, held=80)) == 0


def test_who_takes_fast_gets_more_ahead() -> None:
    flow = Outflow()
    flow.measure(NOTHING, 0.0)
    for n in range(1, 20):  # 1,000 are taken in every tenth of a second
        flow.add(1_000)
        flow.measure(NOTHING, n / 10)
    assert flow.room(50, NOTHING) == MOST
    assert 2_000 < flow.room(50, Load(sent=400, fresh=400, held=50)) + 400 < 2_600


def test_what_is_stuck_does_not_stop_the_pool_and_is_bounded() -> None:
    flow = Outflow()
    assert flow.room(50, Load(sent=50, fresh=0, held=0)) == 50
    assert flow.room(50, Load(sent=200, fresh=0, held=0)) == 0
    assert flow.room(1_000_000, Load(sent=MOST_OUT, fresh=0, held=0)) == 0


def test_little_runs_behind_live_work_and_never_nothing() -> None:
    assert Outflow.behind(100) == 25
    assert Outflow.behind(1) == 1
