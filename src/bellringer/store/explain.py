"""Loads the facts that explain why a run waits or what happened at an instant: queue, workers, leases, revisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec

from bellringer.core.runs import BACKFILL_SLOT_BASE, RunKey
from bellringer.explain import (
    ASKED_TIME_SPAN,
    MAX_RUNS_AHEAD_COUNTED,
    WORKER_SILENT_AFTER,
    FreezeFacts,
    InstantFacts,
    JobFacts,
    LimitFacts,
    LiveWorker,
    MissedSpan,
    PauseFacts,
    PendingBackfill,
    PoolLimits,
    RestoreFacts,
)
from bellringer.schedule import parse_schedule
from bellringer.store import calendars
from bellringer.store.connection_pool import Store
from bellringer.store.queries import load

_SQL = load("explain")
MAX_NAMED_RUNS = 3  # runs that hold a limit
OUTAGE_SHOWN_FOR: Final = timedelta(days=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitContext:
    """The facts about a waiting run, or about a job without one, as of `now`."""

    now: datetime
    in_timer: bool
    attempt_floor: int
    blocked: int
    shard: int | None
    task: str | None
    pool: str | None
    pool_pause: PauseFacts | None
    task_pause: PauseFacts | None
    pool_bounds: PoolLimits | None
    worker: str | None
    worker_state: str | None
    worker_age: float | None
    unconfirmed: bool  # its worker has not confirmed that it knows the run
    scheduler: str | None
    sent_at: datetime | None  # when it was sent to a broker
    expires_at: datetime | None  # the deadline of the run
    waits_for: str | None  # why a scheduler has no shards
    workers: tuple[LiveWorker, ...]
    tasks: tuple[str, ...]
    taken: int
    ahead: int
    predecessor: RunKey | None  # the first unfinished run before it, if it waits for that run or has ended
    predecessor_waits: bool  # the predecessor has not started
    successor_at: datetime | None  # for jobs whose overlap policy is replace
    error: Any
    dead_letter: bool
    limit: LimitFacts | None
    background: bool
    freeze: FreezeFacts | None
    suspended_at: datetime | None
    cap: int | None
    in_flight: int


async def load_wait_context(store: Store, job_id: UUID, key: RunKey | None, tenant_id: int) -> WaitContext:
    at, slot = (key.scheduled_for, key.slot) if key else (None, None)
    row = await store.pool.fetchrow(
        _SQL.facts, job_id, at, slot, tenant_id, WORKER_SILENT_AFTER, MAX_RUNS_AHEAD_COUNTED
    )
    assert row is not None
    values = dict(row)
    before_at, before_slot = values.pop("before_at"), values.pop("before_slot")
    values["limit"] = _limit(values)
    values["freeze"] = _freeze(values)
    at, by, why = (values.pop(f"pool_paused_{name}") for name in ("at", "by", "reason"))
    values["pool_pause"] = None if at is None else PauseFacts(at=at, by=by, why=why)
    values["task_pause"] = _task_pause(values)
    values["pool_bounds"] = _pool_limits(values)
    values["workers"] = tuple(LiveWorker(**worker) for worker in msgspec.json.decode(row["workers"]))
    values["tasks"] = tuple(row["tasks"])
    values["error"] = None if row["error"] is None else msgspec.json.decode(row["error"])
    return WaitContext(**values, predecessor=None if before_at is None else RunKey(job_id, before_at, before_slot))


def _task_pause(values: dict[str, Any]) -> PauseFacts | None:
    at, by, why, until = (values.pop(f"task_paused_{name}") for name in ("at", "by", "reason", "until"))
    rate = values.pop("task_release_rate")
    return None if at is None else PauseFacts(at=at, by=by, why=why, until=until, release_rate=rate)


def _limit(values: dict[str, Any]) -> LimitFacts | None:
    key, limit, cap = (values.pop(name) for name in ("limit_key", "limit_most", "limit_cap"))
    under_way = [RunKey(*row) for row in values.pop("under_way")]
    if key is None:
        return None
    shared = None if key.startswith("job ") else key
    return LimitFacts(
        key=shared,
        most=limit if shared else cap or limit,
        taken=len(under_way),
        runs=tuple(run.id for run in under_way[:MAX_NAMED_RUNS]),
    )


def _pool_limits(values: dict[str, Any]) -> PoolLimits | None:
    fields = ("concurrency", "under_way", "rate", "credit")
    found = PoolLimits(**{name: values.pop(f"bound_{name}") for name in fields})
    return None if found.concurrency is None and found.rate is None else found


def _freeze(values: dict[str, Any]) -> FreezeFacts | None:
    name, until, why = (values.pop(name) for name in ("freeze", "freeze_until", "freeze_why"))
    policy = values.pop("freeze_policy", "defer")
    return None if name is None else FreezeFacts(name=name, until=until, why=why, policy=policy)


async def find_restore(store: Store, key: RunKey) -> RestoreFacts | None:
    """Returns the newest restore that may have lost executions of a run."""
    row = await store.pool.fetchrow(_SQL.restores, key.job_id, key.scheduled_for, key.slot)
    return None if row is None else RestoreFacts(**dict(row))


async def find_last_outage(store: Store, job_id: UUID) -> MissedSpan | None:
    """Returns the occurrences that a job missed last, because no scheduler fired it in time."""
    row = await store.pool.fetchrow(_SQL.last_outage, job_id, OUTAGE_SHOWN_FOR)
    return None if row is None else MissedSpan(**dict(row))


async def load_instant_facts(
    store: Store, job_id: UUID, at: datetime, tenant_id: int
) -> tuple[InstantFacts, RunKey | None, RunKey | None]:
    """Returns the facts about an instant, the first run in the minute that begins there, and the last backfill run
    of it.
    """
    row = await store.pool.fetchrow(_SQL.facts_at, job_id, at, tenant_id, ASKED_TIME_SPAN, BACKFILL_SLOT_BASE)
    assert row is not None
    gap = None
    if row["from_at"] is not None:
        gap = MissedSpan(**{name: row[name] for name in ("from_at", "to_at", "count", "reason", "into_at")})
    job = None if row["definition"] is None else _job_facts(msgspec.json.decode(row["definition"]))
    waiting = None
    if row["backfill_id"] is not None:
        state, made, total = (row[name] for name in ("backfill_state", "made", "total"))
        waiting = PendingBackfill(name=f"bf_{row['backfill_id']}", state=state, made=made, total=total)
    if job is not None:
        await calendars.load_contents(store, job.schedules)
    near = None if row["near_at"] is None else RunKey(job_id, row["near_at"], row["near_slot"])
    again = None if row["backfill_slot"] is None else RunKey(job_id, at, row["backfill_slot"])
    known = InstantFacts(job=job, gap=gap, waiting=waiting, freeze=_freeze(dict(row)), kept=row["kept"])
    return known, near, again


def _job_facts(definition: Mapping[str, Any]) -> JobFacts:
    """Returns a job as one of its revisions describes it."""
    pause = None
    if (paused_at := _instant(definition.get("paused_at"))) is not None:
        pause = PauseFacts(
            at=paused_at,
            by=definition.get("paused_by"),
            why=definition.get("paused_reason"),
            until=_instant(definition.get("paused_until")),
        )
    return JobFacts(
        name=definition["name"],
        schedules=tuple(parse_schedule(document) for document in definition["schedules"]),
        enabled=definition["enabled"],
        pause=pause,
        starts_at=_instant(definition.get("starts_at")),
        ends_at=_instant(definition.get("ends_at")),
    )


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
