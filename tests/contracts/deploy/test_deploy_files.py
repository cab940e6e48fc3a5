"""Chart, compose files, units and Dockerfile are valid, agree with each other, and name only things that exist.

The chart is rendered by `make deploy-check`; here its stored renderings are validated, and a checksum proves that they
are those of this chart.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import check_jsonschema
import click
import jsonschema
import kubernetes_validate
import pytest
import yaml
from tools.deploy_check import CHART, EXAMPLES, KUBERNETES, RENDERED, chart_checksum
from tools.image_root.build import DOCKERFILE
from tools.image_root.dockerfile import parse

from bellringer.cli import cli
from bellringer.config import VARIABLES_READ_ELSEWHERE, Config, load_config, settings_with_secrets
from bellringer.egress.mail import parse_mail_settings
from bellringer.egress.secret_box import parse_secret_keys

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
COMPOSE = DEPLOY / "compose" / "compose.yaml"
SCALE = DEPLOY / "compose" / "compose.scale.yaml"
CUSTOM = {"ServiceMonitor", "ScaledObject", "PrometheusRule"}
NOT_SETTINGS = {"BELLRINGER_IMAGE", "BELLRINGER_APP"}  # variables of compose.yaml itself


def resources(name: str) -> list[dict[str, Any]]:
    return [found for found in yaml.safe_load_all((RENDERED / f"{name}.yaml").read_text()) if found]


def containers() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yields each container of the renderings with its pod."""
    for name in EXAMPLES:
        for resource in resources(name):
            if resource["kind"] in {"Deployment", "Job"}:
                pod = resource["spec"]["template"]["spec"]
                yield from ((container, pod) for container in pod["containers"])


def services(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())["services"]
    return found


def parse_command(words: list[str]) -> None:
    """Reads a command line as click does, without running it."""
    command: click.Command = cli
    context: click.Context | None = None
    while isinstance(command, click.Group):
        context = click.Context(command, parent=context, info_name=words[0])
        found = command.get_command(context, words[0])
        assert found is not None, words
        command, words = found, words[1:]
    command.make_context("bellringer", list(words), parent=context)


# Chart


def test_the_renderings_are_those_of_this_chart() -> None:
    for name in EXAMPLES:
        head = (RENDERED / f"{name}.yaml").read_text().partition("\n")[0]
        assert chart_checksum() in head, "run `python -m tools.deploy_check --render` after a change of the chart"


@pytest.mark.parametrize("name", EXAMPLES)
def test_rendered_resources_are_valid(name: str) -> None:
    kinds = set()
    for resource in resources(name):
        kinds.add(resource["kind"])
        if resource["kind"] not in CUSTOM:  # kubeconform validates these in `make deploy-check`
            kubernetes_validate.validate(resource, KUBERNETES, strict=True)
    expected = {"ServiceAccount", "Job", "Deployment", "Service", "PodDisruptionBudget"}
    more = {"HorizontalPodAutoscaler", "Ingress", "NetworkPolicy", "ServiceMonitor", "ScaledObject"}
    assert kinds == (expected if name == "default" else expected | more)


def test_values_match_their_schema_and_mistakes_are_rejected() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    validator = jsonschema.Draft7Validator(schema)
    for path in EXAMPLES.values():
        assert list(validator.iter_errors(yaml.safe_load(path.read_text()))) == []
    for wrong in (
        {"server": {"replicsa": 2}},
        {"workers": {"shop": {"pools": {"short": 200}}}},
        {"settings": {"cache": "redis://app:password@redis:6379/0"}},
        *({"settings": {name: "x"}} for name in settings_with_secrets()),
        {"database": {"secretName": "", "secretKey": "dsn"}},
        {"metrics": {"prometheusRule": {"runbookUrl": "docs/runbook.md"}}},
    ):
        assert list(validator.iter_errors(wrong)), wrong
    refused = schema["properties"]["settings"]["propertyNames"]["not"]["enum"]
    assert set(refused) == settings_with_secrets() | {"host", "port", "name"}
    assert {"smtp_url", "payload_keys", "direct_dsn", "heartbeat_url"} <= set(refused)


def test_pods_run_as_nobody_special_with_a_read_only_root() -> None:
    seen = 0
    for container, pod in containers():
        seen += 1
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "memory" in container["resources"]["limits"]
        if "migrate" not in container["args"]:
            assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "metrics"}
            assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert seen == 8


def test_secrets_are_only_referred_to() -> None:
    secret = {f"BELLRINGER_{name.upper()}" for name in settings_with_secrets()}
    found = set()
    for container, _ in containers():
        for variable in container["env"]:
            if variable["name"] in secret:
                found.add(variable["name"])
                assert set(variable["valueFrom"]) == {"secretKeyRef"}
    assert len(found) >= 6
    assert not [found for name in EXAMPLES for found in resources(name) if found["kind"] == "Secret"]


def test_each_component_has_a_database_role_of_its_own_and_a_way_around_the_pooler() -> None:
    """The migration needs the owner's role, and behind PgBouncer the address of PostgreSQL itself."""
    found = {}
    for resource in resources("production"):
        if resource["kind"] in {"Deployment", "Job"}:
            [container] = resource["spec"]["template"]["spec"]["containers"]
            references = {
                variable["name"]: variable["valueFrom"]["secretKeyRef"]
                for variable in container["env"]
                if "secretKeyRef" in variable.get("valueFrom", {})
            }
            component = resource["metadata"]["labels"]["app.kubernetes.io/component"]
            found[component.partition("-")[0]] = (references["BELLRINGER_DSN"], references["BELLRINGER_DIRECT_DSN"])
    secrets = {"migrate": "owner", "server": "api", "scheduler": "scheduler", "worker": "worker"}
    assert found == {
        component: ({"name": f"bellringer-{role}", "key": "dsn"}, {"name": f"bellringer-{role}", "key": "direct-dsn"})
        for component, role in secrets.items()
    }
    [plain] = [one for one in resources("default") if one["kind"] == "Job"]
    [container] = plain["spec"]["template"]["spec"]["containers"]
    assert [variable["name"] for variable in container["env"]] == ["BELLRINGER_DSN"]


def test_components_get_their_own_variables_and_volumes() -> None:
    for resource in resources("production"):
        if resource["kind"] in {"Deployment", "Job"}:
            pod = resource["spec"]["template"]["spec"]
            [container] = pod["containers"]
            assert {"name": "tls", "mountPath": "/tls", "readOnly": True} in container["volumeMounts"]
            assert {"name": "tls", "secret": {"secretName": "postgres-ca"}} in pod["volumes"]
            names = {variable["name"] for variable in container["env"]}
            role = container["args"][0]
            assert ("BELLRINGER_SMTP_URL" in names) == (role == "server")
            assert ("BELLRINGER_HEARTBEAT_URL" in names) == (role == "scheduler")
            with_more = role == "server" or "shop.jobs:app" in container["args"]
            assert ("envFrom" in container) == with_more, resource["metadata"]["name"]


def test_scraped_jobs_have_names_that_the_rules_know() -> None:
    """The name of a release is the user's choice, and the default name of the job contains it."""
    [monitor] = [found for found in resources("production") if found["kind"] == "ServiceMonitor"]
    [relabeling] = monitor["spec"]["endpoints"][0]["relabelings"]
    assert relabeling == {
        "sourceLabels": ["__meta_kubernetes_pod_label_app_kubernetes_io_component"],
        "targetLabel": "job",
        "replacement": "bellringer-$1",
    }


def test_the_grace_period_of_pods_exceeds_that_of_workers() -> None:
    workers = [(container, pod) for container, pod in containers() if container["args"][0] == "worker"]
    assert len(workers) == 3
    for container, pod in workers:
        (grace,) = [re.findall(r"\d+", word) for word in container["args"] if word.startswith("--grace")]
        assert pod["terminationGracePeriodSeconds"] >= int(grace[0]) + 20


def test_keda_scales_each_pool_by_its_slots() -> None:
    objects = {found["metadata"]["name"]: found for found in resources("production") if found["kind"] == "ScaledObject"}
    triggers = objects["bellringer-worker-shop"]["spec"]["triggers"]
    assert [trigger["metadata"]["threshold"] for trigger in triggers] == ["320", "5"]  # 200 slots × 2 processes × 0.8
    (trigger,) = objects["bellringer-worker-reports"]["spec"]["triggers"]
    assert trigger["metadata"]["query"] == 'sum(max by (state) (bellringer_pool_runs{pool="long"}))'
    assert trigger["metadata"]["threshold"] == "4"
    named = set(re.findall(r"bellringer_\w+", json.dumps(objects)))
    assert named <= set(re.findall(r"bellringer_\w+", (ROOT / "docs" / "reference" / "metrics.md").read_text()))


def test_the_chart_contains_the_alerts_and_dashboards() -> None:
    assert (CHART / "files" / "alerts.yaml").resolve() == DEPLOY / "prometheus" / "alerts.yaml"
    assert (CHART / "files" / "grafana").resolve() == DEPLOY / "grafana"
    assert yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["groups"]
    assert list((CHART / "files" / "grafana").glob("*.json"))


# Compose


@pytest.mark.parametrize("path", [COMPOSE, SCALE], ids=lambda path: path.name)
def test_compose_files_match_the_specification(path: Path) -> None:
    vendored = Path(check_jsonschema.__file__).parent / "builtin_schemas" / "vendor" / "compose-spec.json"
    schema = json.loads(vendored.read_text())
    validator = jsonschema.validators.validator_for(schema)(schema)
    assert [error.message for error in validator.iter_errors(yaml.safe_load(path.read_text()))] == []


def test_compose_services_are_complete() -> None:
    first, second = services(COMPOSE), services(SCALE)
    assert set(first) == {"postgres", "migrate", "server", "worker", "prometheus", "alertmanager", "grafana"}
    assert set(second) - set(first) == {"kafka", "etcd", "redis"}
    assert [first[name]["deploy"]["replicas"] for name in ("server", "worker")] == [2, 2]
    for name, service in {**second, **first}.items():
        assert "healthcheck" in service, name
        assert service["cap_drop"] == ["ALL"], name
        assert name == "migrate" or "memory" in service["deploy"]["resources"]["limits"], name
        for other in service.get("depends_on", {}):
            assert other in {**first, **second}
    for name in ("server", "worker", "migrate"):
        assert first[name]["read_only"] is True
        assert first[name]["user"] == "10001:10001"
    assert first["server"]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}


def test_files_that_compose_mounts_exist() -> None:
    for service in services(COMPOSE).values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert not source.startswith(".") or (COMPOSE.parent / source).exists(), volume
    documents = [yaml.safe_load((DEPLOY / name / "prometheus.yaml").read_text()) for name in ("compose", "prometheus")]
    jobs, example = (document["scrape_configs"] for document in documents)
    assert {job["job_name"] for job in jobs} <= {job["job_name"] for job in example}
    for document in documents:
        [[target]] = [found["targets"] for found in document["alerting"]["alertmanagers"][0]["static_configs"]]
        assert target == "alertmanager:9093"


def test_alerts_of_compose_link_to_the_given_runbook(tmp_path: Path) -> None:
    service = services(COMPOSE)["prometheus"]
    [script] = service["command"]
    assert service["entrypoint"] == ["sh", "-ec"]
    assert yaml.safe_load((DEPLOY / "compose" / "prometheus.yaml").read_text())["rule_files"] == ["/tmp/alerts.yaml"]
    assert "../prometheus/alerts.yaml:/etc/prometheus/alerts.yaml:ro" in service["volumes"]
    (tmp_path / "prometheus").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "prometheus").chmod(0o755)
    for written, here in (("$$", "$"), ("/tmp/", f"{tmp_path}/"), ("/etc/prometheus", str(DEPLOY / "prometheus"))):
        script = script.replace(written, here)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "RUNBOOK_URL": "https://docs.example.com/runbook/"}
    done = subprocess.run(["sh", "-ec", script], env=environment, capture_output=True, text=True, check=True)
    assert "--storage.tsdb.retention.time=15d" in done.stdout
    groups = yaml.safe_load((tmp_path / "alerts.yaml").read_text())["groups"]
    links = {rule["annotations"]["runbook_url"] for group in groups for rule in group["rules"] if "alert" in rule}
    assert "https://docs.example.com/runbook/#bellringernotick" in links
    assert all(link.startswith("https://docs.example.com/runbook/#bellringer") for link in links)


def test_processes_of_compose_can_store_secrets(tmp_path: Path) -> None:
    """A channel needs `secret_keys`, and its messages `public_url`; e-mail and heartbeat are off until filled in."""
    shutil.copy(DEPLOY / "compose" / "create-secrets", tmp_path)
    subprocess.run(["sh", str(tmp_path / "create-secrets")], check=True)
    for name, service in services(COMPOSE).items():
        if name not in {"server", "worker"}:
            continue
        environ = {key: re.sub(r"\$\{\w+:-(.*)\}", r"\1", value) for key, value in service["environment"].items()}
        for variable, value in environ.items():
            if variable.endswith("_FILE"):
                assert value.removeprefix("/run/secrets/") in service["secrets"], (name, variable)
        environ = {key: value.replace("/run/secrets", str(tmp_path / "secrets")) for key, value in environ.items()}
        config = load_config(environ=environ, folder=tmp_path)
        assert parse_secret_keys(config.secret_keys) is not None
        assert (config.smtp_url, config.heartbeat_url) == (None, None)
        if name == "server":
            assert config.public_url == "http://127.0.0.1:8700"
            mail = parse_mail_settings("smtp://mail:25", config.smtp_from)
            assert mail is not None


def test_secrets_of_compose_are_created_once(tmp_path: Path) -> None:
    shutil.copy(DEPLOY / "compose" / "create-secrets", tmp_path)
    for _ in range(2):
        subprocess.run(["sh", str(tmp_path / "create-secrets")], check=True)
    secrets = {path.name: path.read_text().strip() for path in (tmp_path / "secrets").iterdir()}
    assert set(secrets) == set(yaml.safe_load(COMPOSE.read_text())["secrets"])
    assert secrets["dsn"] == f"postgresql://bellringer:{secrets['postgres_password']}@postgres:5432/bellringer"
    assert Config(dsn=secrets["dsn"], root_key=secrets["root_key"]).root_key
    assert (tmp_path / "secrets").stat().st_mode & 0o077 == 0


# Units


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None and not os.environ.get("CI"):
        pytest.skip("systemd-analyze is not installed (Debian: apt-get install systemd)")
    assert program is not None
    for unit in UNITS:  # the program is not installed in /opt on this machine
        (tmp_path / unit.name).write_text(unit.read_text().replace("/opt/bellringer/bin/bellringer", "/bin/true"))
    done = subprocess.run(
        [program, "verify", "--man=no", *map(str, sorted(tmp_path.iterdir()))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_units_are_hardened_and_watched() -> None:
    assert [unit.name for unit in UNITS] == [f"bellringer-{name}.service" for name in
                                             ("migrate", "scheduler", "server", "worker@")]  # fmt: skip
    for unit in UNITS:
        lines = set(unit.read_text().splitlines())
        assert {"DynamicUser=yes", "NoNewPrivileges=yes", "ProtectSystem=strict", "CapabilityBoundingSet="} <= lines
        assert {"LoadCredential=dsn:/etc/bellringer/dsn", "Environment=BELLRINGER_DSN_FILE=%d/dsn"} <= lines
        if "migrate" not in unit.name:
            assert {"Type=notify", "WatchdogSec=30s", "Restart=on-failure"} <= lines


def test_every_unit_that_the_documents_name_exists() -> None:
    """`bellringer-worker` alone is no unit: workers are instances of a template."""
    units = {unit.name.removesuffix(".service") for unit in UNITS}
    called = re.compile(
        r"systemctl (?:--\S+ |restart |start |stop |enable |edit |status )+(['\"]?bellringer-[\w@*.-]+)"
    )
    named: dict[str, str] = {}
    for page in (ROOT / "docs").rglob("*.md"):
        for name in called.findall(" ".join(page.read_text().split())):
            named[name] = page.name
    assert len(named) >= 4
    for name, where in named.items():
        template, at, instance = name.strip("'\"").partition("@")
        assert template + at in units, f"{where}: there is no unit {name}"
        assert not at or instance, f"{where}: {name} needs an instance"
        assert "*" not in instance or name.startswith("'"), f"{where}: the shell would expand {name}"


# Agreement with the product


def test_every_setting_that_is_named_exists() -> None:
    named: dict[str, str] = {}
    for path in DEPLOY.rglob("*"):
        if path.is_file() and path.suffix != ".lock" and "secrets" not in path.parts and not path.is_symlink():
            for variable in re.findall(r"\bBELLRINGER_[A-Z_]*[A-Z]\b", path.read_text()):
                named[variable] = str(path.relative_to(ROOT))
    known = {f"BELLRINGER_{name.upper()}" for name in (*Config.__struct_fields__, *VARIABLES_READ_ELSEWHERE)}
    known |= {f"{variable}_FILE" for variable in known} | NOT_SETTINGS
    assert {name: where for name, where in named.items() if name not in known} == {}
    assert len(named) > 8
    for path in EXAMPLES.values():
        assert set(yaml.safe_load(path.read_text())["settings"]) <= set(Config.__struct_fields__)


def test_every_command_that_is_named_exists() -> None:
    commands = [container["args"] for container, _ in containers()]
    commands += [service["command"] for name, service in services(COMPOSE).items() if name in {"migrate", "server"}]
    commands += [["worker", "bellringer.demo:app"], list(parse(DOCKERFILE.read_text())[-1].instructions[-1].words)]
    for unit in UNITS:
        (start,) = re.findall(r"^ExecStart=\S+/bellringer (.*)$", unit.read_text(), re.MULTILINE)
        options = "--procs auto --pools short=200,long=4"
        commands.append(
            shlex.split(start.replace("$WORKER_OPTIONS", options).replace("${WORKER_APP}", "shop.jobs:app"))
        )
    notes = (CHART / "templates" / "NOTES.txt").read_text()
    (create,) = re.findall(r"'bellringer (keys create .*)'", notes)
    commands.append(shlex.split(create))
    assert len(commands) == 8 + 2 + 2 + 4 + 1
    for command in commands:
        parse_command(command)


def test_versions_agree() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)
    assert f"bellringer:{VERSION}" in services(COMPOSE)["server"]["image"]
    pin = re.compile(r"^([\w.-]+==\S+)", re.MULTILINE)
    tested = set(pin.findall((ROOT / "requirements.lock").read_text() + (ROOT / "requirements-uv.lock").read_text()))
    for name in ("requirements.lock", "build.lock"):
        installed = set(pin.findall((DEPLOY / "docker" / name).read_text()))
        assert installed <= tested
        assert len(installed) > 5


def test_the_build_context_has_every_file_that_is_copied() -> None:
    allowed = [line[1:] for line in (DOCKERFILE.with_name("Dockerfile.dockerignore")).read_text().splitlines()
               if line.startswith("!")]  # fmt: skip
    copied = [
        source
        for stage in parse(DOCKERFILE.read_text())
        for instruction in stage.instructions
        if instruction.name == "COPY" and "from" not in instruction.flags
        for source in instruction.words[:-1]
    ]
    assert sorted(copied) == sorted(allowed)
    assert all((ROOT / source).exists() for source in copied)
