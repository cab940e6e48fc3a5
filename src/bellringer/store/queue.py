"""The queue as workers and the reaper use it: claim runs, settle attempts, return runs that were not started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg
import msgspec

from bellringer.core.policies import Delivery
from bellringer.core.runs import Ending, RunKey, SettleDecision, Spec, State
from bellringer.core.secret_references import MARKER_PREFIX
from bellringer.store.connection_pool import Store
from bellringer.store.queries import load

_SQL = load("queue")
_SPEC = msgspec.json.Decoder(Spec)
_JSON = msgspec.json.Encoder()
_MARKER = MARKER_PREFIX


class ClaimedRun(msgspec.Struct, frozen=True):
    """One attempt of a run, as granted by the database."""

    key: RunKey
    attempt: int
    floor: int
    task_id: int
    tenant_id: int
    claimed_at: datetime
    name: str | None
    spec: Spec
    background: bool = False  # created by a backfill, so it has low priority
    available_at: datetime | None = None  # when it became claimable
    has_markers: bool = False  # the payload may contain references to secrets or encrypted values
    ran: float = 0.0
    lost: int = 0  # other worker processes that were lost while they executed the run
    started: bool = False  # the worker has recorded the start of the attempt
    first_started_at: datetime | None = None  # of the first attempt; only known if the retry policy needs it
    resume_from: Any = None  # the last progress details of earlier attempts
    last_result: Any = None  # the result of the previous run of the job, if the job keeps it

    @property
    def spent(self) -> int:
        return self.attempt - self.floor

    @property
    def is_occurrence(self) -> bool:
        """Whether a schedule created the run: it has a job, and slot 0 is for scheduled occurrences."""
        return self.name is not None and self.key.slot == 0

    @property
    def records_start(self) -> bool:
        """Whether the worker records the start of this attempt before it calls the handler, so that it is known
        whether a lost attempt had started.

        The start of other first attempts is recorded a few seconds later, if they still run (`record_starts`): an
        update before each would double the writes of a claim. Attempts with at-most-once delivery are always recorded
        before, because only those that never started may be retried.
        """
        return self.attempt > 1 or self.spec.delivery == Delivery.AT_MOST_ONCE

    @property
    def lacks_data(self) -> bool:
        """Whether the worker must read arguments, or results of other runs, before it calls the handler."""
        return self.spec.keep_result or self.spec.is_incomplete

    @property
    def expires_at(self) -> datetime | None:
        """The time from which on no attempt of the run begins."""
        return None if self.spec.expires_at is None else datetime.fromtimestamp(self.spec.expires_at, UTC)


class EndedRun(msgspec.Struct, frozen=True):
    """The outcome of an attempt and the decision about its run, ready to be written."""

    key: RunKey
    attempt: int
    ending: Ending
    decision: SettleDecision
    fingerprint: str | None = None
    ended_at: float | None = None  # on the worker's monotonic clock
    in_workflow: bool = False  # part of a workflow run, whose other nodes may start now


class Settlement(NamedTuple):
    """The result of settling a batch: how many were written, and those that another process had already decided."""

    written: int
    refused: list[EndedRun]


class ClaimPosition(NamedTuple):
    """Where a claim ended: the last tenant served, the runs still owed to the next one, and the number of tenants
    visited.
    """

    after_tenant: int
    carry: int
    tenants_visited: int


class NotLive(Exception):
    """The worker was declared lost or has left; it must register again before it may claim."""


def to_not_live(error: asyncpg.PostgresError) -> Exception:
    """Returns NotLive for the database error that means it, else the error itself."""
    return NotLive(str(error)) if error.sqlstate == "BR006" else error


async def claim(
    store: Store,
    worker_id: int,
    pool_id: int,
    tasks: Sequence[int],
    limit: int,
    *,
    after: int,
    rest: int,
    behind: int,
    tenants: int,
) -> tuple[list[ClaimedRun], ClaimPosition]:
    """Claims up to `limit` runs of up to `tenants` tenants after `after`; the first of them is owed `rest` runs."""
    arguments = (worker_id, pool_id, tasks, limit, after, rest, behind, tenants)
    try:
        rows = await store.pool.fetch(_SQL.claim, *arguments)
    except asyncpg.PostgresError as error:
        raise to_not_live(error) from error
    decode = _SPEC.decode
    taken = [
        ClaimedRun(
            RunKey(r[0], r[1], r[2]), r[3], r[4], r[5], r[6], r[7], r[8], decode(r[9]), r[10], r[11], _MARKER in r[9]
        )
        for r in rows
        if r[0] is not None
    ]
    return taken, claim_position(rows)


def claim_position(rows: Sequence[asyncpg.Record]) -> ClaimPosition:
    """Returns the position from the one row of a claim that is not a run."""
    row = next(row for row in rows if row["job_id"] is None)
    return ClaimPosition(row["after_tenant"], row["share_left"], row["tenants_visited"])


async def settle(
    store: Store, worker_id: int, batch: Sequence[EndedRun], moment: float | None = None, *, reaping: bool = False
) -> Settlement:
    """Writes a batch of settlements. May be repeated when the response was lost.

    `moment` is the present time of the clock that `ended_at` was read from; without it, the attempts ended just
    now. `reaping` settles on behalf of a worker that is lost or stopped.
    """
    batch = sorted(batch, key=_lock_order)
    row = await store.pool.fetchrow(
        _SQL.settle,
        worker_id,
        [_encode_ending(run, moment) for run in batch],
        any(run.in_workflow for run in batch),
        reaping,
        _encode_progress(batch),
    )
    assert row is not None
    return Settlement(row["written"], [batch[place - 1] for place in row["refused"]])


def _encode_progress(batch: Sequence[EndedRun]) -> list[str | None] | None:
    """The last progress of attempts whose run may have another attempt, by position; None if there is none."""
    if all(run.ending.progress is None for run in batch):
        return None
    return [
        None
        if run.ending.progress is None or run.decision.ends_as not in (None, State.DEAD)
        else _JSON.encode(run.ending.progress).decode()
        for run in batch
    ]


async def begin_attempts(store: Store, worker_id: int, claimed: Sequence[ClaimedRun]) -> list[ClaimedRun]:
    """Records that these attempts start; returns those that the worker still holds, with `resume_from`."""
    try:
        rows = await store.pool.fetch(
            _SQL.begin,
            worker_id,
            [c.key.job_id for c in claimed],
            [c.key.scheduled_for for c in claimed],
            [c.key.slot for c in claimed],
            [c.attempt for c in claimed],
        )
    except asyncpg.PostgresError as error:
        raise to_not_live(error) from error
    begun = [(row["position"], claimed[row["position"] - 1], row["resume_from"]) for row in rows]
    return [
        run if details is None else _with_resume_point(run, details)
        for _, run, details in sorted(begun, key=lambda entry: entry[0])
    ]


async def record_starts(store: Store, worker_id: int, started: Sequence[tuple[RunKey, int, datetime]]) -> None:
    """Records when first attempts that still run have started."""
    started = sorted(started)
    await store.pool.execute(
        _SQL.record_starts,
        worker_id,
        [k.job_id for k, _, _ in started],
        [k.scheduled_for for k, _, _ in started],
        [k.slot for k, _, _ in started],
        [attempt for _, attempt, _ in started],
        [at for _, _, at in started],
    )


async def load_first_starts(store: Store, claimed: Sequence[ClaimedRun]) -> list[ClaimedRun]:
    """Returns the runs with the start of their first attempt, for retry policies with `max_elapsed`."""
    rows = await store.pool.fetch(_SQL.first_starts, *_keys_of(claimed))
    return [
        msgspec.structs.replace(run, first_started_at=row["started_at"]) for run, row in zip(claimed, rows, strict=True)
    ]


async def load_last_results(store: Store, claimed: Sequence[ClaimedRun]) -> list[ClaimedRun]:
    """Returns the runs with the result of the run before them, for jobs that keep it."""
    rows = await store.pool.fetch(_SQL.last_results, *_keys_of(claimed))
    return [
        run if row["result"] is None else _with_last_result(run, row["result"])
        for run, row in zip(claimed, rows, strict=True)
    ]


def _with_resume_point(run: ClaimedRun, text: str) -> ClaimedRun:
    has_markers = run.has_markers or MARKER_PREFIX in text
    return msgspec.structs.replace(run, resume_from=msgspec.json.decode(text), has_markers=has_markers)


def _with_last_result(run: ClaimedRun, text: str) -> ClaimedRun:
    has_markers = run.has_markers or MARKER_PREFIX in text
    return msgspec.structs.replace(run, last_result=msgspec.json.decode(text), has_markers=has_markers)


def _keys_of(claimed: Sequence[ClaimedRun]) -> tuple[list[UUID], list[datetime], list[int]]:
    return [c.key.job_id for c in claimed], [c.key.scheduled_for for c in claimed], [c.key.slot for c in claimed]


class ExpiredRuns(NamedTuple):
    """How many waiting runs were ended because their deadline had passed."""

    skipped: int
    dead: int


async def expire_runs(store: Store, limit: int) -> ExpiredRuns:
    """Ends up to `limit` waiting runs whose deadline has passed."""
    row = await store.pool.fetchrow(_SQL.expire, limit)
    assert row is not None
    return ExpiredRuns(row["o_skipped"], row["o_dead"])


def _lock_order(s: EndedRun) -> tuple[int, datetime, int]:
    """All writers of several rows lock them in key order. Ids compare fastest as integers."""
    return s.key.job_id.int, s.key.scheduled_for, s.key.slot


def _encode_ending(run: EndedRun, moment: float | None) -> tuple[object, ...]:
    """One `attempt_ending` of the database, field by field."""
    ending, decision = run.ending, run.decision
    return (
        run.key.job_id,
        run.key.scheduled_for,
        run.key.slot,
        run.attempt,
        ending.outcome.value,
        decision.ends_as and decision.ends_as.value,
        decision.wait.total_seconds() if decision.wait else 0.0,
        decision.counted,
        ending.ran if ending.started else None,
        0.0 if moment is None or run.ended_at is None else moment - run.ended_at,
        _error(run),
        None if ending.result is None else _JSON.encode(ending.result).decode(),
        decision.reason,
        run.fingerprint,
    )


def _error(s: EndedRun) -> str | None:
    error = s.ending.error
    if s.decision.reason is not None:
        error = {**(error or {}), "reason": s.decision.reason}
    if error is None:
        return None
    return _JSON.encode({k: v for k, v in error.items() if k != "lineage"}).decode()


async def give_back(store: Store, worker_id: int, taken: Sequence[tuple[RunKey, int]]) -> int:
    """Returns runs that were not started to the queue, as if they had not been claimed."""
    taken = sorted(taken)
    count: int = await store.pool.fetchval(
        _SQL.give_back,
        worker_id,
        [k.job_id for k, _ in taken],
        [k.scheduled_for for k, _ in taken],
        [k.slot for k, _ in taken],
        [attempt for _, attempt in taken],
    )
    return count


async def held_by_worker(store: Store, worker_id: int, limit: int) -> list[ClaimedRun]:
    """Returns the attempts that a worker holds, for its reaper."""
    return [_claimed(row) for row in await store.pool.fetch(_SQL.held, worker_id, limit)]


def _claimed(row: asyncpg.Record) -> ClaimedRun:
    return ClaimedRun(
        key=RunKey(row["job_id"], row["scheduled_for"], row["slot"]),
        attempt=row["attempt"],
        floor=row["attempt_floor"],
        task_id=row["task_id"],
        tenant_id=row["tenant_id"],
        claimed_at=row["claimed_at"],
        available_at=row["available_at"],
        name=row["name"],
        spec=_SPEC.decode(row["spec"]),
        has_markers=MARKER_PREFIX in row["spec"],
        ran=row["ran"],
        lost=row["lost"],
        started=row["started"],
    )


async def cancel_requests(store: Store, worker_id: int) -> list[tuple[RunKey, int]]:
    """Returns the worker's attempts whose cancellation was requested."""
    rows = await store.pool.fetch(_SQL.cancels, worker_id)
    return [(RunKey(r[0], r[1], r[2]), r[3]) for r in rows]


async def record_progress(
    store: Store, worker_id: int, reports: Sequence[tuple[RunKey, int, Mapping[str, Any]]]
) -> None:
    """Stores the latest progress of running attempts."""
    await store.pool.execute(
        _SQL.report,
        worker_id,
        [k.job_id for k, _, _ in reports],
        [k.scheduled_for for k, _, _ in reports],
        [k.slot for k, _, _ in reports],
        [attempt for _, attempt, _ in reports],
        [_JSON.encode(p).decode() for _, _, p in reports],
    )


NewLogLine = tuple[RunKey, int, datetime, str, str, Mapping[str, Any] | None]  # … attempt, at, level, message, fields


async def add_log_lines(store: Store, lines: Sequence[NewLogLine | tuple[*NewLogLine, str | None]]) -> None:
    """Stores lines of handlers, in order. The source, if given, is the last value; without it, `ctx.log` is meant."""
    await store.pool.execute(
        _SQL.log,
        [k.job_id for k, *_ in lines],
        [k.scheduled_for for k, *_ in lines],
        [k.slot for k, *_ in lines],
        [line[1] for line in lines],
        [line[2] for line in lines],
        [line[3] for line in lines],
        [line[4] for line in lines],
        [None if line[5] is None else _JSON.encode(line[5]).decode() for line in lines],
        [line[6] if len(line) > 6 else None for line in lines],
    )


async def park_unknown_tasks(store: Store, limit: int) -> int:
    """Parks runs of tasks that no worker knows, and unparks those that a worker knows now."""
    changed: int = await store.pool.fetchval(_SQL.update_unknown_tasks, limit)
    return changed


async def decide_overlaps(store: Store, limit: int) -> int:
    """Applies the overlap policy of their jobs to due runs that overlap; returns how many."""
    decided: int = await store.pool.fetchval(_SQL.decide_overlaps, limit)
    return decided


async def release_frozen(store: Store, limit: int) -> int:
    """Unblocks runs whose freeze is over."""
    thawed: int = await store.pool.fetchval(_SQL.release_frozen, limit)
    return thawed


async def unblock_orphans(store: Store, after: tuple[datetime, UUID], limit: int) -> tuple[datetime, UUID] | None:
    """Unblocks runs that wait for nothing. Returns the position where the scan stopped, None at the end."""
    row = await store.pool.fetchrow(_SQL.unblock_orphans, *after, limit)
    assert row is not None
    return None if row["o_at"] is None else (row["o_at"], row["o_job"])


async def rearm_orphans(store: Store) -> int:
    """Sets the next timer of fixed-delay jobs whose last run ended without setting it."""
    armed: int = await store.pool.fetchval(_SQL.rearm_orphans)
    return armed


async def depths(store: Store) -> list[Mapping[str, Any]]:
    return [dict(row) for row in await store.pool.fetch(_SQL.depths)]


async def steps_with_work(store: Store, shards: Sequence[int]) -> list[str]:
    """Returns the names of scheduler steps that have something to do. A hint: steps also run without it."""
    steps: list[str] = await store.pool.fetchval("select bellringer.steps_with_work($1)", shards)
    return steps
