"""Opens the listening socket before anything else starts, so that a port in use is reported at once."""

from __future__ import annotations

import errno
import socket
from typing import Final

from bellringer.errors import ConfigError

BACKLOG: Final = 2048
MAX_PORTS_TRIED: Final = 50
_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - the local address of a wildcard address


class PortInUse(ConfigError):
    """Another process listens on the port."""


def listen_from(host: str, port: int) -> socket.socket:
    """Listen on the first free port, starting with this one."""
    for number in range(port, port + MAX_PORTS_TRIED):
        try:
            return listen(host, number)
        except PortInUse:
            continue
    hint = "stop one of the programs that use them, or choose a port with --port"
    raise ConfigError(f"the ports {port} to {port + MAX_PORTS_TRIED - 1} on {host} are all in use", hint=hint)


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket, or raise ConfigError with a hint."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ConfigError(f"cannot resolve host {host!r}: {error.strerror}", hint="try --host 127.0.0.1") from None
    listening = socket.socket(family, kind, proto)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(address)
    except OSError as error:
        listening.close()
        kind_of = PortInUse if error.errno == errno.EADDRINUSE else ConfigError
        raise kind_of(
            f"cannot listen on port {port} on {host}: {(error.strerror or str(error)).lower()}",
            hint=f"stop the program that uses it, or choose another: --port {port + 1}",
        ) from None
    listening.listen(BACKLOG)
    return listening


def url_of(host: str, listening: socket.socket) -> str:
    """The URL by which this machine reaches the socket."""
    host = _LOOPBACK.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"
