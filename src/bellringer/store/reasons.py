"""What surrounds a run or an instant: who could work on it, who holds its shard, what the job was then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from bellringer.reasons import MOST_AHEAD, NEAR, SILENT, Bounds, Freeze, Gap, Hand, Limit, Member, Pause, Then, Waiting
from bellringer.runs import BACKFILL_SLOTS, RunKey
from bellringer.schedule import parse
from bellringer.store import calendars
from bellringer.store.pool import Store
from bellringer.store.queries import load

_SQL = load("reasons")
MOST_NAMED = 3  # runs that are in the way


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What a run, or a job without one, waits for; `now` is when this was so."""

    now: datetime
    in_timer: bool
    attempt_floor: int
    blocked: int
    shard: int | None
    task: str | None
    pool: str | None
    pool_pause: Pause | None
    pool_bounds: Bounds | None
    worker: str | None
    worker_state: str | None
    worker_age: float | None
    scheduler: str | None
    sent_at: datetime | None  # when a broker got it
    waits_for: str | None  # what a scheduler waits for
    workers: tuple[Hand, ...]
    tasks: tuple[str, ...]
    taken: int
    ahead: int
    predecessor: RunKey | None
    successor_at: datetime | None  # of a job whose overlap is replace
    error: Any
    dead_letter: bool
    limit: Limit | None
    behind: bool
    freeze: Freeze | None
    suspended_at: datetime | None
    cap: int | None
    in_flight: int


async def around(store: Store, job_id: UUID, key: RunKey | None, tenant_id: int) -> Around:
    at, slot = (key.scheduled_for, key.slot) if key else (None, None)
    row = await store.pool.fetchrow(_SQL.around, job_id, at, slot, tenant_id, SILENT, MOST_AHEAD)
    assert row is not None
    values = dict(row)
    before_at, before_slot = values.pop("before_at"), values.pop("before_slot")
    values["limit"] = _limit(values)
    values["freeze"] = _freeze(values)
    at, by, why = (values.pop(f"pool_paused_{name}") for name in ("at", "by", "reason"))
    values["pool_pause"] = None if at is None else Pause(at=at, by=by, why=why)
    values["pool_bounds"] = _bounds(values)
    values["workers"] = tuple(Hand(**worker) for worker in msgspec.json.decode(row["workers"]))
    values["tasks"] = tuple(row["tasks"])
    values["error"] = None if row["error"] is None else msgspec.json.decode(row["error"])
    return Around(**values, predecessor=None if before_at is None else RunKey(job_id, before_at, before_slot))


def _limit(values: dict[str, Any]) -> Limit | None:
    key, most, cap = (values.pop(name) for name in ("limit_key", "limit_most", "limit_cap"))
    under_way = [RunKey(*row) for row in values.pop("under_way")]
    if key is None:
        return None
    shared = None if key.startswith("job ") else key
    return Limit(
        key=shared,
        most=most if shared else cap or most,
        taken=len(under_way),
        runs=tuple(run.id for run in under_way[:MOST_NAMED]),
    )


def _bounds(values: dict[str, Any]) -> Bounds | None:
    fields = ("concurrency", "under_way", "rate", "credit")
    found = Bounds(**{name: values.pop(f"bound_{name}") for name in fields})
    return None if found.concurrency is None and found.rate is None else found


def _freeze(values: dict[str, Any]) -> Freeze | None:
    name, until, why = (values.pop(name) for name in ("freeze", "freeze_until", "freeze_why"))
    policy = values.pop("freeze_policy", "defer")
    return None if name is None else Freeze(name=name, until=until, why=why, policy=policy)


async def then(store: Store, job_id: UUID, at: datetime, tenant_id: int) -> tuple[Then, RunKey | None, RunKey | None]:
    """What is known of an instant, the first run of the minute that begins there, and the last backfill's run of it."""
    row = await store.pool.fetchrow(_SQL.then, job_id, at, tenant_id, NEAR, BACKFILL_SLOTS)
    assert row is not None
    gap = None
    if row["from_at"] is not None:
        gap = Gap(**{name: row[name] for name in ("from_at", "to_at", "count", "reason", "into_at")})
    job = None if row["definition"] is None else _member(msgspec.json.decode(row["definition"]))
    waiting = None
    if row["backfill_id"] is not None:
        state, made, total = (row[name] for name in ("backfill_state", "made", "total"))
        waiting = Waiting(name=f"bf_{row['backfill_id']}", state=state, made=made, total=total)
    if job is not None:
        await calendars.load(store, job.schedules)
    near = None if row["near_at"] is None else RunKey(job_id, row["near_at"], row["near_slot"])
    again = None if row["backfill_slot"] is None else RunKey(job_id, at, row["backfill_slot"])
    known = Then(job=job, gap=gap, waiting=waiting, freeze=_freeze(dict(row)), kept=row["kept"])
    return known, near, again


def _member(definition: Mapping[str, Any]) -> Member:
    """A job as one of its revisions keeps it."""
    pause = None
    if (paused_at := _instant(definition.get("paused_at"))) is not None:
        pause = Pause(
            at=paused_at,
            by=definition.get("paused_by"),
            why=definition.get("paused_reason"),
            until=_instant(definition.get("paused_until")),
        )
    return Member(
        name=definition["name"],
        schedules=tuple(parse(document) for document in definition["schedules"]),
        enabled=definition["enabled"],
        pause=pause,
        starts_at=_instant(definition.get("starts_at")),
        ends_at=_instant(definition.get("ends_at")),
    )


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
