"""Runs that are with a broker: marks them as sent, takes them for the worker that got the message, or returns them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import msgspec

from bellringer.core.broker import MAX_INLINE_SPEC_LENGTH, MESSAGE_VERSION, Message, ReceivedMessage
from bellringer.core.runs import RunKey, Spec
from bellringer.core.secret_references import MARKER_PREFIX
from bellringer.store.connection_pool import Store
from bellringer.store.queries import load
from bellringer.store.queue import ClaimedRun, ClaimPosition, claim_position, to_not_live

_SQL = load("broker_dispatch")
_SPEC = msgspec.json.Decoder(Spec)
_MAX_QUARANTINED_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPool:
    """A pool whose workers receive their runs through a broker."""

    pool_id: int
    pool: str
    slots: int
    workers: Sequence[int]
    task_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """The runs of a pool that are with the broker, those of them sent recently, and those held by workers."""

    sent: int
    fresh: int
    held: int


async def list_broker_pools(store: Store, engine: str) -> list[BrokerPool]:
    return [BrokerPool(**dict(row)) for row in await store.pool.fetch(_SQL.broker_pools, engine)]


async def broker_load(store: Store, pool: BrokerPool, limit: int, fresh: timedelta) -> BrokerLoad:
    """Counts the sent runs of a pool up to `limit`; runs sent within `fresh` count as recent."""
    row: Any = await store.pool.fetchrow(_SQL.load, pool.pool_id, pool.workers, limit, fresh)
    return BrokerLoad(row["sent"], row["fresh"], row["held"])


async def mark_sent(
    store: Store, pool: BrokerPool, limit: int, *, after: int, rest: int, behind: int, tenants: int
) -> tuple[list[Message], ClaimPosition]:
    """Marks up to `limit` ready runs as sent. The parameters are those of a claim."""
    arguments = (pool.pool_id, pool.task_ids, limit, after, rest, behind, tenants)
    rows = await store.pool.fetch(_SQL.send, *arguments)
    return [_message(row) for row in rows if row["job_id"] is not None], claim_position(rows)


async def mark_resent(store: Store, pool_id: int, after: timedelta, limit: int) -> list[Message]:
    """Returns runs that no worker has taken for `after`, and marks them as sent now."""
    return [_message(row) for row in await store.pool.fetch(_SQL.resend, pool_id, after, limit)]


async def unsend(store: Store, pool_id: int, messages: Sequence[Message]) -> int:
    """Makes these sent runs ready again; returns how many."""
    ids, instants, slots = _keys([message.key for message in messages])
    returned: int = await store.pool.fetchval(_SQL.unsend, pool_id, timedelta(0), ids, instants, slots)
    return returned


async def unsend_older(store: Store, pool_id: int, after: timedelta) -> int:
    """Makes all runs of a pool ready again that were sent longer than `after` ago."""
    returned: int = await store.pool.fetchval(_SQL.unsend, pool_id, after, None, None, None)
    return returned


async def pools_with_sent_runs(store: Store) -> list[int]:
    """Returns the pools that have runs with a broker."""
    return [row["pool_id"] for row in await store.pool.fetch(_SQL.pools_with_sent_runs)]


async def take(store: Store, worker_id: int, pool_id: int, messages: Sequence[Message]) -> list[ClaimedRun]:
    """Takes the runs of these messages for a worker, if they are still sent.

    The spec is read again if the job has changed since the run was sent, or if it was too long for a message.
    """
    requested = {message.key: message for message in messages}
    keys = sorted(requested)
    ids, instants, slots = _keys(keys)
    attempts = [requested[key].attempt for key in keys]
    try:
        rows = await store.pool.fetch(_SQL.take, worker_id, pool_id, ids, instants, slots, attempts)
    except asyncpg.PostgresError as error:
        raise to_not_live(error) from error
    taken = {RunKey(row[0], row[1], row[2]): row for row in rows}
    changed = [
        key for key, row in taken.items() if requested[key].spec is None or requested[key].revision != row["revision"]
    ]
    reloaded = await _reload_specs(store, worker_id, changed) if changed else {}
    found = []
    for key, row in taken.items():
        m = requested[key]
        task_id, name, spec = reloaded.get(key) or (m.task_id, m.name, m.spec or "{}")
        found.append(
            ClaimedRun(
                key,
                row["attempt"],
                m.floor,
                task_id,
                m.tenant_id,
                row["claimed_at"],
                name,
                _SPEC.decode(spec),
                m.behind,
                m.available_at,
                MARKER_PREFIX in spec,
            )
        )
    return found


async def _reload_specs(
    store: Store, worker_id: int, keys: Sequence[RunKey]
) -> dict[RunKey, tuple[int, str | None, str]]:
    rows = await store.pool.fetch(_SQL.specs, worker_id, *_keys(keys))
    return {RunKey(row[0], row[1], row[2]): (row["task_id"], row["name"], row["spec"]) for row in rows}


async def quarantine(store: Store, parcels: Sequence[tuple[ReceivedMessage, str]]) -> None:
    """Stores unreadable messages for inspection."""
    await store.pool.execute(
        _SQL.quarantine,
        [parcel.topic for parcel, _ in parcels],
        [parcel.partition for parcel, _ in parcels],
        [parcel.offset for parcel, _ in parcels],
        [problem[:500] for _, problem in parcels],
        [parcel.data[:_MAX_QUARANTINED_BYTES] for parcel, _ in parcels],
    )


async def prune_quarantine(store: Store) -> None:
    """Deletes quarantined messages after a week."""
    await store.pool.execute(_SQL.prune_quarantine)


def _keys(keys: Sequence[RunKey]) -> tuple[list[Any], list[datetime], list[int]]:
    return [key.job_id for key in keys], [key.scheduled_for for key in keys], [key.slot for key in keys]


def _message(row: Any) -> Message:
    job_id, at, slot, attempt, floor, task_id, tenant_id, revision, name, spec, behind, available_at, *_ = row
    carried = spec if len(spec) <= MAX_INLINE_SPEC_LENGTH else None
    of = (job_id, at, slot, attempt, floor, task_id, tenant_id)
    return Message(MESSAGE_VERSION, *of, revision, name, carried, behind, available_at)
