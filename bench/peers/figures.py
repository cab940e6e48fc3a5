"""Computes the figures of a scenario from its executions. Pure functions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from bench.peers.recorder import Execution

EARLY_TOLERANCE_NS: Final = 2_000_000  # clients round due times to milliseconds


class Failed(Exception):
    """The scenario has no figure, for this reason."""


def percentile(values: Iterable[float], part: float) -> float:
    """Returns the smallest value that at least this part of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * part) - 1, 0)]


def check_exactly_once(executions: Sequence[Execution], count: int) -> None:
    """Raises Failed unless each number from 0 to count - 1 was executed once, and not before its due time."""
    times = Counter(execution.number for execution in executions)
    missing = count - sum(1 for number in times if number < count)
    repeated = sum(1 for repetitions in times.values() if repetitions > 1)
    unknown = sum(1 for number in times if number >= count)
    early = sum(1 for execution in executions if execution.start_ns < execution.due_ns - EARLY_TOLERANCE_NS)
    found = {"did not execute": missing, "executed twice": repeated, "were never sent": unknown, "were early": early}
    if wrong := [f"{jobs:,} of {count:,} {what}" for what, jobs in found.items() if jobs]:
        raise Failed("; ".join(wrong))


def of_occurrence(executions: Sequence[Execution], due_ns: int) -> list[Execution]:
    """Returns the executions of one occurrence of recurring jobs.

    A handler that does not know its due time records 0: the execution then belongs to the occurrence if it started at
    or after that time.
    """
    return [
        execution._replace(due_ns=due_ns)
        for execution in executions
        if execution.due_ns == due_ns or (execution.due_ns == 0 and execution.start_ns >= due_ns)
    ]


def herd(executions: Sequence[Execution], due_ns: int) -> dict[str, float]:
    """Figures of jobs that are all due at one instant."""
    starts = [execution.start_ns for execution in executions]
    return {
        "per_second": round(len(starts) / (max(starts) - due_ns) * 1e9, 1),
        "first_start_late_ms": round((min(starts) - due_ns) / 1e6, 1),
        "last_start_late_ms": round((max(starts) - due_ns) / 1e6, 1),
    }


def lateness(executions: Sequence[Execution]) -> dict[str, float]:
    """Percentiles of start time minus due time."""
    late = [(execution.start_ns - execution.due_ns) / 1e6 for execution in executions]
    parts = {"p50_ms": 0.5, "p99_ms": 0.99, "max_ms": 1.0}
    return {name: round(percentile(late, part), 2) for name, part in parts.items()}


def drain(executions: Sequence[Execution]) -> dict[str, float]:
    """Figures of jobs that are all ready."""
    starts = [execution.start_ns for execution in executions]
    return {"per_second": round((len(starts) - 1) / (max(starts) - min(starts)) * 1e9, 1)}


def difference(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """Returns the CPU seconds of each group between two readings."""
    return {group: round(seconds - before.get(group, 0.0), 3) for group, seconds in after.items()}
