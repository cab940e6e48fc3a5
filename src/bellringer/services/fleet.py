"""All servers of a folder, by default `.services`: brought up, looked at and taken down together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from bellringer.errors import InvalidInput
from bellringer.services import places
from bellringer.services.etcd import Etcd
from bellringer.services.kafka import Kafka
from bellringer.services.postgres import Postgres
from bellringer.services.redis import Redis
from bellringer.services.server import Server

FOLDER: Final = Path(".services")
SERVERS: Final[Mapping[str, type[Server]]] = MappingProxyType(
    {kind.name: kind for kind in (Postgres, Redis, Etcd, Kafka)}
)


def choose(names: Iterable[str]) -> list[str]:
    """These servers, in our order; all of them if none is named."""
    wanted = set(names)
    if unknown := wanted - set(SERVERS):
        raise InvalidInput(f"there is no server {', '.join(sorted(unknown))!r}", hint=f"there are {', '.join(SERVERS)}")
    return [name for name in SERVERS if not wanted or name in wanted]


def up(name: str, folder: Path = FOLDER) -> Server:
    """This server, running: one that runs is kept, else it starts on its former ports. It outlives us."""
    with places.held(folder):
        server = _server(name, folder)
        server.start()
    return server


def down(name: str, folder: Path = FOLDER) -> bool:
    """Stop this server, and keep its data and programs; answers whether it ran."""
    if places.read(folder / name) is None:
        return False
    with places.held(folder):
        server = _server(name, folder)
        ran = server.lives
        server.stop()
    return ran


def look(name: str, folder: Path = FOLDER) -> places.State | None:
    """What is known of this server, if it has ever run here."""
    return places.read(folder / name)


def addresses(start: Path | None = None) -> dict[str, str] | None:
    """The addresses of the servers that run in `.services` of this folder, or else of the nearest one above it."""
    here = (start or Path.cwd()).absolute()
    for folder in (here, *here.parents):
        states = {name: look(name, folder / FOLDER) for name in SERVERS}
        if running := {name: state.address for name, state in states.items() if state and state.lives}:
            return running
    return None


def _server(name: str, folder: Path) -> Server:
    return SERVERS[name](folder / name, tied=False)
