"""Creates that arrive together go to the database together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from bellringer.access import Caller
from bellringer.api.reads import Together
from bellringer.errors import BellringerError
from bellringer.jobs import Definition
from bellringer.lifecycle import gather
from bellringer.lifecycle.gather import Outcome, Wish
from bellringer.lifecycle.homes import new_id
from bellringer.store.jobs import Job
from bellringer.store.names import Names
from bellringer.store.pool import Store
from bellringer.store.scope import ScopedStore


class Creating:
    """While calls are under way, what comes gathers for the next."""

    def __init__(self, tenants: Store, names: Names) -> None:
        self._tenants = tenants
        self._names = names
        self._wishes = Together(self._create)

    async def job(self, caller: Caller, definition: Definition, request_id: str) -> Job:
        """The job as it is stored, or why it is not."""
        wish = Wish(await new_id(self._names, definition), definition, caller.actor(request_id))
        outcome = await self._wishes.get((caller.tenant_id, caller.who), wish)
        assert outcome is not None
        if isinstance(outcome, BellringerError):
            raise outcome
        return outcome

    async def _create(self, group: tuple[int, str], wishes: Sequence[Wish]) -> Mapping[Wish, Outcome]:
        tenant_id, who = group

        def acting(those: Sequence[Wish]) -> Store:
            return ScopedStore(self._tenants, tenant_id, _actor(those))

        return await gather.create(acting, self._names, wishes, tenant_id=tenant_id, who=who)


def _actor(wishes: Sequence[Wish]) -> str:
    """Who acts: for each job, the caller who wished for it."""
    if len(wishes) == 1:
        return wishes[0].actor
    return msgspec.json.encode({"each": {str(w.job_id): msgspec.Raw(w.actor.encode()) for w in wishes}}).decode()
