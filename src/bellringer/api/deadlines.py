"""How long a request may take. A timer for each would cost a tenth of what a short one takes; instead all that are
under way are looked at some times a second, and one that is over time ends a moment later than it was told.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final, Self

from bellringer.api.problems import Refused

LOOK: Final = 0.1  # seconds between two looks
PATIENCE: Final = 9.0  # seconds to answer: less than clients wait, so that they learn the reason


class Deadlines:
    """Those of one process. It looks only while there is something to look at."""

    def __init__(self) -> None:
        self._under_way: set[Deadline] = set()
        self._looking: asyncio.AbstractEventLoop | None = None  # where the next look is due

    def within(self, seconds: float = PATIENCE) -> Deadline:
        """Bounds what is done inside it, as `asyncio.timeout` does."""
        return Deadline(self, seconds)

    def begin(self, deadline: Deadline) -> None:
        self._under_way.add(deadline)
        loop = asyncio.get_running_loop()
        if self._looking is not loop:
            self._looking = loop
            loop.call_later(LOOK, self._look)

    def end(self, deadline: Deadline) -> None:
        self._under_way.discard(deadline)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        for deadline in tuple(self._under_way):
            deadline.look(loop.time())
        self._looking = loop if self._under_way else None
        if self._looking is not None:
            loop.call_later(LOOK, self._look)


class Deadline:
    """One request's. What it means to miss it may change on the way: while a body comes, the caller is late."""

    __slots__ = ("_all", "_means", "_timeout", "_until")

    def __init__(self, those: Deadlines, seconds: float) -> None:
        self._all = those
        self._timeout = asyncio.Timeout(None)
        self._until = asyncio.get_running_loop().time() + seconds
        self._means: Refused | None = None

    def extend(self, seconds: float = PATIENCE, means: Refused | None = None) -> None:
        """From now on; who misses it is told what it means, or that the server was too slow."""
        self._until = asyncio.get_running_loop().time() + seconds
        self._means = means
        if self._timeout.when() is not None and not self._timeout.expired():
            self._timeout.reschedule(None)  # it was over time, but is not ended yet: it has come just in time

    def look(self, moment: float) -> None:
        if moment >= self._until and self._timeout.when() is None:
            self._timeout.reschedule(moment)

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._all.begin(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._all.end(self)
        try:
            await self._timeout.__aexit__(kind, error, where)
        except TimeoutError:
            if self._means is not None:
                raise self._means from None
            raise
