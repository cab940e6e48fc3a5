"""The load over time, derived from attempts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from bellringer.api.endpoints.load_series import StepLoad, loads_by_step
from bellringer.core.jobs import WORKFLOW_TASK
from bellringer.core.runs import RunKey
from bellringer.store.overview import RunBar

NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
STEP = timedelta(minutes=1)
STARTS = [NOON + n * STEP for n in range(3)]
NOW = NOON + 3 * STEP


def bar(due: float, started: float | None = None, ended: float | None = None, *, job: int = 1, **more: Any) -> RunBar:
    """An attempt of a run; times in minutes after noon."""
    values: dict[str, Any] = {
        "key": RunKey(UUID(int=job), NOON + due * STEP, 0),
        "task": "t",
        "jitter_by": None,
        "attempt": None if ended is None else 1,
        "outcome": None if ended is None else "ok",
        "ends_as": None if ended is None else "succeeded",
        "started_at": None if started is None else NOON + started * STEP,
        "finished_at": None if ended is None else NOON + ended * STEP,
    }
    return RunBar(**{**values, **more})


def loads(*tries: RunBar, claimed: dict[int, float] | None = None) -> list[tuple[float, float]]:
    """The load of three steps. claimed: the number of a job → when a worker claimed its run, in minutes after noon."""
    since = {
        one.key: NOON + (claimed or {})[one.key.job_id.int] * STEP
        for one in tries
        if one.key.job_id.int in (claimed or {})
    }
    return [(one.waiting, one.busy) for one in loads_by_step(tries, STARTS, STEP, NOW, since)]


def test_a_run_waits_until_it_starts_and_then_executes_until_it_ends() -> None:
    assert loads(bar(0.5, 1.5, 2.25)) == [(0.5, 0.0), (0.5, 0.5), (0.0, 0.25)]


def test_parallel_attempts_add_up_and_jitter_is_no_waiting() -> None:
    late = bar(0, 1.5, 3, job=2, jitter_by=timedelta(seconds=90))
    assert loads(bar(0, 0, 3), late) == [(0.0, 1.0), (0.0, 1.5), (0.0, 2.0)]


def test_a_run_that_nobody_claimed_waits_and_a_claimed_one_executes() -> None:
    assert loads(bar(1, job=1), bar(1, job=2), claimed={1: 2}) == [(0.0, 0.0), (2.0, 0.0), (1.0, 1.0)]


def test_a_retry_executes_without_having_waited() -> None:
    assert loads(bar(0, 0, 1, outcome="failed", ends_as=None), claimed={1: 2}) == [(0.0, 1.0), (0.0, 0.0), (0.0, 1.0)]


def test_a_run_that_was_skipped_waits_until_then_and_future_runs_do_not_count() -> None:
    assert loads(bar(0, None, 1.5), bar(3.5, job=2)) == [(1.0, 0.0), (0.5, 0.0), (0.0, 0.0)]


def test_nodes_never_wait_and_workflow_runs_occupy_nothing() -> None:
    node = bar(0, 2, 3, is_node=True)
    flow = bar(0, 0, 3, job=2, task=WORKFLOW_TASK)
    assert loads(node, flow) == [(0.0, 0.0), (0.0, 0.0), (0.0, 1.0)]


def test_an_attempt_that_began_before_the_first_step_counts_from_there() -> None:
    assert loads(bar(-5, -4, 0.5)) == [(0.0, 0.5), (0.0, 0.0), (0.0, 0.0)]


def test_the_last_step_may_be_incomplete() -> None:
    [load] = loads_by_step([bar(0, 0, 0.5)], [NOON], STEP, NOON + STEP / 2, {})
    assert load == StepLoad(waiting=0.0, busy=1.0)
    assert loads_by_step([], [], STEP, NOW, {}) == []
