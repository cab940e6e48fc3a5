"""Reads streamed responses: server-sent events that continue after a reconnect, and lines of JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import httpx2
import msgspec

from bellringer.client.http import to_error
from bellringer.wire.events import Event
from bellringer.wire.routes import SSE, Routes

STREAM_TIMEOUT_SECONDS: Final = 45.0  # three heartbeats of the server
FIRST_DELAY_SECONDS: Final = 0.5
LONGEST_DELAY_SECONDS: Final = 15.0
RETRYABLE_STATUSES: Final = frozenset({429, 502, 503, 504})


class EventCursor:
    """The position of a client in the stream of events, from which it continues after a reconnect.

    The cursor builds requests and parses lines; the clients do the I/O.
    """

    def __init__(self, kind: str | None, job: str | None, after: str | None) -> None:
        self.last_id = after
        self.has_begun = False
        self._filters = {name: value for name, value in (("kind", kind), ("job", job)) if value is not None}
        self._failures = 0
        self._id: str | None = None
        self._data: list[str] = []

    def request(self) -> Mapping[str, Any]:
        """The request that starts the stream, or continues it after the last event."""
        self._id, self._data = None, []
        headers = {"Accept": SSE, **({"Last-Event-ID": self.last_id} if self.last_id else {})}
        return {"method": "GET", "url": Routes.events.path, "params": self._filters, "headers": headers}

    def read(self, line: str) -> tuple[str, Event | None] | None:
        """Add a line. An empty line ends a message: an event with its id, or a heartbeat, which has only an id."""
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "id":
                self._id = value
            elif name == "data":
                self._data.append(value)
            return None
        data, event_id, self._data, self._id = self._data, self._id, [], None
        if event_id is None:
            return None
        self.last_id, self._failures = event_id, 0
        return event_id, msgspec.json.decode("\n".join(data), type=Event) if data else None

    def reconnect_delay(self) -> float:
        """The seconds to wait before the next connection; doubles with every failure."""
        self._failures += 1
        return min(FIRST_DELAY_SECONDS * (1 << min(self._failures - 1, 10)), LONGEST_DELAY_SECONDS)


def check_stream(url: str, cursor: EventCursor, response: httpx2.Response) -> bool:
    """Return whether the stream has started. False means: reconnect later; other failures are raised."""
    if response.is_success:
        cursor.has_begun = True
    elif not (cursor.has_begun and response.status_code in RETRYABLE_STATUSES):
        raise to_error(url, response)
    return response.is_success


class LineBuffer:
    """Splits chunks of bytes into lines. Only a newline ends a line: JSON text may contain other line separators."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Add a chunk and return the lines that are complete."""
        *complete, self._rest = (self._rest + chunk).split(b"\n")
        return [line for line in complete if line]
