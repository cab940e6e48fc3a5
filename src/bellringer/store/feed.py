"""Events as they can be followed: in an order in which none comes late."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import asyncpg
import msgspec

from bellringer.runs import RunKey
from bellringer.store.events import Event
from bellringer.store.pool import Store
from bellringer.store.queries import load

_SQL = load("feed")

MOST: Final = 500  # events of one tenant that one look brings


class Position(NamedTuple):
    """How far somebody has followed; numbers are given before the commit, so the transaction comes first."""

    tx: int
    event_id: int


NOWHERE: Final = Position(0, 0)


class Following(NamedTuple):
    """What follows, and where the next look starts: behind these, or, where they are all, at the horizon."""

    events: list[tuple[Position, Event]]
    position: Position
    is_all: bool


async def following(store: Store, positions: Mapping[int, Position]) -> dict[int, Following]:
    """What follows for each tenant, in one look."""
    columns = (list(positions), [str(p.tx) for p in positions.values()], [p.event_id for p in positions.values()])
    rows = await store.pool.fetch(_SQL.following, *columns, MOST)
    horizon = Position(rows[0]["horizon"], 0)
    found: dict[int, list[tuple[Position, Event]]] = {tenant_id: [] for tenant_id in positions}
    for row in rows:
        if row["event_id"] is not None:
            found[row["tenant_id"]].append((Position(row["tx"], row["event_id"]), _event(row)))
    answers = {}
    for tenant_id, events in found.items():
        is_all = len(events) < MOST
        answers[tenant_id] = Following(events, horizon if is_all else events[-1][0], is_all)
    return answers


async def horizon(store: Store) -> Position:
    """Where one starts who wants to know only what comes."""
    rows = await store.pool.fetch(_SQL.following, [], [], [], 0)
    return Position(rows[0]["horizon"], 0)


def _event(row: asyncpg.Record) -> Event:
    return Event(
        **{name: row[name] for name in ("event_id", "at", "kind", "job", "attempt")},
        key=RunKey(row["job_id"], row["scheduled_for"], row["slot"]),
        data=msgspec.json.decode(row["data"]),
    )
