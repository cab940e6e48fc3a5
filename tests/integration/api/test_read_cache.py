"""Reads of a status: many in one call, and what has ended kept for a moment, but never told when it is not true."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx2
import msgspec
import pytest
from prometheus_client import REGISTRY
from tests.integration.api.conftest import Work

from bellringer.api.app import Router
from bellringer.api.http.batcher import Batcher
from bellringer.api.http.read_cache import ReadCache
from bellringer.api.render import documents
from bellringer.clock import SystemClock
from bellringer.core.cache import CACHE_TTL_SECONDS
from bellringer.core.runs import Ending, Outcome, decode_run_id
from bellringer.store import runs
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.keyed_read_connections import KeyedReads

API = "/api/v1"
GOOD = Ending(outcome=Outcome.OK, result={"rows": 3})
BAD = Ending(outcome=Outcome.FAILED, error={"type": "E", "message": "no"})


class Later(SystemClock):
    """A clock that can be put forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


def read_count(source: str) -> float:
    return REGISTRY.get_sample_value("bellringer_cache_reads_total", {"kind": "run", "source": source}) or 0.0


async def execute(api: httpx2.AsyncClient, **more: object) -> str:
    response = await api.post(f"{API}/jobs/execute", json={"task": "demo", "retry": 1, **more})
    assert response.status_code == 202, response.text
    return str(response.json()["run_id"])


async def test_a_read_by_many_shows_what_a_read_by_one_shows(api: httpx2.AsyncClient, store: Store, work: Work) -> None:
    ended = await execute(api, kwargs={"n": 1})
    await work(GOOD)
    dead = await execute(api)
    await work(BAD)
    running = await execute(api)
    await work(None)
    queued, waiting = await execute(api), await execute(api, delay="1h")
    ids = [ended, dead, running, queued, waiting]
    answers = await asyncio.gather(*(api.get(f"{API}/runs/{run_id}") for run_id in ids * 3))
    for run_id, answer in zip(ids * 3, answers, strict=True):
        key = decode_run_id(run_id)
        stored = await runs.get(store, key, 1)
        assert stored is not None
        assert answer.status_code == 200
        assert answer.content == msgspec.json.encode(documents.render_run(stored, await runs.attempts(store, key, 1)))
    states = [answer.json()["state"] for answer in answers[:5]]
    assert states == ["succeeded", "dead", "running", "queued", "queued"]
    missing = await api.get(f"{API}/runs/{ended[:-1]}{'A' if ended[-1] != 'A' else 'B'}")
    assert missing.status_code == 404


async def test_who_asks_together_is_answered_by_one_call_and_who_asks_later_by_another() -> None:
    calls: list[tuple[str, list[int]]] = []
    gate = asyncio.Event()

    async def read(group: tuple[str], keys: Sequence[int]) -> dict[int, str]:
        calls.append((group[0], list(keys)))
        await gate.wait()
        return {key: f"{group[0]}{key}.{len(calls)}" for key in keys if key != 9}

    together = Batcher(read)
    first = [asyncio.create_task(together.get((g,), k)) for g, k in [("a", 1), ("a", 1), ("a", 2), ("b", 1), ("a", 9)]]
    await asyncio.sleep(0.01)
    later = asyncio.create_task(together.get(("a",), 1))
    await asyncio.sleep(0.01)
    assert calls == [("a", [1, 2, 9]), ("b", [1]), ("a", [1])]
    gate.set()
    assert [await task for task in first] == ["a1.3", "a1.3", "a2.3", "b1.3", None]
    assert await later == "a1.3"


async def test_a_call_begins_in_the_next_turn_with_all_that_was_asked_in_this_one() -> None:
    calls: list[list[int]] = []

    async def read(_group: tuple[None], keys: Sequence[int]) -> dict[int, int]:
        calls.append(list(keys))
        return dict.fromkeys(keys, 0)

    together = Batcher(read)
    asking = [asyncio.create_task(together.get((None,), n)) for n in range(3)]
    await asyncio.sleep(0)  # in this turn they ask
    assert calls == []
    await asyncio.sleep(0)
    assert calls == [[0, 1, 2]]
    assert await asyncio.gather(*asking) == [0, 0, 0]


async def test_an_error_reaches_all_who_wait_and_no_one_after_them() -> None:
    failing = [True]

    async def read(_group: tuple[None], keys: Sequence[int]) -> dict[int, int]:
        if failing.pop():
            raise OSError("gone")
        return dict.fromkeys(keys, 1)

    together = Batcher(read)
    waiting = [asyncio.create_task(together.get((None,), n)) for n in range(3)]
    done = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(error) for error in done] == [OSError] * 3
    failing.append(False)
    assert await together.get((None,), 1) == 1


async def test_many_groups_gather_behind_the_calls_that_are_under_way() -> None:
    under_way, most = 0, 0
    five = asyncio.Event()

    async def read(_group: tuple[int], keys: Sequence[int]) -> dict[int, int]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        if under_way == 5:
            five.set()
        await five.wait()
        await asyncio.sleep(0.001)
        under_way -= 1
        return {key: key for key in keys}

    together = Batcher(read, max_batches=5)
    found = await asyncio.gather(*(together.get((n % 7,), n) for n in range(1000)))
    assert found == list(range(1000))
    assert most == 5


async def test_a_disconnected_client_gets_nothing_and_others_do() -> None:
    gate = asyncio.Event()

    async def read(_group: tuple[None], keys: Sequence[int]) -> dict[int, int]:
        await gate.wait()
        return dict.fromkeys(keys, 5)

    together = Batcher(read)
    leaving, staying = (asyncio.create_task(together.get((None,), 1)) for _ in range(2))
    await asyncio.sleep(0.01)
    leaving.cancel()
    gate.set()
    assert await staying == 5
    assert leaving.cancelled() or leaving.cancelling()


async def test_who_asks_for_what_takes_long_does_not_hold_up_others() -> None:
    held = asyncio.Event()

    async def read(group: tuple[str, int], keys: Sequence[int]) -> dict[int, int]:
        if group[0] == "slow":
            await held.wait()
        return {key: key for key in keys}

    together = Batcher(read, max_batches=4)
    slow = [asyncio.create_task(together.get(("slow", n % 10), n)) for n in range(1000)]
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        assert await together.get(("other", 0), 7) == 7
    held.set()
    assert await asyncio.gather(*slow) == list(range(1000))


class Gated:
    """Reads that end when they are told."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.begun: asyncio.Queue[list[int]] = asyncio.Queue()
        self.gates: list[asyncio.Event] = []

    async def __call__(self, _group: tuple[str], keys: Sequence[int]) -> dict[int, int]:
        self.calls.append(list(keys))
        self.begun.put_nowait(list(keys))
        self.gates.append(asyncio.Event())
        await self.gates[-1].wait()
        return {key: key for key in keys}


async def test_while_a_call_is_under_way_others_gather(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Batcher, "SECOND_BATCH_AFTER_SECONDS", 60.0)
    read = Gated()
    together = Batcher(read)
    asking = [asyncio.create_task(together.get(("a",), 1))]
    await turns(5)
    asking += [asyncio.create_task(together.get(("a",), n)) for n in (2, 3)]
    await turns(5)
    assert read.calls == [[1]]
    read.gates[0].set()
    await turns(10)
    assert read.calls == [[1], [2, 3]]
    read.gates[1].set()
    assert await asyncio.gather(*asking) == [1, 2, 3]


async def test_a_call_that_takes_long_holds_up_no_one() -> None:
    read = Gated()
    together = Batcher(read)
    asking = [asyncio.create_task(together.get(("a",), 1))]
    await turns(5)
    asking += [asyncio.create_task(together.get(("a",), n)) for n in (2, 3)]
    async with asyncio.timeout(5):  # nobody else asks: the wait ends by itself
        assert [await read.begun.get(), await read.begun.get()] == [[1], [2, 3]]
    asking += [asyncio.create_task(together.get(("a",), 4))]
    await asyncio.sleep(0.05)
    assert read.calls == [[1], [2, 3]]  # no more than two of one
    read.gates[0].set()
    async with asyncio.timeout(5):
        assert await read.begun.get() == [4]
    for gate in read.gates:
        gate.set()
    assert await asyncio.gather(*asking) == [1, 2, 3, 4]


async def turns(count: int) -> None:
    """Of the event loop."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_who_is_stopped_calls_no_more() -> None:
    calls: list[int] = []

    async def read(_group: tuple[None], keys: Sequence[int]) -> dict[int, int]:
        calls.extend(keys)
        await asyncio.sleep(60)
        return {}

    together = Batcher(read)
    before = asyncio.all_tasks()
    asking = [asyncio.create_task(together.get((None,), 1))]
    await asyncio.sleep(0.01)
    asking += [asyncio.create_task(together.get((None,), 2))]
    await asyncio.sleep(0.01)
    asking += [asyncio.create_task(together.get((None,), 3))]  # it waits: two are under way
    await asyncio.sleep(0.01)
    for task in asyncio.all_tasks() - before:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    await asyncio.sleep(0.01)
    assert calls == [1, 2]
    assert asyncio.all_tasks() == before


async def test_what_has_ended_is_kept_for_a_moment_and_for_its_tenant_alone(
    api: httpx2.AsyncClient, store: Store, lookups: KeyedReads, catalog: Catalog, work: Work
) -> None:
    run_id = await execute(api)
    await work(BAD)
    key, clock = decode_run_id(run_id), Later()
    desk = ReadCache(store, lookups.of, catalog, clock)
    before = read_count("process"), read_count("database")
    first = await desk.run(1, key.id)
    assert first is not None
    assert b'"dead"' in first
    assert await desk.run(1, key.id) == first
    assert (read_count("process"), read_count("database")) == (before[0] + 1, before[1] + 1)
    assert await desk.run(2, key.id) is None
    clock.ahead = CACHE_TTL_SECONDS + 0.1
    await desk.run(1, key.id)
    assert read_count("database") == before[1] + 3
    await store.pool.execute("update attempts set result = '1'")
    assert await desk.run(1, key.id) == first
    desk.handle_notification("2")
    assert await desk.run(1, key.id) == first
    desk.handle_notification("1")
    assert await desk.run(1, key.id) != first


async def test_a_run_that_is_redriven_is_reported_as_such_at_once(api: httpx2.AsyncClient, work: Work) -> None:
    run_id = await execute(api)
    await work(BAD)
    assert (await api.get(f"{API}/runs/{run_id}")).json()["state"] == "dead"
    assert (await api.post(f"{API}/runs/{run_id}/retry")).status_code == 202
    assert (await api.get(f"{API}/runs/{run_id}")).json()["state"] == "retrying"


@pytest.mark.parametrize(
    ("path", "found", "parts"),
    [
        ("/jobs", "list", {}),
        ("/jobs/execute", "verb", {}),
        ("/jobs/7", "one", {"id": "7"}),
        ("/jobs/execute/why", "why", {"id": "execute"}),
        ("/jobs/7/runs/8", "deep", {"id": "7", "n": "8"}),
        ("/jobs/", None, {}),
        ("/jobs//why", None, {}),
        ("/jobs/7/what", None, {}),
        ("/", "root", {}),
    ],
)
def test_a_path_leads_to_its_endpoint(path: str, found: str | None, parts: dict[str, str]) -> None:
    table = {
        "/": "root",
        "/jobs": "list",
        "/jobs/execute": "verb",
        "/jobs/{id}": "one",
        "/jobs/{id}/why": "why",
        "/jobs/{id}/runs/{n}": "deep",
    }
    switch: Any = Router(table)  # type: ignore[arg-type]
    assert switch.find(path) == (None if found is None else (found, parts))
