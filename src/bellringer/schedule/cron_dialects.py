"""Splits cron expressions into fields, by dialect, and recognizes expressions that were written for another one.

An expression in the wrong dialect is refused with the name of the right one. It is never read with the rules of the
dialect that was asked for, because the weekday 6 is Saturday in one and Friday in another."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Final, NamedTuple

from bellringer.errors import InvalidSchedule
from bellringer.schedule.cron_ast import (
    DAY,
    FIELDS,
    HOUR,
    MINUTE,
    MONTH,
    SECOND,
    WEEKDAY,
    WEEKDAY_FROM_1,
    YEAR,
    Dialect,
    Field,
)

MAX_EXPRESSION_LENGTH: Final = 256
ALIASES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_QUARTZ_FIELDS: Final = (SECOND, MINUTE, HOUR, DAY, MONTH, WEEKDAY_FROM_1, YEAR)
_AWS_FIELDS: Final = (MINUTE, HOUR, DAY, MONTH, WEEKDAY_FROM_1, YEAR)
_SPACES: Final = " \t\r\n"
_ZONE_PREFIX: Final = re.compile(r"\s*(?:CRON_)?TZ=(?P<zone>\S*)", re.IGNORECASE)
_WRAPPED: Final = re.compile(r"\s*(?P<kind>cron|rate|at)\s*\((?P<inner>[^()]*)\)\s*", re.IGNORECASE)
_RATE: Final = re.compile(r"\s*(?P<count>[0-9]{1,9})\s+(?P<unit>minute|hour|day)s?\s*", re.IGNORECASE)
_YEAR_ITEM: Final = re.compile("[0-9]{4}")
_LEADING_ZEROS: Final = re.compile(r"(?<![0-9])0+(?=[0-9])")


class Token(NamedTuple):
    """A part of the expression in upper case, and its position in the text."""

    text: str
    at: int


class SplitExpression(NamedTuple):
    """The fields of an expression with their texts, its canonical text, and the time zone of a `CRON_TZ=` prefix."""

    fields: list[tuple[Field, Token]]
    text: str
    zone: str | None


def cron_error(message: str, position: int, *, code: str = "cron_invalid", hint: str = "") -> InvalidSchedule:
    return InvalidSchedule(message, code=code, position=position, hint=hint)


def split_expression(expression: str, *, seconds: bool, dialect: Dialect) -> SplitExpression:
    """Split an expression into the fields of its dialect. Raises InvalidSchedule."""
    _check_text(expression)
    if dialect is Dialect.UNIX:
        return _split_unix(expression, seconds=seconds)
    if seconds:
        message, hint = f"seconds=True is not allowed with dialect={dialect.value!r}", "remove it"
        raise InvalidSchedule(message, code="cron_dialect", pointer="/seconds", hint=hint)
    if zone := _ZONE_PREFIX.match(expression):
        message = f"{zone[0].strip().partition('=')[0]}= is not part of the {dialect.value} dialect"
        raise cron_error(message, 0, code="cron_dialect", hint="pass the time zone as tz=")
    return _split_aws(expression) if dialect is Dialect.AWS else _split_quartz(expression)


def _check_text(expression: str) -> None:
    if not isinstance(expression, str):
        raise cron_error(f"a cron expression must be a string, not {type(expression).__name__}", 0)
    if len(expression) > MAX_EXPRESSION_LENGTH:
        message = f"the cron expression has {len(expression)} characters; the maximum is {MAX_EXPRESSION_LENGTH}"
        raise cron_error(message, MAX_EXPRESSION_LENGTH, code="cron_too_long", hint="split it into several schedules")
    # crontab(5) separates fields by spaces or tabs. Text that was read from a file may begin or end with line breaks.
    start = len(expression) - len(expression.lstrip(_SPACES))
    for position, character in enumerate(expression.strip(_SPACES), start=start):
        if not " " <= character <= "~" and character != "\t":
            message = f"the character {character!a} is not allowed in a cron expression"
            hint = "use only ASCII, with spaces or tabs between the fields"
            raise cron_error(message, position, code="cron_charset", hint=hint)
    if not expression.strip(_SPACES):
        raise cron_error("the cron expression is empty", 0, hint='write five fields, for example "0 9 * * MON-FRI"')


def _tokens(expression: str) -> list[Token]:
    return [Token(found[0].upper(), found.start()) for found in re.finditer(r"[^ \t\r\n]+", expression)]


def _canonical_text(tokens: list[Token]) -> str:
    return _LEADING_ZEROS.sub("", " ".join(token.text for token in tokens))


def _split_unix(expression: str, *, seconds: bool) -> SplitExpression:
    zone = None
    if prefix := _ZONE_PREFIX.match(expression):
        zone = prefix["zone"]
        expression = " " * prefix.end() + expression[prefix.end() :]  # positions in errors stay true
        if not expression.strip(_SPACES):
            message = "the cron expression has a time zone, but no fields"
            raise cron_error(message, len(expression), hint=f'write "{prefix[0].strip()} 0 9 * * *"')
    if wrapped := _WRAPPED.fullmatch(expression):
        raise _looks_like(Dialect.AWS, wrapped.start("kind"))
    tokens = _tokens(expression)
    if tokens[0].text.startswith("@"):
        tokens = _expand_alias(expression, tokens, seconds=seconds)
    tokens = _read_question_marks(tokens, seconds=seconds)
    _check_unix_count(tokens, len(expression), seconds=seconds)
    fields = FIELDS if seconds else FIELDS[1:]
    return SplitExpression(list(zip(fields, tokens, strict=True)), _canonical_text(tokens), zone)


def _expand_alias(expression: str, tokens: list[Token], *, seconds: bool) -> list[Token]:
    name, at = tokens[0].text.lower(), tokens[0].at
    if name in ALIASES and len(tokens) == 1:
        fields = ALIASES[name].split()
        return [Token(field, at) for field in (["0", *fields] if seconds else fields)]
    if name == "@every":
        interval = expression[at + len(name) :].strip() or "15m"
        hint = f'use an interval instead: every("{interval}")'
        raise cron_error("@every is not a cron expression", at, code="cron_unsupported", hint=hint)
    if name == "@reboot":
        message = "@reboot is not supported: a job is not tied to a machine"
        raise cron_error(message, at, code="cron_unsupported", hint="trigger the job when your service starts")
    if name in ALIASES:
        raise cron_error(f"{name} takes no further fields", tokens[1].at, hint=f"remove everything after {name}")
    near = get_close_matches(name, ALIASES, n=1)
    hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(ALIASES)}"
    raise cron_error(f"unknown alias {name}", at, hint=hint)


def _read_question_marks(tokens: list[Token], *, seconds: bool) -> list[Token]:
    """Replace `?` in a day field by `*`. Expressions of Quartz and AWS are refused: they number weekdays from 1."""
    marked = [place for place, token in enumerate(tokens) if "?" in token.text]
    if not marked:
        return tokens
    if foreign := _dialect_of_marks(len(tokens), marked):
        by_number = re.search("[0-9]", re.sub("[#/][0-9]+", "", tokens[-1].text))
        if not (seconds and len(tokens) == 6 and foreign is Dialect.QUARTZ and not by_number):
            raise _looks_like(foreign, tokens[marked[0]].at)
    fields = FIELDS[-len(tokens) :]
    for place in marked:
        token = tokens[place]
        if place >= len(fields) or fields[place] not in (DAY, WEEKDAY) or token.text != "?":
            message = "? stands alone, in the day of month or the day of week field"
            raise cron_error(message, token.at + token.text.index("?"), hint="write *")
    return [Token("*", token.at) if token.text == "?" else token for token in tokens]


def _dialect_of_marks(count: int, marked: list[int]) -> Dialect | None:
    """Returns the dialect that has this number of fields and its day fields at these places."""
    if count == 7 and marked[0] in (3, 5):
        return Dialect.QUARTZ
    if count == 6 and marked[0] in (3, 5):
        return Dialect.QUARTZ
    return Dialect.AWS if count == 6 and marked[0] in (2, 4) else None


def _looks_like(dialect: Dialect, position: int) -> InvalidSchedule:
    name = {Dialect.QUARTZ: "Quartz", Dialect.AWS: "AWS EventBridge", Dialect.UNIX: "crontab"}[dialect]
    message = f"this looks like an expression for {name}"
    hint = f'pass dialect="{dialect.value}"'
    if dialect is not Dialect.UNIX:
        hint += "; there 1 is Sunday, in the default dialect 0 is"
    return cron_error(message, position, code="cron_dialect", hint=hint)


def _check_unix_count(tokens: list[Token], end: int, *, seconds: bool) -> None:
    count, needed = len(tokens), 6 if seconds else 5
    if count == needed:
        return
    position = tokens[needed].at if count > needed else end
    if count == 6 and _YEAR_ITEM.match(tokens[5].text):
        message = "the default dialect has no year field"
        hint = 'pass dialect="aws", with ? in one of the day fields, or set the end of the job (ends_at)'
        raise cron_error(message, tokens[5].at, code="cron_dialect", hint=hint)
    if count == 6:
        message = "the expression has six fields, but seconds are not enabled"
        moved = " ".join(token.text for token in (tokens[5], *tokens[:5]))
        hint = f'pass seconds=True if the second comes first; croniter has it last: move it to the front ("{moved}")'
        raise cron_error(message, position, code="cron_unsupported", hint=hint)
    if count == 7:
        message = "the default dialect has no year field"
        raise cron_error(message, tokens[6].at, code="cron_dialect", hint=_hint_of_seven_fields(tokens))
    names = ", ".join(field.name for field in FIELDS[-needed:])
    message = f"the expression has {count} field{'s' * (count > 1)}; it needs {needed} ({names})"
    raise cron_error(message, position, hint="write * for a field that may have any value")


def _hint_of_seven_fields(tokens: list[Token]) -> str:
    """Says how to write an expression with a year. Quartz begins with the second; croniter has it after the weekday."""
    minute, hour, day, month, weekday, second, year = (token.text for token in tokens)
    quartz = 'for Quartz, pass dialect="quartz", with ? in one of the day fields'
    if weekday != "*":
        return f"{quartz}; croniter has the second before the year, Quartz has it first"
    return f'{quartz}; for croniter, write "{second} {minute} {hour} {day} {month} ? {year}" in that dialect'


def _split_quartz(expression: str) -> SplitExpression:
    tokens = _tokens(expression)
    _check_foreign_shape(tokens, expression, Dialect.QUARTZ)
    if len(tokens) not in (6, 7):
        message = f"a Quartz expression has 6 or 7 fields, not {len(tokens)}"
        hint = "the fields are second, minute, hour, day of month, month, day of week and optionally year"
        raise cron_error(message, tokens[-1].at, code="cron_dialect", hint=hint)
    return _split_with_mark(tokens, _QUARTZ_FIELDS[: len(tokens)], "Quartz")


def _split_aws(expression: str) -> SplitExpression:
    if wrapped := _WRAPPED.fullmatch(expression):
        kind, at = wrapped["kind"].lower(), wrapped.start("kind")
        if kind != "cron":
            raise _not_cron(kind, wrapped["inner"], at)
        start, end = wrapped.span("inner")
        expression = " " * start + expression[start:end]
        if not expression.strip(_SPACES):
            raise cron_error("cron() has no fields", start, hint='write "cron(0 9 ? * MON-FRI *)"')
    tokens = _tokens(expression)
    _check_foreign_shape(tokens, expression, Dialect.AWS)
    if len(tokens) != 6:
        message = f"an AWS expression has 6 fields, not {len(tokens)}"
        hint = "the fields are minute, hour, day of month, month, day of week and year"
        raise cron_error(message, tokens[-1].at, code="cron_dialect", hint=hint)
    return _split_with_mark(tokens, _AWS_FIELDS, "AWS")


def _not_cron(kind: str, inner: str, at: int) -> InvalidSchedule:
    """Returns the error for `rate(…)` and `at(…)` of AWS, with the equivalent schedule."""
    if kind == "rate":
        rate = _RATE.fullmatch(inner)
        interval = f"{int(rate['count'])}{rate['unit'][0].lower()}" if rate else "5m"
        hint = f'use an interval instead: every("{interval}")'
    else:
        instant = inner.strip().upper()
        hint = f'use a one-shot instead: at("{instant or "2026-12-01T09:00:00"}Z"), with the offset of its time zone'
    return cron_error(f"{kind}(…) is not a cron expression", at, code="cron_unsupported", hint=hint)


def _check_foreign_shape(tokens: list[Token], expression: str, dialect: Dialect) -> None:
    """Refuse an expression that has the shape of another dialect."""
    if tokens[0].text.startswith("@") or len(tokens) == 5:
        raise _looks_like(Dialect.UNIX, tokens[0].at)
    if dialect is Dialect.QUARTZ and (wrapped := _WRAPPED.fullmatch(expression)):
        raise _looks_like(Dialect.AWS, wrapped.start("kind"))
    marked = [place for place, token in enumerate(tokens) if token.text == "?"]
    found = _dialect_of_marks(len(tokens), marked) if marked else None
    if found is not None and found is not dialect:
        raise _looks_like(found, tokens[marked[0]].at)


def _split_with_mark(tokens: list[Token], fields: tuple[Field, ...], name: str) -> SplitExpression:
    """Check that exactly one day field is `?`, and read it as `*`: the other field decides alone."""
    places = [fields.index(DAY), fields.index(WEEKDAY_FROM_1)]
    marked = [place for place in places if tokens[place].text == "?"]
    if len(marked) != 1:
        missing = not marked
        message = f"{name} requires ? in exactly one of the day of month and day of week fields"
        hint = "write ? in the field that should not matter" if missing else "write * in one of them"
        raise cron_error(message, tokens[places[1 if missing else 0]].at, code="cron_dialect", hint=hint)
    read = [
        Token("*" if place in marked else _complete_step(token.text), token.at) for place, token in enumerate(tokens)
    ]
    return SplitExpression(list(zip(fields, read, strict=True)), _canonical_text(tokens), None)


def _complete_step(text: str) -> str:
    """Quartz reads `/15` as `*/15`."""
    return re.sub(r"(?:^|(?<=,))/", "*/", text)
