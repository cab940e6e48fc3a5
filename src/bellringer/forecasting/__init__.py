"""What is to come: how many fires fall when, which herds could be spread, and what a change would do. All pure."""

from __future__ import annotations

from bellringer.forecasting.changes import Difference, difference, fires
from bellringer.forecasting.counting import Crowd, Share, Tally, Window, spread, tally
from bellringer.forecasting.herds import Proposal, proposals

__all__ = [
    "Crowd",
    "Difference",
    "Proposal",
    "Share",
    "Tally",
    "Window",
    "difference",
    "fires",
    "proposals",
    "spread",
    "tally",
]
