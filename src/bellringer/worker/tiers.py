"""What the pools of a worker want for their runs: a timeout, where a job says none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

import msgspec

from bellringer.runs import Spec
from bellringer.store import installation
from bellringer.store.pool import Store

FRESH: Final = 10.0  # seconds after which a worker has heard of a change


class Tiers:
    """The timeouts of pools, as they were last read; a run that has begun keeps the one that it began with."""

    def __init__(self, store: Store, pools: Sequence[str]) -> None:
        self._store = store
        self._pools = list(pools)
        self._timeouts: Mapping[str, timedelta] = {}

    async def read(self) -> None:
        self._timeouts = await installation.timeouts(self._store, self._pools)

    def bounded(self, pool: str, spec: Spec) -> Spec:
        """A spec with the timeout that holds for it in this pool."""
        if spec.timeout is not None or (timeout := self._timeouts.get(pool)) is None:
            return spec
        return msgspec.structs.replace(spec, timeout=timeout.total_seconds())
