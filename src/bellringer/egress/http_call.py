"""Sends one HTTP request, with limits on time and size. Redirects and proxies are not followed."""

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

from bellringer.egress.guarded_connect import BlockedAddress, EgressGuard, ResolveFailed
from bellringer.egress.urls import Url

MAX_RESPONSE_BYTES: Final = 64 * 1024
MAX_CALL_TIMEOUT: Final = timedelta(seconds=30)


class CallFailureKind(StrEnum):
    """Why a call got no response."""

    BLOCKED = "blocked_address"
    RESOLVE = "resolve_failed"
    CONNECT = "connect_failed"
    TIMEOUT = "timed_out"
    PROTOCOL = "protocol_error"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A request, and the timeout for the whole call."""

    url: Url
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    timeout: timedelta = MAX_CALL_TIMEOUT


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """A response. `cut` is true if the body was longer than the limit."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    cut: bool
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFailure:
    """A call that got no response."""

    trouble: CallFailureKind
    message: str
    seconds: float


async def send_request(
    request: HttpRequest, guard: EgressGuard, monotonic: Callable[[], float]
) -> HttpResponse | CallFailure:
    """Sends a request and reads the response. Returns within the timeout, whatever the server does, and does not
    raise.
    """
    began = monotonic()
    limit = min(request.timeout, MAX_CALL_TIMEOUT).total_seconds()

    def failed(trouble: CallFailureKind, message: str) -> CallFailure:
        return CallFailure(trouble=trouble, message=message, seconds=monotonic() - began)

    try:
        async with asyncio.timeout(limit):
            status, headers, body, cut = await _exchange(request, guard, limit)
    except BlockedAddress as error:
        return failed(CallFailureKind.BLOCKED, str(error))
    except ResolveFailed as error:
        return failed(CallFailureKind.RESOLVE, str(error))
    except (TimeoutError, httpcore2.TimeoutException):
        return failed(CallFailureKind.TIMEOUT, f"no complete response within {limit:g} s")
    except (httpcore2.ConnectError, ssl.SSLError, OSError) as error:
        return failed(
            CallFailureKind.CONNECT, f"{request.url.origin} cannot be reached: {error or type(error).__name__}"
        )
    except (httpcore2.ProtocolError, httpcore2.NetworkError, ValueError) as error:
        return failed(CallFailureKind.PROTOCOL, f"the response is invalid: {error or type(error).__name__}")
    return HttpResponse(status=status, headers=headers, body=body, cut=cut, seconds=monotonic() - began)


async def _exchange(request: HttpRequest, guard: EgressGuard, limit: float) -> tuple[int, dict[str, str], bytes, bool]:
    url = request.url
    where = httpcore2.URL(
        scheme=url.scheme.encode(), host=url.host.encode(), port=url.port, target=url.target.encode("ascii")
    )
    # A new connection for each call: a reused one would outlive the check of its address. httpcore does not follow
    # redirects, read proxies from the environment, or decompress.
    pool = httpcore2.AsyncConnectionPool(
        ssl_context=_tls_context() if url.scheme == "https" else None,
        max_connections=1,
        max_keepalive_connections=0,
        network_backend=guard,
    )
    async with (
        pool,
        pool.stream(
            request.method,
            where,
            headers=_request_headers(request),
            content=request.body or None,
            extensions={"timeout": dict.fromkeys(("connect", "read", "write", "pool"), limit)},
        ) as response,
    ):
        body = bytearray()
        async for chunk in response.aiter_stream():
            body += chunk
            if len(body) > MAX_RESPONSE_BYTES:
                break
        return (
            response.status,
            _response_headers(response.headers),
            bytes(body[:MAX_RESPONSE_BYTES]),
            len(body) > MAX_RESPONSE_BYTES,
        )


def _request_headers(request: HttpRequest) -> list[tuple[bytes, bytes]]:
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


def _response_headers(raw: list[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in raw}


@lru_cache(maxsize=1)
def _tls_context() -> ssl.SSLContext:
    """The TLS context with the system's certificate authorities. Cached, because loading them takes tens of
    milliseconds.
    """
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
