"""The directory where `bellringer dev` and `cluster up` keep their state, and where other commands find them."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from bellringer.egress.secret_box import generate_secret_key
from bellringer.errors import ConfigError, Conflict

DEV_FOLDER: Final = ".bellringer"
CLUSTER_FOLDER: Final = ".cluster"
STATE_FILE: Final = "dev.json"
KEY_FILE: Final = "secret.key"
LOCK_FILE: Final = "lock"
MAX_DEV_FOLDERS: Final = 20  # in one parent directory


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterProcess:
    """One process of a cluster: its name, its address and its pid."""

    name: str
    where: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DevState:
    """A running `bellringer dev`, or a cluster with its processes."""

    dsn: str
    url: str
    pid: int
    parts: tuple[ClusterProcess, ...] = ()


def find(start: Path, *, instead: str) -> DevState | None:
    """Returns the instance that runs in this directory, or in the nearest parent directory that has one.

    A stopped instance is never passed over: a command meant for it must not reach the instance of another directory.

    Args:
        start: where the search begins.
        instead: what the hint suggests to a caller who does not want to start the stopped instance.

    Raises:
        ConfigError: the nearest instance is not running.
    """
    for folder in (start, *start.parents):
        others = sorted(folder.glob(f"{DEV_FOLDER}-*"), key=lambda path: (len(path.name), path.name))
        candidates = [folder / DEV_FOLDER, *others, folder / CLUSTER_FOLDER]
        running = (state for state in map(read, candidates) if state is not None and lives(state.pid))
        if found := next(running, None):
            return found
        if stopped := next((candidate for candidate in candidates if _was_used(candidate)), None):
            raise _stopped(stopped, start, instead)
    return None


def _was_used(folder: Path) -> bool:
    """Whether an instance has kept its state in the folder: each of them locks a file and leaves it behind."""
    return any((folder / name).is_file() for name in (LOCK_FILE, STATE_FILE))


def _stopped(state_folder: Path, start: Path, instead: str) -> ConfigError:
    folder = state_folder.parent
    where = "this folder" if folder == start else f"the folder {folder}"
    what, command = ("cluster", "cluster up") if state_folder.name == CLUSTER_FOLDER else ("dev server", "dev")
    there = "" if folder == start else " there"
    hint = f"start it{there} with `bellringer {command}`, or {instead}"
    return ConfigError(f"the {what} of {where} is not running", hint=hint)


def claim(base: Path, *, exact: bool) -> tuple[Path, int]:
    """Takes a folder for a `bellringer dev`, for as long as the returned descriptor is open.

    Args:
        base: the folder that is wanted.
        exact: raise Conflict if another one runs there; otherwise `base-2`, `base-3` … are tried.
    """
    for number in range(1, MAX_DEV_FOLDERS + 1):
        folder = base if number == 1 else base.with_name(f"{base.name}-{number}")
        prepare(folder)
        lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            if exact:
                who = read(folder)
                hint = f"stop that one first{f': kill -INT {who.pid}' if who else ''}; or choose another --folder"
                raise Conflict(f"a `bellringer dev` runs in {shown(folder)} already", hint=hint) from None
        else:
            return folder, lock
    raise Conflict(f"{MAX_DEV_FOLDERS} of `bellringer dev` run beside {shown(base)} already", hint="stop some of them")


def read(folder: Path) -> DevState | None:
    """Reads the state file. The instance may no longer be running."""
    try:
        said = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
        parts = tuple(ClusterProcess(**part) for part in said.get("parts", ()))
        return DevState(dsn=str(said["dsn"]), url=str(said["url"]), pid=int(said["pid"]), parts=parts)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(folder: Path, place: DevState) -> None:
    """Writes the state file atomically, readable only by the owner: the DSN may contain a password."""
    beside = folder / f"{STATE_FILE}.new"
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(asdict(place), file)
    beside.replace(folder / STATE_FILE)


def remove(folder: Path) -> None:
    with suppress(OSError):
        (folder / STATE_FILE).unlink()


def prepare(folder: Path) -> None:
    """Make the folder, unseen by git."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError), (folder / ".gitignore").open("x", encoding="utf-8") as file:
            file.write("*\n")
    except OSError as error:
        raise ConfigError(
            f"cannot use the folder {folder}: {error.strerror}", hint="choose one that this user can write to"
        ) from None


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Have the folder for ourselves; the kernel lets go of it however we end."""
    prepare(folder)
    lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        who = read(folder)
        pid = f" (pid {who.pid})" if who else ""
        hint = f"stop that one first{f': kill -INT {who.pid}' if who else ''}; or choose another --folder"
        raise Conflict(f"a cluster runs in {shown(folder)} already{pid}", hint=hint) from None
    finally:
        os.close(lock)


def is_unused(folder: Path) -> bool:
    """Whether the folder holds nothing but the files that prepare it."""
    ours = {".gitignore": b"*\n", LOCK_FILE: b""}
    return all(ours.get(entry.name) == (entry.read_bytes() if entry.is_file() else None) for entry in folder.iterdir())


def secret_key(folder: Path) -> str:
    """The key that seals secrets here, made when it is first needed; only this user may read it."""
    path = folder / KEY_FILE
    with suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(generate_secret_key("dev"))
    return path.read_text(encoding="utf-8").strip()


def egress(folder: Path, *, own_keys: bool, own_networks: bool) -> dict[str, str]:
    """A developer can keep secrets and call servers of this machine, unless the settings say otherwise."""
    settings = {}
    if not own_keys:
        settings["BELLRINGER_SECRET_KEYS"] = secret_key(folder)
    if not own_networks:
        settings["BELLRINGER_EGRESS_ALLOW"] = "127.0.0.0/8,::1/128"
    return settings


def shown(path: Path) -> str:
    """A path as short as it can be said from here."""
    try:
        return f"./{path.resolve().relative_to(Path.cwd())}"
    except ValueError:
        return str(path)


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True
