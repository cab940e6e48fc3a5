"""The installation itself: its nodes, leases, workers and version; and a look ahead at a schedule."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from bellringer.access import Role
from bellringer.api import documents
from bellringer.api.calls import Call, reply
from bellringer.api.operations import operation
from bellringer.errors import InvalidInput
from bellringer.jobs import check_name
from bellringer.leases import read_shards, write_shards
from bellringer.schedule import Schedule, outlook, parse, preview, resolved, seeded, to_document
from bellringer.schedule.instants import read_instant
from bellringer.store import calendars, installation, leases, migrate, workers
from bellringer.store.wakeups import HANDS, SHARDS
from bellringer.wire import Cluster, Occurrence, Preview, PreviewRequest, Remark, Schema, Shards, Version, Workers
from bellringer.wire.installation import Leases, Nodes, Regions, RegionsRequest, ShardTable

FARTHEST_LOOK: Final = range(1, 101)


@operation("workers", role=Role.VIEWER, answers={200: Workers})
async def list_workers(call: Call) -> Response:
    """Workers: those that are there first."""
    call.query()
    found = await workers.listing(call.service.store)
    return reply(Workers(items=[documents.worker(w, call.caller) for w in found]))


@operation("cluster", role=Role.VIEWER, answers={200: Cluster})
async def get_cluster(call: Call) -> Response:
    """The installation: its nodes, leases, shards and schema, and how far behind it is."""
    call.query()
    nodes = [documents.node(n, call.caller) for n in await leases.nodes(call.service.store)]
    table = [documents.lease(row, call.caller) for row in await leases.table(call.service.store)]
    held = sum(row.holder is not None for row in table)
    late, signals = await installation.shards(call.service.store), await installation.signals(call.service.store)
    unread = await call.service.unread([s.pool for s in signals]) if call.service.unread else {}
    async with call.service.store.pool.acquire() as connection:
        schema = await migrate.status(connection)
    skew = call.service.clock.now() - await call.store.now()
    return reply(
        Cluster(
            nodes=nodes,
            leases=table,
            shards=Shards(total=len(table), held=held, free=len(table) - held),
            lag=documents.lag(late, signals, unread, call.caller),
            skew=skew.total_seconds(),
            schema=Schema(current=schema.current, wanted=schema.wanted),
        )
    )


@operation("cluster", role=Role.VIEWER, answers={200: Nodes})
async def nodes(call: Call) -> Response:
    """Scheduler nodes, the oldest first."""
    call.query()
    return reply(Nodes(items=[documents.node(n, call.caller) for n in await leases.nodes(call.service.store)]))


@operation("cluster", role=Role.VIEWER, answers={200: ShardTable})
async def shards(call: Call) -> Response:
    """All shards: who may fire them, and when they have something to do next."""
    call.query()
    found = await installation.shards(call.service.store)
    return reply(ShardTable(items=[documents.shard(s, call.caller) for s in found]))


@operation("cluster", role=Role.VIEWER, answers={200: Leases})
async def lease_table(call: Call) -> Response:
    """All leases, by their shards."""
    call.query()
    found = await leases.table(call.service.store)
    return reply(Leases(items=[documents.lease(row, call.caller) for row in found]))


@operation("cluster", role=Role.VIEWER, answers={200: Regions})
async def regions(call: Call) -> Response:
    """Which shards belong to which region."""
    call.query()
    return reply(await _regions(call))


@operation("cluster", role=Role.ADMIN, everywhere=True, answers={200: Regions}, body=RegionsRequest)
async def put_regions(call: Call) -> Response:
    """Say which shards belong to which region; its nodes share them, and others hold them only while it has none."""
    request = await call.body(RegionsRequest)
    total, found = await call.names.shards(), dict[int, str]()
    for region, written in request.regions.items():
        name = check_name(region, what="region", pointer="/regions")
        for shard in read_shards(written, total, pointer="/regions"):
            if found.setdefault(shard, name) != name:
                hint = "give each shard to one region"
                raise InvalidInput(f"shard {shard} is in two regions", hint=hint, pointer="/regions", code="limit")
    await leases.set_regions(call.service.store, found)
    await call.service.wake(HANDS, SHARDS)
    return reply(await _regions(call))


async def _regions(call: Call) -> Regions:
    of = {row.shard: row.region for row in await leases.table(call.service.store)}
    named = sorted({region for region in of.values() if region is not None})
    return Regions(
        regions={region: write_shards([s for s in of if of[s] == region]) for region in named},
        others=write_shards([s for s in of if of[s] is None]),
    )


@operation("service", role=Role.VIEWER, answers={200: Version})
async def get_version(call: Call) -> Response:
    """Which program answers, and which API it speaks."""
    call.query()
    return reply(Version(version=call.service.version))


async def _resolved(call: Call, schedule: Schedule) -> Schedule:
    """With the days off that it names, as they are now."""
    try:
        return resolved(schedule, await calendars.current(call.store, call.tenant_id, [schedule]))
    except InvalidInput as error:
        error.pointer = f"/schedule{error.pointer}"
        raise


@operation("schedules", role=Role.VIEWER, answers={200: Preview}, body=PreviewRequest)
async def preview_schedule(call: Call) -> Response:
    """What a schedule means, and when it fires next; nothing is stored."""
    request = await call.body(PreviewRequest)
    if request.n not in FARTHEST_LOOK:
        raise InvalidInput(f"n must be from {FARTHEST_LOOK[0]} to {FARTHEST_LOOK[-1]}", pointer="/n", code="limit")
    schedule = await _resolved(call, parse(request.schedule))
    if request.job is not None:
        schedule = seeded(schedule, f"{call.tenant_id}:{check_name(request.job, pointer='/job')}")
    if request.after is None:
        after = await call.store.now()
    else:
        after = read_instant(request.after, what="from", pointer="/from")
    fires = [
        Occurrence(at=fire.at, local=fire.local, flags=list(fire.flags)) for fire in preview(schedule, after, request.n)
    ]
    ahead = outlook(schedule, after)
    return reply(
        Preview(
            schedule=to_document(schedule),
            description=schedule.describe(),
            fires=fires,
            fires_per_day=ahead.fires_per_day,
            warnings=[Remark(code=code, text=text) for code, text in ahead.warnings],
        )
    )
