"""Events, baselines and moves of the time zones' rules, as the API tells them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from bellringer.wire.answers import Answer


class Event(Answer, frozen=True):
    """Something that people want to be told of; `data` says more, by kind.

    A run has failed, is dead, late, missed or slow; a job is outgrown, or has recovered.

    What was missed, or is late before it was born, has no run, so no `run_id`; nor has an outgrown job.
    """

    event_id: int
    at: datetime
    kind: str
    job_id: str
    job: str | None
    run_id: str | None
    scheduled_for: datetime
    attempt: int
    data: dict[str, Any]


class EventPage(Answer, frozen=True):
    """Events, the newest first."""

    items: list[Event]
    next_cursor: str | None = None


class Baseline(Answer, frozen=True):
    """What is usual for a job, by its last runs that succeeded, and the time between its next two occurrences."""

    runs: int
    median: str | None
    longest: str | None
    slow_after: str | None
    interval: str | None
    outgrown: bool


class TzMove(Answer, frozen=True):
    """A schedule whose next instant new rules have moved; jobs are counted up to a thousand a shard."""

    version: str
    schedule: dict[str, Any]
    description: str
    jobs: int
    shards: int
    old_next: datetime
    new_next: datetime
    moved_at: datetime


class TzMoves(Answer, frozen=True):
    """`version` is what this server computes by; `applied` counts the shards that follow each version."""

    version: str
    applied: dict[str, int]
    shards: int
    items: list[TzMove]
