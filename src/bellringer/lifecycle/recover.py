"""Recover: note which jobs are in trouble, and tell when one has run well again. Healthy jobs cost nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bellringer.store import events
from bellringer.store.pool import Store

MOST: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What a pass noted and told; `more`: it was cut off."""

    noted: int
    recovered: int
    more: bool


async def recover(store: Store) -> Recovered:
    """One pass over what is newly in trouble, and over those in trouble that were not looked at for longest."""
    looked, noted, recovered = await events.recover(store, MOST)
    return Recovered(noted=noted, recovered=recovered, more=looked == MOST)
