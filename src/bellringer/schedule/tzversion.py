"""Which rules of the time zones this process computes by."""

from __future__ import annotations

import re
import zoneinfo
from functools import cache
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Final, NamedTuple

_VERSION: Final = re.compile(r"(?:# version )?(\S{1,40})\s")
_IANA: Final = re.compile(r"[0-9]{4}[a-z]{1,2}")
_FILES: Final = ("tzdata.zi", "+VERSION", "version")  # where distributions say it
# Zones whose rules have changed often: a folder without a version is told by them.
_SAMPLE: Final = (
    "Africa/Cairo",
    "Africa/Casablanca",
    "America/Mexico_City",
    "America/New_York",
    "America/Sao_Paulo",
    "America/Santiago",
    "Asia/Amman",
    "Asia/Beirut",
    "Asia/Gaza",
    "Asia/Tehran",
    "Europe/Istanbul",
    "Europe/Kyiv",
    "Europe/Moscow",
    "Europe/Paris",
    "Pacific/Apia",
)


class Rules(NamedTuple):
    """A version of the rules, and the number by which the database knows it."""

    tz_id: int
    version: str

    def newer_than(self, other: Rules) -> bool:
        """By the name where both have one of IANA's, such as 2026a; else by which was seen first."""
        if _IANA.fullmatch(self.version) and _IANA.fullmatch(other.version):
            return self.version > other.version
        return self.tz_id > other.tz_id


@cache
def tz_version() -> str:
    """The version that this process uses. Kept, because zoneinfo too keeps what it has read: rules that are installed
    later count from the next start on.
    """
    return installed()


def installed() -> str:
    """The version of the rules that a process would find if it started now: where zoneinfo looks, in that order."""
    for folder in map(Path, zoneinfo.TZPATH):
        if any((folder / name).is_file() for name in _SAMPLE):
            return _said_in(folder) or _digest(folder)
    try:
        return str(import_module("tzdata").IANA_VERSION)
    except ImportError:
        return "unknown"


def _said_in(folder: Path) -> str | None:
    for name in _FILES:
        try:
            with (folder / name).open(encoding="ascii", errors="replace") as file:
                found = _VERSION.match(file.readline(100).rstrip() + "\n")
        except OSError:
            continue
        if found and found[1] != "unknown":
            return found[1]
    return None


def _digest(folder: Path) -> str:
    made = sha256()
    for name in _SAMPLE:
        file = folder / name
        made.update(name.encode() + (file.read_bytes() if file.is_file() else b""))
    return f"sha256:{made.hexdigest()[:24]}"
