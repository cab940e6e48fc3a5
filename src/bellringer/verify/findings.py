"""What verify is asked, what it finds, and its sums."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from bellringer.schedule.instants import write_instant


class Kind(StrEnum):
    """What can be wrong with an occurrence."""

    MISSING = "missing"  # named by a schedule, and neither run nor gap
    DOUBLE = "double"  # two runs, or a run and a gap that says there was none
    UNEXPECTED = "unexpected"  # a run that no schedule asked for
    EARLY = "early"  # started before its time
    LATE = "late"  # born long after its time: told, and wrong only if strict


WRONG: Final = (Kind.MISSING, Kind.DOUBLE, Kind.UNEXPECTED, Kind.EARLY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What to look at: a tenant's occurrences from one instant up to, and without, another."""

    start: datetime
    end: datetime
    tenant: str = "default"
    job: str | None = None  # a name or an id
    late_after: timedelta = timedelta(seconds=60)
    strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One occurrence that is not as it should be."""

    kind: Kind
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
class Summary:
    """The sums; `start` and `end` are the part of the window that could be judged."""

    start: datetime
    end: datetime
    strict: bool = False
    jobs: int = 0
    expected: int = 0
    ran: int = 0
    skipped: dict[str, int] = field(default_factory=dict)  # by reason: these have a run, which was not started
    gaps: int = 0  # expected, and covered by a gap
    pending: int = 0  # expected, and left to a catch-up that has not come to it yet
    missing: int = 0
    double: int = 0
    unexpected: int = 0
    early: int = 0
    late: int = 0
    owed: int = 0  # runs of a revision that an edit overtook while they were on their way
    delays: int = 0  # jobs with a delay, whose instants depend on their runs: those are not judged
    unreadable: int = 0  # jobs with a schedule that this version cannot read: not judged

    @property
    def clean(self) -> bool:
        return not any(getattr(self, kind) for kind in WRONG) and not (self.strict and self.late)

    def document(self) -> dict[str, Any]:
        counts = {key: value for key, value in asdict(self).items() if key not in {"start", "end", "strict"}}
        window = {"from": write_instant(self.start), "to": write_instant(self.end)}
        return {"summary": {**window, **counts, "clean": self.clean}}
