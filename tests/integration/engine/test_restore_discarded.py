"""Discarded dead letters can be restored for a day: exactly as they were, once, and only while their runs are dead."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tests.integration.workflow.test_workflows import failed, ok, start

from bellringer.core.retry_policy import Retry
from bellringer.core.runs import RunKey, State
from bellringer.engine import job_and_run_commands as commands
from bellringer.engine import prune, workflow_commands
from bellringer.engine.operations import OperationCursor, run_operations
from bellringer.engine.prune import Retention
from bellringer.store import operations, partitions
from bellringer.store.dead_letters import (
    DISCARDS_KEPT,
    DeadLetterFilter,
    DiscardFilter,
    discarded_keys,
    find_dead_letters,
    list_discarded,
    load_dead_letters,
)
from bellringer.store.operations import NewOperation
from bellringer.store.tenant_scope import ScopedStore

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness

DAY = timedelta(days=1)
ACTOR = json.dumps({"who": "user:ada", "origin": "10.0.0.1", "request_id": "r1"})


async def die(harness: EngineHarness, count: int = 1) -> list[RunKey]:
    """Sends runs that fail for good."""
    sent = [(await harness.send(retry=Retry(attempts=1))).key for _ in range(count)]
    seat = await harness.join_worker()
    await harness.fail(seat, await harness.claim(seat), type="KeyError", message="no 5")
    assert [await harness.state(key) for key in sent] == [State.DEAD] * count
    return sent


async def letters(harness: EngineHarness) -> list[Any]:
    page = await find_dead_letters(harness.store, harness.tenant, DeadLetterFilter(), None, 1000)
    return await load_dead_letters(harness.store, harness.tenant, page.keys)


async def discard(harness: EngineHarness, *keys: RunKey) -> int:
    return await commands.discard(harness.store, keys, tenant_id=harness.tenant)


async def restore(harness: EngineHarness, *keys: RunKey) -> int:
    return await commands.restore_discarded(harness.store, keys, tenant_id=harness.tenant)


async def discarded(harness: EngineHarness) -> list[Any]:
    since = await harness.now() - DISCARDS_KEPT
    return await list_discarded(harness.store, harness.tenant, DiscardFilter(), since, None, 1000)


async def test_a_restored_dead_letter_is_the_one_that_was_discarded(harness: EngineHarness) -> None:
    keys = await die(harness, 2)
    before = await letters(harness)
    assert await discard(harness, *keys) == 2
    assert await letters(harness) == []
    assert [await harness.state(key) for key in keys] == [State.DEAD] * 2
    assert {row.letter.key for row in await discarded(harness)} == set(keys)
    assert await restore(harness, *keys) == 2
    assert await letters(harness) == before
    assert await discarded(harness) == []
    assert await harness.redrive(keys[0]) == 1
    assert await harness.state(keys[0]) is State.RETRYING
    assert await harness.verify(await harness.now()) == []


async def test_only_one_of_two_restores_counts_a_dead_letter(harness: EngineHarness) -> None:
    keys = await die(harness, 20)
    await discard(harness, *keys)
    counts = await asyncio.gather(*(restore(harness, *order) for order in (keys, keys[::-1], keys)))
    assert sum(counts) == 20
    assert len(await letters(harness)) == 20
    assert await restore(harness, *keys) == 0


async def test_a_dead_letter_can_be_discarded_again_after_it_was_restored(harness: EngineHarness) -> None:
    [key] = await die(harness)
    for _ in range(3):
        assert await discard(harness, key) == 1
        assert await restore(harness, key) == 1
    assert len(await letters(harness)) == 1


async def test_a_discard_cannot_be_undone_after_a_day(harness: EngineHarness) -> None:
    [key] = await die(harness)
    await discard(harness, key)
    await harness.pass_time(DISCARDS_KEPT.total_seconds())
    assert await restore(harness, key) == 0
    assert await letters(harness) == []
    assert await harness.value("select count(*) from discarded_dead_letters") == 1
    await prune.prune(harness.store, await harness.now(), Retention())
    assert await harness.value("select count(*) from discarded_dead_letters") == 0


async def test_a_redriven_dead_letter_has_nothing_to_restore(harness: EngineHarness) -> None:
    [key] = await die(harness)
    assert await harness.redrive(key) == 1
    assert await discard(harness, key) == 0
    assert await restore(harness, key) == 0
    assert await harness.state(key) is State.RETRYING


async def test_a_restore_during_a_discard_waits_or_finds_nothing(harness: EngineHarness) -> None:
    keys = await die(harness, 10)
    for _ in range(5):
        await asyncio.gather(discard(harness, *keys), restore(harness, *keys), discard(harness, *keys[::-1]))
        there = {letter.key for letter in await letters(harness)}
        away = {row.letter.key for row in await discarded(harness)}
        assert there | away == set(keys)
        assert not there & away


async def test_a_day_is_kept_while_a_discarded_run_of_it_can_be_restored(harness: EngineHarness) -> None:
    retention = Retention(runs=10 * DAY, dead_letters=20 * DAY)
    [key] = await die(harness)
    day = harness.noon.date()
    await harness.set_clock(harness.noon + 15 * DAY)
    await discard(harness, key)
    await prune.prune(harness.store, await harness.now(), retention)
    assert day in await partitions.list_days(harness.store)
    assert await restore(harness, key) == 1
    await discard(harness, key)
    await harness.pass_time(DISCARDS_KEPT.total_seconds())
    await prune.prune(harness.store, await harness.now(), retention)
    assert day not in await partitions.list_days(harness.store)
    assert await restore(harness, key) == 0


async def test_a_workflow_run_whose_nodes_were_retried_is_not_restored(harness: EngineHarness) -> None:
    play, key = await start(harness, [{"name": "a"}], {"a": failed()})
    await play.all()
    assert await harness.state(key) is State.DEAD
    assert await discard(harness, key) == 1
    play.acts = {"a": ok()}
    await workflow_commands.retry_nodes(harness.store, key, None, tenant_id=1)
    await play.all()
    assert await harness.state(key) is State.SUCCEEDED
    assert await restore(harness, key) == 0
    assert await letters(harness) == []


async def test_a_restored_workflow_run_can_be_redriven(harness: EngineHarness) -> None:
    play, key = await start(harness, [{"name": "a"}], {"a": failed()})
    await play.all()
    await discard(harness, key)
    assert await restore(harness, key) == 1
    play.acts = {"a": ok()}
    assert await harness.redrive(key) == 1
    await play.all()
    assert await harness.state(key) is State.SUCCEEDED


async def test_what_an_operation_discarded_is_found_by_its_number(harness: EngineHarness) -> None:
    by_operation, by_hand = await die(harness, 3), await die(harness, 1)
    number = await operations.create(
        harness.store,
        NewOperation(
            tenant_id=harness.tenant,
            action="dead_letters.discard",
            filter=None,
            ids=[key.id for key in by_operation],
            total=3,
            total_is_least=False,
            rate=None,
            who="user:ada",
            reason=None,
        ),
    )
    assert await run_operations(harness.store, harness.catalog, OperationCursor()) == 3
    await discard(harness, *by_hand)
    since = await harness.now() - DISCARDS_KEPT
    found = await discarded_keys(harness.store, harness.tenant, DiscardFilter(operation=number), since, 100)
    assert set(found) == set(by_operation)
    assert {row.discarded_by for row in await discarded(harness)} == {"user:ada", None}


async def test_a_restore_is_in_the_audit(harness: EngineHarness) -> None:
    [key] = await die(harness)
    store = ScopedStore(harness.store, None, ACTOR)
    await commands.discard(store, [key], tenant_id=1)
    await commands.restore_discarded(store, [key], tenant_id=1)
    entries = await harness.sql("select action, who, target from audit where kind = 'run' order by audit_id")
    assert [(row["action"], row["who"]) for row in entries] == [
        ("run.discarded", "user:ada"),
        ("run.restored", "user:ada"),
    ]
    assert entries[0]["target"] == entries[1]["target"]


async def test_another_tenant_restores_nothing(harness: EngineHarness) -> None:
    [key] = await die(harness)
    await discard(harness, key)
    [other] = await harness.tenants(1)
    assert await commands.restore_discarded(harness.store, [key], tenant_id=other) == 0
    assert await restore(harness, key) == 1
