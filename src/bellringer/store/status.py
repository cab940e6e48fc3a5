"""The status of many runs in one call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from uuid import UUID

import msgspec

from bellringer.runs import FINAL, RunKey
from bellringer.store.pool import Store
from bellringer.store.queries import load
from bellringer.store.runs import AttemptRow, Run, read_run

_SQL = load("status")
_TRIED = ("attempt", "outcome", "ends_as", "started_at", "finished_at", "worker_id", "worker", "revision")


async def runs(
    store: Store, tenant_id: int, day: date, keys: Sequence[RunKey]
) -> Mapping[RunKey, tuple[Run, Sequence[AttemptRow]]]:
    """Those of these runs of one day that there are, with their attempts."""
    start = datetime.combine(day, time(), UTC)
    bounds = start, start + timedelta(days=1)
    found = [read_run(row) for row in await store.pool.fetch(_SQL.runs, *_columns(keys), tenant_id, *bounds)]
    tried = [run.key for run in found if run.attempt or run.state in FINAL]  # the others have no attempts yet
    tries: dict[RunKey, list[AttemptRow]] = defaultdict(list)
    for row in await store.pool.fetch(_SQL.attempts, *_columns(tried), *bounds) if tried else ():
        values: dict[str, Any] = {name: row[name] for name in _TRIED}
        attempt = AttemptRow(**values, error=_json(row["error"]), result=_json(row["result"]))
        tries[RunKey(row["job_id"], row["scheduled_for"], row["slot"])].append(attempt)
    return {run.key: (run, tries[run.key]) for run in found}


async def resting(store: Store, ids: Sequence[UUID], tenant_id: int, length: timedelta) -> list[UUID]:
    """Those of these jobs that change only by a writer's doing for so long: nothing of them is under way or due."""
    return [row["job_id"] for row in await store.pool.fetch(_SQL.resting, ids, tenant_id, length)]


def _columns(keys: Sequence[RunKey]) -> tuple[list[UUID], list[datetime], list[int]]:
    return [k.job_id for k in keys], [k.scheduled_for for k in keys], [k.slot for k in keys]


def _json(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)
