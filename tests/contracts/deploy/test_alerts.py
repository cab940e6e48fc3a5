"""The alert rules: promtool accepts and tests them, every alert is documented, and every metric exists."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.reference.metrics import read_rows
from tools.servers.debian_package import find_program

from bellringer.errors import BellringerError

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "prometheus"
RULES = [rule for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"] for rule in group["rules"]]
ALERTS: dict[str, dict[str, Any]] = {rule["alert"]: rule for rule in RULES if "alert" in rule}
WATCHDOG = "BellringerWatchdog"  # it always fires
METRIC = re.compile(r"\b(bellringer_\w+)\b")
NAMES = """
    ManyClaimed NoTick Overdue FailureRate ConnectionsHigh ConnectionsCritical DispatchSlow PollSlow Missed
    DeadLettersGrowing StaleWrites ClockSkew AuditSealBroken PartitionMissing DiskFilling LoopStalled StrandedRuns
    OrphanedJobs UnknownTasks ObjectiveBurnFast ObjectiveBurnSlow TargetDown NoServer DatabaseDown NoWorkers Watchdog
"""


def promtool(*arguments: str) -> str:
    try:
        program = find_program("promtool", ("prometheus",), ROOT / ".services" / "prometheus")
    except BellringerError as error:
        give_up = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        give_up(f"THERE IS NO PROMTOOL FOR THIS TEST: {error}")
    environ = {**os.environ, **program.environ}
    done = subprocess.run(
        [program.path, *arguments], cwd=FOLDER, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_promtool_accepts_the_rules_and_the_scrape_example() -> None:
    assert f"{len(RULES)} rules found" in promtool("check", "rules", "alerts.yaml")
    assert "is valid" in promtool("check", "config", "prometheus.yaml")


def test_promtool_accepts_the_example_for_one_task(tmp_path: Path) -> None:
    [example] = re.findall(r"```yaml\n(groups:.*?)```", (ROOT / "docs" / "alerts.md").read_text(), re.DOTALL)
    (tmp_path / "shop.yaml").write_text(example)
    assert "1 rules found" in promtool("check", "rules", str(tmp_path / "shop.yaml"))
    metrics = {row.name: row for row in read_rows()}
    for name in re.findall(r"bellringer_\w+", example):
        assert "task" in metrics[name].labels
    assert [row.name for row in metrics.values() if "job" in row.labels] == []


def test_every_alert_fires_and_does_not_fire() -> None:
    assert "SUCCESS" in promtool("test", "rules", "alerts_test.yaml")
    healthy, *faults = yaml.safe_load((FOLDER / "alerts_test.yaml").read_text())["tests"]
    assert {case["alertname"] for case in healthy["alert_rule_test"]} == set(ALERTS) - {WATCHDOG}
    assert not any("exp_alerts" in case for case in healthy["alert_rule_test"])
    fired = {
        re.findall(r'alertname="(\w+)"', sample["labels"])[0]
        for test in faults
        for case in test["promql_expr_test"]
        for sample in case["exp_samples"]
    }
    assert fired == set(ALERTS)


def test_every_alert_says_what_to_do() -> None:
    assert set(ALERTS) == {f"Bellringer{name}" for name in NAMES.split()}
    for name, rule in ALERTS.items():
        severities = {"none"} if name == WATCHDOG else {"critical", "warning", "info"}
        assert rule["labels"]["severity"] in severities, name
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}, name
        assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{name.lower()}"
        assert rule["annotations"]["description"].endswith("."), name


def test_the_runbook_has_a_section_for_every_alert() -> None:
    headings = re.findall(r"^#+ (.+)$", (ROOT / "docs" / "runbook.md").read_text(), re.MULTILINE)
    assert set(ALERTS) - set(headings) == set()


def test_the_page_lists_every_alert_with_its_severity() -> None:
    rows = re.findall(r"^\| `(Bellringer\w+)` \| (\w+) \|", (ROOT / "docs" / "alerts.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted((name, rule["labels"]["severity"]) for name, rule in ALERTS.items())


def test_a_missing_process_is_found_whatever_the_release_is_called() -> None:
    [pattern] = re.findall(r'job=~"(.*?)"', ALERTS["BellringerTargetDown"]["expr"])
    for job in ("bellringer-server", "bellringer-worker-shop", "jobs-bellringer-metrics"):
        assert re.fullmatch(pattern, job)
    assert re.fullmatch(pattern, "node") is None


def test_every_metric_of_the_rules_is_declared() -> None:
    named = {re.sub(r"_bucket$", "", metric) for rule in RULES for metric in METRIC.findall(rule["expr"])}
    assert len(named) > 20
    assert named - {row.name for row in read_rows()} == set()
