"""The scope of a verification, its findings and its summary."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from bellringer.schedule.instants import write_instant


class FindingKind(StrEnum):
    """The kinds of findings."""

    MISSING = "missing"  # named by a schedule, and neither run nor gap
    DOUBLE = "double"  # two runs, or a run and a gap for the same occurrence
    UNEXPECTED = "unexpected"  # a run that no schedule asked for
    EARLY = "early"  # started before its time
    UNSTARTED = "unstarted"  # a run that no worker has started long after its time
    STRANDED = "stranded"  # a claimed run that no worker is known to execute
    UNREQUESTED = "unrequested"  # a run that was cancelled without a request
    UNFOLLOWED = "unfollowed"  # a run that has ended, and did not start a job that starts after it
    LATE = "late"  # created long after its time: counted, and wrong only if strict


WRONG_KINDS: Final = (
    FindingKind.MISSING,
    FindingKind.DOUBLE,
    FindingKind.UNEXPECTED,
    FindingKind.EARLY,
    FindingKind.UNSTARTED,
    FindingKind.STRANDED,
    FindingKind.UNREQUESTED,
    FindingKind.UNFOLLOWED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyScope:
    """What to verify: the occurrences of a tenant from `start` up to, but not including, `end`."""

    start: datetime
    end: datetime
    tenant: str = "default"
    job: str | None = None  # a name or an id
    late_after: timedelta = timedelta(seconds=60)
    strict: bool = False
    unstarted_after: timedelta | None = timedelta(minutes=5)  # None: starts are not checked


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One occurrence that is wrong."""

    kind: FindingKind
    job_id: UUID
    job: str
    scheduled_for: datetime
    detail: str

    def document(self) -> dict[str, str]:
        return {
            "finding": self.kind.value,
            "job_id": str(self.job_id),
            "job": self.job,
            "scheduled_for": write_instant(self.scheduled_for),
            "detail": self.detail,
        }


@dataclass(slots=True, kw_only=True)
class VerifySummary:
    """The counts. `start` and `end` limit the part of the window that could be verified."""

    start: datetime
    end: datetime
    strict: bool = False
    jobs: int = 0
    expected: int = 0
    created: int = 0  # expected, and there is a run that was not skipped …
    started: int = 0  # created runs with at least one attempt
    finished: int = 0  # created runs that have ended, in any state
    skipped: dict[str, int] = field(default_factory=dict)  # by reason: these have a run, which was not started
    gaps: int = 0  # expected, and covered by a gap
    pending: int = 0  # expected, and left to a catch-up that has not come to it yet
    missing: int = 0
    double: int = 0
    unexpected: int = 0
    early: int = 0
    unstarted: int = 0  # sends among them, which no schedule expects
    stranded: int = 0  # now, whenever they were due
    unrequested: int = 0
    unfollowed: int = 0
    late: int = 0
    owed: int = 0  # runs of a revision that an edit overtook while they were on their way
    repeatable: int = 0  # runs that a restore from a backup may have repeated; `bellringer why` says of each
    delays: int = 0  # jobs with a delay: not checked, because their instants depend on their runs
    unreadable: int = 0  # jobs with a schedule that this version cannot parse: not checked

    @property
    def clean(self) -> bool:
        return not any(getattr(self, kind) for kind in WRONG_KINDS) and not (self.strict and self.late)

    def document(self) -> dict[str, Any]:
        counts = {key: value for key, value in asdict(self).items() if key not in {"start", "end", "strict"}}
        window = {"from": write_instant(self.start), "to": write_instant(self.end)}
        return {"summary": {**window, **counts, "clean": self.clean}}
