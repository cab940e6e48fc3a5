"""The door: who calls, and whether they may ask for this."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request

from bellringer.access import Caller, Role
from bellringer.api.operations import Operation
from bellringer.store.names import Names
from bellringer.store.pool import Store

DEFAULT_TENANT: Final = "default"
NOBODY: Final = 0  # no tenant has this number


class Door:
    """Where nobody has to log in, everyone is the person at this machine."""

    def __init__(self, store: Store, names: Names) -> None:
        self._store = store
        self._names = names

    async def admit(self, request: Request, operation: Operation) -> Caller:
        """The caller, if it may ask for this operation."""
        origin = request.client.host if request.client else None
        if operation.role is None or operation.everywhere:  # these must answer without a database too
            return Caller(tenant_id=NOBODY, tenant="", role=Role.ADMIN, who="local", everywhere=True, origin=origin)
        return Caller(
            tenant_id=await self._names.tenant_id(DEFAULT_TENANT),
            tenant=DEFAULT_TENANT,
            role=Role.ADMIN,
            who="local",
            everywhere=True,
            origin=origin,
        )
