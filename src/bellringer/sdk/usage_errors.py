"""Errors for wrong use of the SDK, with suggestions."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any, TypeVar

from bellringer.errors import InvalidInput
from bellringer.schedule import At, Delay, Every, ZonedSchedule

E = TypeVar("E", bound=StrEnum)


def refuse_unknown(unknown: Mapping[str, Any], known: Collection[str], *, of: str) -> None:
    """Raise InvalidInput for options that do not exist."""
    for name in unknown:
        raise InvalidInput(
            f"{of} has no option {name!r}",
            hint=_suggest(name, known),
            pointer=f"/{name}",
            code="unknown_option",
        )


def read_choice(value: object, kind: type[E], *, what: str) -> E:
    """Convert a word to a member of an enumeration."""
    words = [str(member) for member in kind]
    if not isinstance(value, str) or value not in words:
        raise InvalidInput(
            f"{what} cannot be {value!r}", hint=_suggest(str(value), words), pointer=f"/{what}", code="choice"
        )
    return kind(value)


def check_schedules(schedules: Collection[object], *, of: str) -> None:
    for schedule in schedules:
        if not isinstance(schedule, ZonedSchedule | Every | Delay | At):
            is_text = isinstance(schedule, str)
            hint = f"write cron({schedule!r})" if is_text else "make one with cron, every, rrule, delay or at"
            raise InvalidInput(f"{of} takes a schedule, not {schedule!r}", hint=hint, pointer="/schedule", code="type")


def _suggest(word: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(word, known, 1)
    return f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(sorted(known))}"
