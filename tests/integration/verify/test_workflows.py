"""Verify, where jobs are workflows: each occurrence has one run, and the runs of nodes are nobody's occurrences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.integration.verify.conftest import Check

from bellringer.core.jobs import WORKFLOW_TASK
from bellringer.schedule import every

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness


async def test_the_runs_of_nodes_are_no_occurrences(harness: EngineHarness, check: Check) -> None:
    nodes = [
        {"name": "each", "task": "greet", "over": {"value": [1, 2]}},
        {"name": "end", "task": "greet", "after": ["each"]},
    ]
    await harness.job("flow", every("10s"), task=WORKFLOW_TASK, workflow={"nodes": nodes})
    seat = await harness.join_worker("greet", WORKFLOW_TASK)
    for second in (10, 20):
        await harness.set_clock(harness.after(second))
        await harness.tick_all()
        [root] = await harness.claim(seat)
        await harness.end(seat, root, opened=True)
        while taken := await harness.claim(seat):
            await harness.end(seat, taken)
    assert await harness.value("select count(*) from runs where cause = 'workflow'") == 6
    found = await check()
    assert (found.told, found.summary.created) == ([], 2)
