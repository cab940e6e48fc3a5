"""The closed grammar of cron expressions: text in, items out; every refusal knows its position."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Final, NamedTuple

from bellringer.errors import InvalidSchedule
from bellringer.schedule.items import (
    DAY,
    FIELDS,
    WEEKDAY,
    Expression,
    Field,
    Hashed,
    Item,
    LastDay,
    NearestWeekday,
    NthWeekday,
    Span,
)

LONGEST: Final = 256
ALIASES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_VALUE: Final = r"[0-9]+|[A-Z]+"
_SPAN: Final = re.compile(rf"(?:(?P<star>\*)|(?P<first>{_VALUE})(?:-(?P<last>{_VALUE}))?)(?:/(?P<step>[0-9]+))?")
_LAST_DAY: Final = re.compile(r"L(?:-(?P<before>[0-9]+))?")
_NEAREST: Final = re.compile(r"(?P<day>[0-9]+|L)W")
_NTH: Final = re.compile(rf"(?P<weekday>{_VALUE})#(?P<nth>[0-9]+)")
_LAST_WEEKDAY: Final = re.compile(r"(?P<weekday>[0-9]+|[A-Z]{3})L")
_HASHED: Final = re.compile(rf"H(?:\((?P<first>{_VALUE})-(?P<last>{_VALUE})\))?(?:/(?P<step>[0-9]+))?")
_HASH_RANGE: Final = re.compile(r"(?<![0-9A-Z])H\([0-9A-Z-]*\)")
_RANDOM: Final = re.compile(r"R(?![A-Z])")
_FOREIGN: Final = re.compile(r"[^0-9A-Z*,/#-]")
_LEADING_ZEROS: Final = re.compile(r"(?<![0-9])0+(?=[0-9])")


class _Token(NamedTuple):
    """A piece of the expression in upper case, and where it began."""

    text: str
    at: int


def read(expression: str, *, seconds: bool) -> Expression:
    """Read an expression of five fields, or of six with the second first."""
    _check_text(expression)
    tokens = [_Token(found[0].upper(), found.start()) for found in re.finditer("[^ ]+", expression)]
    if tokens[0].text.startswith("@"):
        tokens = _expand(expression, tokens, seconds=seconds)
    _check_count(tokens, len(expression), seconds=seconds)
    text = _LEADING_ZEROS.sub("", " ".join(token.text for token in tokens))
    if not seconds:
        tokens = [_Token("0", tokens[0].at), *tokens]
    second, minute, hour, day, month, weekday = (
        _read_field(field, token) for field, token in zip(FIELDS, tokens, strict=True)
    )
    return Expression(
        text=text,
        second=second,
        minute=minute,
        hour=hour,
        day=day,
        month=month,
        weekday=weekday,
        day_position=tokens[3].at,
    )


def _check_text(expression: str) -> None:
    if not isinstance(expression, str):
        raise _refusal(f"a cron expression is text, not {type(expression).__name__}", 0)
    if len(expression) > LONGEST:
        message = f"the cron expression has {len(expression)} characters, more than {LONGEST}"
        raise _refusal(message, LONGEST, code="cron_too_long", hint="split it into several schedules")
    for position, character in enumerate(expression):
        if not " " <= character <= "~":
            message = f"the character {character!a} is not allowed in a cron expression"
            hint = "use ASCII only, and spaces between the fields"
            raise _refusal(message, position, code="cron_charset", hint=hint)
    if not expression.strip():
        raise _refusal("the cron expression is empty", 0, hint='write five fields, such as "0 9 * * MON-FRI"')
    zone = re.match(" *(?:CRON_)?TZ=", expression, re.IGNORECASE)
    if zone:
        message = "a time zone inside the cron expression is not supported"
        raise _refusal(message, 0, code="cron_unsupported", hint="name the zone with tz=")


def _expand(expression: str, tokens: list[_Token], *, seconds: bool) -> list[_Token]:
    name, at = tokens[0].text.lower(), tokens[0].at
    if name in ALIASES and len(tokens) == 1:
        fields = ALIASES[name].split()
        return [_Token(field, at) for field in (["0", *fields] if seconds else fields)]
    if name == "@every":
        interval = expression[at + len(name) :].strip() or "15m"
        hint = f'use an interval instead: every("{interval}")'
        raise _refusal("@every is not a cron expression", at, code="cron_unsupported", hint=hint)
    if name == "@reboot":
        message = "@reboot is not supported: a job belongs to no machine"
        raise _refusal(message, at, code="cron_unsupported", hint="trigger the job when your service starts")
    if name in ALIASES:
        raise _refusal(f"{name} stands alone", tokens[1].at, hint="drop what follows it")
    raise _refusal(f"{name} is not a known alias", at, hint=_suggest(name, tuple(ALIASES)))


def _check_count(tokens: list[_Token], end: int, *, seconds: bool) -> None:
    count, needed = len(tokens), 6 if seconds else 5
    if count == needed:
        return
    position = tokens[needed].at if count > needed else end
    if count == 6:
        message = "six fields begin with the second, which has not been asked for"
        hint = "pass seconds=True, or leave out one field"
        raise _refusal(message, position, code="cron_unsupported", hint=hint)
    if count == 7:
        message, hint = "a field for the year is not supported", "leave it out; give the job an end instead"
        raise _refusal(message, position, code="cron_unsupported", hint=hint)
    names = ", ".join(field.name for field in FIELDS[-needed:])
    message = f"{count} field{'s' * (count > 1)} where {needed} are needed ({names})"
    raise _refusal(message, position, hint="write * for a field that does not matter")


def _read_field(field: Field, token: _Token) -> tuple[Item, ...]:
    _check_characters(field, token)
    items, at = [], token.at
    for text in token.text.split(","):
        items.append(_read_item(field, _Token(text, at)))
        at += len(text) + 1
    return tuple(items)


def _check_characters(field: Field, token: _Token) -> None:
    if "?" in token.text:
        position = token.at + token.text.index("?")
        raise _refusal(f"{field.name} ? is not supported", position, code="cron_unsupported", hint="write *")
    for found in re.finditer("(?:^|,)(?=.)", token.text):
        if _RANDOM.match(token.text, found.end()):
            message = f"{field.name} R (another time every time) is not supported"
            hint = "write H for a time that is chosen for you and stays"
            raise _refusal(message, token.at + found.end(), code="cron_unsupported", hint=hint)
    foreign = _FOREIGN.search(_HASH_RANGE.sub(lambda found: "H" * len(found[0]), token.text))
    if foreign:
        message = f"{field.name} has the character {foreign[0]!r}, which no field knows"
        hint = "use digits, names, and the signs * , - / #"
        raise _refusal(message, token.at + foreign.start(), code="cron_charset", hint=hint)


def _read_item(field: Field, item: _Token) -> Item:
    if not item.text:
        message = f"{field.name} has an empty place in its list"
        raise _refusal(message, item.at, hint="drop the comma or write a value beside it")
    special: Item | None = None
    if match := _HASHED.fullmatch(item.text):
        special = _read_hashed(field, item, match)
    elif field is DAY:
        special = _read_day(item)
    elif field is WEEKDAY:
        special = _read_weekday(item)
    return special or _read_span(field, item)


def _read_day(item: _Token) -> Item | None:
    if match := _LAST_DAY.fullmatch(item.text):
        before = int(match["before"] or 0)
        if match["before"] and not 1 <= before <= 30:
            raise _refusal(f"day of month L-{before} is out of range L-1–L-30", item.at)
        return LastDay(before=before)
    if match := _NEAREST.fullmatch(item.text):
        day = match["day"]
        return NearestWeekday(day=None if day == "L" else _value(DAY, _Token(day, item.at)))
    return None


def _read_weekday(item: _Token) -> Item | None:
    if match := _NTH.fullmatch(item.text):
        nth = int(match["nth"])
        if not 1 <= nth <= 5:
            message = f"day of week {item.text}: the number after # is out of range 1–5"
            raise _refusal(message, item.at + match.start("nth"), hint="a month has at most five of a weekday")
        return NthWeekday(weekday=_value(WEEKDAY, _Token(match["weekday"], item.at)) % 7, nth=nth)
    if match := _LAST_WEEKDAY.fullmatch(item.text):
        return NthWeekday(weekday=_value(WEEKDAY, _Token(match["weekday"], item.at)) % 7, nth=None)
    return None


def _read_hashed(field: Field, item: _Token, match: re.Match[str]) -> Hashed:
    first, last = field.low, field.common
    if match["first"]:
        first = _value(field, _Token(match["first"], item.at + match.start("first")))
        last = _value(field, _Token(match["last"], item.at + match.start("last")))
        if last < first:
            message = f"{field.name} {item.text} runs backwards"
            raise _refusal(message, item.at, code="cron_range", hint=f"write H({match['last']}-{match['first']})")
        if last > field.common:
            message = f"{field.name} {item.text} goes beyond {field.common}"
            hint = f"H stays within {field.low}–{field.common}, which there always is"
            raise _refusal(message, item.at + match.start("last"), code="cron_range", hint=hint)
    step = _step(field, item, match, last - first + 1) if match["step"] else None
    return Hashed(first=first, last=last, step=step)


def _read_span(field: Field, item: _Token) -> Span:
    match = _SPAN.fullmatch(item.text)
    if match is None:
        message = f"{field.name} {item.text} is not a value, a range or a step"
        raise _refusal(message, item.at, hint=_hint_for(field, item.text))
    if match["star"]:
        first, last = field.low, field.last
    else:
        first = _value(field, _Token(match["first"], item.at))
        last = first
        if match["last"]:
            last = _value(field, _Token(match["last"], item.at + match.start("last")))
        elif match["step"]:
            last = field.high
    if last < first:
        _refuse_wrap(field, item, match["first"], match["last"])
    step = _step(field, item, match, last - first + 1) if match["step"] else 1
    return Span(first=first, last=last, step=step, star=bool(match["star"]))


def _refuse_wrap(field: Field, item: _Token, first: str, last: str) -> None:
    message = f"{field.name} {first}-{last} runs backwards"
    if field is WEEKDAY and last in ("0", "SUN"):
        hint = f"Sunday ends a week as 7: write {first}-7"
    else:
        hint = f"write it as two: {first}-{field.last},{field.low}-{last}"
    raise _refusal(message, item.at, code="cron_range", hint=hint)


def _step(field: Field, item: _Token, match: re.Match[str], size: int) -> int:
    step, position = int(match["step"]), item.at + match.start("step")
    if step == 0:
        raise _refusal(f"{field.name} {item.text} has a step of 0", position, hint="a step is 1 or more")
    if step > size:
        message = f"{field.name} {item.text} has a step beyond its range of {size} values"
        hint = f"use at most {size}; for a longer rhythm use every(…)"
        raise _refusal(message, position, code="cron_range", hint=hint)
    return step


def _value(field: Field, token: _Token) -> int:
    if token.text in field.names:
        return field.low + field.names.index(token.text)
    if not token.text.isdigit():
        message = f"{field.name} {token.text} is not a known name or number"
        raise _refusal(message, token.at, hint=_hint_for(field, token.text))
    value = int(token.text)
    if not field.low <= value <= field.high:
        raise _refusal(f"{field.name} {value} is out of range {field.low}–{field.high}", token.at)
    return value


def _hint_for(field: Field, text: str) -> str:
    if field is WEEKDAY and text == "L":
        return "say which weekday is the last one of the month, such as FRIL"
    for sign, homes in (("L", (DAY, WEEKDAY)), ("W", (DAY,)), ("#", (WEEKDAY,))):
        if sign in text and field not in homes and text not in field.names:
            return f"{sign} belongs in the {' or the '.join(home.name for home in homes)}"
    values = f"{field.low}–{field.high}"
    if not field.names:
        return f"use numbers {values}, such as {field.low} or */5"
    if len(text) > 3 and text[:3] in field.names:
        return f"names have three letters: {text[:3]}"
    return f"use numbers {values} or names {field.names[0]}–{field.names[-1]}"


def _suggest(word: str, known: tuple[str, ...]) -> str:
    near = get_close_matches(word, known, n=1)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"


def _refusal(message: str, position: int, *, code: str = "cron_invalid", hint: str = "") -> InvalidSchedule:
    return InvalidSchedule(message, code=code, position=position, hint=hint)
