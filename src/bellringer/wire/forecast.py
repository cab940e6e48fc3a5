"""What is to come, as the API tells it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from bellringer.wire.answers import Answer, Remark

_RANGE = {"start": "from", "end": "to"}


class Bucket(Answer, frozen=True):
    """The fires by pool from `at` on, for as long as a bucket is."""

    at: datetime
    fires: dict[str, int]


class Peak(Answer, frozen=True):
    """The fullest bucket; `pool` has the most of its fires."""

    at: datetime
    fires: int
    pool: str


class Proposal(Answer, frozen=True):
    """A herd in the bucket `at`: `fires` of the bucket's `before` come from this schedule of `jobs` jobs.

    The suggestion is a patch of those jobs. `after` is what the bucket, and `peak` what the fullest bucket would get by
    it and the proposals before it.
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


class Forecast(Answer, frozen=True, rename=_RANGE):
    """Expected fires by bucket and pool; buckets without any are left out.

    The jobs were counted at `counted_at`. `left_out` of them are not in it, and no timer from `timers_until` on: there
    are too many. A job's `starts_at` and `ends_at` and freezes are not heeded.
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


class Change(Answer, frozen=True):
    """One field of a job, as it is and as it would be."""

    field: str
    before: Any
    after: Any


class Fires(Answer, frozen=True, rename=_RANGE):
    """A job's fires after `from` up to and including `to`, before and after a change.

    `truncated`: a list is not whole, or `to` is earlier than was asked for.
    """

    start: datetime
    end: datetime
    before: int
    after: int
    kept: int
    removed: list[datetime]
    added: list[datetime]
    truncated: bool


class DryRun(Answer, frozen=True):
    """What a change would do to the job that is at this revision; nothing was changed."""

    revision: int
    changes: list[Change]
    fires: Fires
    next_before: datetime | None
    next_after: datetime | None
    warnings: list[Remark]
