"""Server-sent events and long polling: responses that stay open, served by shared queries of one process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

import msgspec
from starlette.responses import StreamingResponse

from bellringer.api.http.change_feed import ChangeFeed
from bellringer.api.http.error_responses import Refused
from bellringer.api.http.event_feed import EventFeed
from bellringer.clock import Clock
from bellringer.core.cache import Cache
from bellringer.core.runs import RunKey
from bellringer.store import run_lists
from bellringer.store.connection_pool import RETRYABLE_ERRORS, Store

SSE: Final = "text/event-stream"
RUN_END_POLL_SECONDS: Final = 0.2  # between two queries for ended runs
MAX_STREAMS: Final = 100  # of one tenant in one process; ten times as many waits
MAX_WAITS: Final = 10 * MAX_STREAMS
MAX_KEYS_PER_QUERY: Final = 1_000  # keys in one query
MAX_STREAM_SECONDS: Final = 900.0  # clients must reconnect and authenticate again
HEARTBEAT_SECONDS: Final = 5.0  # revoked credentials are detected within this time


class OpenResponseLimit:
    """Counts the open responses of each tenant, and limits them."""

    def __init__(self, most: int, what: str = "streams are open") -> None:
        self._most = most
        self._what = what
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
                f"{self._most} {self._what} already, which is the maximum",
                hint="close some of them, or retry later",
                headers={"Retry-After": "5"},
            )


class RunEndFeed:
    """Notifies waiters when a run has ended. Waiters hold no database connection."""

    def __init__(self) -> None:
        self._waiting: dict[RunKey, set[asyncio.Future[None]]] = {}
        self._looker: asyncio.Task[None] | None = None

    async def wait(self, store: Store, clock: Clock, key: RunKey, seconds: float) -> bool:
        """Waits for the end of a run. Returns True if it has ended, or may have; False after the timeout."""
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
        """Wakes all waiters, which then read the run once more."""
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
            for start in range(0, len(keys), MAX_KEYS_PER_QUERY):
                asked = keys[start : start + MAX_KEYS_PER_QUERY]
                with suppress(*RETRYABLE_ERRORS):
                    lasting = await run_lists.unfinished(store, asked)
                    self._tell(key for key in asked if key not in lasting)
            await clock.sleep(RUN_END_POLL_SECONDS)

    def _tell(self, ended: Iterator[RunKey]) -> None:
        for key in ended:
            for waiting in self._waiting.get(key, ()):
                if not waiting.done():
                    waiting.set_result(None)


class OpenStreams:
    """The state that all open responses of a process share."""

    def __init__(self, cache: Cache | None = None) -> None:
        self.is_closing = False
        self.endings = RunEndFeed()
        self.feed = EventFeed(cache)
        self.beats = ChangeFeed()
        self.waits = OpenResponseLimit(MAX_WAITS)
        self.streams = OpenResponseLimit(MAX_STREAMS)
        self.verifications = OpenResponseLimit(1, "verification is running")

    def close(self) -> None:
        """Ends all streams and waits, because the process is stopping."""
        self.is_closing = True
        self.endings.close()
        self.feed.close()
        self.beats.close()


def encode_event(data: Any, *, name: str | None = None, number: str | None = None) -> bytes:
    """Encodes one server-sent event. JSON contains no line breaks, so the data is one line."""
    head = "".join(f"{field}: {value}\n" for field, value in (("id", number), ("event", name)) if value is not None)
    return head.encode() + b"data: " + msgspec.json.encode(data) + b"\n\n"


HEARTBEAT_COMMENT: Final = b": still here\n\n"


def stream(
    chunks: AsyncIterator[bytes], media: str = SSE, headers: Mapping[str, str] | None = None
) -> StreamingResponse:
    """Returns a streaming response that proxies must not buffer."""
    kept = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", **(headers or {})}
    return StreamingResponse(chunks, media_type=media, headers=kept)


async def counted_stream(
    places: OpenResponseLimit, tenant_id: int, chunks: AsyncIterator[bytes]
) -> AsyncIterator[bytes]:
    """Returns a streaming response that counts as open while it is read."""
    with places.taken(tenant_id):
        async for chunk in chunks:
            yield chunk


def accepts(accept: str, media: str) -> bool:
    """Returns whether a client accepts this media type explicitly; with */* it gets JSON."""
    kinds = [part.split(";")[0].strip().lower() for part in accept.split(",")]
    return media in kinds
