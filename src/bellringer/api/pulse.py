"""The pulse: that something has changed, told at most once a second, so that who shows it knows when to read again."""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.responses import Response

from bellringer.access import Role
from bellringer.api import beats
from bellringer.api.calls import Call, reply
from bellringer.api.operations import operation
from bellringer.api.streams import HEART, HEARTBEAT, LONGEST, SSE, event, stream, wants
from bellringer.store.pulse import Marks, marks
from bellringer.wire.overview import Pulse


@operation("overview", role=Role.VIEWER, answers={200: (Pulse, SSE)}, streams=True)
async def get(call: Call) -> Response:
    """Marks that differ when something has changed: of runs, jobs, dead letters and events, and of who works and fires.

    Where `Accept` asks for `text/event-stream`, they are told at once, and whenever they differ, at most once a second.
    """
    call.query()
    if call.goes_on and wants(call.request.headers.get("accept", ""), SSE):
        call.service.streams.streams.check(call.tenant_id)
        return stream(_flow(call))
    return reply(_told((await marks(call.service.store, [call.tenant_id]))[call.tenant_id]))


async def _flow(call: Call) -> AsyncIterator[bytes]:
    service, tenant_id = call.service, call.tenant_id
    streams, clock = service.streams, service.clock
    end = clock.monotonic() + LONGEST
    with streams.streams.taken(tenant_id):
        async with streams.beats.listen(service.store, clock, tenant_id) as beat:
            known = beat.seen
            yield event(_told(known))
            while clock.monotonic() < end and not streams.is_closing:
                await clock.sleep(beats.LOOK)
                differs = await beat.differs(known, HEARTBEAT)
                if not await call.still():
                    return
                known = beat.seen
                yield event(_told(known)) if differs else HEART


def _told(seen: Marks) -> Pulse:
    return Pulse(**seen._asdict())
