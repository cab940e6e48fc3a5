"""Time zones: which names are known, and a zone's timeline as stretches of one UTC offset each."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from functools import cache, lru_cache
from itertools import accumulate
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

from bellringer.errors import InvalidSchedule
from bellringer.schedule.instants import END, EPOCH, from_seconds, seconds_until

# Files that zoneinfo finds beside the zones: a machine's own setting, a placeholder, other ways to count.
_NOT_ZONES: Final = frozenset({"localtime", "posixrules", "Factory"})
_NOT_ZONE_FOLDERS: Final = ("posix/", "right/", "SystemV/")
_LONGEST: Final = 64

_BLOCK: Final = 366 * 86_400
# Since 1901 no zone has changed its offset twice within six days, so none changes unseen between two looks.
PROBE: Final = 3 * 86_400
FIRST: Final = seconds_until(EPOCH.replace(year=2))
LAST: Final = seconds_until(END) - 1
_SECOND: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Instants from `start` up to `end` at one `offset`. `lived` is how far wall clocks had come before it:
    beyond `start + offset` the stretch begins by repeating time, short of it by leaving time out. `again` is
    how far they go back after it: short of `end + offset`, the last of its time comes twice.
    """

    start: int
    end: int
    offset: int
    lived: int
    again: int


@cache
def names() -> frozenset[str]:
    """Every zone that a schedule may name."""
    return frozenset(
        name for name in available_timezones() if name not in _NOT_ZONES and not name.startswith(_NOT_ZONE_FOLDERS)
    )


def check_zone(name: str) -> str:
    """Give the name back, or refuse what is not exactly a known zone."""
    if isinstance(name, str) and name in names():
        return name
    shown = ascii(name if isinstance(name, str) and len(name) <= _LONGEST else str(name)[:_LONGEST] + "...")
    hint = "use a name of the IANA database, such as Europe/Paris or UTC"
    if isinstance(name, str) and (near := _nearest(name)):
        hint = f"did you mean {near}?"
    message = f"the time zone {shown} is not known"
    raise InvalidSchedule(message, code="timezone_unknown", pointer="/tz", hint=hint)


def _nearest(name: str) -> str | None:
    if len(name) > _LONGEST:
        return None
    folded = name.casefold().replace(" ", "_")
    by_folded = {known.casefold(): known for known in sorted(names())}
    by_city = {known.rpartition("/")[2]: name for known, name in by_folded.items()}
    for table in (by_folded, by_city):
        if folded in table:
            return table[folded]
    for table in (by_folded, by_city):
        if near := get_close_matches(folded, table, n=1, cutoff=0.8):
            return table[near[0]]
    return None


def stretch_at(zone: str, instant: int) -> Stretch | None:
    """The stretch that holds an instant; none outside the years that can be computed."""
    if not FIRST <= instant <= LAST:
        return None
    for stretch in _stretches(zone, instant // _BLOCK):
        if instant < stretch.end:
            return stretch
    return None


@lru_cache(maxsize=8192)
def _stretches(name: str, block: int) -> tuple[Stretch, ...]:
    """A block's stretches. Cutting time into blocks bounds every search and makes the answers worth keeping;
    a cut changes no offset, so it neither repeats time nor leaves any out.
    """
    zone = ZoneInfo(name)
    begin, end = max(block * _BLOCK, FIRST), min((block + 1) * _BLOCK, LAST + 1)
    pieces = _pieces(zone, begin - PROBE, end + PROBE)
    lived = accumulate((until + offset for _, until, offset in pieces), max, initial=begin - 2 * PROBE)
    again = accumulate((since + offset for since, _, offset in reversed(pieces)), min, initial=end + 2 * PROBE)
    return tuple(
        Stretch(
            start=max(since, begin),
            end=min(until, end),
            offset=offset,
            lived=before if since >= begin else max(before, begin + offset),
            again=after if until <= end else min(after, end + offset),
        )
        for (since, until, offset), before, after in zip(pieces, lived, [*again][-2::-1], strict=False)
        if until > begin and since < end
    )


def _pieces(zone: ZoneInfo, start: int, end: int) -> list[tuple[int, int, int]]:
    """From when until when, and at which offset."""
    changes = [(start, _offset(zone, start)), *_changes(zone, start, end)]
    ends = [change for change, _ in changes[1:]] + [end]
    return [(since, until, offset) for (since, offset), until in zip(changes, ends, strict=True)]


def _changes(zone: ZoneInfo, start: int, end: int) -> list[tuple[int, int]]:
    """When the offset changes after `start` and before `end`, and to what."""
    found = []
    low, before = start, _offset(zone, start)
    while low < end - 1:
        high = min(low + PROBE, end - 1)
        after = _offset(zone, high)
        if after != before:
            found.append((_first_with(zone, low, high, after), after))
        low, before = high, after
    return found


def _first_with(zone: ZoneInfo, low: int, high: int, offset: int) -> int:
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(zone, middle) == offset:
            high = middle
        else:
            low = middle
    return high


def _offset(zone: ZoneInfo, instant: int) -> int:
    offset = from_seconds(instant).astimezone(zone).utcoffset()
    assert offset is not None, "a ZoneInfo always knows its offset"
    return offset // _SECOND
