"""Sums up what a worker starts and what its time goes to, until the next heartbeat brings it to the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from bellringer.store.usage import POOL, Used

WITHIN: Final = 5.0  # seconds within which runs are to start whose tenant does not say otherwise
MOST: Final = 5_000  # rows that one heartbeat brings; what is left waits for the next


class _Cell:
    """Attempts of one tenant in one pool that run, and the slot-seconds that they used since the last look."""

    __slots__ = ("busy", "running", "since")

    def __init__(self, moment: float) -> None:
        self.running = 0
        self.busy = 0.0
        self.since = moment

    def look(self, moment: float) -> None:
        self.busy += self.running * (moment - self.since)
        self.since = moment


class Meter:
    """Moments are of the monotonic clock, instants of the database's. Time counts for the minute in which it is taken,
    starts for the minute in which they were due: that is whose capacity was missing.
    """

    def __init__(self) -> None:
        self.within: dict[int, float] = {}
        self._slots: dict[int, tuple[int, float]] = {}
        self._cells: dict[tuple[int, int], _Cell] = {}
        self._starts: dict[tuple[int, int, int], list[int]] = {}
        self._kept: list[Used] = []

    def open(self, pool_id: int, slots: int, moment: float) -> None:
        """From now on a pool has so many slots."""
        self._slots[pool_id] = (slots, moment)

    def learn(self, within: Mapping[int, float | None]) -> None:
        """Within what time tenants' runs are to start; None: as usual."""
        for tenant_id, seconds in within.items():
            if seconds is None:
                self.within.pop(tenant_id, None)
            else:
                self.within[tenant_id] = seconds

    def started(self, pool_id: int, tenant_id: int, due: datetime, late: float) -> None:
        """A run that was due at an instant has started, so many seconds later."""
        place = (int(due.timestamp()) // 60, pool_id, tenant_id)
        starts = self._starts.get(place)
        if starts is None:
            starts = self._starts[place] = [0, 0]
        starts[0] += 1
        starts[1] += late > self.within.get(tenant_id, WITHIN)

    def began(self, pool_id: int, tenant_id: int, moment: float) -> None:
        """An attempt has taken a slot."""
        cell = self._cells.get((pool_id, tenant_id))
        if cell is None:
            cell = self._cells[pool_id, tenant_id] = _Cell(moment)
        cell.look(moment)
        cell.running += 1

    def ended(self, pool_id: int, tenant_id: int, moment: float) -> None:
        cell = self._cells[pool_id, tenant_id]
        cell.look(moment)
        cell.running -= 1

    def take(self, moment: float, now: datetime) -> list[Used]:
        """What was summed up since the last time; who cannot store it keeps it."""
        minute = now.replace(second=0, microsecond=0)
        found = [*self._kept, *self._times(minute, moment)]
        found += [
            Used(datetime.fromtimestamp(number * 60, UTC), pool_id, tenant_id, started=starts[0], late=starts[1])
            for (number, pool_id, tenant_id), starts in self._starts.items()
        ]
        self._starts.clear()
        summed = _summed(found)
        self._kept = summed[MOST:]
        return summed[:MOST]

    def keep(self, used: Sequence[Used]) -> None:
        """These could not be stored; they are taken again with the next."""
        self._kept += used

    def _times(self, minute: datetime, moment: float) -> list[Used]:
        found = []
        for pool_id, (slots, since) in self._slots.items():
            found.append(Used(minute, pool_id, POOL, slots_ms=round(slots * (moment - since) * 1000)))
            self._slots[pool_id] = (slots, moment)
        for (pool_id, tenant_id), cell in list(self._cells.items()):
            cell.look(moment)
            found.append(Used(minute, pool_id, tenant_id, busy_ms=round(cell.busy * 1000)))
            cell.busy = 0.0
            if not cell.running:
                del self._cells[pool_id, tenant_id]
        return found


def _summed(used: Sequence[Used]) -> list[Used]:
    """One for each row, which a statement may add to only once, and none that adds nothing."""
    rows: dict[tuple[datetime, int, int], Used] = {}
    for one in used:
        before = rows.get(one[:3], Used(*one[:3]))
        rows[one[:3]] = Used(*one[:3], *(a + b for a, b in zip(before[3:], one[3:], strict=True)))
    return [one for one in rows.values() if any(one[3:])]
