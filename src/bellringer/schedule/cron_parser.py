"""Parses cron expressions. Every error carries the position in the text and, where possible, a hint.

A hint that suggests an expression suggests one that this parser accepts and that means what the user wrote."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from bellringer.schedule.cron_ast import (
    DAY,
    SECOND,
    WEEKDAY,
    WEEKDAY_FROM_1,
    YEAR,
    Dialect,
    Expression,
    Field,
    Hashed,
    Item,
    LastDay,
    NearestWeekday,
    NthWeekday,
    RangeItem,
    RangeToLastDay,
    covers_all,
)
from bellringer.schedule.cron_dialects import Token, cron_error, split_expression

_VALUE: Final = r"[0-9]+|[A-Z]+"
_RANGE: Final = re.compile(rf"(?:(?P<star>\*)|(?P<first>{_VALUE})(?:-(?P<last>{_VALUE}))?)(?:/(?P<step>[0-9]+))?")
_LAST_DAY: Final = re.compile(r"L(?:-(?P<before>[0-9]+))?(?P<nearest>W)?")
_TO_LAST_DAY: Final = re.compile(r"(?P<first>[0-9]+)-L(?:/(?P<step>[0-9]+))?")
_NEAREST: Final = re.compile(r"(?P<day>[0-9]+)W")
_NTH: Final = re.compile(rf"(?P<weekday>{_VALUE})#(?P<nth>[0-9]+)")
_LAST_WEEKDAY: Final = re.compile(r"(?P<weekday>[0-9]+|[A-Z]{3})L")
_HASHED: Final = re.compile(rf"H(?:\((?P<first>{_VALUE})-(?P<last>{_VALUE})\))?(?:/(?P<step>[0-9]+))?")
_HASH_RANGE: Final = re.compile(r"(?<![0-9A-Z])H\([0-9A-Z-]*\)")
_RANDOM: Final = re.compile(r"R(?![A-Z])")
_FOREIGN: Final = re.compile(r"[^0-9A-Z*,/#-]")


def parse_cron(expression: str, *, seconds: bool, dialect: Dialect = Dialect.UNIX) -> Expression:
    """Parse an expression of the dialect. In the default dialect it has five fields, or six with seconds."""
    split = split_expression(expression, seconds=seconds, dialect=dialect)
    items = {field.name: _parse_field(field, token, dialect) for field, token in split.fields}
    positions = {field.name: token.at for field, token in split.fields}
    weekday = items[WEEKDAY.name]
    year = items.get(YEAR.name, ())
    return Expression(
        text=split.text,
        dialect=dialect,
        second=items.get(SECOND.name, (RangeItem(first=0, last=0),)),
        minute=items["minute"],
        hour=items["hour"],
        day=items[DAY.name],
        month=items["month"],
        weekday=weekday if dialect is Dialect.UNIX else tuple(_count_from_zero(item) for item in weekday),
        year=() if covers_all(year) else year,
        day_position=positions[DAY.name],
        zone=split.zone,
    )


def _count_from_zero(item: Item) -> Item:
    """Converts a weekday of Quartz or AWS (SUN is 1) to the numbers of crontab (SUN is 0)."""
    if isinstance(item, NthWeekday):
        return replace(item, weekday=item.weekday - 1)
    assert isinstance(item, RangeItem), "no other item is allowed in the day of week"
    return replace(item, first=item.first - 1, last=item.last - 1, low=0)


def _parse_field(field: Field, token: Token, dialect: Dialect) -> tuple[Item, ...]:
    _check_characters(field, token)
    items, at = [], token.at
    for text in token.text.split(","):
        if dialect is not Dialect.UNIX and _HASHED.fullmatch(text):
            message = f"H is not part of the {dialect.value} dialect"
            raise cron_error(message, at, code="cron_unsupported", hint="use H in the default dialect")
        items.append(_parse_item(field, Token(text, at)))
        at += len(text) + 1
    return tuple(items)


def _check_characters(field: Field, token: Token) -> None:
    for found in re.finditer("(?:^|,)(?=.)", token.text):
        if _RANDOM.match(token.text, found.end()):
            message = f"R (a random time for each run) is not supported in the {field.name} field"
            hint = "write H for a fixed time that Bellringer chooses for the job"
            raise cron_error(message, token.at + found.end(), code="cron_unsupported", hint=hint)
    if "~" in token.text:
        message = f"~ (a random time in a range, as in cronie) is not supported in the {field.name} field"
        low, _, high = token.text.partition("~")
        hint = f"write H({low or field.low}-{high or field.high}) for a fixed time that Bellringer chooses for the job"
        raise cron_error(message, token.at + token.text.index("~"), code="cron_unsupported", hint=hint)
    foreign = _FOREIGN.search(_HASH_RANGE.sub(lambda found: "H" * len(found[0]), token.text))
    if foreign:
        message = f"the {field.name} field contains {foreign[0]!r}, which cron does not use"
        hint = "use digits, names, and the characters * , - / #"
        raise cron_error(message, token.at + foreign.start(), code="cron_charset", hint=hint)


def _parse_item(field: Field, item: Token) -> Item:
    if not item.text:
        message = f"the {field.name} field has an empty list item"
        raise cron_error(message, item.at, hint="remove the comma, or add a value next to it")
    special: Item | None = None
    if match := _HASHED.fullmatch(item.text):
        special = _parse_hashed(field, item, match)
    elif field is DAY:
        special = _parse_special_day(item)
    elif field in (WEEKDAY, WEEKDAY_FROM_1):
        special = _parse_special_weekday(field, item)
    return special or _parse_range(field, item)


def _parse_special_day(item: Token) -> Item | None:
    if match := _LAST_DAY.fullmatch(item.text):
        before = int(match["before"] or 0)
        if match["before"] and not 1 <= before <= 30:
            raise cron_error(f"day of month L-{before} is out of range L-1 to L-30", item.at)
        return NearestWeekday(day=None, before=before) if match["nearest"] else LastDay(before=before)
    if match := _NEAREST.fullmatch(item.text):
        return NearestWeekday(day=_parse_value(DAY, Token(match["day"], item.at)))
    if match := _TO_LAST_DAY.fullmatch(item.text):
        step = _parse_step(DAY, item, match) if match["step"] else 1
        return RangeToLastDay(first=_parse_value(DAY, Token(match["first"], item.at)), step=step)
    return None


def _parse_special_weekday(field: Field, item: Token) -> Item | None:
    if match := _NTH.fullmatch(item.text):
        nth = int(match["nth"])
        if not 1 <= nth <= 5:
            message = f"day of week {item.text}: the number after # must be 1 to 5"
            raise cron_error(
                message, item.at + match.start("nth"), hint="a weekday occurs at most five times in a month"
            )
        return NthWeekday(weekday=_parse_weekday(field, match["weekday"], item.at), nth=nth)
    if match := _LAST_WEEKDAY.fullmatch(item.text):
        return NthWeekday(weekday=_parse_weekday(field, match["weekday"], item.at), nth=None)
    if item.text == "L" and field is WEEKDAY_FROM_1:
        return RangeItem(first=7, last=7)  # Quartz: the last day of the week, Saturday
    return None


def _parse_weekday(field: Field, text: str, at: int) -> int:
    value = _parse_value(field, Token(text, at))
    return value % 7 if field is WEEKDAY else value


def _parse_hashed(field: Field, item: Token, match: re.Match[str]) -> Hashed:
    first, last = field.low, field.common
    if match["first"]:
        first = _parse_value(field, Token(match["first"], item.at + match.start("first")))
        last = _parse_value(field, Token(match["last"], item.at + match.start("last")))
        if max(first, last) > field.common:
            message = f"{field.name} {item.text} exceeds {field.common}"
            hint = f"H may choose from {field.low} to {field.common}, because not every month has more days"
            if field is WEEKDAY:
                hint = "write 0 or SUN for Sunday"
            raise cron_error(message, item.at + match.start("last"), code="cron_range", hint=hint)
    # H chooses a day that every month has, so a range of days wraps around after the 28th.
    hashed = Hashed(first=first, last=last, low=field.low, size=field.common - field.low + 1)
    if not match["step"]:
        return hashed
    step, size = _parse_step(field, item, match), len(hashed.values())
    if step > size:
        message = f"{field.name} {item.text}: the step exceeds the range of {size} values"
        hint = f"use at most {size}; for a longer interval use every(…)"
        raise cron_error(message, item.at + match.start("step"), code="cron_range", hint=hint)
    return replace(hashed, step=step)


def _parse_range(field: Field, item: Token) -> RangeItem:
    match = _RANGE.fullmatch(item.text)
    if match is None:
        message = f"{field.name} {item.text} is not a value, range or step"
        raise cron_error(message, item.at, hint=hint_for_text(field, item.text))
    if match["star"]:
        first, last = field.low, field.last
    else:
        first = _parse_value(field, Token(match["first"], item.at))
        last = first
        if match["last"]:
            last = _parse_value(field, Token(match["last"], item.at + match.start("last")))
        elif match["step"]:
            last = field.high
    if last < first and field is YEAR:
        message = f"year {match['first']}-{match['last']}: the range ends before it starts"
        raise cron_error(message, item.at, code="cron_range", hint=f"write {match['last']}-{match['first']}")
    if last < first and field is WEEKDAY and first == 7:
        first = 0
    step = _parse_step(field, item, match) if match["step"] else 1
    return RangeItem(first=first, last=last, step=step, star=bool(match["star"]), low=field.low, size=field.size)


def _parse_step(field: Field, item: Token, match: re.Match[str]) -> int:
    step = int(match["step"])
    if step == 0:
        raise cron_error(f"{field.name} {item.text}: the step must be at least 1", item.at + match.start("step"))
    return step


def _parse_value(field: Field, token: Token) -> int:
    if token.text in field.names:
        return field.low + field.names.index(token.text)
    if not token.text.isdigit():
        message = f"{field.name} {token.text} is neither a name nor a number"
        raise cron_error(message, token.at, hint=hint_for_text(field, token.text))
    value = int(token.text)
    if not field.low <= value <= field.high:
        raise cron_error(f"{field.name} {value} is out of range {field.low} to {field.high}", token.at)
    return value


_NTH_OF_RANGE: Final = re.compile(rf"(?P<first>{_VALUE})-(?P<last>{_VALUE})#(?P<nth>[1-5])")
_L_BEFORE: Final = re.compile(rf"L(?P<weekday>[0-7]|{'|'.join(WEEKDAY.names)})")
_W_BEFORE: Final = re.compile(r"W(?P<day>[0-9]{1,2})")


def hint_for_text(field: Field, text: str) -> str:
    """Returns a hint for an item that is not a value, range or step of its field."""
    if hint := _hint_for_special(field, text):
        return hint
    for sign, homes in (("L", (DAY, WEEKDAY)), ("W", (DAY,)), ("#", (WEEKDAY,))):
        if sign in text and field.name not in {home.name for home in homes} and text not in field.names:
            return f"{sign} is only allowed in the {' or the '.join(home.name for home in homes)} field"
    values = f"{field.low}–{field.high}"
    if not field.names:
        return f"use numbers {values}, for example {field.low} or */5"
    if len(text) > 3 and text[:3] in field.names and text.isalpha():
        return f"use the three-letter name: {text[:3]}"
    return f"use numbers {values} or names {field.names[0]}–{field.names[-1]}"


def _hint_for_special(field: Field, text: str) -> str | None:
    """Returns a hint for L, W and # in the right field but in the wrong form."""
    if field is DAY and (before := _W_BEFORE.fullmatch(text)):
        return f"W comes after the day: write {before['day']}W"
    if field is not WEEKDAY:
        return None
    if text == "L":
        return "name the weekday whose last occurrence in the month you mean, for example FRIL"
    if of_range := _NTH_OF_RANGE.fullmatch(text):
        first, last = (_number_of(WEEKDAY, of_range[end]) for end in ("first", "last"))
        days = [WEEKDAY.names[day % 7] for day in range(first, last + 1)] if 0 <= first <= last <= 7 else []
        if days:
            nth = of_range["nth"]
            return f"# comes after a single weekday: write {','.join(f'{day}#{nth}' for day in days)}"
    if before := _L_BEFORE.fullmatch(text):
        return f"L comes after the weekday: write {before['weekday']}L"
    return None


def _number_of(field: Field, text: str) -> int:
    if text in field.names:
        return field.low + field.names.index(text)
    return int(text) if text.isdigit() else -1
