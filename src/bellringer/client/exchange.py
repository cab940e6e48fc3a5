"""What is sent for a call, and what an answer means."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import httpx2
import msgspec

from bellringer import wire
from bellringer.clock import SystemClock
from bellringer.errors import BellringerError, ConfigError, Unavailable
from bellringer.wire.asks import Ask
from bellringer.wire.sse import AGAIN, Following

T = TypeVar("T")


def base(url: str) -> str:
    try:
        parsed = httpx2.URL(url)
    except (httpx2.InvalidURL, TypeError):
        parsed = httpx2.URL("")
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise ConfigError(f"{url[:200]!r} is not the URL of a server", hint="write it like http://127.0.0.1:8700")
    return url


def login(token: str | None, tenant: str | None) -> dict[str, str]:
    """What to log in by; and the tenant that is meant, for those who may name one."""
    given = {"Authorization": f"Bearer {token}" if token else None, "X-Tenant": tenant}
    return {name: value for name, value in given.items() if value}


def to_send(ask: Ask[Any]) -> dict[str, Any]:
    kind = {} if ask.body is None else {"Content-Type": "application/json"}
    return {
        "method": ask.method,
        "url": ask.path,
        "params": dict(ask.query),
        "content": ask.content(),
        "headers": {**kind, **ask.headers},
    }


def pauses(run_id: str, timeout: float | None) -> Iterator[float]:
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


def goes_on(url: str, following: Following, response: httpx2.Response) -> bool:
    """Whether a stream has begun; False: it is worth trying again."""
    if response.is_success:
        following.begun()
    elif not (following.has_begun and response.status_code in AGAIN):
        raise problem(url, response)
    return response.is_success


def answer(url: str, ask: Ask[T], response: httpx2.Response) -> T:
    if not (response.is_success or response.status_code in ask.accepts):
        raise problem(url, response)
    if ask.shape is type(None):
        return None
    try:
        return msgspec.json.decode(response.content, type=ask.shape)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise stranger(url, response) from None


def problem(url: str, response: httpx2.Response) -> BellringerError:
    try:
        return wire.to_error(msgspec.json.decode(response.content, type=wire.Problem))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return stranger(url, response)


def stranger(url: str, response: httpx2.Response) -> BellringerError:
    message = f"{url} answered {response.status_code} with something that is not Bellringer's"
    if response.status_code in {502, 503, 504}:  # a proxy's word for a server that is away
        return Unavailable(message, hint="try again in a moment")
    return BellringerError(message, hint="check BELLRINGER_URL")


def silent(url: str, error: Exception) -> Unavailable:
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        return Unavailable(
            f"no Bellringer answers at {url}", hint="start one with `bellringer dev`, or set BELLRINGER_URL"
        )
    if isinstance(error, httpx2.TimeoutException):
        return Unavailable(f"{url} did not answer in time", hint="try again, or allow more time")
    return Unavailable(f"the connection to {url} broke off", hint="see whether it was done, then try again")
