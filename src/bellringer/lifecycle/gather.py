"""Gather: jobs that several callers create at the same moment are one call to the database, and each is answered for
itself. A call costs ten times what a job in it costs, so under load most of the work is shared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from bellringer.errors import BellringerError
from bellringer.jobs import Definition
from bellringer.lifecycle import register
from bellringer.lifecycle.judging import weigh
from bellringer.lifecycle.rows import Judged
from bellringer.store.jobs import Job
from bellringer.store.names import Names
from bellringer.store.pool import Store


@dataclass(frozen=True, slots=True, eq=False)
class Wish:
    """One job that somebody wants to create, with arguments that were read from JSON, and who acts, as the audit keeps
    it."""

    job_id: UUID
    definition: Definition
    actor: str


Outcome = Job | BellringerError
Acting = Callable[[Sequence[Wish]], Store]  # the store that acts for those who wish


async def create(
    acting: Acting, names: Names, wishes: Sequence[Wish], *, tenant_id: int, who: str
) -> dict[Wish, Outcome]:
    """What became of each. Where one stands in the way of all, as a name that is taken, they go one by one."""
    try:
        return await _together(acting(wishes), names, wishes, tenant_id, who)
    except BellringerError as error:
        if len(wishes) == 1:
            return {wishes[0]: error}
    outcomes: dict[Wish, Outcome] = {}
    for wish in wishes:
        outcomes |= await create(acting, names, [wish], tenant_id=tenant_id, who=who)
    return outcomes


async def _together(
    store: Store, names: Names, wishes: Sequence[Wish], tenant_id: int, who: str
) -> dict[Wish, Outcome]:
    now = await store.now()
    judged = await weigh(store, names, [w.definition for w in wishes], tenant_id=tenant_id, now=now, from_json=True)
    outcomes: dict[Wish, Outcome] = {}
    good: list[tuple[Wish, Judged]] = []
    for wish, found in zip(wishes, judged, strict=True):
        if isinstance(found, BellringerError):
            outcomes[wish] = found
        else:
            good.append((wish, found))
    if good:
        checked = [found for _, found in good]
        ids = [wish.job_id for wish, _ in good]
        written = await register.enroll(store, names, checked, tenant_id=tenant_id, who=who, now=now, ids=ids)
        outcomes |= {wish: made.job() for (wish, _), made in zip(good, written, strict=True)}
    return outcomes
