"""One call: bounded in time and size, to checked addresses only, never redirected, never through a proxy."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Final

import httpcore2

from bellringer.egress.connect import BlockedAddress, Guard, ResolveFailed
from bellringer.egress.urls import Url

MOST_BODY: Final = 64 * 1024
LONGEST: Final = timedelta(seconds=30)


class Trouble(StrEnum):
    """Why a call got no answer."""

    BLOCKED = "blocked_address"
    RESOLVE = "resolve_failed"
    CONNECT = "connect_failed"
    TIMEOUT = "timed_out"
    PROTOCOL = "protocol_error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is sent, and how long the whole of it may take."""

    url: Url
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    timeout: timedelta = LONGEST


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back; of a long body, the beginning."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    cut: bool
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Nothing came back, and why."""

    trouble: Trouble
    message: str
    seconds: float


async def call(request: Request, guard: Guard, monotonic: Callable[[], float]) -> Answer | Failure:
    """Send a request and read the answer. Whatever the other side does, this ends, and in time."""
    began = monotonic()
    limit = min(request.timeout, LONGEST).total_seconds()

    def failed(trouble: Trouble, message: str) -> Failure:
        return Failure(trouble=trouble, message=message, seconds=monotonic() - began)

    try:
        async with asyncio.timeout(limit):
            status, headers, body, cut = await _exchange(request, guard, limit)
    except BlockedAddress as error:
        return failed(Trouble.BLOCKED, str(error))
    except ResolveFailed as error:
        return failed(Trouble.RESOLVE, str(error))
    except (TimeoutError, httpcore2.TimeoutException):
        return failed(Trouble.TIMEOUT, f"no whole answer within {limit:g} s")
    except (httpcore2.ConnectError, ssl.SSLError, OSError) as error:
        return failed(Trouble.CONNECT, f"{request.url.origin} cannot be reached: {error or type(error).__name__}")
    except (httpcore2.ProtocolError, httpcore2.NetworkError, ValueError) as error:
        return failed(Trouble.PROTOCOL, f"the answer cannot be read: {error or type(error).__name__}")
    return Answer(status=status, headers=headers, body=body, cut=cut, seconds=monotonic() - began)


async def _exchange(request: Request, guard: Guard, limit: float) -> tuple[int, dict[str, str], bytes, bool]:
    url = request.url
    where = httpcore2.URL(
        scheme=url.scheme.encode(), host=url.host.encode(), port=url.port, target=url.target.encode("ascii")
    )
    # A connection of its own for each call: one that is kept would outlive the check of its address. httpcore itself
    # follows no redirect, reads no proxy from the environment and undoes no compression.
    pool = httpcore2.AsyncConnectionPool(
        ssl_context=_tls() if url.scheme == "https" else None,
        max_connections=1,
        max_keepalive_connections=0,
        network_backend=guard,
    )
    async with (
        pool,
        pool.stream(
            request.method,
            where,
            headers=_lines(request),
            content=request.body or None,
            extensions={"timeout": dict.fromkeys(("connect", "read", "write", "pool"), limit)},
        ) as response,
    ):
        body = bytearray()
        async for chunk in response.aiter_stream():
            body += chunk
            if len(body) > MOST_BODY:
                break
        return response.status, _headers(response.headers), bytes(body[:MOST_BODY]), len(body) > MOST_BODY


def _lines(request: Request) -> list[tuple[bytes, bytes]]:
    lines = {
        "host": request.url.authority,
        "user-agent": "bellringer",
        "accept": "*/*",
        **request.headers,
        "accept-encoding": "identity",
        "connection": "close",
    }
    if request.body or request.method in ("POST", "PUT", "PATCH"):
        lines["content-length"] = str(len(request.body))
    return [(name.encode("ascii"), value.encode("ascii")) for name, value in lines.items()]


def _headers(raw: list[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in raw}


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    """The system's authorities: made once, because reading them takes tens of milliseconds."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
