"""Usage metering: counts starts, late starts and slot seconds per tenant and pool between two heartbeats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from bellringer.store.usage import WHOLE_POOL_TENANT_ID, UsageDelta

DEFAULT_START_WITHIN_SECONDS: Final = 5.0  # start objective of tenants without their own
MAX_USAGE_ROWS: Final = 5_000  # per heartbeat; the rest waits for the next one


class _TenantUsage:
    """The running attempts of one tenant in one pool, and the slot seconds they used since the last `take`."""

    __slots__ = ("busy", "running", "since")

    def __init__(self, moment: float) -> None:
        self.running = 0
        self.busy = 0.0
        self.since = moment

    def look(self, moment: float) -> None:
        self.busy += self.running * (moment - self.since)
        self.since = moment


class UsageMeter:
    """Collects usage. `moment` is a monotonic time, a datetime is a time of the database's clock.

    Slot seconds count for the minute in which they are taken. A start counts for the minute in which the run was due:
    that is the minute that lacked capacity.
    """

    def __init__(self) -> None:
        self.within: dict[int, float] = {}
        self._slots: dict[int, tuple[int, float]] = {}
        self._cells: dict[tuple[int, int], _TenantUsage] = {}
        self._starts: dict[tuple[int, int, int], list[int]] = {}  # started, late, occurrences, retried
        self._kept: list[UsageDelta] = []

    def open(self, pool_id: int, slots: int, moment: float) -> None:
        """Start to count the slots of a pool."""
        self._slots[pool_id] = (slots, moment)

    def learn(self, within: Mapping[int, float | None]) -> None:
        """Set the start objectives of tenants in seconds; None restores the default."""
        for tenant_id, seconds in within.items():
            if seconds is None:
                self.within.pop(tenant_id, None)
            else:
                self.within[tenant_id] = seconds

    def started(self, pool_id: int, tenant_id: int, due: datetime, late: float) -> bool:
        """Count the start of a run that was due at `due` and is `late` seconds late. Return whether that violates the
        start objective."""
        starts = self._starts_of(pool_id, tenant_id, due)
        starts[0] += 1
        is_late = late > self.within.get(tenant_id, DEFAULT_START_WITHIN_SECONDS)
        starts[1] += is_late
        return is_late

    def occurred(self, pool_id: int, tenant_id: int, due: datetime) -> None:
        """Count the first start of a run that a schedule created, for the share of missed occurrences."""
        self._starts_of(pool_id, tenant_id, due)[2] += 1

    def retried(self, pool_id: int, tenant_id: int, due: datetime) -> None:
        """Count the start of a second or later attempt."""
        self._starts_of(pool_id, tenant_id, due)[3] += 1

    def _starts_of(self, pool_id: int, tenant_id: int, due: datetime) -> list[int]:
        place = (int(due.timestamp()) // 60, pool_id, tenant_id)
        starts = self._starts.get(place)
        if starts is None:
            starts = self._starts[place] = [0, 0, 0, 0]
        return starts

    def began(self, pool_id: int, tenant_id: int, moment: float) -> None:
        """Count an attempt that occupies a slot from now on."""
        cell = self._cells.get((pool_id, tenant_id))
        if cell is None:
            cell = self._cells[pool_id, tenant_id] = _TenantUsage(moment)
        cell.look(moment)
        cell.running += 1

    def ended(self, pool_id: int, tenant_id: int, moment: float) -> None:
        cell = self._cells[pool_id, tenant_id]
        cell.look(moment)
        cell.running -= 1

    def take(self, moment: float, now: datetime) -> list[UsageDelta]:
        """Return the usage since the last call. If storing it fails, pass it to `keep`."""
        minute = now.replace(second=0, microsecond=0)
        found = [*self._kept, *self._times(minute, moment)]
        found += [
            UsageDelta(
                datetime.fromtimestamp(number * 60, UTC),
                pool_id,
                tenant_id,
                started=starts[0],
                late=starts[1],
                occurrences=starts[2],
                retried=starts[3],
            )
            for (number, pool_id, tenant_id), starts in self._starts.items()
        ]
        self._starts.clear()
        summed = _sum_by_row(found)
        self._kept = summed[MAX_USAGE_ROWS:]
        return summed[:MAX_USAGE_ROWS]

    def keep(self, used: Sequence[UsageDelta]) -> None:
        """Keep usage that could not be stored; the next `take` returns it again."""
        self._kept += used

    def _times(self, minute: datetime, moment: float) -> list[UsageDelta]:
        found = []
        for pool_id, (slots, since) in self._slots.items():
            found.append(
                UsageDelta(minute, pool_id, WHOLE_POOL_TENANT_ID, slots_ms=round(slots * (moment - since) * 1000))
            )
            self._slots[pool_id] = (slots, moment)
        for (pool_id, tenant_id), cell in list(self._cells.items()):
            cell.look(moment)
            found.append(UsageDelta(minute, pool_id, tenant_id, busy_ms=round(cell.busy * 1000)))
            cell.busy = 0.0
            if not cell.running:
                del self._cells[pool_id, tenant_id]
        return found


def _sum_by_row(used: Sequence[UsageDelta]) -> list[UsageDelta]:
    """Sum deltas by row, because one statement can update a row only once. Rows without a change are omitted."""
    rows: dict[tuple[datetime, int, int], UsageDelta] = {}
    for one in used:
        before = rows.get(one[:3], UsageDelta(*one[:3]))
        rows[one[:3]] = UsageDelta(*one[:3], *(a + b for a, b in zip(before[3:], one[3:], strict=True)))
    return [one for one in rows.values() if any(one[3:])]
