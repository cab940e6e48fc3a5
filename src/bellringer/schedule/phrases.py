"""Words of the English grammar of schedules: days, months, units, times of day and places."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from typing import Final, NamedTuple

from bellringer.schedule.time_zones import zone_names

PLAIN_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
WEEKDAYS: Final = {day: day.upper() for day in PLAIN_DAYS}
MONTHS: Final = {
    month: month.upper()
    for month in ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
}
UNITS: Final = {
    **dict.fromkeys(("second", "sec"), "seconds"),
    **dict.fromkeys(("minute", "min"), "minutes"),
    **dict.fromkeys(("hour", "hr", "hourly"), "hours"),
    **dict.fromkeys(("day", "daily"), "days"),
    **dict.fromkeys(("week", "weekly"), "weeks"),
    **dict.fromkeys(("month", "monthly"), "months"),
    **dict.fromkeys(("year", "yearly", "annually"), "years"),
}
NTH: Final = {
    **dict.fromkeys(("first", "1st"), 1),
    **dict.fromkeys(("second", "2nd"), 2),
    **dict.fromkeys(("third", "3rd"), 3),
    **dict.fromkeys(("fourth", "4th"), 4),
    **dict.fromkeys(("fifth", "5th"), 5),
    "last": 0,
}
_KNOWN_WORDS: Final = (
    *("every", "weekday", "weekdays", "weekend", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"),
    *("sunday", "january", "february", "march", "april", "may", "june", "july", "august", "september", "october"),
    *("november", "december", "tomorrow", "today", "noon", "midnight", "minutes", "hours", "seconds", "days", "weeks"),
    *("month", "hourly", "daily", "weekly", "monthly", "first", "second", "third", "fourth", "last", "between"),
)
# Large cities that name no time zone of the tz database.
_MORE_PLACES: Final = {
    **dict.fromkeys(("san francisco", "seattle", "san diego", "las vegas"), "America/Los_Angeles"),
    **dict.fromkeys(("boston", "washington", "miami", "atlanta", "philadelphia"), "America/New_York"),
    **dict.fromkeys(("houston", "dallas", "austin"), "America/Chicago"),
    **dict.fromkeys(("munich", "hamburg", "frankfurt", "cologne"), "Europe/Berlin"),
    **dict.fromkeys(("mumbai", "delhi", "new delhi", "bangalore", "bengaluru"), "Asia/Kolkata"),
    **dict.fromkeys(("beijing", "shenzhen"), "Asia/Shanghai"),
    **dict.fromkeys(("barcelona",), "Europe/Madrid"),
    **dict.fromkeys(("milan",), "Europe/Rome"),
    **dict.fromkeys(("geneva",), "Europe/Zurich"),
    **dict.fromkeys(("edinburgh", "manchester"), "Europe/London"),
    **dict.fromkeys(("kyoto", "osaka"), "Asia/Tokyo"),
}
_CLOCK: Final = re.compile(
    r"(?P<hour>[0-9]{1,2})(?::(?P<minute>[0-9]{2}))?\s*(?P<half>[ap]\.?m\.?)?(?P<exact>o'clock)?"
)


class ClockTime(NamedTuple):
    """A time of day. `ambiguous`: it may be in the morning or in the afternoon."""

    hour: int
    minute: int
    ambiguous: bool = False

    def __str__(self) -> str:
        return f"{self.hour:02}:{self.minute:02}"


def parse_clock(text: str) -> ClockTime | None:
    """Parse `9:30`, `17:00`, `5pm`, `noon` or `midnight`. A number alone is ambiguous up to 12."""
    text = text.strip().lower()
    if text in ("noon", "midnight"):
        return ClockTime(12 if text == "noon" else 0, 0)
    match = _CLOCK.fullmatch(text)
    if match is None:
        return None
    hour, minute = int(match["hour"]), int(match["minute"] or 0)
    if match["half"]:
        if not 1 <= hour <= 12 or minute > 59:
            return None
        return ClockTime(hour % 12 + (12 if match["half"].startswith("p") else 0), minute)
    if hour > 23 or minute > 59:
        return None
    return ClockTime(hour, minute, ambiguous=match["minute"] is None and 1 <= hour <= 12)


@cache
def _zones_by_place() -> dict[str, tuple[str, ...]]:
    found: dict[str, set[str]] = {}
    for zone in zone_names():
        if "/" in zone and not zone.startswith("Etc/"):
            found.setdefault(zone.rpartition("/")[2].replace("_", " ").lower(), set()).add(zone)
    for place, zone in _MORE_PLACES.items():
        found.setdefault(place, {zone})
    return {place: tuple(sorted(zones)) for place, zones in found.items()}


def zones_of_place(name: str) -> tuple[str, ...]:
    """Returns the time zones that a place may have; usually one, or none if the place is not known."""
    return _zones_by_place().get(name, ())


def hint_for_place(name: str) -> str:
    near = get_close_matches(name, _zones_by_place(), n=1, cutoff=0.75)
    example = "write the name of the time zone, such as Europe/Berlin"
    return f"did you mean {near[0].title()}? Otherwise {example}" if near else example


def nearest_word(text: str) -> str | None:
    """Returns the known word that is most similar to a word of the text."""
    for word in text.split():
        if near := get_close_matches(word, _KNOWN_WORDS, n=1, cutoff=0.75):
            return near[0]
    return None


def rule_days(weekdays: Iterable[str]) -> list[str]:
    """Convert days of a cron field, such as MON-FRI, to days of an RRULE, such as MO and TU."""
    names, found = [day.upper() for day in PLAIN_DAYS], []
    for item in ",".join(weekdays).split(","):
        first, _, last = item.partition("-")
        low, high = names.index(first), names.index(last or first)
        found += [names[(low + n) % 7][:2] for n in range((high - low) % 7 + 1)]
    return list(dict.fromkeys(found))
