"""What became of a job's occurrences, as the API tells it."""

from __future__ import annotations

from datetime import date, datetime

from bellringer.wire.answers import Answer


class StripRun(Answer, frozen=True):
    """A run in a strip; `seconds` is how long its last attempt took."""

    run_id: str
    scheduled_for: datetime
    state: str
    seconds: float | None


class StripOfRuns(Answer, frozen=True):
    """The last runs of a job, the newest first; and when one last succeeded, as far as one look reaches."""

    job_id: str
    runs: list[StripRun]
    last_success: datetime | None


class Strips(Answer, frozen=True):
    """Strips of those of the jobs that there are, in the order in which they were asked for."""

    items: list[StripOfRuns]


class LedgerEntry(Answer, frozen=True, rename={"start": "from", "end": "to"}):
    """One occurrence, or a gap of several, and what became of it.

    The outcome is ran, late, failed, cancelled, pending, skipped, coalesced (another ran in its place: `into`), missed,
    paused, or planned: a skip to come. A gap reaches from `from` up to `to`, and has `count` occurrences; none, where
    they were not counted.
    """

    kind: str
    at: datetime
    outcome: str
    reason: str = ""
    run_id: str | None = None
    state: str | None = None
    cause: str | None = None
    lateness_ms: int | None = None
    seconds: float | None = None
    start: datetime | None = None
    end: datetime | None = None
    count: int | None = None
    into: datetime | None = None
    who: str | None = None


class Ledger(Answer, frozen=True):
    """A job's occurrences, the newest first."""

    items: list[LedgerEntry]
    next_cursor: str | None = None


class Day(Answer, frozen=True):
    """One day of a job: its runs, those of them that gave up, occurrences that got none, and fires to come.

    `more`: there were more runs than were counted.
    """

    day: date
    runs: int = 0
    failed: int = 0
    gaps: int = 0
    more: bool = False
    coming: int = 0


class Days(Answer, frozen=True):
    """The days of a year on which there is something, in UTC. Before `kept_from` only runs of backfills are kept.

    Where not `coming_known`, the fires to come cannot be told: they follow the ends of runs, or are too much work.
    """

    year: int
    kept_from: date | None
    coming_known: bool
    days: list[Day]


class Spread(Answer, frozen=True):
    """In seconds: half of them took no longer than p50, 95 of 100 no longer than p95, 99 no longer than p99."""

    p50: float
    p95: float
    p99: float


class DayTime(Answer, frozen=True):
    """The attempts of a day, in UTC: how many failed, and how many seconds 95 of 100 took at most."""

    day: date
    attempts: int
    failed: int
    p95: float | None


class JobStats(Answer, frozen=True):
    """How the last attempts of a job went: how long runs waited for their start, and how long attempts took."""

    attempts: int
    since: datetime | None
    succeeded: int
    failed: int
    success_rate: float | None
    wait: Spread | None
    run: Spread | None
    days: list[DayTime]
