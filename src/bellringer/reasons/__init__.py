"""Why: facts about a run, a job or an instant, and the ordered reasons that follow from them."""

from __future__ import annotations

from bellringer.reasons.facts import (
    MOST_AHEAD,
    NEAR,
    SILENT,
    Bounds,
    Circuit,
    Facts,
    Freeze,
    Gap,
    Hand,
    Held,
    Limit,
    Member,
    Pause,
    Reason,
    Then,
    Waiting,
)
from bellringer.reasons.judgement import (
    instant_near,
    next_of,
    read_time,
    reasons_for_job,
    reasons_for_occurrence,
    reasons_for_run,
)
from bellringer.reasons.words import shown

__all__ = [
    "MOST_AHEAD",
    "NEAR",
    "SILENT",
    "Bounds",
    "Circuit",
    "Facts",
    "Freeze",
    "Gap",
    "Hand",
    "Held",
    "Limit",
    "Member",
    "Pause",
    "Reason",
    "Then",
    "Waiting",
    "instant_near",
    "next_of",
    "read_time",
    "reasons_for_job",
    "reasons_for_occurrence",
    "reasons_for_run",
    "shown",
]
