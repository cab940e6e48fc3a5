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
from bellringer.schedule import Schedule, outlook, parse, preview, resolved, seeded, to_document
from bellringer.schedule.instants import read_instant
from bellringer.store import calendars, leases, migrate, workers
from bellringer.wire import Cluster, Occurrence, Preview, PreviewRequest, Remark, Schema, Shards, Version, Workers

FARTHEST_LOOK: Final = range(1, 101)


@operation("cluster", role=Role.VIEWER, answers={200: Workers})
async def list_workers(call: Call) -> Response:
    call.query()
    return reply(Workers(items=[documents.worker(w) for w in await workers.listing(call.service.store)]))


@operation("cluster", role=Role.VIEWER, answers={200: Cluster})
async def get_cluster(call: Call) -> Response:
    call.query()
    nodes = [documents.node(n) for n in await leases.nodes(call.service.store)]
    table = [documents.lease(row) for row in await leases.table(call.service.store)]
    held = sum(row.holder is not None for row in table)
    async with call.service.store.pool.acquire() as connection:
        schema = await migrate.status(connection)
    skew = call.service.clock.now() - await call.store.now()
    return reply(
        Cluster(
            nodes=nodes,
            leases=table,
            shards=Shards(total=len(table), held=held, free=len(table) - held),
            skew=skew.total_seconds(),
            schema=Schema(current=schema.current, wanted=schema.wanted),
        )
    )


@operation("service", role=Role.VIEWER, answers={200: Version})
async def get_version(call: Call) -> Response:
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
