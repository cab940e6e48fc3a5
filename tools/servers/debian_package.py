"""Programs of Debian packages, unpacked into a folder. Unpacking needs no root and starts no system service, unlike an
installation.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bellringer.errors import ConfigError
from tools.servers.ports_and_pids import held

TIMEOUT_SECONDS: Final = 300.0
_FOLDERS: Final = ("usr/bin", "usr/sbin", "bin", "sbin")


@dataclass(frozen=True, slots=True)
class UnpackedProgram:
    """A program, and the environment in which it finds the libraries that were unpacked beside it."""

    path: Path
    environ: Mapping[str, str]


def find_program(name: str, packages: tuple[str, ...], folder: Path) -> UnpackedProgram:
    """Returns the installed program, or that of Debian's packages: the first call unpacks them into `folder`.

    `packages` begins with the one that holds the program; the others are libraries that a small system may lack.
    """
    if installed := shutil.which(name):
        return UnpackedProgram(Path(installed), {})
    root = folder / "debian"
    if _program_in(root, name) is None:
        with held(folder):
            if _program_in(root, name) is None:
                unpack(folder, packages)
    found = _program_in(root, name)
    if found is None:
        raise ConfigError(f"the package {packages[0]} has no program {name}", hint=_hint(packages))
    libraries = sorted({str(file.parent) for file in root.rglob("lib*.so*")})
    return UnpackedProgram(found, {"LD_LIBRARY_PATH": ":".join(libraries)} if libraries else {})


def unpack(folder: Path, packages: tuple[str, ...]) -> None:
    """Downloads packages and unpacks them into `folder`/debian. A failed attempt leaves no partial result."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise ConfigError(f"{packages[0]} is not installed", hint=_hint(packages))
    staging = folder / "debian.new"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    error = _run(staging, "apt-get", "download", *packages)
    if error and os.geteuid() == 0:  # a new machine has no package lists yet
        _run(staging, "apt-get", "update")
        error = _run(staging, "apt-get", "download", *packages)
    for package in () if error else sorted(staging.glob("*.deb")):
        error = error or _run(staging, "dpkg-deb", "-x", package.name, ".")
        package.unlink()
    if error:
        raise ConfigError(
            f"{packages[0]} is not installed, and its package could not be downloaded: {error}", hint=_hint(packages)
        )
    shutil.rmtree(folder / "debian", ignore_errors=True)
    staging.rename(folder / "debian")


def _program_in(root: Path, name: str) -> Path | None:
    return next((root / place / name for place in _FOLDERS if (root / place / name).exists()), None)


def _hint(packages: tuple[str, ...]) -> str:
    return f"install it (Debian: apt-get install {packages[0]})"


def _run(folder: Path, *command: str) -> str:
    """Returns the last line of a failed command's output; an empty string on success."""
    try:
        done = subprocess.run(  # noqa: S603
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"`{command[0]}` was not done after {TIMEOUT_SECONDS:.0f} s"
    if done.returncode == 0:
        return ""
    return (done.stderr or done.stdout).strip().rpartition("\n")[2] or f"`{command[0]}` failed"
