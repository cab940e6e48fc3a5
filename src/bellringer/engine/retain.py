"""Applies retention by tenant, job and state: deletes runs whose own retention is shorter than that of their day."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

import msgspec

from bellringer.clock import Clock
from bellringer.store import partitions, retention
from bellringer.store.connection_pool import Store
from bellringer.store.retention import TenantRules

RUNS_PER_STATEMENT: Final = 2_000
SLICE_SECONDS: Final = 5.0


async def trim_slice(
    store: Store,
    clock: Clock,
    now: datetime,
    kept: timedelta,
    *,
    archives: bool = False,
    seconds: float = SLICE_SECONDS,
) -> int:
    """Continues passes over the days, the oldest first, for some seconds; returns the number of deleted runs. With
    `archives`, the runs become a batch of the archive.

    A day is read once for each distinct retention that has passed since its end. Without rules, nothing is read.
    """
    rules = await retention.list_rules(store)
    if not rules:
        return 0
    values = sorted({int(kept.total_seconds()), *(value for tenant in rules for value in tenant.seconds)})
    days = [day for day in await partitions.list_days(store) if _passed(day, values, now)]
    passes = await retention.list_passes(store, days)
    ends, deleted = clock.monotonic() + seconds, 0
    for day in days:
        digest = _digest(rules, kept, _passed(day, values, now))
        begun = passes.get(day)
        if begun is not None and begun.rules == digest and not begun.is_open:
            continue
        if begun is None or (begun.rules != digest and not begun.is_open):
            begun = await retention.begin_pass(store, day, digest, archives=archives)
        is_over = False
        while not is_over and clock.monotonic() < ends:
            is_over, count = await retention.trim(store, begun, now, int(kept.total_seconds()), RUNS_PER_STATEMENT)
            deleted += count
            begun = (await retention.list_passes(store, [day]))[day]
        if clock.monotonic() >= ends:
            break
    return deleted


def _passed(day: date, values: Sequence[int], now: datetime) -> int:
    """Returns how many of the retentions have passed since the end of the day."""
    age = now - datetime.combine(day + timedelta(days=1), time.min, UTC)
    return sum(timedelta(seconds=value) <= age for value in values)


def _digest(rules: Sequence[TenantRules], kept: timedelta, passed: int) -> str:
    described = [[tenant.tenant_id, tenant.rules] for tenant in rules]
    return hashlib.sha256(msgspec.json.encode([described, kept.total_seconds(), passed], order="sorted")).hexdigest()
