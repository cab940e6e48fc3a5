"""Finds the etcd program: the installed one, or Debian's package unpacked into a folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from bellringer.errors import ConfigError
from tools.servers.debian_package import unpack
from tools.servers.listener import version_of
from tools.servers.ports_and_pids import held

PACKAGES: Final = ("etcd-server", "etcd-client")
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
    try:
        unpack(folder, PACKAGES)
    except ConfigError as error:
        raise ConfigError(f"{refused}no etcd was found: {error.message}", hint=HINT) from error
