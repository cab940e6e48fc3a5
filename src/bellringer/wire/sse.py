"""Server-sent events as they are read: lines become events, and a stream that broke goes on after the last of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from bellringer.wire.asks import PREFIX
from bellringer.wire.events import Event

SILENCE: Final = 45.0  # seconds without a sign of life after which a stream is taken for broken: three heartbeats
SHORTEST_PAUSE, LONGEST_PAUSE = 0.5, 15.0
AGAIN: Final = frozenset({429, 502, 503, 504})  # the server is away or has no place: it is worth trying again


class Following:
    """Where somebody who follows the events is. It sends nothing: the clients do."""

    def __init__(self, kind: str | None, job: str | None, after: str | None) -> None:
        self.last_id = after
        self.has_begun = False
        self._filters = {name: value for name, value in (("kind", kind), ("job", job)) if value is not None}
        self._failures = 0
        self._id: str | None = None
        self._data: list[str] = []

    def request(self) -> Mapping[str, Any]:
        """What to ask for, now or again."""
        self._id, self._data = None, []
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": self.last_id} if self.last_id else {})}
        return {"method": "GET", "url": f"{PREFIX}/events", "params": self._filters, "headers": headers}

    def begun(self) -> None:
        self.has_begun = True

    def read(self, line: str) -> tuple[str, Event | None] | None:
        """What an empty line completes: an event with its id, or no event, a sign of life."""
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "id":
                self._id = value
            elif name == "data":
                self._data.append(value)
            return None
        data, number, self._data, self._id = self._data, self._id, [], None
        if number is None:
            return None
        self.last_id, self._failures = number, 0
        return number, msgspec.json.decode("\n".join(data), type=Event) if data else None

    def pause(self) -> float:
        """How long to wait before it is tried again: longer and longer."""
        self._failures += 1
        return min(SHORTEST_PAUSE * (1 << min(self._failures - 1, 10)), LONGEST_PAUSE)
