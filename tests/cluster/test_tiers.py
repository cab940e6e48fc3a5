"""Tiers: short runs do not wait for long ones."""

from __future__ import annotations

import os

import pytest
from bench.tiers import tiers

RUNS = int(os.environ.get("BELLRINGER_HERD", "2000"))  # short runs at once; the issue names 10,000


@pytest.mark.cluster
async def test_short_runs_wait_no_longer_beside_long_ones_that_hold_every_long_slot(dsn: str) -> None:
    found = await tiers(dsn, RUNS, short=100, long=4, nap_ms=100)
    print(f"p99 beside to alone: {found.ratio}", found)
    assert found.ratio <= 1.5
    least = RUNS / 100 * 100 * 0.9  # so long 100 slots are busy with them, in ms
    assert all(waits["max"] >= least - 100 for waits in found.alone_ms), "they have really run"
