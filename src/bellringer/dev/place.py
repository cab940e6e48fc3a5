"""Where a `bellringer dev` keeps its things, and how other commands in the same folder find it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from bellringer.egress.secrets import make_key
from bellringer.errors import ConfigError

FOLDER: Final = ".bellringer"
FILE: Final = "dev.json"
KEY_FILE: Final = "secret.key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A running `bellringer dev`."""

    dsn: str
    url: str
    pid: int


def find(start: Path) -> Place | None:
    """The one that runs in this folder, or else in the nearest one above it."""
    for folder in (start, *start.parents):
        place = read(folder / FOLDER)
        if place is not None and _lives(place.pid):
            return place
    return None


def read(folder: Path) -> Place | None:
    """What the file in this folder says, whether or not it is still true."""
    try:
        said = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return Place(dsn=str(said["dsn"]), url=str(said["url"]), pid=int(said["pid"]))
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


def secret_key(folder: Path) -> str:
    """The key that seals secrets here, made when it is first needed; only this user may read it."""
    path = folder / KEY_FILE
    with suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(make_key("dev"))
    return path.read_text(encoding="utf-8").strip()


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


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True
