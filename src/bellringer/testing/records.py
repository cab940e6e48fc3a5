"""The records that tests read (fires, waiting runs, attempts), and the queries behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from bellringer.core.runs import Ending, Outcome, RunKey, Spec, State
from bellringer.store.connection_pool import Store
from bellringer.store.runs import RunRow
from bellringer.store.sql_names import expand
from bellringer.worker.attempt import LogLine


@dataclass(frozen=True, slots=True, kw_only=True)
class FireRecord:
    """One occurrence of a job: `fired` or `skipped` with its run, or `missed` with the reason.

    A gap stands for `count` missed occurrences, starting at `scheduled_for`.
    """

    scheduled_for: datetime
    outcome: Literal["fired", "skipped", "missed"]
    state: State | None = None
    reason: str = ""
    count: int | None = 1
    run: RunRow | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Enqueued:
    """A run that waits for a worker, for its time, or for its next attempt."""

    task: str
    job: str | None
    due_at: datetime
    attempt: int
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Performed:
    """The result of an attempt that was made without the queue."""

    ending: Ending
    logs: Sequence[LogLine] = ()
    progress: Mapping[str, Any] | None = None

    @property
    def ok(self) -> bool:
        """Whether the handler returned a result, rather than failed, snoozed or discarded."""
        e = self.ending
        return e.outcome is Outcome.OK and e.snooze is None and e.discard is None

    @property
    def result(self) -> Any:
        return self.ending.result

    @property
    def error(self) -> Mapping[str, Any] | None:
        return self.ending.error


_NEXT_READY: Final = expand("""
select least((select min(available_at) from queue
              where worker_id is null and blocked & NOT_CLAIMABLE = 0 and attempt > 0
                and available_at > bellringer.now()),
             (select min(due_at) from timers where attempt > 0))
""")
_RUNS: Final = """
select r.job_id, r.scheduled_for, r.slot
from runs r join tasks t using (task_id) left join jobs j on j.job_id = r.job_id
where r.tenant_id = $1 and (j.name_key = lower($2) or t.name = $2)
union
select r.job_id, r.scheduled_for, r.slot from timers r join tasks t using (task_id)
where r.tenant_id = $1 and t.name = $2 and r.cause <> 'schedule'
order by scheduled_for, slot, job_id
"""
_NAMES: Final = """
select name from jobs where tenant_id = $1 and deleted_at is null union select name from tasks
"""
_GAPS: Final = """
select g.from_at, g.count, g.reason from gaps g join jobs j using (job_id)
where j.tenant_id = $1 and j.name_key = lower($2) order by g.from_at
"""
_ENQUEUED: Final = """
select t.name as task, j.name as job, w.due_at, w.attempt, coalesce(w.spec, j.spec) as spec
from (select job_id, task_id, tenant_id, available_at as due_at, attempt, spec from queue
      where worker_id is null
      union all select job_id, task_id, tenant_id, due_at, attempt, spec from timers) w
join tasks t using (task_id) left join jobs j on j.job_id = w.job_id
where w.tenant_id = $1 order by w.due_at
"""


async def add_tenant(store: Store, name: str) -> None:
    await store.pool.execute("insert into tenants (name) values ($1) on conflict do nothing", name)


async def pool_ids(store: Store) -> dict[int, str]:
    rows = await store.pool.fetch("select pool_id, name from pools order by pool_id")
    return {row["pool_id"]: row["name"] for row in rows}


async def next_retry(store: Store) -> datetime | None:
    """Returns the time of the next retry."""
    moment: datetime | None = await store.pool.fetchval(_NEXT_READY)
    return moment


async def whole_name(store: Store, tenant_id: int, name: str) -> str:
    """Returns the full name of a job or task. The last part of the name is enough if it is unambiguous."""
    known = [row["name"] for row in await store.pool.fetch(_NAMES, tenant_id)]
    if any(full.lower() == name.lower() for full in known):
        return name
    ends_so = [full for full in known if full.rpartition(".")[2] == name]
    return ends_so[0] if len(ends_so) == 1 else name


async def run_keys(store: Store, tenant_id: int, name: str) -> list[RunKey]:
    return [RunKey(*row) for row in await store.pool.fetch(_RUNS, tenant_id, name)]


async def gaps(store: Store, tenant_id: int, name: str) -> list[FireRecord]:
    return [
        FireRecord(scheduled_for=row["from_at"], outcome="missed", reason=row["reason"], count=row["count"])
        for row in await store.pool.fetch(_GAPS, tenant_id, name)
    ]


async def enqueued(store: Store, tenant_id: int) -> list[Enqueued]:
    return [_enqueued(row) for row in await store.pool.fetch(_ENQUEUED, tenant_id)]


def _enqueued(row: Any) -> Enqueued:
    spec = msgspec.json.decode(row["spec"], type=Spec)
    return Enqueued(
        task=row["task"],
        job=row["job"],
        due_at=row["due_at"],
        attempt=row["attempt"],
        args=spec.args,
        kwargs=spec.kwargs,
    )
