"""The queue as workers and the reaper see it: claim, settle, give back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg
import msgspec

from bellringer.runs import Ending, RunKey, Spec, Verdict
from bellringer.store.pool import Store
from bellringer.store.queries import load

_SQL = load("queue")
_SPEC = msgspec.json.Decoder(Spec)
_JSON = msgspec.json.Encoder()


class Claimed(msgspec.Struct, frozen=True):
    """One attempt, as the database granted it."""

    key: RunKey
    attempt: int
    floor: int
    task_id: int
    tenant_id: int
    claimed_at: datetime
    name: str | None
    spec: Spec
    behind: bool = False  # it runs behind live work
    available_at: datetime | None = None  # from when on it might be claimed
    ran: float = 0.0
    lost: int = 0

    @property
    def spent(self) -> int:
        return self.attempt - self.floor


class Settled(msgspec.Struct, frozen=True):
    """An ending and its verdict, ready to be written."""

    key: RunKey
    attempt: int
    ending: Ending
    verdict: Verdict
    fingerprint: str | None = None
    ended_at: float | None = None  # on the worker's monotonic clock
    flows: bool = False  # it is part of a workflow: others may start by it


class Walk(NamedTuple):
    """How far a claim came: behind whom the next begins, what the first one there is still to get, tenants seen."""

    after: int
    rest: int
    tenants: int


async def claim(
    store: Store,
    worker_id: int,
    pool_id: int,
    tasks: Sequence[int],
    most: int,
    *,
    after: int,
    rest: int,
    behind: int,
    tenants: int,
) -> tuple[list[Claimed], Walk]:
    """At most so many runs, of at most so many tenants behind `after`; the first of them has `rest` to get."""
    arguments = (worker_id, pool_id, tasks, most, after, rest, behind, tenants)
    *rows, last = await store.pool.fetch(_SQL.claim, *arguments)
    decode = _SPEC.decode
    taken = [
        Claimed(RunKey(r[0], r[1], r[2]), r[3], r[4], r[5], r[6], r[7], r[8], decode(r[9]), r[10], r[11]) for r in rows
    ]
    return taken, Walk(last["after"], last["rest"], last["walked"])


async def settle(store: Store, worker_id: int, batch: Sequence[Settled], moment: float | None = None) -> int:
    """Write a batch of endings; answers how many were still ours to write.

    `moment` is now on the clock that `ended_at` was read from; without it they ended just now.
    """
    batch = sorted(batch, key=_place)
    settled: int = await store.pool.fetchval(
        _SQL.settle,
        worker_id,
        [s.key.job_id for s in batch],
        [s.key.scheduled_for for s in batch],
        [s.key.slot for s in batch],
        [s.attempt for s in batch],
        [s.ending.outcome for s in batch],
        [s.verdict.ends_as for s in batch],
        [s.verdict.wait.total_seconds() if s.verdict.wait else 0.0 for s in batch],
        [s.verdict.counted for s in batch],
        [s.ending.ran for s in batch],
        [0.0 if moment is None or s.ended_at is None else moment - s.ended_at for s in batch],
        [_error(s) for s in batch],
        [None if s.ending.result is None else _JSON.encode(s.ending.result).decode() for s in batch],
        [s.verdict.reason for s in batch],
        [s.fingerprint for s in batch],
        any(s.flows for s in batch),
    )
    return settled


def _place(s: Settled) -> tuple[int, datetime, int]:
    """All writers of many rows take them in key order; an id compares fastest as a number."""
    return s.key.job_id.int, s.key.scheduled_for, s.key.slot


def _error(s: Settled) -> str | None:
    error = s.ending.error
    if s.verdict.reason is not None:
        error = {**(error or {}), "reason": s.verdict.reason}
    if error is None:
        return None
    return _JSON.encode({k: v for k, v in error.items() if k != "lineage"}).decode()


async def give_back(store: Store, worker_id: int, taken: Sequence[tuple[RunKey, int]]) -> int:
    """Return what was not started, as if it had never been taken."""
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


async def held(store: Store, worker_id: int, most: int) -> list[Claimed]:
    """What a worker holds, as its reaper needs it."""
    return [_claimed(row) for row in await store.pool.fetch(_SQL.held, worker_id, most)]


def _claimed(row: asyncpg.Record) -> Claimed:
    return Claimed(
        key=RunKey(row["job_id"], row["scheduled_for"], row["slot"]),
        attempt=row["attempt"],
        floor=row["attempt_floor"],
        task_id=row["task_id"],
        tenant_id=row["tenant_id"],
        claimed_at=row["claimed_at"],
        available_at=row["available_at"],
        name=row["name"],
        spec=_SPEC.decode(row["spec"]),
        ran=row["ran"],
        lost=row["lost"],
    )


async def cancels(store: Store, worker_id: int) -> list[tuple[RunKey, int]]:
    """The attempts of this worker that were asked to stop."""
    rows = await store.pool.fetch(_SQL.cancels, worker_id)
    return [(RunKey(r[0], r[1], r[2]), r[3]) for r in rows]


async def report(store: Store, worker_id: int, news: Sequence[tuple[RunKey, int, Mapping[str, Any]]]) -> None:
    """Keep the latest progress of running attempts."""
    await store.pool.execute(
        _SQL.report,
        worker_id,
        [k.job_id for k, _, _ in news],
        [k.scheduled_for for k, _, _ in news],
        [k.slot for k, _, _ in news],
        [attempt for _, attempt, _ in news],
        [_JSON.encode(p).decode() for _, _, p in news],
    )


async def log(store: Store, lines: Sequence[tuple[RunKey, int, datetime, str, str, Mapping[str, Any] | None]]) -> None:
    """Keep lines that handlers logged."""
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
    )


async def sweep(store: Store, most: int) -> int:
    """Set aside what nobody knows, and bring back what somebody knows now."""
    changed: int = await store.pool.fetchval(_SQL.sweep, most)
    return changed


async def decide(store: Store, most: int) -> int:
    """Let each overlapping run whose time has come go the way of its job's policy; answers how many there were."""
    decided: int = await store.pool.fetchval(_SQL.decide, most)
    return decided


async def thaw(store: Store, most: int) -> int:
    """Let runs go whose freeze is over."""
    thawed: int = await store.pool.fetchval(_SQL.thaw, most)
    return thawed


async def free_orphans(store: Store, after: tuple[datetime, UUID], most: int) -> tuple[datetime, UUID] | None:
    """Let runs go that wait for nothing; answers how far it looked, None at the end."""
    row = await store.pool.fetchrow(_SQL.free_orphans, *after, most)
    assert row is not None
    return None if row["o_at"] is None else (row["o_at"], row["o_job"])


async def rearm_orphans(store: Store) -> int:
    """Arm the next run of jobs with a fixed delay whose last one ended without doing so."""
    armed: int = await store.pool.fetchval(_SQL.rearm_orphans)
    return armed


async def depths(store: Store) -> list[Mapping[str, Any]]:
    return [dict(row) for row in await store.pool.fetch(_SQL.depths)]
