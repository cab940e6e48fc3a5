"""The status of many runs in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Final
from uuid import UUID

import msgspec

from bellringer.runs import RunKey
from bellringer.store.pool import Store
from bellringer.store.queries import load
from bellringer.store.runs import Attempted, AttemptRow, Run, read_run

_SQL = load("status")
_ATTEMPTS: Final = msgspec.json.Decoder(list[AttemptRow])


async def runs(
    store: Store, tenant_id: int, day: date, keys: Sequence[RunKey]
) -> Mapping[RunKey, tuple[Run, Sequence[AttemptRow]]]:
    """Those of these runs of one day that there are, with their attempts."""
    bounds = datetime.combine(day, time.min, UTC), datetime.combine(day, time.max, UTC)
    asked = [k.job_id for k in keys], [k.scheduled_for for k in keys], [k.slot for k in keys]
    found: dict[RunKey, tuple[Run, Sequence[AttemptRow]]] = {}
    for row in await store.pool.fetch(_SQL.runs, *asked, tenant_id, *bounds):
        attempts = _ATTEMPTS.decode(row["attempts"]) if row["attempts"] is not None else []
        run = read_run(row, Attempted.of(attempts))
        found[run.key] = run, attempts
    return found


async def resting(store: Store, ids: Sequence[UUID], tenant_id: int, length: timedelta) -> list[UUID]:
    """Those of these jobs that change only by a writer's doing for so long: nothing of them is under way or due."""
    return [row["job_id"] for row in await store.pool.fetch(_SQL.resting, ids, tenant_id, length)]
