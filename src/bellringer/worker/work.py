"""What a worker holds: one claimed attempt, and the lines that it logs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from bellringer.runs import RunKey, Spec


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt, as claimed. `attempt` is also its fencing token: it grows with every claim that executes."""

    key: RunKey
    attempt: int
    spent: int  # attempts used since birth or the last redrive, this one included
    task: str
    spec: Spec
    claimed_at: datetime
    due_at: datetime | None = None  # its time, with the job's jitter; of a retry, when it was to be tried
    tenant: str = "default"
    tenant_id: int = 0
    pool: str = "short"
    job: str | None = None  # the job's name, where it has one


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line that a handler logged through its context."""

    key: RunKey
    attempt: int
    at: datetime
    level: str
    message: str
    fields: dict[str, Any] | None = None

    @property
    def row(self) -> tuple[RunKey, int, datetime, str, str, dict[str, Any] | None]:
        return self.key, self.attempt, self.at, self.level, self.message, self.fields
