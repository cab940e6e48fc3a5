"""Lines of the archive: an ended run as the API returned it, with its tenant."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from bellringer.wire.runs import Attempt


class ArchivedRun(msgspec.Struct, frozen=True, kw_only=True):
    """An ended run. The fields are those of `GET /runs/{run_id}` that an ended run can have."""

    run_id: str
    tenant: str
    job_id: str
    job: str | None
    task: str
    state: str
    cause: str
    scheduled_for: datetime
    slot: int
    attempt: int
    fired_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    pool: str
    priority: int
    worker_id: int | None
    revision: int | None
    token: int | None
    reason: str
    error: Any
    args: list[Any]
    kwargs: dict[str, Any]
    result: Any
    attempts: list[Attempt]
    replay_of: str | None = None
