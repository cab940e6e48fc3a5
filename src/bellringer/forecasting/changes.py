"""What a change would make of a job's fires, one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import Final

from bellringer.jobs import Definition

MOST_LISTED: Final = 200
MOST_COMPARED: Final = 50_000
_MOMENT: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What a change makes of the fires after `start` up to and including `end`; of each list the first ones only.

    `truncated`: a list is not whole, or `end` is earlier than was asked for, because there were too many to compare.
    """

    start: datetime
    end: datetime
    before: int
    after: int
    kept: int
    removed: Sequence[datetime]
    added: Sequence[datetime]
    truncated: bool


def fires(definition: Definition, start: datetime, end: datetime) -> Iterator[datetime]:
    """When a job with this definition fires after `start` up to and including `end`; a delay fires once."""
    if not definition.enabled:
        return
    start = max(start, definition.starts_at - _MOMENT) if definition.starts_at else start
    end = min(end, definition.ends_at) if definition.ends_at else end
    last: datetime | None = None
    for at in merge(*(schedule.between(start, end) for schedule in definition.schedules)):
        if at != last:
            yield at
        last = at


def difference(before: Iterable[datetime], after: Iterable[datetime], start: datetime, end: datetime) -> Difference:
    """Compare two ordered rows of fires, one by one, up to a bound."""
    removed: list[datetime] = []
    added: list[datetime] = []
    kept = left = right = 0
    rows = merge(((at, "before") for at in before), ((at, "after") for at in after))
    reached, cut = start, False
    for at, group in groupby(rows, key=itemgetter(0)):
        if left + right >= MOST_COMPARED:
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
    return Difference(
        start=start,
        end=reached if cut else end,
        before=left,
        after=right,
        kept=kept,
        removed=removed[:MOST_LISTED],
        added=added[:MOST_LISTED],
        truncated=cut or max(len(removed), len(added)) > MOST_LISTED,
    )
