"""What a test reads of the engine: occurrences, what waits to be run, and how an attempt went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from bellringer.runs import Ending, Outcome, State
from bellringer.store.runs import Run
from bellringer.worker.work import LogLine


@dataclass(frozen=True, slots=True, kw_only=True)
class Fire:
    """One occurrence of a job: `fired` or `skipped` with its run, or `missed` with the reason.

    A gap stands for `count` missed occurrences from `scheduled_for` on.
    """

    scheduled_for: datetime
    outcome: Literal["fired", "skipped", "missed"]
    state: State | None = None
    reason: str = ""
    count: int | None = 1
    run: Run | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Enqueued:
    """A run that waits: for a worker, for its time, or for its next attempt."""

    task: str
    job: str | None
    due_at: datetime
    attempt: int
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Performed:
    """How one attempt went that was made without the queue."""

    ending: Ending
    logs: Sequence[LogLine] = ()
    progress: Mapping[str, Any] | None = None

    @property
    def ok(self) -> bool:
        """Whether the handler returned a result, rather than to fail, snooze or discard."""
        e = self.ending
        return e.outcome is Outcome.OK and e.snooze is None and e.discard is None

    @property
    def result(self) -> Any:
        return self.ending.result

    @property
    def error(self) -> Mapping[str, Any] | None:
        return self.ending.error
