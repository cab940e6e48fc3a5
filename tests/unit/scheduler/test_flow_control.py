"""How much of a pool may be with the broker: what its workers can start about now."""

from __future__ import annotations

from bellringer.scheduler.broker_dispatcher import MAX_SEND_BATCH, MAX_SENT_RUNS, FlowControl
from bellringer.store.broker_dispatch import BrokerLoad

NOTHING = BrokerLoad(sent=0, fresh=0, held=0)


def test_as_much_goes_out_as_there_are_free_seats() -> None:
    flow = FlowControl()
    assert flow.room(50, NOTHING) == 50
    assert flow.room(50, BrokerLoad(sent=20, fresh=20, held=10)) == 20
    assert flow.room(50, BrokerLoad(sent=0, fresh=0, held=50)) == 0
    assert flow.room(50, BrokerLoad(sent=0, fresh=0, held=80)) == 0


def test_who_takes_fast_gets_more_ahead() -> None:
    flow = FlowControl()
    flow.measure(NOTHING, 0.0)
    for n in range(1, 20):  # 1,000 are taken in every tenth of a second
        flow.add(1_000)
        flow.measure(NOTHING, n / 10)
    assert flow.room(50, NOTHING) == MAX_SEND_BATCH
    assert 2_000 < flow.room(50, BrokerLoad(sent=400, fresh=400, held=50)) + 400 < 2_600


def test_what_is_stuck_does_not_stop_the_pool_and_is_bounded() -> None:
    flow = FlowControl()
    assert flow.room(50, BrokerLoad(sent=50, fresh=0, held=0)) == 50
    assert flow.room(50, BrokerLoad(sent=200, fresh=0, held=0)) == 0
    assert flow.room(1_000_000, BrokerLoad(sent=MAX_SENT_RUNS, fresh=0, held=0)) == 0


def test_little_runs_behind_live_work_and_never_nothing() -> None:
    assert FlowControl.background_room(100) == 25
    assert FlowControl.background_room(1) == 1
