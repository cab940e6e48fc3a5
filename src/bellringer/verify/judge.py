"""The comparison: a job's expected instants, its runs and its gaps, as they come in the order of time. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from bellringer.schedule.instants import EPOCH
from bellringer.verify.expected import Span, expected
from bellringer.verify.findings import Asked, Finding, Kind, Summary

_NONE: Final = "no schedule of revision {} names this instant"


class Run(NamedTuple):
    """A run that a schedule caused."""

    at: datetime
    slot: int
    fired_at: datetime
    revision: int | None
    cause: str
    cancelled: bool  # while it was still to come: a one-shot's timer was cancelled
    early: bool  # an attempt started before `at`


class Judge:
    """Takes the gaps and runs of one job. Gaps come before the runs of the instant that they begin at."""

    def __init__(
        self, job_id: UUID, name: str, spans: Sequence[Span], asked: Asked, summary: Summary,
        report: Callable[[Finding], None],
    ) -> None:  # fmt: skip
        self._job = (job_id, name)
        self._spans = {span.revision: span for span in spans}
        self._several = any(len(span.schedules) > 1 for span in spans)
        self._asked = asked
        self._summary = summary
        self._report = report
        self._instants: Iterator[datetime] = expected(spans, summary.start, summary.end)
        self._next = next(self._instants, None)
        self._covered = EPOCH  # the gaps so far reach up to, and without, this instant
        self._last: datetime | None = None

    def gap(self, start: datetime, end: datetime) -> None:
        self._pass(start)
        self._covered = max(self._covered, end)

    def run(self, run: Run) -> None:
        self._pass(run.at)
        if run.at == self._last:
            self._find(Kind.DOUBLE, run.at, f"a second run by its schedule, in slot {run.slot}")
            return
        self._last = run.at
        if run.early:
            self._find(Kind.EARLY, run.at, "an attempt started before its time")
        if run.at == self._next:
            self._summary.expected += 1
            self._summary.ran += 1
            self._next = next(self._instants, None)
        else:
            if not self._excused(run):
                self._find(Kind.UNEXPECTED, run.at, _NONE.format(run.revision))
            return
        if self._covered > run.at:
            self._overlap(run)
        self._check_late(run)

    def finish(self) -> None:
        self._pass(self._summary.end)

    def _pass(self, before: datetime) -> None:
        """What was expected before this instant and did not run: a gap explains it, or it is missing."""
        while self._next is not None and self._next < before:
            self._summary.expected += 1
            if self._next < self._covered:
                self._summary.gaps += 1
            else:
                self._find(Kind.MISSING, self._next, "neither a run nor a gap")
            self._next = next(self._instants, None)

    def _excused(self, run: Run) -> bool:
        """Whether a run at an instant that the revisions do not name is right all the same."""
        span = self._spans.get(run.revision or 0)
        if span is None:
            return False
        if span.overtaken(run.at) or (run.cancelled and span.named_once(run.at)):
            self._summary.owed += 1
            return True
        return span.has_delay

    def _overlap(self, run: Run) -> None:
        """A gap is a job's, not a schedule's: only where a job has one schedule do they contradict each other."""
        if self._several:
            self._summary.shared += 1
        else:
            self._find(Kind.DOUBLE, run.at, "a run, and a gap that covers it")

    def _check_late(self, run: Run) -> None:
        late = run.fired_at - run.at
        if late <= self._asked.late_after or run.cause != "schedule":
            return
        if self._asked.strict:
            self._find(Kind.LATE, run.at, f"born {late.total_seconds():.0f} s after its time")
        else:
            self._summary.late += 1

    def _find(self, kind: Kind, at: datetime, detail: str) -> None:
        setattr(self._summary, kind, getattr(self._summary, kind) + 1)
        job_id, name = self._job
        self._report(Finding(kind=kind, job_id=job_id, job=name, scheduled_for=at, detail=detail))
