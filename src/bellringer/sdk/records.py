"""Values that the SDK returns about the nodes of workflow runs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """A node, or one element of a map: `transform[3]`. `size` is the number of elements of a map, once known."""

    name: str
    state: str  # blocked, queued, running, retrying, waiting, succeeded, dead, cancelled, skipped
    reason: str | None
    run_id: str | None  # None until the node has a run
    attempt: int
    started_at: datetime | None
    finished_at: datetime | None
    size: int | None
