"""Freeze: times in which a tenant's schedules rest, and tenants that rest altogether. The tick heeds both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from bellringer.durations import format_duration
from bellringer.errors import Conflict, InvalidInput, NotFound
from bellringer.jobs import MOST_TAGS, check_name
from bellringer.store import freezes, queue
from bellringer.store.freezes import Freeze
from bellringer.store.pool import Store

LONGEST: Final = timedelta(days=366)
PATIENCE: Final = timedelta(minutes=1)  # clocks differ, and requests travel
CHUNK: Final = 1000
PASSES: Final = 20  # what is held beyond these is let go by the scheduler, within a second or so


class Policy(StrEnum):
    """What becomes of what is due in a freeze."""

    DEFER = "defer"  # it runs after the end, one by one where runs of its job may not overlap
    SKIP = "skip"  # it does not run; its run says why
    COLLAPSE = "collapse"  # one of each job runs after the end and stands for all


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A freeze that somebody asks for; `checked` says whether it can be had. Without tags it covers all jobs."""

    name: str
    from_at: datetime
    to_at: datetime
    policy: Policy = Policy.DEFER
    tags: tuple[str, ...] = ()
    reason: str | None = None

    def checked(self, now: datetime) -> Wish:
        """The same with its name in normal form; it begins now at the earliest."""
        if self.from_at < now - PATIENCE:
            raise InvalidInput(
                "from is in the past", hint="leave it out to freeze from now on", pointer="/from", code="in_past"
            )
        begin = max(self.from_at, now)
        check_span(begin, self.to_at, now)
        if len(self.tags) > MOST_TAGS:
            raise InvalidInput(f"a freeze takes at most {MOST_TAGS} tags", pointer="/tags", code="limit")
        tags = tuple(check_name(tag, what="tag", pointer="/tags") for tag in self.tags)
        return replace(self, name=check_name(self.name), from_at=begin, tags=tags)


def check_span(from_at: datetime, to_at: datetime, now: datetime) -> None:
    """A freeze ends in the future, after it began, and within a year."""
    if to_at <= max(from_at, now):
        what = "from is not before to" if to_at <= from_at else "to is in the past"
        hint = "`to` itself is not in it; to end a freeze now, lift it"
        raise InvalidInput(what, hint=hint, pointer="/to", code="range_empty")
    if to_at - from_at > LONGEST:
        message = f"the freeze lasts {format_duration(to_at - from_at)}, longer than {LONGEST.days} days"
        raise InvalidInput(message, hint="for longer, pause the jobs", pointer="/to", code="limit")


async def freeze(store: Store, wish: Wish, now: datetime, *, tenant_id: int, who: str) -> Freeze:
    """Let schedules rest. What the scheduler has born ahead of its time, a second at most, runs all the same."""
    wish = wish.checked(now)
    made = await freezes.add(
        store,
        tenant_id,
        name=wish.name,
        from_at=wish.from_at,
        to_at=wish.to_at,
        policy=wish.policy,
        tags=wish.tags,
        reason=wish.reason,
        who=who,
    )
    if made is None:
        text = f"there are {freezes.MOST} freezes already that are not over"
        raise Conflict(text, hint="lift one, or let one cover more by its tags", code="limit")
    return made


async def amend(
    store: Store, stored: Freeze, now: datetime, *, tenant_id: int, to_at: datetime | None = None, reason: str | None
) -> Freeze:
    """Give a freeze another end or reason."""
    if to_at is not None:
        check_span(stored.from_at, to_at, now)
    amended = await freezes.amend(store, tenant_id, stored.freeze_id, to_at or stored.to_at, reason)
    if amended is None:
        raise Conflict("the freeze is over", hint="create another one")
    return amended


async def lift(store: Store, freeze_id: int, *, tenant_id: int) -> int:
    """End a freeze now and let go what it held; answers how many runs. Repeating it changes nothing more."""
    if not await freezes.lift(store, tenant_id, freeze_id) and await freezes.get(store, tenant_id, freeze_id) is None:
        raise NotFound("there is no such freeze")
    thawed = 0
    for _ in range(PASSES):
        passed = await queue.thaw(store, CHUNK)
        thawed += passed
        if passed < CHUNK:
            break
    return thawed


async def suspend(store: Store, tenant_id: int) -> bool:
    """Let a tenant rest: what is due is recorded as skipped, what waits is not claimed, what runs finishes."""
    return await freezes.suspend(store, tenant_id)


async def unsuspend(store: Store, tenant_id: int) -> bool:
    """Let a tenant go on from now."""
    return await freezes.unsuspend(store, tenant_id)
