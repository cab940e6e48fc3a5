"""The peer: the same chain on DBOS, which keeps its workflows in PostgreSQL as we do, and here on the same server.

It is no dependency of ours: it is installed once, in a virtual environment under the user's cache folder.
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

from bellringer.bench import database
from bellringer.errors import Unavailable
from bellringer.services.places import held

VERSION: Final = "3.3.0"
SCRIPT: Final = Path(__file__).with_name("peer_dbos.py")
INSTALL_LIMIT: Final = 300.0  # seconds for each of the two steps, on a slow network
MEASURE_LIMIT: Final = 600.0


async def peer(dsn: str, chain: int) -> dict[str, Any]:
    """The hops of a chain of this length on this server; where there are none, `peer` is null and `why` says why."""
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
    """Where the environment is kept, by the versions of the peer and of Python: a change of either makes a new one."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "bellringer" / f"dbos-{VERSION}-python{sys.version_info.major}.{sys.version_info.minor}"


def install(folder: Path) -> Path:
    """The interpreter that knows the peer; the first call installs it, and the others wait for it."""
    python, whole = folder / "venv" / "bin" / "python", folder / "whole"
    try:
        with held(folder):
            if not (whole.exists() and python.exists()):
                whole.unlink(missing_ok=True)
                _run([sys.executable, "-I", "-m", "venv", "--clear", str(folder / "venv")], INSTALL_LIMIT)
                quiet = ("--quiet", "--disable-pip-version-check", "--no-input")
                _run([str(python), "-I", "-m", "pip", "install", *quiet, f"dbos=={VERSION}"], INSTALL_LIMIT)
                whole.touch()  # last: one that was cut off is made anew
    except OSError as error:
        raise Unavailable(f"DBOS {VERSION} could not be installed in {folder}: {error.strerror}") from None
    return python


def _measure(python: Path, dsn: str, chain: int) -> dict[str, Any]:
    address = urlunsplit(urlsplit(dsn)._replace(scheme="postgresql"))  # it does not know the short form
    # The address may hold a password, and everyone may read the arguments of a process.
    said = _run([str(python), "-I", str(SCRIPT), str(chain)], MEASURE_LIMIT, PEER_DSN=address)
    try:
        figures: dict[str, Any] = json.loads(said.strip().rpartition("\n")[2])
    except ValueError:
        raise Unavailable(f"DBOS {VERSION} told no figures") from None
    return figures


def _run(command: list[str], limit: float, **settings: str) -> str:
    """What it prints; it is killed when its time is over."""
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
