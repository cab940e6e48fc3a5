"""A short alert drill: faults in a small cluster fire their alerts in a real Prometheus, and the alerts clear."""

from __future__ import annotations

import os
import re

import pytest
import yaml
from bench.alerts.drill import run_drill
from bench.alerts.fleet import RULES
from bench.alerts.scaled_rules import scale_rules

from bellringer.errors import ConfigError

pytestmark = pytest.mark.cluster

ALERTS = {"BellringerPartitionMissing", "BellringerOrphanedJobs", "BellringerClockSkew", "BellringerDiskFilling"}
FACTOR = 60.0


async def test_alerts_fire_and_clear_and_every_metric_of_the_rules_is_scraped(bellringer_dsn: str) -> None:
    try:
        figures = await run_drill(bellringer_dsn, FACTOR, schedulers=1, workers=1, only=ALERTS)
    except ConfigError as error:
        give_up = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        give_up(f"THERE IS NO REAL PROMETHEUS FOR THIS TEST: {error}")
    assert figures.failed == []
    assert {timing.alert for timing in figures.timings} == ALERTS
    expressions = [rule["expr"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    named = {metric for text in expressions for metric in re.findall(r"\b(bellringer_\w+)", text)}
    assert named - set(figures.metrics) == set()


def test_durations_are_divided_and_thresholds_stay() -> None:
    before, after = RULES.read_text(), scale_rules(RULES.read_text(), FACTOR)
    assert "[6h]" in before
    assert "[360s]" in after
    assert "[6h]" not in after
    rules = {rule.get("alert"): rule for group in yaml.safe_load(after)["groups"] for rule in group["rules"]}
    assert rules["BellringerManyClaimed"]["for"] == "5s"
    assert rules["BellringerManyClaimed"]["expr"].endswith(">= 1000")
