"""A short history and a short drill of `make chaos`, which plays many long ones."""

from __future__ import annotations

import pytest

from .drill import drill
from .faults import plan
from .history import play

SEED = 6
SECONDS = 10.0


@pytest.mark.cluster
async def test_accepted_work_is_executed_whatever_fails() -> None:
    history = await play(SEED, SECONDS, short=True)
    assert not history.verdict.violations, history.report()
    assert history.verdict.executed > len(history.load.accepted) > 0


@pytest.mark.cluster
async def test_a_worker_that_is_stopped_again_and_again_ends_no_run_as_cancelled_or_dead() -> None:
    drilled = await drill(2, short=True)
    assert not drilled.verdict.violations, drilled.report()
    assert drilled.verdict.duplicates["lost"] > 0, "the stops lost no attempt"


def test_a_plan_depends_on_its_seed_alone() -> None:
    names = ["scheduler-1"], ["worker-1", "worker-2"]
    assert plan(3, 180, *names) == plan(3, 180, *names)
    assert plan(3, 180, *names) != plan(4, 180, *names)
    assert all(fault.at + fault.seconds <= 180 for fault in plan(3, 180, *names))
