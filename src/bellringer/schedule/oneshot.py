"""A schedule of one instant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Literal

from bellringer.schedule.english import describe_at
from bellringer.schedule.instants import read_instant


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    """Made by `at`; its one occurrence is `instant`, in UTC."""

    kind: ClassVar[Literal["at"]] = "at"
    instant: datetime

    def next_after(self, t: datetime) -> datetime | None:
        """The instant while it is still to come, and then never again."""
        return self.instant if self.instant > t else None

    def between(self, a: datetime, b: datetime) -> Iterator[datetime]:
        """The instant, if it is after `a` and not after `b`."""
        if a < self.instant <= b:
            yield self.instant

    def last_at_or_before(self, t: datetime, *, not_before: datetime) -> datetime | None:
        """The instant, if it is neither after `t` nor before `not_before`."""
        return self.instant if not_before <= self.instant <= t else None

    def count_between(self, a: datetime, b: datetime) -> int:
        """One if the instant is from `a` up to, but not including, `b`, else none."""
        return int(a <= self.instant < b)

    def describe(self) -> str:
        return describe_at(self.instant)


def at(instant: datetime | str) -> At:
    """One instant: an aware datetime, or RFC 3339 text with its offset."""
    return At(instant=read_instant(instant, what="time"))
