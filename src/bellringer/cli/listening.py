"""The port is taken before anything else starts: one in use is told at once, and restarts do not lose it."""

from __future__ import annotations

import socket
from typing import Final

from bellringer.errors import ConfigError

BACKLOG: Final = 2048
_ANYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where a listener on all is reached from here


def listen(host: str, port: int) -> socket.socket:
    """Take the port before anything else starts, so that a port in use is said at once."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ConfigError(f"host {host!r} is not known: {error.strerror}", hint="try --host 127.0.0.1") from None
    listening = socket.socket(family, kind, proto)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(address)
    except OSError as error:
        listening.close()
        raise ConfigError(
            f"port {port} on {host} cannot be used: {(error.strerror or str(error)).lower()}",
            hint=f"stop what uses it, or choose another: --port {port + 1}",
        ) from None
    listening.listen(BACKLOG)
    return listening


def url_of(host: str, listening: socket.socket) -> str:
    """How this machine reaches it."""
    host = _ANYWHERE.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"
