"""Bulk sends of the SDK: items and messages, errors with pointers, handlers that send, crashes and lost responses."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import msgspec
import pytest
from tests.support.response_proxy import ResponseProxy

from bellringer import App, Conflict, InvalidInput, InvalidItems, Message, RunHandle
from bellringer.core.runs import State
from bellringer.sdk.service import Service
from bellringer.store import wakeups
from bellringer.store.connection_pool import Store
from bellringer.store.wakeups import WORK_CHANNEL
from bellringer.testing import Engine, TestEngine

Testing = Callable[..., TestEngine]

app = App()


@app.task(retry=1)
def resize(photo: int, size: str = "small") -> str:
    return f"{photo} {size}"


@app.task(name="tests.notify")
async def notify(name: str) -> str:
    return name


@app.task(name="tests.fan_out")
def fan_out(photos: int) -> list[str]:
    return [run.id for run in resize.send_many([{"photo": n} for n in range(photos)])]


@app.task(name="tests.fan_out_async")
async def fan_out_async(photos: int) -> list[str]:
    return [run.id for run in await app.asend_many([resize.message(n) for n in range(photos)])]


def test_items_are_named_or_positional_arguments_or_messages(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    runs = resize.send_many(
        [
            {"photo": 1, "size": "large"},
            (2, "tiny"),
            [3],
            resize.message(4),
            resize.options(priority=9).message(photo=5),
        ]
    )
    assert [run.created for run in runs] == [True] * 5
    t.drain()
    assert [run.result() for run in runs] == ["1 large", "2 tiny", "3 small", "4 small", "5 small"]
    assert [run.get().priority for run in runs] == [5, 5, 5, 5, 9]


def test_a_generator_of_thousands_keeps_its_order(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    runs = resize.send_many((n,) for n in range(2_100))
    assert len({run.id for run in runs}) == len(t.enqueued(resize)) == 2_100
    for n in (0, 1_000, 2_099):
        spec = runs[n].get().spec
        assert spec is not None
        assert spec.args == [n]


def test_messages_of_several_tasks_have_options_of_their_own(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    now = t.clock.now()
    messages = [
        resize.message(1),
        notify.options(delay="2h", key="welcome 7").message("Ada"),
        notify.options(at=now + timedelta(days=1), pool="vip").message("Bob"),
        notify.options(key="welcome 7").message("Eve"),
    ]
    runs = app.send_many(messages)
    assert [run.created for run in runs] == [True, True, True, False]
    assert runs[3].id == runs[1].id
    assert [run.key.scheduled_for - now for run in runs[:3]] == [timedelta(), timedelta(hours=2), timedelta(days=1)]
    assert runs[2].get().pool == "vip"
    t.drain()
    assert [run.state() for run in runs] == [State.SUCCEEDED, State.QUEUED, State.QUEUED, State.QUEUED]
    t.advance("2h").drain()
    assert runs[1].result() == "Ada"


def test_a_message_is_checked_when_it_is_made_and_does_not_change() -> None:
    message = resize.message(photo=1)
    message.kwargs["photo"] = 2
    assert (message.task, message.args, message.kwargs) == (resize.name, [], {"photo": 1})
    with pytest.raises(AttributeError):
        message.key = "k"  # type: ignore[misc]
    with pytest.raises(InvalidInput, match="has no argument 'foto'; did you mean 'photo'"):
        resize.message(foto=1)  # type: ignore[call-arg]
    with pytest.raises(InvalidInput, match="overlap is an option of a job"):
        resize.options(overlap="queue").message(1)


def wrong_items() -> list[Any]:
    return [
        {"photo": 1},
        {"photo": 2, "extra": 1},
        {"photo": {1, 2}},
        "three",
        (4, "a\0b"),
        notify.message("five"),
        (6, "x" * 300_000),
        resize.options(key="").message(7),
        (8, "", 8),
        None,
    ]


POINTERS = [
    ("/1/kwargs/extra", "unexpected_argument"),
    ("/2/kwargs/photo", "type"),
    ("/3", "type"),
    ("/4/args/1", "nul_character"),
    ("/5", "choice"),
    ("/6/args/1", "payload_too_large"),
    ("/7/key", "limit"),
    ("/8/args/2", "too_many_arguments"),
    ("/9", "type"),
]


def test_invalid_items_are_listed_and_nothing_is_sent(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    with pytest.raises(InvalidItems) as refused:
        resize.send_many(wrong_items())
    assert [(fault.pointer, fault.code) for fault in refused.value.faults] == POINTERS
    assert t.enqueued() == []
    with pytest.raises(InvalidItems, match=r"1 item is invalid.* not dict; create it with task\.") as refused:
        app.send_many([resize.message(1), {"photo": 1}])  # type: ignore[list-item]
    assert refused.value.faults[0].pointer == "/1"


def test_without_atomic_each_item_has_its_result(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    results = resize.send_many(wrong_items(), atomic=False)
    assert isinstance(results[0], RunHandle)
    errors = [result for result in results[1:] if isinstance(result, InvalidInput)]
    assert [error.code for error in errors] == [code for _, code in POINTERS]
    t.drain()
    assert results[0].result() == "1 small"
    mixed = app.send_many([resize.message(1), "x"], atomic=False)  # type: ignore[list-item]
    assert [isinstance(result, RunHandle) for result in mixed] == [True, False]


def test_handlers_send_many(bellringer_test: Testing) -> None:
    t = bellringer_test(app)
    for parent in (fan_out, fan_out_async):
        run = parent.send(3)
        t.drain()
        assert [app.runs[child].result() for child in run.result()] == ["0 small", "1 small", "2 small"]


async def test_the_async_twins(bellringer_dsn: str) -> None:
    async with Engine(app, bellringer_dsn) as t:
        runs = [*await resize.asend_many([(1,), {"photo": 2}]), *await app.asend_many([notify.message("x")])]
        with pytest.raises(Conflict, match=r"use `await ….asend_many\(…\)`"):
            resize.send_many([(1,)])
        with pytest.raises(Conflict, match=r"use `await app.asend_many\(…\)`"):
            app.send_many([])
        await t.drain()
        assert [await run.aresult() for run in runs] == ["1 small", "2 small", "x"]
        assert await app.asend_many([]) == []


def test_the_result_types_are_exact() -> None:
    """A message is a plain value: it can be compared, and its repr does not show the arguments."""
    first = resize.message(1)
    assert repr(first) == f"<message to {resize.name}>"
    assert first == msgspec.structs.replace(first)
    assert isinstance(first, Message)


# Lost responses and crashes


@pytest.mark.parametrize(
    ("count", "lost"), [(1, "bellringer.send_many("), (2_500, "bellringer.send_many("), (2_500, "COMMIT;")]
)
async def test_a_bulk_whose_response_is_lost_is_stored_once(dsn: str, store: Store, count: int, lost: str) -> None:
    async with ResponseProxy(dsn) as proxy:
        service = await Service.open(proxy.dsn, tenant="default", who="test")
        try:
            messages = [resize.message(n) for n in range(count)]
            messages[0] = resize.options(key="first", delay="1h").message(0)
            proxy.drop_response_of(lost)
            results = await service.send_many(list(enumerate(messages)), atomic=True)
            assert proxy.dropped == [lost]
        finally:
            await service.close()
    created = [result for result in results if not isinstance(result, InvalidInput) and result.created]
    stored = await store.pool.fetch(
        "select job_id, scheduled_for from queue union all select job_id, scheduled_for from timers"
    )
    assert {(result.key.job_id, result.key.scheduled_for) for result in created} == {tuple(row) for row in stored}
    assert len(stored) == count


async def test_without_atomic_a_lost_response_stores_nothing_twice(dsn: str, store: Store) -> None:
    async with ResponseProxy(dsn) as proxy:
        service = await Service.open(proxy.dsn, tenant="default", who="test")
        try:
            proxy.drop_response_of("bellringer.send_many(")
            results = await service.send_many(
                ((n, resize.message(n) if n != 7 else InvalidInput("no")) for n in range(2_500)), atomic=False
            )
        finally:
            await service.close()
    assert [n for n, result in enumerate(results) if isinstance(result, InvalidInput)] == [7]
    assert await store.pool.fetchval("select count(*) from queue") == 2_499


KILLED = """
import sys, time
from bellringer import App
from bellringer.sdk.task_handle import Prepared

app = App(sys.argv[1])

@app.task(name="tests.killed")
def killed(n: int) -> None: ...

def message_of(prepared, item):
    if item == (4_500,):
        print("in the middle", flush=True)
        time.sleep(60)
    return prepared.message(*item)

Prepared.message_of = message_of
killed.send_many((n,) for n in range(5_000))
"""


async def test_a_kill_in_the_middle_of_an_atomic_bulk_stores_nothing(dsn: str, store: Store) -> None:
    sessions = "select count(*) from pg_stat_activity where query like '%send_many%' and pid <> pg_backend_pid()"

    async def until(query: str, expected: int) -> None:
        for _ in range(3_000):
            if await store.pool.fetchval(query) == expected:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(query)

    process = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, dsn, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"in the middle\n"
        await until(f"{sessions} and state = 'idle in transaction'", 1)  # batches are written, but not committed
    finally:
        process.kill()
        await process.wait()
    await until(sessions, 0)
    assert await store.pool.fetchval("select (select count(*) from runs) + (select count(*) from queue)") == 0


# Wake-ups


@pytest.fixture
async def service(dsn: str) -> AsyncIterator[Service]:
    opened = await Service.open(dsn, tenant="default", who="test")
    yield opened
    await opened.close()


@pytest.fixture
async def heard(dsn: str) -> AsyncIterator[asyncio.Queue[str]]:
    """The payloads of notifications to workers."""
    listener = await asyncpg.connect(dsn)
    payloads: asyncio.Queue[str] = asyncio.Queue()
    await listener.add_listener(WORK_CHANNEL, lambda *message: payloads.put_nowait(str(message[3])))
    yield payloads
    await listener.close()


async def test_a_burst_notifies_rarely_and_its_last_send_wakes_workers(
    service: Service, heard: asyncio.Queue[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeups, "ANNOUNCE_INTERVAL_SECONDS", 0.5)
    await service.send(resize.message(1))
    assert await asyncio.wait_for(heard.get(), 5) == ""
    for _ in range(20):
        await service.send(resize.message(1))
    await service.send_many([(0, resize.message(1))], atomic=True)
    assert heard.empty(), "the sends of the next half second do not notify by themselves"
    assert await asyncio.wait_for(heard.get(), 5) == ""
    assert heard.empty()


async def test_closing_sends_what_is_announced(
    service: Service, heard: asyncio.Queue[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeups, "ANNOUNCE_INTERVAL_SECONDS", 600)
    await service.send(resize.message(1))
    await asyncio.wait_for(heard.get(), 5)
    soon = await service.send(resize.options(delay="1500ms").message(1))
    await service.send(resize.options(delay="1h").message(1))
    await service.close()
    assert datetime.fromisoformat(await asyncio.wait_for(heard.get(), 5)) == soon.key.scheduled_for
    assert heard.empty()


def items_of(count: int) -> Iterator[dict[str, int]]:
    return ({"photo": n} for n in range(count))


async def test_a_bulk_is_due_at_one_time(bellringer_dsn: str) -> None:
    async with Engine(app, bellringer_dsn, at=datetime(2026, 2, 1, tzinfo=UTC)) as t:
        runs = await resize.asend_many(items_of(20))
        assert {run.key.scheduled_for for run in runs} == {t.clock.now()}
