"""What many measures say together."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import TypeVar

from bellringer.wire.answers import Count

N = TypeVar("N", int, float)


def percentile(values: Sequence[N], part: float) -> N | None:
    """The least value that this part of all does not exceed; None of none."""
    return sorted(values)[max(0, ceil(part * len(values)) - 1)] if values else None


def bounded(number: int, most: int) -> Count:
    """A count that stopped behind `most`."""
    return Count(value=min(number, most), relation="gte" if number > most else "eq")
