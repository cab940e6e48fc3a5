"""A worker and the nodes of workflows: arguments that it reads by itself, and ends that the database refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any, Final
from uuid import UUID

import pytest

from bellringer.clock import SystemClock
from bellringer.core.jobs import WORKFLOW_TASK, Definition
from bellringer.core.runs import FINAL_STATES, RunKey, State
from bellringer.core.tasks import Registry, make_task
from bellringer.engine.register import create
from bellringer.engine.send import SendSpec, send, trigger
from bellringer.store import runs
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.runs import RunRow
from bellringer.worker.service import Worker, WorkerSettings

LARGE: Final = Random(1).randbytes(20_000).hex()  # too large to travel, however it is compressed
# What nodes take from each other is read by a function of the database; here it fails for as long as a table says how.
UNREADABLE: Final = """
    create table bellringer.ill (code text);
    alter function bellringer.value_of(flows, jsonb, jsonb, integer) rename to sound_value_of;
    create function bellringer.value_of(f bellringer.flows, ref jsonb, item jsonb, place integer) returns jsonb
    language plpgsql as $$
    declare how text := (select code from bellringer.ill);
    begin
      if how is not null then raise exception 'no values today' using errcode = how; end if;
      return bellringer.sound_value_of(f, ref, item, place);
    end $$"""

REFUSED: Final = """
    create or replace function bellringer.result_of(p_flow uuid, p_at timestamptz, p_node integer) returns jsonb
    language plpgsql as $$ begin raise exception 'too much to be put together' using errcode = '54000'; end $$"""


@dataclass
class Shop:
    """One worker, and what its handlers were given."""

    store: Store
    catalog: Catalog
    given: list[Any] = field(default_factory=list)

    async def workflow(self, **document: Any) -> UUID:
        definition = Definition(name="flow", task=WORKFLOW_TASK, workflow=document)
        return (await create(self.store, self.catalog, [definition], tenant_id=1, who="me"))[0].job_id

    async def run(self, key: RunKey) -> RunRow:
        found = await runs.get(self.store, key, 1)
        assert found is not None
        return found

    async def ended(self, key: RunKey) -> RunRow:
        for _ in range(600):
            if (run := await self.run(key)).state in FINAL_STATES:
                return run
            await asyncio.sleep(0.05)
        raise AssertionError(f"it never ended: {run}")

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async def large() -> str:
            return LARGE

        async def use(text: str) -> int:
            self.given.append(text)
            return len(text)

        registry = Registry()
        for function in (large, use):
            registry.add(make_task(function, name=function.__name__))
        stop, settings = asyncio.Event(), WorkerSettings(pools={"short": 20}, grace=timedelta(seconds=1))
        working = asyncio.create_task(Worker(self.store, registry, SystemClock(), settings).run(stop))
        try:
            yield
        finally:
            stop.set()
            await working


@pytest.fixture
async def shop(store: Store, catalog: Catalog) -> Shop:
    await store.pool.execute(UNREADABLE)
    return Shop(store, catalog)


USE: Final = {
    "name": "use",
    "task": "use",
    "pool": "short",
    "takes": {"text": {"node": "large"}},
    "retry": {"attempts": 1},
}


async def test_what_cannot_be_read_fails_its_node_and_keeps_no_one_else_waiting(shop: Shop) -> None:
    flow = await shop.workflow(nodes=[{"name": "large", "task": "large", "pool": "short"}, USE])
    await shop.store.pool.execute("insert into bellringer.ill values ('54000')")
    key = await trigger(shop.store, flow, tenant_id=1)
    async with shop.open():
        died = await shop.ended(key)
        sent = await send(shop.store, shop.catalog, SendSpec(task="use", pool="short", args=["small"]), tenant_id=1)
        assert (await shop.ended(sent.key)).state is State.SUCCEEDED
    assert (died.state, shop.given) == (State.DEAD, ["small"])
    error = await shop.store.pool.fetchval(
        "select error from attempts where outcome = 'failed' order by finished_at limit 1"
    )
    assert "no values today" in error
    assert await shop.store.pool.fetchval("select count(*) from queue") == 0


async def test_a_database_that_is_away_is_waited_for(shop: Shop) -> None:
    flow = await shop.workflow(nodes=[{"name": "large", "task": "large", "pool": "short"}, USE])
    await shop.store.pool.execute("insert into bellringer.ill values ('57P01')")
    key = await trigger(shop.store, flow, tenant_id=1)
    async with shop.open():
        for _ in range(600):
            if await shop.store.pool.fetchval(
                "select count(*) from queue where worker_id is not null and spec ? 'refs'"
            ):
                break
            await asyncio.sleep(0.05)
        sent = await send(shop.store, shop.catalog, SendSpec(task="use", pool="short", args=["small"]), tenant_id=1)
        await shop.store.pool.execute("delete from bellringer.ill")
        assert (await shop.ended(key)).state is State.SUCCEEDED
        assert (await shop.ended(sent.key)).state is State.SUCCEEDED
    assert sorted(shop.given) == sorted([LARGE, "small"])
    assert await shop.store.pool.fetchval("select count(*) from attempts where outcome <> 'ok'") == 0


async def test_an_end_that_the_database_refuses_fails_its_run(shop: Shop) -> None:
    """What the workflow run would return cannot be put together, so its last node cannot end as it did."""
    await shop.store.pool.execute(REFUSED)
    flow = await shop.workflow(nodes=[{"name": "large", "task": "large", "pool": "short"}], output="large")
    key = await trigger(shop.store, flow, tenant_id=1)
    async with shop.open():
        died = await shop.ended(key)
    assert died.state is State.DEAD
    error = await shop.store.pool.fetchval(
        "select error from attempts where ends_as = 'dead' and error ->> 'type' <> 'NodesFailed'"
    )
    assert "too much to be put together" in error
    assert await shop.store.pool.fetchval("select count(*) from queue") == 0
