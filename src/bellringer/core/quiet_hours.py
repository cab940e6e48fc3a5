"""Quiet hours: daily times, in a time zone, in which messages are held back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

import msgspec

from bellringer.errors import InvalidInput
from bellringer.schedule.time_zones import check_zone

WEEKDAYS: Final = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")
_TIME: Final = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")
_FIELDS: Final = ("from", "to", "tz", "days", "critical")


class QuietHours(msgspec.Struct, frozen=True, kw_only=True):
    """From a time of day to another, over midnight if the end is not later. `days` are those on which it begins.

    With `critical` "send", critical messages pass; with "hold", everything waits.
    """

    starts: str
    ends: str
    tz: str = "UTC"
    days: Sequence[str] = ()  # empty: every day
    critical: str = "send"

    def until(self, now: datetime) -> datetime | None:
        """Returns when the present quiet hours end, or None outside of them.

        A time that a clock change skips counts as the moment of the change; one that occurs twice, as the first.
        """
        zone = ZoneInfo(self.tz)
        today = now.astimezone(zone).date()
        for distance in (0, 1):  # quiet hours of yesterday may last until today
            day = today - timedelta(days=distance)
            last = day + timedelta(days=1) if self.ends <= self.starts else day
            start, end = _instant(day, self.starts, zone), _instant(last, self.ends, zone)
            is_quiet_day = not self.days or WEEKDAYS[day.weekday()] in self.days
            if is_quiet_day and start <= now < end:
                return end
        return None

    def held_until(self, now: datetime, severity: str) -> datetime | None:
        """Returns until when a message of this severity is held back, or None if it may be sent."""
        return None if severity == "critical" and self.critical == "send" else self.until(now)


def _instant(day: date, time: str, zone: ZoneInfo) -> datetime:
    hour, minute = int(time[:2]), int(time[3:])
    wall = datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone)
    instant = wall.astimezone(UTC)
    if instant.astimezone(zone).replace(tzinfo=None) == wall.replace(tzinfo=None):
        return instant
    # The clock skips this time: go back to the moment of the change, which is within the hour before.
    low, high = instant - timedelta(hours=3), instant
    before = low.astimezone(zone).utcoffset()
    while high - low > timedelta(seconds=1):
        middle = low + (high - low) / 2
        low, high = (middle, high) if middle.astimezone(zone).utcoffset() == before else (low, middle)
    return high.replace(microsecond=0)


def parse_quiet_hours(document: Mapping[str, Any], *, pointer: str = "/quiet") -> QuietHours:
    """Parses `{"from": "22:00", "to": "07:00", "tz": "Europe/Paris"}`. Raises InvalidInput."""
    for name in document:
        if name not in _FIELDS:
            hint = f"use {', '.join(_FIELDS)}"
            raise InvalidInput(f"quiet has no field {name[:40]!r}", hint=hint, pointer=pointer, code="unknown_field")
    times = [document.get(name) for name in ("from", "to")]
    for name, value in zip(("from", "to"), times, strict=True):
        if not isinstance(value, str) or not _TIME.fullmatch(value):
            hint = "write it like 22:00"
            raise InvalidInput(f"{name} must be a time of day", hint=hint, pointer=f"{pointer}/{name}", code="type")
    days = document.get("days") or []
    if not isinstance(days, list) or any(day not in WEEKDAYS for day in days):
        hint = f"use a list of {', '.join(WEEKDAYS)}"
        raise InvalidInput("days must be days of the week", hint=hint, pointer=f"{pointer}/days", code="choice")
    critical = document.get("critical", "send")
    if critical not in ("send", "hold"):
        raise InvalidInput("critical must be send or hold", pointer=f"{pointer}/critical", code="choice")
    zone = document.get("tz", "UTC")
    if not isinstance(zone, str):
        raise InvalidInput("tz must be the name of a time zone", pointer=f"{pointer}/tz", code="type")
    return QuietHours(
        starts=str(times[0]), ends=str(times[1]), tz=check_zone(zone), days=tuple(days), critical=critical
    )


def quiet_hours_document(quiet: QuietHours) -> dict[str, Any]:
    """Returns the form that `parse_quiet_hours` reads."""
    return {
        "from": quiet.starts,
        "to": quiet.ends,
        "tz": quiet.tz,
        "days": list(quiet.days),
        "critical": quiet.critical,
    }
