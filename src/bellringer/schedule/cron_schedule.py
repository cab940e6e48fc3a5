"""Cron schedules: an expression, evaluated in a time zone.

Bellringer has its own evaluator because a comparison with a walk over every minute found four faults in cronsim:
during the second pass of a repeated hour it returns times in the past; with a seconds field it skips a fixed time in
a DST gap and repeats one in a fold; where midnight is skipped it invents one; and after Lord Howe's repeated half
hour it loses the next occurrence. It also lacks `W`, `L-3` and counting. The tests still compare against it.

`H` in a field is replaced by a value derived from SHA-256 of the seed and the field's name, so that jobs with the
same expression spread out. The value is the same on every machine and in every version."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from itertools import product
from typing import ClassVar, Final, Literal

from bellringer.errors import InvalidSchedule
from bellringer.schedule import cron_parser
from bellringer.schedule.cron_ast import (
    FIELDS,
    YEAR,
    DayMatch,
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
    match_both,
)
from bellringer.schedule.describe import describe_cron
from bellringer.schedule.dst import DstFold, DstGap, parse_dst_policy, parse_enum
from bellringer.schedule.holiday_calendars import DaysOff, Shift
from bellringer.schedule.repeat_count import RepeatCount, check_reachable, limit_pattern, parse_repeat_count
from bellringer.schedule.time_zones import check_zone
from bellringer.schedule.wall_clock import WallClockPattern, below, bit_set, highest, year_bounds
from bellringer.schedule.zoned_schedule import ZonedSchedule, apply_calendar, parse_days_off

_CACHE_SIZE: Final = 16_384
MAX_SEED_LENGTH: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Cron(ZonedSchedule):
    """A cron schedule, created by `cron`. `expression` is canonical: single spaces, capitals, no alias, no leading
    zeros. `seed` determines the value of each `H`. `day_match` is None for the rule of crontab. `repeat` limits the
    number of occurrences.
    """

    kind: ClassVar[Literal["cron"]] = "cron"
    expression: str
    seconds: bool = False
    seed: str = ""
    dialect: Dialect = Dialect.UNIX
    day_match: DayMatch | None = None
    repeat: RepeatCount | None = None

    def pattern(self) -> WallClockPattern:
        """The wall-clock days and times of the schedule, after its days off and its repeat count were applied."""
        if self.repeat is not None:
            return _limited_cached(self)
        return _compile_cached(self.expression, self.seconds, self.seed, self.dialect, self.day_match, self.days_off)

    @property
    def fixed_time(self) -> bool:
        """Whether the schedule names fixed times of day rather than an interval of hours or minutes."""
        return self.resolved().fixed_time

    @property
    def hashed(self) -> bool:
        """Whether the expression contains an `H`."""
        return "H" in self.expression and _parse_cached(self.expression, self.seconds, self.dialect).hashed

    @property
    def plain_expression(self) -> str:
        """The expression with a concrete value in place of each `H`."""
        return self.resolved().text

    def resolved(self) -> Expression:
        """The parsed expression with a concrete value in place of each `H`."""
        return _resolve_cached(self.expression, self.seconds, self.seed, self.dialect)

    def describe(self) -> str:
        return _describe_cached(self)


def cron(
    expression: str,
    *,
    tz: str | None = None,
    seconds: bool = False,
    dialect: Dialect | str = Dialect.UNIX,
    day_match: DayMatch | str | None = None,
    times: int | None = None,
    start: datetime | str | None = None,
    gap: DstGap | str | None = None,
    fold: DstFold | str | None = None,
    seed: str | None = None,
    calendar: str | None = None,
    shift: Shift | str | None = None,
    calendar_digest: str = "",
) -> Cron:
    """Create a cron schedule from an expression of five fields, or of six fields (second first) if `seconds` is true.

    `dialect` is "unix", "quartz" or "aws". `day_match` decides whether a day must match "either" or "both" of the day
    fields; the default follows crontab. `times` ends the schedule after this many occurrences from `start` on, an
    instant that defaults to the registration of the job. `gap` and `fold` decide how DST changes are handled, and
    `seed` determines the values of `H`. `calendar` names a calendar; `shift` decides whether an occurrence on a day
    off is skipped or moved to a working day. The default time zone is UTC.
    """
    chosen = parse_enum(dialect, Dialect, key="dialect", what="dialect")
    match = None if day_match is None else parse_enum(day_match, DayMatch, key="day_match", what="day_match")
    read = cron_parser.parse_cron(expression, seconds=seconds, dialect=chosen)
    if match is not None and chosen is not Dialect.UNIX:
        message, hint = f"day_match is not allowed with dialect={chosen.value!r}", "remove it: one day field is ?"
        raise InvalidSchedule(message, code="day_match_unknown", pointer="/day_match", hint=hint)
    seed = _check_seed(read, seed)
    evaluated = cron_parser.parse_cron(replace_hashes(read, seed), seconds=seconds) if read.hashed else read
    if not compile_cron(evaluated, match).fires:
        raise InvalidSchedule(
            "the cron expression never fires: no date matches it",
            code="cron_never_fires",
            position=read.day_position,
            hint="check that the day of month exists in the months given; L is the last day of a month",
        )
    chosen_gap, chosen_fold = parse_dst_policy(gap, fold, fixed_time=evaluated.fixed_time)
    made = Cron(
        expression=read.text,
        timezone=_choose_zone(read, tz),
        seconds=seconds,
        dialect=chosen,
        day_match=match,
        repeat=parse_repeat_count(times, start),
        gap=chosen_gap,
        fold=chosen_fold,
        seed=seed,
    )
    check_reachable(made.pattern(), made.repeat)
    days_off = parse_days_off(calendar, shift, calendar_digest)
    return made if days_off is None else replace(made, days_off=days_off)


def _choose_zone(read: Expression, tz: str | None) -> str:
    """Returns the time zone of the option or of the `CRON_TZ=` prefix."""
    if read.zone is None:
        return check_zone("UTC" if tz is None else tz)
    try:
        zone = check_zone(read.zone)
    except InvalidSchedule as error:
        error.pointer, error.position = "", 0
        raise
    if tz is not None and check_zone(tz) != zone:
        message = f"the expression names the time zone {zone}, but tz is {tz}"
        raise InvalidSchedule(message, code="timezone_conflict", position=0, hint="remove one of them")
    return zone


def _check_seed(read: Expression, seed: str | None) -> str:
    if seed is None:
        return ""
    if not isinstance(seed, str) or not 0 < len(seed) <= MAX_SEED_LENGTH:
        message, hint = f"seed must be a string of 1 to {MAX_SEED_LENGTH} characters", "use the name of the job"
        raise InvalidSchedule(message, code="seed_invalid", pointer="/seed", hint=hint)
    if not read.hashed:
        message, hint = "seed is set, but the expression has no H", "write H in a field, or remove the seed"
        raise InvalidSchedule(message, code="seed_invalid", pointer="/seed", hint=hint)
    return seed


@lru_cache(maxsize=_CACHE_SIZE)
def _describe_cached(schedule: Cron) -> str:
    return describe_cron(
        schedule.resolved(),
        schedule.timezone,
        spread=schedule.hashed,
        day_match=schedule.day_match,
        repeat=schedule.repeat,
        days_off=schedule.days_off,
    )


@lru_cache(maxsize=_CACHE_SIZE)
def _parse_cached(expression: str, seconds: bool, dialect: Dialect) -> Expression:
    return cron_parser.parse_cron(expression, seconds=seconds, dialect=dialect)


@lru_cache(maxsize=_CACHE_SIZE)
def _resolve_cached(expression: str, seconds: bool, seed: str, dialect: Dialect) -> Expression:
    read = _parse_cached(expression, seconds, dialect)
    return _parse_cached(replace_hashes(read, seed), seconds, dialect) if read.hashed else read


@lru_cache(maxsize=_CACHE_SIZE)
def _compile_cached(
    expression: str,
    seconds: bool,
    seed: str,
    dialect: Dialect,
    day_match: DayMatch | None,
    days_off: DaysOff | None,
) -> WallClockPattern:
    pattern = compile_cron(_resolve_cached(expression, seconds, seed, dialect), day_match)
    return pattern if days_off is None else apply_calendar(pattern, days_off)


@lru_cache(maxsize=_CACHE_SIZE)
def _limited_cached(schedule: Cron) -> WallClockPattern:
    assert schedule.repeat is not None, "only a schedule with a repeat count is limited"
    unlimited = replace(schedule, repeat=None).pattern()
    return limit_pattern(unlimited, schedule.timezone, schedule.gap, schedule.fold, schedule.repeat)


def crontab_text(schedule: Cron) -> tuple[str, bool]:
    """Returns the expression in the default dialect, and whether it has a second field. `H` is replaced by its value.

    Equal schedules of different dialects therefore have the same text. There is no such text for an expression with a
    year.
    """
    expression = schedule.resolved()
    if expression.dialect is Dialect.UNIX:
        return expression.text, schedule.seconds
    fields = ["*" if field == "?" else field for field in expression.text.split(" ")]
    if expression.dialect is Dialect.AWS:
        fields.insert(0, "0")
    fields = [re.sub(r"(?:^|(?<=,))/", "*/", field) for field in fields[:5]]
    fields.append(",".join(_weekday_text(item) for item in expression.weekday))
    return (" ".join(fields[1:]), False) if fields[0] == "0" else (" ".join(fields), True)


def _weekday_text(item: Item) -> str:
    if isinstance(item, NthWeekday):
        return f"{item.weekday}L" if item.nth is None else f"{item.weekday}#{item.nth}"
    assert isinstance(item, RangeItem), "no other item is allowed in the day of week"
    step = f"/{item.step}" if item.step > 1 else ""
    if item.star:
        return f"*{step}"
    return str(item.first) if item.first == item.last else f"{item.first}-{item.last}{step}"


def quartz_text(schedule: Cron) -> str:
    """Returns the expression of a schedule with a year in the Quartz dialect. AWS has the same fields, except for the
    second.
    """
    expression = schedule.resolved()
    return expression.text if expression.dialect is Dialect.QUARTZ else f"0 {expression.text}"


def replace_hashes(expression: Expression, seed: str) -> str:
    """Returns the text of an expression with a concrete value in place of each `H`."""
    texts = expression.text.split(" ")
    fields = list(zip(FIELDS, expression.fields, strict=True))[-len(texts) :]
    return " ".join(
        ",".join(_replace_hash(field, item, part, seed) for item, part in zip(items, text.split(","), strict=True))
        for (field, items), text in zip(fields, texts, strict=True)
    )


def _replace_hash(field: Field, item: Item, text: str, seed: str) -> str:
    if not isinstance(item, Hashed):
        return text
    choices, step = item.values(), item.step
    place = _hash_of(seed, field) % (len(choices) if step is None else step)
    values = choices[place : place + 1] if step is None else choices[place::step]
    if len(values) == 1:
        return str(values[0])
    if item.last < item.first:
        return ",".join(map(str, values))
    return f"{values[0]}-{values[-1]}" + (f"/{step}" if step and step > 1 else "")


def _hash_of(seed: str, field: Field) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}\n{field.name}".encode()).digest()[:8])


def compile_cron(expression: Expression, day_match: DayMatch | None = None) -> WallClockPattern:
    """Compile an expression to a wall-clock pattern."""
    years = bit_set(value - YEAR.low for item in expression.year for value in _range_values(item))
    return WallClockPattern(
        seconds=_field_bits(expression.second),
        minutes=_field_bits(expression.minute),
        hours=_field_bits(expression.hour),
        months=_field_bits(expression.month),
        days=_days_by_month_shape(expression.day, expression.weekday, day_match),
        fixed_time=expression.fixed_time,
        years=years if expression.year else None,
        bounds=year_bounds(years) if expression.year else None,
    )


@lru_cache(maxsize=4096)
def _days_by_month_shape(
    day: tuple[Item, ...], weekday: tuple[Item, ...], day_match: DayMatch | None
) -> tuple[int, ...]:
    """Returns the matching days of each month shape. Cached: many expressions share the same day fields, and this is
    most of the work of compiling.
    """
    both = match_both(day, weekday, day_match)
    shapes = []
    for length, first in product(range(28, 32), range(7)):
        by_date = by_weekday = 0
        for item in day:
            by_date |= _date_bits(item, length, first)
        for item in weekday:
            by_weekday |= _weekday_bits(item, length, first)
        shapes.append(by_date & by_weekday if both else by_date | by_weekday)
    return tuple(shapes)


def _date_bits(item: Item, length: int, first: int) -> int:
    match item:
        case RangeItem():
            return bit_set(item.values()) & below(length + 1)
        case LastDay(before=before):
            return 1 << length - before if before < length else 0
        case RangeToLastDay(first=low, step=step):
            return bit_set(range(low, length + 1, step))
        case NearestWeekday(day=None, before=before):
            return 1 << _nearest_weekday(length - before, length, first) if before < length else 0
        case NearestWeekday(day=int(day)) if day <= length:
            return 1 << _nearest_weekday(day, length, first)
    return 0


def _nearest_weekday(day: int, length: int, first: int) -> int:
    weekday = (first + day - 1) % 7
    if weekday == 5:
        return day - 1 if day > 1 else day + 2
    if weekday == 6:
        return day + 1 if day < length else day - 2
    return day


def _weekday_bits(item: Item, length: int, first: int) -> int:
    bits = 0
    match item:
        case RangeItem():
            for weekday in {value % 7 for value in item.values()}:
                bits |= _dates_of_weekday(weekday, length, first)
        case NthWeekday(weekday=weekday, nth=None):
            bits = 1 << highest(_dates_of_weekday(weekday, length, first))
        case NthWeekday(weekday=weekday, nth=int(nth)):
            bits = _dates_of_weekday(weekday, length, first) & below(nth * 7 + 1) & ~below(nth * 7 - 6)
    return bits


def _dates_of_weekday(weekday: int, length: int, first: int) -> int:
    """The dates of a weekday in the month. `weekday` counts from Sunday, `first` from Monday."""
    start = (weekday - 1 - first) % 7 + 1
    return bit_set(range(start, length + 1, 7))


def _field_bits(items: tuple[Item, ...]) -> int:
    return bit_set(value for item in items for value in _range_values(item))


def _range_values(item: Item) -> Sequence[int]:
    return item.values() if isinstance(item, RangeItem) else ()


def day_match_matters(schedule: Cron) -> bool:
    """Whether the choice of the day fields changes the days of the schedule."""
    read = schedule.resolved()
    if schedule.day_match is None:
        return False
    return _days_by_month_shape(read.day, read.weekday, None) != _days_by_month_shape(
        read.day, read.weekday, schedule.day_match
    )
