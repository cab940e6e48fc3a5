"""The public id of a run is the same, whether Python writes it or the database."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest

from bellringer.core.runs import RunKey
from bellringer.store.connection_pool import Store

KEYS = [
    RunKey(UUID(int=0), datetime(1970, 1, 1, tzinfo=UTC)),
    RunKey(UUID(int=(1 << 128) - 1), datetime(2026, 11, 16, 10, 57, 0, 1, tzinfo=UTC)),
    RunKey(UUID(int=(1 << 128) - 1), datetime(9000, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), (1 << 63) - 1),
    RunKey(uuid4(), datetime(1901, 2, 3, 4, 5, 6, 789, tzinfo=UTC), 1),
    RunKey(uuid4(), datetime(2026, 3, 29, 1, 30, tzinfo=UTC), 12_345),
]


@pytest.mark.parametrize("key", KEYS)
async def test_the_database_writes_ids_as_python_does(store: Store, key: RunKey) -> None:
    written = await store.pool.fetchval("select bellringer.run_id($1, $2, $3)", key.job_id, key.scheduled_for, key.slot)
    assert written == key.id
