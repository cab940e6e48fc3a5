"""Answers that go on: one shared look at the database serves all who wait in this process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

import msgspec
from starlette.responses import StreamingResponse

from bellringer.api.beats import Beats
from bellringer.api.feeds import Feed
from bellringer.api.problems import Refused
from bellringer.cache import Cache
from bellringer.clock import Clock
from bellringer.runs import RunKey
from bellringer.store import run_lists
from bellringer.store.pool import RETRYABLE, Store

SSE: Final = "text/event-stream"
LOOK: Final = 0.2  # seconds between two looks for ends
MOST_STREAMS: Final = 100  # of one tenant in one process; waits count too, ten times as many
MOST_WAITS: Final = 10 * MOST_STREAMS
MOST_ASKED: Final = 1_000  # keys of one look
LONGEST: Final = 900.0  # seconds of a stream: who goes on shows again that he may
HEARTBEAT: Final = 5.0  # seconds: as often as it is seen at the latest that a caller may hear no more


class Places:
    """How many answers each tenant keeps open here."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: Counter[int] = Counter()

    @contextmanager
    def taken(self, tenant_id: int) -> Iterator[None]:
        self.check(tenant_id)
        self._taken[tenant_id] += 1
        try:
            yield
        finally:
            self._taken[tenant_id] -= 1

    def check(self, tenant_id: int) -> None:
        if self._taken[tenant_id] >= self._most:
            raise Refused(
                429,
                "too_many_streams",
                f"{self._most} answers are open already",
                hint="end some of them, or ask again later",
                headers={"Retry-After": "5"},
            )


class Endings:
    """Tells those who wait that a run has ended. They hold no connection meanwhile."""

    def __init__(self) -> None:
        self._waiting: dict[RunKey, set[asyncio.Future[None]]] = {}
        self._looker: asyncio.Task[None] | None = None

    async def wait(self, store: Store, clock: Clock, key: RunKey, seconds: float) -> bool:
        """True: it has ended, or seems so; False: not within that time."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, set()).add(ended)
        if self._looker is None or self._looker.done():
            self._looker = asyncio.create_task(self._look(store, clock))
        try:
            async with asyncio.timeout(seconds):
                await ended
            return True
        except TimeoutError:
            return False
        finally:
            self._leave(key, ended)

    def close(self) -> None:
        """Let all who wait look once more."""
        self._tell(iter(list(self._waiting)))

    def _leave(self, key: RunKey, ended: asyncio.Future[None]) -> None:
        others = self._waiting.get(key, set())
        others.discard(ended)
        if not others:
            self._waiting.pop(key, None)
        if not self._waiting and self._looker is not None:
            self._looker.cancel()
            self._looker = None

    async def _look(self, store: Store, clock: Clock) -> None:
        while True:
            keys = list(self._waiting)
            for start in range(0, len(keys), MOST_ASKED):
                asked = keys[start : start + MOST_ASKED]
                with suppress(*RETRYABLE):
                    lasting = await run_lists.unfinished(store, asked)
                    self._tell(key for key in asked if key not in lasting)
            await clock.sleep(LOOK)

    def _tell(self, ended: Iterator[RunKey]) -> None:
        for key in ended:
            for waiting in self._waiting.get(key, ()):
                if not waiting.done():
                    waiting.set_result(None)


class Streams:
    """What all open answers of a process share."""

    def __init__(self, cache: Cache | None = None) -> None:
        self.is_closing = False
        self.endings = Endings()
        self.feed = Feed(cache)
        self.beats = Beats()
        self.waits = Places(MOST_WAITS)
        self.streams = Places(MOST_STREAMS)

    def close(self) -> None:
        """The process ends: whoever waits or reads gets what there is, and asks another one."""
        self.is_closing = True
        self.endings.close()
        self.feed.close()
        self.beats.close()


def event(data: Any, *, name: str | None = None, number: str | None = None) -> bytes:
    """One event as it travels: JSON has no line breaks, so it is one line of data."""
    head = "".join(f"{field}: {value}\n" for field, value in (("id", number), ("event", name)) if value is not None)
    return head.encode() + b"data: " + msgspec.json.encode(data) + b"\n\n"


HEART: Final = b": still here\n\n"


def stream(
    chunks: AsyncIterator[bytes], media: str = SSE, headers: Mapping[str, str] | None = None
) -> StreamingResponse:
    """An answer that goes on; nobody on the way shall keep it back."""
    kept = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", **(headers or {})}
    return StreamingResponse(chunks, media_type=media, headers=kept)


async def placed(places: Places, tenant_id: int, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same, which takes a place as long as somebody reads it."""
    with places.taken(tenant_id):
        async for chunk in chunks:
            yield chunk


def wants(accept: str, media: str) -> bool:
    """Whether a client asks for this very form; what takes anything gets JSON."""
    kinds = [part.split(";")[0].strip().lower() for part in accept.split(",")]
    return media in kinds
