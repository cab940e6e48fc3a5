"""Factories: what they make is consistent with the state that it is in."""

from __future__ import annotations

import pytest

from bellringer.core.runs import State
from bellringer.errors import InvalidInput
from bellringer.schedule import every
from bellringer.store import runs
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.testing import make_definition, make_job, make_run

MADE = sorted(set(State) - {State.SKIPPED})


@pytest.mark.parametrize("state", MADE)
async def test_a_run_is_made_in_any_state(store: Store, catalog: Catalog, state: State) -> None:
    run = await make_run(store, catalog, state=state)

    assert run.state is state
    is_tried = state not in (State.QUEUED, State.BLOCKED, State.CANCELLED)
    assert (run.worker_id is not None) == is_tried, "the worker of the last attempt"
    assert (run.finished_at is not None) == (state in (State.SUCCEEDED, State.DEAD, State.CANCELLED))
    tried = await runs.attempts(store, run.key, 1)
    assert len(tried) == (state not in (State.QUEUED, State.BLOCKED, State.RUNNING))
    assert bool(await runs.dead(store, 1, None, None, 10)) == (state is State.DEAD)


async def test_others_of_the_same_task_are_left_ready(store: Store, catalog: Catalog) -> None:
    waiting = await make_run(store, catalog, task="same")
    await make_run(store, catalog, task="same", state=State.RUNNING)

    again = await runs.get(store, waiting.key, 1)
    assert again is not None
    assert (again.state, again.attempt) == (State.QUEUED, 0)


async def test_a_state_that_no_step_makes_is_refused(store: Store, catalog: Catalog) -> None:
    with pytest.raises(InvalidInput, match="no step makes a run skipped"):
        await make_run(store, catalog, state="skipped")


async def test_jobs_have_names_of_their_own(store: Store, catalog: Catalog) -> None:
    first, second = (
        await make_job(store, catalog),
        await make_job(store, catalog, schedules=(every("1h"),), priority=9),
    )

    assert first.name != second.name
    assert (second.schedules, second.priority) == ((every("1h"),), 9)
    assert make_definition(name="x").name == "x"
