"""Creates, changes and lifts freezes, during which a tenant's schedules do not start runs. The SQL function `tick`
applies them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from bellringer.core.jobs import MAX_TAGS, check_name
from bellringer.durations import format_duration
from bellringer.errors import Conflict, InvalidInput, NotFound
from bellringer.store import freezes, queue
from bellringer.store.connection_pool import Store
from bellringer.store.freezes import FreezeRow

MAX_FREEZE_LENGTH: Final = timedelta(days=366)
CLOCK_TOLERANCE: Final = timedelta(minutes=1)  # allows for clock differences and request latency
THAW_BATCH_RUNS: Final = 1000
MAX_THAW_PASSES: Final = 20  # the scheduler unblocks the remaining runs within about a second


class FreezePolicy(StrEnum):
    """How occurrences that fall into a freeze are treated."""

    DEFER = "defer"  # runs after the end, one by one if runs of the job may not overlap
    SKIP = "skip"  # does not run; the run records the freeze as its reason
    COLLAPSE = "collapse"  # after the end, one run per job stands for all


@dataclass(frozen=True, slots=True, kw_only=True)
class FreezeSpec:
    """A requested freeze; `validate` checks it. Without tags it covers all jobs."""

    name: str
    from_at: datetime
    to_at: datetime
    policy: FreezePolicy = FreezePolicy.DEFER
    tags: tuple[str, ...] = ()
    reason: str | None = None

    def validate(self, now: datetime) -> FreezeSpec:
        """Returns the freeze with a normalized name, beginning now at the earliest; raises InvalidInput."""
        if self.from_at < now - CLOCK_TOLERANCE:
            raise InvalidInput(
                "from is in the past", hint="omit it to freeze from now on", pointer="/from", code="in_past"
            )
        begin = max(self.from_at, now)
        check_span(begin, self.to_at, now)
        if len(self.tags) > MAX_TAGS:
            raise InvalidInput(f"a freeze takes at most {MAX_TAGS} tags", pointer="/tags", code="limit")
        tags = tuple(check_name(tag, what="tag", pointer="/tags") for tag in self.tags)
        return replace(self, name=check_name(self.name), from_at=begin, tags=tags)


def check_span(from_at: datetime, to_at: datetime, now: datetime) -> None:
    """Checks that a freeze ends in the future, after it begins, and within a year."""
    if to_at <= max(from_at, now):
        what = "from is not before to" if to_at <= from_at else "to is in the past"
        hint = "`to` is exclusive; to end a freeze now, lift it"
        raise InvalidInput(what, hint=hint, pointer="/to", code="range_empty")
    if to_at - from_at > MAX_FREEZE_LENGTH:
        message = f"the freeze lasts {format_duration(to_at - from_at)}, longer than {MAX_FREEZE_LENGTH.days} days"
        raise InvalidInput(message, hint="to stop jobs for longer, pause them", pointer="/to", code="limit")


async def freeze(store: Store, spec: FreezeSpec, now: datetime, *, tenant_id: int, who: str) -> FreezeRow:
    """Creates a freeze. Runs that the scheduler created ahead of time, by a second at most, still start."""
    spec = spec.validate(now)
    made = await freezes.add(
        store,
        tenant_id,
        name=spec.name,
        from_at=spec.from_at,
        to_at=spec.to_at,
        policy=spec.policy,
        tags=spec.tags,
        reason=spec.reason,
        who=who,
    )
    if made is None:
        text = f"there are {freezes.MAX_OPEN_FREEZES} freezes already that are not over"
        raise Conflict(text, hint="lift one, or cover more jobs with one freeze by tags", code="limit")
    return made


async def amend(
    store: Store, stored: FreezeRow, now: datetime, *, tenant_id: int, to_at: datetime | None = None, reason: str | None
) -> FreezeRow:
    """Changes the end or the reason of a freeze."""
    if to_at is not None:
        check_span(stored.from_at, to_at, now)
    amended = await freezes.amend(store, tenant_id, stored.freeze_id, to_at or stored.to_at, reason)
    if amended is None:
        raise Conflict("the freeze has ended", hint="create another one")
    return amended


async def lift(store: Store, freeze_id: int, *, tenant_id: int) -> int:
    """Ends a freeze now, unblocks its deferred runs and returns their number. Idempotent."""
    if not await freezes.lift(store, tenant_id, freeze_id) and await freezes.get(store, tenant_id, freeze_id) is None:
        raise NotFound("there is no such freeze")
    thawed = 0
    for _ in range(MAX_THAW_PASSES):
        passed = await queue.release_frozen(store, THAW_BATCH_RUNS)
        thawed += passed
        if passed < THAW_BATCH_RUNS:
            break
    return thawed


async def suspend(store: Store, tenant_id: int) -> bool:
    """Suspends a tenant: due occurrences are recorded as skipped, queued runs are not claimed, running ones finish."""
    return await freezes.suspend(store, tenant_id)


async def unsuspend(store: Store, tenant_id: int) -> bool:
    """Resumes a suspended tenant."""
    return await freezes.unsuspend(store, tenant_id)
