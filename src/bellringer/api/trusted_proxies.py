"""Applies X-Forwarded-* headers, for requests of trusted reverse proxies only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

_HEADER: Final = b"x-forwarded-prefix"
_SCOPE_KEY: Final = "bellringer.prefix"  # read by the console
_PREFIX: Final = re.compile(r"(/[A-Za-z0-9._~-]+)*")


def behind_proxies(app: ASGIApp, trusted: Sequence[str]) -> ASGIApp:
    """Wraps the application. Requests of trusted peers get the client's address and scheme from X-Forwarded-For and
    X-Forwarded-Proto, and the path prefix of the console from X-Forwarded-Prefix.

    Args:
        app: the application.
        trusted: addresses or networks of the proxies, or "*" for every peer. Without any, nothing changes.
    """
    if not trusted:
        return app
    inner = ProxyHeadersMiddleware(app, "*" if "*" in trusted else list(trusted))  # type: ignore[arg-type]
    peers = inner.trusted_hosts

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        # Before the inner layer, which replaces the peer's address by that of the client.
        peer = scope.get("client")
        if scope["type"] == "http" and (peer[0] if peer else None) in peers:
            given = [value for name, value in scope["headers"] if name == _HEADER]
            prefix = given[0].decode("latin-1").rstrip("/") if len(given) == 1 else ""
            if _PREFIX.fullmatch(prefix):
                scope[_SCOPE_KEY] = prefix
        await inner(scope, receive, send)  # type: ignore[arg-type]

    return handle
