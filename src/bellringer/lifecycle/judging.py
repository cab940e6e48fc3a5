"""Judging: whether a definition can be had, and as what it would be stored."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain

from bellringer.errors import InvalidInput
from bellringer.jobs import HTTP, WORKFLOW, Definition, check_name
from bellringer.lifecycle import versions
from bellringer.lifecycle.homes import homeless
from bellringer.lifecycle.rows import Judged
from bellringer.lifecycle.versions import Seen
from bellringer.payload import check_payload, rewrite
from bellringer.schedule import Calendar, Schedule, resolved, seeded
from bellringer.store import calendars
from bellringer.store.names import Names
from bellringer.store.pool import Store


async def weigh(
    store: Store,
    names: Names,
    definitions: Sequence[Definition],
    *,
    tenant_id: int,
    now: datetime,
    known: Collection[Schedule] = (),
    from_json: bool = False,
) -> list[Judged | InvalidInput]:
    """Each definition as it would be stored, with what was worked out on the way, or what is wrong with it.

    `from_json`: their arguments were read from JSON, and not made by a program."""
    schedules = {id(d.schedules): d.schedules for d in definitions}.values()  # those that are alike share them
    current = await calendars.current(store, tenant_id, chain.from_iterable(schedules))
    limit = await names.payload_limit(tenant_id)
    good: dict[Hashable, int] = {}  # of these only names and arguments are left to check; a number is soon found again

    def judged(d: Definition) -> Judged | InvalidInput:
        kind: Hashable = good.get(d.alike)
        try:
            if kind is not None:
                stored = d.named()
            else:
                stored = stored_as(d, current, f"{tenant_id}:{check_name(d.name)}").checked(now, known)
                if stored.schedules is d.schedules:  # and not made for this name
                    kind = good[d.alike] = len(good)
                else:
                    kind = stored.alike
            arguments = _arguments(d, limit, from_json=from_json)
        except InvalidInput as error:
            return error
        return Judged(stored, kind, arguments)

    outcomes: list[Judged | InvalidInput] = []
    graphs: dict[int, Seen] = {}
    for place, definition in enumerate(definitions):
        if place % 250 == 249:
            await asyncio.sleep(0)  # thousands take a while: others have their turn meanwhile
        is_flow = definition.task == WORKFLOW
        versioned = await _versioned(store, names, definition, tenant_id, graphs) if is_flow else definition
        outcomes.append(versioned if isinstance(versioned, InvalidInput) else judged(versioned))
    unknown = await names.unknown_pools({j.definition.pool for j in outcomes if isinstance(j, Judged)})
    nowhere = await homeless(names, (j.definition for j in outcomes if isinstance(j, Judged)))
    if not unknown and not nowhere:
        return outcomes
    return [
        unknown.get(j.definition.pool) or nowhere.get(j.definition.region) or j if isinstance(j, Judged) else j
        for j in outcomes
    ]


def _arguments(d: Definition, limit: int, *, from_json: bool) -> bytes:
    if from_json and d.task != HTTP:  # where to call was written anew, with its secret sealed
        return rewrite({"args": d.args, "kwargs": d.kwargs}, limit=limit)
    return check_payload({"args": list(d.args), "kwargs": dict(d.kwargs)}, limit=limit)


async def _versioned(
    store: Store, names: Names, d: Definition, tenant_id: int, graphs: dict[int, Seen]
) -> Definition | InvalidInput:
    try:
        return await versions.versioned(store, names, d, tenant_id=tenant_id, seen=graphs)
    except InvalidInput as error:
        return error


def stored_as(d: Definition, known: Mapping[str, Calendar], seed: str) -> Definition:
    schedules = []
    for place, schedule in enumerate(d.schedules):
        try:
            schedules.append(seeded(resolved(schedule, known), seed))
        except InvalidInput as error:
            error.pointer = (f"/schedules/{place}" if len(d.schedules) > 1 else "/schedule") + error.pointer
            raise
    same = all(new is old for new, old in zip(schedules, d.schedules, strict=True))
    return d if same else replace(d, schedules=tuple(schedules))
