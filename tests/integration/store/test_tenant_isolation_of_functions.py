"""Security-definer functions act only for the tenant of their caller."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from bellringer.core.jobs import Definition
from bellringer.core.policies import Limit
from bellringer.engine import register
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.tenant_scope import ScopedStore

REGISTER = "select * from bellringer.register($1::jsonb, '{0}', $2, 'x', '{}', '{}', '{}', '{}')"
SEND = (
    "select * from bellringer.send($1, $2, 0::smallint, 1, 1::smallint, 1::smallint, null, null, '{}', null, 'send', "
    "false, false)"
)


ANOTHERS = "BR004"  # that is another tenant's


async def other(store: Store) -> int:
    number: int = await store.pool.fetchval("insert into tenants (name) values ('other') returning tenant_id")
    return number


async def mine(store: Store, catalog: Catalog, **more: Any) -> UUID:
    wanted = Definition(name="mine", task="greet", schedules=(), **more)
    return (await register.create(store, catalog, [wanted], tenant_id=1, who="me"))[0].job_id


async def test_register_does_not_touch_the_limit_of_another_tenant(
    store: Store, catalog: Catalog, tenants: Store
) -> None:
    await mine(store, catalog, limit=Limit("k", 5))
    key_id, theirs = await store.pool.fetchval("select key_id from limits"), await other(store)
    row = {
        "tenant_id": theirs, "expected": 0, "task_id": 1, "schedules": [], "schedule_ids": [], "pool_id": 1,
        "priority": 1, "misfire": "skip", "catchup": {}, "overlap": "allow", "key_id": key_id, "key_most": 1,
        "jitter_by": 0, "enabled": True, "owner": "x", "tags": [],
        "jobs": [[str(uuid4()), 0, "x", {}]],
    }  # fmt: skip
    with pytest.raises(asyncpg.PostgresError) as refused:
        await ScopedStore(tenants, theirs, None).pool.fetch(REGISTER, json.dumps([row]), datetime.now(UTC))
    assert refused.value.sqlstate == ANOTHERS
    assert await store.pool.fetchval("select most from limits") == 5


async def test_a_send_does_not_run_the_job_of_another_tenant(store: Store, catalog: Catalog, tenants: Store) -> None:
    job_id, theirs = await mine(store, catalog, kwargs={"word": "secret"}), await other(store)
    with pytest.raises(asyncpg.PostgresError) as refused:
        await ScopedStore(tenants, theirs, None).pool.fetch(SEND, theirs, job_id)
    assert refused.value.sqlstate == ANOTHERS
    assert await store.pool.fetchval("select count(*) from queue") == 0
