"""Clients for the REST API: `Client` blocks, `AsyncClient` returns awaitables. Both have the same methods.

    with Client("http://127.0.0.1:8700", token="br_…") as client:
        job = client.create_job({"name": "report", "task": "report", "schedule": {"every": "1h"}})
        run = client.wait(client.trigger(job.job_id).run_id)

Errors of the server are raised as the exceptions of `bellringer.errors`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Generator
from typing import Any, Self, TypeVar

import httpx2
import msgspec

from bellringer.client.admin_calls import (
    AccessCalls,
    ClusterCalls,
    EventCalls,
    NotificationCalls,
    audit_export,
    verify,
)
from bellringer.client.calls import ApiRequest
from bellringer.client.http import (
    auth_headers,
    check_url,
    decode_response,
    poll_intervals,
    to_error,
    to_httpx,
    transport_error,
)
from bellringer.client.job_calls import JobCalls, RunCalls, ScheduleCalls, WorkflowCalls
from bellringer.client.streams import STREAM_TIMEOUT_SECONDS, EventCursor, LineBuffer, check_stream
from bellringer.clock import SystemClock
from bellringer.core.runs import FINAL_STATES
from bellringer.wire.audit import AuditEntry
from bellringer.wire.events import Event
from bellringer.wire.runs import Run
from bellringer.wire.verify import VerifyLine

__all__ = ["AsyncClient", "Client"]

T = TypeVar("T")


class _Calls(
    JobCalls, RunCalls, WorkflowCalls, ScheduleCalls, AccessCalls, ClusterCalls, EventCalls, NotificationCalls
):
    """All methods that send one request and return its response."""


class Client(_Calls):
    """A client that blocks until the server has responded."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        tenant: str | None = None,
        timeout: float = 10,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        """`token` is an API key or a JWT. Only callers of the whole installation may name a `tenant`."""
        self._url = url
        self._http = httpx2.Client(
            base_url=check_url(url), headers=auth_headers(token, tenant), timeout=timeout, transport=transport
        )

    def send(self, request: ApiRequest[T]) -> T:
        try:
            response = self._http.request(**to_httpx(request))
        except httpx2.TransportError as error:
            raise transport_error(self._url, error) from error
        return decode_response(self._url, request.route, response)

    def wait(self, run_id: str, timeout: float | None = None) -> Run:
        """Wait until a run has ended and return it. Raises Unavailable after `timeout` seconds."""
        for interval in poll_intervals(run_id, timeout):
            run = self.run(run_id)
            if run.state in FINAL_STATES:
                return run
            time.sleep(interval)
        raise AssertionError("poll_intervals ends by raising")

    def events_stream(
        self, *, kind: str | None = None, job: str | None = None, after: str | None = None, hearts: bool = False
    ) -> Generator[tuple[str, Event | None], None, None]:
        """Yield (id, event) as events happen, from now on or after the event with an id. Reconnects on failure.

        With `hearts`, heartbeats are yielded too, as (id, None): every event up to that id has been delivered.
        """
        cursor = EventCursor(kind, job, after)
        while True:
            try:
                with self._http.stream(**cursor.request(), timeout=STREAM_TIMEOUT_SECONDS) as response:
                    if not response.is_success:
                        response.read()
                    for line in response.iter_lines() if check_stream(self._url, cursor, response) else ():
                        found = cursor.read(line)
                        if found and (hearts or found[1]):
                            yield found
            except httpx2.TransportError as error:
                if not cursor.has_begun:
                    raise transport_error(self._url, error) from error
            time.sleep(cursor.reconnect_delay())

    def audit_export(self, **filters: Any) -> Generator[AuditEntry, None, None]:
        """Yield all changes with all their fields, oldest first. The filters are those of `audit`."""
        yield from self._stream_lines(audit_export.request(**filters))

    def verify(self, **scope: Any) -> Generator[VerifyLine, None, None]:
        """Yield the findings of a verification, and its summary at the end. Without a summary it is incomplete.

        The scope: start, end, job, late_after, unstarted_after, strict.
        """
        yield from self._stream_lines(verify.request(**scope), timeout=STREAM_TIMEOUT_SECONDS)

    def _stream_lines(self, request: ApiRequest[T], **options: Any) -> Generator[T, None, None]:
        lines = LineBuffer()
        try:
            with self._http.stream(**to_httpx(request), **options) as response:
                if not response.is_success:
                    response.read()
                    raise to_error(self._url, response)
                for chunk in response.iter_bytes():
                    yield from (msgspec.json.decode(line, type=request.route.response) for line in lines.feed(chunk))
        except httpx2.TransportError as error:
            raise transport_error(self._url, error) from error

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(_Calls):
    """A client for asyncio: every method returns an awaitable or an asynchronous generator."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        tenant: str | None = None,
        timeout: float = 10,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """`token` is an API key or a JWT. Only callers of the whole installation may name a `tenant`."""
        self._url = url
        self._clock = SystemClock()
        self._http = httpx2.AsyncClient(
            base_url=check_url(url), headers=auth_headers(token, tenant), timeout=timeout, transport=transport
        )

    async def send(self, request: ApiRequest[T]) -> T:
        try:
            response = await self._http.request(**to_httpx(request))
        except httpx2.TransportError as error:
            raise transport_error(self._url, error) from error
        return decode_response(self._url, request.route, response)

    async def wait(self, run_id: str, timeout: float | None = None) -> Run:
        """Wait until a run has ended and return it. Raises Unavailable after `timeout` seconds."""
        for interval in poll_intervals(run_id, timeout):
            run = await self.run(run_id)
            if run.state in FINAL_STATES:
                return run
            await self._clock.sleep(interval)
        raise AssertionError("poll_intervals ends by raising")

    async def events_stream(
        self, *, kind: str | None = None, job: str | None = None, after: str | None = None, hearts: bool = False
    ) -> AsyncGenerator[tuple[str, Event | None], None]:
        """Yield (id, event) as events happen; see `Client.events_stream`."""
        cursor = EventCursor(kind, job, after)
        while True:
            try:
                async with self._http.stream(**cursor.request(), timeout=STREAM_TIMEOUT_SECONDS) as response:
                    if not response.is_success:
                        await response.aread()
                    if check_stream(self._url, cursor, response):
                        async for line in response.aiter_lines():
                            found = cursor.read(line)
                            if found and (hearts or found[1]):
                                yield found
            except httpx2.TransportError as error:
                if not cursor.has_begun:
                    raise transport_error(self._url, error) from error
            await self._clock.sleep(cursor.reconnect_delay())

    async def audit_export(self, **filters: Any) -> AsyncGenerator[AuditEntry, None]:
        """Yield all changes with all their fields, oldest first. The filters are those of `audit`."""
        async for entry in self._stream_lines(audit_export.request(**filters)):
            yield entry

    async def verify(self, **scope: Any) -> AsyncGenerator[VerifyLine, None]:
        """Yield the findings of a verification, and its summary at the end. Without a summary it is incomplete.

        The scope: start, end, job, late_after, unstarted_after, strict.
        """
        async for line in self._stream_lines(verify.request(**scope), timeout=STREAM_TIMEOUT_SECONDS):
            yield line

    async def _stream_lines(self, request: ApiRequest[T], **options: Any) -> AsyncGenerator[T, None]:
        lines = LineBuffer()
        try:
            async with self._http.stream(**to_httpx(request), **options) as response:
                if not response.is_success:
                    await response.aread()
                    raise to_error(self._url, response)
                async for chunk in response.aiter_bytes():
                    for line in lines.feed(chunk):
                        yield msgspec.json.decode(line, type=request.route.response)
        except httpx2.TransportError as error:
            raise transport_error(self._url, error) from error

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
