"""Sends, one by one and in bulk: one statement each, exact keys, all or none, and one run even if repeated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Any
from uuid import UUID

import asyncpg
import pytest
from uuid_utils.compat import uuid7

from bellringer.core.messages import Message
from bellringer.core.payload import MAX_PAYLOAD_BYTES
from bellringer.core.runs import RunKey, State
from bellringer.engine.send import BulkSend, SendOutcome, SendSpec, lock_order, send
from bellringer.errors import InvalidInput, InvalidItems
from bellringer.store.connection_pool import Store
from bellringer.store.dead_connections import GuardedConnection
from bellringer.store.runs import SendResult
from bellringer.store.tenant_scope import ScopedStore

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness

YEAR = 366 * 86_400.0


def message(n: int = 0, **more: Any) -> Message:
    return SendSpec(task="greet", args=[n], **more).message()


async def send_many(
    harness: EngineHarness,
    items: Sequence[Message | InvalidInput],
    *,
    store: Store | None = None,
    atomic: bool = True,
    notify: bool = False,
) -> list[SendOutcome]:
    bulk = BulkSend(harness.catalog, lock_order(items), tenant_id=harness.tenant, atomic=atomic)
    return await bulk.write(store or harness.store, notify=notify)


async def sent(harness: EngineHarness, items: Sequence[Message], **options: Any) -> list[SendResult]:
    results = await send_many(harness, items, **options)
    assert all(isinstance(result, SendResult) for result in results)
    return [result for result in results if isinstance(result, SendResult)]


async def counts(harness: EngineHarness) -> tuple[int, int, int]:
    """The numbers of runs, queue rows and timers."""
    query = "select (select count(*) from runs), (select count(*) from queue), (select count(*) from timers)"
    [row] = await harness.sql(query)
    return tuple(row)


async def arguments(harness: EngineHarness, key: RunKey) -> list[Any]:
    spec = (await harness.run(key)).spec
    assert spec is not None
    return spec.args


# One send


async def test_a_send_is_one_statement(harness: EngineHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    await harness.send()
    statements = []
    execute = GuardedConnection._execute

    async def counted(self: Any, query: str, *args: Any, **options: Any) -> Any:
        statements.append(query)
        return await execute(self, query, *args, **options)

    monkeypatch.setattr(GuardedConnection, "_execute", counted)
    for order in ({}, {"delay": timedelta(hours=1)}, {"at": harness.after(1)}, {"key": "k"}):
        await send(harness.store, harness.catalog, message(**order), tenant_id=1, notify=True)
        assert len(statements) == 1, statements
        statements.clear()


async def test_a_delay_counts_from_the_clock_of_the_database(harness: EngineHarness) -> None:
    for delay, where in ((0, "queue"), (2, "queue"), (2.5, "timers"), (86_400, "timers")):
        made = await harness.send(delay=timedelta(seconds=delay))
        assert made.key.scheduled_for == harness.after(delay)
        found = await harness.value(f"select count(*) from {where} where job_id = $1", made.key.job_id)
        assert found == 1, delay


async def test_the_day_of_a_run_is_created_if_it_is_missing(harness: EngineHarness) -> None:
    await harness.send()
    await harness.pass_time(YEAR)
    first = await harness.send()
    assert await harness.state(first.key) is State.QUEUED
    await harness.pass_time(YEAR)
    [second] = await sent(harness, [message()])
    assert await harness.state(second.key) is State.QUEUED
    await harness.pass_time(YEAR)
    scoped = ScopedStore(harness.store, None, None)
    async with scoped.transaction():  # as for a request with an Idempotency-Key
        third = await send(scoped, harness.catalog, message(), tenant_id=1)
    assert await harness.state(third.key) is State.QUEUED


@pytest.mark.parametrize(
    ("order", "pointer", "code"),
    [
        ({"at": -61.0}, "/at", "run_at_in_past"),
        ({"at": 11 * YEAR}, "/at", "run_at_too_far"),
        ({"delay": 11 * YEAR}, "/delay", "run_at_too_far"),
        ({"key": ""}, "/key", "limit"),
        ({"key": "k" * 256}, "/key", "limit"),
        ({"key": "a\0b"}, "/key", "nul_character"),
        ({"key": "\ud800"}, "/key", "encoding"),
    ],
)
async def test_a_wrong_option_is_refused_alone_and_in_a_bulk(
    harness: EngineHarness, order: dict[str, Any], pointer: str, code: str
) -> None:
    if "at" in order:
        order = {"at": harness.after(order["at"])}
    if "delay" in order:
        order = {"delay": timedelta(seconds=order["delay"])}
    with pytest.raises(InvalidInput) as alone:
        await send(harness.store, harness.catalog, message(**order), tenant_id=1)
    assert (alone.value.pointer, alone.value.code) == (pointer, code)
    with pytest.raises(InvalidItems) as refused:
        await send_many(harness, [message(), message(**order)])
    assert [(fault.pointer, fault.code) for fault in refused.value.faults] == [(f"/1{pointer}", code)]
    assert await counts(harness) == (0, 0, 0)


# Many


async def test_all_are_stored_in_order_over_several_batches(harness: EngineHarness) -> None:
    items = [message(n, delay=timedelta(hours=1) if n % 3 == 2 else None) for n in range(2_500)]
    results = await sent(harness, items)
    assert await counts(harness) == (1_667, 1_667, 833)
    assert all(result.created for result in results)
    for n in (0, 1, 2, 999, 1_000, 1_001, 2_499):
        run = await harness.run(results[n].key)
        assert run.spec is not None
        assert (run.spec.args, run.cause, run.task) == ([n], "send", "greet")
        assert results[n].key.scheduled_for == harness.after(3600 if n % 3 == 2 else 0)
    assert await harness.value("select count(distinct shard) from queue") > 30
    claimed = await harness.claim(await harness.join_worker(), 10)
    assert [run.spec.args for run in claimed] == [[n] for n in range(15) if n % 3 != 2]  # first come, first served


async def test_every_item_has_its_own_options(harness: EngineHarness) -> None:
    results = await sent(
        harness,
        [
            message(0, priority=9, pool="vip"),
            message(1, at=harness.after(1)),
            message(2, at=harness.after(7200), key="two"),
            SendSpec(task="other", kwargs={"x": {"y": [1, None]}}, timeout=timedelta(seconds=3)).message(),
        ],
    )
    rows = [await harness.run(result.key) for result in results]
    assert [(row.task, row.pool, row.priority) for row in rows] == [
        ("greet", "vip", 9),
        ("greet", "short", 5),
        ("greet", "short", 5),
        ("other", "short", 5),
    ]
    assert [harness.seconds(result.key.scheduled_for) for result in results] == [0, 1, 7200, 0]
    assert rows[3].spec is not None
    assert (rows[3].spec.kwargs, rows[3].spec.timeout) == ({"x": {"y": [1, None]}}, 3.0)
    assert await counts(harness) == (3, 3, 1)


async def test_a_bulk_and_single_sends_store_the_same(harness: EngineHarness) -> None:
    orders: list[dict[str, Any]] = [
        {"args": [1]},
        {"kwargs": {"n": 1}},
        {"args": [[]], "kwargs": {"s": '],"kwargs":{}}'}, "key": "k", "priority": 2},
        {},
        {"delay": timedelta(minutes=1)},
    ]
    columns = "scheduled_for, slot, tenant_id, task_id, pool_id, priority, cause, spec::text"
    tables = {
        "runs": f"{columns}, fired_at, token, initial_state, revision, reason",
        "queue": f"{columns}, available_at, attempt, blocked, key_id, late_at",
        "timers": f"{columns}, due_at, attempt, rearms",
        "send_keys": "tenant_id, task_id, key, scheduled_for, slot, expires_at",
    }

    async def stored() -> dict[str, list[tuple[Any, ...]]]:
        found = {name: await harness.sql(f"select {which} from {name}") for name, which in tables.items()}
        await harness.sql("truncate runs, queue, timers, send_keys")
        return {name: sorted((tuple(row) for row in rows), key=repr) for name, rows in found.items()}

    for order in orders:
        await harness.send(**order)
    one_by_one = await stored()
    await sent(harness, [SendSpec(**{"task": "greet", **order}).message() for order in orders])
    assert await stored() == one_by_one
    assert len(one_by_one["runs"]) == 4


async def test_a_key_creates_one_run_in_a_call_and_between_calls(harness: EngineHarness) -> None:
    single = await harness.send(key="single")
    results = await sent(
        harness, [message(0, key="a"), message(1, key="single"), message(2), message(3, key="a"), message(4, key="b")]
    )
    assert [result.created for result in results] == [True, False, True, False, True]
    assert results[1].key == single.key
    assert results[3].key == results[0].key
    assert await arguments(harness, results[0].key) == [0]
    again = await sent(harness, [message(9, key="b"), message(9, key="a", delay=timedelta(hours=1)), message(9)])
    assert [result.created for result in again] == [False, False, True]
    assert [again[0].key, again[1].key] == [results[4].key, results[0].key]
    assert (await harness.send(key="b")).key == results[4].key
    await harness.pass_time(86_401)
    renewed = await sent(harness, [message(5, key="a"), message(6, key="a"), message(7, key="b")])
    assert [result.created for result in renewed] == [True, False, True]
    assert await arguments(harness, renewed[1].key) == [5]


async def test_keys_belong_to_their_task(harness: EngineHarness) -> None:
    results = await sent(harness, [message(key="k"), SendSpec(task="other", key="k").message()])
    assert [result.created for result in results] == [True, True]


async def test_two_bulks_with_the_same_keys_create_each_run_once(harness: EngineHarness) -> None:
    numbers = range(2_400)  # several batches in one transaction, which hold their keys until the commit
    forth = [message(n, key=f"k{n:04}") for n in numbers]
    back = [message(n, key=f"k{n:04}") for n in reversed(numbers)]
    first, second = await asyncio.gather(sent(harness, forth), sent(harness, back))
    assert {result.key for result in first} == {result.key for result in second}
    assert sum(result.created for result in (*first, *second)) == len(numbers)
    assert await counts(harness) == (2_400, 2_400, 0)


async def test_an_atomic_bulk_with_invalid_items_stores_nothing_and_lists_them_all(harness: EngineHarness) -> None:
    items: list[Message | InvalidInput] = [message(n) for n in range(2_500)]
    items[3] = InvalidInput("no", pointer="/kwargs/x", code="type")
    items[1_700] = message(at=harness.after(-100))
    items[2_499] = InvalidInput("no", pointer="/args/0", code="type")
    with pytest.raises(InvalidItems) as refused:
        await send_many(harness, items)
    assert [fault.pointer for fault in refused.value.faults] == ["/3/kwargs/x", "/1700/at", "/2499/args/0"]
    assert list(refused.value.errors) == [3, 1_700, 2_499]
    assert "/3/kwargs/x: no" in str(refused.value)
    items[3] = message(3)  # the first batches are valid, and already written when the first error is found
    with pytest.raises(InvalidItems) as refused:
        await send_many(harness, items)
    assert [fault.pointer for fault in refused.value.faults] == ["/1700/at", "/2499/args/0"]
    assert await counts(harness) == (0, 0, 0)


async def test_without_atomic_the_valid_ones_are_stored(harness: EngineHarness) -> None:
    items: list[Message | InvalidInput] = [message(n) for n in range(1_500)]
    items[7] = InvalidInput("no", code="type")
    items[1_400] = message(at=harness.after(-100), key="late")
    results = await send_many(harness, items, atomic=False)
    assert [n for n, result in enumerate(results) if isinstance(result, InvalidInput)] == [7, 1_400]
    assert await counts(harness) == (1_498, 1_498, 0)
    last = results[1_499]
    assert isinstance(last, SendResult)
    assert await arguments(harness, last.key) == [1_499]


async def test_a_bulk_without_items_does_nothing(harness: EngineHarness) -> None:
    assert await send_many(harness, []) == []
    assert await counts(harness) == (0, 0, 0)


async def test_large_payloads_are_split_and_the_limit_of_the_tenant_holds(harness: EngineHarness) -> None:
    text = "x" * 200_000
    results = await sent(harness, [SendSpec(task="greet", args=[n, text]).message() for n in range(60)])
    assert await counts(harness) == (60, 60, 0)
    assert (await arguments(harness, results[59].key))[0] == 59
    await harness.sql("""update tenants set quotas = '{"payload_bytes": 100}'""")
    harness.catalog._payloads.clear()
    with pytest.raises(InvalidItems) as refused:
        await send_many(harness, [message(), SendSpec(task="greet", args=["y" * 100]).message()])
    assert [(fault.pointer, fault.code) for fault in refused.value.faults] == [("/1", "payload_too_large")]
    with pytest.raises(InvalidInput, match="262,144"):
        SendSpec(task="greet", args=["y" * MAX_PAYLOAD_BYTES]).message()


async def test_the_id_of_a_job_is_refused(harness: EngineHarness) -> None:
    job_id = await harness.job("job")
    for call in (
        "select send(1, $1, 0::smallint, 1, 1::smallint, 5::smallint, null, null, '{}', null, 'send', false, false)",
        "select send(1, $1, 0::smallint, 1, 1::smallint, 5::smallint, null, '1 h', '{}', null, 'send', false, false)",
        "select send_many(1, array[$1::uuid], '{0}', '{1}', '{1}', '{5}', '{}', '{}', '{null}', '{}', false, false)",
        "select send_many(1, array[$1::uuid], '{0}', '{1}', '{1}', '{5}', '{}', '{}', '{1}', '{}', false, false)",
    ):
        with pytest.raises(asyncpg.PostgresError) as refused:
            await harness.sql(call, job_id)
        assert refused.value.sqlstate == "BR004"
    assert await counts(harness) == (0, 0, 0)


async def test_who_sends_many_is_in_the_audit_with_each_run(harness: EngineHarness) -> None:
    acting = ScopedStore(harness.store, None, '{"who": "user:ada"}')
    for _ in range(2):
        results = await sent(
            harness, [message(0, key="k"), message(1), message(2, delay=timedelta(hours=1))], store=acting
        )
    rows = await harness.sql("select who, action, target from audit where kind = 'run'")
    assert [(row["who"], row["action"]) for row in rows] == [("user:ada", "run.sent")] * 5
    key = results[2].key
    micros = (key.scheduled_for - harness.noon) // timedelta(microseconds=1) + int(harness.noon.timestamp()) * 1_000_000
    assert f"{key.job_id} {micros} 0" in {row["target"] for row in rows}


# Repeated calls


async def test_a_repeated_call_returns_the_runs_of_the_first(harness: EngineHarness) -> None:
    other = await harness.send(key="taken")
    items = [message(0), message(1, delay=timedelta(hours=1)), message(2, key="new"), message(3, key="taken")]
    bulk = BulkSend(harness.catalog, lock_order(items), tenant_id=1)
    first = await bulk.write(harness.store)
    before = await counts(harness)
    await harness.pass_time(5)
    second = await bulk.write(harness.store, repeated=True)
    for one, two in zip(first, second, strict=True):
        assert isinstance(one, SendResult)
        assert isinstance(two, SendResult)
        assert (one.key, one.created) == (two.key, two.created)
    assert isinstance(second[3], SendResult)
    assert second[3].key == other.key
    assert await counts(harness) == before
    fresh = BulkSend(harness.catalog, lock_order([message(9)]), tenant_id=1)
    assert await fresh.write(harness.store, repeated=True)  # the earlier call did not commit
    assert (await counts(harness))[0] == before[0] + 1


@pytest.fixture
async def other_session(harness: EngineHarness) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    connection = await asyncpg.connect(harness.store.dsn, server_settings={"search_path": "bellringer"})
    yield connection
    await connection.close()


@pytest.mark.parametrize("function", ["send", "send_many"])
async def test_a_repeated_call_waits_for_the_first_one_to_end(
    harness: EngineHarness, other_session: asyncpg.Connection[asyncpg.Record], function: str
) -> None:
    """The server may still execute a statement whose connection the client has lost."""
    job_id = uuid7()
    one = "send(1, $1, 0::smallint, 1, 1::smallint, 5::smallint, null, null, '{}', null, 'send', $2, false)"
    several = (
        "send_many(1, array[$1::uuid], '{0}', '{1}', '{1}', '{5}', '{}', '{}', array['{}']::jsonb[], '{}', $2, false)"
    )
    call = f"select * from {several if function == 'send_many' else one}"
    transaction = other_session.transaction()
    await transaction.start()
    await other_session.fetch(call, job_id, *[False])
    repeated = asyncio.create_task(harness.sql(call, job_id, *[True]))
    waiting = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
    for _ in count():
        if await harness.value(waiting):
            break
        assert not repeated.done()
    await transaction.commit()
    await repeated
    assert await counts(harness) == (1, 1, 0)


# Notifications


async def test_statements_notify_of_ready_and_near_runs_only(
    harness: EngineHarness, other_session: asyncpg.Connection[asyncpg.Record]
) -> None:
    heard: list[tuple[str, str]] = []
    for channel in ("bellringer_work", "bellringer_cohorts"):
        await other_session.add_listener(channel, lambda _c, _p, channel, payload: heard.append((channel, payload)))

    async def notified() -> list[tuple[str, str]]:
        await other_session.fetchval("select 1")  # notifications arrive before the response
        found, heard[:] = sorted(heard), []
        return found

    soon = f"{harness.after(1):%Y-%m-%d %H:%M:%S}+00"
    cases: list[tuple[dict[str, Any], list[tuple[str, str]]]] = [
        ({}, [("bellringer_work", "")]),
        ({"at": harness.after(-30)}, [("bellringer_work", "")]),
        ({"delay": timedelta(seconds=1)}, [("bellringer_work", soon)]),
        ({"delay": timedelta(seconds=2.5)}, [("bellringer_cohorts", "")]),
        ({"delay": timedelta(seconds=4)}, []),
    ]
    for order, expected in cases:
        await send(harness.store, harness.catalog, message(**order), tenant_id=1, notify=True)
        assert await notified() == expected
        await send(harness.store, harness.catalog, message(**order), tenant_id=1)
        await send_many(harness, [message(**order)])
        assert await notified() == []
    await send_many(harness, [message(**order) for order, _ in cases], notify=True)
    assert await notified() == sorted({wakeup for _, expected in cases for wakeup in expected})
    await send_many(harness, [message(n) for n in range(2_500)], notify=True)
    assert await notified() == [("bellringer_work", "")]


async def test_tenants_cannot_send_for_others(harness: EngineHarness, tenants: Store) -> None:
    [theirs] = await harness.tenants(1)
    await harness.sql("grant select on test_clock to public")
    with pytest.raises(asyncpg.PostgresError) as refused:
        await send_many(harness, [message()], store=ScopedStore(tenants, theirs, None))
    assert refused.value.sqlstate == "BR004"
    results = await sent(harness, [message(), message(delay=timedelta(hours=1))], store=ScopedStore(tenants, 1, None))
    assert isinstance(results[0].key.job_id, UUID)
    assert await counts(harness) == (1, 1, 1)
