"""How a schedule reads a change of the clock: what becomes of a time that is left out, and of one that comes twice."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from bellringer.errors import InvalidSchedule

E = TypeVar("E", bound=StrEnum)


class Gap(StrEnum):
    """What becomes of a time that the clock leaves out."""

    NEXT = "next"  # it happens at the first instant after the gap
    SKIP = "skip"  # it does not happen


class Fold(StrEnum):
    """Which of two equal times counts where the clock goes back."""

    FIRST = "first"
    SECOND = "second"
    BOTH = "both"


def usual(*, fixed_time: bool) -> tuple[Gap, Fold]:
    """A fixed time of day happens once a day; a rhythm of hours or minutes follows elapsed time."""
    return (Gap.NEXT, Fold.FIRST) if fixed_time else (Gap.SKIP, Fold.BOTH)


def read_choice(value: object, kind: type[E], *, key: str, what: str) -> E:
    """A member of an enumeration by its word."""
    words = [str(member) for member in kind]
    if not isinstance(value, str) or value not in words:
        message = f"{what} {str(value)[:40]!r} is not known"
        raise InvalidSchedule(message, code=f"{key}_unknown", pointer=f"/{key}", hint=f"use one of {', '.join(words)}")
    return kind(value)


def read_readings(gap: str | None, fold: str | None, *, fixed_time: bool) -> tuple[Gap, Fold]:
    """The choices as given; where none was made, the usual one."""
    usual_gap, usual_fold = usual(fixed_time=fixed_time)
    return (
        usual_gap if gap is None else read_choice(gap, Gap, key="gap", what="the choice for the gap"),
        usual_fold if fold is None else read_choice(fold, Fold, key="fold", what="the choice for the fold"),
    )
