"""Runs in the database: asking for them, reading them, stopping and reviving them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import asyncpg
import msgspec

from bellringer.runs import FINAL, Cause, RunKey, Spec, State
from bellringer.store.pool import Store
from bellringer.store.queries import load

_SQL = load("runs")
_SPEC: Final = msgspec.json.Decoder(Spec)
NODES = 128  # the bit of `blocked` of a workflow run whose nodes are under way
FREE = (
    32 | 64 | NODES
)  # bits of `blocked` that hold nothing back: claimed by a way of its own, sent to a broker, under way


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """A run without a job, as the database takes it."""

    tenant_id: int
    job_id: UUID
    shard: int
    task_id: int
    pool_id: int
    priority: int
    spec: Spec
    at: datetime | None = None
    key: str | None = None
    cause: Cause = Cause.SEND


@dataclass(frozen=True, slots=True)
class Sent:
    """The run that a send made; `created` is False where its key had made one before."""

    key: RunKey
    created: bool = True


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run as a person reads it: its state is derived, never stored."""

    key: RunKey
    job: str | None
    task: str
    pool: str
    priority: int
    cause: str
    reason: str
    state: State
    attempt: int
    fired_at: datetime | None
    token: int | None
    revision: int | None
    available_at: datetime | None
    claimed_at: datetime | None
    started_at: datetime | None  # of the attempt that runs, or of the one that ended the run
    first_started_at: datetime | None
    jitter_by: timedelta | None  # by how much its job's runs start after their time
    finished_at: datetime | None
    worker_id: int | None
    blocked: int
    cancel_requested: bool
    progress: Any
    spec: Spec | None
    result: Any
    error: Any
    of_slot: int | None = None  # of a replay: the run of this occurrence that it repeats
    replays: Sequence[int] = ()  # the slots of those that repeat it


class AttemptRow(msgspec.Struct, frozen=True, kw_only=True):
    """One try, as history keeps it."""

    attempt: int
    outcome: str | None
    ends_as: str | None
    started_at: datetime | None
    finished_at: datetime
    worker_id: int | None
    worker: str | None
    revision: int | None
    error: Any
    result: Any


class Attempted(msgspec.Struct, frozen=True, kw_only=True):
    """What a run's attempts tell of it: when the first began, and, if it has ended, how the last did."""

    first_started_at: datetime | None
    ends_as: str | None
    attempt: int | None
    started_at: datetime | None
    finished_at: datetime | None
    result: Any
    error: Any

    @classmethod
    def of(cls, attempts: Sequence[AttemptRow]) -> Attempted:
        """Of attempts in the order in which they ended."""
        last = next((a for a in reversed(attempts) if a.ends_as is not None), None)
        return cls(
            first_started_at=min((a.started_at for a in attempts if a.started_at is not None), default=None),
            ends_as=last.ends_as if last else None,
            attempt=last.attempt if last else None,
            started_at=last.started_at if last else None,
            finished_at=last.finished_at if last else None,
            result=last.result if last else None,
            error=last.error if last else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRow:
    """One line that a handler logged."""

    attempt: int
    line: int
    at: datetime
    level: str
    message: str
    fields: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A run that gave up, until somebody redrives or discards it."""

    key: RunKey
    job: str | None
    task: str
    attempt: int
    died_at: datetime
    reason: str
    error: Any
    fingerprint: str


async def send(store: Store, s: Sending) -> Sent:
    row = await store.pool.fetchrow(
        _SQL.send,
        s.tenant_id,
        s.job_id,
        s.shard,
        s.task_id,
        s.pool_id,
        s.priority,
        s.at,
        msgspec.json.encode(s.spec).decode(),
        s.key,
        s.cause,
    )
    assert row is not None
    return Sent(RunKey(row["job_id"], row["scheduled_for"], row["slot"]), row["created"])


async def trigger(store: Store, job_id: UUID, tenant_id: int, spec: Spec | None) -> RunKey | None:
    """A run of a job, now, by hand; None: there is no such job."""
    document = None if spec is None else msgspec.json.encode(spec).decode()
    row = await store.pool.fetchrow(_SQL.trigger, job_id, tenant_id, document)
    if row is None or row["scheduled_for"] is None:
        return None
    return RunKey(job_id, row["scheduled_for"], row["slot"])


async def cancel(store: Store, key: RunKey, tenant_id: int, reason: str) -> str | None:
    """What the run is after the request: `cancelled`, or `running` and asked to stop; None: it had ended."""
    state: str | None = await store.pool.fetchval(
        _SQL.cancel, key.job_id, key.scheduled_for, key.slot, tenant_id, reason
    )
    return state


async def redrive(store: Store, tenant_id: int, keys: Sequence[RunKey]) -> int:
    count: int = await store.pool.fetchval(_SQL.redrive, tenant_id, *_columns(keys))
    return count


async def hasten(store: Store, tenant_id: int, key: RunKey) -> bool:
    """Let a retry that waits be tried now."""
    moved: bool = await store.pool.fetchval(_SQL.hasten, tenant_id, key.job_id, key.scheduled_for, key.slot)
    return moved


async def discard(store: Store, tenant_id: int, keys: Sequence[RunKey]) -> int:
    count: int = await store.pool.fetchval(_SQL.discard, tenant_id, *_columns(keys))
    return count


async def get(store: Store, key: RunKey, tenant_id: int) -> Run | None:
    row = await store.pool.fetchrow(_SQL.get, key.job_id, key.scheduled_for, key.slot, tenant_id)
    return read_run(row) if row else None


async def of_job(store: Store, job_id: UUID, tenant_id: int, before: RunKey | None, most: int) -> list[Run]:
    """The newest runs of a job, those before the given one."""
    mark = (before.scheduled_for, before.slot) if before else (None, None)
    return [read_run(row) for row in await store.pool.fetch(_SQL.of_job, job_id, tenant_id, *mark, most)]


async def attempts(store: Store, key: RunKey) -> list[AttemptRow]:
    rows = await store.pool.fetch(_SQL.attempts, key.job_id, key.scheduled_for, key.slot)
    return [AttemptRow(**{**dict(row), "error": _json(row["error"]), "result": _json(row["result"])}) for row in rows]


async def replay(
    store: Store, key: RunKey, tenant_id: int, spec: Spec, reason: str | None
) -> tuple[int | None, str | None]:
    """Repeat an ended run in another slot; answers that slot, or none and the state that does not allow it."""
    document = msgspec.json.encode(spec).decode()
    row = await store.pool.fetchrow(_SQL.replay, key.job_id, key.scheduled_for, key.slot, tenant_id, document, reason)
    assert row is not None
    return row["slot"], row["state"]


async def dead(
    store: Store, tenant_id: int, before: tuple[datetime, RunKey] | None, fingerprint: str | None, most: int
) -> list[DeadLetter]:
    """The newest dead letters, those before the given one."""
    died_at, key = before or (None, None)
    mark = (died_at, key.job_id, key.scheduled_for, key.slot) if key else (None, None, None, None)
    rows = await store.pool.fetch(_SQL.dead, tenant_id, *mark, fingerprint, most)
    return [
        DeadLetter(
            key=RunKey(row["job_id"], row["scheduled_for"], row["slot"]),
            **{k: row[k] for k in ("job", "task", "attempt", "died_at", "reason", "fingerprint")},
            error=_json(row["error"]),
        )
        for row in rows
    ]


async def dead_count(store: Store) -> Mapping[str, int]:
    return {row["task"]: row["count"] for row in await store.pool.fetch(_SQL.dead_count)}


def _columns(keys: Sequence[RunKey]) -> tuple[list[UUID], list[datetime], list[int]]:
    ordered = sorted(keys)
    return [k.job_id for k in ordered], [k.scheduled_for for k in ordered], [k.slot for k in ordered]


def _json(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)


def _attempted(row: asyncpg.Record) -> Attempted:
    """As a list reads it, without the attempts."""
    return Attempted(
        first_started_at=row["first_started_at"],
        ends_as=row["ends_as"],
        attempt=row["last_attempt"],
        started_at=row["last_started_at"],
        finished_at=row["finished_at"],
        result=_json(row["result"]),
        error=_json(row["error"]),
    )


def _state(row: asyncpg.Record, ends_as: str | None) -> State:
    if row["available_at"] is not None:
        if row["worker_id"] is not None or row["blocked"] & NODES:
            return State.RUNNING
        if row["blocked"] & ~FREE:
            return State.BLOCKED
        return State.RETRYING if row["queue_attempt"] else State.QUEUED
    if row["due_at"] is not None:
        return State.RETRYING if row["timer_attempt"] else State.QUEUED
    return State(ends_as) if ends_as else State.QUEUED


def read_run(row: asyncpg.Record, attempted: Attempted | None = None) -> Run:
    """A row of any list of runs; what its attempts tell is in the row too, unless it is given."""
    attempted = attempted or _attempted(row)
    state = _state(row, attempted.ends_as)
    ended = state in FINAL
    error = attempted.error if ended else None
    return Run(
        key=RunKey(row["job_id"], row["scheduled_for"], row["slot"]),
        job=row["job"],
        task=row["task"],
        pool=row["pool"],
        priority=row["priority"],
        cause=row["cause"],
        reason=row["reason"] or (str(error.get("reason", "")) if isinstance(error, dict) else ""),
        state=state,
        attempt=row["queue_attempt"] or row["timer_attempt"] or attempted.attempt or 0,
        fired_at=row["fired_at"],
        token=row["token"],
        revision=row["revision"],
        available_at=row["available_at"] or row["due_at"],
        claimed_at=row["claimed_at"],
        started_at=row["claimed_at"] or (attempted.started_at if ended else None),
        first_started_at=attempted.first_started_at or row["claimed_at"],
        jitter_by=row["jitter_by"],
        finished_at=attempted.finished_at if ended else None,
        worker_id=row["worker_id"],
        blocked=row["blocked"] or 0,
        cancel_requested=bool(row["cancel_requested"]),
        progress=_json(row["progress"]),
        spec=None if row["spec"] is None else _SPEC.decode(row["spec"]),
        result=attempted.result if ended else None,
        error=error,
        of_slot=row.get("of_slot"),
        replays=row.get("replays") or (),
    )
