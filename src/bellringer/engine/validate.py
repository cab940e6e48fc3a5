"""Validates job definitions and normalizes them to their stored form."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from bellringer.core.jobs import HTTP_TASK, WORKFLOW_TASK, Definition, check_name
from bellringer.core.payload import check_payload, encode_parsed
from bellringer.engine import graph_versions
from bellringer.engine.graph_versions import InternedGraph
from bellringer.engine.shard_placement import find_unknown_regions
from bellringer.errors import InvalidInput
from bellringer.schedule import (
    Cron,
    Every,
    HolidayCalendar,
    Schedule,
    apply_seed,
    bind_calendar,
    bind_repeat,
    keep_repeat,
)
from bellringer.store import calendars, jobs
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog

YIELD_EVERY: Final = 250  # definitions after which a loop over thousands of them lets other requests run


# A job fires from the commit of its registration on. An occurrence before that would be counted, but never fire.
REPEAT_START_MARGIN: Final = timedelta(seconds=1)


class ValidDefinition(NamedTuple):
    """A definition in its stored form, with its arguments as JSON."""

    definition: Definition
    arguments: bytes
    template: int | None  # see `validate_definitions`; None: the job shares its columns with no other


async def validate_definitions(
    store: Store,
    catalog: Catalog,
    definitions: Sequence[Definition],
    *,
    tenant_id: int,
    now: datetime,
    known: Collection[Schedule] = (),
    from_json: bool = False,
    templates: Sequence[int] | None = None,
    known_upstreams: Collection[str] | None = (),
) -> list[ValidDefinition | InvalidInput]:
    """Returns each definition in its stored form, or the reason why it is refused.

    `known` are schedules that the jobs have already: a one-shot among them may lie in the past. Definitions with the
    same number in `templates` differ only in name and arguments, so their columns are encoded once. `known_upstreams`
    are names that the jobs may start after although no such job exists; None: any name.
    """
    current = await calendars.current(store, tenant_id, (s for d in definitions for s in d.schedules))
    limit = await catalog.payload_limit(tenant_id)
    graphs: dict[int, InternedGraph] = {}
    results: list[ValidDefinition | InvalidInput] = []
    for index, definition in enumerate(definitions):
        if index % YIELD_EVERY == YIELD_EVERY - 1:
            await asyncio.sleep(0)
        try:
            d = definition
            if d.task == WORKFLOW_TASK:
                d = await graph_versions.intern_workflow(store, catalog, d, tenant_id=tenant_id, seen=graphs)
            stored = resolve_schedules(d, current, f"{tenant_id}:{check_name(d.name)}")
            stored = bind_repeats(stored, now, known).validate(now, known)
            arguments = _encode_arguments(d, limit, from_json=from_json)
        except InvalidInput as error:
            results.append(error)
            continue
        depends_on_name = stored.schedules is not d.schedules
        template = None if templates is None or depends_on_name else templates[index]
        results.append(ValidDefinition(stored, arguments, template))
    if known_upstreams is not None:
        results = await _refuse_unknown_upstreams(store, results, tenant_id, known_upstreams)
    return await _refuse_unknown_places(catalog, results)


async def _refuse_unknown_upstreams(
    store: Store, results: list[ValidDefinition | InvalidInput], tenant_id: int, known: Collection[str]
) -> list[ValidDefinition | InvalidInput]:
    """Replaces definitions that start after a job that neither exists nor is among them by the reason."""
    valid = [result.definition for result in results if isinstance(result, ValidDefinition)]
    wanted = {d.after.job for d in valid if d.after is not None}
    if not wanted:
        return results
    found = {*known, *(d.name for d in valid), *await jobs.find_many(store, tenant_id, sorted(wanted))}
    unknown = wanted - {name for name in wanted if name.lower() in {other.lower() for other in found}}
    return [
        _unknown_upstream(result.definition.after.job)
        if isinstance(result, ValidDefinition) and result.definition.after and result.definition.after.job in unknown
        else result
        for result in results
    ]


def _unknown_upstream(name: str) -> InvalidInput:
    message, hint = f"there is no job {name!r} to start after", "create that job first"
    return InvalidInput(message, hint=hint, pointer="/after/job", code="job_unknown")


async def _refuse_unknown_places(
    catalog: Catalog, results: list[ValidDefinition | InvalidInput]
) -> list[ValidDefinition | InvalidInput]:
    """Replaces definitions that name a pool or a region that does not exist by the reason."""
    valid = [result.definition for result in results if isinstance(result, ValidDefinition)]
    pools = await catalog.unknown_pools({d.pool for d in valid})
    regions = await find_unknown_regions(catalog, valid)
    if not pools and not regions:
        return results
    return [
        pools.get(result.definition.pool) or regions.get(result.definition.region) or result
        if isinstance(result, ValidDefinition)
        else result
        for result in results
    ]


def _encode_arguments(d: Definition, limit: int, *, from_json: bool) -> bytes:
    if from_json and d.task != HTTP_TASK:  # the target of an HTTP job was rewritten when its secret was encrypted
        return encode_parsed({"args": d.args, "kwargs": d.kwargs}, limit=limit)
    return check_payload({"args": list(d.args), "kwargs": dict(d.kwargs)}, limit=limit)


def resolve_schedules(d: Definition, calendars_by_name: Mapping[str, HolidayCalendar], seed: str) -> Definition:
    """Returns a definition whose schedules hold the content of their calendars, and `H` fields derived from `seed`."""
    schedules = []
    for index, schedule in enumerate(d.schedules):
        try:
            schedules.append(apply_seed(bind_calendar(schedule, calendars_by_name), seed))
        except InvalidInput as error:
            error.pointer = (f"/schedules/{index}" if len(d.schedules) > 1 else "/schedule") + error.pointer
            raise
    unchanged = all(new is old for new, old in zip(schedules, d.schedules, strict=True))
    return d if unchanged else replace(d, schedules=tuple(schedules))


def bind_repeats(d: Definition, now: datetime, known: Collection[Schedule]) -> Definition:
    """Returns a definition whose repeat counts have a start: the one that the job has already, or the registration."""
    after = now + REPEAT_START_MARGIN
    if d.starts_at is not None and d.starts_at > after:
        after = d.starts_at - timedelta(microseconds=1)
    schedules = tuple(bind_repeat(schedule, after, known) for schedule in d.schedules)
    unchanged = all(new is old for new, old in zip(schedules, d.schedules, strict=True))
    return d if unchanged else replace(d, schedules=schedules)


def keep_repeats(d: Definition, known: Collection[Schedule]) -> Definition:
    """Returns a definition whose repeat counts have the start that the job has already. A new one has no start yet."""
    schedules = tuple(
        s
        if not isinstance(s, Cron | Every) or s.repeat is None or s.repeat.start is not None
        else keep_repeat(s, known) or s
        for s in d.schedules
    )
    unchanged = all(new is old for new, old in zip(schedules, d.schedules, strict=True))
    return d if unchanged else replace(d, schedules=schedules)
