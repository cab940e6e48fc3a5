"""The Grafana dashboards: generated files, layout, and every query on a Prometheus that scrapes real processes."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from prometheus_client import REGISTRY, CollectorRegistry, ProcessCollector, start_http_server
from tests.cluster.roles import Roles
from tools.dashboards.__main__ import DASHBOARDS, FOLDER, main, render_files
from tools.dashboards.grafana import GRID_WIDTH
from tools.servers.prometheus import Prometheus

import bellringer.api.endpoints.metrics  # registers the metrics of the API
from bellringer.errors import BellringerError
from bellringer.testing.postgres import TestServer

assert bellringer.api.endpoints.metrics.REQUESTS

DOCUMENTS = {path.stem: json.loads(text) for path, text in render_files().items()}
METRIC = re.compile(r"\b((?:bellringer|process)_\w+|up)\b(?!=)")
# Grafana replaces these before it queries.
VARIABLES = {"$__rate_interval": "30s", "$instance": ".*", "$pool": ".*", "$tenant": ".*", "$task": ".*"}
# Queries that return a value as soon as a scheduler and a worker have executed runs.
ALIVE = {
    "overview": [
        "Polling cadence",
        "Overdue occurrences",
        "Attempts by outcome",
        "Dispatch latency",
        "Saturation of pools",
    ],
    "scheduler": ["Ticks a second", "Shards by scheduler", "Clock skew", "Lateness of firing"],
    "workers": ["Claimed a second", "Execution time by task (p95)", "Workers", "Memory"],
    "tenants": ["Paused tasks", "Orphaned jobs"],
    "database": ["Connection pools in use", "Duration of a claim", "Duration of settling a batch"],
}
# The panels and sections that the requirements name, and where each is.
REQUIRED = {
    "scheduler polling cadence": ("overview", "Polling cadence"),
    "overdue job count": ("overview", "Overdue occurrences"),
    "success/failure ratio": ("overview", "Attempts by outcome"),
    "DB connection pool usage": ("overview", "Connection pools in use"),
    "worker dispatch latency histogram": ("overview", "Dispatch latency"),
    "due triggers": ("overview", "Due runs by pool"),
    "oldest trigger lag": ("overview", "Oldest waiting run"),
    "failures by job type": ("overview", "Failures by task"),
    "retries by tenant": ("overview", "Retries by tenant"),
    "worker pool saturation": ("overview", "Saturation of pools"),
    "lease expirations": ("overview", "Lease expirations"),
    "dead-lettered triggers": ("overview", "Dead letters by task"),
}


def panels(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in document["panels"] if panel["type"] != "row"]


def queries() -> list[tuple[str, str, str]]:
    """All queries with their dashboard and panel, as Grafana would send them."""
    found = []
    for name, document in DOCUMENTS.items():
        for panel in panels(document):
            found += [(name, panel["title"], fill(target["expr"])) for target in panel["targets"]]
        found += [(name, note["name"], fill(note["expr"])) for note in document["annotations"]["list"]]
    return found


def fill(expression: str) -> str:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    assert "$" not in expression, expression
    return expression


def test_the_files_are_those_that_the_generator_writes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().out
    assert {path.name for path in FOLDER.glob("*.json")} == {path.name for path in render_files()}
    assert len(DASHBOARDS) == 5


def test_every_panel_is_described_and_has_its_place() -> None:
    for document in DOCUMENTS.values():
        assert len({panel["id"] for panel in document["panels"]}) == len(document["panels"])
        taken: set[tuple[int, int]] = set()
        for panel in document["panels"]:
            place = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert place["x"] + place["w"] <= GRID_WIDTH, panel["title"]
            assert not cells & taken, panel["title"]
            taken |= cells
        for panel in panels(document):
            assert panel["description"].endswith((".", "`.")), panel["title"]
            assert panel["targets"], panel["title"]
            assert panel["datasource"]["uid"] == "${datasource}"


def test_the_required_panels_exist() -> None:
    titles = {(name, panel["title"]) for name, document in DOCUMENTS.items() for panel in panels(document)}
    assert {what: place for what, place in REQUIRED.items() if place not in titles} == {}


def test_every_variable_that_a_query_uses_is_declared() -> None:
    for name, document in DOCUMENTS.items():
        declared = {variable["name"] for variable in document["templating"]["list"]}
        used = set(
            re.findall(
                r"\$(\w+)", json.dumps([panel["targets"] for panel in document["panels"] if panel.get("targets")])
            )
        )
        assert used - declared - {"__rate_interval"} == set(), name


def test_every_metric_exists_in_the_registry() -> None:
    known = set(REGISTRY._names_to_collectors)
    named = {metric for _, _, expression in queries() for metric in METRIC.findall(expression)}
    for document in DOCUMENTS.values():
        variables = [v["definition"] for v in document["templating"]["list"] if "definition" in v]
        named |= {metric for text in variables for metric in METRIC.findall(text)}
    assert len(named) > 40
    assert sorted(named - known) == []


def test_provisioning_finds_the_dashboards() -> None:
    sources = yaml.safe_load((FOLDER / "provisioning/datasources/prometheus.yaml").read_text())
    assert [source["type"] for source in sources["datasources"]] == ["prometheus"]
    (provider,) = yaml.safe_load((FOLDER / "provisioning/dashboards/bellringer.yaml").read_text())["providers"]
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards"


@pytest.fixture(scope="module")
def unrelated() -> Iterator[str]:
    """The address of another program, which exports the metrics of its process as most programs do."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    server, thread = start_http_server(0, "127.0.0.1", registry)
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def prometheus(
    bellringer_server: TestServer,
    tmp_path_factory: pytest.TempPathFactory,
    pytestconfig: pytest.Config,
    unrelated: str,
) -> Iterator[Prometheus]:
    """A Prometheus that scrapes a server with a scheduler, a worker that executes a run every second, and an unrelated
    program.
    """
    folder = tmp_path_factory.mktemp("dashboards")
    ports = [_free_port() for _ in range(2)]
    downloads = pytestconfig.rootpath / ".services" / "prometheus"
    with bellringer_server.plain_database() as dsn:
        roles = Roles(folder, dsn)
        targets = [*(f"127.0.0.1:{port}" for port in ports), unrelated]
        observer = Prometheus(folder / "prometheus", targets, downloads=downloads)
        try:
            roles.start("server", "--insecure", "--port", str(ports[0]))
            roles.start("worker", "app.py", "--metrics-port", str(ports[1]))
            _start(observer)
            _wait_for_runs(observer)
            yield observer
        finally:
            observer.kill()
            roles.end()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _start(server: Prometheus) -> None:
    try:
        server.start()
    except BellringerError as error:
        give_up = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        give_up(f"THERE IS NO REAL PROMETHEUS FOR THIS TEST: {error}")


def _wait_for_runs(server: Prometheus) -> None:
    deadline = time.monotonic() + 60
    while not server.query("sum(rate(bellringer_attempts_total[10s])) > 0 and sum(bellringer_shards_held) == 64"):
        assert time.monotonic() < deadline, server.query("up")
        time.sleep(0.2)


def test_every_query_runs_and_live_panels_have_data(prometheus: Prometheus) -> None:
    deadline = time.monotonic() + 30  # rates need two scrapes of the process that counts
    waiting = queries()
    while waiting:
        empty = [query for query in waiting if not prometheus.query(query[2])]  # raises if Prometheus rejects it
        waiting = [query for query in empty if query[1] in ALIVE[query[0]]]
        assert not waiting or time.monotonic() < deadline, waiting
        time.sleep(0.5 if waiting else 0)


def test_no_dashboard_shows_other_programs(prometheus: Prometheus, unrelated: str) -> None:
    assert prometheus.query(f'process_resident_memory_bytes{{instance="{unrelated}"}}')
    shown = {
        (title, series["metric"]["instance"])
        for _, title, expression in queries()
        for series in prometheus.query(expression)
        if "instance" in series["metric"]
    }
    assert {title for title, _ in shown} >= {"Memory", "CPU"}
    assert {title for title, instance in shown if instance == unrelated} == set()
    for document in DOCUMENTS.values():
        for variable in document["templating"]["list"]:
            if variable["name"] == "instance":
                metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"]).groups()  # type: ignore[union-attr]
                values = {series["metric"][label] for series in prometheus.query(f"group by ({label}) ({metric})")}
                assert len(values) == 2
                assert unrelated not in values


def test_a_query_that_prometheus_rejects_fails(prometheus: Prometheus) -> None:
    with pytest.raises(ValueError, match="parse error"):
        prometheus.query("sum(rate(bellringer_fires_total)")
