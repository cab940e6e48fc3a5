"""The API from Python: `Client` waits for its answers, `AsyncClient` gives awaitables.

Every call is described once, in `wire.asks`; the two clients only differ in how they send one.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Generator
from typing import Any, Self, TypeVar

import httpx2
import msgspec

from bellringer import wire
from bellringer.client.calls import Calls
from bellringer.client.exchange import answer, base, goes_on, login, pauses, problem, silent, to_send
from bellringer.clock import SystemClock
from bellringer.runs import FINAL
from bellringer.wire import asks_audit
from bellringer.wire.asks import Ask
from bellringer.wire.audit import AuditEntry
from bellringer.wire.ndjson import Lines
from bellringer.wire.sse import SILENCE, Following

T = TypeVar("T")


class Client(Calls):
    """Asks a Bellringer server, and waits for what it answers."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        tenant: str | None = None,
        timeout: float = 10,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self._url = url
        self._http = httpx2.Client(
            base_url=base(url), headers=login(token, tenant), timeout=timeout, transport=transport
        )

    def send(self, ask: Ask[T]) -> T:
        try:
            response = self._http.request(**to_send(ask))
        except httpx2.TransportError as error:
            raise silent(self._url, error) from error
        return answer(self._url, ask, response)

    def wait(self, run_id: str, timeout: float | None = None) -> wire.Run:
        """The run when it has ended; Unavailable if it has not by then."""
        for pause in pauses(run_id, timeout):
            run = self.run(run_id)
            if run.state in FINAL:
                return run
            time.sleep(pause)
        raise AssertionError("the pauses end by an error")

    def events_stream(
        self, *, kind: str | None = None, job: str | None = None, after: str | None = None, hearts: bool = False
    ) -> Generator[tuple[str, wire.Event | None], None, None]:
        """Events with their ids as they happen, from now on or after an id; a stream that breaks is taken up again.

        With `hearts` also its signs of life, ids without an event: that nothing was missed so far.
        """
        following = Following(kind, job, after)
        while True:
            try:
                with self._http.stream(**following.request(), timeout=SILENCE) as response:
                    if not response.is_success:
                        response.read()
                    for line in response.iter_lines() if goes_on(self._url, following, response) else ():
                        found = following.read(line)
                        if found and (hearts or found[1]):
                            yield found
            except httpx2.TransportError as error:
                if not following.has_begun:
                    raise silent(self._url, error) from error
            time.sleep(following.pause())

    def audit_export(self, **wanted: Any) -> Generator[AuditEntry, None, None]:
        """The changes that `audit` lists, whole and oldest first, as they come."""
        ask, lines = asks_audit.audit_export(**wanted), Lines()
        try:
            with self._http.stream(**to_send(ask)) as response:
                if not response.is_success:
                    response.read()
                    raise problem(self._url, response)
                for chunk in response.iter_bytes():
                    yield from (msgspec.json.decode(line, type=ask.shape) for line in lines.feed(chunk))
        except httpx2.TransportError as error:
            raise silent(self._url, error) from error

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(Calls):
    """Asks a Bellringer server without blocking the loop."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        tenant: str | None = None,
        timeout: float = 10,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._url = url
        self._clock = SystemClock()
        self._http = httpx2.AsyncClient(
            base_url=base(url), headers=login(token, tenant), timeout=timeout, transport=transport
        )

    async def send(self, ask: Ask[T]) -> T:
        try:
            response = await self._http.request(**to_send(ask))
        except httpx2.TransportError as error:
            raise silent(self._url, error) from error
        return answer(self._url, ask, response)

    async def wait(self, run_id: str, timeout: float | None = None) -> wire.Run:
        """The run when it has ended; Unavailable if it has not by then."""
        for pause in pauses(run_id, timeout):
            run = await self.run(run_id)
            if run.state in FINAL:
                return run
            await self._clock.sleep(pause)
        raise AssertionError("the pauses end by an error")

    async def events_stream(
        self, *, kind: str | None = None, job: str | None = None, after: str | None = None, hearts: bool = False
    ) -> AsyncGenerator[tuple[str, wire.Event | None], None]:
        """As that of `Client`."""
        following = Following(kind, job, after)
        while True:
            try:
                async with self._http.stream(**following.request(), timeout=SILENCE) as response:
                    if not response.is_success:
                        await response.aread()
                    if goes_on(self._url, following, response):
                        async for line in response.aiter_lines():
                            found = following.read(line)
                            if found and (hearts or found[1]):
                                yield found
            except httpx2.TransportError as error:
                if not following.has_begun:
                    raise silent(self._url, error) from error
            await self._clock.sleep(following.pause())

    async def audit_export(self, **wanted: Any) -> AsyncGenerator[AuditEntry, None]:
        """As that of `Client`."""
        ask, lines = asks_audit.audit_export(**wanted), Lines()
        try:
            async with self._http.stream(**to_send(ask)) as response:
                if not response.is_success:
                    await response.aread()
                    raise problem(self._url, response)
                async for chunk in response.aiter_bytes():
                    for line in lines.feed(chunk):
                        yield msgspec.json.decode(line, type=ask.shape)
        except httpx2.TransportError as error:
            raise silent(self._url, error) from error

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
