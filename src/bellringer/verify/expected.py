"""What a job's revisions say should have happened. Pure, and nothing of it is shared with the tick."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from heapq import merge
from typing import Final

from bellringer.schedule import At, Delay, Schedule, parse

INSTANT: Final = timedelta(microseconds=1)
ARMED: Final = timedelta(minutes=1)  # a one-shot this long past is still fired when its job becomes active
OVERTAKEN: Final = timedelta(seconds=10)  # an edit dates from before it waited for its locks: 5 s, and a lead of 5 s


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A revision of a job, which holds after `since` up to and with `until`."""

    revision: int
    since: datetime
    until: datetime | None
    active: bool  # enabled, neither paused nor deleted
    schedules: tuple[Schedule, ...]
    starts_at: datetime | None = None
    ends_at: datetime | None = None

    @property
    def has_delay(self) -> bool:
        return any(isinstance(schedule, Delay) for schedule in self.schedules)

    def instants(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """The recurring occurrences of this span from `start` up to, and without, `end`."""
        after = max(self.since, start - INSTANT)
        if self.starts_at is not None:
            after = max(after, self.starts_at - INSTANT)
        upto = min(moment for moment in (self.until, self.ends_at, end - INSTANT) if moment is not None)
        recurring = [s for s in self.schedules if not isinstance(s, At | Delay)]
        if not self.active or after >= upto or not recurring:
            return iter(())
        if len(recurring) == 1:
            return recurring[0].between(after, upto)
        return _distinct(merge(*(schedule.between(after, upto) for schedule in recurring)))

    def once(self) -> Iterator[datetime]:
        """The one-shots that were armed in this span when their time came."""
        for schedule in self.schedules:
            if not self.active or not isinstance(schedule, At):
                continue
            at = schedule.instant
            if at >= self.since - ARMED and at <= min(self.until or at, self.ends_at or at):
                yield at

    def named_once(self, at: datetime) -> bool:
        """Whether a one-shot of this revision has this instant, however the revision ended."""
        return any(isinstance(schedule, At) and schedule.instant == at for schedule in self.schedules)

    def overtaken(self, at: datetime) -> bool:
        """Whether this revision names an instant right after its end, whose run was on its way when the edit came."""
        if not self.active or self.until is None or not self.until < at <= self.until + OVERTAKEN:
            return False
        return any(
            instant == at
            for schedule in self.schedules
            if not isinstance(schedule, Delay)
            for instant in schedule.between(at - INSTANT, at)
        )


@lru_cache(maxsize=4096)
def read_schedules(text: str) -> tuple[Schedule, ...]:
    """Schedules as a revision keeps them; remembered, because many jobs share few."""
    return tuple(parse(document) for document in json.loads(text))


def expected(spans: Sequence[Span], start: datetime, end: datetime) -> Iterator[datetime]:
    """All that a job should have done from `start` up to, and without, `end`, in order and each once."""
    once = sorted({at for span in spans for at in span.once() if start <= at < end})
    recurring = (instant for span in spans for instant in span.instants(start, end))
    return _distinct(merge(once, recurring)) if once else recurring


def _distinct(instants: Iterator[datetime]) -> Iterator[datetime]:
    last = None
    for instant in instants:
        if instant != last:
            yield instant
        last = instant
