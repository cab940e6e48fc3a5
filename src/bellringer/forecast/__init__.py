"""Forecasts: fires per time bucket, the agenda of jobs, proposals to spread peaks, and the effect of a job change.

All pure.
"""

from __future__ import annotations

from bellringer.forecast.agenda import (
    Agenda,
    AgendaCell,
    AgendaEntry,
    AgendaJob,
    AgendaRepeats,
    AgendaWindow,
    ClockChange,
    build_agenda,
    count_by_day,
    midnight,
)
from bellringer.forecast.fire_counts import FireCounts, ForecastWindow, GroupFires, JobGroup, count_fires, spread_fires
from bellringer.forecast.fire_diff import FireDiff, diff_fires, list_fires
from bellringer.forecast.spread_proposals import SpreadProposal, propose_spreading

__all__ = [
    "Agenda",
    "AgendaCell",
    "AgendaEntry",
    "AgendaJob",
    "AgendaRepeats",
    "AgendaWindow",
    "ClockChange",
    "FireCounts",
    "FireDiff",
    "ForecastWindow",
    "GroupFires",
    "JobGroup",
    "SpreadProposal",
    "build_agenda",
    "count_by_day",
    "count_fires",
    "diff_fires",
    "list_fires",
    "midnight",
    "propose_spreading",
    "spread_fires",
]
