"""Whether the process answers, and whether it can serve."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Final

from starlette.responses import Response

from bellringer.api.calls import Call, reply
from bellringer.api.operations import operation
from bellringer.errors import BellringerError
from bellringer.store import leases, migrate
from bellringer.store.pool import FAILURES, Store
from bellringer.wire import Readiness

PATIENCE: Final = 1.0


@operation("service", role=None, answers={200: Readiness})
async def healthz(_call: Call) -> Response:
    """Alive says nothing of the database: restarting this process would not mend that."""
    return reply(Readiness(status="ok"))


@operation("service", role=None, answers={200: Readiness, 503: Readiness})
async def readyz(call: Call) -> Response:
    """Ready: the process says so, the database answers, and its schema is the one that this program wants.

    Without the second wall between tenants (`walls` is off) it serves all the same; and while schedulers are waiting
    for who grants them their shards, of which `GET /api/v1/cluster/nodes` tells more.
    """
    checks = {"process": "ok" if call.service.ready() else "starting", **await _database(call.service.store)}
    ready = all(verdict == "ok" for verdict in checks.values())
    checks["walls"] = "ok" if call.service.tenants.role is not None else "off"
    if ready and await _schedulers_wait(call.service.store):
        checks["schedulers"] = "waiting"
    document = Readiness(status="ready" if ready else "not_ready", checks=checks)
    return reply(document) if ready else reply(document, 503, Retry_After="1")


async def _database(store: Store) -> dict[str, str]:
    try:
        async with asyncio.timeout(PATIENCE), store.pool.acquire() as connection:
            await migrate.require_current(connection, _migrations())
    except BellringerError as error:
        return {"database": "ok", "schema": error.code}
    except FAILURES:
        return {"database": "no answer", "schema": "unknown"}
    return {"database": "ok", "schema": "ok"}


async def _schedulers_wait(store: Store) -> bool:
    try:
        async with asyncio.timeout(PATIENCE):
            return await leases.any_waits(store)
    except FAILURES:
        return False  # the database was there a moment ago; the next look tells


@cache
def _migrations() -> tuple[migrate.Migration, ...]:
    return migrate.load()
