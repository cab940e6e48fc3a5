"""A real Prometheus evaluates the rules, and a real Alertmanager delivers them to receivers on this machine, with the
files of deploy/prometheus: the right receiver, one message per fault, a link to the runbook, and a recovery.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from bench.alerts.scaled_rules import scale_rules
from tools.servers.alertmanager import PACKAGES, Alertmanager
from tools.servers.debian_package import find_program
from tools.servers.prometheus import Prometheus

from bellringer.errors import BellringerError

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "prometheus"
CONFIGURATION = (FOLDER / "alertmanager.yaml").read_text()
RUNBOOK = "https://docs.example.com/runbook/"
FACTOR = 60.0  # of the durations of the rules
WAIT_SECONDS = 60.0
# No scheduler is scraped, so NoTick fires and explains the overdue jobs; an unknown task is a warning of its own.
FAULTY = {
    "bellringer_database_up": 1,
    "bellringer_overdue": 500,
    'bellringer_unknown_tasks{pool="short"}': 1,
    'bellringer_loop_limit_seconds{loop="fire",role="scheduler"}': 60,
}
HEALTHY = {
    **FAULTY,
    "bellringer_overdue": 0,
    'bellringer_unknown_tasks{pool="short"}': 0,
    'bellringer_loop_age_seconds{loop="fire",role="scheduler"}': 0.1,
}


class Site:
    """The address that Prometheus scrapes, and the receivers that Alertmanager calls: `received` has their messages."""

    def __init__(self) -> None:
        site = self
        self.series: dict[str, float] = {}
        self.received: dict[str, list[dict[str, Any]]] = {"page": [], "team": [], "watchdog": []}

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._respond("".join(f"{name} {value}\n" for name, value in site.series.items()))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                site.received[self.path.strip("/")].append(json.loads(body))
                self._respond("ok")

            def _respond(self, text: str) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None:
                """Do not log requests."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def titles(self, receiver: str) -> list[str]:
        return [message["attachments"][0]["title"] for message in self.received[receiver]]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def give_up(error: BellringerError) -> None:
    end = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
    end(f"THERE IS NO REAL PROMETHEUS OR ALERTMANAGER FOR THIS TEST: {error}")


def amtool(*arguments: str) -> str:
    try:
        program = find_program("amtool", PACKAGES, ROOT / ".services" / "alertmanager")
    except BellringerError as error:
        give_up(error)
    done = subprocess.run([program.path, *arguments], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def configure(folder: Path, site: Site) -> str:
    """Returns the configuration of deploy/ with these receivers, its example of a watchdog, and shorter waits."""
    text = CONFIGURATION
    for name in ("page", "team"):
        (folder / f"{name}_url").write_text(f"http://{site.address}/{name}\n")
        assert f"/run/secrets/{name}_url" in text
        text = text.replace(f"/run/secrets/{name}_url", str(folder / f"{name}_url"))
    text = re.sub(
        r"# (webhook_configs:)\n    # ( .*)https://hc-ping.com/your-uuid",
        rf"\1\n    \2http://{site.address}/watchdog",
        text,
    )
    assert f"{site.address}/watchdog" in text
    return text.replace("group_wait: 10s", "group_wait: 3s").replace("group_interval: 5m", "group_interval: 2s")


@pytest.fixture
def site() -> Iterator[Site]:
    running = Site()
    running.series = dict(FAULTY)
    yield running
    running.close()


@pytest.fixture
def alertmanager(site: Site, tmp_path: Path) -> Iterator[Alertmanager]:
    folder = tmp_path / "alertmanager"
    folder.mkdir()
    server = Alertmanager(folder, configure(folder, site), downloads=ROOT / ".services" / "alertmanager")
    try:
        server.start()
    except BellringerError as error:
        give_up(error)
    yield server
    server.kill()


@pytest.fixture
def prometheus(site: Site, alertmanager: Alertmanager, tmp_path: Path) -> Iterator[Prometheus]:
    rules = tmp_path / "alerts.yaml"
    text = (FOLDER / "alerts.yaml").read_text().replace("runbook_url: docs/runbook.md", f"runbook_url: {RUNBOOK}")
    rules.write_text(scale_rules(text, FACTOR))
    server = Prometheus(
        tmp_path / "prometheus",
        [site.address],
        rules=[rules],
        alertmanagers=[alertmanager.address],
        downloads=ROOT / ".services" / "prometheus",
    )
    try:
        server.start()
    except BellringerError as error:
        give_up(error)
    yield server
    server.kill()


def wait_until(holds: Callable[[], bool], what: str, site: Site) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline, (what, site.received)
        time.sleep(0.2)


@pytest.mark.usefixtures("prometheus")
def test_alerts_reach_their_receivers_and_recover(site: Site, alertmanager: Alertmanager) -> None:
    wait_until(lambda: "FIRING critical: BellringerNoTick" in site.titles("page"), "somebody is woken", site)
    wait_until(lambda: "FIRING warning: BellringerUnknownTasks" in site.titles("team"), "the team is told", site)
    wait_until(lambda: bool(site.received["watchdog"]), "the watchdog is heard", site)
    [message] = [one["attachments"][0] for one in site.received["page"]]
    assert message["title_link"] == f"{RUNBOOK}#bellringernotick"
    assert "*No scheduler fires jobs*" in message["text"]
    assert f"Runbook: {RUNBOOK}#bellringernotick" in message["text"]
    assert {alert["labels"]["alertname"] for one in site.received["watchdog"] for alert in one["alerts"]} == {
        "BellringerWatchdog"
    }

    # The overdue jobs follow from NoTick, so they are no message of their own.
    states = {alert["labels"]["alertname"]: alert["status"]["state"] for alert in alertmanager.alerts()}
    assert states["BellringerOverdue"] == "suppressed"
    assert states["BellringerNoTick"] == "active"
    assert not [title for receiver in ("page", "team") for title in site.titles(receiver) if "Overdue" in title]

    site.series = dict(HEALTHY)
    wait_until(lambda: "RESOLVED critical: BellringerNoTick" in site.titles("page"), "the recovery is told", site)
    wait_until(lambda: "RESOLVED warning: BellringerUnknownTasks" in site.titles("team"), "the team hears it", site)


def test_amtool_accepts_the_configuration_and_routes_by_severity() -> None:
    assert "SUCCESS" in amtool("check-config", "alertmanager.yaml")
    rules = [
        rule for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
    ]
    receivers = {"critical": "page", "warning": "team", "info": "team", "none": "watchdog"}
    seen = {(rule["alert"], rule["labels"]["severity"]) for rule in rules if "alert" in rule}
    assert {severity for _, severity in seen} == set(receivers)
    for severity, receiver in receivers.items():
        name = next(alert for alert, found in sorted(seen) if found == severity)
        labels = (f"alertname={name}", f"severity={severity}")
        routed = amtool("config", "routes", "test", "--config.file=alertmanager.yaml", *labels)
        assert routed.strip() == receiver


def test_inhibitions_name_alerts_that_exist() -> None:
    rules = [
        rule for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
    ]
    alerts = {rule["alert"] for rule in rules if "alert" in rule}
    named: set[str] = set()
    for rule in yaml.safe_load(CONFIGURATION)["inhibit_rules"]:
        for matcher in (*rule["source_matchers"], *rule["target_matchers"]):
            if found := re.fullmatch(r'alertname=~?"Bellringer(.+)"', matcher):
                for part in found[1].strip("()").split("|"):
                    matched = {name for name in alerts if re.fullmatch(f"Bellringer{part}", name)}
                    assert matched, (matcher, part)
                    named |= matched
    assert {"BellringerNoTick", "BellringerOverdue", "BellringerMissed", "BellringerDatabaseDown"} <= named
