"""Starts, stops and lists the servers of a folder, by default `.services`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from bellringer.errors import InvalidInput
from tools.servers import ports_and_pids
from tools.servers.etcd import Etcd
from tools.servers.kafka import Kafka
from tools.servers.postgres import Postgres
from tools.servers.redis import Redis
from tools.servers.server import Server

FOLDER: Final = Path(".services")
SERVERS: Final[Mapping[str, type[Server]]] = MappingProxyType(
    {kind.name: kind for kind in (Postgres, Redis, Etcd, Kafka)}
)


def choose(names: Iterable[str]) -> list[str]:
    """Returns these server names in start order; all of them if none is given."""
    wanted = set(names)
    if unknown := wanted - set(SERVERS):
        raise InvalidInput(f"there is no server {', '.join(sorted(unknown))!r}", hint=f"there are {', '.join(SERVERS)}")
    return [name for name in SERVERS if not wanted or name in wanted]


def up(name: str, folder: Path = FOLDER) -> Server:
    """Start this server on its former ports, unless it runs already. It keeps running after this process ends."""
    with ports_and_pids.held(folder):
        server = _server(name, folder)
        server.start()
    return server


def down(name: str, folder: Path = FOLDER) -> bool:
    """Stop this server and keep its data and programs; returns whether it was running."""
    if ports_and_pids.read(folder / name) is None:
        return False
    with ports_and_pids.held(folder):
        server = _server(name, folder)
        ran = server.lives
        server.stop()
    return ran


def look(name: str, folder: Path = FOLDER) -> ports_and_pids.ServerState | None:
    """Returns the stored state of this server, or None if it has never run here."""
    return ports_and_pids.read(folder / name)


def _server(name: str, folder: Path) -> Server:
    return SERVERS[name](folder / name, tied=False)
