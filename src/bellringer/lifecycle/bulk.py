"""Bulk: many jobs, whose arguments were read from JSON, are created in one call; all or none, or each for itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from bellringer.errors import Conflict, InvalidInput, QuotaExceeded, Unavailable
from bellringer.jobs import Definition
from bellringer.lifecycle import register
from bellringer.lifecycle.judging import weigh
from bellringer.lifecycle.register import Readied, Written
from bellringer.lifecycle.rows import Judged
from bellringer.store import jobs
from bellringer.store.jobs import Stale
from bellringer.store.names import Names
from bellringer.store.pool import Store
from bellringer.store.scope import ScopedStore

TRIES: Final = 5

Outcomes = dict[int, Written | InvalidInput]  # by the place in the request


async def create(
    store: Store,
    names: Names,
    wanted: Mapping[int, Definition],
    *,
    tenant_id: int,
    who: str,
    now: datetime,
    atomic: bool,
) -> Outcomes:
    """What became of each; where all or none are wanted and one is refused, only the refusals are told."""
    judged = await weigh(store, names, list(wanted.values()), tenant_id=tenant_id, now=now, from_json=True)
    outcomes: Outcomes = {}
    good: dict[int, Judged] = {}
    for place, found in zip(wanted, judged, strict=True):
        if isinstance(found, InvalidInput):
            outcomes[place] = found
        else:
            good[place] = found
    outcomes |= _doubles(good)
    for _ in range(TRIES):
        fit = {place: found for place, found in good.items() if place not in outcomes}
        if not fit or (atomic and outcomes):
            return outcomes
        try:
            written = await register.enroll(store, names, list(fit.values()), tenant_id=tenant_id, who=who, now=now)
        except Conflict:
            outcomes |= await _taken(store, fit, tenant_id)
            continue
        return outcomes | dict(zip(fit, written, strict=True))
    raise Unavailable("the names of these jobs are taken by others at the same time", hint="try again in a moment")


@dataclass(frozen=True, slots=True)
class Together:
    """Jobs that were created together, by the batches that they came in and since when each counts."""

    batches: Sequence[tuple[Readied, datetime]]

    def ids(self) -> list[UUID]:
        return [job_id for ready, _ in self.batches for job_id, _, _ in ready.fresh]

    def written(self) -> list[Written]:
        return [written for ready, since in self.batches for written in ready.taken(since)]


async def create_together(
    store: ScopedStore,
    names: Names,
    batches: AsyncIterator[Sequence[Definition]],
    *,
    tenant_id: int,
    who: str,
    now: Callable[[], Awaitable[datetime]],
) -> Together | None:
    """All of them in one transaction, if nothing at all is in the way; None: nothing is done, and `create` can say why.

    While the database creates a batch, the next one is read, checked and written out here.
    """
    made: list[tuple[Readied, datetime]] = []
    seen: set[str] = set()
    begun: tuple[Readied, asyncio.Task[datetime]] | None = None
    try:
        batch = await anext(batches, None)  # before anything is locked
        async with store.transaction():
            await jobs.lock_shards(store, await names.shards())
            try:
                while batch is not None:
                    asof = await now()
                    weighed = await weigh(store, names, batch, tenant_id=tenant_id, now=asof, from_json=True)
                    good = _all_good(weighed, seen)
                    ready = await register.readied(store, names, good, tenant_id=tenant_id, asof=asof)
                    if begun is not None:
                        made.append((begun[0], await begun[1]))
                    begun = ready, asyncio.create_task(ready.written(store, who))
                    await asyncio.sleep(0)  # it is sent: the next are read meanwhile
                    batch = await anext(batches, None)
                if begun is not None:
                    made.append((begun[0], await begun[1]))
            finally:
                await _stopped(begun[1] if begun else None)
    except (InvalidInput, Conflict, QuotaExceeded, Stale):
        return None
    return Together(made)


def _all_good(judged: Sequence[Judged | InvalidInput], seen: set[str]) -> list[Judged]:
    """These, if there is nothing wrong with any of them."""
    good: list[Judged] = []
    for found in judged:
        if isinstance(found, InvalidInput):
            raise found
        good.append(found)
    names = {found.definition.name.lower() for found in good}
    if len(names) < len(good) or not seen.isdisjoint(names):
        raise _name_taken("another job of this request has that name")
    seen |= names
    return good


async def _stopped(task: asyncio.Task[datetime] | None) -> None:
    """Before the transaction ends, nobody uses its connection any more."""
    if task is not None and not task.done():
        task.cancel()
        await asyncio.wait([task])


def _doubles(good: Mapping[int, Judged]) -> dict[int, InvalidInput]:
    """Those whose name an earlier one has."""
    seen: set[str] = set()
    found: dict[int, InvalidInput] = {}
    for place, judged in good.items():
        name = judged.definition.name.lower()
        if name in seen:
            found[place] = _name_taken("another job of this request has that name")
        seen.add(name)
    return found


async def _taken(store: Store, fit: Mapping[int, Judged], tenant_id: int) -> dict[int, InvalidInput]:
    """Those whose names others have; their jobs may be gone again, and then nothing is wrong."""
    known = await jobs.find_many(store, tenant_id, [judged.definition.name for judged in fit.values()])
    message = "a job of that name exists already"
    return {place: _name_taken(message) for place, judged in fit.items() if judged.definition.name in known}


def _name_taken(message: str) -> InvalidInput:
    return InvalidInput(message, hint="choose another name", pointer="/name", code="name_taken")


def refusals(outcomes: Mapping[int, Written | InvalidInput]) -> Sequence[tuple[int, InvalidInput]]:
    """What was refused, in the order of the request."""
    return [(place, found) for place in sorted(outcomes) if isinstance(found := outcomes[place], InvalidInput)]
