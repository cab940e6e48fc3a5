"""Whose turn it is: how claims, and sends to a broker, go round among the tenants that have ready work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bellringer.store.queue import Walk

MOST_TENANTS: Final = 200  # that one claim looks at
MOST_FRUITLESS: Final = 10  # claims at once that leave room and come to that bound; then one rests, as when it is idle


@dataclass(frozen=True, slots=True)
class Turn:
    """Whose turn it is: the tenants behind `after`; the first of them has `rest` to get of its last turn.

    `fruitless` counts claims that found too little among as many tenants as they may look at: what is there is
    capped, suspended, unknown to this worker, or not due.
    """

    after: int = -1
    rest: int = 0
    fruitless: int = 0

    @property
    def goes_on(self) -> bool:
        """Whether a claim right now may find, among the next tenants, what the last one did not."""
        return 0 < self.fruitless < MOST_FRUITLESS

    def looks_at(self, most: int) -> int:
        """At how many tenants a claim of this size looks: a small one can serve no more than a few, but one after a
        claim that found too little looks at many."""
        return MOST_TENANTS if self.fruitless else min(2 * most + 10, MOST_TENANTS)

    def next(self, walk: Walk, *, full: bool, looked_at: int) -> Turn:
        """The turn after a claim that came so far; `full`: it found all that it wanted."""
        fruitless = self.fruitless % MOST_FRUITLESS + 1 if not full and walk.tenants == looked_at else 0
        return Turn(walk.after, walk.rest, fruitless)
