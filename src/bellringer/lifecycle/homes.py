"""Homes: a job that names a region lives in one of the region's shards, and does not move from there.

Its id chooses the shard, so ids are drawn until one fits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final
from uuid import UUID, SafeUUID

from uuid_utils import uuid7

from bellringer.errors import InvalidInput
from bellringer.jobs import Definition, shard_of
from bellringer.store.names import Names

_NUMBER, _SAFE = (vars(UUID)[name].__set__ for name in ("int", "is_safe"))
_UNKNOWN: Final = SafeUUID.unknown


async def new_id(names: Names, definition: Definition) -> UUID:
    """An id for a new job, in its home; where there is no such region, any: judging refuses the job."""
    if definition.region is None:
        return _drawn()
    shards, homes = await names.shards(), await names.homes([definition.region])
    fitting = homes.get(definition.region)
    while shard_of(job_id := _drawn(), shards) not in (fitting or range(shards)):
        pass
    return job_id


async def new_ids(names: Names, definitions: Iterable[Definition]) -> list[UUID]:
    return [_drawn() if d.region is None else await new_id(names, d) for d in definitions]


def _drawn() -> UUID:
    """By its slots: what the library does to give such an id takes three times as long as to draw it."""
    made = object.__new__(UUID)
    _NUMBER(made, uuid7().int)
    _SAFE(made, _UNKNOWN)
    return made


async def homeless(names: Names, definitions: Iterable[Definition]) -> Mapping[str | None, InvalidInput]:
    """The regions that these name and that have no shard, each with what to tell of it."""
    regions = {d.region for d in definitions if d.region is not None}
    if not regions:
        return {}
    homes = await names.homes(regions)
    return {region: _unknown(region, homes) for region in regions if region not in homes}


async def check_homes(names: Names, wanted: Iterable[tuple[UUID, int, Definition]]) -> None:
    """A job that is changed stays where it is."""
    for job_id, revision, definition in wanted:
        if revision and definition.region is not None:
            homes = await names.homes([definition.region])
            if shard_of(job_id, await names.shards()) not in homes.get(definition.region, ()):
                text = f"the job does not live in region {definition.region!r}, and cannot move"
                hint = "make another job there, or say by `bellringer cluster regions` whose its shard is"
                raise InvalidInput(text, hint=hint, pointer="/region", code="region_fixed")


def _unknown(region: str, homes: Collection[str]) -> InvalidInput:
    known = f"there are {', '.join(sorted(homes))}" if homes else "there are none"
    hint = f"{known}; an administrator makes them by `bellringer cluster regions`"
    text = f"no shard belongs to region {region[:40]!r}"
    return InvalidInput(text, hint=hint, pointer="/region", code="region_unknown")
