"""The grammar of recurrence rules, a closed part of RFC 5545: text in, a rule out; every refusal knows its position."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Final, NamedTuple, TypeVar

from bellringer.errors import InvalidSchedule

T = TypeVar("T")

LONGEST: Final = 512
WEEKDAYS: Final = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
FREQUENCIES: Final = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY")
_FASTER: Final = ("HOURLY", "MINUTELY", "SECONDLY")
# Each part and the range of its numbers; a range that ends in 0 counts from the end as well.
_NUMBERS: Final = {
    "BYMONTH": (1, 12),
    "BYMONTHDAY": (-31, 31),
    "BYYEARDAY": (-366, 366),
    "BYWEEKNO": (-53, 53),
    "BYHOUR": (0, 23),
    "BYMINUTE": (0, 59),
    "BYSETPOS": (-366, 366),
}
_KNOWN: Final = ("FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST", "BYDAY", *_NUMBERS)
_MOST: Final = {"INTERVAL": 1000, "COUNT": 1_000_000}
_LINES: Final = re.compile(r"DTSTART|DTEND|EXDATE|RDATE|EXRULE", re.IGNORECASE)
_WEEKDAY: Final = re.compile(r"(?P<nth>[+-]?[0-9]{1,2})?(?P<day>[A-Z]{2})")
_UNTIL: Final = re.compile(r"[0-9]{8}(T[0-9]{6}Z?)?")


class Weekday(NamedTuple):
    """`FR`, every Friday, or `-1FR`, the last one of the month or year; Monday is 0."""

    day: int
    nth: int | None = None

    def __str__(self) -> str:
        return f"{self.nth or ''}{WEEKDAYS[self.day]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule that was read. `until` is civil time, or UTC where `until_utc` says so."""

    freq: str
    interval: int = 1
    count: int | None = None
    until: datetime | None = None
    until_utc: bool = False
    wkst: int = 0
    bymonth: tuple[int, ...] = ()
    byweekno: tuple[int, ...] = ()
    byyearday: tuple[int, ...] = ()
    bymonthday: tuple[int, ...] = ()
    byday: tuple[Weekday, ...] = ()
    byhour: tuple[int, ...] = ()
    byminute: tuple[int, ...] = ()
    bysetpos: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """The canonical text: parts and values in order, what has its default left out."""
        parts = [f"FREQ={self.freq}"]
        if self.interval > 1:
            parts.append(f"INTERVAL={self.interval}")
        if self.count is not None:
            parts.append(f"COUNT={self.count}")
        if self.until is not None:
            parts.append(f"UNTIL={self.until:%Y%m%dT%H%M%S}{'Z' * self.until_utc}")
        if self.wkst:
            parts.append(f"WKST={WEEKDAYS[self.wkst]}")
        lists = {field.name: getattr(self, field.name) for field in fields(self) if field.name.startswith("by")}
        parts.extend(f"{name.upper()}={','.join(map(str, values))}" for name, values in lists.items() if values)
        return ";".join(parts)


class _Part(NamedTuple):
    name: str
    value: str
    at: int


def read(text: str) -> Rule:
    """Read a rule such as `FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1`."""
    parts = _split(_check_text(text))
    rule = Rule(
        freq=_read_freq(parts, text),
        interval=_read_number(parts, "INTERVAL") or 1,
        count=_read_number(parts, "COUNT"),
        until=_read_until(parts),
        until_utc="UNTIL" in parts and parts["UNTIL"].value.endswith("Z"),
        wkst=_read_weekday(parts["WKST"], parts["WKST"].value).day if "WKST" in parts else 0,
        bymonth=_read_list(parts, "BYMONTH", _read_in_range),
        byweekno=_read_list(parts, "BYWEEKNO", _read_in_range),
        byyearday=_read_list(parts, "BYYEARDAY", _read_in_range),
        bymonthday=_read_list(parts, "BYMONTHDAY", _read_in_range),
        byday=_read_list(parts, "BYDAY", _read_weekday),
        byhour=_read_list(parts, "BYHOUR", _read_in_range),
        byminute=_read_list(parts, "BYMINUTE", _read_in_range),
        bysetpos=_read_list(parts, "BYSETPOS", _read_in_range),
    )
    _check_sense(rule, parts)
    return rule


def _check_text(text: str) -> str:
    if not isinstance(text, str):
        raise refusal(f"a recurrence rule is text, not {type(text).__name__}")
    if len(text) > LONGEST:
        message = f"the rule has {len(text)} characters, more than {LONGEST}"
        raise refusal(message, LONGEST, code="rrule_too_long", hint="split it into several schedules")
    if lines := _LINES.search(text):
        message = f"{lines[0].upper()} is no part of a rule here"
        hint = "give the start as start=; for days off name a calendar"
        raise refusal(message, lines.start(), code="rrule_unsupported", hint=hint)
    for position, character in enumerate(text):
        if not " " <= character <= "~":
            message = f"the character {character!a} is not allowed in a rule"
            raise refusal(message, position, code="rrule_charset", hint="write one line of ASCII")
    return text


def _split(text: str) -> dict[str, _Part]:
    at = len(text) - len(text.lstrip())
    if text[at:].upper().startswith("RRULE:"):
        at += len("RRULE:")
    parts: dict[str, _Part] = {}
    for piece in text[at:].rstrip().rstrip(";").upper().split(";"):
        name, equals, value = piece.partition("=")
        if not equals or not value:
            message = f"{piece[:40]!r} is not a part such as FREQ=WEEKLY" if piece else "the rule has an empty part"
            raise refusal(message, at, hint="write parts as NAME=value with ; between them")
        if name in ("BYSECOND", "BYEASTER"):
            raise refusal(f"{name} is not supported", at, code="rrule_unsupported", hint="leave it out")
        if name not in _KNOWN:
            near = get_close_matches(name, _KNOWN, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(_KNOWN)}"
            raise refusal(f"a rule has no part {name[:40]!r}", at, hint=hint)
        if name in parts:
            raise refusal(f"{name} is given twice", at, hint="give one, with commas between its values")
        parts[name] = _Part(name, value, at + len(name) + 1)
        at += len(piece) + 1
    return parts


def _read_freq(parts: dict[str, _Part], text: str) -> str:
    if "FREQ" not in parts:
        raise refusal("the rule has no FREQ", len(text), hint=f"begin with FREQ= and one of {', '.join(FREQUENCIES)}")
    part = parts["FREQ"]
    if part.value in _FASTER:
        hint = "use cron for times within a day, or every for a steady interval"
        raise refusal(f"FREQ={part.value} is not supported", part.at, code="rrule_unsupported", hint=hint)
    if part.value not in FREQUENCIES:
        near = get_close_matches(part.value, FREQUENCIES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(FREQUENCIES)}"
        raise refusal(f"FREQ={part.value[:40]} is not known", part.at, hint=hint)
    return part.value


def _read_number(parts: dict[str, _Part], name: str) -> int | None:
    if name not in parts:
        return None
    part, most = parts[name], _MOST[name]
    if not re.fullmatch("[0-9]{1,7}", part.value) or not 1 <= int(part.value) <= most:
        raise refusal(f"{name}={part.value[:40]} is out of range 1–{most}", part.at, code="rrule_range")
    return int(part.value)


def _read_until(parts: dict[str, _Part]) -> datetime | None:
    if "UNTIL" not in parts:
        return None
    part = parts["UNTIL"]
    try:
        if not _UNTIL.fullmatch(part.value):
            raise ValueError
        day = datetime.strptime(part.value[:8], "%Y%m%d")  # noqa: DTZ007 - civil time has no zone
        if len(part.value) == 8:
            return day + timedelta(hours=23, minutes=59, seconds=59)
        return datetime.strptime(part.value.rstrip("Z"), "%Y%m%dT%H%M%S")  # noqa: DTZ007
    except ValueError:
        hint = "write it like 20261231, 20261231T170000 (local) or 20261231T160000Z"
        raise refusal(f"UNTIL={part.value[:40]} is no time", part.at, hint=hint) from None


def _read_list(parts: dict[str, _Part], name: str, read_one: Callable[[_Part, str], T]) -> tuple[T, ...]:
    if name not in parts:
        return ()
    part = parts[name]
    return tuple(sorted({read_one(part, text) for text in part.value.split(",")}, key=_order))


def _order(value: object) -> tuple[int, int]:
    if isinstance(value, Weekday):
        return value.day, value.nth or 0
    assert isinstance(value, int), "a list holds numbers or weekdays"
    return value, 0


def _read_in_range(part: _Part, text: str) -> int:
    low, high = _NUMBERS[part.name]
    signed = low < 0
    pattern = "[+-]?[0-9]{1,3}" if signed else "[0-9]{1,3}"
    if not re.fullmatch(pattern, text) or not low <= int(text) <= high or (signed and int(text) == 0):
        values = f"1–{high} or -{high}–-1" if signed else f"{low}–{high}"
        raise refusal(f"{part.name}={text[:40]} is out of range {values}", part.at, code="rrule_range")
    return int(text)


def _read_weekday(part: _Part, text: str) -> Weekday:
    match = _WEEKDAY.fullmatch(text)
    if match is None or match["day"] not in WEEKDAYS or (match["nth"] and part.name == "WKST"):
        raise refusal(f"{part.name} {text[:40]!r} is no weekday", part.at, hint=f"use {', '.join(WEEKDAYS)}")
    nth = int(match["nth"]) if match["nth"] else None
    if nth is not None and (nth == 0 or abs(nth) > 53):
        raise refusal(f"BYDAY {text} is out of range 1–53 or -53–-1", part.at, code="rrule_range")
    return Weekday(WEEKDAYS.index(match["day"]), nth)


def _check_sense(rule: Rule, parts: dict[str, _Part]) -> None:
    """Refuse what RFC 5545 forbids or reads in more than one way."""
    counted = any(day.nth for day in rule.byday)
    slow = rule.freq in ("YEARLY", "MONTHLY")
    several_times = max(len(rule.byhour), 1) * max(len(rule.byminute), 1) > 1
    rules: tuple[tuple[str, bool, str, str], ...] = (
        ("COUNT", rule.until is not None, "COUNT and UNTIL do not go together", "give one"),
        ("BYWEEKNO", rule.freq != "YEARLY", "BYWEEKNO goes with FREQ=YEARLY only", "leave it out"),
        ("BYYEARDAY", rule.freq != "YEARLY", "BYYEARDAY goes with FREQ=YEARLY only", "leave it out"),
        ("BYMONTHDAY", rule.freq == "WEEKLY", "BYMONTHDAY does not go with FREQ=WEEKLY", "use FREQ=MONTHLY"),
        ("BYSETPOS", not slow, f"BYSETPOS does not go with FREQ={rule.freq}", "name the days with BYDAY"),
        ("BYSETPOS", several_times, "BYSETPOS does not go with several times of day", "give one time a schedule"),
        ("BYSETPOS", not _has_set(rule), "BYSETPOS has no set to choose from", "add BYDAY or BYMONTHDAY"),
        ("BYDAY", counted and not slow, f"a number in BYDAY does not go with FREQ={rule.freq}", "leave it out"),
        ("BYDAY", counted and bool(rule.byweekno), "a number in BYDAY does not go with BYWEEKNO", "leave it out"),
        (
            "BYDAY",
            counted and not all(day.nth for day in rule.byday),
            "BYDAY mixes days with and without a number",
            "give each its own schedule",
        ),
    )
    for name, wrong, message, hint in rules:
        if name in parts and wrong:
            raise refusal(message, parts[name].at, code="rrule_unsupported", hint=hint)


def _has_set(rule: Rule) -> bool:
    return bool(rule.byday or rule.bymonthday or rule.byyearday or rule.byweekno or rule.bymonth)


def refusal(message: str, position: int | None = 0, *, code: str = "rrule_invalid", hint: str = "") -> InvalidSchedule:
    return InvalidSchedule(message, code=code, position=position, hint=hint)
