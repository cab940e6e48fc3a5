"""The stream of events: resumable, in order though commits cross, shared by all readers, and bounded."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Self
from uuid import UUID, uuid4

import httpx2
import pytest
import uvicorn

from bellringer.api.app import Api, create_app
from bellringer.api.http import event_feed, sse
from bellringer.client import AsyncClient
from bellringer.clock import SystemClock
from bellringer.core.runs import RunKey
from bellringer.errors import Conflict
from bellringer.store import events
from bellringer.store.connection_pool import Store
from bellringer.store.events import START_POSITION, EventKind, NewEvent
from bellringer.store.interned_names import Catalog

DUE = datetime(2026, 11, 16, 2, 30, tzinfo=UTC)
PATIENCE = 60


@pytest.fixture
def app(store: Store, catalog: Catalog, tenants: Store, monkeypatch: pytest.MonkeyPatch) -> Api:
    monkeypatch.setattr(event_feed, "EVENT_POLL_SECONDS", 0.05)
    return create_app(store, catalog, tenants, version="1.2.3", clock=SystemClock())


@asynccontextmanager
async def serving(app: Api, port: int = 0) -> AsyncIterator[str]:
    """A real server, in this test's own loop."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            app.streams.close()
            server.should_exit = True
            await task


@pytest.fixture
async def url(app: Api) -> AsyncIterator[str]:
    async with serving(app) as where:
        yield where


async def happen(
    store: Store, minute: int, *, kind: EventKind = EventKind.LATE, tenant_id: int = 1, job: UUID | None = None
) -> None:
    """An event that can be told by its minute."""
    key = RunKey(job or uuid4(), DUE + timedelta(minutes=minute))
    news = NewEvent(tenant_id=tenant_id, kind=kind, key=key, data={"late_after": 90})
    assert (await events.record(store, await store.now(), [news]))[kind] == 1


class Listening:
    """A client's stream, read one by one."""

    def __init__(self, client: AsyncClient, **options: Any) -> None:
        self._stream = client.events_stream(hearts=True, **options)
        self.last_id = ""

    async def __aenter__(self) -> Self:
        async with asyncio.timeout(PATIENCE):
            self.last_id, first = await anext(self._stream)
        assert first is None
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stream.aclose()

    async def minutes(self, count: int) -> list[int]:
        """The minutes of the next so many events."""
        found: list[int] = []
        async with asyncio.timeout(PATIENCE):
            while len(found) < count:
                self.last_id, event = await anext(self._stream)
                if event is not None:
                    found.append(round((event.scheduled_for - DUE) / timedelta(minutes=1)))
        return found


async def test_events_come_as_they_happen_and_only_the_tenants_own(url: str, store: Store) -> None:
    await happen(store, 0)
    async with AsyncClient(url) as client, Listening(client) as first, Listening(client) as second:
        await happen(store, 99, tenant_id=2)
        for minute in (1, 2, 3):
            await happen(store, minute)
        assert await first.minutes(3) == [1, 2, 3]
        assert await second.minutes(3) == [1, 2, 3]


async def test_a_stream_keeps_to_a_kind_and_a_job(url: str, store: Store) -> None:
    job = uuid4()
    async with (
        AsyncClient(url) as client,
        Listening(client, kind="slow") as of_kind,
        Listening(client, job=str(job)) as of_job,
    ):
        await happen(store, 1)
        await happen(store, 2, kind=EventKind.SLOW)
        await happen(store, 3, job=job)
        await happen(store, 4, kind=EventKind.SLOW, job=job)
        assert await of_kind.minutes(2) == [2, 4]
        assert await of_job.minutes(2) == [3, 4]


async def test_who_comes_back_misses_nothing(url: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_EVENTS_PER_TENANT", 3)
    async with AsyncClient(url) as client:
        async with Listening(client) as listening:
            start = listening.last_id
            await happen(store, 1)
            assert await listening.minutes(1) == [1]
        for minute in range(2, 12):
            await happen(store, minute)
        async with Listening(client, after=listening.last_id) as again:
            await happen(store, 12)
            assert await again.minutes(11) == list(range(2, 13))
        async with Listening(client, after=start) as from_start:
            assert await from_start.minutes(12) == list(range(1, 13))


async def test_an_event_that_commits_late_is_not_passed_over(url: str, store: Store) -> None:
    """Its number is the lowest, and it becomes visible last: those behind it wait for it."""
    insert = (
        "insert into events (at, tenant_id, kind, job_id, scheduled_for) "
        "values (now(), 1, 'late', gen_random_uuid(), $1)"
    )
    async with AsyncClient(url) as client, Listening(client) as listening:
        async with store.pool.acquire() as connection, connection.transaction():
            await connection.execute(insert, DUE + timedelta(minutes=1))
            await happen(store, 2)
            position = (await events.events_after(store, {1: START_POSITION}))[1]
            assert position.events == []
        assert await listening.minutes(2) == [1, 2]


async def test_one_look_serves_all_readers(url: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = events.events_after
    asked: list[set[int]] = []

    async def counted(store: Store, positions: Any) -> Any:
        asked.append(set(positions))
        return await looks(store, positions)

    monkeypatch.setattr(event_feed, "events_after", counted)
    monkeypatch.setattr(event_feed, "EVENT_POLL_SECONDS", 0.2)
    async with AsyncClient(url) as client:
        listening = [Listening(client) for _ in range(10)]
        for one in listening:
            await one.__aenter__()
        asked.clear()
        await asyncio.sleep(1)
        assert len(asked) <= 7
        assert all(tenants == {1} for tenants in asked)
        for one in listening:
            await one.__aexit__()


async def test_a_slow_reader_is_cut_off_and_the_others_are_not() -> None:
    reader = event_feed.EventReader(START_POSITION)
    event: Any = object()
    for number in range(event_feed.MAX_BUFFERED_EVENTS + 5):
        reader.give(events.CommitPosition(1, number), event)
    assert reader.is_cut
    for number in range(event_feed.MAX_BUFFERED_EVENTS):
        assert await reader.next(1) == (events.CommitPosition(1, number), event)
    assert await reader.next(1) is None


async def test_a_server_that_restarts_is_found_again(app: Api, store: Store) -> None:
    async with serving(app) as url:
        port = httpx2.URL(url).port
        client = AsyncClient(url)
        listening = await Listening(client).__aenter__()
        await happen(store, 1)
        assert await listening.minutes(1) == [1]
    await happen(store, 2)
    app.streams.is_closing = False
    async with serving(app, port or 0):
        assert await listening.minutes(1) == [2]
        await listening.__aexit__()
        await client.close()


@pytest.mark.parametrize("text", ["x", "1-2", "1-2-3-4", "99999999999999999999-1-1", "-1-1-1"])
async def test_a_foreign_id_is_refused(url: str, text: str) -> None:
    async with httpx2.AsyncClient(base_url=url) as http:
        answer = await http.get("/api/v1/events", headers={"Accept": "text/event-stream", "Last-Event-ID": text})
    assert (answer.status_code, answer.json()["code"]) == (400, "cursor_invalid")


async def test_an_id_older_than_what_is_kept_is_refused(url: str, store: Store) -> None:
    old = int((await store.now() - timedelta(days=31)).timestamp())
    async with AsyncClient(url) as client:
        with pytest.raises(Conflict) as refused:
            await anext(client.events_stream(after=f"1-1-{old}"))
    assert refused.value.code == "cursor_expired"


async def test_only_so_many_streams_are_open(url: str, app: Api) -> None:
    places = app.streams.streams = sse.OpenResponseLimit(1)
    async with AsyncClient(url) as client, Listening(client):
        async with httpx2.AsyncClient(base_url=url) as http:
            refused = await http.get("/api/v1/events", headers={"Accept": "text/event-stream"})
        assert (refused.status_code, refused.json()["code"]) == (429, "too_many_streams")
        assert refused.headers["retry-after"] == "5"
    for _ in range(200):
        try:
            places.check(1)
        except Exception:  # noqa: BLE001 - the server may still be noticing that the reader has gone
            await asyncio.sleep(0.05)
    places.check(1)


async def test_a_quiet_stream_shows_that_it_lives(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bellringer.api.endpoints.events.HEARTBEAT_SECONDS", 0.1)
    async with AsyncClient(url) as client:
        stream = client.events_stream(hearts=True)
        async with asyncio.timeout(PATIENCE):
            hearts = [await anext(stream) for _ in range(3)]
        assert [event for _, event in hearts] == [None, None, None]
        await stream.aclose()


async def test_the_listing_stays_json(url: str) -> None:
    async with httpx2.AsyncClient(base_url=url) as http:
        head = await http.head("/api/v1/events", headers={"Accept": "text/event-stream"})
        assert (head.status_code, head.headers["content-type"]) == (200, "application/json")
        for accept in ("*/*", "application/json"):
            answer = await http.get("/api/v1/events", headers={"Accept": accept})
            assert answer.json() == {"items": [], "next_cursor": None}
