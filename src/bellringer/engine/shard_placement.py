"""Chooses the ids of new jobs. The id decides the shard (`shard_of`), so the id of a job that names a region is drawn
again until its shard belongs to that region. A job never moves to another shard.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from uuid import UUID

from uuid_utils.compat import uuid7

from bellringer.core.jobs import Definition, shard_of
from bellringer.errors import InvalidInput
from bellringer.store.interned_names import Catalog


async def new_id(catalog: Catalog, definition: Definition) -> UUID:
    """Returns an id for a new job, in a shard of its region. Validation refuses unknown regions, so any id will do."""
    if definition.region is None:
        return uuid7()
    shards, regions = await catalog.shard_count(), await catalog.shards_of_regions([definition.region])
    fitting = regions.get(definition.region) or range(shards)
    while shard_of(job_id := uuid7(), shards) not in fitting:
        pass
    return job_id


async def find_unknown_regions(
    catalog: Catalog, definitions: Iterable[Definition]
) -> Mapping[str | None, InvalidInput]:
    """Returns the regions of these definitions that have no shard, each with the error to report."""
    wanted = {d.region for d in definitions if d.region is not None}
    if not wanted:
        return {}
    regions = await catalog.shards_of_regions(wanted)
    return {region: _unknown_region(region, regions) for region in wanted if region not in regions}


async def check_region_unchanged(catalog: Catalog, wanted: Iterable[tuple[UUID, int, Definition]]) -> None:
    """Raises InvalidInput if a change would move a job to another region."""
    for job_id, revision, definition in wanted:
        if revision and definition.region is not None:
            regions = await catalog.shards_of_regions([definition.region])
            if shard_of(job_id, await catalog.shard_count()) not in regions.get(definition.region, ()):
                text = f"the job is not in region {definition.region!r}, and cannot move"
                hint = "create another job there, or assign its shard to the region with `bellringer cluster regions`"
                raise InvalidInput(text, hint=hint, pointer="/region", code="region_fixed")


def _unknown_region(region: str, regions: Collection[str]) -> InvalidInput:
    known = f"known regions: {', '.join(sorted(regions))}" if regions else "there are no regions"
    hint = f"{known}; an administrator assigns shards to regions with `bellringer cluster regions`"
    text = f"no shard belongs to region {region[:40]!r}"
    return InvalidInput(text, hint=hint, pointer="/region", code="region_unknown")
