"""Forecasts: fires per time bucket, proposals to spread peaks, and the effect of a job change. All pure."""

from __future__ import annotations

from bellringer.forecast.fire_counts import FireCounts, ForecastWindow, GroupFires, JobGroup, count_fires, spread_fires
from bellringer.forecast.fire_diff import FireDiff, diff_fires, list_fires
from bellringer.forecast.spread_proposals import SpreadProposal, propose_spreading

__all__ = [
    "FireCounts",
    "FireDiff",
    "ForecastWindow",
    "GroupFires",
    "JobGroup",
    "SpreadProposal",
    "count_fires",
    "diff_fires",
    "list_fires",
    "propose_spreading",
    "spread_fires",
]
