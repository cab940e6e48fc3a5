"""Starts the PostgreSQL server of the distribution with its default settings, in a temporary folder."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bellringer.backends.embedded_postgres.server import EmbeddedPostgres
from bellringer.errors import ConfigError
from bellringer.testing.postgres import TestServer, find_memory_folder, prepare_server

GIVEN: Final = "BELLRINGER_STOCK_PG_BIN"  # other programs, for a look at another version by hand
INSTALLED: Final = Path("/usr/lib/postgresql")
OWNER: Final = "plain"

# Nothing outlives the tests, so nothing is synced. All other settings are as shipped.
SETTINGS: Final = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "300",
    "fsync": "off",
}


def find_programs() -> Path:
    """The `bin` folder of the newest installed server that has the just-in-time compiler."""
    if given := os.environ.get(GIVEN):
        return Path(given)
    versions = [folder for folder in INSTALLED.glob("*") if re.fullmatch(r"\d+", folder.name)]
    for version in sorted(versions, key=lambda folder: -int(folder.name)):
        if os.access(version / "bin" / "postgres", os.X_OK) and (version / "lib" / "llvmjit.so").exists():
            return version / "bin"
    raise ConfigError(
        f"{INSTALLED} holds no server with LLVM", hint="Debian: apt-get install postgresql (and postgresql-N-jit)"
    )


@contextmanager
def serve_stock(programs: Path) -> Iterator[TestServer]:
    """A server whose databases belong to a role without any other privilege."""
    folder = Path(tempfile.mkdtemp(prefix="bellringer-stock-", dir=find_memory_folder()))
    try:
        with (
            EmbeddedPostgres(folder, settings=SETTINGS, binaries=programs, defaults={}) as running,
            prepare_server(running.dsn, owner=OWNER) as server,
        ):
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)
