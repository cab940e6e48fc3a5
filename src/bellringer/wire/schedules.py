"""Schedules: previews, forecasts, and dry runs of changes."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import field

from bellringer.wire.models import RequestModel, ResponseModel

_RANGE = {"start": "from", "end": "to"}


class PreviewRequest(RequestModel, frozen=True, rename={"after": "from"}):
    """A schedule to preview, as for a job of the given name. The default of `from` is now."""

    schedule: dict[str, Any]
    n: int = 5
    after: str | None = None
    job: str | None = None


class Occurrence(ResponseModel, frozen=True):
    """An occurrence of a schedule; `local` is the same instant in the time zone of the schedule."""

    at: datetime
    local: datetime
    flags: list[str]


class Remark(ResponseModel, frozen=True):
    """A warning about a valid but surprising schedule."""

    code: str
    text: str


class ExcludedOccurrence(ResponseModel, frozen=True):
    """An instant that the rule of a schedule names, but that a calendar or an exception removes or moves."""

    at: datetime
    local: datetime
    code: str
    reason: str


class Preview(ResponseModel, frozen=True):
    """A description of a schedule. `fires_per_day` is an average over thirty days; null for a delay.

    `excluded` are the first twenty instants between now and the last of the `fires` at which a calendar or an
    exception stops the schedule.
    """

    schedule: dict[str, Any]
    description: str
    fires: list[Occurrence]
    fires_per_day: float | None
    warnings: list[Remark]
    excluded: list[ExcludedOccurrence] = field(default_factory=list)


class ParseRequest(RequestModel, frozen=True, rename={"after": "from"}):
    """A schedule in plain English. `tz` is the time zone if the text names none; the default of `from` is now."""

    text: str
    tz: str | None = None
    n: int = 5
    after: str | None = None
    job: str | None = None


class UnderstoodPart(ResponseModel, frozen=True):
    """A part of the text, and its meaning."""

    text: str
    meaning: str


class ParsedSchedule(Preview, frozen=True):
    """A schedule that was read from plain English, and how each part of the text was understood."""

    understood: list[UnderstoodPart] = field(default_factory=list)


class Bucket(ResponseModel, frozen=True):
    """The fires of a time bucket that starts at `at`, by pool."""

    at: datetime
    fires: dict[str, int]


class Peak(ResponseModel, frozen=True):
    """The fullest bucket; `pool` has most of its fires."""

    at: datetime
    fires: int
    pool: str


class Proposal(ResponseModel, frozen=True):
    """A proposal to spread a peak: in the bucket `at`, this schedule of `jobs` jobs causes `fires` of `before` fires.

    `suggestion` is a patch for these jobs. With it and all earlier proposals, the bucket would have `after` fires, and
    the fullest bucket `peak`.
    """

    at: datetime
    schedule: dict[str, Any]
    description: str
    jobs: int
    fires: int
    suggestion: dict[str, Any]
    before: int
    after: int
    peak: int


class Forecast(ResponseModel, frozen=True, rename=_RANGE):
    """The expected fires by time bucket and pool; empty buckets are left out.

    The jobs were counted at `counted_at`. `left_out` jobs, and timers from `timers_until` on, are not included, because
    there are too many. `omitted` jobs fire more often than every minute and were not wanted (`sub_minute=false`).
    `starts_at` and `ends_at` of jobs, and freezes, are not taken into account.
    """

    start: datetime
    end: datetime
    bucket: str
    pools: list[str]
    buckets: list[Bucket]
    total: int
    peak: Peak | None
    counted_at: datetime
    left_out: int
    timers_until: datetime | None
    proposals: list[Proposal]
    omitted: int = 0


class Change(ResponseModel, frozen=True):
    """A changed field of a job, before and after the change."""

    field: str
    before: Any
    after: Any


class Fires(ResponseModel, frozen=True, rename=_RANGE):
    """The fires of a job after `from` up to and including `to`, before and after a change.

    `truncated`: a list is incomplete, or `to` is earlier than requested.
    """

    start: datetime
    end: datetime
    before: int
    after: int
    kept: int
    removed: list[datetime]
    added: list[datetime]
    truncated: bool


class DryRun(ResponseModel, frozen=True):
    """The effect that a change would have on this revision of a job."""

    revision: int
    changes: list[Change]
    fires: Fires
    next_before: datetime | None
    next_after: datetime | None
    warnings: list[Remark]
