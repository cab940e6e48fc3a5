"""Compares the expected instants of one job with its runs and gaps, in time order. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from bellringer.schedule.instants import EPOCH
from bellringer.verify.expected import ALL_SCHEDULES, ExpectedCatchup, RevisionSpan, expected_instants, promised_spans
from bellringer.verify.findings import Finding, FindingKind, VerifyScope, VerifySummary

_NOT_NAMED: Final = "no schedule of revision {} names this instant"
_SKIP_REASONS: Final = ("overlap", "coalesced", "freeze", "tenant suspended", "expired")


class ScheduledRun(NamedTuple):
    """A run that a schedule created."""

    at: datetime
    slot: int
    fired_at: datetime
    revision: int | None
    cause: str
    cancelled: bool  # while it was still to come: a one-shot's timer was cancelled
    remark: str | None  # "early": an attempt started before `at`; or why it was skipped
    started: bool
    finished: bool


class JobChecker:
    """Compares one job. Its gaps and runs must be passed in time order, gaps before runs of the same instant."""

    def __init__(
        self,
        job_id: UUID,
        name: str,
        spans: Sequence[RevisionSpan],
        catchups: Sequence[ExpectedCatchup],
        asked: VerifyScope,
        summary: VerifySummary,
        report: Callable[[Finding], None],
    ) -> None:
        self._job = (job_id, name)
        self._spans = {span.revision: span for span in spans}
        self._promised = promised_spans(spans, catchups) if catchups else []
        self._open = [catchup for catchup in catchups if catchup.is_open]
        self._asked = asked
        self._summary = summary
        self._report = report
        self._instants: Iterator[datetime] = expected_instants(spans, self._promised, summary.start, summary.end)
        self._next = next(self._instants, None)
        self._covered: dict[int, datetime] = {}  # a schedule's gaps so far reach up to, and without, this instant
        self._last: datetime | None = None
        self._at: RevisionSpan | None = None  # the span of the instant that was looked at last

    def gap(self, start: datetime, end: datetime, number: int) -> None:
        self._pass(start)
        self._covered[number] = max(self._covered.get(number, end), end)

    def run(self, run: ScheduledRun) -> None:
        self._pass(run.at)
        if run.at == self._last:
            self._find(FindingKind.DOUBLE, run.at, f"a second run by its schedule, in slot {run.slot}")
            return
        self._last = run.at
        if run.remark == "early":
            self._find(FindingKind.EARLY, run.at, "an attempt started before its time")
        if run.at != self._next:
            if not self._excused(run):
                self._find(FindingKind.UNEXPECTED, run.at, _NOT_NAMED.format(run.revision))
            return
        self._count(run)
        if self._covered and self._denied(run):
            self._find(FindingKind.DOUBLE, run.at, "a run, and a gap that covers it")
        self._next = next(self._instants, None)
        self._check_late(run)

    def finish(self) -> None:
        self._pass(self._summary.end)

    def _count(self, run: ScheduledRun) -> None:
        self._summary.expected += 1
        if run.remark is None or run.remark == "early":
            self._summary.created += 1
            self._summary.started += run.started
            self._summary.finished += run.finished
        else:
            reason = next((word for word in _SKIP_REASONS if run.remark.startswith(word)), "other")
            self._summary.skipped[reason] = self._summary.skipped.get(reason, 0) + 1

    def _pass(self, before: datetime) -> None:
        """Processes the expected instants before this one that have no run: a gap or a catch-up explains them, or
        they are missing.
        """
        while self._next is not None and self._next < before:
            self._summary.expected += 1
            numbers = self._naming(self._next) if self._covered or self._open else ()
            if not numbers or not all(self._explained(number, self._next) for number in numbers):
                self._find(FindingKind.MISSING, self._next, "neither a run nor a gap")
            elif self._open and not all(self._in_gap(number, self._next) for number in numbers):
                self._summary.pending += 1
            else:
                self._summary.gaps += 1
            self._next = next(self._instants, None)

    def _naming(self, at: datetime) -> Iterable[int]:
        """Returns the ids of the schedules that name an expected instant, in the revision of that time or in a
        promised span.
        """
        if self._at is None or not self._at.holds(at):
            self._at = next((span for span in self._spans.values() if span.active and span.holds(at)), None)
        if self._at is not None:
            return self._at.naming(at) or (ALL_SCHEDULES,)
        return {number for span in self._promised if span.holds(at) for number in span.naming(at)} or (ALL_SCHEDULES,)

    def _denied(self, run: ScheduledRun) -> bool:
        """Whether gaps cover the instant of this run for all schedules that name it.

        They do not apply to a run of another schedule that was already created when the job was edited.
        """
        if not all(self._in_gap(number, run.at) for number in self._naming(run.at)):
            return False
        return self._at is None or run.cause != "schedule" or run.revision == self._at.revision

    def _in_gap(self, number: int, at: datetime) -> bool:
        return self._covered.get(number, EPOCH) > at or self._covered.get(ALL_SCHEDULES, EPOCH) > at

    def _explained(self, number: int, at: datetime) -> bool:
        return self._in_gap(number, at) or any(c.number == number and c.awaits(at) for c in self._open)

    def _excused(self, run: ScheduledRun) -> bool:
        """Whether a run at an instant that no revision names is nevertheless correct."""
        span = self._spans.get(run.revision or 0)
        if span is None:
            return False
        if span.overtaken(run.at) or (run.cancelled and span.named_once(run.at)):
            self._summary.owed += 1
            return True
        return span.has_delay

    def _check_late(self, run: ScheduledRun) -> None:
        late = run.fired_at - run.at
        if late <= self._asked.late_after or run.cause != "schedule":
            return
        if self._asked.strict:
            self._find(FindingKind.LATE, run.at, f"born {late.total_seconds():.0f} s after its time")
        else:
            self._summary.late += 1

    def _find(self, kind: FindingKind, at: datetime, detail: str) -> None:
        setattr(self._summary, kind, getattr(self._summary, kind) + 1)
        job_id, name = self._job
        self._report(Finding(kind=kind, job_id=job_id, job=name, scheduled_for=at, detail=detail))
