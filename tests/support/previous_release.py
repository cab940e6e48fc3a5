"""The previous release as a real installation: exported from the history of this repository, and run by the same
interpreter, because the dependencies are the same.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import dataclass
from importlib import metadata
from io import BytesIO
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIRST_RELEASE = "0.1.0"
THIS_VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@dataclass(frozen=True)
class PreviousRelease:
    """The source folder of the previous release, with the metadata of an installed package."""

    source: Path
    version: str

    @property
    def environ(self) -> dict[str, str]:
        """The environment in which Python imports the previous release instead of this one."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("BELLRINGER_")}
        return {**inherited, "PYTHONPATH": str(self.source)}

    def run(self, *command: str, dsn: str) -> subprocess.CompletedProcess[str]:
        """Runs a `bellringer` command of the previous release."""
        return subprocess.run(
            [sys.executable, "-m", "bellringer", *command],
            env={**self.environ, "BELLRINGER_DSN": dsn},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


def find_commit() -> str | None:
    """The last commit of the previous release: the parent of the commit that raised the version to that of this tree.

    A release raises the version in the first commit after it, so that every later commit belongs to the next release.
    """
    raised = _git("log", "--format=%H", "-S", f'version = "{THIS_VERSION}"', "--", "pyproject.toml")
    parent = _git("rev-parse", "--verify", "--quiet", f"{raised.split()[-1]}^") if raised else None
    return parent.strip() if parent else None


def _git(*command: str) -> str | None:
    done = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def export(commit: str, folder: Path) -> PreviousRelease:
    archive = subprocess.run(
        ["git", "archive", "--format=zip", commit, "src", "pyproject.toml"], cwd=ROOT, capture_output=True, check=True
    )
    with zipfile.ZipFile(BytesIO(archive.stdout)) as files:
        files.extractall(folder)
    found = re.search(r'^version = "([^"]+)"', (folder / "pyproject.toml").read_text(), re.MULTILINE)
    assert found is not None
    info = folder / "src" / f"bellringer-{found[1]}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: bellringer\nVersion: {found[1]}\n")
    return PreviousRelease(folder / "src", found[1])


@pytest.fixture(scope="session")
def previous_release(tmp_path_factory: pytest.TempPathFactory) -> PreviousRelease:
    if THIS_VERSION == FIRST_RELEASE:
        pytest.skip("the first release has no previous one")
    commit = find_commit()
    if commit is None:
        text = f"no commit raised the version to {THIS_VERSION}, or the history is shallow"
        if os.environ.get("CI") == "true":
            pytest.fail(f"the previous release cannot be found: {text}")
        pytest.skip(text)
    release = export(commit, tmp_path_factory.mktemp("previous"))
    says = (
        "from importlib import metadata; import bellringer; print(metadata.version('bellringer'), bellringer.__file__)"
    )
    told = subprocess.run(
        [sys.executable, "-c", says], env=release.environ, capture_output=True, text=True, check=True
    ).stdout.split()
    assert told[0] == release.version != metadata.version("bellringer")
    assert Path(told[1]).is_relative_to(release.source)
    return release
