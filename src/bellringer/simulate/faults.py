"""What goes wrong in a simulation: when nobody ticks, and when a worker dies. Pure, and the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from bellringer.durations import parse_duration
from bellringer.errors import InvalidInput
from bellringer.schedule.instants import read_instant, write_instant

SHORTEST: Final = timedelta(minutes=10)
LONGEST: Final = timedelta(days=3)
OUTAGES: Final = 2  # where nobody says what is to go wrong
CRASHES: Final = 5
MOST: Final = 1_000
_SECOND: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, order=True)
class Outage:
    """Time without schedulers: `start` is in it, `end` is not."""

    start: datetime
    end: datetime

    @classmethod
    def read(cls, text: str, *, what: str = "outage") -> Outage:
        """Two times, or a time and a length, with a slash between: "2025-03-01T00:00Z/2025-03-04T12:00Z", "…/3d"."""
        first, slash, second = text.partition("/")
        if not slash:
            hint = "write it like 2025-03-01T00:00Z/2025-03-04T12:00Z or 2025-03-01/3d"
            raise InvalidInput(f"{what} {text!r} has no end", hint=hint, code="outage_invalid")
        start = read_time(first, what=what)
        if "-" in second:
            return cls(start, read_time(second, what=what))
        return cls(start, start + parse_duration(second, what=what))

    @property
    def length(self) -> timedelta:
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The outages, in order and apart; and the instants from which the worker dies when it next holds a run."""

    outages: Sequence[Outage] = ()
    crashes: Sequence[datetime] = ()

    def away(self, at: datetime) -> bool:
        """Whether nobody ticks at this instant."""
        return any(outage.start <= at < outage.end for outage in self.outages)

    def next_turn(self, after: datetime) -> datetime | None:
        """When the schedulers next go or come back."""
        turns = (turn for outage in self.outages for turn in (outage.start, outage.end) if turn > after)
        return min(turns, default=None)


def read_time(value: datetime | str, *, what: str) -> datetime:
    """An instant; a date is its midnight, and what names no zone is in UTC."""
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return read_instant(value, what=what)  # which says what is wrong with it
    return read_instant(moment if moment.tzinfo else moment.replace(tzinfo=UTC), what=what)


def choose_faults(
    start: datetime, end: datetime, *,
    given: Sequence[Outage | str] = (), outages: int | None = None, crashes: int | None = None, seed: int = 0,
) -> Faults:  # fmt: skip
    """The outages given, and as many more and crashes as asked for; where nothing is asked for, a few of both."""
    if not given and outages is None and crashes is None:
        outages, crashes = OUTAGES, CRASHES
    for what, count in (("outages", outages), ("crashes", crashes)):
        if count is not None and not 0 <= count <= MOST:
            raise InvalidInput(f"{what} must be from 0 to {MOST:,}, not {count}", pointer=f"/{what}", code="limit")
    dice = random.Random(seed)  # noqa: S311 - no secret
    drawn = _draw_outages(dice, start, end, outages or 0)
    wanted = [_inside(o if isinstance(o, Outage) else Outage.read(o), start, end) for o in given]
    moments = sorted(start + (end - start) * dice.random() for _ in range(crashes or 0))
    return Faults(outages=_apart([*drawn, *wanted]), crashes=moments)


def _draw_outages(dice: random.Random, start: datetime, end: datetime, count: int) -> list[Outage]:
    """One in each equal part of the span; their lengths spread from the shortest to the longest."""
    if not count:
        return []
    part = (end - start) / count
    longest = min(LONGEST, part / 2)
    shortest = min(SHORTEST, longest)
    ranks = dice.sample(range(count), count)
    drawn = []
    for number, rank in enumerate(ranks):
        length = max(_whole(shortest * (longest / shortest) ** ((rank + dice.random()) / count)), _SECOND)
        begin = start + part * number + _whole((part - length) * 0.9 * dice.random())
        drawn.append(Outage(begin, begin + length))
    return drawn


def _whole(length: timedelta) -> timedelta:
    return length // _SECOND * _SECOND


def _inside(outage: Outage, start: datetime, end: datetime) -> Outage:
    """Schedulers must be back before the end, or nobody records what was missed."""
    if not start <= outage.start < outage.end < end:
        shown = f"{write_instant(outage.start)}/{write_instant(outage.end)}"
        raise InvalidInput(
            f"the outage {shown} does not begin and end between {write_instant(start)} and {write_instant(end)}",
            hint="let it end before the simulation does",
            code="outage_invalid",
        )
    return outage


def _apart(outages: Iterable[Outage]) -> list[Outage]:
    """In order; those that meet are one."""
    merged: list[Outage] = []
    for outage in sorted(outages):
        if merged and outage.start <= merged[-1].end:
            merged[-1] = Outage(merged[-1].start, max(merged[-1].end, outage.end))
        else:
            merged.append(outage)
    return merged
