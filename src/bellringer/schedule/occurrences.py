"""Where a plan meets a zone: its occurrences as instants, searched both ways and counted.

Two readings of a clock change exist. By the wall, a matching time that the clock leaves out (the gap) happens
once, at the first instant after it, and one that the clock repeats (the fold) happens the first time only. By
elapsed time, whatever the clock shows counts: nothing in the gap, both times in the fold.
"""

from __future__ import annotations

from bellringer.schedule import civil
from bellringer.schedule.plan import Plan
from bellringer.schedule.zones import FIRST, LAST, Stretch, stretch_at


def first_from(plan: Plan, zone: str, instant: int, *, by_wall: bool) -> int | None:
    """The first occurrence at or after an instant."""
    instant = max(instant, FIRST)
    stretch = stretch_at(zone, instant)
    while stretch is not None:
        if by_wall and instant <= stretch.start and _carries(plan, stretch):
            return stretch.start
        earliest = max(instant + stretch.offset, _opening(stretch, by_wall=by_wall))
        found = civil.first_from(plan, earliest)
        if found is not None and found < stretch.end + stretch.offset:
            return found - stretch.offset
        stretch = stretch_at(zone, stretch.end)
    return None


def last_until(plan: Plan, zone: str, instant: int, *, not_before: int, by_wall: bool) -> int | None:
    """The last occurrence at or before an instant, looking no further back than `not_before`."""
    instant = min(instant, LAST)
    stretch = stretch_at(zone, instant)
    while stretch is not None and stretch.end > not_before:
        found = civil.last_until(plan, min(instant, stretch.end - 1) + stretch.offset)
        if found is not None and found >= _opening(stretch, by_wall=by_wall):
            answer = found - stretch.offset
            return answer if answer >= not_before else None
        if by_wall and _carries(plan, stretch):
            return stretch.start if stretch.start >= not_before else None
        stretch = stretch_at(zone, stretch.start - 1)
    return None


def count(plan: Plan, zone: str, start: int, end: int, *, by_wall: bool) -> int:
    """How many occurrences there are from `start` up to, but not including, `end`."""
    total = 0
    start = max(start, FIRST)
    stretch = stretch_at(zone, start)
    while stretch is not None and stretch.start < end:
        opening = _opening(stretch, by_wall=by_wall)
        total += civil.count(plan, max(start + stretch.offset, opening), min(end, stretch.end) + stretch.offset)
        if by_wall and start <= stretch.start and _carries(plan, stretch):
            # The times of the gap and a match at its very end are one occurrence.
            total += 1 - civil.count(plan, opening, opening + 1)
        stretch = stretch_at(zone, stretch.end)
    return total


def flags(plan: Plan, zone: str, instant: int, *, by_wall: bool) -> tuple[str, ...]:
    """What a clock change did to an occurrence, for those who preview it."""
    stretch = stretch_at(zone, instant)
    if stretch is None or not by_wall:
        return ()
    if instant == stretch.start and _carries(plan, stretch):
        return ("dst_gap",)
    following = stretch_at(zone, stretch.end)
    if following is not None and instant + stretch.offset >= following.start + following.offset:
        return ("dst_fold_first",)
    return ()


def _opening(stretch: Stretch, *, by_wall: bool) -> int:
    """The first civil moment of a stretch that counts; by the wall, repeated time has had its turn."""
    opening = stretch.start + stretch.offset
    return max(opening, stretch.lived) if by_wall else opening


def _carries(plan: Plan, stretch: Stretch) -> bool:
    """Whether the clock left out a match right before this stretch."""
    landing = stretch.start + stretch.offset
    if stretch.lived >= landing:
        return False
    missed = civil.first_from(plan, stretch.lived)
    return missed is not None and missed < landing
