"""Computes from the revisions of a job when it should have run. Pure, and shares no code with the tick."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from heapq import merge
from typing import Final

from bellringer.schedule import At, Delay, Schedule

MICROSECOND: Final = timedelta(microseconds=1)
ONE_SHOT_GRACE: Final = timedelta(minutes=1)  # a one-shot this long past is still fired when its job becomes active
EDIT_GRACE: Final = timedelta(seconds=10)  # an edit dates from before it waited for its locks: 5 s, and a lead of 5 s
ALL_SCHEDULES: Final = 0  # as a schedule's number: a gap of all schedules, or a one-shot, which has no number


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionSpan:
    """A revision of a job, in effect after `since`, up to and including `until`."""

    revision: int
    since: datetime
    until: datetime | None
    active: bool  # enabled, neither paused nor deleted
    paused: bool = False  # enabled, not deleted, and paused
    schedules: tuple[Schedule, ...]
    numbers: tuple[int, ...]  # theirs, one for each
    starts_at: datetime | None = None
    ends_at: datetime | None = None

    @property
    def has_delay(self) -> bool:
        return any(isinstance(schedule, Delay) for schedule in self.schedules)

    def instants(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """The recurring occurrences of this span from `start` up to, but not including, `end`."""
        after = max(self.since, start - MICROSECOND)
        if self.starts_at is not None:
            after = max(after, self.starts_at - MICROSECOND)
        upto = min(moment for moment in (self.until, self.ends_at, end - MICROSECOND) if moment is not None)
        recurring = [s for s in self.schedules if not isinstance(s, At | Delay)]
        if not self.active or after >= upto or not recurring:
            return iter(())
        if len(recurring) == 1:
            return recurring[0].between(after, upto)
        return _distinct(merge(*(schedule.between(after, upto) for schedule in recurring)))

    def naming(self, at: datetime) -> Iterable[int]:
        """Returns the ids of the schedules that name an instant of this span."""
        if len(self.schedules) == 1:
            return self.numbers
        return [
            number for schedule, number in zip(self.schedules, self.numbers, strict=True) if _is_named_by(schedule, at)
        ]

    def holds(self, at: datetime) -> bool:
        return self.since < at and (self.until is None or at <= self.until)

    def once(self) -> Iterator[datetime]:
        """Yields the one-shots whose time came in this span."""
        for schedule in self.schedules:
            if not self.active or not isinstance(schedule, At):
                continue
            at = schedule.instant
            if at >= self.since - ONE_SHOT_GRACE and at <= min(self.until or at, self.ends_at or at):
                yield at

    def named_once(self, at: datetime) -> bool:
        """Whether a one-shot of this revision has this instant, however the revision ended."""
        return any(isinstance(schedule, At) and schedule.instant == at for schedule in self.schedules)

    def overtaken(self, at: datetime) -> bool:
        """Whether this revision names an instant right after its end, whose run was already created when the edit
        came.
        """
        if not self.active or self.until is None or not self.until < at <= self.until + EDIT_GRACE:
            return False
        return any(_is_named_by(schedule, at) for schedule in self.schedules if not isinstance(schedule, Delay))


@dataclass(frozen=True, slots=True)
class ExpectedCatchup:
    """Missed occurrences of one schedule that are run later. `is_open`: more may follow."""

    number: int
    start: datetime
    end: datetime  # without it
    cursor: datetime | None
    newest_first: bool
    is_open: bool

    def awaits(self, at: datetime) -> bool:
        """Whether the catch-up has not yet processed this instant."""
        if not self.is_open or not self.start <= at < self.end:
            return False
        return self.cursor is None or (at < self.cursor if self.newest_first else at > self.cursor)


def expected_instants(
    spans: Sequence[RevisionSpan], promised: Sequence[RevisionSpan], start: datetime, end: datetime
) -> Iterator[datetime]:  # fmt: skip
    """Yields all instants at which a job should have run from `start` up to, but not including, `end`, in order,
    each once.
    """
    once = sorted({at for span in spans for at in span.once() if start <= at < end})
    recurring = (instant for span in spans for instant in span.instants(start, end))
    if not once and not promised:
        return recurring
    return _distinct(merge(once, recurring, *(span.instants(start, end) for span in promised)))


def promised_spans(spans: Sequence[RevisionSpan], catchups: Iterable[ExpectedCatchup]) -> list[RevisionSpan]:
    """Returns the paused spans whose occurrences a catch-up runs after the job was resumed, for schedules that the
    job had by then.

    Only paused spans matter: a catch-up of active time adds nothing to what is expected anyway.
    """
    return [promise for catchup in catchups for promise in _promised_by(spans, catchup)]


def _promised_by(spans: Sequence[RevisionSpan], catchup: ExpectedCatchup) -> Iterator[RevisionSpan]:
    schedule: Schedule | None = None
    for span in reversed(spans):
        if not span.paused:
            schedule = None
            continue
        schedule = schedule or dict(zip(span.numbers, span.schedules, strict=True)).get(catchup.number)
        since, last = max(span.since, catchup.start - MICROSECOND), catchup.end - MICROSECOND
        until = min(last, span.until or last)
        if schedule is not None and since < until:
            yield replace(span, active=True, since=since, until=until, schedules=(schedule,), numbers=(catchup.number,))


def _is_named_by(schedule: Schedule, at: datetime) -> bool:
    return next(schedule.between(at - MICROSECOND, at), None) == at


def _distinct(instants: Iterator[datetime]) -> Iterator[datetime]:
    last = None
    for instant in instants:
        if instant != last:
            yield instant
        last = instant
