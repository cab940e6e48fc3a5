"""Finds the etcd program: the installed one, or Debian's package unpacked into a folder."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from bellringer.errors import ConfigError
from tools.servers.listener import version_of
from tools.servers.ports_and_pids import held

PACKAGES: Final = ("etcd-server", "etcd-client")
GET_LIMIT_SECONDS: Final = 300.0
# The maintainers advise against these versions: data may become inconsistent after a crash.
UNSOUND_FROM: Final = (3, 5, 0)
SOUND_FROM: Final = (3, 5, 6)
HINT: Final = "install etcd 3.4, or 3.5.6 or newer (Debian: apt-get install etcd-server)"


def get(folder: Path) -> Path:
    """Returns the path of the program. If none is installed, the first call unpacks Debian's package into `folder`.

    Unpacking needs no root and starts no system service, unlike an installation.
    """
    found, refused = shutil.which("etcd"), ""
    if found is not None:
        version = version_of_program(Path(found))
        if is_sound(version):
            return Path(found)
        refused = f"{found} is {version}, which may lose or mix up data; "
    program = folder / "debian" / "usr" / "bin" / "etcd"
    if not program.exists():
        with held(folder):
            if not program.exists():
                _unpack(folder, refused)
    if not is_sound(version := version_of_program(program)):
        raise ConfigError(f"{refused}the package etcd-server of this machine is {version}", hint=HINT)
    return program


def version_of_program(program: Path) -> str:
    return version_of(program, r"Version: ([\d.]+)")


def is_sound(version: str) -> bool:
    """Whether the maintainers of etcd recommend this version."""
    number = tuple(int(part) for part in version.split("."))
    return not UNSOUND_FROM <= number < SOUND_FROM


def _unpack(folder: Path, refused: str) -> None:
    """Unpack into a temporary folder and rename it at the end, so that a failed attempt leaves no partial result."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise ConfigError(f"{refused}no etcd was found", hint=HINT)
    staging = folder / "debian.new"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    said = _run(staging, "apt-get", "download", *PACKAGES)
    if said and os.geteuid() == 0:  # a new machine has no package lists yet
        _run(staging, "apt-get", "update")
        said = _run(staging, "apt-get", "download", *PACKAGES)
    for package in () if said else sorted(staging.glob("*.deb")):
        said = said or _run(staging, "dpkg-deb", "-x", package.name, ".")
        package.unlink()
    if said or not (staging / "usr" / "bin" / "etcd").exists():
        raise ConfigError(f"{refused}no etcd was found, and its package could not be downloaded: {said}", hint=HINT)
    staging.rename(folder / "debian")


def _run(folder: Path, *command: str) -> str:
    """Returns the last line of a failed command's output; an empty string on success."""
    try:
        done = subprocess.run(  # noqa: S603
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=GET_LIMIT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"`{command[0]}` was not done after {GET_LIMIT_SECONDS:.0f} s"
    if done.returncode == 0:
        return ""
    return (done.stderr or done.stdout).strip().rpartition("\n")[2] or f"`{command[0]}` failed"
