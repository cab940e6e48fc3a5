"""Runs that are with a broker: marked as sent, taken by who got the message, or home again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec

from bellringer.dispatch import FORM, LONGEST_SPEC, Message, Parcel
from bellringer.runs import RunKey, Spec
from bellringer.store.pool import Store
from bellringer.store.queries import load
from bellringer.store.queue import Claimed, Walk

_SQL = load("dispatch")
_SPEC = msgspec.json.Decoder(Spec)
_LONGEST_SHOWN = 4096  # bytes of a message that is put aside


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A pool whose workers get their work by a broker."""

    pool_id: int
    pool: str
    slots: int
    workers: Sequence[int]
    task_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Load:
    """How many runs of a pool are with the broker, how many of these since a moment ago, and how many with workers."""

    sent: int
    fresh: int
    held: int


async def lanes(store: Store, engine: str) -> list[Lane]:
    return [Lane(**dict(row)) for row in await store.pool.fetch(_SQL.lanes, engine)]


async def load_of(store: Store, lane: Lane, most: int, fresh: timedelta) -> Load:
    """What is out of a pool, counted up to `most`; `fresh` is how long ago it may have been sent to count as fresh."""
    row: Any = await store.pool.fetchrow(_SQL.load, lane.pool_id, lane.workers, most, fresh)
    return Load(row["sent"], row["fresh"], row["held"])


async def send(
    store: Store, lane: Lane, most: int, *, after: int, rest: int, behind: int, tenants: int
) -> tuple[list[Message], Walk]:
    """Mark at most so many ready runs as sent; the arguments are those of a claim."""
    arguments = (lane.pool_id, lane.task_ids, most, after, rest, behind, tenants)
    *rows, last = await store.pool.fetch(_SQL.send, *arguments)
    return [_message(row) for row in rows], Walk(last["after"], last["rest"], last["walked"])


async def resend(store: Store, pool_id: int, after: timedelta, most: int) -> list[Message]:
    """Those that nobody has taken for so long, marked as sent just now."""
    return [_message(row) for row in await store.pool.fetch(_SQL.resend, pool_id, after, most)]


async def unsend(store: Store, pool_id: int, messages: Sequence[Message]) -> int:
    """These come home."""
    ids, instants, slots = _keys([message.key for message in messages])
    home: int = await store.pool.fetchval(_SQL.unsend, pool_id, timedelta(0), ids, instants, slots)
    return home


async def unsend_old(store: Store, pool_id: int, after: timedelta) -> int:
    """All of a pool that were sent so long ago come home."""
    home: int = await store.pool.fetchval(_SQL.unsend, pool_id, after, None, None, None)
    return home


async def out(store: Store) -> list[int]:
    """The pools of which something is with a broker, or was when it was last heard of."""
    return [row["pool_id"] for row in await store.pool.fetch(_SQL.out)]


async def take(store: Store, worker_id: int, pool_id: int, messages: Sequence[Message]) -> list[Claimed]:
    """The runs of these messages that are still out, now this worker's. A run whose job has changed since it was sent,
    or that was too long for a message, is read anew."""
    asked = {message.key: message for message in messages}
    keys = sorted(asked)
    ids, instants, slots = _keys(keys)
    attempts = [asked[key].attempt for key in keys]
    rows = await store.pool.fetch(_SQL.take, worker_id, pool_id, ids, instants, slots, attempts)
    taken = {RunKey(row[0], row[1], row[2]): row for row in rows}
    changed = [key for key, row in taken.items() if asked[key].spec is None or asked[key].revision != row["revision"]]
    anew = await _anew(store, worker_id, changed) if changed else {}
    found = []
    for key, row in taken.items():
        m = asked[key]
        task_id, name, spec = anew.get(key) or (m.task_id, m.name, m.spec or "{}")
        found.append(
            Claimed(
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
            )
        )
    return found


async def _anew(store: Store, worker_id: int, keys: Sequence[RunKey]) -> dict[RunKey, tuple[int, str | None, str]]:
    rows = await store.pool.fetch(_SQL.specs, worker_id, *_keys(keys))
    return {RunKey(row[0], row[1], row[2]): (row["task_id"], row["name"], row["spec"]) for row in rows}


async def set_aside(store: Store, parcels: Sequence[tuple[Parcel, str]]) -> None:
    """Keep what nobody can read, to be looked at."""
    await store.pool.execute(
        _SQL.set_aside,
        [parcel.topic for parcel, _ in parcels],
        [parcel.part for parcel, _ in parcels],
        [parcel.place for parcel, _ in parcels],
        [problem[:500] for _, problem in parcels],
        [parcel.data[:_LONGEST_SHOWN] for parcel, _ in parcels],
    )


async def forget_aside(store: Store) -> None:
    """Drop what was put aside a week ago."""
    await store.pool.execute(_SQL.forget_aside)


def _keys(keys: Sequence[RunKey]) -> tuple[list[Any], list[datetime], list[int]]:
    return [key.job_id for key in keys], [key.scheduled_for for key in keys], [key.slot for key in keys]


def _message(row: Any) -> Message:
    job_id, at, slot, attempt, floor, task_id, tenant_id, revision, name, spec, behind, available_at, *_ = row
    carried = spec if len(spec) <= LONGEST_SPEC else None
    of = (job_id, at, slot, attempt, floor, task_id, tenant_id)
    return Message(FORM, *of, revision, name, carried, behind, available_at)
