"""The status of many runs in one call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import msgspec

from bellringer.runs import RunKey
from bellringer.store.pool import Store
from bellringer.store.queries import load
from bellringer.store.runs import AttemptRow, Run, read_run

_SQL = load("status")
_TRIED = ("attempt", "outcome", "ends_as", "started_at", "finished_at", "worker_id", "worker", "revision")


async def runs(
    store: Store, tenant_id: int, day: date, keys: Sequence[RunKey]
) -> Mapping[RunKey, tuple[Run, Sequence[AttemptRow]]]:
    """Those of these runs of one day that there are, with their attempts."""
    columns = [k.job_id for k in keys], [k.scheduled_for for k in keys], [k.slot for k in keys]
    start = datetime.combine(day, time(), UTC)
    bounds = start, start + timedelta(days=1)
    found = [read_run(row) for row in await store.pool.fetch(_SQL.runs, *columns, tenant_id, *bounds)]
    if not found:
        return {}
    tries: dict[RunKey, list[AttemptRow]] = defaultdict(list)
    for row in await store.pool.fetch(_SQL.attempts, *columns, *bounds):
        values: dict[str, Any] = {name: row[name] for name in _TRIED}
        attempt = AttemptRow(**values, error=_json(row["error"]), result=_json(row["result"]))
        tries[RunKey(row["job_id"], row["scheduled_for"], row["slot"])].append(attempt)
    return {run.key: (run, tries[run.key]) for run in found}


def _json(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)
