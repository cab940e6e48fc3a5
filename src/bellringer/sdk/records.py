"""What an app is told of a workflow run from inside."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """A node, or one element of a map: `transform[3]`. `size` is how many elements a map has, once it knows."""

    name: str
    state: str  # blocked, queued, running, retrying, waiting, succeeded, dead, cancelled, skipped
    reason: str | None
    run_id: str | None  # of its run, once it has one
    attempt: int
    started_at: datetime | None
    finished_at: datetime | None
    size: int | None
