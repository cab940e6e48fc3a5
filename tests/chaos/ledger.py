"""What the database says of a history, read once at its end."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import asyncpg

from bellringer.core.runs import RunKey

FINAL: Final = ("succeeded", "dead", "cancelled", "skipped")


@dataclass(slots=True)
class Recorded:
    """A run as the database has it."""

    id: str
    job: str | None
    task: str
    slot: int
    scheduled_for: datetime
    state: str  # final, or queued, waits, lacks (it is nowhere)
    reason: str
    outcomes: dict[int, str] = field(default_factory=dict)  # of attempts
    lost_by: set[str] = field(default_factory=set)  # worker processes that vanished while they executed it


@dataclass(slots=True)
class Ledger:
    """The runs by their ids, and the gaps of jobs by name."""

    runs: dict[str, Recorded]
    gaps: dict[str, list[tuple[datetime, datetime]]]


_RUNS: Final = """
select r.job_id, r.scheduled_for, r.slot, j.name as job, t.name as task, r.initial_state::text,
       coalesce(d.reason, e.error ->> 'reason', e.error ->> 'message', r.reason, '') as reason, e.ends_as::text,
       q.job_id is not null as queued, m.job_id is not null as waits
from runs r join tasks t using (task_id)
left join jobs j on j.job_id = r.job_id
left join queue q on (q.job_id, q.scheduled_for, q.slot) = (r.job_id, r.scheduled_for, r.slot)
left join timers m on (m.job_id, m.scheduled_for, m.slot) = (r.job_id, r.scheduled_for, r.slot)
left join dead_letters d on (d.job_id, d.scheduled_for, d.slot) = (r.job_id, r.scheduled_for, r.slot)
left join lateral (
  select a.ends_as, a.error from attempts a
  where (a.job_id, a.scheduled_for, a.slot) = (r.job_id, r.scheduled_for, r.slot) and a.ends_as <> 'running'
  order by a.attempt desc limit 1) e on true
"""

_ATTEMPTS: Final = """
select job_id, scheduled_for, slot, attempt, outcome::text, a.started_at, process::text
from attempts a left join workers using (worker_id)
"""

_HELD: Final = """
select q.job_id, q.scheduled_for, q.slot, q.attempt, w.name, w.worker_id, w.pid,
       extract(epoch from clock_timestamp() - q.claimed_at)::float8 as age
from queue q join workers w using (worker_id)
where w.state in ('live', 'draining') and w.seen_at > clock_timestamp() - interval '5 s'
"""


@dataclass(frozen=True, slots=True)
class Held:
    """A queue row that a live worker holds."""

    run: str
    attempt: int
    worker: str
    pid: int
    age: float  # seconds since it was claimed


async def connect(dsn: str) -> asyncpg.Connection[Any]:
    return await asyncpg.connect(dsn, server_settings={"search_path": "bellringer", "timezone": "UTC", "jit": "off"})


async def held(connection: asyncpg.Connection[Any]) -> list[Held]:
    """Rows that live workers hold at this moment."""
    return [
        Held(_id(row), row["attempt"], f"{row['name']} ({row['worker_id']})", row["pid"], row["age"])
        for row in await connection.fetch(_HELD)
    ]


async def read_ledger(connection: asyncpg.Connection[Any]) -> Ledger:
    runs = {}
    for row in await connection.fetch(_RUNS):
        run_id = _id(row)
        state = "queued" if row["queued"] else "waits" if row["waits"] else row["ends_as"]
        if state is None:
            state = row["initial_state"] if row["initial_state"] in FINAL else "lacks"
        runs[run_id] = Recorded(
            run_id, row["job"], row["task"], row["slot"], row["scheduled_for"], state, row["reason"]
        )
    for row in await connection.fetch(_ATTEMPTS):
        if (recorded := runs.get(_id(row))) is not None:
            recorded.outcomes[row["attempt"]] = row["outcome"] or ""
            if row["outcome"] == "lost" and row["started_at"] is not None:
                recorded.lost_by.add(row["process"])
    gaps: dict[str, list[tuple[datetime, datetime]]] = defaultdict(list)
    for row in await connection.fetch("select name, from_at, to_at from gaps join jobs using (job_id)"):
        gaps[row["name"]].append((row["from_at"], row["to_at"]))
    return Ledger(runs, gaps)


def _id(row: asyncpg.Record) -> str:
    return RunKey(row["job_id"], row["scheduled_for"], row["slot"]).id
