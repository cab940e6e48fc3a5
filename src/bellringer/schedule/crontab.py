"""Cron schedules: an expression, read in a time zone.

The evaluator is our own and not cronsim's, which a walk over every minute found wrong in four places: asked
during the second pass of a fold it answers with the past; with seconds it skips a fixed time in the gap and
repeats one in the fold; where midnight is skipped it invents one; and after Lord Howe's repeated half hour it
loses the next. It also knows no `W`, no `L-3` and no way to count. The tests keep it as a second opinion.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Final, Literal

from bellringer.errors import InvalidSchedule
from bellringer.schedule import grammar, spread
from bellringer.schedule.daysoff import DaysOff, Shift, Worked, heeded
from bellringer.schedule.english import describe_cron
from bellringer.schedule.items import Expression
from bellringer.schedule.plan import Plan, compile_plan
from bellringer.schedule.readings import Fold, Gap, read_readings
from bellringer.schedule.timetable import Timetable, read_days_off
from bellringer.schedule.zones import check_zone

_PLANS: Final = 16_384
_LONGEST_SEED: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Cron(Timetable):
    """Made by `cron`; `expression` is canonical: single spaces, capitals, no alias, no leading zeros. Where it has
    an `H`, the seed chooses its value.
    """

    kind: ClassVar[Literal["cron"]] = "cron"
    expression: str
    seconds: bool = False
    seed: str = ""

    def plan(self) -> Plan:
        """The days and times that it names, after its days off."""
        return _plan(self.expression, self.seconds, self.seed, self.days_off)

    @property
    def fixed_time(self) -> bool:
        """Whether it names times of day, as against a rhythm of hours or minutes."""
        return _plan(self.expression, self.seconds, self.seed, None).fixed_time

    @property
    def hashed(self) -> bool:
        """Whether a hash chooses a part of it."""
        return "H" in self.expression and _written(self.expression, self.seconds).hashed

    @property
    def plain(self) -> str:
        """The expression with the values that the hash chose."""
        return self.resolved().text

    def resolved(self) -> Expression:
        """The expression as it is evaluated."""
        return _resolved(self.expression, self.seconds, self.seed)

    def describe(self) -> str:
        return _described(self)


def cron(
    expression: str,
    *,
    tz: str = "UTC",
    seconds: bool = False,
    gap: Gap | str | None = None,
    fold: Fold | str | None = None,
    seed: str | None = None,
    calendar: str | None = None,
    shift: Shift | str | None = None,
    calendar_digest: str = "",
) -> Cron:
    """Read a cron expression of five fields, or of six, with the second first, where `seconds` is set.

    `gap` and `fold` say what a change of the clock does, `seed` chooses the values of `H`, and `calendar` names
    the days off, on which it does not fire or from which it is moved by `shift`.
    """
    read = grammar.read(expression, seconds=seconds)
    seed = _check_seed(read, seed)
    evaluated = grammar.read(spread.plain(read, seed), seconds=seconds) if read.hashed else read
    if not compile_plan(evaluated).fires:
        raise InvalidSchedule(
            "the cron expression never fires: no day of any year matches it",
            code="cron_never_fires",
            position=read.day_position,
            hint="check the day of month against the months and the day of week; L is a month's last day",
        )
    chosen_gap, chosen_fold = read_readings(gap, fold, fixed_time=evaluated.fixed_time)
    return Cron(
        expression=read.text,
        timezone=check_zone(tz),
        seconds=seconds,
        gap=chosen_gap,
        fold=chosen_fold,
        seed=seed,
        days_off=read_days_off(calendar, shift, calendar_digest),
    )


def _check_seed(read: Expression, seed: str | None) -> str:
    if seed is None:
        return ""
    if not isinstance(seed, str) or not 0 < len(seed) <= _LONGEST_SEED:
        message, hint = f"the seed is not a text of 1 to {_LONGEST_SEED} characters", "the name of the job will do"
        raise InvalidSchedule(message, code="seed_invalid", pointer="/seed", hint=hint)
    if not read.hashed:
        message, hint = "there is nothing for the seed to choose", "write H in a field, or leave the seed out"
        raise InvalidSchedule(message, code="seed_invalid", pointer="/seed", hint=hint)
    return seed


@lru_cache(maxsize=_PLANS)
def _described(schedule: Cron) -> str:
    return describe_cron(schedule.resolved(), schedule.timezone, spread=schedule.hashed, days_off=schedule.days_off)


@lru_cache(maxsize=_PLANS)
def _written(expression: str, seconds: bool) -> Expression:
    return grammar.read(expression, seconds=seconds)


@lru_cache(maxsize=_PLANS)
def _resolved(expression: str, seconds: bool, seed: str) -> Expression:
    read = _written(expression, seconds)
    return _written(spread.plain(read, seed), seconds) if read.hashed else read


@lru_cache(maxsize=_PLANS)
def _plan(expression: str, seconds: bool, seed: str, days_off: DaysOff | None) -> Plan:
    plan = compile_plan(_resolved(expression, seconds, seed))
    if days_off is None:
        return plan
    return replace(plan, chosen=Worked(plan.month, heeded(days_off), days_off.shift))
