"""What a scheduler looks after beside the path of a run: lateness, unusual lengths, and the rules of the time zones."""

from __future__ import annotations

from typing import Final

from bellringer.leases import Holding
from bellringer.lifecycle.announce import announce
from bellringer.lifecycle.recover import recover
from bellringer.lifecycle.retime import newest_rules, retime
from bellringer.lifecycle.route import FIRST, route
from bellringer.lifecycle.watch import compare, watch
from bellringer.schedule.tzversion import installed, tz_version
from bellringer.store import tz
from bellringer.store.names import Names
from bellringer.store.pool import Store
from bellringer.telemetry import ANNOUNCED, LATE, OUTGROWN, ROUTED, SLOW, TZ_BEHIND, TZ_MOVES, log

PASSES: Final = 20


class Watchman:
    """Its steps; it remembers under which leases the hands were looked through."""

    def __init__(self, store: Store, names: Names) -> None:
        self._store = store
        self._names = names
        self._retimed: dict[int, int] = {}
        self._routed = FIRST  # the last of the long jobs that was looked at

    async def watch(self) -> None:
        """Tell what is late."""
        waiting = unborn = 0
        for _ in range(PASSES):
            told = await watch(self._store, await self._store.now())
            waiting, unborn = waiting + told.waiting, unborn + told.unborn
            if not told.more:
                break
        if waiting or unborn:
            LATE.labels("waiting").inc(waiting)
            LATE.labels("unborn").inc(unborn)
            log.warning("runs are late", waiting=waiting, unborn=unborn)

    async def compare(self) -> None:
        """Tell what takes longer than usual."""
        told = await compare(self._store, self._names, await self._store.now())
        if told.slow or told.outgrown:
            SLOW.inc(told.slow)
            OUTGROWN.inc(told.outgrown)
            log.warning("runs take longer than usual", slow=told.slow, outgrown=told.outgrown)

    async def route(self) -> None:
        """Let jobs whose pool nobody named go where their runs belong."""
        moved = await route(self._store, self._names, await self._store.now(), self._routed)
        self._routed = moved.after
        if moved.to_long or moved.to_short:
            ROUTED.labels("long").inc(moved.to_long)
            ROUTED.labels("short").inc(moved.to_short)
            log.info("jobs go where their runs belong", to_long=moved.to_long, to_short=moved.to_short)

    async def recover(self) -> None:
        """Tell which jobs run well again."""
        for _ in range(PASSES):
            if not (await recover(self._store)).more:
                return

    async def announce(self) -> None:
        """Send events to those who want to be told."""
        for _ in range(PASSES):
            told = await announce(self._store, self._names)
            ANNOUNCED.inc(told.sent)
            if not told.more:
                return

    async def retime(self, holding: Holding) -> int:
        """Let the hands of shards that are newly held follow the rules of this process; answers how many moved."""
        tokens = {shard: token for shard, token in holding.tokens.items() if self._retimed.get(shard) != token}
        if not tokens:
            return 0
        rules = await tz.rules_here(self._store)
        fresh = Holding(holding.holder, tokens)
        done = await retime(self._store, self._names, fresh, await self._store.now(), rules)
        self._retimed |= {shard: tokens[shard] for shard in done.shards}
        if done.moved:
            TZ_MOVES.inc(done.moved)
            log.warning("new rules of the time zones have moved hands", version=rules.version, hands=done.moved)
        return done.moved

    async def check_rules(self) -> None:
        """Warn where this process computes by rules that are not the newest; it fires on all the same."""
        rules = await tz.rules_here(self._store)
        newest = await newest_rules(self._store, rules)
        here = installed()
        TZ_BEHIND.set(newest != rules or here != tz_version())
        if newest != rules:
            log.warning("this node has older rules of the time zones", version=rules.version, newest=newest.version)
        if here != tz_version():
            log.warning("new rules of the time zones count after a restart", version=rules.version, installed=here)
