"""The settings of the server that answers, and where each comes from."""

from __future__ import annotations

from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.calls import Call, reply
from bellringer.api.operations import operation
from bellringer.wire.overview import Settings


@operation("service", role=Role.ADMIN, everywhere=True, answers={200: Settings})
async def get(call: Call) -> Response:
    """The settings of the server that answers; of secrets it is told only whether they are set."""
    call.query()
    return reply(Settings(items=list(call.service.settings)))
