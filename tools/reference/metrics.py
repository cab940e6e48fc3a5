"""The reference of metrics: names, types, labels and help texts from the declarations, roles from the imports."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric

import bellringer
from bellringer import telemetry
from bellringer.core.loop_progress import LoopCollector
from bellringer.supervise.role_processes import ProcessPlan, RoleProcesses, WorkerCollector
from tools.reference.markdown import SOURCE, code, page, table

ALL_ROLES: Final = ("server", "scheduler", "worker")
# The roles whose processes run a module; the longest prefix of its path decides.
ROLES_BY_PATH: Final[Mapping[str, tuple[str, ...]]] = {
    "": ALL_ROLES,
    "api": ("server",),
    "backends/kafka": ("worker",),
    "backends/redis": ("server", "scheduler"),
    "store/replica.py": ("server",),
    "metrics_server.py": ("server",),
    "engine": ("scheduler",),
    "engine/settle.py": ("worker", "scheduler"),  # the scheduler settles attempts of lost workers
    "scheduler": ("scheduler",),
    "worker": ("worker",),
}
INTRODUCTION: Final = """\
Each process serves its metrics in the Prometheus format on `metrics_port`; an API server also serves them on its own
port, to installation keys. [Alerts](../alerts.md) explains how to scrape them and which rules use them.

- **Role** names the processes that set the metric. `bellringer server` runs a scheduler and a worker for HTTP targets
  too, so it also has the metrics of `scheduler` and `worker`. Other processes may serve the metric with the value 0.
- **Gauges of the role `server`** are read from the database when they are scraped, at most once a second, and have the
  same value on every server: take the maximum over all instances, not the sum. They are exported once they are read:
  a server that still waits for its database exports only `bellringer_database_up` with the value 0.
- With `--procs`, `process_cpu_seconds_total`, `process_resident_memory_bytes` and `process_open_fds` are sums over the
  supervisor and its processes.
- **Labels are bounded.** Tasks, pools and loops are those of your code; `tenant` has at most 50 values and `other`.
- A histogram has the series `…_bucket`, `…_sum` and `…_count`."""


@dataclass(frozen=True, slots=True, order=True)
class MetricRow:
    name: str
    type: str
    labels: tuple[str, ...]
    roles: tuple[str, ...]
    help: str


def render_metrics() -> str:
    """Returns the page with one row per metric."""
    rows = [
        (code(row.name), row.type, ", ".join(map(code, row.labels)) or "–", ", ".join(row.roles), row.help)
        for row in sorted(read_rows())
    ]
    return page("Metrics", INTRODUCTION, table(("metric", "type", "labels", "role", "meaning"), rows))


def read_rows() -> Iterator[MetricRow]:
    """Reads all metrics that the processes declare."""
    for metric, (module, constant) in registered_metrics().items():
        path = module.removeprefix("bellringer.").replace(".", "/") + ".py"
        users = _importers(module, constant) | ({path} if module != telemetry.__name__ else set())
        yield _declared(metric, _roles(users))
    for gauge in LoopCollector().describe():
        yield _collected(gauge, ("role", "loop"), ALL_ROLES)
    plan = ProcessPlan(role="worker", processes=1, arguments=[], environment={}, grace_seconds=0)
    with TemporaryDirectory() as folder:
        for family in WorkerCollector(RoleProcesses(plan), Path(folder)).collect():
            if family.name.startswith("bellringer_"):
                yield _collected(family, (), ("worker --procs",))


@cache
def registered_metrics() -> Mapping[MetricWrapperBase, tuple[str, str]]:
    """Returns the metrics of all modules, with the module and the constant that hold each."""
    found: dict[MetricWrapperBase, tuple[str, str]] = {}
    for info in pkgutil.walk_packages(bellringer.__path__, "bellringer."):
        if info.name.endswith("__main__"):
            continue
        for constant, value in vars(importlib.import_module(info.name)).items():
            is_here = isinstance(value, MetricWrapperBase) and constant in _constants_of(info.name)
            if is_here and value._name.startswith("bellringer_"):  # noqa: SLF001 - it has no public accessor
                found[value] = (info.name, constant)
    return found


def _declared(metric: MetricWrapperBase, roles: tuple[str, ...]) -> MetricRow:
    [family] = metric.describe()
    return _collected(family, tuple(metric._labelnames), roles)  # noqa: SLF001 - it has no public accessor


def _collected(family: Metric, labels: tuple[str, ...], roles: tuple[str, ...]) -> MetricRow:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    return MetricRow(name, family.type, labels, roles, family.documentation)


@cache
def _constants_of(module: str) -> set[str]:
    """Returns the names that a module assigns, without those that it imports."""
    file = SOURCE / Path(*module.split(".")[1:])
    text = (file / "__init__.py" if file.is_dir() else file.with_suffix(".py")).read_text(encoding="utf-8")
    assigned = (node for node in ast.parse(text).body if isinstance(node, ast.Assign | ast.AnnAssign))
    targets = (t for n in assigned for t in (n.targets if isinstance(n, ast.Assign) else [n.target]))
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _importers(module: str, constant: str) -> set[str]:
    """Returns the modules that import a constant, as paths below the package."""
    return _importers_by_name()[module, constant]


@cache
def _importers_by_name() -> Mapping[tuple[str, str], set[str]]:
    users: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                for imported in node.names:
                    users[node.module, imported.name].add(path.relative_to(SOURCE).as_posix())
    return users


def _roles(paths: set[str]) -> tuple[str, ...]:
    found: set[str] = set()
    for path in paths:
        if not path.startswith("bench/"):
            found.update(ROLES_BY_PATH[max((p for p in ROLES_BY_PATH if path.startswith(p)), key=len)])
    return tuple(role for role in ALL_ROLES if role in found)
