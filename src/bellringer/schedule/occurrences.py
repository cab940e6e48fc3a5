"""Where a plan meets a zone: its occurrences as instants, searched both ways and counted.

The zone's timeline is walked stretch by stretch. In each one the plan is asked in civil time, from where the
stretch opens to where it closes: the fold decides whether the first or the second showing of a repeated time is
left out. A time in the gap, which no stretch shows, falls on the start of the stretch that follows, or nowhere.
"""

from __future__ import annotations

from typing import Final

from bellringer.schedule import civil
from bellringer.schedule.plan import Plan
from bellringer.schedule.readings import Fold, Gap
from bellringer.schedule.zones import FIRST, LAST, Stretch, stretch_at

_NEXT: Final = Gap.NEXT
_FIRST: Final = Fold.FIRST
_SECOND: Final = Fold.SECOND


def first_from(plan: Plan, zone: str, instant: int, gap: Gap, fold: Fold) -> int | None:
    """The first occurrence at or after an instant."""
    instant = max(instant, FIRST)
    stretch = stretch_at(zone, instant)
    while stretch is not None:
        if gap is _NEXT and instant <= stretch.start and _carries(plan, stretch):
            return stretch.start
        earliest = max(instant + stretch.offset, _opening(stretch, fold))
        found = civil.first_from(plan, earliest)
        if found is None and stretch.again >= earliest:
            return None  # nor will any clock show an earlier time again
        if found is not None and found < _closing(stretch, fold):
            return found - stretch.offset
        stretch = stretch_at(zone, stretch.end)
    return None


def last_until(plan: Plan, zone: str, instant: int, gap: Gap, fold: Fold, *, not_before: int) -> int | None:
    """The last occurrence at or before an instant, looking no further back than `not_before`."""
    instant = min(instant, LAST)
    stretch = stretch_at(zone, instant)
    while stretch is not None and stretch.end > not_before:
        latest = min(min(instant, stretch.end - 1) + stretch.offset, _closing(stretch, fold) - 1)
        found = civil.last_until(plan, latest)
        if found is None and stretch.lived <= latest:
            return None  # nor has any clock shown a later time before
        if found is not None and found >= _opening(stretch, fold):
            answer = found - stretch.offset
            return answer if answer >= not_before else None
        if gap is _NEXT and _carries(plan, stretch):
            return stretch.start if stretch.start >= not_before else None
        stretch = stretch_at(zone, stretch.start - 1)
    return None


def count(plan: Plan, zone: str, start: int, end: int, gap: Gap, fold: Fold) -> int:
    """How many occurrences there are from `start` up to, but not including, `end`."""
    total = 0
    start = max(start, FIRST)
    stretch = stretch_at(zone, start)
    while stretch is not None and stretch.start < end:
        opening, closing = _opening(stretch, fold), _closing(stretch, fold)
        total += civil.count(plan, max(start + stretch.offset, opening), min(end + stretch.offset, closing))
        if gap is _NEXT and start <= stretch.start and _carries(plan, stretch):
            # The times of the gap and a match at its very end are one occurrence.
            total += 1 - civil.count(plan, opening, opening + 1)
        stretch = stretch_at(zone, stretch.end)
    return total


def flags(plan: Plan, zone: str, instant: int, gap: Gap) -> tuple[str, ...]:
    """What a clock change did to an occurrence, for those who preview it."""
    stretch = stretch_at(zone, instant)
    if stretch is None:
        return ()
    if gap is _NEXT and instant == stretch.start and _carries(plan, stretch):
        return ("dst_gap",)
    if instant + stretch.offset >= stretch.again:
        return ("dst_fold_first",)
    if instant + stretch.offset < stretch.lived:
        return ("dst_fold_second",)
    return ()


def showing(plan: Plan, zone: str, instant: int, gap: Gap) -> int | None:
    """The civil moment that an occurrence stands for: what the clock shows, or in the gap should have shown."""
    stretch = stretch_at(zone, instant)
    if stretch is None:
        return None
    if gap is _NEXT and instant == stretch.start and _carries(plan, stretch):
        return civil.first_from(plan, stretch.lived)
    return instant + stretch.offset


def next_change(plan: Plan, zone: str, instant: int, until: int) -> tuple[int, str] | None:
    """The first change of the clock that leaves out or repeats a match: when, and `dst_gap` or `dst_fold`."""
    stretch = stretch_at(zone, instant)
    while stretch is not None and stretch.start < until:
        landing = stretch.start + stretch.offset
        if stretch.start > instant and civil.count(plan, min(landing, stretch.lived), max(landing, stretch.lived)):
            return stretch.start, "dst_gap" if stretch.lived < landing else "dst_fold"
        stretch = stretch_at(zone, stretch.end)
    return None


def _opening(stretch: Stretch, fold: Fold) -> int:
    """The first civil moment of a stretch that counts; where the first showing does, repeated time had its turn."""
    opening = stretch.start + stretch.offset
    return max(opening, stretch.lived) if fold is _FIRST else opening


def _closing(stretch: Stretch, fold: Fold) -> int:
    """The first civil moment that no longer counts; where the second showing does, the time that comes again waits."""
    closing = stretch.end + stretch.offset
    return min(closing, stretch.again) if fold is _SECOND else closing


def _carries(plan: Plan, stretch: Stretch) -> bool:
    """Whether the clock left out a match right before this stretch."""
    landing = stretch.start + stretch.offset
    if stretch.lived >= landing:
        return False
    missed = civil.first_from(plan, stretch.lived)
    return missed is not None and missed < landing
