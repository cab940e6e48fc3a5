"""Measures a chain of nodes on DBOS, which also stores its workflows in PostgreSQL, on the same server.

DBOS is not a dependency: it is installed once, in a virtual environment in the user's cache folder.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from tools.servers.ports_and_pids import held

from bellringer.bench import database
from bellringer.errors import Unavailable

VERSION: Final = "3.3.0"
SCRIPT: Final = Path(__file__).with_name("peer_dbos.py")
INSTALL_LIMIT: Final = 300.0  # seconds for each of the two steps, on a slow network
MEASURE_LIMIT: Final = 600.0


async def measure_peer(dsn: str, chain: int) -> dict[str, Any]:
    """Returns the hops of a chain of this length; if DBOS cannot run, `peer` is null and `why` holds the reason."""
    try:
        python = await asyncio.to_thread(install, cache())
        made = await database.create_empty(dsn)
        try:
            return await asyncio.to_thread(_measure, python, made, chain)
        finally:
            await database.drop(dsn, made)
    except Unavailable as error:
        return {"peer": None, "why": error.message}


def cache() -> Path:
    """Returns the folder of the environment, which depends on the versions of DBOS and Python."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "bellringer" / f"dbos-{VERSION}-python{sys.version_info.major}.{sys.version_info.minor}"


def install(folder: Path) -> Path:
    """Returns the Python interpreter of the environment; the first call installs it, concurrent calls wait."""
    python, whole = folder / "venv" / "bin" / "python", folder / "whole"
    try:
        with held(folder):
            if not (whole.exists() and python.exists()):
                whole.unlink(missing_ok=True)
                _run([sys.executable, "-I", "-m", "venv", "--clear", str(folder / "venv")], INSTALL_LIMIT)
                quiet = ("--quiet", "--disable-pip-version-check", "--no-input")
                _run([str(python), "-I", "-m", "pip", "install", *quiet, f"dbos=={VERSION}"], INSTALL_LIMIT)
                whole.touch()  # last, so that an interrupted installation is repeated
    except OSError as error:
        raise Unavailable(f"DBOS {VERSION} could not be installed in {folder}: {error.strerror}") from None
    return python


def _measure(python: Path, dsn: str, chain: int) -> dict[str, Any]:
    address = urlunsplit(urlsplit(dsn)._replace(scheme="postgresql"))  # DBOS does not accept `postgres://`
    # The address may hold a password, and process arguments are public.
    said = _run([str(python), "-I", str(SCRIPT), str(chain)], MEASURE_LIMIT, PEER_DSN=address)
    try:
        figures: dict[str, Any] = json.loads(said.strip().rpartition("\n")[2])
    except ValueError:
        raise Unavailable(f"DBOS {VERSION} printed no figures") from None
    return figures


def _run(command: list[str], limit: float, **settings: str) -> str:
    """Returns the output of the command; raises Unavailable if it fails or times out."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("DBOS")}
    environment = inherited | settings
    try:
        done = subprocess.run(  # noqa: S603 - our own command
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment,
            text=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"DBOS {VERSION}: not done after {limit:.0f} s") from None
    if done.returncode:
        words = " ".join(done.stderr.strip().splitlines()[-3:]) or f"exit code {done.returncode}"
        raise Unavailable(f"DBOS {VERSION}: {words}")
    return done.stdout
