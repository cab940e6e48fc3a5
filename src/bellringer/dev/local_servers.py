"""Finds servers for the optional backends: by their configured address, or those that `make services` started."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from bellringer.dev import state_dir
from bellringer.errors import ConfigError

FOLDER: Final = ".services"  # `make services` writes <folder>/<server>/state.json
SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {"kafka": "BELLRINGER_DISPATCH", "etcd": "BELLRINGER_COORDINATION", "redis": "BELLRINGER_CACHE"}
)


def find_server(name: str, configured: str | None) -> str:
    """Returns the address of this server.

    Args:
        name: kafka, etcd or redis.
        configured: the value of its setting; used if it is an address of this kind of server.

    Raises:
        ConfigError: no address is configured, and none of `make services` runs in this folder or one above it.
    """
    if configured and configured.startswith(name):
        return configured
    here = Path.cwd()
    for folder in (here, *here.parents):
        if address := _running(folder / FOLDER / name):
            return address
    hint = f"set {SETTINGS[name]} to the address of a server, or run `make services` in a checkout of Bellringer"
    raise ConfigError(f"no {name} server is configured or running", hint=hint)


def _running(folder: Path) -> str | None:
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        address, pid = str(state["address"]), int(state["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return address if pid and state_dir.lives(pid) else None
