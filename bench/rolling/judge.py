"""Compares the executions that handlers recorded with the occurrences and sends that they should have had."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg

from bellringer.core.runs import RunKey

LOST_ATTEMPTS = "select job_id, scheduled_for, slot, attempt from attempts where outcome = 'lost'"


class RecordedStart(NamedTuple):
    """One start of a handler; times are seconds since 1970."""

    tag: str
    run_id: str
    attempt: int
    due: float
    started: float


@dataclass(frozen=True, kw_only=True)
class RollingVerdict:
    """`doubled` are second executions of a run whose first attempt was not lost."""

    executed: int
    last: int  # the last second whose occurrences were judged, since 1970
    missed: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    repeated_after_loss: int = 0
    lost_attempts: int = 0
    runs_per_second: float = 0.0
    late_p50_ms: float = 0.0
    late_p99_ms: float = 0.0
    late_max_ms: float = 0.0


def read_executions(folder: Path) -> list[RecordedStart]:
    lines = [line.split() for file in folder.glob("executed-*") for line in file.read_text().splitlines()]
    return [RecordedStart(tag, run, int(attempt), float(due), float(at)) for tag, run, attempt, due, at in lines]


def read_sent(folder: Path) -> dict[str, str]:
    """The run id of each accepted one-shot, by its tag."""
    return dict(line.split() for file in folder.glob("sent-*") for line in file.read_text().splitlines())


async def judge(dsn: str, folder: Path, jobs: int, first: int, last: int) -> RollingVerdict:
    """Judges the occurrences of every second from `first` to `last`, and all sends."""
    executions, sent = read_executions(folder), read_sent(folder)
    lost = await _lost(dsn)
    by_run: dict[str, list[RecordedStart]] = defaultdict(list)
    for execution in executions:
        by_run[execution.run_id].append(execution)
    seen = {(execution.tag, round(execution.due)) for execution in executions}
    wanted = {(f"job-{number}", second) for number in range(jobs) for second in range(first, last + 1)}
    missed = [f"{tag} at {second}" for tag, second in sorted(wanted - seen)]
    missed += [f"{tag} {run_id}" for tag, run_id in sent.items() if run_id not in by_run]
    again = [(run, execution) for run, all_ in by_run.items() for execution in sorted(all_, key=_attempt)[:-1]]
    doubled = [f"{e.tag} {run} attempt {e.attempt}" for run, e in again if (run, e.attempt) not in lost]
    of_occurrence = Counter((e.tag, round(e.due), e.run_id) for e in executions if e.tag.startswith("job-"))
    occurrences = Counter((tag, due) for tag, due, _ in of_occurrence)
    doubled += [f"{tag} at {due} has {count} runs" for (tag, due), count in occurrences.items() if count > 1]
    return RollingVerdict(
        executed=len(executions),
        last=last,
        missed=missed,
        doubled=doubled,
        repeated_after_loss=len(again) - sum((run, e.attempt) not in lost for run, e in again),
        lost_attempts=len(lost),
        runs_per_second=round(len(executions) / max(last - first + 1, 1), 1),
        **_lateness([e for e in executions if first <= e.due <= last]),
    )


def _attempt(execution: RecordedStart) -> int:
    return execution.attempt


async def _lost(dsn: str) -> set[tuple[str, int]]:
    connection = await asyncpg.connect(dsn, server_settings={"search_path": "bellringer", "timezone": "UTC"})
    try:
        rows = await connection.fetch(LOST_ATTEMPTS)
    finally:
        await connection.close()
    return {(RunKey(row["job_id"], row["scheduled_for"], row["slot"]).id, row["attempt"]) for row in rows}


def _lateness(executions: Sequence[RecordedStart]) -> dict[str, Any]:
    late = sorted(max(e.started - e.due, 0.0) for e in executions if e.attempt == 1) or [0.0]
    p50, p99 = (late[int(len(late) * share)] for share in (0.5, 0.99))
    return {
        "late_p50_ms": round(p50 * 1000, 1),
        "late_p99_ms": round(p99 * 1000, 1),
        "late_max_ms": round(late[-1] * 1000, 1),
    }
