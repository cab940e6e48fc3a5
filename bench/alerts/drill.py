"""Injects the faults, and measures how long each alert takes to fire and to clear."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import asyncpg

from bellringer.clock import SystemClock
from bench.alerts import app as drill_app
from bench.alerts.faults import GROUPS, AlertFault, DrillContext
from bench.alerts.fleet import RULES, AlertFleet
from bench.alerts.scaled_rules import scale_rules

FIRE_SECONDS: Final = 150.0
CLEAR_SECONDS: Final = 240.0
CALM_SECONDS: Final = 120.0
POLL_SECONDS: Final = 0.5
WATCHDOG: Final = "BellringerWatchdog"  # it always fires
SCRAPED_METRICS: Final = 'count by (__name__) ({__name__=~"bellringer_.+"})'
_CLOCK: Final = SystemClock()


@dataclass(frozen=True, kw_only=True)
class AlertTiming:
    """How long an alert took; None if it did not fire or clear in time."""

    fault: str
    alert: str
    fired_after: float | None
    cleared_after: float | None


@dataclass(frozen=True, kw_only=True)
class DrillFigures:
    """The table of the drill, by what factor durations of the rules were divided, and the metrics that exist."""

    factor: float
    timings: list[AlertTiming]
    metrics: list[str]  # that Prometheus scraped

    @property
    def failed(self) -> list[AlertTiming]:
        return [one for one in self.timings if one.fired_after is None or one.cleared_after is None]


class AlertLog:
    """Polls Prometheus, and keeps which alerts fire."""

    def __init__(self, fleet: AlertFleet) -> None:
        self._fleet = fleet
        self.firing: set[str] = set()

    async def follow(self) -> None:
        while True:
            found = await asyncio.to_thread(self._fleet.prometheus.alerts)
            self.firing = {one["labels"]["alertname"] for one in found if one["state"] == "firing"} - {WATCHDOG}
            await asyncio.sleep(POLL_SECONDS)

    async def wait(self, alert: str, since: float, seconds: float, *, fires: bool) -> float | None:
        """Returns the seconds since `since` until the alert fires or is clear; None if it is not in time."""
        deadline = _CLOCK.monotonic() + seconds
        while (alert in self.firing) != fires:
            if _CLOCK.monotonic() > deadline:
                return None
            await asyncio.sleep(POLL_SECONDS / 2)
        return _CLOCK.monotonic() - since


async def run_drill(
    dsn: str, factor: float, *, schedulers: int = 3, workers: int = 4, only: Collection[str] = ()
) -> DrillFigures:
    """Runs all faults, or those that fire one of the alerts `only`."""
    timings: list[AlertTiming] = []
    with tempfile.TemporaryDirectory(prefix="alert-drill-") as name:
        rules = scale_rules(RULES.read_text(encoding="utf-8"), factor)
        fleet = AlertFleet(dsn, Path(name), rules, schedulers=schedulers, workers=workers)
        await drill_app.app.connection.move(dsn)
        pool = await asyncpg.create_pool(dsn, min_size=1, max_size=4, server_settings={"search_path": "bellringer"})
        log = AlertLog(fleet)
        following: asyncio.Task[None] | None = None
        try:
            await fleet.start()
            following = asyncio.create_task(log.follow())
            drill = DrillContext(fleet, pool)
            await _wait_for_calm(log)
            for group in GROUPS:
                chosen = [fault for fault in group if not only or {*fault.alerts, *fault.afterwards} & set(only)]
                for found in await asyncio.gather(*(_measure(drill, log, fault) for fault in chosen)):
                    timings += found
            metrics = await asyncio.to_thread(fleet.prometheus.query, SCRAPED_METRICS)
        finally:
            if following is not None:
                following.cancel()
            fleet.close()
            await pool.close()
            await drill_app.app.aclose()
    names = sorted(one["metric"]["__name__"] for one in metrics)
    return DrillFigures(factor=factor, timings=timings, metrics=names)


async def _wait_for_calm(log: AlertLog) -> None:
    """Waits until nothing has fired for a few seconds: while a cluster starts, shards have no scheduler."""
    deadline, calm_since = _CLOCK.monotonic() + CALM_SECONDS, _CLOCK.monotonic()
    while _CLOCK.monotonic() - calm_since < 5 and _CLOCK.monotonic() < deadline:
        await asyncio.sleep(POLL_SECONDS)
        if log.firing:
            calm_since = _CLOCK.monotonic()


async def _measure(drill: DrillContext, log: AlertLog, fault: AlertFault) -> Sequence[AlertTiming]:
    for alert in (*fault.alerts, *fault.afterwards):
        await log.wait(alert, 0.0, CLEAR_SECONDS, fires=False)
    injected = _CLOCK.monotonic()
    await fault.inject(drill)
    if fault.begins_after_injection:
        injected = _CLOCK.monotonic()
    fired = await _wait_all(log, fault.alerts, injected, FIRE_SECONDS, fires=True)
    healed = _CLOCK.monotonic()
    await fault.heal(drill)
    fired |= await _wait_all(log, fault.afterwards, injected, FIRE_SECONDS, fires=True)
    cleared = await _wait_all(log, [*fired], healed, CLEAR_SECONDS, fires=False)
    return [
        AlertTiming(fault=fault.name, alert=alert, fired_after=fired[alert], cleared_after=cleared[alert])
        for alert in fired
    ]


async def _wait_all(
    log: AlertLog, alerts: Sequence[str], since: float, seconds: float, *, fires: bool
) -> dict[str, float | None]:
    found = await asyncio.gather(*(log.wait(alert, since, seconds, fires=fires) for alert in alerts))
    return dict(zip(alerts, found, strict=True))


def render(figures: DrillFigures) -> str:
    """Returns the table as Markdown."""
    lines = ["| fault | alert | seconds to fire | seconds to clear |", "|---|---|---|---|"]
    for one in figures.timings:
        fired, cleared = ("–" if value is None else f"{value:.0f}" for value in (one.fired_after, one.cleared_after))
        lines.append(f"| {one.fault} | `{one.alert}` | {fired} | {cleared} |")
    return "\n".join(lines)
