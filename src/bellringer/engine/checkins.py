"""Records pings of jobs that run elsewhere, and reports those that are missing."""

from __future__ import annotations

from typing import Final

from bellringer.core.checkins import CheckinRecord, apply_ping
from bellringer.store import checkins
from bellringer.store.checkins import NewPing
from bellringer.store.connection_pool import Store

MAX_MISSED_PER_PASS: Final = 500


async def ping(store: Store, token_hash: bytes, received: NewPing) -> CheckinRecord | None:
    """Records a ping; returns the check-in, or None if no check-in has this token."""
    return await checkins.record_ping(store, token_hash, received, apply_ping)


async def report_missed_checkins(store: Store) -> int:
    """Marks check-ins as down whose grace period is over, and writes their events; returns how many."""
    return await checkins.report_missed(store, MAX_MISSED_PER_PASS)
