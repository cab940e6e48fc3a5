"""What was executed, as the tasks themselves wrote it down."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path


@dataclass(slots=True)
class Execution:
    """One start of a handler, and its end if there was one."""

    run: str
    attempt: int
    pid: int
    task: str
    tag: str
    due: float
    wall: float
    began: float  # by the machine's monotonic clock, as `ended`
    ended: float | None = None
    outcome: str = ""  # ok, or the name of an exception; nothing: it has not ended


def read_sink(folder: Path) -> list[Execution]:
    """All executions, in the order of their starts."""
    found: list[Execution] = []
    for path in folder.iterdir():
        under_way: dict[tuple[str, int], Execution] = {}
        for line in path.read_text().splitlines():
            told = json.loads(line)
            key = (told["run"], told["attempt"])
            if told["what"] == "start":
                names = ("run", "attempt", "pid", "task", "tag", "due", "wall")
                under_way[key] = Execution(**{name: told[name] for name in names}, began=told["monotonic"])
                found.append(under_way[key])
            else:
                under_way[key].ended, under_way[key].outcome = told["monotonic"], told["what"]
    return sorted(found, key=lambda execution: execution.began)


def by_run(executions: list[Execution]) -> dict[str, list[Execution]]:
    found: dict[str, list[Execution]] = defaultdict(list)
    for execution in executions:
        found[execution.run].append(execution)
    return found


def by_tag(executions: list[Execution]) -> dict[str, list[Execution]]:
    found: dict[str, list[Execution]] = defaultdict(list)
    for execution in executions:
        found[execution.tag].append(execution)
    return found
