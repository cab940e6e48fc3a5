"""Monitoring steps of a scheduler: late, slow, stuck and recovered jobs, check-ins, webhooks, notifications, the
heartbeat, pool learning, tzdata updates.
"""

from __future__ import annotations

from typing import Final

from bellringer.clock import Clock
from bellringer.core.leases import Holding
from bellringer.engine.audit_seal import ChainPosition, verify_next_seals
from bellringer.engine.checkins import report_missed_checkins
from bellringer.engine.heartbeat import call_heartbeat_url, find_problem
from bellringer.engine.monitor import (
    report_late_runs,
    report_recoveries,
    report_slow_runs,
    report_stranded_runs,
    report_stuck_jobs,
)
from bellringer.engine.notifications import notify
from bellringer.engine.pool_by_duration import FIRST_JOB_ID, move_jobs
from bellringer.engine.tzdata_update import newest_rules, retime_cohorts
from bellringer.engine.webhooks import deliver_events
from bellringer.schedule.time_zones import installed_tz_version, tz_version
from bellringer.store import tzdata
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.telemetry import (
    ANNOUNCED,
    AUDIT_SEAL_BROKEN,
    HEARTBEATS,
    LATE,
    MISSED_CHECKINS,
    NOTIFICATIONS,
    OUTGROWN,
    ROUTED,
    SKIPPING,
    SLOW,
    STRANDED,
    TZ_BEHIND,
    TZ_MOVES,
    UNKNOWN_REPORTED,
    UNSTARTED,
    log,
)

MAX_MONITOR_PASSES: Final = 20


class Monitoring:
    """Monitoring steps. Each call does a bounded number of passes; the scheduler's loops repeat them."""

    def __init__(self, store: Store, catalog: Catalog) -> None:
        self._store = store
        self._catalog = catalog
        self._retimed: dict[int, int] = {}  # shard -> token under which its cohorts were re-timed
        self._routed = FIRST_JOB_ID  # cursor over long jobs
        self._stranded: dict[str, int] = {}

    async def watch(self) -> None:
        """Report late and stranded runs."""
        waiting = missing = 0
        for _ in range(MAX_MONITOR_PASSES):
            report = await report_late_runs(self._store, await self._store.now())
            waiting, missing = waiting + report.waiting, missing + report.not_created
            if not report.more:
                break
        if waiting or missing:
            LATE.labels("waiting").inc(waiting)
            LATE.labels("not_created").inc(missing)
            log.warning("runs are late", waiting=waiting, not_created=missing)
        stranded = await report_stranded_runs(self._store, await self._store.now())
        for reason, runs in stranded.items():
            STRANDED.labels(reason).set(runs)
        if any(stranded.values()) and stranded != self._stranded:
            log.error("runs are stranded: claimed, but no live worker executes them", **stranded)
        self._stranded = stranded

    def clear(self) -> None:
        """Reset the gauges of `watch`: another node sets them now."""
        for reason in self._stranded:
            STRANDED.labels(reason).set(0)
        self._stranded = {}

    async def find_stuck(self) -> None:
        """Report tasks that no worker knows, pools without a free worker, and jobs that skip many occurrences."""
        found = await report_stuck_jobs(self._store, await self._store.now())
        if found.unknown:
            UNKNOWN_REPORTED.inc(found.unknown)
            log.warning("runs wait for tasks that no live worker knows", tasks=found.unknown)
        if found.known_again:
            log.info("tasks that runs waited for are known to a worker again", tasks=found.known_again)
        if found.unstarted:
            UNSTARTED.inc(found.unstarted)
            log.warning("runs wait in pools that have no live worker, or only busy ones", pools=found.unstarted)
        if found.started_again:
            log.info("runs of pools that had no free worker start again", pools=found.started_again)
        if found.skipping:
            SKIPPING.inc(found.skipping)
            log.warning("jobs skip occurrences because an earlier run does not end", jobs=found.skipping)

    async def compare(self) -> None:
        """Report runs that take longer than usual."""
        report = await report_slow_runs(self._store, self._catalog, await self._store.now())
        if report.slow or report.outgrown:
            SLOW.inc(report.slow)
            OUTGROWN.inc(report.outgrown)
            log.warning("runs take longer than usual", slow=report.slow, outgrown=report.outgrown)

    async def route(self) -> None:
        """Move jobs without an explicit pool to the short or long pool, by the duration of their runs."""
        moved = await move_jobs(self._store, self._catalog, await self._store.now(), self._routed)
        self._routed = moved.after
        if moved.to_long or moved.to_short:
            ROUTED.labels("long").inc(moved.to_long)
            ROUTED.labels("short").inc(moved.to_short)
            log.info("jobs moved between the short and the long pool", to_long=moved.to_long, to_short=moved.to_short)

    async def recover(self) -> None:
        """Report jobs that have recovered."""
        for _ in range(MAX_MONITOR_PASSES):
            if not (await report_recoveries(self._store)).more:
                return

    async def announce(self) -> None:
        """Create webhook deliveries for new events."""
        for _ in range(MAX_MONITOR_PASSES):
            report = await deliver_events(self._store, self._catalog)
            ANNOUNCED.inc(report.sent)
            if not report.more:
                return

    async def notify(self) -> None:
        """Turn new events into notification messages, and send messages that are due."""
        for _ in range(MAX_MONITOR_PASSES):
            report = await notify(self._store, self._catalog)
            NOTIFICATIONS.inc(report.messages)
            if not report.more:
                return

    async def check_in(self) -> None:
        """Report check-ins that are missing."""
        if missed := await report_missed_checkins(self._store):
            MISSED_CHECKINS.inc(missed)
            log.warning("jobs that run elsewhere have not reported in time", checkins=missed)

    async def beat(self, url: str, clock: Clock) -> None:
        """Call the URL of the dead man's switch, unless the cluster is not healthy."""
        problem = await find_problem(self._store)
        outcome = "withheld" if problem else "sent"
        if problem:
            log.error("heartbeat withheld: the cluster is not healthy", problem=problem)
        elif error := await call_heartbeat_url(url, clock.monotonic):
            outcome = "failed"
            log.warning("heartbeat could not be sent", error=error)
        HEARTBEATS.labels(outcome).inc()

    async def retime(self, holding: Holding) -> int:
        """Recompute the due times of newly held shards with the local time zone rules. Returns how many changed."""
        tokens = {shard: token for shard, token in holding.tokens.items() if self._retimed.get(shard) != token}
        if not tokens:
            return 0
        rules = await tzdata.local_rules(self._store)
        fresh = Holding(holding.holder, tokens)
        done = await retime_cohorts(self._store, self._catalog, fresh, await self._store.now(), rules)
        self._retimed |= {shard: tokens[shard] for shard in done.shards}
        if done.moved:
            TZ_MOVES.inc(done.moved)
            log.warning("due times changed by new time zone rules", version=rules.version, cohorts=done.moved)
        return done.moved

    async def check_rules(self) -> None:
        """Warn if this process uses outdated time zone rules. It keeps firing."""
        rules = await tzdata.local_rules(self._store)
        newest = await newest_rules(self._store, rules)
        here = installed_tz_version()
        TZ_BEHIND.set(newest != rules or here != tz_version())
        if newest != rules:
            log.warning("this node uses outdated time zone rules", version=rules.version, newest=newest.version)
        if here != tz_version():
            log.warning("new time zone rules are installed; restart to use them", version=rules.version, installed=here)


class SealCheckStep:
    """Verifies the audit chain again and again, a bounded number of entries in each pass. It stays at a broken seal
    until the seal is valid again.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._position = ChainPosition()
        self._reported: int | None = None

    async def check(self) -> None:
        """Verify the next seals, and set the gauge."""
        self._position = await verify_next_seals(self._store, self._position)
        broken = self._position.broken
        AUDIT_SEAL_BROKEN.set(broken is not None)
        if broken is not None and broken != self._reported:
            log.error("the audit chain is broken", seal=broken, why=self._position.why)
        self._reported = broken

    def clear(self) -> None:
        """Reset the gauge: another node verifies the chain now."""
        AUDIT_SEAL_BROKEN.set(0)
        self._position, self._reported = ChainPosition(), None
