"""Where `bellringer dev` and `bellringer cluster up` keep their things, and how other commands find them from there."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from bellringer.egress.secrets import make_key
from bellringer.errors import ConfigError, Conflict

FOLDER: Final = ".bellringer"
CLUSTER: Final = ".cluster"
FILE: Final = "dev.json"
KEY_FILE: Final = "secret.key"
LOCK: Final = "lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One process of a cluster: what it is called, how it is reached, and its number."""

    name: str
    where: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A running `bellringer dev`, or a cluster with its parts."""

    dsn: str
    url: str
    pid: int
    parts: tuple[Part, ...] = ()


def find(start: Path) -> Place | None:
    """The one that runs in this folder, or else in the nearest one above it."""
    for folder in (start, *start.parents):
        for name in (FOLDER, CLUSTER):
            place = read(folder / name)
            if place is not None and lives(place.pid):
                return place
    return None


def read(folder: Path) -> Place | None:
    """What the file in this folder says, whether or not it is still true."""
    try:
        said = json.loads((folder / FILE).read_text(encoding="utf-8"))
        parts = tuple(Part(**part) for part in said.get("parts", ()))
        return Place(dsn=str(said["dsn"]), url=str(said["url"]), pid=int(said["pid"]), parts=parts)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(folder: Path, place: Place) -> None:
    """Say where we are, all at once and to nobody else: the DSN may hold a password."""
    beside = folder / f"{FILE}.new"
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(asdict(place), file)
    beside.replace(folder / FILE)


def remove(folder: Path) -> None:
    with suppress(OSError):
        (folder / FILE).unlink()


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
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
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
    """Whether nothing is in it but what prepares it."""
    ours = {".gitignore": b"*\n", LOCK: b""}
    return all(ours.get(entry.name) == (entry.read_bytes() if entry.is_file() else None) for entry in folder.iterdir())


def secret_key(folder: Path) -> str:
    """The key that seals secrets here, made when it is first needed; only this user may read it."""
    path = folder / KEY_FILE
    with suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(make_key("dev"))
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


def empty_metrics(folder: Path) -> Path:
    """The place where all our processes count, without what earlier ones left there."""
    metrics = folder / "metrics"
    metrics.mkdir(exist_ok=True)
    for left in metrics.glob("*.db"):
        left.unlink(missing_ok=True)
    return metrics


def bury(metrics: Path, pid: int) -> None:
    """Remove the gauges of a process that is gone; its counters go on counting."""
    for left in _gauges(metrics, pid):
        left.unlink(missing_ok=True)


def _gauges(metrics: Path, pid: int) -> Iterator[Path]:
    yield from metrics.glob(f"gauge_live*_{pid}.db")


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True
