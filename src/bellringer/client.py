"""The API from Python: `Client` waits for its answers, `AsyncClient` gives awaitables.

Every call is described once, in `wire.asks`; the two clients only differ in how they send one.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from functools import update_wrapper
from typing import Any, Generic, ParamSpec, Self, TypeVar, overload

import httpx2
import msgspec

from bellringer import wire
from bellringer.clock import SystemClock
from bellringer.errors import BellringerError, ConfigError, Unavailable
from bellringer.runs import FINAL
from bellringer.wire import asks
from bellringer.wire.asks import Ask

P = ParamSpec("P")
T = TypeVar("T")


class _Call(Generic[P, T]):
    """A method of both clients: on one it answers, on the other it gives an awaitable of the answer."""

    def __init__(self, ask: Callable[P, Ask[T]]) -> None:
        self._ask = ask

    @overload
    def __get__(self, client: Client, owner: object = None) -> Callable[P, T]: ...

    @overload
    def __get__(self, client: AsyncClient, owner: object = None) -> Callable[P, Awaitable[T]]: ...

    def __get__(self, client: Client | AsyncClient, owner: object = None) -> Callable[P, Any]:
        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            return client.send(self._ask(*args, **kwargs))

        return update_wrapper(call, self._ask)


class _Calls:
    """All calls, by name."""

    jobs = _Call(asks.jobs)
    job = _Call(asks.job)
    create_job = _Call(asks.create_job)
    patch_job = _Call(asks.patch_job)
    dry_run = _Call(asks.dry_run)
    delete_job = _Call(asks.delete_job)
    pause = _Call(asks.pause)
    resume = _Call(asks.resume)
    trigger = _Call(asks.trigger)
    job_runs = _Call(asks.job_runs)
    why = _Call(asks.why)
    baseline = _Call(asks.baseline)
    runs = _Call(asks.runs)
    run = _Call(asks.run)
    explain = _Call(asks.explain)
    cancel = _Call(asks.cancel)
    retry = _Call(asks.retry)
    logs = _Call(asks.logs)
    execute = _Call(asks.execute)
    dead_letters = _Call(asks.dead_letters)
    redrive = _Call(asks.redrive)
    discard = _Call(asks.discard)
    events = _Call(asks.events)
    plan_backfill = _Call(asks.plan_backfill)
    start_backfill = _Call(asks.start_backfill)
    backfills = _Call(asks.backfills)
    backfill = _Call(asks.backfill)
    pause_backfill = _Call(asks.pause_backfill)
    resume_backfill = _Call(asks.resume_backfill)
    cancel_backfill = _Call(asks.cancel_backfill)
    calendars = _Call(asks.calendars)
    calendar = _Call(asks.calendar)
    put_calendar = _Call(asks.put_calendar)
    delete_calendar = _Call(asks.delete_calendar)
    freezes = _Call(asks.freezes)
    freeze = _Call(asks.freeze)
    create_freeze = _Call(asks.create_freeze)
    patch_freeze = _Call(asks.patch_freeze)
    lift_freeze = _Call(asks.lift_freeze)
    workers = _Call(asks.workers)
    cluster = _Call(asks.cluster)
    tz_moves = _Call(asks.tz_moves)
    forecast = _Call(asks.forecast)
    preview = _Call(asks.preview)
    version = _Call(asks.version)
    ready = _Call(asks.ready)


class Client(_Calls):
    """Asks a Bellringer server, and waits for what it answers."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout: float = 10,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self._url = url
        self._http = httpx2.Client(base_url=_base(url), headers=_headers(token), timeout=timeout, transport=transport)

    def send(self, ask: Ask[T]) -> T:
        try:
            response = self._http.request(**_request(ask))
        except httpx2.TransportError as error:
            raise _silent(self._url, error) from error
        return _answer(self._url, ask, response)

    def wait(self, run_id: str, timeout: float | None = None) -> wire.Run:
        """The run when it has ended; Unavailable if it has not by then."""
        for pause in _pauses(run_id, timeout):
            run = self.run(run_id)
            if run.state in FINAL:
                return run
            time.sleep(pause)
        raise AssertionError("the pauses end by an error")

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(_Calls):
    """Asks a Bellringer server without blocking the loop."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout: float = 10,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._url = url
        self._clock = SystemClock()
        self._http = httpx2.AsyncClient(
            base_url=_base(url), headers=_headers(token), timeout=timeout, transport=transport
        )

    async def send(self, ask: Ask[T]) -> T:
        try:
            response = await self._http.request(**_request(ask))
        except httpx2.TransportError as error:
            raise _silent(self._url, error) from error
        return _answer(self._url, ask, response)

    async def wait(self, run_id: str, timeout: float | None = None) -> wire.Run:
        """The run when it has ended; Unavailable if it has not by then."""
        for pause in _pauses(run_id, timeout):
            run = await self.run(run_id)
            if run.state in FINAL:
                return run
            await self._clock.sleep(pause)
        raise AssertionError("the pauses end by an error")

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _base(url: str) -> str:
    try:
        parsed = httpx2.URL(url)
    except (httpx2.InvalidURL, TypeError):
        parsed = httpx2.URL("")
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise ConfigError(f"{url[:200]!r} is not the URL of a server", hint="write it like http://127.0.0.1:8700")
    return url


def _headers(token: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


def _request(ask: Ask[Any]) -> dict[str, Any]:
    kind = {} if ask.body is None else {"Content-Type": "application/json"}
    return {
        "method": ask.method,
        "url": ask.path,
        "params": dict(ask.query),
        "content": ask.content(),
        "headers": {**kind, **ask.headers},
    }


def _pauses(run_id: str, timeout: float | None) -> Iterator[float]:
    """How long to wait between two looks: longer and longer up to a second, and not beyond the end."""
    clock = SystemClock()
    end = None if timeout is None else clock.monotonic() + timeout
    pause = 0.05
    while True:
        left = None if end is None else end - clock.monotonic()
        yield pause if left is None else max(0.0, min(pause, left))
        if left is not None and left <= 0:
            raise Unavailable(f"{run_id} has not ended within {timeout:g} s", hint="wait longer, or look at its state")
        pause = min(pause * 1.5, 1.0)


def _answer(url: str, ask: Ask[T], response: httpx2.Response) -> T:
    if not (response.is_success or response.status_code in ask.accepts):
        raise _error(url, response)
    if ask.shape is type(None):
        return None
    try:
        return msgspec.json.decode(response.content, type=ask.shape)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _stranger(url, response) from None


def _error(url: str, response: httpx2.Response) -> BellringerError:
    try:
        return wire.to_error(msgspec.json.decode(response.content, type=wire.Problem))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _stranger(url, response)


def _stranger(url: str, response: httpx2.Response) -> BellringerError:
    message = f"{url} answered {response.status_code} with something that is not Bellringer's"
    if response.status_code in {502, 503, 504}:  # a proxy's word for a server that is away
        return Unavailable(message, hint="try again in a moment")
    return BellringerError(message, hint="check BELLRINGER_URL")


def _silent(url: str, error: Exception) -> Unavailable:
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        return Unavailable(
            f"no Bellringer answers at {url}", hint="start one with `bellringer dev`, or set BELLRINGER_URL"
        )
    if isinstance(error, httpx2.TimeoutException):
        return Unavailable(f"{url} did not answer in time", hint="try again, or allow more time")
    return Unavailable(f"the connection to {url} broke off", hint="see whether it was done, then try again")
