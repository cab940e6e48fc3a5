"""What the last runs did: how late they started, how they ended, and what their tasks took."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from bellringer.api.measures import bounded, percentile
from bellringer.jobs import SIGNAL, WAIT, WORKFLOW
from bellringer.runs import RunKey
from bellringer.store.overview import Try
from bellringer.wire.answers import Count
from bellringer.wire.overview import TaskTime, TaskTimes

MOST_TASKS: Final = 20
_MILLISECOND: Final = timedelta(milliseconds=1)
_OF_NODES: Final = frozenset({WORKFLOW, WAIT, SIGNAL})  # while these run, nobody works on them
_WELL: Final = frozenset({"ok", None})  # None: it ended without a try, or was given back


@dataclass(frozen=True, slots=True, kw_only=True)
class Recent:
    """The attempts of the newest runs. `since`: runs scheduled before then were not looked at; None: all were."""

    tries: Sequence[Try]
    runs: Count
    since: datetime | None

    def lateness(self) -> Mapping[RunKey, int]:
        """By how many milliseconds each run started after its time; a node of a workflow has none."""
        found: dict[RunKey, int] = {}
        for one in self.tries:
            if one.started_at is not None and not one.is_node:
                late = one.started_at - one.key.scheduled_for - (one.jitter_by or timedelta(0))
                found[one.key] = min(round(late / _MILLISECOND), found.get(one.key, 1 << 53))
        return found

    def lateness_by(self, step: Callable[[datetime], datetime]) -> Mapping[datetime, list[int]]:
        """The same for each step in which runs were due."""
        found: dict[datetime, list[int]] = defaultdict(list)
        for key, late in self.lateness().items():
            found[step(key.scheduled_for)].append(late)
        return found

    def succeeded_by(self, step: Callable[[datetime], datetime]) -> Mapping[datetime, int]:
        """How many runs ended well in each step."""
        return Counter(step(one.finished_at) for one in self.tries if one.ends_as == "succeeded" and one.finished_at)

    def busiest(self, most: int) -> list[UUID]:
        """The jobs with the most runs."""
        runs = Counter(key.job_id for key in {one.key for one in self.tries if not one.is_node})
        return [job_id for job_id, _ in runs.most_common(most)]

    def tasks(self) -> TaskTimes:
        """What the tasks took: those that took most, and those that failed most."""
        by_task: dict[str, list[Try]] = defaultdict(list)
        for one in self.tries:
            if one.attempt and one.task not in _OF_NODES:
                by_task[one.task].append(one)
        told = [_time(task, tries) for task, tries in by_task.items()]
        longest = sorted(told, key=lambda t: (-t.seconds, t.task))
        kept = [*longest[: MOST_TASKS // 2], *sorted(longest, key=lambda t: -t.failures)[: MOST_TASKS // 2]]
        looked = sum(len(tries) for tries in by_task.values())
        return TaskTimes(
            looked_at=Count(value=looked, relation=self.runs.relation), items=[t for t in longest if t in kept]
        )


def recent(tries: Sequence[Try], most: int) -> Recent:
    """Of a look that brought `most` runs at most."""
    keys = {one.key for one in tries}
    is_cut = len(keys) >= most
    return Recent(
        tries=tries,
        runs=bounded(len(keys) + is_cut, len(keys)),
        since=min(key.scheduled_for for key in keys) if is_cut else None,
    )


def _time(task: str, tries: Sequence[Try]) -> TaskTime:
    took = [(t.finished_at - t.started_at).total_seconds() for t in tries if t.finished_at and t.started_at]
    return TaskTime(
        task=task,
        attempts=len(tries),
        failures=sum(t.outcome not in _WELL for t in tries),
        seconds=round(sum(took), 3),
        p50=percentile(took, 0.5),
        p95=percentile(took, 0.95),
    )
