"""Verify, where jobs are workflows: each occurrence has one run, and the runs of nodes are nobody's occurrences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.verify.conftest import Check

from bellringer.jobs import WORKFLOW
from bellringer.schedule import every

if TYPE_CHECKING:
    from tests.lifecycle.conftest import Bench


async def test_the_runs_of_nodes_are_no_occurrences(bench: Bench, check: Check) -> None:
    nodes = [
        {"name": "each", "task": "greet", "over": {"value": [1, 2]}},
        {"name": "end", "task": "greet", "after": ["each"]},
    ]
    await bench.job("flow", every("10s"), task=WORKFLOW, workflow={"nodes": nodes})
    seat = await bench.seat("greet", WORKFLOW)
    for second in (10, 20):
        await bench.set_clock(bench.after(second))
        await bench.tick_all()
        [root] = await bench.claim(seat)
        await bench.end(seat, root, opened=True)
        while taken := await bench.claim(seat):
            await bench.end(seat, taken)
    assert await bench.value("select count(*) from runs where cause = 'workflow'") == 6
    found = await check()
    assert (found.told, found.summary.ran) == ([], 2)
