"""Chooses the faults of a simulation: scheduler outages and worker crashes. Pure; equal seeds give equal faults."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from bellringer.durations import parse_duration
from bellringer.errors import InvalidInput
from bellringer.schedule.instants import read_instant, write_instant

MIN_OUTAGE: Final = timedelta(minutes=10)
MAX_OUTAGE: Final = timedelta(days=3)
DEFAULT_OUTAGES: Final = 2  # used if no faults are requested
DEFAULT_CRASHES: Final = 5
MAX_FAULTS: Final = 1_000
_SECOND: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, order=True)
class Outage:
    """A time without schedulers, from `start` up to, but not including, `end`."""

    start: datetime
    end: datetime

    @classmethod
    def read(cls, text: str, *, what: str = "outage") -> Outage:
        """Parses two times, or a time and a duration, separated by a slash: "2025-03-01T00:00Z/2025-03-04T12:00Z",
        "…/3d".
        """
        first, slash, second = text.partition("/")
        if not slash:
            hint = "write it like 2025-03-01T00:00Z/2025-03-04T12:00Z or 2025-03-01/3d"
            raise InvalidInput(f"{what} {text!r} has no end", hint=hint, code="outage_invalid")
        start = parse_time(first, what=what)
        if "-" in second:
            return cls(start, parse_time(second, what=what))
        return cls(start, start + parse_duration(second, what=what))

    @property
    def length(self) -> timedelta:
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """The outages, sorted and not overlapping, and the crash times. At a crash time, the worker dies as soon as it
    holds a run.
    """

    outages: Sequence[Outage] = ()
    crashes: Sequence[datetime] = ()

    def away(self, at: datetime) -> bool:
        """Whether no scheduler runs at this instant."""
        return any(outage.start <= at < outage.end for outage in self.outages)

    def next_turn(self, after: datetime) -> datetime | None:
        """Returns the next start or end of an outage."""
        turns = (turn for outage in self.outages for turn in (outage.start, outage.end) if turn > after)
        return min(turns, default=None)


def parse_time(value: datetime | str, *, what: str) -> datetime:
    """Parses an instant. A date means its midnight, and a time without a zone is in UTC."""
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return read_instant(value, what=what)  # raises an error that describes the problem
    return read_instant(moment if moment.tzinfo else moment.replace(tzinfo=UTC), what=what)


def choose_faults(
    start: datetime, end: datetime, *,
    given: Sequence[Outage | str] = (), outages: int | None = None, crashes: int | None = None, seed: int = 0,
) -> FaultPlan:  # fmt: skip
    """Returns the given outages, plus the requested number of random outages and crashes; by default a few of both."""
    if not given and outages is None and crashes is None:
        outages, crashes = DEFAULT_OUTAGES, DEFAULT_CRASHES
    for what, count in (("outages", outages), ("crashes", crashes)):
        if count is not None and not 0 <= count <= MAX_FAULTS:
            raise InvalidInput(
                f"{what} must be from 0 to {MAX_FAULTS:,}, not {count}", pointer=f"/{what}", code="limit"
            )
    dice = random.Random(seed)  # noqa: S311 - no secret
    drawn = _draw_outages(dice, start, end, outages or 0)
    wanted = [_check_inside(o if isinstance(o, Outage) else Outage.read(o), start, end) for o in given]
    moments = sorted(start + (end - start) * dice.random() for _ in range(crashes or 0))
    return FaultPlan(outages=_merge_overlapping([*drawn, *wanted]), crashes=moments)


def _draw_outages(dice: random.Random, start: datetime, end: datetime, count: int) -> list[Outage]:
    """Draws one outage in each equal part of the span; the lengths spread from MIN_OUTAGE to MAX_OUTAGE."""
    if not count:
        return []
    part = (end - start) / count
    longest = min(MAX_OUTAGE, part / 2)
    shortest = min(MIN_OUTAGE, longest)
    ranks = dice.sample(range(count), count)
    drawn = []
    for number, rank in enumerate(ranks):
        length = max(_whole_seconds(shortest * (longest / shortest) ** ((rank + dice.random()) / count)), _SECOND)
        begin = start + part * number + _whole_seconds((part - length) * 0.9 * dice.random())
        drawn.append(Outage(begin, begin + length))
    return drawn


def _whole_seconds(length: timedelta) -> timedelta:
    return length // _SECOND * _SECOND


def _check_inside(outage: Outage, start: datetime, end: datetime) -> Outage:
    """Checks that schedulers are back before the end; otherwise no scheduler records the missed occurrences."""
    if not start <= outage.start < outage.end < end:
        shown = f"{write_instant(outage.start)}/{write_instant(outage.end)}"
        raise InvalidInput(
            f"the outage {shown} does not begin and end between {write_instant(start)} and {write_instant(end)}",
            hint="let it end before the simulation does",
            code="outage_invalid",
        )
    return outage


def _merge_overlapping(outages: Iterable[Outage]) -> list[Outage]:
    """Sorts the outages and merges overlapping ones."""
    merged: list[Outage] = []
    for outage in sorted(outages):
        if merged and outage.start <= merged[-1].end:
            merged[-1] = Outage(merged[-1].start, max(merged[-1].end, outage.end))
        else:
            merged.append(outage)
    return merged
