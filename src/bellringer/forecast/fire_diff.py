"""Compares the fires of a job before and after a change of its definition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import Final

from bellringer.core.jobs import Definition

MAX_FIRES_LISTED: Final = 200
MAX_FIRES_COMPARED: Final = 50_000
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class FireDiff:
    """The effect of a change on the fires after `start`, up to and including `end`. The lists contain only the first
    fires.

    `truncated` is true if a list is not complete, or if `end` is earlier than requested because there were too many
    fires to compare.
    """

    start: datetime
    end: datetime
    before: int
    after: int
    kept: int
    removed: Sequence[datetime]
    added: Sequence[datetime]
    truncated: bool


def list_fires(definition: Definition, start: datetime, end: datetime) -> Iterator[datetime]:
    """Yields the fires of a job with this definition after `start`, up to and including `end`. A delay fires once."""
    if not definition.enabled:
        return
    start = max(start, definition.starts_at - _MICROSECOND) if definition.starts_at else start
    end = min(end, definition.ends_at) if definition.ends_at else end
    last: datetime | None = None
    for at in merge(*(schedule.between(start, end) for schedule in definition.schedules)):
        if at != last:
            yield at
        last = at


def diff_fires(before: Iterable[datetime], after: Iterable[datetime], start: datetime, end: datetime) -> FireDiff:
    """Compares two sorted series of fires, up to MAX_FIRES_COMPARED."""
    removed: list[datetime] = []
    added: list[datetime] = []
    kept = left = right = 0
    rows = merge(((at, "before") for at in before), ((at, "after") for at in after))
    reached, cut = start, False
    for at, group in groupby(rows, key=itemgetter(0)):
        if left + right >= MAX_FIRES_COMPARED:
            cut = True
            break
        sides = {side for _, side in group}
        reached = at
        left += "before" in sides
        right += "after" in sides
        if len(sides) == 2:
            kept += 1
        elif "before" in sides:
            removed.append(at)
        else:
            added.append(at)
    return FireDiff(
        start=start,
        end=reached if cut else end,
        before=left,
        after=right,
        kept=kept,
        removed=removed[:MAX_FIRES_LISTED],
        added=added[:MAX_FIRES_LISTED],
        truncated=cut or max(len(removed), len(added)) > MAX_FIRES_LISTED,
    )
