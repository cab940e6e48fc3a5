"""Fill: arguments of nodes that were too large to travel with them are read where they were written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from bellringer.store import flows
from bellringer.store.pool import Store
from bellringer.store.queue import Claimed


async def fill(store: Store, taken: Sequence[Claimed]) -> list[Claimed]:
    """The same attempts with all their arguments; only nodes of workflows may lack some."""
    lacking = [(c.key.job_id, ref) for c in taken for ref in c.spec.refs.values()]
    if not lacking:
        return list(taken)
    values = iter(await flows.values(store, lacking))
    return [_filled(c, {name: next(values) for name in c.spec.refs}) if c.spec.refs else c for c in taken]


def _filled(claimed: Claimed, values: dict[str, Any]) -> Claimed:
    spec = msgspec.structs.replace(claimed.spec, kwargs={**claimed.spec.kwargs, **values}, refs={})
    return msgspec.structs.replace(claimed, spec=spec)
