"""Parses recurrence rules: a subset of the RRULE of RFC 5545. Every error carries the position in the text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Final, NamedTuple, TypeVar

from bellringer.errors import InvalidSchedule

T = TypeVar("T")

MAX_RULE_LENGTH: Final = 512
WEEKDAYS: Final = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
FREQUENCIES: Final = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY")
_UNSUPPORTED_FREQUENCIES: Final = ("HOURLY", "MINUTELY", "SECONDLY")
# The range of each numeric part. In a range with a negative minimum, negative numbers count from the end.
_PART_RANGES: Final = {
    "BYMONTH": (1, 12),
    "BYMONTHDAY": (-31, 31),
    "BYYEARDAY": (-366, 366),
    "BYWEEKNO": (-53, 53),
    "BYHOUR": (0, 23),
    "BYMINUTE": (0, 59),
    "BYSECOND": (0, 59),
    "BYSETPOS": (-366, 366),
}
_PART_NAMES: Final = ("FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST", "BYDAY", *_PART_RANGES)
_MAX_VALUES: Final = {"INTERVAL": 1000, "COUNT": 1_000_000}
_OTHER_PROPERTIES: Final = re.compile(r"DTSTART|DTEND|EXDATE|RDATE|EXRULE", re.IGNORECASE)
_EVERY_UNITS: Final = {"HOURLY": "h", "MINUTELY": "m", "SECONDLY": "s"}
_CRON_WEEKDAYS: Final = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")
_WEEKDAY: Final = re.compile(r"(?P<nth>[+-]?[0-9]{1,2})?(?P<day>[A-Z]{2})")
_UNTIL: Final = re.compile(r"[0-9]{8}(T[0-9]{6}Z?)?")


class RuleWeekday(NamedTuple):
    """`FR`: every Friday; `-1FR`: the last Friday of the month or year. Monday is 0."""

    day: int
    nth: int | None = None

    def __str__(self) -> str:
        return f"{self.nth or ''}{WEEKDAYS[self.day]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrenceRule:
    """A parsed rule. `until` is local time, or UTC if `until_utc` is true."""

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
    byday: tuple[RuleWeekday, ...] = ()
    byhour: tuple[int, ...] = ()
    byminute: tuple[int, ...] = ()
    bysecond: tuple[int, ...] = ()
    bysetpos: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """The canonical text: parts and values in a fixed order, defaults omitted."""
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


def parse_rrule(text: str) -> RecurrenceRule:
    """Parse a rule such as `FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1`. Raises InvalidSchedule."""
    parts = _split_parts(_check_text(text))
    rule = RecurrenceRule(
        freq=_parse_freq(parts, text),
        interval=_parse_number(parts, "INTERVAL") or 1,
        count=_parse_number(parts, "COUNT"),
        until=_parse_until(parts),
        until_utc="UNTIL" in parts and parts["UNTIL"].value.endswith("Z"),
        wkst=_parse_weekday(parts["WKST"], parts["WKST"].value).day if "WKST" in parts else 0,
        bymonth=_parse_list(parts, "BYMONTH", _parse_in_range),
        byweekno=_parse_list(parts, "BYWEEKNO", _parse_in_range),
        byyearday=_parse_list(parts, "BYYEARDAY", _parse_in_range),
        bymonthday=_parse_list(parts, "BYMONTHDAY", _parse_in_range),
        byday=_parse_list(parts, "BYDAY", _parse_weekday),
        byhour=_parse_list(parts, "BYHOUR", _parse_in_range),
        byminute=_parse_list(parts, "BYMINUTE", _parse_in_range),
        bysecond=_parse_list(parts, "BYSECOND", _parse_in_range),
        bysetpos=_parse_list(parts, "BYSETPOS", _parse_in_range),
    )
    _check_combinations(rule, parts)
    return rule


def _check_text(text: str) -> str:
    if not isinstance(text, str):
        raise rrule_error(f"a recurrence rule must be a string, not {type(text).__name__}")
    if len(text) > MAX_RULE_LENGTH:
        message = f"the rule has {len(text)} characters; the maximum is {MAX_RULE_LENGTH}"
        raise rrule_error(message, MAX_RULE_LENGTH, code="rrule_too_long", hint="split it into several schedules")
    if lines := _OTHER_PROPERTIES.search(text):
        message = f"{lines[0].upper()} is not supported in a rule"
        hint = "write each property on a line of its own, or pass start=, exdate= and rdate="
        raise rrule_error(message, lines.start(), code="rrule_unsupported", hint=hint)
    for position, character in enumerate(text):
        if not " " <= character <= "~":
            message = f"the character {character!a} is not allowed in a rule"
            raise rrule_error(message, position, code="rrule_charset", hint="use one line of ASCII characters")
    return text


def _split_parts(text: str) -> dict[str, _Part]:
    at = len(text) - len(text.lstrip())
    if text[at:].upper().startswith("RRULE:"):
        at += len("RRULE:")
    parts: dict[str, _Part] = {}
    for piece in text[at:].rstrip().rstrip(";").upper().split(";"):
        name, equals, value = piece.partition("=")
        if not equals or not value:
            message = f"{piece[:40]!r} is not of the form NAME=value" if piece else "the rule has an empty part"
            raise rrule_error(message, at, hint="separate parts with ;, for example FREQ=WEEKLY;BYDAY=MO")
        if name == "BYEASTER":
            raise rrule_error(f"{name} is not supported", at, code="rrule_unsupported", hint="remove it")
        if name not in _PART_NAMES:
            near = get_close_matches(name, _PART_NAMES, n=1)
            hint = f"did you mean {near[0]}?" if near else f"use {', '.join(_PART_NAMES)}"
            raise rrule_error(f"unknown part {name[:40]!r}", at, hint=hint)
        if name in parts:
            raise rrule_error(f"{name} occurs twice", at, hint="write it once, with commas between the values")
        parts[name] = _Part(name, value, at + len(name) + 1)
        at += len(piece) + 1
    return parts


def _parse_freq(parts: dict[str, _Part], text: str) -> str:
    if "FREQ" not in parts:
        raise rrule_error("the rule has no FREQ", len(text), hint=f"add FREQ= with one of {', '.join(FREQUENCIES)}")
    part = parts["FREQ"]
    if part.value in _UNSUPPORTED_FREQUENCIES:
        hint = _hint_for_frequency(part.value, parts)
        raise rrule_error(f"FREQ={part.value} is not supported", part.at, code="rrule_unsupported", hint=hint)
    if part.value not in FREQUENCIES:
        near = get_close_matches(part.value, FREQUENCIES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(FREQUENCIES)}"
        raise rrule_error(f"unknown frequency FREQ={part.value[:40]}", part.at, hint=hint)
    return part.value


def _hint_for_frequency(freq: str, parts: dict[str, _Part]) -> str:
    """Returns the equivalent of a rule that repeats within the day: an interval, or a cron expression."""
    values = {name: part.value for name, part in parts.items()}
    interval = values.get("INTERVAL", "1")
    others = values.keys() - {"FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST"}
    if not others and interval.isdigit():
        times = f", times={values['COUNT']}, start=…" if "COUNT" in values else ""
        return f'use a fixed interval: every("{interval}{_EVERY_UNITS[freq]}", anchor=…{times}), anchored at the start'
    days = values.get("BYDAY", "*").split(",")
    if interval != "1" or freq == "SECONDLY" or others - {"BYDAY", "BYMONTH", "BYMONTHDAY", "BYHOUR", "BYMINUTE"}:
        return "use cron for several times a day, or every for a fixed interval"
    if days != ["*"] and not set(days) <= set(WEEKDAYS):
        return "use cron for several times a day, or every for a fixed interval"
    weekdays = ",".join(_CRON_WEEKDAYS[WEEKDAYS.index(day)] for day in days) if days != ["*"] else "*"
    minute = values.get("BYMINUTE", "0" if freq == "HOURLY" else "*")
    fields = [minute, values.get("BYHOUR", "*"), values.get("BYMONTHDAY", "*"), values.get("BYMONTH", "*"), weekdays]
    both = ', day_match="both"' if fields[2] != "*" and weekdays != "*" else ""
    which = ", with the minute of the start" if freq == "HOURLY" and "BYMINUTE" not in values else ""
    return f'use cron("{" ".join(fields)}"{both}){which}'


def _parse_number(parts: dict[str, _Part], name: str) -> int | None:
    if name not in parts:
        return None
    part, most = parts[name], _MAX_VALUES[name]
    if not re.fullmatch("[0-9]{1,7}", part.value) or not 1 <= int(part.value) <= most:
        raise rrule_error(f"{name}={part.value[:40]} is out of range 1 to {most}", part.at, code="rrule_range")
    return int(part.value)


def _parse_until(parts: dict[str, _Part]) -> datetime | None:
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
        hint = "examples: 20261231, 20261231T170000 (local), 20261231T160000Z (UTC)"
        raise rrule_error(f"UNTIL={part.value[:40]} is not a date or time", part.at, hint=hint) from None


def _parse_list(parts: dict[str, _Part], name: str, read_one: Callable[[_Part, str], T]) -> tuple[T, ...]:
    if name not in parts:
        return ()
    part = parts[name]
    return tuple(sorted({read_one(part, text) for text in part.value.split(",")}, key=_sort_key))


def _sort_key(value: object) -> tuple[int, int]:
    if isinstance(value, RuleWeekday):
        return value.day, value.nth or 0
    assert isinstance(value, int), "a list holds numbers or weekdays"
    return value, 0


def _parse_in_range(part: _Part, text: str) -> int:
    low, high = _PART_RANGES[part.name]
    signed = low < 0
    pattern = "[+-]?[0-9]{1,3}" if signed else "[0-9]{1,3}"
    if not re.fullmatch(pattern, text) or not low <= int(text) <= high or (signed and int(text) == 0):
        values = f"1 to {high} or -{high} to -1" if signed else f"{low} to {high}"
        raise rrule_error(f"{part.name}={text[:40]} is out of range {values}", part.at, code="rrule_range")
    return int(text)


def _parse_weekday(part: _Part, text: str) -> RuleWeekday:
    match = _WEEKDAY.fullmatch(text)
    if match is None or match["day"] not in WEEKDAYS or (match["nth"] and part.name == "WKST"):
        raise rrule_error(f"{part.name} {text[:40]!r} is not a weekday", part.at, hint=f"use {', '.join(WEEKDAYS)}")
    nth = int(match["nth"]) if match["nth"] else None
    if nth is not None and (nth == 0 or abs(nth) > 53):
        raise rrule_error(f"BYDAY {text} is out of range 1 to 53 or -53 to -1", part.at, code="rrule_range")
    return RuleWeekday(WEEKDAYS.index(match["day"]), nth)


def _check_combinations(rule: RecurrenceRule, parts: dict[str, _Part]) -> None:
    """Reject combinations that RFC 5545 forbids or that implementations read in different ways."""
    counted = any(day.nth for day in rule.byday)
    slow = rule.freq in ("YEARLY", "MONTHLY")
    several_times = max(len(rule.byhour), 1) * max(len(rule.byminute), 1) * max(len(rule.bysecond), 1) > 1
    rules: tuple[tuple[str, bool, str, str], ...] = (
        ("COUNT", rule.until is not None, "COUNT and UNTIL exclude each other", "use one of them"),
        ("BYWEEKNO", rule.freq != "YEARLY", "BYWEEKNO requires FREQ=YEARLY", "remove it"),
        ("BYYEARDAY", rule.freq != "YEARLY", "BYYEARDAY requires FREQ=YEARLY", "remove it"),
        ("BYMONTHDAY", rule.freq == "WEEKLY", "BYMONTHDAY is not allowed with FREQ=WEEKLY", "use FREQ=MONTHLY"),
        ("BYSETPOS", rule.freq == "DAILY", "BYSETPOS is not allowed with FREQ=DAILY", "use FREQ=WEEKLY or MONTHLY"),
        ("BYSETPOS", several_times, "BYSETPOS is not allowed with several times of day", "use one schedule per time"),
        ("BYSETPOS", not _has_set(rule), "BYSETPOS requires another BY part", "add BYDAY or BYMONTHDAY"),
        ("BYDAY", counted and not slow, f"a number in BYDAY is not allowed with FREQ={rule.freq}", "remove the number"),
        (
            "BYDAY",
            counted and bool(rule.byweekno),
            "a number in BYDAY is not allowed with BYWEEKNO",
            "remove the number",
        ),
        (
            "BYDAY",
            counted and not all(day.nth for day in rule.byday),
            "BYDAY mixes days with and without a number",
            "use a separate schedule for each",
        ),
    )
    for name, wrong, message, hint in rules:
        if name in parts and wrong:
            raise rrule_error(message, parts[name].at, code="rrule_unsupported", hint=hint)


def _has_set(rule: RecurrenceRule) -> bool:
    return bool(rule.byday or rule.bymonthday or rule.byyearday or rule.byweekno or rule.bymonth)


def rrule_error(
    message: str, position: int | None = 0, *, code: str = "rrule_invalid", hint: str = ""
) -> InvalidSchedule:
    return InvalidSchedule(message, code=code, position=position, hint=hint)
