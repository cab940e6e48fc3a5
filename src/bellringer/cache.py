"""What API processes keep, and may share: answers for a moment, rates, and hints.

A kept answer is right by construction. It carries the **mark** that its tenant had before the database was read, and
is given out only while the mark is still that one; whoever changes something takes the mark away after its commit,
before it answers. So an answer that was read before a change is never given out after the change was confirmed.

        reader  ── mark a ── reads the database ─────────────── keeps the answer under a ──► nobody asks for a any more
        writer  ───────────────────── commits ── forgets: mark b ── answers

Losing all of it loses nothing: the database is asked, and counts begin anew.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeAlias

from bellringer.access.quotas import Rate, Verdict
from bellringer.clock import Clock

KEPT: Final = 5.0  # seconds for which an answer is kept: the truth behind hints that may be lost
MOST_KEPT: Final = 20_000  # answers in a process, each no longer than LONGEST
LONGEST: Final = 16 * 1024
MOST_RATES: Final = 10_000

Mark: TypeAlias = int | bytes


class Cache(Protocol):
    """Never raises, and never waits long: what it cannot do now, it does not do."""

    source: str  # where its answers come from, for the metrics
    is_shared: bool  # whether what one API process forgets, all have forgotten

    async def get(self, tenant_id: int, key: str) -> bytes | None:
        """The answer that is kept, if nothing has changed since it was read."""
        ...

    def mark(self, tenant_id: int) -> Mark | None:
        """To be taken before the database is read; None: nothing can be kept now."""
        ...

    async def put(self, tenant_id: int, mark: Mark, answers: Mapping[str, bytes], since: float) -> None:
        """Keep what was read from the database after the mark was taken, at this moment of the monotonic clock."""
        ...

    async def forget(self, tenant_id: int | None) -> bool:
        """Something of the tenant, or of all of them, has changed. False: others could not be told."""
        ...

    def heard(self, tenant_id: int | None) -> None:
        """The same, by a hint of another process."""
        ...

    async def spend(self, tenant_id: int, what: str, per_minute: float, count: int = 1) -> Verdict:
        """Take so many of what a tenant may have a minute."""
        ...

    async def tell(self, text: str) -> None:
        """A hint to all who listen; it may be lost."""
        ...

    async def listen(self, heard: Callable[[str], None]) -> None:
        """Hear the hints of the others, for ever."""
        ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...


class Rates:
    """Rates as one process sees them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rates: OrderedDict[tuple[int, str], Rate] = OrderedDict()  # the oldest first

    def spend(self, tenant_id: int, what: str, per_minute: float, count: int = 1) -> Verdict:
        rate = self._rates.get((tenant_id, what))
        if rate is None or rate.per_minute != per_minute:
            if len(self._rates) >= MOST_RATES:
                self._rates.popitem(last=False)
            rate = self._rates[tenant_id, what] = Rate(per_minute)
        return rate.spend(self._clock.monotonic(), count=count)


class ProcessCache:
    """What one process keeps for itself. Others may change things meanwhile: they send hints, which may be lost."""

    source = "process"
    is_shared = False

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rates = Rates(clock)
        self._all = 0
        self._changes: defaultdict[int, int] = defaultdict(int)  # by tenant, how often it was forgotten
        # The oldest first. To take thousands of them from the front of a plain dict would hold up everyone for long.
        self._kept: OrderedDict[tuple[int, Mark, str], tuple[float, bytes]] = OrderedDict()

    async def get(self, tenant_id: int, key: str) -> bytes | None:
        kept = self._kept.get((tenant_id, self.mark(tenant_id), key))
        return kept[1] if kept is not None and self._clock.monotonic() - kept[0] < KEPT else None

    def mark(self, tenant_id: int) -> int:
        return self._all + self._changes[tenant_id]  # both only grow

    async def put(self, tenant_id: int, mark: Mark, answers: Mapping[str, bytes], since: float) -> None:
        for key, data in answers.items():
            if len(data) <= LONGEST:
                self._kept.pop((tenant_id, mark, key), None)
                self._kept[tenant_id, mark, key] = (since, data)
        while len(self._kept) > MOST_KEPT or (self._kept and since - next(iter(self._kept.values()))[0] >= KEPT):
            self._kept.popitem(last=False)

    async def forget(self, tenant_id: int | None) -> bool:
        self.heard(tenant_id)
        return False

    def heard(self, tenant_id: int | None) -> None:
        if tenant_id is None:
            self._all += 1
        else:
            self._changes[tenant_id] += 1

    async def spend(self, tenant_id: int, what: str, per_minute: float, count: int = 1) -> Verdict:
        return self._rates.spend(tenant_id, what, per_minute, count)

    async def tell(self, text: str) -> None:
        """Nobody else would hear it."""

    async def listen(self, heard: Callable[[str], None]) -> None:
        """There is nobody to hear."""

    async def open(self) -> None:
        """There is nothing to open."""

    async def close(self) -> None:
        """Nor to close."""
