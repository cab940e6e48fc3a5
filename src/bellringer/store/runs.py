"""Runs in the database: create, read, cancel, retry and redrive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

import asyncpg
import msgspec

from bellringer.core.messages import Message
from bellringer.core.run_blocked_flags import Blocked
from bellringer.core.run_traces import RunTrace
from bellringer.core.runs import FINAL_STATES, RunKey, Spec, State
from bellringer.store.connection_pool import Store
from bellringer.store.queries import load

if TYPE_CHECKING:
    Connection = asyncpg.Pool[asyncpg.Record] | asyncpg.pool.PoolConnectionProxy[asyncpg.Record]

_SQL = load("runs")
_SPEC: Final = msgspec.json.Decoder(Spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """The arguments of `send`: a run without a job."""

    tenant_id: int
    job_id: UUID
    shard: int
    task_id: int
    pool_id: int
    message: Message
    repeated: bool = False  # an earlier call with this job_id may have committed
    notify: bool = False  # the statement notifies workers or schedulers
    trace: RunTrace | None = None


@dataclass(frozen=True, slots=True)
class SendBatch:
    """Runs without a job, as the columns that one statement takes."""

    indexes: list[int] = field(default_factory=list)  # of the items in their bulk
    messages: list[Message] = field(default_factory=list)
    ids: list[UUID] = field(default_factory=list)
    shards: list[int] = field(default_factory=list)
    task_ids: list[int] = field(default_factory=list)
    pool_ids: list[int] = field(default_factory=list)
    specs: list[str] = field(default_factory=list)

    def add(
        self,
        index: int,
        message: Message,
        job_id: UUID,
        shard: int,
        task_id: int,
        pool_id: int,
        trace: RunTrace | None = None,
    ) -> None:
        self.indexes.append(index)
        self.messages.append(message)
        self.ids.append(job_id)
        self.shards.append(shard)
        self.task_ids.append(task_id)
        self.pool_ids.append(pool_id)
        self.specs.append(message.spec(trace))


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """The run of a send; `created` is False if its key had a run already. `now` is the database's clock."""

    key: RunKey
    now: datetime
    created: bool = True


class RefusedTime(Exception):
    """The database refused the time of a send: by its clock, it has passed or is too far away."""

    def __init__(self, now: datetime) -> None:
        super().__init__(now)
        self.now = now


class PrunedGraph(Exception):
    """Nothing was sent: the graph of the workflow run was pruned after its id was read. It can be stored again."""


class MissingDay(Exception):
    """The day of a new run has no partition."""


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run with its state, which is derived and not stored."""

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
    started_at: datetime | None  # of the running attempt, or of the attempt that ended the run
    first_started_at: datetime | None
    jitter_by: timedelta | None  # the delay of its job's runs after their time
    finished_at: datetime | None
    worker_id: int | None  # the worker that executes the run, or that executed its last attempt
    blocked: int
    cancel_requested: bool
    progress: Any
    spec: Spec | None
    result: Any
    error: Any
    of_slot: int | None = None  # of a replay: the run of this occurrence that it repeats
    replays: Sequence[int] = ()  # the slots of the runs that repeat it


class AttemptRow(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt in the history."""

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


_ATTEMPTS: Final = msgspec.json.Decoder(list[AttemptRow])


class AttemptSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A summary of the attempts of a run: the start of the first, the worker of the last and, if the run has ended, the
    result of the last.
    """

    first_started_at: datetime | None
    worker_id: int | None
    ends_as: str | None
    attempt: int | None
    started_at: datetime | None
    finished_at: datetime | None
    result: Any
    error: Any

    @classmethod
    def of(cls, attempts: Sequence[AttemptRow]) -> AttemptSummary:
        """Summarizes attempts, given in the order in which they ended."""
        last = next((a for a in reversed(attempts) if a.ends_as is not None), None)
        return cls(
            first_started_at=min((a.started_at for a in attempts if a.started_at is not None), default=None),
            worker_id=next((a.worker_id for a in reversed(attempts) if a.worker_id is not None), None),
            ends_as=last.ends_as if last else None,
            attempt=last.attempt if last else None,
            started_at=last.started_at if last else None,
            finished_at=last.finished_at if last else None,
            result=last.result if last else None,
            error=last.error if last else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRow:
    """A line of a handler. `source` is ctx, stdout, stderr, warnings or logging:NAME."""

    attempt: int
    line: int
    at: datetime
    level: str
    message: str
    fields: Any
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterRow:
    """A dead letter: a run that gave up, until it is redriven or discarded."""

    key: RunKey
    job: str | None
    task: str
    attempt: int
    died_at: datetime
    reason: str
    error: Any
    fingerprint: str


async def send(store: Store, new: NewRun) -> SendResult:
    """Raises RefusedTime, MissingDay or, for a workflow run, PrunedGraph."""
    message = new.message
    try:
        job_id, scheduled_for, slot, created, now = await store.pool.fetchval(
            _SQL.send if message.kind.graph is None else _SQL.send_workflow,
            new.tenant_id,
            new.job_id,
            new.shard,
            new.task_id,
            new.pool_id,
            message.kind.priority,
            message.at,
            message.delay,
            message.spec(new.trace),
            message.key,
            message.kind.cause,
            new.repeated,
            new.notify,
        )
    except asyncpg.PostgresError as error:
        raise _send_error(error) from None
    return SendResult(RunKey(job_id, scheduled_for, slot), now, created)


async def send_many(
    connection: Connection, tenant_id: int, batch: SendBatch, *, repeated: bool, notify: bool
) -> dict[int, SendResult]:
    """Creates the runs of a batch, all or none, and returns them by their indexes. Raises MissingDay."""
    messages = batch.messages
    try:
        row = await connection.fetchrow(
            _SQL.send_many,
            tenant_id,
            batch.ids,
            batch.shards,
            batch.task_ids,
            batch.pool_ids,
            [message.kind.priority for message in messages],
            _column([message.at for message in messages]),
            _column([message.delay for message in messages]),
            batch.specs,
            _column([message.key for message in messages]),
            repeated,
            notify,
        )
    except asyncpg.PostgresError as error:
        raise _send_error(error) from None
    assert row is not None
    now = row["now"]
    sent = {
        index: SendResult(RunKey(job_id, message.due(now)), now)
        for index, job_id, message in zip(batch.indexes, batch.ids, messages, strict=True)
    }
    if row["places"]:
        columns = (row[name] for name in ("places", "job_ids", "scheduled_for", "slots", "created"))
        for place, job_id, scheduled_for, slot, created in zip(*columns, strict=True):
            sent[batch.indexes[place - 1]] = SendResult(RunKey(job_id, scheduled_for, slot), now, created)
    return sent


def _column(values: list[Any]) -> list[Any]:
    """Returns an empty list for a column without values: the SQL function fills it with nulls."""
    return values if any(value is not None for value in values) else []


def _send_error(error: asyncpg.PostgresError) -> Exception:
    if error.sqlstate == "BR009":
        return PrunedGraph(str(error))
    if error.sqlstate == "BR007":
        return RefusedTime(datetime.fromisoformat(str(error.detail)))
    return MissingDay(str(error)) if isinstance(error, asyncpg.CheckViolationError) else error


async def trigger(store: Store, job_id: UUID, tenant_id: int, spec: Spec | None) -> RunKey | None:
    """Creates a run of a job now. Returns None if there is no such job."""
    document = None if spec is None else msgspec.json.encode(spec).decode()
    row = await store.pool.fetchrow(_SQL.trigger, job_id, tenant_id, document)
    if row is None or row["scheduled_for"] is None:
        return None
    return RunKey(job_id, row["scheduled_for"], row["slot"])


async def cancel(store: Store, key: RunKey, tenant_id: int, reason: str) -> str | None:
    """Cancels a run. Returns `cancelled`; `running` if it is running and was asked to stop; None if it had ended."""
    state: str | None = await store.pool.fetchval(
        _SQL.cancel, key.job_id, key.scheduled_for, key.slot, tenant_id, reason
    )
    return state


async def redrive(store: Store, tenant_id: int, keys: Sequence[RunKey]) -> int:
    count: int = await store.pool.fetchval(_SQL.redrive, tenant_id, *_columns(keys))
    return count


async def retry_now(store: Store, tenant_id: int, key: RunKey) -> bool:
    """Makes a waiting retry due now. Returns whether there was one."""
    moved: bool = await store.pool.fetchval(_SQL.retry_now, tenant_id, key.job_id, key.scheduled_for, key.slot)
    return moved


async def discard(store: Store, tenant_id: int, keys: Sequence[RunKey], operation_id: int | None) -> int:
    count: int = await store.pool.fetchval(_SQL.discard, tenant_id, *_columns(keys), operation_id)
    return count


async def restore_discarded(store: Store, tenant_id: int, keys: Sequence[RunKey], since: datetime) -> int:
    count: int = await store.pool.fetchval(_SQL.restore_discarded, tenant_id, *_columns(keys), since)
    return count


class RunWithAttempts(NamedTuple):
    """Returns a run, and its attempts in the order in which they ended."""

    run: RunRow
    attempts: Sequence[AttemptRow]


async def get_many(store: Store, tenant_id: int, day: date, keys: Sequence[RunKey]) -> Mapping[RunKey, RunWithAttempts]:
    """Returns those of these runs that exist; all keys are of the same day (UTC)."""
    bounds = datetime.combine(day, time.min, UTC), datetime.combine(day, time.max, UTC)
    columns = [k.job_id for k in keys], [k.scheduled_for for k in keys], [k.slot for k in keys]
    found: dict[RunKey, RunWithAttempts] = {}
    for row in await store.pool.fetch(_SQL.get, *columns, tenant_id, *bounds):
        attempts = _ATTEMPTS.decode(row["attempts"]) if row["attempts"] is not None else []
        run = read_run(row, AttemptSummary.of(attempts))
        found[run.key] = RunWithAttempts(run, attempts)
    return found


async def get_all(store: Store, tenant_id: int, keys: Sequence[RunKey]) -> Mapping[RunKey, RunRow]:
    """Returns those of these runs that exist, whatever their days."""
    found: dict[RunKey, RunRow] = {}
    by_day: dict[date, list[RunKey]] = {}
    for key in keys:
        by_day.setdefault(key.scheduled_for.astimezone(UTC).date(), []).append(key)
    for day, of_day in by_day.items():
        found |= {key: row.run for key, row in (await get_many(store, tenant_id, day, of_day)).items()}
    return found


async def get_with_attempts(store: Store, key: RunKey, tenant_id: int) -> RunWithAttempts | None:
    return (await get_many(store, tenant_id, key.scheduled_for.astimezone(UTC).date(), [key])).get(key)


async def get(store: Store, key: RunKey, tenant_id: int) -> RunRow | None:
    found = await get_with_attempts(store, key, tenant_id)
    return None if found is None else found.run


async def attempts(store: Store, key: RunKey, tenant_id: int) -> Sequence[AttemptRow]:
    """Returns the attempts of a run, in the order in which they ended; none if there is no such run."""
    found = await get_with_attempts(store, key, tenant_id)
    return () if found is None else found.attempts


async def of_job(store: Store, job_id: UUID, tenant_id: int, before: RunKey | None, most: int) -> list[RunRow]:
    """Returns the newest runs of a job before the given one."""
    mark = (before.scheduled_for, before.slot) if before else (None, None)
    return [read_run(row) for row in await store.pool.fetch(_SQL.of_job, job_id, tenant_id, *mark, most)]


async def replay(
    store: Store, key: RunKey, tenant_id: int, spec: Spec, reason: str | None
) -> tuple[int | None, str | None]:
    """Runs an ended run again in another slot. Returns the slot, or None and the state that does not allow it."""
    document = msgspec.json.encode(spec).decode()
    row = await store.pool.fetchrow(_SQL.replay, key.job_id, key.scheduled_for, key.slot, tenant_id, document, reason)
    assert row is not None
    return row["slot"], row["state"]


async def dead(
    store: Store, tenant_id: int, before: tuple[datetime, RunKey] | None, fingerprint: str | None, most: int
) -> list[DeadLetterRow]:
    """Returns the newest dead letters before the given one."""
    died_at, key = before or (None, None)
    mark = (died_at, key.job_id, key.scheduled_for, key.slot) if key else (None, None, None, None)
    rows = await store.pool.fetch(_SQL.dead_letters, tenant_id, *mark, fingerprint, most)
    return [
        DeadLetterRow(
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


def _attempted(row: asyncpg.Record) -> AttemptSummary:
    """Decodes a row of a list, which has no attempts."""
    return AttemptSummary(
        first_started_at=row["first_started_at"],
        worker_id=row["last_worker_id"],
        ends_as=row["ends_as"],
        attempt=row["last_attempt"],
        started_at=row["last_started_at"],
        finished_at=row["finished_at"],
        result=_json(row["result"]),
        error=_json(row["error"]),
    )


def _state(row: asyncpg.Record, ends_as: str | None) -> State:
    if row["available_at"] is not None:
        if row["worker_id"] is not None or row["blocked"] & Blocked.OPEN_WORKFLOW:
            return State.RUNNING
        if row["blocked"] & Blocked.NOT_CLAIMABLE:
            return State.BLOCKED
        return State.RETRYING if row["queue_attempt"] else State.QUEUED
    if row["due_at"] is not None:
        return State.RETRYING if row["timer_attempt"] else State.QUEUED
    return State(ends_as) if ends_as else State.QUEUED


def read_run(row: asyncpg.Record, attempted: AttemptSummary | None = None) -> RunRow:
    """Decodes a row. `summary` is read from the row too, unless it is given."""
    attempted = attempted or _attempted(row)
    state = _state(row, attempted.ends_as)
    ended = state in FINAL_STATES
    error = attempted.error if ended else None
    return RunRow(
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
        worker_id=attempted.worker_id if row["worker_id"] is None else row["worker_id"],
        blocked=row["blocked"] or 0,
        cancel_requested=bool(row["cancel_requested"]),
        progress=_json(row["progress"]),
        spec=None if row["spec"] is None else _SPEC.decode(row["spec"]),
        result=attempted.result if ended else None,
        error=error,
        of_slot=row.get("of_slot"),
        replays=row.get("replays") or (),
    )
