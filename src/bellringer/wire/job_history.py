"""The history of a job: its occurrences, days, statistics and baseline."""

from __future__ import annotations

from datetime import date, datetime

from bellringer.wire.models import ResponseModel


class StripRun(ResponseModel, frozen=True):
    """A recent run; `seconds` is the duration of its last attempt."""

    run_id: str
    scheduled_for: datetime
    state: str
    seconds: float | None


class StripOfRuns(ResponseModel, frozen=True):
    """The recent runs of a job, newest first, and the latest success among the runs that were read."""

    job_id: str
    runs: list[StripRun]
    last_success: datetime | None


class Strips(ResponseModel, frozen=True):
    """The recent runs of several jobs, in the order of the request; unknown jobs are left out."""

    items: list[StripOfRuns]


class LedgerEntry(ResponseModel, frozen=True, rename={"start": "from", "end": "to"}):
    """An occurrence, or a gap of several occurrences, and its outcome.

    `outcome` is ran, late, failed, cancelled, pending, skipped, coalesced (the run `into` replaced it), missed, paused
    or planned (a future skip). A gap extends from `from` to `to` and has `count` occurrences; null if not counted.
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


class Ledger(ResponseModel, frozen=True):
    """The occurrences of a job, newest first."""

    items: list[LedgerEntry]
    next_cursor: str | None = None


class Day(ResponseModel, frozen=True):
    """A day of a job: its runs, dead runs, occurrences without a run, and future fires.

    `more`: there were more runs than were counted.
    """

    day: date
    runs: int = 0
    failed: int = 0
    gaps: int = 0
    more: bool = False
    coming: int = 0


class Days(ResponseModel, frozen=True):
    """The days of a year (UTC) that have entries. Before `kept_from`, only runs of backfills are kept.

    If `coming_known` is false, future fires are unknown: they depend on the ends of runs, or are too many to compute.
    """

    year: int
    kept_from: date | None
    coming_known: bool
    days: list[Day]


class Spread(ResponseModel, frozen=True):
    """Percentiles in seconds."""

    p50: float
    p95: float
    p99: float


class DayTime(ResponseModel, frozen=True):
    """The attempts of a day (UTC): total, failed, and the 95th percentile of their duration in seconds."""

    day: date
    attempts: int
    failed: int
    p95: float | None


class JobMissed(ResponseModel, frozen=True, rename={"start": "from", "end": "to"}):
    """The missed occurrences of a job in a period. `expected` counts those that got a run and those that were missed.

    Occurrences that were skipped when they were created (freeze, pause, calendar) are in neither; a run that its
    overlap policy skipped later was expected. With `more`, the counts stopped at their limit. `uncounted` is the number
    of gaps whose occurrences were not counted.
    """

    start: datetime
    end: datetime
    expected: int
    missed: int
    rate: float | None
    more: bool
    uncounted: int


class Baseline(ResponseModel, frozen=True):
    """The usual duration of a job, from its latest successful runs, and the interval between its next occurrences."""

    runs: int
    median: str | None
    longest: str | None
    slow_after: str | None
    interval: str | None
    outgrown: bool


class LatenessSpread(ResponseModel, frozen=True):
    """Percentiles in seconds."""

    p50: float
    p99: float


class StatsBucket(ResponseModel, frozen=True):
    """The attempts of the runs that were due in a time bucket from `at` on. `retries` are attempts after the first.

    `more`: the bucket has more attempts; the figures are those of the newest `attempts`. Only occurrences of the
    schedule have a `lateness`: from the time of the run, after its jitter, until its first attempt started.
    """

    at: datetime
    attempts: int
    retries: int
    failed: int
    duration: Spread | None
    lateness: LatenessSpread | None
    more: bool = False


class StatsSeries(ResponseModel, frozen=True):
    """The attempts of a job by time; a bucket has `step` seconds. Buckets without attempts are included."""

    range: str
    step: int
    buckets: list[StatsBucket]


class JobStats(ResponseModel, frozen=True):
    """Statistics of the latest attempts of a job: `wait` until the start, and `run` for the duration; its missed
    occurrences in the last 30 days; its usual duration; and a series over the requested range.
    """

    attempts: int
    since: datetime | None
    succeeded: int
    failed: int
    success_rate: float | None
    wait: Spread | None
    run: Spread | None
    days: list[DayTime]
    missed: JobMissed
    baseline: Baseline
    series: StatsSeries
