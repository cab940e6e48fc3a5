"""Simulate: a span of an app's schedules, lived through by the real engine on a clock that leaps, with faults.

def test_a_year_of_outages():
    report = simulate(app, "2025-01-01", "2026-01-01", outages=3, crashes=10, seed=7)
    assert report.clean, report
"""

from __future__ import annotations

from bellringer.simulate.faults import FaultPlan, Outage
from bellringer.simulate.report import Crash, Report, SimulatedJob
from bellringer.simulate.simulation import SimulationEstimate, asimulate, estimate, simulate

__all__ = [
    "Crash",
    "FaultPlan",
    "Outage",
    "Report",
    "SimulatedJob",
    "SimulationEstimate",
    "asimulate",
    "estimate",
    "simulate",
]
