"""Time zones: the names that a schedule may use, the offset changes of a zone, and the version of the tz database."""

from __future__ import annotations

import re
import zoneinfo
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from functools import cache, lru_cache
from hashlib import sha256
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from bellringer.errors import InvalidSchedule
from bellringer.schedule.instants import END, EPOCH, floor_seconds, from_seconds

# Files that zoneinfo lists although they are not usable zones: the machine's setting, placeholders, leap-second copies.
_NOT_ZONES: Final = frozenset({"localtime", "posixrules", "Factory"})
_NOT_ZONE_FOLDERS: Final = ("posix/", "right/", "SystemV/")
_MAX_NAME_LENGTH: Final = 64
_OFFSET: Final = re.compile("(?:UTC|GMT|Z)? ?(?P<sign>[+-])(?P<hours>[0-9]{1,2})(?::?(?P<minutes>[0-9]{2}))?")
_ABBREVIATION: Final = re.compile("[A-Z]{2,5}")

_BLOCK_SECONDS: Final = 366 * 86_400
# No zone has changed its offset twice within three days (Africa/Freetown did within four, in 1939), so probing every
# three days finds every change.
PROBE_SECONDS: Final = 3 * 86_400
MIN_INSTANT: Final = floor_seconds(EPOCH.replace(year=2))
MAX_INSTANT: Final = floor_seconds(END) - 1
_SECOND: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetPeriod:
    """A period of constant UTC offset, from `start` up to `end` (seconds since 1970).

    `shown_before` is the latest wall-clock time that was shown before the period: if it is later than `start + offset`,
    the period begins with repeated time (a fold); if it is earlier, time was skipped (a gap). `shown_after` is the
    earliest wall-clock time that is shown after the period: if it is earlier than `end + offset`, the end of the period
    will be repeated.
    """

    start: int
    end: int
    offset: int
    shown_before: int
    shown_after: int


@cache
def zone_names() -> frozenset[str]:
    """Returns the names of all time zones that a schedule may use."""
    return frozenset(
        name for name in available_timezones() if name not in _NOT_ZONES and not name.startswith(_NOT_ZONE_FOLDERS)
    )


def check_zone(name: str) -> str:
    """Returns the name if it is exactly a known time zone. Raises InvalidSchedule."""
    if isinstance(name, str) and name in zone_names():
        return name
    shown = ascii(
        name if isinstance(name, str) and len(name) <= _MAX_NAME_LENGTH else str(name)[:_MAX_NAME_LENGTH] + "..."
    )
    message = f"unknown time zone {shown}"
    hint = _hint_for_zone(name) if isinstance(name, str) and len(name) <= _MAX_NAME_LENGTH else ""
    hint = hint or "use an IANA name, for example Europe/Paris or UTC"
    raise InvalidSchedule(message, code="timezone_unknown", pointer="/tz", hint=hint)


def _hint_for_zone(name: str) -> str:
    if offset := _OFFSET.fullmatch(name.upper()):
        return _hint_for_offset(int(offset["hours"]), int(offset["minutes"] or 0), ahead=offset["sign"] == "+")
    near = _nearest_zone(name)
    if near is not None and near.casefold() != name.casefold() and _ABBREVIATION.fullmatch(name):
        near = None  # EST is the nearest name to CEST, but not what the user means
    if near is None and _ABBREVIATION.fullmatch(name):
        return "abbreviations are ambiguous: name a place, for example Europe/Berlin"
    return f"did you mean {near}?" if near is not None else ""


def _hint_for_offset(hours: int, minutes: int, *, ahead: bool) -> str:
    """Returns a hint for a UTC offset. Etc/GMT-2 is two hours ahead of UTC: these names use the sign of POSIX."""
    zone = f"Etc/GMT{'-' if ahead else '+'}{hours}"
    if not hours and not minutes:
        return "for an offset of 0 use UTC"
    place = "name a place, for example Europe/Paris"
    if minutes or zone not in zone_names():
        return place
    distance = f"{hours} hour{'s' * (hours > 1)} {'ahead of' if ahead else 'behind'} UTC"
    return f"{place}; for {distance} all year use {zone}"


def _nearest_zone(name: str) -> str | None:
    folded = name.casefold().replace(" ", "_")
    by_folded = {known.casefold(): known for known in sorted(zone_names())}
    by_city = {known.rpartition("/")[2]: name for known, name in by_folded.items()}
    for table in (by_folded, by_city):
        if folded in table:
            return table[folded]
    for table in (by_folded, by_city):
        if near := get_close_matches(folded, table, n=1, cutoff=0.8):
            return table[near[0]]
    return None


def period_at(zone: str, instant: int) -> OffsetPeriod | None:
    """Returns the period that contains an instant, or None outside the years that can be computed."""
    if not MIN_INSTANT <= instant <= MAX_INSTANT:
        return None
    for period in _periods_of_block(zone, instant // _BLOCK_SECONDS):
        if instant < period.end:
            return period
    return None


@lru_cache(maxsize=8192)
def _periods_of_block(name: str, block: int) -> tuple[OffsetPeriod, ...]:
    """Returns the periods of one block of 366 days. Blocks bound each search and make the results cacheable. The
    boundary of a block is not an offset change, so it neither skips nor repeats time.
    """
    zone = ZoneInfo(name)
    begin, end = max(block * _BLOCK_SECONDS, MIN_INSTANT), min((block + 1) * _BLOCK_SECONDS, MAX_INSTANT + 1)
    pieces = _raw_periods(zone, begin - PROBE_SECONDS, end + PROBE_SECONDS)
    shown_before = accumulate((until + offset for _, until, offset in pieces), max, initial=begin - 2 * PROBE_SECONDS)
    shown_after = accumulate(
        (since + offset for since, _, offset in reversed(pieces)), min, initial=end + 2 * PROBE_SECONDS
    )
    return tuple(
        OffsetPeriod(
            start=max(since, begin),
            end=min(until, end),
            offset=offset,
            shown_before=before if since >= begin else max(before, begin + offset),
            shown_after=after if until <= end else min(after, end + offset),
        )
        for (since, until, offset), before, after in zip(pieces, shown_before, [*shown_after][-2::-1], strict=False)
        if until > begin and since < end
    )


def _raw_periods(zone: ZoneInfo, start: int, end: int) -> list[tuple[int, int, int]]:
    """Returns (start, end, offset) of each period."""
    changes = [(start, _offset(zone, start)), *_offset_changes(zone, start, end)]
    ends = [change for change, _ in changes[1:]] + [end]
    return [(since, until, offset) for (since, offset), until in zip(changes, ends, strict=True)]


def _offset_changes(zone: ZoneInfo, start: int, end: int) -> list[tuple[int, int]]:
    """Returns (instant, new offset) of each change after `start` and before `end`."""
    found = []
    low, before = start, _offset(zone, start)
    while low < end - 1:
        high = min(low + PROBE_SECONDS, end - 1)
        after = _offset(zone, high)
        if after != before:
            found.append((_first_with_offset(zone, low, high, after), after))
        low, before = high, after
    return found


def _first_with_offset(zone: ZoneInfo, low: int, high: int, offset: int) -> int:
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(zone, middle) == offset:
            high = middle
        else:
            low = middle
    return high


def _offset(zone: ZoneInfo, instant: int) -> int:
    offset = from_seconds(instant).astimezone(zone).utcoffset()
    assert offset is not None, "a datetime with a ZoneInfo has an offset"
    return offset // _SECOND


_VERSION: Final = re.compile(r"(?:# version )?(\S{1,40})\s")
_IANA: Final = re.compile(r"[0-9]{4}[a-z]{1,2}")
_VERSION_FILES: Final = ("tzdata.zi", "+VERSION", "version")  # where distributions store the version
# Zones whose rules change often: a folder without a version file is identified by a digest of these.
_SAMPLE_ZONES: Final = (
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


class TzRules(NamedTuple):
    """A version of the tz database, and its id in our database."""

    tz_id: int
    version: str

    def newer_than(self, other: TzRules) -> bool:
        """Compares the IANA versions (such as 2026a) if both have one, else the ids: a larger id was seen later."""
        if _IANA.fullmatch(self.version) and _IANA.fullmatch(other.version):
            return self.version > other.version
        return self.tz_id > other.tz_id


@cache
def tz_version() -> str:
    """Returns the version that this process uses. Cached, because zoneinfo caches zones too: rules that are installed
    later take effect when the process restarts.
    """
    return installed_tz_version()


def installed_tz_version() -> str:
    """Returns the version that a process started now would use. Searches the folders of zoneinfo in their order."""
    for folder in map(Path, zoneinfo.TZPATH):
        if any((folder / name).is_file() for name in _SAMPLE_ZONES):
            return _version_file(folder) or _digest_of_sample(folder)
    try:
        return str(import_module("tzdata").IANA_VERSION)
    except ImportError:
        return "unknown"


def _version_file(folder: Path) -> str | None:
    for name in _VERSION_FILES:
        try:
            with (folder / name).open(encoding="ascii", errors="replace") as file:
                found = _VERSION.match(file.readline(100).rstrip() + "\n")
        except OSError:
            continue
        if found and found[1] != "unknown":
            return found[1]
    return None


def _digest_of_sample(folder: Path) -> str:
    made = sha256()
    for name in _SAMPLE_ZONES:
        file = folder / name
        made.update(name.encode() + (file.read_bytes() if file.is_file() else b""))
    return f"sha256:{made.hexdigest()[:24]}"
